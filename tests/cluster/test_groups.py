"""Short tasks travel in groups: what befalls a group befalls none of its tasks for good."""

import sys
from collections.abc import Callable
from pathlib import Path
from threading import Event
from typing import Any

import numpy as np
import pytest
import ray
from mishaps import die, err, first
from same_run import same
from test_faults import faults

from actors.blocks import put_blocks
from actors.jobs import INLINE_BYTES, Job, Packer
from actors.pool import RayPool
from actors.worker import Worker
from fedraa.assembly import Assembly, assemble
from fedraa.crews import Crew
from fedraa.data import Dataset
from fedraa.experiment import Experiment
from fedraa.front import run
from fedraa.history import History
from fedraa.messages import Task, Update
from fedraa.runner import Runner

ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers cannot import a test
pytestmark = [pytest.mark.cluster, pytest.mark.usefixtures("cluster")]

CLIENTS = 60


def trial(**changes: Any) -> Assembly:
    return assemble(
        Experiment(method="fedavg", hidden=(8,), clients=CLIENTS, local_steps=2, rounds=2, eval_every=2, **changes)
    )


def once(happens: Callable[[], None], mark: Path) -> type[Worker]:
    """A worker to which it happens in the midst of the first group that any worker is given."""

    class Unlucky(Worker):
        def train_all(self, jobs: list[Job], *beside: Any) -> list[Update]:
            if len(jobs) > 1 and first(mark):
                super().train_all(jobs[:1], *beside)
                happens()
            return super().train_all(jobs, *beside)

    return Unlucky


@pytest.mark.parametrize(
    ("happens", "what"),
    [(die, "worker died"), (err, "ArithmeticError: seven is not eight")],
)
def test_each_task_of_a_group_that_came_to_nothing_goes_again(
    happens: Callable[[], None], what: str, tmp_path: Path
) -> None:
    undisturbed = run(Experiment(**trial().experiment.model_dump() | {"engine": "local", "out": tmp_path / "local"}))
    assembly = trial()
    pool = RayPool.of(assembly, crews=(Crew(2, {"CPU": 1}),), worker=once(happens, tmp_path / "mark"))
    directory = tmp_path / "run"
    directory.mkdir()
    try:
        Runner(assembly, directory, pool, Event()).execute()
    finally:
        pool.close()
    history = History(directory)
    same(directory, undisturbed)
    [fault] = faults(history)
    assert (fault["task"], fault["action"]) == (None, "none")
    assert str(fault["what"]).startswith(what)
    assert str(fault["what"]).endswith("tasks go again, alone")


def task(client: int, params: np.ndarray, **arrays: Any) -> Task:
    return Task(client, client, 0, 0, 0, 0, (), params, 0.1, 1.0, **arrays)


def test_an_array_is_put_once_and_small_ones_travel_inside() -> None:
    rng = np.random.default_rng(0)
    dataset = Dataset(
        "rows",
        rng.random((40, 3), np.float32),
        rng.integers(0, 2, 40),
        *(np.zeros((2, 3), np.float32), np.zeros(2, np.int64)),
        2,
    )
    assembly = assemble(Experiment(method="fedavg", clients=8), dataset=dataset)
    large = rng.random(INLINE_BYTES // 4, np.float32)
    other, small = large + 1, rng.random(7, np.float32)
    mask = rng.random(len(large)) < 0.5
    tasks = [
        task(0, large),
        task(1, large, mask=mask, extras={"control": other}),
        task(2, small, extras={"momentum": large}),
    ]
    blocks = put_blocks(assembly.data)
    packer = Packer(blocks)
    for one in tasks:
        packer.expect(one)
    jobs, beside = packer.pack(tasks[:2], blocks)
    again, beside_again = packer.pack(tasks[2:], blocks)
    assert len(beside) == 4  # large, other, features, labels; the mask has fewer bytes
    assert set(beside_again) < set(beside)
    for group, refs, sent in ((jobs, beside, tasks[:2]), (again, beside_again, tasks[2:])):
        arrays = ray.get(refs)
        for job, original in zip(group, sent, strict=True):
            received = job.task(arrays)
            np.testing.assert_array_equal(received.params, original.params)
            assert (received.mask is None) == (original.mask is None)
            if original.mask is not None:
                np.testing.assert_array_equal(received.mask, original.mask)
            assert received.extras.keys() == original.extras.keys()
            for name, extra in original.extras.items():
                np.testing.assert_array_equal(received.extras[name], extra)
            x, y = assembly.data.client(original.client)
            np.testing.assert_array_equal(arrays[job.x][slice(*job.rows)], x)
            np.testing.assert_array_equal(arrays[job.y][slice(*job.rows)], y)
    for one in tasks:
        packer.release(one)
    packer.expect(tasks[0])
    assert packer.pack(tasks[:1], blocks)[1][0] not in beside  # nothing is held that no task needs
