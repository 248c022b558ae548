"""Items that are drawn at random when they are read: new in every epoch, and a function of the seed."""

import random
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import fedraa as fl
from fedraa.data import DivisionSettings, divide_dataset, division, make_partitioner
from fedraa.errors import RunWarning
from fedraa.rng import torch_seed

MODULE_GENERATOR = np.random.default_rng(0)
COUNT = 24
OWNERS = [row % 2 for row in range(COUNT)]
LABELS = [row // 2 % 2 for row in range(COUNT)]
TEST = (np.zeros((6, 2), np.float32), np.arange(6) % 2)


class Drawing(torch.utils.data.Dataset[Any]):
    """A dataset in which an item is [row, random number]."""

    generator = np.random.RandomState(0)

    def __init__(self, draw: Callable[["Drawing"], float], **attributes: Any) -> None:
        self.draw, self.reads = draw, 0
        self.__dict__.update(attributes)

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, row: int) -> Any:
        self.reads += 1
        return torch.tensor([float(row), self.draw(self)]), LABELS[row]


class DrawingRows(fl.Rows):
    def __len__(self) -> int:
        return COUNT

    def read(self, rows: Any) -> Any:
        return np.stack([rows, np.random.rand(len(rows))], 1), np.array(LABELS)[rows]


DRAWS: dict[str, Callable[[], Drawing]] = {
    "python": lambda: Drawing(lambda data: random.random()),
    "numpy": lambda: Drawing(lambda data: np.random.rand()),
    "torch": lambda: Drawing(lambda data: torch.rand(()).item()),
    "attribute": lambda: Drawing(lambda data: data.rng.random(), rng=np.random.default_rng(3)),
    "torch attribute": lambda: Drawing(lambda d: torch.rand((), generator=d.rng).item(), rng=torch.Generator()),
    "closure": lambda: Drawing((lambda rng: lambda data: rng.random())(random.Random(5))),
    "class": lambda: Drawing(lambda data: data.generator.rand()),
    "module": lambda: Drawing(lambda data: MODULE_GENERATOR.random()),
}


def federated(train: Any, test: Any = TEST) -> fl.FederatedDataset:
    return fl.FederatedDataset("drawn", train, test, classes=2, clients=OWNERS)


def of_clients(client: int) -> Any:
    return np.stack([np.arange(client, COUNT, 2), np.random.rand(COUNT // 2)], 1), LABELS[client::2]


def run(train: Any, out: Path, *, rounds: int = 2, **fields: Any) -> fl.History:
    data = train if isinstance(train, fl.FederatedDataset) else federated(train)
    plain = {"method": "fedavg", "engine": "local", "quiet": True, "standardise": False}
    work = {"rounds": rounds, "local_epochs": 2, "batch_size": 8, "hidden": (4,)}
    return fl.run(dataset=data, out=out, **plain, **work, **fields)


@pytest.mark.parametrize(
    ("source", "held", "stack"), [("data set", 2**30, 1), ("data set", 0, 2), ("rows", 0, 1), ("function", 2**30, 2)]
)
def test_each_epoch_trains_on_new_items(
    source: str, held: int, stack: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(division, "HELD_BYTES", held)
    trained: dict[int, list[float]] = defaultdict(list)
    data = fl.FederatedDataset("drawn", of_clients, TEST, classes=2, sizes=[COUNT // 2] * 2)
    train = {"data set": DRAWS["numpy"](), "rows": DrawingRows(), "function": data}[source]

    def note(x: Tensor, rng: np.random.Generator) -> Tensor:
        for row, draw in x.tolist():
            trained[int(row)].append(draw)
        return x

    class Forget(fl.Callback):
        def on_start(self, run: Any) -> None:
            trained.clear()

    run(train, tmp_path / "run", transforms=[note], vmap_batch=stack, callbacks=[Forget()])
    assert sorted(trained) == list(range(COUNT))
    for draws in trained.values():
        assert len(draws) == len(set(draws)) == 4


def test_resumed_run_draws_the_same_items_as_an_uninterrupted_run(tmp_path: Path) -> None:
    run(DRAWS["torch"](), tmp_path / "run", rounds=1)
    longer = fl.resume(tmp_path / "run", dataset=federated(DRAWS["torch"]()), rounds=2)
    whole = run(DRAWS["torch"](), tmp_path / "whole")
    assert longer.summary["model_sha256"] == whole.summary["model_sha256"]


def dealt(train: Any, test: Any = TEST, seed: int = 0) -> Any:
    return divide_dataset(federated(train, test), DivisionSettings(make_partitioner("natural"), 2, seed))


@pytest.mark.parametrize("kind", [*DRAWS])
def test_seed_determines_the_random_items_of_small_and_large_data(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    results = []
    for number, (held, seed) in enumerate(((2**30, 0), (0, 0), (0, 1))):
        monkeypatch.setattr(division, "HELD_BYTES", held)
        for set_seed in (random.seed, np.random.seed, torch.manual_seed):
            set_seed(number)
        data = dealt(DRAWS[kind](), seed=seed)
        data.shard(number % 2, number)
        x, _, read_epoch = data.shard(1, 1)
        results.append(np.concatenate([x, read_epoch(1)[0]])[:, 1])
    np.testing.assert_array_equal(results[0], results[1])
    assert (results[0] != results[2]).all()


def test_items_of_a_task_are_a_function_of_seed_client_turn_and_epoch() -> None:
    x, _, read_epoch = dealt(DRAWS["python"]()).shard(1, 3)
    assert read_epoch is not None
    for epoch, samples in ((0, x), (4, read_epoch(4)[0])):
        expected = random.Random(torch_seed(0, "items", 1, 3, epoch, 0))
        np.testing.assert_array_equal(samples[:, 1], np.float32([expected.random() for _ in range(COUNT // 2)]))
        np.testing.assert_array_equal(samples[:, 0], np.arange(1, COUNT, 2))


def test_constant_items_are_read_once_per_task() -> None:
    data = Drawing(lambda data: 0.5)
    source = dealt(data)
    reads = data.reads
    _, _, read_epoch = source.shard(0, 0)
    assert read_epoch is None
    assert data.reads == reads + COUNT // 2


def test_large_data_of_constant_items_are_held_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(division, "HELD_BYTES", 0)
    assert dealt(Drawing(lambda data: 0.5)).source is None
    assert dealt(DRAWS["numpy"]()).source is not None


def test_client_with_one_random_item_reads_its_data_in_every_epoch() -> None:
    class OneDraws(Drawing):
        def __getitem__(self, row: int) -> Any:
            return torch.tensor([float(row), torch.rand(()).item() if row == 17 else 0.5]), LABELS[row]

    data = dealt(OneDraws(lambda data: 0.0))
    assert data.shard(0, 0)[2] is None
    x, _, read_epoch = data.shard(1, 0)
    assert read_epoch is not None
    assert (x[:, 1] != read_epoch(1)[0][:, 1]).tolist() == [row == 17 for row in range(1, COUNT, 2)]


def test_test_items_are_drawn_once_from_the_seed() -> None:
    drawn = [dealt(DRAWS["numpy"](), DRAWS["torch"](), seed).dataset.x_test for seed in (0, 0, 1)]
    np.testing.assert_array_equal(drawn[0], drawn[1])
    assert (drawn[0][:, 1] != drawn[2][:, 1]).all()


def test_run_leaves_the_states_of_user_generators_unchanged(tmp_path: Path) -> None:
    data = DRAWS["attribute"]()

    def states() -> list[Any]:
        numpy, own = np.random.get_state(), data.rng.bit_generator.state["state"]["state"]  # type: ignore[attr-defined]
        return [random.getstate(), numpy[1].tolist(), numpy[2], torch.get_rng_state().tolist(), own]

    before = states()
    run(data, tmp_path / "run")
    assert states() == before


@pytest.mark.parametrize("held", [0, 2**30])
def test_items_that_ignore_the_seed_cause_a_warning_and_are_read_every_epoch(
    held: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(division, "HELD_BYTES", held)
    with pytest.warns(RunWarning, match=r"cannot be repeated") as warned:
        data = dealt(Drawing(lambda data: float(data.reads)), Drawing(lambda data: float(data.reads)))
    x, _, read_epoch = data.shard(0, 0)
    assert read_epoch is not None
    assert (x[:, 1] != read_epoch(1)[0][:, 1]).all()
    assert [str(warning.message).split()[2] for warning in warned] == ["test", "train"]
