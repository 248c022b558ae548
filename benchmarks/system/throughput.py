"""Divide fedraa's times by the times of bare PyTorch loops or bare Ray calls."""

import json
import pickle
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

import ray
from rich.console import Console
from rich.table import Table

from actors.cluster.memory import return_freed_memory
from actors.worker.worker import Worker
from benchmarks.system.bare import Spent
from benchmarks.system.footprint import measure_footprint, measure_memory
from benchmarks.system.option_checks import refuse_below, refuse_missing_folder, refuse_unknown_names
from benchmarks.system.trials import (
    CORES,
    MODELS,
    Measurement,
    bare_processes,
    compare_times,
    cpu_seconds_of_all,
    measure_run,
    median_wall,
    synthetic_dataset,
    trial_experiment,
)
from fedraa.client.trainer import Work
from fedraa.config.processes import CALLS_PER_WORKER
from fedraa.data import Dataset
from fedraa.engine.build import build_run
from fedraa.engine.factories import make_server
from fedraa.engine.worker_spec import choose_device
from fedraa.errors import InputError
from fedraa.messages import Task, Update, Vector
from fedraa.server.server import Server

# The number of measured rounds of a run.
ROUNDS = 2
# The number of clients in the measurement of updates without training.
EMPTY_CLIENTS = 100
# The numbers of clients and of updates in the measurements of the server.
SERVER_CLIENTS = 10
SERVER_UPDATES = 300


def main(
    clients: tuple[int, ...] = (10, 100, 1000, 10_000),
    models: tuple[str, ...] = ("small", "mnist", "large"),
    repeats: int = 3,
    samples: int = 60_000,
    device: Literal["cpu", "cuda"] = "cpu",
    vmap_batch: int = 1,
    out: Path | None = None,
) -> None:
    """Measure fedraa and bare code (PyTorch or Ray without fedraa). Print a table of medians and ratios.

    Args:
        clients: The numbers of clients.
        models: The names of the models.
        repeats: The number of repetitions of each measurement.
        samples: The number of training samples.
        device: The device of the training, also of the bare loops.
        vmap_batch: The number of tasks that a worker trains in one batched computation when rounds are measured.
        out: The JSON file, which is rewritten after every measurement.
    """
    refuse_unknown_names("models", models, MODELS)
    refuse_below(1, clients=clients, repeats=repeats, vmap_batch=vmap_batch)
    if max(clients) > samples:
        raise InputError("clients", got=max(clients), expected=f"at most {samples}, the number of samples")
    if out is not None:
        refuse_missing_folder(out)
    dataset = synthetic_dataset(samples)
    choose_device(device)
    measurements: list[Measurement] = []

    def add_measurements(*measured: Measurement) -> None:
        measurements.extend(measured)
        for measurement in measured:
            Console().print(
                " ".join([measurement.what, f"({measurement.clients}, {measurement.model}):", *measurement.numbers()])
            )
        if out is not None:
            rows = [asdict(measurement) | {"ratio": measurement.ratio} for measurement in measurements]
            out.write_text(json.dumps(rows, indent=2) + "\n")

    add_measurements(start_up(repeats))
    with start_cluster():
        for model in models:
            for count in clients:
                add_measurements(measure_rounds(dataset, count, model, repeats, device=device, vmap_batch=vmap_batch))
                add_measurements(*measure_memory(dataset, count, model, device=device))
            add_measurements(*measure_asynchronous(dataset, 10, model, repeats, device=device))
            add_measurements(
                measure_empty_updates(dataset, model, repeats),
                measure_mixing(dataset, model),
                bytes_moved(dataset, model),
            )
        small_data = synthetic_dataset(2000)
        add_measurements(*measure_footprint(small_data, "fedavg", rounds=2, device=device))
        add_measurements(*measure_footprint(small_data, "fed-raa", updates=20, fragments=3, device=device))
    show_measurements(measurements)


@contextmanager
def start_cluster() -> Iterator[None]:
    """Start a Ray cluster with one worker per core."""
    with return_freed_memory():
        ray.init("local", num_cpus=CORES, include_dashboard=False, log_to_driver=False)
    try:
        yield
    finally:
        ray.shutdown()


def measure_rounds(
    dataset: Dataset,
    clients: int,
    model: str,
    repeats: int,
    *,
    device: str = "cpu",
    vmap_batch: int = 1,
) -> Measurement:
    """Measure a round of FedAvg in fedraa and in plain PyTorch processes, after a warm-up round.

    Args:
        dataset: The data.
        clients: The number of clients.
        model: A key of MODELS.
        repeats: The number of runs.
        device: The device of the training.
        vmap_batch: The number of tasks that a worker trains in one batched computation.
    """
    bare = bare_processes(dataset, clients, model, device)
    bare.round()
    spent_by_fedraa: list[Spent] = []
    floor: list[Spent] = []
    for _ in range(repeats):
        spent, _ = measure_run(
            trial_experiment("fedavg", clients, model, rounds=ROUNDS + 1, device=device, vmap_batch=vmap_batch),
            dataset,
            warm=1,
        )
        spent_by_fedraa.append(Spent(spent.wall / ROUNDS, spent.cpu / ROUNDS))
        floor += [bare.round() for _ in range(ROUNDS)]
    bare.close()
    return compare_times("fedavg round", clients, model, spent_by_fedraa, floor)


def measure_asynchronous(dataset: Dataset, clients: int, model: str, repeats: int, *, device: str) -> list[Measurement]:
    """Measure the time of Fed-RAA and of plain PyTorch for the same tasks. Also measure how long workers are idle.

    Args:
        dataset: The data.
        clients: The number of clients.
        model: A key of MODELS.
        repeats: The number of runs.
        device: The device of the training.
    """
    bare = bare_processes(dataset, clients, model, device)
    spent_by_fedraa: list[Spent] = []
    floor: list[Spent] = []
    idle: list[float] = []
    warm = 2 * clients
    for _ in range(repeats):
        experiment = trial_experiment("fed-raa", clients, model, updates=8 * clients, fragments=3, device=device)
        widths = [part.widths[0] for part in build_run(experiment, dataset=dataset).submodels]
        spent, commits = measure_run(experiment, dataset, warm)
        spent_by_fedraa.append(spent)
        idle.append(1 - sum(update.seconds for update in commits) / (CORES * spent.wall))
        floor.append(bare.tasks([(update.client, widths[update.fragment]) for update in commits]))
    bare.close()
    return [
        compare_times("fed-raa", clients, model, spent_by_fedraa, floor),
        Measurement("idle workers", clients, model, "share", statistics.median(idle)),
    ]


class Idle(Worker):
    """A worker that returns the parameters of a task without training."""

    def train(self, work: list[Work]) -> list[Update]:
        return [_untrained(one.task) for one in work]


class Echo:
    """A Ray actor that only copies an array and returns it."""

    def call(self, params: Vector) -> Vector:
        return params.copy()


def measure_empty_updates(dataset: Dataset, model: str, repeats: int, *, updates: int = 2000) -> Measurement:
    """Measure the seconds per update without training, and per bare Ray call with the same bytes.

    Args:
        dataset: The data.
        model: A key of MODELS.
        repeats: The number of runs.
        updates: The number of measured updates of a run.
    """
    sent = build_run(trial_experiment("fedasync", EMPTY_CLIENTS, model, updates=1), dataset=dataset).params
    actors: list[Any] = [ray.remote(Echo).options(num_cpus=0).remote() for _ in range(CORES)]
    spent_by_fedraa: list[Spent] = []
    floor: list[Spent] = []
    for _ in range(repeats):
        experiment = trial_experiment("fedasync", EMPTY_CLIENTS, model, updates=updates + EMPTY_CLIENTS)
        spent, commits = measure_run(experiment, dataset, EMPTY_CLIENTS, Idle)
        spent_by_fedraa.append(Spent(spent.wall / len(commits), spent.cpu / len(commits)))
        floor.append(time_echoes(actors, sent, updates))
    for actor in actors:
        ray.kill(actor)
    return compare_times("empty update", EMPTY_CLIENTS, model, spent_by_fedraa, floor)


def time_echoes(actors: list[Any], params: Vector, updates: int) -> Spent:
    """Measure the seconds per call of Echo actors, with `CALLS_PER_WORKER` queued calls each.

    Args:
        actors: The actors.
        params: The parameters that they return.
        updates: The number of calls.
    """
    ref = ray.put(params)
    ray.get([actor.call.remote(ref) for actor in actors])
    started, used = time.perf_counter(), cpu_seconds_of_all()
    calls = {actor.call.remote(ref): actor for actor, _ in product(actors, range(CALLS_PER_WORKER))}
    for _ in range(updates):
        [ended], _ = ray.wait(list(calls), num_returns=1)
        ray.get(ended)
        actor = calls.pop(ended)
        calls[actor.call.remote(ref)] = actor
    wall, cpu = time.perf_counter() - started, cpu_seconds_of_all() - used
    return Spent(wall / updates, cpu / updates)


def measure_mixing(dataset: Dataset, model: str) -> Measurement:
    """Measure the server's time per asynchronous update. `model` is a key of MODELS.

    The server chooses and copies a fragment, and mixes the update.
    """
    server = _make_server(dataset, model)
    seconds = []
    for number in range(SERVER_UPDATES):
        started = time.perf_counter()
        task = server.assign(number % SERVER_CLIENTS, 0.0)
        server.commit(_untrained(task), 0.0)
        seconds.append(time.perf_counter() - started)
    return Measurement("assign and mix", SERVER_CLIENTS, model, "ms", 1000 * statistics.median(seconds))


def bytes_moved(dataset: Dataset, model: str) -> Measurement:
    """Measure the bytes of an update's message and of the submodel in it."""
    task = _make_server(dataset, model).assign(0, 0.0)
    buffers: list[pickle.PickleBuffer] = []
    header = pickle.dumps(_untrained(task), protocol=5, buffer_callback=buffers.append)
    moved = len(header) + sum(len(buffer.raw()) for buffer in buffers)
    return Measurement("bytes of an update", SERVER_CLIENTS, model, "kB", moved / 1e3, task.params.nbytes / 1e3)


def _make_server(dataset: Dataset, model: str) -> Server:
    """Return a server of Fed-RAA with three fragments, which writes no log."""
    experiment = trial_experiment("fed-raa", SERVER_CLIENTS, model, updates=1, fragments=3)
    return make_server(build_run(experiment, dataset=dataset), lambda *_, **__: None)


def _untrained(task: Task) -> Update:
    """Return an update with the parameters of the task."""
    return Update(task.id, task.client, task.fragment, task.version, task.params, 1, 0.0, 0.0)


def start_up(repeats: int) -> Measurement:
    """Measure the time from a process's start to its first update, and the time of `ray.init` and the imports.

    The first measurement of both times is not counted, because it fills the machine's caches.
    """
    experiment = "method='fedavg', clients=1, hidden=(8,), local_steps=1, rounds=1, workers=1, quiet=True"
    code = f"import fedraa, pathlib, sys; fedraa.run(fedraa.Experiment({experiment}, out=pathlib.Path(sys.argv[1])))"
    bare = "import torch, ray, pandas; ray.init('local', include_dashboard=False, log_to_driver=False)"
    spent_by_fedraa: list[Spent] = []
    floor: list[Spent] = []
    for number in range(repeats + 1):
        with TemporaryDirectory() as directory:
            pair = [time_python(code, f"{directory}/run"), time_python(bare)]
        if number:
            spent_by_fedraa.append(Spent(pair[0], 0.0))
            floor.append(Spent(pair[1], 0.0))
    return Measurement("start-up", 1, "small", "s", median_wall(spent_by_fedraa), median_wall(floor))


def time_python(code: str, *arguments: str) -> float:
    """Run code in a new Python interpreter, and return its duration in seconds."""
    started = time.perf_counter()
    subprocess.run([sys.executable, "-c", code, *arguments], check=True, capture_output=True)
    return time.perf_counter() - started


def show_measurements(measurements: list[Measurement]) -> None:
    """Print the measurements as a table."""
    table = Table("what", "clients", "model", "fedraa", "floor", "ratio", "CPU ratio")
    for row in measurements:
        table.add_row(row.what, str(row.clients), row.model, *row.numbers())
    Console().print(table)
