"""The models of the papers, and any other by `package.module:callable`."""

from fedraa.models import safe_convolution as safe_convolution  # importing it protects backward passes
from fedraa.models.build import MODELS, build_model
from fedraa.models.scaler import Scaler, set_scaler_rate
from fedraa.models.statistics import reestimate_statistics

__all__ = ["MODELS", "Scaler", "build_model", "reestimate_statistics", "set_scaler_rate"]
