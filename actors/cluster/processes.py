"""Information about this machine's processes from Linux's /proc. Other systems provide none."""

import os
import signal
from contextlib import suppress
from pathlib import Path

PROC = Path("/proc")
STDOUT = "1"
STDERR = "2"
# The titles of Ray's actor processes begin with this.
RAYS = b"ray::"


def load_factor() -> float:
    """Return the load per core, at least 1. Timeouts are multiplied by it."""
    return max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))


def cpu_seconds(process: int) -> float:
    """Return the user and system time of a process in seconds; 0 if it has ended."""
    fields = _stat_fields(process)
    if fields is None:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def is_stopped(process: int) -> bool:
    """Return True if the process is stopped, for example by SIGSTOP."""
    fields = _stat_fields(process)
    return fields is not None and fields[0] in "Tt"


def kill_all_of(folder: Path) -> None:
    """Send SIGKILL to every process with its output in the folder, or with a path of the folder in its command line.

    Ray's processes change their titles later, and frozen ones outlive the process that started them.
    """
    if not PROC.exists():
        return
    for entry in PROC.glob("[0-9]*"):
        if int(entry.name) != os.getpid() and _is_of(entry, f"{folder}/"):
            with suppress(OSError):
                os.kill(int(entry.name), signal.SIGKILL)


def _is_of(entry: Path, folder: str) -> bool:
    """Return True if the process uses the folder.

    For Ray's agents all open files are checked, because they do not write to their standard output. Without this check,
    agents would outlive a dead raylet for a minute.
    """
    try:
        command = (entry / "cmdline").read_bytes()
        files = [STDOUT, STDERR]
        if command.startswith(RAYS):
            files = os.listdir(entry / "fd")
    except OSError:
        return False
    for file in files:
        with suppress(OSError):
            if os.readlink(entry / "fd" / file).startswith(folder):
                return True
    return f"={folder}".encode() in command


def _stat_fields(process: int) -> list[str] | None:
    """Return the fields of /proc/PID/stat after the name, beginning with the state."""
    try:
        return (PROC / str(process) / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
