"""The built-in models, and the creation of custom models."""

# The import of `safe_convolution` replaces PyTorch's backward pass of convolutions.
from fedraa.models import safe_convolution as safe_convolution
from fedraa.models.build import MODELS, build_model
from fedraa.models.scaler import Scaler, set_scaler_rate
from fedraa.models.statistics import reestimate_statistics

__all__ = ["MODELS", "Scaler", "build_model", "reestimate_statistics", "set_scaler_rate"]
