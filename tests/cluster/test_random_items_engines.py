"""Random items of datasets: the same run in this process, on one worker and on two."""

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from execution import run_warm

import fedraa as fl

pytestmark = pytest.mark.cluster

COUNT = 60
TEST = (np.zeros((6, 3), np.float32), np.arange(6) % 2)
MODULE_GENERATOR = np.random.default_rng(0)


def mixed(samples: Any) -> Any:
    """Return a dataset that Ray sends by value, as if a script defined it."""

    class Mixed(torch.utils.data.Dataset[Any]):
        """A dataset that draws from the global generators, from its attributes, and from a generator of this module."""

        def __init__(self, samples: Any) -> None:
            self.samples = samples
            self.numbers, self.python, self.torch = np.random.default_rng(0), random.Random(0), torch.Generator()

        def __len__(self) -> int:
            return COUNT

        def __getitem__(self, row: int) -> Any:
            first = random.random() + np.random.rand() + torch.rand(()).item()
            second = self.numbers.random() + self.python.random() + torch.rand((), generator=self.torch).item()
            return torch.tensor([first, second, MODULE_GENERATOR.random()]) + float(self.samples[row, 0]), row % 2

    return Mixed(samples)


LARGE = pytest.param(torch.zeros(COUNT, 2**17), marks=pytest.mark.slow)


@pytest.mark.parametrize("samples", [np.zeros((COUNT, 2)), LARGE])
def test_every_engine_draws_the_same_items(samples: Any, warm_workers: tuple[Any, ...], tmp_path: Path) -> None:
    fields: dict[str, Any] = {"method": "fedavg", "rounds": 2, "local_epochs": 2, "clients": 4, "hidden": (4,)}
    digests = set()
    for workers in range(3):
        data = fl.FederatedDataset("mixed", mixed(samples), TEST, classes=2)
        out = tmp_path / str(workers)
        if workers == 0:
            history = fl.run(dataset=data, engine="local", out=out, **fields)
        else:
            history = run_warm(warm_workers[:workers], out, dataset=data, **fields)
        digests.add(history.summary["model_sha256"])
        assert not any(line["kind"] == "fault" for line in history.lines())
    assert len(digests) == 1
