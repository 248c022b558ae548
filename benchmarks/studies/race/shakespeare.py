"""Shakespeare's plays, next character: `shakespeare/input.txt` of the data folder, speeches after `ROLE:`."""

from collections import defaultdict
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from fedraa.data.sources.federated_dataset import FederatedDataset
from fedraa.errors import InputError

# The roles with the most text.
ROLES = 10
# Characters of a sample.
LENGTH = 32
# One of this number of samples of a role is for the test.
TESTED = 10
WIDTH, UNITS, SEEN = 16, 256, 8
Tokens = npt.NDArray[np.int64]
Samples = dict[object, tuple[Tokens, Tokens]]


def roles(data_dir: Path | None) -> FederatedDataset:
    """A client per role; the first tenth of what each says is for the test. ValueError if there is no such file."""
    train, test, letters = _samples(data_dir)
    return FederatedDataset.of_clients("shakespeare", train, None, test_of_clients=test, classes=letters)


def together(data_dir: Path | None) -> FederatedDataset:
    """The same, all of it one client's."""
    train, test, letters = _samples(data_dir)
    one, rest = ({"all": _joined(part)} for part in (train, test))
    return FederatedDataset.of_clients("shakespeare", one, None, test_of_clients=rest, classes=letters)


class Letters(nn.Module):
    """Characters [b, t] to logits [b, t, classes] from the last `SEEN` of them: a causal convolution, whose units are
    cut, and an output layer (after Bengio et al. 2003)."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.embed, self.hidden = nn.Embedding(classes, WIDTH), nn.Conv1d(WIDTH, UNITS, SEEN)
        self.head = nn.Linear(UNITS, classes)

    def forward(self, x: Tensor) -> Tensor:
        h = nn.functional.pad(self.embed(x).transpose(1, 2), (SEEN - 1, 0))
        out: Tensor = self.head(torch.relu(self.hidden(h)).transpose(1, 2))
        return out


def _samples(data_dir: Path | None) -> tuple[Samples, Samples, int]:
    """Training and test samples by role, and how many letters there are."""
    path = (data_dir or Path()) / "shakespeare" / "input.txt"
    if not path.is_file():
        raise InputError("data_dir", f"shakespeare needs {path}", expected="speeches, each ROLE: and its lines")
    said: dict[str, str] = defaultdict(str)
    for speech in path.read_text().split("\n\n"):
        role, _, words = speech.partition(":\n")
        said[role] += words + "\n"
    most = sorted(said, key=lambda role: (-len(said[role]), role))[:ROLES]
    letters = {letter: code for code, letter in enumerate(sorted(set("".join(said[role] for role in most))))}
    train, test = Samples(), Samples()
    for role in most:
        tokens = np.array([letters[letter] for letter in said[role]])
        rows = np.lib.stride_tricks.sliding_window_view(tokens, LENGTH + 1)[::LENGTH]
        part = -(-len(rows) // TESTED)
        test[role], train[role] = ((some[:, :-1], some[:, 1:]) for some in (rows[:part], rows[part:]))
    return train, test, len(letters)


def _joined(samples: Samples) -> tuple[Tokens, Tokens]:
    x, y = zip(*samples.values(), strict=True)
    return np.concatenate(x), np.concatenate(y)
