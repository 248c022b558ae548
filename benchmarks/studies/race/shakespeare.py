"""Shakespeare's plays for next-character prediction, with a client per role.

The file `shakespeare/input.txt` in the data folder has the speeches, each after a line `ROLE:`.
"""

from collections import defaultdict
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from fedraa.data.sources.federated_dataset import FederatedDataset
from fedraa.errors import InputError

# A role is a character of a play. Only the ROLES roles with the most text are used.
ROLES = 10
# The number of characters in a sample.
LENGTH = 32
# The first 1 / TESTED of each role's samples are test samples.
TESTED = 10
WIDTH, UNITS, SEEN = 16, 256, 8
Tokens = npt.NDArray[np.int64]
Samples = dict[object, tuple[Tokens, Tokens]]


def roles(data_dir: Path | None) -> FederatedDataset:
    """Return the plays with a client per role. The first tenth of a role's text is for tests.

    Raises InputError if the file is missing.
    """
    train, test, letters = _load_samples(data_dir)
    return FederatedDataset.of_clients("shakespeare", train, None, test_of_clients=test, classes=letters)


def together(data_dir: Path | None) -> FederatedDataset:
    """Return the texts of all roles as the data of one client."""
    train, test, letters = _load_samples(data_dir)
    joined_test = {"all": _join_roles(test)}
    return FederatedDataset.of_clients(
        "shakespeare", {"all": _join_roles(train)}, None, test_of_clients=joined_test, classes=letters
    )


class Letters(nn.Module):
    """A model that predicts each next character from the last `SEEN` characters.

    Inputs have the shape [b, t], and logits the shape [b, t, classes]. A causal convolution and an output layer follow
    the embedding (after Bengio et al. 2003). A submodel has some units of the convolution.
    """

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(classes, WIDTH)
        self.hidden: nn.Module = nn.Conv1d(WIDTH, UNITS, SEEN)
        self.head = nn.Linear(UNITS, classes)

    def forward(self, x: Tensor) -> Tensor:
        h = nn.functional.pad(self.embed(x).transpose(1, 2), (SEEN - 1, 0))
        out: Tensor = self.head(torch.relu(self.hidden(h)).transpose(1, 2))
        return out


class LettersBatchNorm(Letters):
    """The model `Letters` with batch norm after the convolution."""

    def __init__(self, classes: int) -> None:
        super().__init__(classes)
        self.hidden = nn.Sequential(self.hidden, nn.BatchNorm1d(UNITS))


def _load_samples(data_dir: Path | None) -> tuple[Samples, Samples, int]:
    """Return training and test samples by role, and the number of different characters."""
    path = (data_dir or Path()) / "shakespeare" / "input.txt"
    if not path.is_file():
        raise InputError("data_dir", f"shakespeare needs {path}", expected="speeches, each after a line ROLE:")
    texts: dict[str, str] = defaultdict(str)
    for speech in path.read_text().split("\n\n"):
        role, _, words = speech.partition(":\n")
        texts[role] += words + "\n"
    longest = sorted(texts, key=lambda role: (-len(texts[role]), role))[:ROLES]
    letters = {letter: code for code, letter in enumerate(sorted(set("".join(texts[role] for role in longest))))}
    train, test = Samples(), Samples()
    for role in longest:
        tokens = np.array([letters[letter] for letter in texts[role]])
        rows = np.lib.stride_tricks.sliding_window_view(tokens, LENGTH + 1)[::LENGTH]
        count = -(-len(rows) // TESTED)
        test[role] = (rows[:count, :-1], rows[:count, 1:])
        train[role] = (rows[count:, :-1], rows[count:, 1:])
    return train, test, len(letters)


def _join_roles(samples: Samples) -> tuple[Tokens, Tokens]:
    x, y = zip(*samples.values(), strict=True)
    return np.concatenate(x), np.concatenate(y)
