"""Vision transformers (Dosovitskiy et al. 2021) in the two sizes of SubDisMO's Table 4.

The arguments of each model function are the shape of the images (channels, height, width) and the number of classes.
"""

import torch
from torch import nn
from torch.nn import functional as F

from fedraa.errors import InputError

# Number of patches per side of the image (see `vit_small`).
_GRID = 4


class Attention(nn.Module):
    """Multi-head self-attention over `[b, tokens, width]`, without biases for query, key and value.

    The number of heads follows from the sizes of the layers, so whole heads can be cut from them.
    """

    def __init__(self, width: int, heads: int, head_dim: int) -> None:
        super().__init__()
        inner = heads * head_dim
        self.head_dim = head_dim
        self.query = nn.Linear(width, inner, bias=False)
        self.key = nn.Linear(width, inner, bias=False)
        self.value = nn.Linear(width, inner, bias=False)
        self.out = nn.Linear(inner, width)

    @property
    def heads(self) -> int:
        return self.query.out_features // self.head_dim

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        split = (-1, self.head_dim)
        # The shapes are [b, heads, tokens, head_dim].
        query = self.query(x).unflatten(-1, split).transpose(1, 2)
        key = self.key(x).unflatten(-1, split).transpose(1, 2)
        value = self.value(x).unflatten(-1, split).transpose(1, 2)
        attended = F.scaled_dot_product_attention(query, key, value)
        merged: torch.Tensor = self.out(attended.transpose(1, 2).flatten(2))
        return merged


class EncoderBlock(nn.Module):
    """A pre-norm transformer block: attention and a two-layer perceptron with residual connections."""

    def __init__(self, width: int, heads: int, mlp_width: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.attention = Attention(width, heads, width // heads)
        self.norm2 = nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, mlp_width), nn.GELU(), nn.Linear(mlp_width, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.norm1(x))
        out: torch.Tensor = x + self.mlp(self.norm2(x))
        return out


class VisionTransformer(nn.Module):
    """A transformer over image patches and a class token. The output of the class token gives the logits."""

    def __init__(
        self,
        image: tuple[int, int, int],
        classes: int,
        *,
        depth: int,
        width: int,
        mlp_width: int,
        heads: int,
    ) -> None:
        super().__init__()
        channels, *sides = image
        if any(side % _GRID for side in sides):
            raise InputError(
                "model", f"images have the sides {sides}", expected=f"sides divisible by {_GRID} for a vit"
            )
        patch = (sides[0] // _GRID, sides[1] // _GRID)
        self.patches = nn.Conv2d(channels, width, patch, stride=patch)
        self.class_token = nn.Parameter(torch.empty(1, 1, width).normal_(std=0.02))
        self.positions = nn.Parameter(torch.empty(1, _GRID**2 + 1, width).normal_(std=0.02))
        self.blocks = nn.Sequential(*(EncoderBlock(width, heads, mlp_width) for _ in range(depth)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        tokens = self.patches(x).flatten(2).transpose(1, 2)
        tokens = torch.cat([self.class_token.expand(x.shape[0], -1, -1), tokens], dim=1)
        tokens = self.blocks(tokens + self.positions)
        logits: torch.Tensor = self.head(self.norm(tokens[:, 0]))
        return logits


def vit_small(channels: int, height: int, width: int, classes: int) -> VisionTransformer:
    """Return a vision transformer with 4 blocks of width 64, MLP 128 and 8 heads.

    The blocks have 133,120 parameters, as in SubDisMO's Table 7. The table's 2.63 MFLOPs per sample correspond to 16
    patches. Outside of the blocks, the paper's model has 7,680 parameters more than the usual embedding and head. The
    paper does not explain them.
    """
    return VisionTransformer((channels, height, width), classes, depth=4, width=64, mlp_width=128, heads=8)


def vit(channels: int, height: int, width: int, classes: int) -> VisionTransformer:
    """Return a vision transformer with 12 blocks of width 192, MLP 768 and 8 heads."""
    return VisionTransformer((channels, height, width), classes, depth=12, width=192, mlp_width=768, heads=8)
