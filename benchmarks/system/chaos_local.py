"""Trials in which worker processes of the engine `local` are killed and frozen.

A signal is sent to a random worker process after random commits: SIGKILL or SIGSTOP. Each run must end with the model
and log of an undisturbed run. Only lines about faults may be added to the log.
"""

import os
import signal
from collections.abc import Mapping
from contextlib import closing, nullcontext
from functools import partial
from pathlib import Path
from threading import Event as Stop

import numpy as np

from benchmarks.system.chaos_kills import CHOSEN, judge_runs, make_experiment, run_undisturbed
from benchmarks.system.chaos_table import Kind, Tally, count_commits
from benchmarks.system.processes import find_parent, list_descendants, process_title
from fedraa.callbacks import Callback, Event
from fedraa.callbacks.callback_list import CallbackList
from fedraa.engine.build import build_run
from fedraa.engine.hang_detector import HangDetector
from fedraa.engine.process_executor import ProcessExecutor
from fedraa.engine.session import RunSession

WORKERS = 2
# The numbers of kills and freezes in the run of a method.
KILLS, FREEZES = 9, 2
# A call that takes longer counts as hung.
HUNG_AFTER_S = 10.0


class Signals(Callback):
    """A callback that sends signals to worker processes.

    Args:
        after: The signal to send after a number of commits.
        rng: The generator that chooses the worker.
    """

    def __init__(self, after: Mapping[int, signal.Signals], rng: np.random.Generator) -> None:
        self._after = after
        self._rng = rng
        self._commits = 0
        self.sent = 0

    def on_commit(self, event: Event) -> None:
        self._commits += 1
        number = self._after.get(self._commits)
        workers = find_worker_processes()
        if number is not None and workers:
            os.kill(int(self._rng.choice(workers)), number)
            self.sent += 1


def find_worker_processes() -> list[int]:
    """Return the ids of the worker processes that this process has started."""
    own = os.getpid()
    return [pid for pid in list_descendants(own) if find_parent(pid) == own and "worker_process" in process_title(pid)]


def disturb_workers(
    folder: Path, rng: np.random.Generator, method: str, kills: int = KILLS, freezes: int = FREEZES
) -> Tally:
    """Kill and freeze worker processes in one run, and compare it with an undisturbed run.

    Args:
        folder: An empty folder.
        rng: The generator that chooses the times and the workers.
        method: The name of the method.
        kills: The number of kills.
        freezes: The number of freezes.
    """
    undisturbed = run_undisturbed(method, folder)
    count = kills + freezes
    stretch = count_commits(undisturbed).total() // (count + 1)
    commits = 1 + stretch * np.arange(count) + rng.integers(0, stretch, count)
    numbers = rng.permutation([signal.SIGKILL] * kills + [signal.SIGSTOP] * freezes)
    after = {int(commit): signal.Signals(number) for commit, number in zip(commits, numbers, strict=True)}
    callback = Signals(after, rng)
    directory = folder / "disturbed"
    directory.mkdir()
    spec = build_run(make_experiment(method, directory, "local"))
    with closing(ProcessExecutor(spec, WORKERS, HangDetector(factor=0.0, min_seconds=HUNG_AFTER_S))) as executor:
        RunSession(spec, directory, executor, Stop(), CallbackList([callback])).execute()
    # A signal is not sent if no worker lives at this moment.
    return judge_runs(callback.sent, [directory], undisturbed)


KINDS = (
    Kind("local worker kills", {method: partial(disturb_workers, method=method) for method in CHOSEN}, nullcontext),
)
