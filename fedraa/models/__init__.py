"""The models of the papers, and any other by `package.module:callable`."""

from fedraa.models.build import MODELS, build_model

__all__ = ["MODELS", "build_model"]
