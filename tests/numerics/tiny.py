"""A federated run of a few dozen parameters, which tests execute step by step and compare with NumPy."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy_mlp import Array, Batch

from fedraa import Dataset, Experiment
from fedraa.client.trainer import Trainer
from fedraa.engine.build import build_run
from fedraa.engine.factories import make_server, make_worker_spec
from fedraa.engine.run_spec import RunSpec
from fedraa.messages import Task, Update
from fedraa.rng import generator
from fedraa.server.server import Server

FEATURES, HIDDEN, CLASSES = 3, 5, 4
WIDTHS = (FEATURES, HIDDEN, CLASSES)  # 15 + 5 + 20 + 4 = 44 parameters
CLIENTS, SAMPLES, LR, BATCH, EPOCHS, SEED = 3, 60, 0.2, 6, 2, 7


def spec(method: str, **flags: Any) -> RunSpec:
    """Return a run of three clients with shards of different sizes, and two epochs of minibatches of six samples."""
    rng = np.random.default_rng(3)
    x = rng.normal(size=(SAMPLES + 20, FEATURES)).astype(np.float32)
    y = (x @ rng.normal(size=(FEATURES, CLASSES))).argmax(axis=1)
    common: dict[str, Any] = {
        "clients": CLIENTS,
        "partition": "dirichlet",
        "dirichlet": 1.0,
        "hidden": (HIDDEN,),
        "lr": LR,
        "batch_size": BATCH,
        "local_epochs": EPOCHS,
        "seed": SEED,
        "engine": "local",
    }
    if "partition" in flags:
        del common["dirichlet"]
    dataset = Dataset("tiny", x[:SAMPLES], y[:SAMPLES], x[SAMPLES:], y[SAMPLES:], CLASSES)
    return build_run(Experiment(method=method, **(common | flags)), dataset=dataset)


def minibatches(run: RunSpec, client: int, turn: int) -> Iterator[Batch]:
    """Return the minibatches of a client's `turn`-th task. Only their order comes from the package's random streams."""
    x, y = run.data.client(client)
    given, size = run.experiment, run.experiment.batch_size
    rng = generator(given.seed, "batches", client, turn)
    for _ in range(given.local_epochs):
        order = rng.permutation(len(y))
        for start in range(0, len(y), size):
            yield x[order[start : start + size]], y[order[start : start + size]]


def steps(run: RunSpec, client: int) -> int:
    """Return T_i, the number of local steps of a client in a task."""
    return EPOCHS * int(np.ceil(run.data.sizes[client] / BATCH))


def start(run: RunSpec) -> Array:
    return run.params.astype(np.float64)


def close(got: np.ndarray, expected: np.ndarray) -> None:
    np.testing.assert_allclose(got, expected, rtol=1e-6, atol=1e-6)


class Records:
    """A log that keeps the events in a list."""

    def __init__(self) -> None:
        self.lines: list[dict[str, Any]] = []

    def __call__(self, kind: str, t: float, /, **fields: object) -> None:
        self.lines.append({"kind": kind, "t": t, **fields})

    def of(self, kind: str) -> list[dict[str, Any]]:
        return [line for line in self.lines if line["kind"] == kind]


class Stepped:
    """The server and the trainer of a run, without loop, workers or clock."""

    def __init__(self, run: RunSpec) -> None:
        self.run, self.records = run, Records()
        self.server: Server = make_server(run, self.records)
        self.trainer: Trainer = make_worker_spec(run).trainer("cpu")

    def train(self, task: Task) -> Update:
        return self.trainer.train(task, *self.run.data.client(task.client))

    def round(self) -> list[Task]:
        """Execute a round. The updates of the cohort arrive in reverse order."""
        tasks = [self.server.assign(client, 0.0) for client in self.server.begin()]
        for task in reversed(tasks):
            self.server.commit(self.train(task), 1.0)
        return tasks

    def rounds(self, count: int, expected: Callable[[int], Array]) -> None:
        """Execute rounds and compare the model after each round with `expected`."""
        before = self.server.params.copy()
        for turn in range(count):
            self.round()
            close(self.server.params, expected(turn))
        assert np.abs(self.server.params - before).max() > 0.01
