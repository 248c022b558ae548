"""Information about this machine's processes from /proc, which exists only on Linux."""

import os
import signal
from contextlib import suppress
from pathlib import Path

PROC = Path("/proc")
STDOUT = "1"
STDERR = "2"
# Ray replaces the command line of many of its processes by a title. The title begins with these bytes.
RAYS = b"ray::"


def load_factor() -> float:
    """Return the machine's load average per core, at least 1. Timeouts are multiplied by it."""
    return max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))


def knows_cpu_seconds() -> bool:
    """Return True if this system has CPU times in /proc. Linux has them, and macOS does not."""
    return (PROC / str(os.getpid()) / "stat").exists()


def cpu_seconds(process: int) -> float:
    """Return the CPU seconds (user and system) of a process; 0 if it has ended."""
    fields = read_stat_fields(process)
    if fields is None:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def is_stopped(process: int) -> bool:
    """Return True if the process is stopped, for example by SIGSTOP."""
    fields = read_stat_fields(process)
    return fields is not None and fields[0] in "Tt"


def kill_all_of(folder: Path) -> None:
    """Send SIGKILL to every process that uses the folder.

    A process uses the folder if its command line contains the folder, or if it writes to a file in the folder. The
    command line is not enough, because Ray's processes change it after the start.
    """
    if not PROC.exists():
        return
    for entry in PROC.glob("[0-9]*"):
        if int(entry.name) != os.getpid() and _is_of(entry, f"{folder}/"):
            with suppress(OSError):
                os.kill(int(entry.name), signal.SIGKILL)


def _is_of(entry: Path, folder: str) -> bool:
    """Return True if a process has a file of the folder open, or has the folder's path in its command line.

    For processes of Ray, all open files are checked, because the standard output of Ray's agents is not in the folder.
    For other processes, only the standard output and the standard error are checked.
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


def read_stat_fields(process: int) -> list[str] | None:
    """Return the fields of /proc/PID/stat after the process name; None if the process has ended."""
    try:
        return (PROC / str(process) / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
