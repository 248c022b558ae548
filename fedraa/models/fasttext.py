"""FastText (Joulin et al. 2017) with two hidden layers, RA-Fed's model for AG News."""

import torch
from torch import nn

_ROWS = 10_000
_WIDTH = 64
_HIDDEN = 128


class FastText(nn.Module):
    """A text classifier for tokens, int64 `[b, length]`: the mean embedding, then two hidden layers.

    Token 0 is padding. Its embedding starts at 0 and gets no gradient. The mean is over all positions, including the
    padding, so a short text gets a small mean. The original fastText has no padding: its mean is over the words of the
    text. A token number beyond the embedding table is taken modulo the size of the table.
    """

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(_ROWS, _WIDTH, padding_idx=0)
        self.layers = nn.Sequential(
            nn.Linear(_WIDTH, _HIDDEN),
            nn.ReLU(),
            nn.Linear(_HIDDEN, _HIDDEN),
            nn.ReLU(),
            nn.Linear(_HIDDEN, classes),
        )

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.layers(self.embedding(tokens % _ROWS).mean(dim=1))
        return logits
