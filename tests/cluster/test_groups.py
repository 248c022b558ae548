"""Calls of several short tasks: a failure of the call does not drop any of its tasks."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import ray
from execution import execute
from mishaps import die, err, first
from same_run import same
from test_faults import faults

from actors.pool.serializer import INLINE_BYTES, Job, TaskSerializer, put_blocks
from actors.worker.worker import Worker
from fedraa.api import run
from fedraa.config.experiment import Experiment
from fedraa.data.dataset import Dataset
from fedraa.engine.build import build_run
from fedraa.engine.run_spec import RunSpec
from fedraa.messages import SharedBuffer, Task, Update, values_of

ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers cannot import a test
pytestmark = [pytest.mark.cluster, pytest.mark.usefixtures("cluster")]

CLIENTS = 60


def trial(**changes: Any) -> RunSpec:
    return build_run(
        Experiment(method="fedavg", hidden=(8,), clients=CLIENTS, local_steps=2, rounds=2, eval_every=2, **changes)
    )


def failing_once(happens: Callable[[], None], mark: Path) -> type[Worker]:
    """Return a class of workers, one of which fails once, during the first call of several tasks."""

    class FailingWorker(Worker):
        def train_all(self, jobs: list[Job], *shared_args: Any) -> list[Update]:
            if len(jobs) > 1 and first(mark):
                super().train_all(jobs[:1], *shared_args)
                happens()
            return super().train_all(jobs, *shared_args)

    return FailingWorker


@pytest.mark.parametrize(
    ("happens", "message"),
    [
        (die, "worker died"),
        pytest.param(err, "ArithmeticError: seven is not eight", marks=pytest.mark.slow),
    ],
)
def test_tasks_of_a_failed_call_are_sent_again_in_separate_calls(
    happens: Callable[[], None], message: str, tmp_path: Path
) -> None:
    undisturbed = run(Experiment(**trial().experiment.model_dump() | {"engine": "local", "out": tmp_path / "local"}))
    history = execute(trial(), tmp_path / "run", failing_once(happens, tmp_path / "mark"), workers=1)
    same(history.directory, undisturbed)
    [fault] = faults(history)
    assert (fault["task"], fault["action"]) == (None, "none")
    assert str(fault["error"]).startswith(message)
    assert str(fault["error"]).endswith("is sent again in a separate call")


def task(client: int, params: np.ndarray | SharedBuffer, **arrays: Any) -> Task:
    return Task(client, client, 0, 0, 0, 0, (), params, 0.1, 1.0, **arrays)


def test_serializer_stores_a_large_array_once_and_sends_small_arrays_inline() -> None:
    rng = np.random.default_rng(0)
    dataset = Dataset(
        "rows",
        rng.random((40, 3), np.float32),
        rng.integers(0, 2, 40),
        *(np.zeros((2, 3), np.float32), np.zeros(2, np.int64)),
        2,
    )
    spec = build_run(Experiment(method="fedavg", clients=8), dataset=dataset)
    large = SharedBuffer(rng.random(INLINE_BYTES // 4, np.float32))
    other, small = large.values + 1, rng.random(7, np.float32)
    mask = rng.random(large.size) < 0.5
    tasks = [
        task(0, large),
        task(1, large, mask=mask, extras={"control": other}),
        task(2, small, extras={"momentum": large}),
    ]
    blocks = put_blocks(spec.data)
    serializer = TaskSerializer()
    jobs, shared_args = serializer.pack(tasks[:2], blocks)
    again, beside_again = serializer.pack(tasks[2:], blocks)
    assert len(shared_args) == 4  # large, other, features, labels; the mask has few bytes
    assert set(beside_again) < set(shared_args)
    for group, refs, sent in ((jobs, shared_args, tasks[:2]), (again, beside_again, tasks[2:])):
        arrays = ray.get(refs)
        for job, original in zip(group, sent, strict=True):
            received, x, y, _ = job.work(arrays)
            np.testing.assert_array_equal(received.params, original.params)
            assert (received.mask is None) == (original.mask is None)
            if original.mask is not None:
                np.testing.assert_array_equal(received.mask, original.mask)
            assert received.extras.keys() == original.extras.keys()
            for name, extra in original.extras.items():
                np.testing.assert_array_equal(received.extra_values(name), values_of(extra))
            for got, expected in zip((x, y), spec.data.client(original.client), strict=True):
                np.testing.assert_array_equal(got, expected)
    assert list(serializer._refs) == [large]
    del tasks, sent, original, extra, large
    # Buffers that no task needs are freed.
    assert not serializer._refs
