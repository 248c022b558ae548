"""Small models that predict the next character (logits [b, t, letters] of texts [b, t]), and their training data."""

from itertools import product

import numpy as np
import torch
from torch import Tensor, nn

# The maximum number of characters that the GPT reads.
LENGTH = 32
LINES = ("to be or not to be", "the rest is silence", "what a piece of work is man") * 30
SYNTHETIC_PLAY = "\n\n".join(f"{role}:\n{line}." for role, line in product(("HAMLET", "HORATIO", "OPHELIA"), LINES))


class LSTM(nn.Module):
    def __init__(self, letters: int, width: int = 24) -> None:
        super().__init__()
        self.embed = nn.Embedding(letters, width)
        self.lstm = nn.LSTM(width, 64, batch_first=True)
        self.head = nn.Linear(64, letters)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.lstm(self.embed(x))[0])


class GPT(nn.Module):
    """A transformer with one block: causal attention, then a feed-forward layer. Its units can be cut."""

    def __init__(self, letters: int, width: int = 32) -> None:
        super().__init__()
        self.embed = nn.Embedding(letters, width)
        self.place = nn.Embedding(LENGTH, width)
        self.query, self.key, self.value = (nn.Linear(width, width) for _ in range(3))
        self.ahead = nn.Linear(width, 4 * width)
        self.back = nn.Linear(4 * width, width)
        self.head = nn.Linear(width, letters)

    def forward(self, x: Tensor) -> Tensor:
        h = self.embed(x) + self.place(torch.arange(x.shape[1], device=x.device))
        heads = (layer(h) for layer in (self.query, self.key, self.value))
        h = h + nn.functional.scaled_dot_product_attention(*heads, is_causal=True)
        return self.head(h + self.back(torch.relu(self.ahead(h))))


def cut_windows(text: str, letters: list[str]) -> tuple[np.ndarray, np.ndarray]:
    """Return windows of characters [n, LENGTH], and for each character the next character [n, LENGTH]."""
    codes = {letter: code for code, letter in enumerate(letters)}
    tokens = np.array([codes[letter] for letter in text])
    rows = np.lib.stride_tricks.sliding_window_view(tokens, LENGTH + 1)[::LENGTH]
    return rows[:, :-1], rows[:, 1:]


@torch.no_grad()
def generate_tokens(model: nn.Module, tokens: list[int], count: int = 80) -> list[int]:
    """Return `tokens`, followed by `count` tokens that the model draws one after another."""
    for _ in range(count):
        chances = (model.eval()(torch.tensor([tokens[-LENGTH:]]))[0, -1] / 0.7).softmax(0)
        tokens = [*tokens, int(torch.multinomial(chances, 1))]
    return tokens
