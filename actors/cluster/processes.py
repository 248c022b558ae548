"""Processes of this machine, as Linux tells of them; elsewhere nothing is known."""

import os
import signal
from contextlib import suppress
from pathlib import Path

PROC = Path("/proc")
STDOUT, STDERR = "1", "2"
RAYS = b"ray::"  # how its processes call themselves


def crowded() -> float:
    """How many times as long as on a quiet machine things may take here: its load per core, at least 1."""
    return max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))


def cpu_seconds(process: int) -> float:
    """User and system time that it has used; 0 if it has gone."""
    fields = _fields(process)
    return 0.0 if fields is None else (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def is_stopped(process: int) -> bool:
    """Whether it stands still, as after SIGSTOP."""
    fields = _fields(process)
    return fields is not None and fields[0] in "Tt"


def kill_all_of(folder: Path) -> None:
    """SIGKILL for every process that writes its output into the folder, or was started with a path in it.

    Processes of Ray call themselves otherwise later, and those that are frozen outlive the one that started them.
    """
    for entry in PROC.glob("[0-9]*") if PROC.exists() else ():
        if int(entry.name) != os.getpid() and _is_of(entry, f"{folder}/"):
            with suppress(OSError):
                os.kill(int(entry.name), signal.SIGKILL)


def _is_of(entry: Path, folder: str) -> bool:
    """Ray's agents write elsewhere than to their output; they would outlive a dead raylet for a minute."""
    try:
        given = (entry / "cmdline").read_bytes()
        files = os.listdir(entry / "fd") if given.startswith(RAYS) else (STDOUT, STDERR)
    except OSError:
        return False
    for file in files:
        with suppress(OSError):
            if os.readlink(entry / "fd" / file).startswith(folder):
                return True
    return f"={folder}".encode() in given


def _fields(process: int) -> list[str] | None:
    """State and what follows the name in parentheses."""
    try:
        return (PROC / str(process) / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
