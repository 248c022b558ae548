"""Shards that stay in the memory of a GPU: the same bits as without this, and limited memory. The tests use a CPU."""

import numpy as np
import pytest
import torch

from actors import runtime
from actors.cluster import placement
from fedraa.client.trainer import Trainer
from fedraa.config.experiment import Experiment
from fedraa.config.sections import ClusterOptions
from fedraa.devices.worker_groups import WorkerGroup
from fedraa.engine.build import build_run
from fedraa.engine.factories import make_worker_spec
from fedraa.engine.run_spec import RunSpec
from fedraa.messages import Task, Update

LARGE = 2**30


def run(**changes: object) -> RunSpec:
    return build_run(Experiment(hidden=(8,), clients=4, batch_size=16, engine="local", **changes))


def train_client(spec: RunSpec, trainer: Trainer, client: int, turn: int = 0) -> Update:
    params = spec.params
    task = Task(0, client, turn, 0, 0, 0, spec.traced.widths(spec.traced.full()), params, 0.1, 1.0)
    return trainer.train(task, *spec.data.client(client))


@pytest.mark.parametrize("changes", [{}, {"local_steps": 30}, {"method": "fedsam"}])
def test_shards_on_the_device_give_the_same_bits(changes: dict[str, object]) -> None:
    spec = run(**changes)
    host, device = (Trainer(spec.traced, spec.method.local, seed=3, resident_bytes=size) for size in (0, LARGE))
    for client, turn in ((0, 0), (1, 0), (0, 1)):
        here, on_device = (train_client(spec, trainer, client, turn) for trainer in (host, device))
        np.testing.assert_array_equal(here.params, on_device.params)
        assert here.loss == on_device.loss


def test_device_cache_keeps_the_last_used_shards_within_its_bound() -> None:
    spec = run()
    x, _ = spec.data.client(0)
    two = 2 * max(sum(array.nbytes for array in spec.data.client(client)) for client in range(4))
    trainer = Trainer(spec.traced, spec.method.local, seed=3, resident_bytes=two)
    for client in (0, 1, 0, 2):
        train_client(spec, trainer, client)
        assert trainer._held == sum(t.nbytes for shard in trainer._resident.values() for t in shard) <= two
    assert list(trainer._resident) == [0, 2]
    tight = Trainer(spec.traced, spec.method.local, seed=3, resident_bytes=x.nbytes)
    train_client(spec, tight, 0)
    # The labels of this shard do not fit into the memory.
    assert not tight._resident


def test_bf16_trains_nearly_the_same_in_float32() -> None:
    spec = run()
    full = train_client(spec, make_worker_spec(spec).trainer("cpu"), 0)
    half = train_client(spec, make_worker_spec(run(bf16=True)).trainer("cpu"), 0)
    assert half.params.dtype == np.float32
    delta, other = full.params - spec.params, half.params - spec.params
    assert not np.array_equal(delta, other)
    assert np.linalg.norm(delta - other) < 0.05 * np.linalg.norm(delta)


@pytest.mark.parametrize(
    ("workers", "gpus", "device", "share"),
    [
        (1, 1, "auto", 1),
        (4, 1, "cuda", 1 / 4),
        (3, 2, "cuda", 1 / 2),
        (2, 4, "auto", 1),
        (3, 0, "auto", 0),
        (3, 2, "cpu", 0),
    ],
)
def test_workers_share_gpus(
    workers: int, gpus: int, device: str, share: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runtime, "resources", lambda: {"CPU": 8.0, "GPU": float(gpus)})
    (group,) = placement.make_worker_groups(ClusterOptions(workers=workers), clients=8, device=device)
    assert group == WorkerGroup(workers, {"CPU": 1, "GPU": share})


def test_the_device_cache_keeps_no_view_of_the_data() -> None:
    spec = run()
    trainer = Trainer(spec.traced, spec.method.local, seed=3, resident_bytes=LARGE)
    train_client(spec, trainer, 0)
    kept = trainer._resident[0][0]
    assert kept.data_ptr() != torch.from_numpy(spec.data.client(0)[0]).data_ptr()


def test_submodels_of_all_shapes_share_two_buffers_without_side_effects() -> None:
    spec = run()
    full = spec.traced.widths(spec.traced.full())
    small = tuple(width // 2 for width in full)

    def train(trainer: Trainer, widths: tuple[int, ...]) -> np.ndarray:
        index = spec.traced.flat_index(tuple(np.arange(width) for width in widths))
        task = Task(0, 0, 0, 0, 0, 0, widths, spec.params[index], 0.1, 1.0)
        return trainer.train(task, *spec.data.client(0)).params

    trainer = make_worker_spec(spec).trainer("cpu")
    for widths in (small, full, small, full):
        np.testing.assert_array_equal(train(trainer, widths), train(make_worker_spec(spec).trainer("cpu"), widths))
    assert len(trainer._weights) == len(trainer._gradient) == spec.traced.size
