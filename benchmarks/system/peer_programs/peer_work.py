"""The workload, data, model and report of results that all frameworks' programs share.

The programs run in environments without fedraa and its dependencies.
"""

import json
import sys
import time
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn import functional as F


@dataclass(frozen=True)
class Work:
    """Rounds of FedAvg with plain SGD. Each client has the same number of samples, in consecutive rows.

    Attributes:
        folder: The folder of the arrays.
        clients: The number of clients.
        cohort: The number of clients per round.
        samples: The number of samples per client.
        batch: The number of samples per minibatch.
        epochs: The number of local epochs.
        lr: The learning rate.
        rounds: The number of rounds.
        hidden: The numbers of units of the hidden layers.
        convolutions: The numbers of channels of the convolutions before the hidden layers, each with a ReLU and max
            pooling.
        asynchronous: True for FedAsync instead of FedAvg. A round is then `cohort` updates.
    """

    folder: str
    clients: int
    cohort: int
    samples: int
    batch: int
    epochs: int
    lr: float
    rounds: int
    hidden: tuple[int, ...]
    convolutions: tuple[int, ...] = ()
    asynchronous: bool = False

    @classmethod
    def read(cls) -> "Work":
        """Read the workload from the file that this program's first argument names."""
        fields: dict[str, Any] = json.loads(Path(sys.argv[1]).read_text())
        lists = {name: tuple(value) for name, value in fields.items() if isinstance(value, list)}
        return cls(**fields | lists)

    def array(self, name: str) -> npt.NDArray[Any]:
        """Return `x_train`, `y_train`, `x_test` or `y_test` as an array in shared memory."""
        return _load_array(Path(self.folder) / f"{name}.npy")

    def client(self, client: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the inputs [n, ...] and the labels [n] of a client."""
        rows = slice(client * self.samples, (client + 1) * self.samples)
        return torch.from_numpy(self.array("x_train")[rows]), torch.from_numpy(self.array("y_train")[rows])

    def make_model(self) -> nn.Sequential:
        torch.manual_seed(0)
        channels, height, width = self.array("x_train").shape[1:]
        layers: list[nn.Module] = []
        for filters in self.convolutions:
            layers += [nn.Conv2d(channels, filters, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
            channels, height, width = filters, height // 2, width // 2
        layers.append(nn.Flatten())
        before = channels * height * width
        for units in self.hidden:
            layers += [nn.Linear(before, units), nn.ReLU()]
            before = units
        return nn.Sequential(*layers, nn.Linear(before, 10))

    def accuracy(self, model: nn.Module) -> float:
        """Return the fraction of test samples that a model classifies correctly."""
        with torch.no_grad():
            predicted = model(torch.from_numpy(self.array("x_test"))).argmax(1).numpy()
        return float((predicted == self.array("y_test")).mean())

    def draw_cohort(self, rng: np.random.Generator) -> list[int]:
        drawn: list[int] = rng.choice(self.clients, self.cohort, replace=False).tolist()
        return drawn


@cache
def _load_array(path: Path) -> npt.NDArray[Any]:
    array: npt.NDArray[Any] = np.load(path, mmap_mode="c")
    return array


class WithLoss(nn.Module):
    """A model with the additional methods that pfl-research requires."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(self.model(x), y)

    def metrics(self, x: Tensor, y: Tensor) -> dict[str, Any]:
        return {}


def report(ends: list[float], accuracy: float) -> None:
    """Print the final accuracy and the Unix times in seconds at which rounds ended.

    The benchmark reads this output.
    """
    sys.stdout.write("\n" + json.dumps({"ends": ends, "accuracy": accuracy}) + "\n")


def now() -> float:
    """Return the Unix time in seconds."""
    return time.time()
