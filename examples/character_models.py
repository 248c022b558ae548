"""Small models of the next character: characters [b, t] to logits [b, t, letters]; and what they are trained on."""

import numpy as np
import torch
from torch import Tensor, nn

LENGTH = 32  # characters that the GPT looks back on, at most


class LSTM(nn.Module):
    def __init__(self, letters: int, width: int = 24) -> None:
        super().__init__()
        self.embed, self.lstm = nn.Embedding(letters, width), nn.LSTM(width, 64, batch_first=True)
        self.head = nn.Linear(64, letters)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.lstm(self.embed(x))[0])


class GPT(nn.Module):
    """One block: causal attention, then a feed-forward layer, whose units are what is cut."""

    def __init__(self, letters: int, width: int = 32) -> None:
        super().__init__()
        self.embed, self.place = nn.Embedding(letters, width), nn.Embedding(LENGTH, width)
        self.query, self.key, self.value = (nn.Linear(width, width) for _ in range(3))
        self.ahead, self.back = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.head = nn.Linear(width, letters)

    def forward(self, x: Tensor) -> Tensor:
        h = self.embed(x) + self.place(torch.arange(x.shape[1], device=x.device))
        heads = (layer(h) for layer in (self.query, self.key, self.value))
        h = h + nn.functional.scaled_dot_product_attention(*heads, is_causal=True)
        return self.head(h + self.back(torch.relu(self.ahead(h))))


def windows(text: str, letters: list[str]) -> np.ndarray:
    """Runs of LENGTH + 1 characters [n, LENGTH + 1], each from the last one of the run before."""
    codes = {letter: code for code, letter in enumerate(letters)}
    tokens = np.array([codes[letter] for letter in text])
    return np.lib.stride_tricks.sliding_window_view(tokens, LENGTH + 1)[::LENGTH]


@torch.no_grad()
def say(model: nn.Module, tokens: list[int], count: int = 80) -> list[int]:
    """`tokens`, and so many that the model draws after them."""
    for _ in range(count):
        chances = (model.eval()(torch.tensor([tokens[-LENGTH:]]))[0, -1] / 0.7).softmax(0)
        tokens = [*tokens, int(torch.multinomial(chances, 1))]
    return tokens
