"""Trials with simultaneous starts, interrupted writes and damaged files.

Each row has one disturbance and its outcome. `harmless`: the run ended with the model and log of the undisturbed run.
`noticed`: fedraa refused the run with a one-sentence error before it changed a file. Other outcomes are failures.
"""

import errno
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.system.chaos_table import Kind, Tally, Trial, lost_and_doubled
from benchmarks.system.killing import KillAt, Killed
from benchmarks.system.processes import start_tree
from fedraa.api import replay, resume, run
from fedraa.cli.console import print_line
from fedraa.config.experiment import Experiment
from fedraa.errors import Inconsistent, Unwritable
from fedraa.rundir.file_names import CHECKPOINTS, CONFIG, EVALS, EVENTS, MODEL, SEAL, SUMMARY
from fedraa.rundir.history import History
from fedraa.rundir.profile import PROFILE

REFUSED = "fedraa: out: same is not an empty directory; choose a directory that is new or empty"
HARMLESS, NOTICED = "harmless", "noticed"
SIMULTANEOUS_STARTS = 4
# The number of the commit at which runs are killed.
KILLED_AT = 18
UPDATES: dict[str, Any] = {"updates": 25, "checkpoint_every": 4, "eval_every": 3}
ROUNDS: dict[str, Any] = {"rounds": 5, "checkpoint_every": 1, "eval_every": 1}
METHODS: dict[str, dict[str, Any]] = {
    "fed-raa": UPDATES,
    "fedasync": UPDATES,
    "fedbuff": {"updates": 9, "buffer_size": 3, "checkpoint_every": 2, "eval_every": 1},
    "fed-raa-random": UPDATES,
    "fed-raa-sync": ROUNDS,
    "fedavg": ROUNDS,
    "scaffold": ROUNDS,
    "ram-fed": ROUNDS,
    "heterofl": ROUNDS,
    # PruneFL has only one task in each of its first rounds, so it gets more rounds.
    "prunefl": ROUNDS | {"rounds": 10},
}
Damage = Callable[[bytes, np.random.Generator], bytes]


@dataclass(frozen=True)
class Row:
    """A trial: a disturbance and its outcome.

    Attributes:
        kind: The kind of disturbance.
        what: A description of the disturbance, such as the damage to a file.
        outcome: `harmless`, `noticed`, or the failure.
        message: The error messages of the trial.
        lost: The number of tasks without a commit. For simultaneous starts, the number of lost runs.
        doubled: The number of tasks with two commits.
    """

    kind: str
    what: str
    outcome: str
    message: str = ""
    lost: int = 0
    doubled: int = 0


def make_experiment(method: str, out: Path) -> Experiment:
    """Return a small experiment with about 25 commits and several checkpoints."""
    return Experiment(
        method=method,
        out=out,
        engine="local",
        hidden=(8,),
        clients=5,
        local_steps=1,
        quiet=True,
        **METHODS[method],
    )


def run_killed(method: str, out: Path) -> Path:
    """Run an experiment in the directory `out`, kill it at commit `KILLED_AT`, and return `out`."""
    try:
        run(make_experiment(method, out), callbacks=[KillAt(KILLED_AT)])
    except Killed:
        return out
    raise AssertionError(f"the run of {method} ended before commit {KILLED_AT}")


def log_and_model(directory: Path) -> tuple[list[dict[str, object]], object]:
    """Return the log without real times, and the checksum of the final model."""
    lines = [{key: value for key, value in line.items() if key != "wall"} for line in History(directory).lines()]
    evals = History(directory).evals.drop(columns="wall").to_csv()
    return [*lines, {"evals": evals}], lines[-1]["model_sha256"]


def _damage_lines(change: Callable[[list[bytes], int, np.random.Generator], None]) -> Damage:
    def damage_content(content: bytes, rng: np.random.Generator) -> bytes:
        lines = content.splitlines(keepends=True)
        change(lines, int(rng.integers(len(lines))), rng)
        return b"".join(lines)

    return damage_content


def _swap_lines(lines: list[bytes], at: int, rng: np.random.Generator) -> None:
    other = int(rng.integers(len(lines)))
    lines[at], lines[other] = lines[other], lines[at]


def _change_byte(of: bytes, to: bytes) -> Damage:
    """Return a function that replaces one random byte of a file.

    The old byte is one of the bytes in `of`. The new byte is one of the bytes in `to`, and differs from the old byte.
    """

    def damage_content(content: bytes, rng: np.random.Generator) -> bytes:
        places = [place for place, byte in enumerate(content) if byte in of]
        if not places:
            return content
        place = int(rng.choice(places))
        new_byte = int(rng.choice([byte for byte in to if byte != content[place]]))
        return content[:place] + bytes([new_byte]) + content[place + 1 :]

    return damage_content


def _cut_content(content: bytes, rng: np.random.Generator) -> bytes:
    return content[: int(rng.integers(len(content)))]


def _zero_bytes(content: bytes, rng: np.random.Generator) -> bytes:
    place = int(rng.integers(len(content)))
    return content[:place] + bytes(min(64, len(content) - place)) + content[place + 64 :]


DIGITS, ANY = b"0123456789", bytes(range(256))
OF_LINES: dict[str, Damage] = {
    "a line deleted": _damage_lines(lambda lines, at, rng: lines.__delitem__(at)),
    "a line doubled": _damage_lines(lambda lines, at, rng: lines.insert(at, lines[at])),
    "two lines swapped": _damage_lines(_swap_lines),
    "an empty line": _damage_lines(lambda lines, at, rng: lines.insert(at, b"\n")),
    "the last line deleted": _damage_lines(lambda lines, at, rng: lines.__delitem__(-1)),
    "the last line doubled": _damage_lines(lambda lines, at, rng: lines.append(lines[-1])),
    "line ends changed": lambda content, rng: content.replace(b"\n", b"\r\n"),
    "spaces put in": lambda content, rng: content.replace(b",", b", "),
}
OF_ALL: dict[str, Damage] = {
    "a digit changed": _change_byte(DIGITS, DIGITS),
    "a byte changed": _change_byte(ANY, ANY),
    "cut short": _cut_content,
    "the last byte lost": lambda content, rng: content[:-1],
    "something appended": lambda content, rng: content + b'{"seq":1}\n',
    "zeros": _zero_bytes,
    "empty": lambda content, rng: b"",
}


def list_damages(directory: Path) -> Iterator[tuple[Path, str, Damage]]:
    """Yield each way to damage a run: the file, a description, and the function that damages the file."""
    files = [directory / name for name in (CONFIG, EVENTS, EVALS, MODEL, PROFILE, SUMMARY, SEAL)]
    for path in (*files, *sorted((directory / CHECKPOINTS).iterdir())):
        if not path.exists():
            continue
        kinds = OF_ALL
        if path.suffix in (".jsonl", ".csv"):
            kinds = OF_LINES | OF_ALL
        for name, damage in kinds.items():
            yield path.relative_to(directory), name, damage


def damaged_copies(whole: Path, scratch: Path, rng: np.random.Generator, wanted: int) -> Iterator[tuple[Path, str]]:
    """Yield damaged copies of a run, each with a description of the damage.

    Args:
        whole: The intact run directory.
        scratch: The directory for the copies. Each copy replaces the one before.
        rng: The generator that chooses the damages.
        wanted: The number of copies.
    """
    kinds = list(list_damages(whole))
    count = 0
    while True:
        for place in rng.permutation(len(kinds)):
            name, what, damage = kinds[place]
            content = (whole / name).read_bytes()
            changed = damage(content, rng)
            if changed == content:
                continue
            shutil.rmtree(scratch, ignore_errors=True)
            shutil.copytree(whole, scratch)
            (scratch / name).write_bytes(changed)
            yield scratch, f"{name}: {what}"
            count += 1
            if count == wanted:
                return


def resumed_after_damage(method: str, folder: Path, rng: np.random.Generator, wanted: int) -> Iterator[Row]:
    """Damage a killed run in different ways, resume it, and yield the outcomes.

    Args:
        method: The name of the method.
        folder: An empty folder.
        rng: The generator that chooses the damages.
        wanted: The number of damages.
    """
    expected = log_and_model(run(make_experiment(method, folder / "undisturbed")).directory)
    for directory, what in damaged_copies(run_killed(method, folder / "killed"), folder / "scratch", rng, wanted):
        before = _contents(directory)
        try:
            resume(directory)
        except (ValueError, Inconsistent) as error:
            outcome = NOTICED if _contents(directory) == before else "noticed late"
            yield Row("damaged, resumed", what, outcome, str(error))
            continue
        lost, doubled = lost_and_doubled(directory, folder / "undisturbed")
        yield Row("damaged, resumed", what, _judge_run(directory, expected), "", lost, doubled)


def _contents(directory: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in sorted(directory.rglob("*")) if path.is_file()}


def _judge_run(directory: Path, expected: object) -> str:
    """Return the outcome of a resumed run, compared with the undisturbed run."""
    if log_and_model(directory) != expected:
        return "other bits"
    try:
        replay(directory)
    except (ValueError, Inconsistent) as error:
        return f"inconsistent afterwards: {error}"
    return HARMLESS


def replayed_after_damage(method: str, folder: Path, rng: np.random.Generator, wanted: int) -> Iterator[Row]:
    """Damage a finished run in different ways, and yield whether fedraa's check of the log finds each damage.

    Args:
        method: The name of the method.
        folder: An empty folder.
        rng: The generator that chooses the damages.
        wanted: The number of damages.
    """
    whole = run(make_experiment(method, folder / "ended")).directory
    for directory, what in damaged_copies(whole, folder / "scratch", rng, wanted):
        try:
            replay(directory)
        except (ValueError, Inconsistent) as error:
            yield Row("damaged, replayed", what, NOTICED, str(error))
        else:
            yield Row("damaged, replayed", what, "not noticed")


@contextmanager
def full_disk(room: int, largest_write: int) -> Iterator[None]:
    """Simulate a disk with `room` free bytes, on which a write stops after `largest_write` bytes."""
    write = os.write
    left = room

    def write_short(descriptor: int, content: bytes) -> int:
        nonlocal left
        taken = min(len(content), left, largest_write)
        if not taken:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        left -= taken
        return write(descriptor, content[:taken])

    # `os.write` accepts more types than `write_short`, but the log writes only bytes.
    os.write = write_short  # type: ignore[assignment]
    try:
        yield
    finally:
        os.write = write


def short_writes(method: str, folder: Path, rng: np.random.Generator, count: int) -> Iterator[Row]:
    """Run experiments on a disk that becomes full, and yield the outcomes.

    The disk becomes full during the run, and again when the run is resumed. Then the run is resumed with free space.

    Args:
        method: The name of the method.
        folder: An empty folder.
        rng: The generator that chooses when the disk is full.
        count: The number of experiments.
    """
    undisturbed = run(make_experiment(method, folder / "undisturbed")).directory
    expected = log_and_model(undisturbed)
    size = (undisturbed / EVENTS).stat().st_size
    for number in range(count):
        directory = folder / f"full-{number}"
        message = ""
        room = int(rng.integers(600, size - 600))
        starts = (partial(run, make_experiment(method, directory)), partial(resume, directory))
        for start in starts:
            try:
                with full_disk(room, largest_write=int(rng.integers(1, 200))):
                    start()
            except Unwritable as error:
                message = str(error)
                assert (directory / EVENTS).read_bytes()[-1:] in (b"", b"\n")
        if not (directory / SUMMARY).exists():
            resume(directory)
        outcome = HARMLESS if message and log_and_model(directory) == expected else "other bits"
        lost, doubled = lost_and_doubled(directory, undisturbed)
        yield Row("short writes", f"{method}: {room} bytes of {size}", outcome, message, lost, doubled)
        shutil.rmtree(directory)


def simultaneous_starts(folder: Path, common_flags: Sequence[str]) -> Iterator[Row]:
    """Start the same run three times in several processes at once, and yield the outcomes.

    The directories of the runs are in `folder`. `common_flags` name a common run directory. They are empty if each
    process chooses its own.
    """
    flags = ["--engine", "local", "--hidden", "8", "--clients", "3", "--local-steps", "1", "--updates", "3", "--quiet"]
    command = [sys.executable, "-m", "fedraa", "run", *flags, *common_flags]
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2]), "OMP_NUM_THREADS": "1"}
    for number in range(3):
        place = folder / f"starts-{number}"
        place.mkdir()
        with ExitStack() as stack:
            start = partial(start_tree, command, cwd=place, env=environment, stderr=subprocess.PIPE, text=True)
            processes = [stack.enter_context(start()) for _ in range(SIMULTANEOUS_STARTS)]
            messages = [process.communicate()[1].strip() for process in processes]
        runs = [place / "same"] if common_flags else sorted((place / "runs").iterdir())
        lost = SIMULTANEOUS_STARTS - len(runs) - messages.count(REFUSED)
        well = not lost and all("consistent (" in replay(directory) for directory in runs)
        yield Row("simultaneous starts", str(number), HARMLESS if well else "runs lost", "; ".join(messages), lost)


def tally_rows(rows: Iterable[Row], disturbances: int = 1) -> Tally:
    """Count the disturbances and their right outcomes. Each row has the outcome of `disturbances` disturbances."""
    rows = list(rows)
    wrong = [row for row in rows if row.outcome not in (HARMLESS, NOTICED)]
    for row in wrong:
        print_line(str(row))
    right = disturbances * (len(rows) - len(wrong))
    return Tally(disturbances * len(rows), right, sum(row.lost for row in rows), sum(row.doubled for row in rows))


def _tally_starts(folder: Path, rng: np.random.Generator, common_flags: Sequence[str]) -> Tally:
    return tally_rows(simultaneous_starts(folder, common_flags), SIMULTANEOUS_STARTS)


def _of_methods(mishaps: Callable[..., Iterator[Row]], count: int) -> dict[str, Trial]:
    def run_trial(folder: Path, rng: np.random.Generator, method: str) -> Tally:
        return tally_rows(mishaps(method, folder, rng, count))

    return {method: partial(run_trial, method=method) for method in METHODS}


STARTS: dict[str, Trial] = {
    "one directory": partial(_tally_starts, common_flags=("--out", "same")),
    "none given": partial(_tally_starts, common_flags=()),
}
KINDS = [
    Kind("simultaneous starts", STARTS, nullcontext),
    Kind("short writes", _of_methods(short_writes, 10), nullcontext),
    Kind("damaged, resumed", _of_methods(resumed_after_damage, 100), nullcontext),
    Kind("damaged, replayed", _of_methods(replayed_after_damage, 100), nullcontext),
]
