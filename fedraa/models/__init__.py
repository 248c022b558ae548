"""The built-in models, and the creation of custom models."""

# The import of `safe_convolution` replaces PyTorch's backward pass of convolutions.
from fedraa.models import safe_convolution as safe_convolution
from fedraa.models.build import build_model
from fedraa.models.scaler import set_scaler_rate

__all__ = ["build_model", "set_scaler_rate"]
