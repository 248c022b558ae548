"""A server on shards: the run equals a run on one server, and workers exchange parameters with the shards directly."""

import os
import re
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import ray
from execution import execute_warm
from mishaps import first
from nodes import nodes
from same_run import same

from actors.pool.liveness import Heartbeat
from actors.pool.serializer import TaskSerializer, put_blocks
from actors.server.sharded_store import ShardedStore
from actors.worker.worker import Worker
from benchmarks.system.processes import list_descendants, process_title
from fedraa.api import run
from fedraa.callbacks import Callback, Event
from fedraa.callbacks.callback_list import CallbackList
from fedraa.client.trainer import Work
from fedraa.config.experiment import Experiment
from fedraa.engine.build import build_run
from fedraa.engine.factories import make_server
from fedraa.errors import ShardDied
from fedraa.messages import Update
from fedraa.rundir.file_names import SUMMARY
from fedraa.rundir.history import History
from fedraa.server.async_rule import ApplyResult
from fedraa.server.update_checks import check_update
from fedraa.settings.resolve import drop_unused_options
from fedraa.submodels.assignment import Assignment

# Workers cannot import a test module, so Ray sends its classes by value.
ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])
pytestmark = pytest.mark.cluster

SETTINGS: dict[str, Any] = {
    "hidden": (8,),
    "clients": 4,
    "local_steps": 2,
    "updates": 24,
    "checkpoint_every": 6,
    "staleness": "polynomial",
}


def experiment(**changes: Any) -> Experiment:
    return Experiment(**SETTINGS | changes)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> History:
    return run(experiment(engine="local", out=tmp_path_factory.mktemp("undisturbed")))


class AtNinthCommit(Callback):
    """A callback that acts three steps after a checkpoint."""

    def __init__(self, act: Callable[[], None]) -> None:
        self.act, self.commits = act, 0

    def on_commit(self, event: Event) -> None:
        self.commits += 1
        if self.commits == 9:
            self.act()


def tallies(history: History) -> list[dict[str, Any]]:
    told = history.summary["shards"]
    assert isinstance(told, list)
    return told


@pytest.mark.usefixtures("cluster")
@pytest.mark.parametrize("shards", [2, *(pytest.param(number, marks=pytest.mark.slow) for number in (1, 3))])
def test_any_number_of_shards_gives_the_same_run(shards: int, undisturbed: History, tmp_path: Path) -> None:
    history = run(experiment(server_shards=shards, workers=1, out=tmp_path / "run"))
    same(history.directory, undisturbed)
    if shards == 1:
        assert "shards" not in history.summary
    else:
        assert len(tallies(history)) == shards
        # Every task uses the shard of its fragment and the first shard, which has the shared coordinates. Some updates
        # were pushed early.
        lines: list[dict[str, Any]] = history.lines()
        for shard, tally in enumerate(tallies(history)):
            here = [line["kind"] for line in lines if not shard or line.get("fragment", 0) % shards == shard]
            assert here.count("commit") <= tally["pushes"] <= here.count("dispatch")
        assert all(tally["pulls"] >= tally["pushes"] > 0 for tally in tallies(history))


@pytest.mark.usefixtures("cluster")
def test_no_parameters_pass_through_the_server() -> None:
    spec = build_run(experiment(hidden=(4000,), server_shards=2))
    store = ShardedStore.of(spec)
    try:
        task = make_server(spec, lambda *_, **__: None, store).assign(0, 0.0)
        with pytest.raises(TypeError, match=r"\btask 0\b"):
            _ = task.params
        assert task.nbytes > 100_000
        [job], shared_args = TaskSerializer().pack([task], put_blocks(spec.data))
        assert len(ray.cloudpickle.dumps(job)) < task.nbytes / 50
        # The server knows which shard has which part of a fragment. Workers fetch the parts from the shards, and number
        # the updates that they push.
        route, *cuts = (ray.get(shared_args[number]) for number in job.buffer)
        assert all(isinstance(piece, ray.ObjectRef) for [piece] in cuts)
        buffer = route.pull_buffer(cuts)
        assert buffer.tobytes() == spec.submodels[task.fragment].take(spec.params).tobytes()
        update = route.push(Update(task.id, 0, task.fragment, 0, buffer + 1, 1, 0.0, 0.0), cuts)
        assert update.params.nbytes == 0
        short = route.push(Update(task.id, 0, task.fragment, 0, buffer[1:], 1, 0.0, 0.0), cuts)
        assert f"({len(buffer) - 1},), not ({len(buffer)},)" in str(check_update(short, task))
        assert check_update(update, task) is None
        assert store.apply_update(
            task, Assignment(task.fragment, spec.submodels[task.fragment]), update, 0
        ) == ApplyResult(0.6)
        moved = store.params - spec.params
        np.testing.assert_allclose(moved[spec.submodels[task.fragment].index], 0.6, atol=1e-6)
        assert (np.delete(moved, spec.submodels[task.fragment].index) == 0).all()
    finally:
        store.close()


@pytest.mark.slow
def test_workers_pull_from_and_push_to_shards_on_two_nodes(undisturbed: History, tmp_path: Path) -> None:
    out = tmp_path / "run"
    flags = ["--hidden", "8", "--clients", "4", "--local-steps", "2", "--updates", "24", "--checkpoint-every", "6"]
    flags += ["--staleness", "polynomial", "--workers", "2", "--placement", "spread", "--server-shards", "2", "--quiet"]
    with nodes({}) as cluster:
        cluster.join("one", {})
        cluster.join("two", {})
        done = cluster.fedraa("run", *flags, "--address", cluster.address, "--out", str(out))
    assert done.returncode == 0, done.stderr
    same(out, undisturbed)
    first, second = tallies(History(out))
    assert first["node"] != second["node"]
    assert all(tally[way] > 0 for tally in (first, second) for way in ("pulls", "pushes"))


def test_shards_refuse_wrong_updates_and_the_run_keeps_its_bits(
    undisturbed: History, warm_workers: tuple[Any, ...], tmp_path: Path
) -> None:
    class WrongUpdates(Worker):
        def train(self, work: list[Work]) -> list[Update]:
            [update] = super().train(work)
            if update.task in (4, 9, 11) and first(tmp_path / str(update.task)):
                update.params[:] = {4: np.nan, 9: 1e6, 11: np.inf}[update.task]
            return [update]

    spec = build_run(experiment(server_shards=2, max_update_norm=1e3))
    history = execute_warm(warm_workers[:1], spec, tmp_path / "run", WrongUpdates)
    faults = [line for line in history.lines() if line["kind"] == "fault"]
    same(history.directory, undisturbed)
    sizes = [len(part.index) for part in build_run(experiment()).submodels if part.index is not None]
    sent = {line["task"]: sizes[int(str(line["fragment"]))] for line in history.lines() if line["kind"] == "dispatch"}
    assert [line["task"] for line in faults] == [4, 9, 11]
    said = [str(line["error"]).removeprefix("update refused: ") for line in faults]
    assert said[0] == f"params hold {sent[4]} values that are not finite"
    assert said[1].startswith("the update's norm ")
    assert said[2] == f"params hold {sent[11]} values that are not finite"


def test_stopped_run_on_shards_resumes_with_the_same_bits(
    undisturbed: History, warm_workers: tuple[Any, ...], tmp_path: Path
) -> None:
    stop, spec = threading.Event(), build_run(experiment(server_shards=2))
    stopped = execute_warm(
        warm_workers[:1], spec, tmp_path / "run", stop=stop, callbacks=CallbackList([AtNinthCommit(stop.set)])
    )
    assert not (stopped.directory / SUMMARY).exists()
    execute_warm(warm_workers[:1], spec, tmp_path / "run", resume=True)
    same(tmp_path / "run", undisturbed)
    assert tallies(History(tmp_path / "run"))[0]["pushes"] >= 24


@pytest.mark.linux
def test_frozen_shard_raises_shard_died(warm_workers: tuple[Any, ...], tmp_path: Path) -> None:
    """Here the run ends. In `test_frozen.py` the server starts again."""

    def freeze() -> None:
        shards = [pid for pid in list_descendants(os.getpid()) if process_title(pid).startswith("ray::ShardActor")]
        os.kill(max(shards), signal.SIGSTOP)

    with pytest.raises(ShardDied):
        execute_warm(
            warm_workers[:1],
            build_run(experiment(server_shards=2)),
            tmp_path / "run",
            heartbeat=Heartbeat(every=0.2, bound=2.0),
            callbacks=CallbackList([AtNinthCommit(freeze)]),
        )


@pytest.mark.linux
@pytest.mark.slow
@pytest.mark.usefixtures("cluster")
def test_server_continues_from_its_checkpoint_after_a_shard_dies(
    undisturbed: History, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    killed: list[int] = []

    class KillOne(Callback):
        blocking = False
        commits = 0

        def on_commit(self, event: Event) -> None:
            self.commits += 1
            if self.commits >= 6 and not killed:
                killed.append(
                    max(
                        pid for pid in list_descendants(os.getpid()) if process_title(pid).startswith("ray::ShardActor")
                    )
                )
                os.kill(killed[0], signal.SIGKILL)

    history = run(experiment(server_shards=2, workers=1, updates=300, out=tmp_path / "run"), callbacks=[KillOne()])
    assert killed
    assert re.search(r"\bshard .*died", caplog.text)
    same(history.directory, run(experiment(updates=300, engine="local", out=tmp_path / "here")))


@pytest.mark.parametrize(
    ("flags", "why"),
    [
        ({"server_shards": 0}, r"^server_shards: .*0"),
        ({"engine": "local", "server_shards": 2}, r"^server_shards: .*2.*engine local"),
        ({"server_shards": 5}, r"^server_shards: .*5.* 4.*fed-raa"),
        *(
            (
                {"method": method, "server_shards": 2, "updates": None},
                rf"^server_shards: .*2.*{method}",
            )
            for method in ("fedbuff", "fedasync", "fedavg", "fed-raa-sync")
        ),
    ],
)
def test_server_shards_that_the_run_cannot_have_are_refused(flags: dict[str, Any], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        build_run(Experiment(**flags))


def test_drop_unused_options_keeps_server_shards_only_for_methods_with_shards() -> None:
    shards = {
        method: drop_unused_options(Experiment(method=method, server_shards=2)).server_shards
        for method in ("fed-raa", "fed-raa-mp", "fedbuff", "fedavg")
    }
    assert shards == {"fed-raa": 2, "fed-raa-mp": 2, "fedbuff": 1, "fedavg": 1}
