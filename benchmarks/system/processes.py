"""The processes below one, as Linux tells of them."""

import os
from pathlib import Path

PROC = Path("/proc")


def descendants(root: int) -> list[int]:
    """The ids of all living processes that come from this one."""
    parents: dict[int, int] = {}
    for entry in PROC.iterdir():
        if entry.name.isdigit() and (fields := _status(int(entry.name))) is not None and fields[0] != "Z":
            parents[int(entry.name)] = int(fields[1])
    found = [root]
    for process in found:
        found += [child for child, parent in parents.items() if parent == process]
    return found[1:]


def title(process: int) -> str:
    """What it calls itself; empty if it has gone."""
    try:
        return (PROC / str(process) / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    except OSError:
        return ""


def resident_bytes(process: int) -> int:
    """Its own memory, without what it shares; 0 if it has gone."""
    try:
        text = (PROC / str(process) / "status").read_text()
    except OSError:
        return 0
    return sum(int(line.split()[1]) * 1024 for line in text.splitlines() if line.startswith("RssAnon:"))


def memory(process: int) -> dict[str, int]:
    """Bytes of RAM by what they are: `rss` all pages, `peak` the most of these ever, `pss` with shared ones by share.

    Of `rss`, `anon` is its own, `file` is mapped from files and can be dropped, `shmem` is shared, as Ray's object
    store is. Empty if it has gone, or may not be looked at.
    """
    names = {"VmRSS": "rss", "VmHWM": "peak", "RssAnon": "anon", "RssFile": "file", "RssShmem": "shmem", "Pss": "pss"}
    try:
        text = "".join((PROC / str(process) / name).read_text() for name in ("status", "smaps_rollup"))
    except OSError:
        return {}
    pairs = (line.partition(":")[::2] for line in text.splitlines())
    return {names[name]: int(value.split()[0]) * 1024 for name, value in pairs if name in names}


def cpu_seconds(process: int) -> float:
    """User and system time that it has used; 0 if it has gone."""
    fields = _status(process)
    return 0.0 if fields is None else (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _status(process: int) -> list[str] | None:
    """State and parent: the fields after the name in parentheses."""
    try:
        return (PROC / str(process) / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
