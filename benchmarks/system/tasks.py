"""Measure fedraa's overhead per task: the time of a short task minus the time of its SGD steps.

`python -m benchmarks tasks` writes `benchmarks/results/tasks.csv`. FedAvg trains two MLPs on 1,000 clients of 60
samples, with two minibatches per task. After each round the same process takes the same steps in a bare PyTorch loop.
Times are the CPU time of all processes. Only the column `wall_ms` has the real time per task. On Ray, two workers train
in parallel.
"""

import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Event
from typing import Literal, get_args

import torch
from torch.nn import functional as F

from benchmarks.system.bare import build_mlp
from benchmarks.system.gpu import open_executor
from benchmarks.system.option_checks import refuse_below, refuse_unknown_names
from benchmarks.system.rows import open_table, print_rows, write_table
from benchmarks.system.throughput import start_cluster
from benchmarks.system.trials import CORES, cpu_seconds_of_all, synthetic_dataset
from fedraa.callbacks import Callback, Progress
from fedraa.callbacks.callback_list import CallbackList
from fedraa.config.experiment import Experiment
from fedraa.data import Federated
from fedraa.engine.build import build_run
from fedraa.engine.session import RunSession

RESULTS = Path(__file__).parents[1] / "results" / "tasks.csv"
Engine = Literal["local", "ray"]
SAMPLES_PER_CLIENT, BATCH_SIZE, LR = 60, 32, 0.05


def main(
    engines: tuple[Engine, ...] = ("local", "ray"),
    hidden: tuple[int, ...] = (8, 200),
    clients: int = 1000,
    rounds: int = 7,
    out: Path = RESULTS,
) -> None:
    """Measure the overhead per task of each engine, and print and write a table.

    Args:
        engines: The engines to measure.
        hidden: The numbers of hidden units of the models.
        clients: The number of clients, which all train in every round.
        rounds: The number of measured rounds.
        out: The CSV file to write.
    """
    refuse_unknown_names("engines", engines, get_args(Engine))
    refuse_below(1, hidden=hidden, clients=clients, rounds=rounds)
    open_table(out, ("engine", "hidden"))
    rows = [measure_overhead(engine, width, clients, rounds) for engine, width in product(engines, hidden)]
    print_rows(rows)
    write_table(out, list(rows[0]), rows)


def measure_overhead(engine: Engine, hidden: int, clients: int, rounds: int) -> dict[str, str]:
    """Measure an engine and a model, and return the table row in ms per task.

    The numbers are minima over the rounds, because other programs only increase times.

    Args:
        engine: The engine.
        hidden: The number of hidden units.
        clients: The number of clients, which all train in every round.
        rounds: The number of measured rounds.
    """
    chosen = make_experiment(engine, hidden, clients, rounds)
    spec = build_run(chosen, dataset=synthetic_dataset(SAMPLES_PER_CLIENT * clients))
    turns = Turns(BareLoop(spec.data, hidden))
    cluster: AbstractContextManager[None] = nullcontext()
    workers = 0
    if engine == "ray":
        cluster = start_cluster()
        workers = CORES
    torch.set_num_threads(1)
    with cluster, open_executor(spec, "cpu", workers) as executor, TemporaryDirectory() as directory:
        callbacks = CallbackList([turns], progress_seconds=0.0)
        RunSession(spec, Path(directory), executor, Event(), callbacks).execute()
    task, bare, wall = (
        1000 * min(seconds) / clients for seconds in (turns.round_cpu_s, turns.bare_cpu_s, turns.round_wall_s)
    )
    return {
        "engine": engine,
        "workers": str(executor.workers),
        "hidden": str(hidden),
        "tasks": str(clients * rounds),
        "task_cpu_ms": f"{task:.2f}",
        "bare_cpu_ms": f"{bare:.2f}",
        "overhead_cpu_ms": f"{task - bare:.2f}",
        "wall_ms": f"{wall:.2f}",
        "overhead_wall_ms": f"{wall - bare / executor.workers:.2f}",
    }


def make_experiment(engine: Engine, hidden: int, clients: int, rounds: int) -> Experiment:
    """Return the experiment that is measured. It has `rounds` + 1 rounds, because the first round is a warm-up.

    Args:
        engine: The engine.
        hidden: The number of hidden units.
        clients: The number of clients.
        rounds: The number of measured rounds.
    """
    return Experiment(
        method="fedavg",
        clients=clients,
        partition="iid",
        hidden=(hidden,),
        local_epochs=1,
        batch_size=BATCH_SIZE,
        lr=LR,
        momentum=0.0,
        engine=engine,
        workers={"ray": CORES}.get(engine),
        quiet=True,
        rounds=rounds + 1,
        eval_every=rounds + 1,
        checkpoint_every=rounds + 1,
    )


class BareLoop:
    """A PyTorch loop that takes the SGD steps on the minibatches of all clients, and does nothing else."""

    def __init__(self, data: Federated, hidden: int) -> None:
        self._model = build_mlp((784, hidden, 10))
        self._optimizer = torch.optim.SGD(self._model.parameters(), lr=LR)
        self._batches: list[tuple[torch.Tensor, torch.Tensor]] = []
        for client in range(len(data.sizes)):
            x, y = (torch.tensor(array) for array in data.client(client))
            self._batches += zip(torch.split(x, BATCH_SIZE), torch.split(y, BATCH_SIZE), strict=True)

    def train(self) -> None:
        for x, y in self._batches:
            self._optimizer.zero_grad()
            torch.autograd.backward([F.cross_entropy(self._model(x), y)])
            self._optimizer.step()


class Turns(Callback):
    """A callback that runs the bare loop after each round of fedraa and records the seconds of both.

    The first round is a warm-up and is not recorded.
    """

    blocking = False

    def __init__(self, bare: BareLoop) -> None:
        self._bare = bare
        self._step = 0
        self._started: Sequence[float] = ()
        self.round_cpu_s: list[float] = []
        self.round_wall_s: list[float] = []
        self.bare_cpu_s: list[float] = []

    def on_progress(self, progress: Progress) -> None:
        if progress.step == self._step:
            return
        self._step = progress.step
        if self._started:
            self.round_cpu_s.append(cpu_seconds_of_all() - self._started[0])
            self.round_wall_s.append(time.perf_counter() - self._started[1])
            started = time.process_time()
            self._bare.train()
            self.bare_cpu_s.append(time.process_time() - started)
        else:
            self._bare.train()
        self._started = (cpu_seconds_of_all(), time.perf_counter())
