"""The vision transformer of the race's setting `transformer`."""

from fedraa.models.vit import VisionTransformer


def narrow_transformer(classes: int) -> VisionTransformer:
    """Return a vision transformer with two blocks of width 32, MLP 64 and 4 heads, for grey images of 8 x 8 pixels."""
    return VisionTransformer((1, 8, 8), classes, depth=2, width=32, mlp_width=64, heads=4)
