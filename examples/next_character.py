"""The next character of a play, one client per role: a small GPT and an LSTM, Fed-RAA against FedAvg.

    python examples/next_character.py --text shakespeare.txt

Without a text it makes one up.
"""

import argparse
import random
import re
from collections import defaultdict
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

import fedraa as fl

LENGTH = 32


class LSTM(nn.Module):
    def __init__(self, characters: int) -> None:
        super().__init__()
        self.embed, self.lstm = nn.Embedding(characters, 24), nn.LSTM(24, 64, batch_first=True)
        self.head = nn.Linear(64, characters)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.lstm(self.embed(x))[0])


class GPT(nn.Module):
    """One block: causal attention, then a feed-forward layer, whose units are what is cut."""

    def __init__(self, characters: int, width: int = 32) -> None:
        super().__init__()
        self.embed, self.place = nn.Embedding(characters, width), nn.Embedding(LENGTH, width)
        self.query, self.key, self.value = (nn.Linear(width, width) for _ in range(3))
        self.ahead, self.back = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.head = nn.Linear(width, characters)

    def forward(self, x: Tensor) -> Tensor:
        h = self.embed(x) + self.place(torch.arange(x.shape[1], device=x.device))
        heads = (layer(h) for layer in (self.query, self.key, self.value))
        h = h + nn.functional.scaled_dot_product_attention(*heads, is_causal=True)
        return self.head(h + self.back(torch.relu(self.ahead(h))))


def play(path: Path | None) -> str:
    if path is not None and path.is_file():
        return path.read_text()
    words = random.Random(0)
    says = ("to be or not to be", "the rest is silence", "what a piece of work is man")
    return "\n\n".join(f"{words.choice(['HAMLET', 'HORATIO', 'OPHELIA'])}:\n{words.choice(says)}." for _ in range(300))


def roles(text: str, most: int) -> list[str]:
    """What each of the roles with the most to say says."""
    said = defaultdict(list)
    for role, speech in re.findall(r"^([A-Z][\w ]+):\n(.+?)(?:\n\n|\Z)", text, re.MULTILINE | re.DOTALL):
        said[role].append(speech)
    return sorted(("\n".join(speeches) for speeches in said.values()), key=len, reverse=True)[:most]


def windows(text: str, codes: dict[str, int]) -> np.ndarray:
    """Runs of LENGTH + 1 characters [n, LENGTH + 1]."""
    tokens = np.array([codes[character] for character in text])
    return np.lib.stride_tricks.sliding_window_view(tokens, LENGTH + 1)[::LENGTH]


class ByRole(fl.Partitioner):
    """The rows come role after role, so many of each."""

    def __init__(self, rows: tuple[int, ...]) -> None:
        self.rows = rows

    def assign(self, labels: np.ndarray, clients: int, rng: np.random.Generator) -> list[np.ndarray]:
        return np.split(np.arange(len(labels)), np.cumsum(self.rows)[:-1])


def sample(history: fl.History, model: nn.Module, letters: list[str], count: int = 80) -> str:
    model.load_state_dict(torch.load(history.directory / "model.pt"))
    torch.manual_seed(0)
    tokens = torch.zeros(1, 1, dtype=torch.long)
    for _ in range(count):
        chances = (model.eval()(tokens[:, -LENGTH:])[0, -1].detach() / 0.7).softmax(0)
        tokens = torch.cat([tokens, torch.multinomial(chances, 1)[None]], dim=1)
    return "".join(letters[token] for token in tokens[0])


def main() -> None:
    flags = argparse.ArgumentParser(description=__doc__)
    flags.add_argument("--text", type=Path)
    flags.add_argument("--roles", type=int, default=8)
    flags.add_argument("--time", type=float, default=4.0)
    given = flags.parse_args()
    spoken = roles(play(given.text), given.roles)
    letters = sorted(set("".join(spoken)))
    codes = {letter: code for code, letter in enumerate(letters)}
    shards = [windows(text, codes) for text in spoken]
    parts = [max(1, len(each) // 10) for each in shards]
    train = [each[part:] for each, part in zip(shards, parts, strict=True)]
    test = [each[:part] for each, part in zip(shards, parts, strict=True)]
    rows, unseen = np.concatenate(train), np.concatenate(test)
    data = fl.Dataset("play", rows[:, :-1], rows[:, 1:], unseen[:, :-1], unseen[:, 1:], len(letters))
    for kind in (GPT, LSTM):
        for method in ("fed-raa", "fedavg"):
            torch.manual_seed(0)
            model = kind(len(letters))
            experiment = fl.Experiment(
                method=method,
                objective="next-token",
                partition=ByRole(tuple(map(len, train))),
                clients=len(spoken),
                local_epochs=1,
                lr=0.5,
                momentum=0.9,
                clip=1.0,
                time=given.time,
                engine="local",
            )
            history = fl.run(experiment, model=model, dataset=data)
            first, last = history.evals["perplexity"].iloc[[0, -1]]
            print(f"{kind.__name__}, {method}: perplexity {first:.1f} -> {last:.2f}")
            print(f"  {sample(history, model, letters)!r}")


if __name__ == "__main__":
    main()
