"""Trials in which one client sends invalid updates or raises an error.

The run must end without an error. Its log must name this client and the reason. A second run leaves this client out.
Both runs must end with the same bits of the model.
"""

import re
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from actors.worker.worker import Worker
from benchmarks.system.chaos_kills import on_ray, run_with_workers
from benchmarks.system.chaos_table import Kind, Tally, count_commits
from benchmarks.system.spoiling import CAUSES, spoil_update
from fedraa.api import replay, run
from fedraa.cli.console import print_line
from fedraa.client.trainer import Work
from fedraa.config.experiment import Experiment
from fedraa.ledger.participation import Participation
from fedraa.messages import Update
from fedraa.rundir.history import History

ASYNCHRONOUS = ("fed-raa", "fedasync", "fedbuff")
ROUNDS = ("fedavg", "scaffold", "fedcm", "ram-fed", "subdismo", "splitfed", "heterofl")
CHOSEN = ASYNCHRONOUS + ROUNDS
CLIENTS = 6


@dataclass(frozen=True)
class Case:
    """The result of a run with a bad client.

    Attributes:
        method: The name of the method.
        does: The client's behaviour, a key of CAUSES.
        client: The bad client.
        ended: True if the run reached its last step.
        named: True if the log names exactly this client and the reason.
        replayed: True if fedraa's check of the log succeeds.
        same_bits: True if the model equals that of a run without the client.
        lost: The number of tasks without a commit.
        doubled: The number of tasks with two commits.
    """

    method: str
    does: str
    client: int
    ended: bool
    named: bool
    replayed: bool
    same_bits: bool
    lost: int
    doubled: int

    @property
    def well(self) -> bool:
        return self.ended and self.named and self.replayed and self.same_bits


@dataclass(frozen=True)
class AllBut(Participation):
    """A participation rule that selects all clients except one."""

    client: int

    def cohort(self, clients: int, round: int, rng: np.random.Generator) -> list[int]:
        return [client for client in range(clients) if client != self.client]


def run_trial(directory: Path, rng: np.random.Generator, method: str) -> Tally:
    """Run a method with every kind of bad client on the running Ray cluster.

    Args:
        directory: An empty folder.
        rng: The generator that chooses the bad clients.
        method: The name of the method.
    """
    cases = []
    for does in CAUSES:
        folder = directory / does.replace(" ", "-")
        folder.mkdir()
        cases.append(run_case(method, does, int(rng.integers(CLIENTS)), folder))
    wrong = [one_case for one_case in cases if not one_case.well]
    for wrong_case in wrong:
        print_line(str(wrong_case))
    lost = sum(one_case.lost for one_case in cases)
    doubled = sum(one_case.doubled for one_case in cases)
    return Tally(len(cases), len(cases) - len(wrong), lost, doubled)


def run_case(method: str, does: str, client: int, folder: Path) -> Case:
    """Compare a run that has a bad client with a run without this client.

    Args:
        method: The name of the method.
        does: The client's behaviour, a key of CAUSES.
        client: The bad client.
        folder: An empty folder.
    """
    with_client = History(run_with_workers(make_experiment(method), folder / "run", bad_worker(does, client)))
    without = run(
        make_experiment(method, **exclude_client(method, client, folder)), engine="local", out=folder / "without"
    )
    commits = count_commits(with_client.directory)
    expected = count_commits(without.directory)
    return Case(
        method,
        does,
        client,
        ended=with_client.summary["reason"] == "steps",
        named=names_client(with_client, client, CAUSES[does]),
        replayed="consistent" in replay(with_client.directory),
        same_bits=with_client.summary["model_sha256"] == without.summary["model_sha256"],
        lost=max(0, expected.total() - commits.total()),
        doubled=commits.total() - len(commits),
    )


def names_client(history: History, client: int, cause: str) -> bool:
    """Return True if a run has only this bad client, and each of its failed tasks has the right error.

    Args:
        history: The run.
        client: The expected client.
        cause: A regular expression that matches the expected error.
    """
    drops = [line for line in history.lines() if line["kind"] == "drop"]
    quarantined: Any = history.summary["quarantined"]
    return (
        {line["client"] for line in drops} == {client}
        and [entry["client"] for entry in quarantined] == [client]
        and all(re.fullmatch(cause, str(line["error"])) for line in drops)
    )


def make_experiment(method: str, **changes: Any) -> Experiment:
    """Return an experiment with about 50 commits of tiny tasks."""
    fields: dict[str, Any] = {"hidden": (8,), "clients": CLIENTS, "local_steps": 2, "workers": 2, "quiet": True}
    if method == "fedbuff":
        fields |= {"updates": 16, "buffer_size": 3}
    elif method in ASYNCHRONOUS:
        fields["updates"] = 50
    else:
        fields["rounds"] = 10
    return Experiment(method=method, **fields | changes)


def exclude_client(method: str, client: int, folder: Path) -> dict[str, Any]:
    """Return experiment fields under which one client never gets a task.

    Args:
        method: The name of the method.
        client: The client.
        folder: The folder for the file with the devices' availability.
    """
    if method in ROUNDS:
        return {"participation": AllBut(client)}
    path = folder / "there.csv"
    path.write_text("client,start,end\n" + "".join(f"{n},{1e9 * (n == client)},2e9\n" for n in range(CLIENTS)))
    return {"availability": path}


def bad_worker(does: str, client: int) -> type[Worker]:
    """Return a worker class that spoils one client's updates or raises an error for this client."""

    class Bad(Worker):
        def train(self, work: list[Work]) -> list[Update]:
            updates = super().train(work)
            return [spoil_update(update, does) if update.client == client else update for update in updates]

    return Bad


KINDS = [Kind("bad clients", {method: partial(run_trial, method=method) for method in CHOSEN}, on_ray)]
