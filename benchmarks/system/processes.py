"""Start and kill process trees, and read information about processes from Linux's /proc."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from types import MappingProxyType
from typing import Any

from actors.cluster.processes import PROC, read_stat_fields


def list_descendants(root: int) -> list[int]:
    """Return the ids of all living descendants of a process."""
    parents: dict[int, int] = {}
    for entry in PROC.iterdir():
        if not entry.name.isdigit():
            continue
        fields = read_stat_fields(int(entry.name))
        # Z is the state of a zombie, a process that has ended.
        if fields is not None and fields[0] != "Z":
            parents[int(entry.name)] = int(fields[1])
    family = [root]
    for process in family:
        family += [child for child, parent in parents.items() if parent == process]
    return family[1:]


def find_parent(process: int) -> int | None:
    """Return the id of a process's parent; None if the process has ended."""
    fields = read_stat_fields(process)
    return None if fields is None else int(fields[1])


def call_in_child(
    function: Callable[..., object], *args: object, variables: Mapping[str, str] = MappingProxyType({})
) -> Any:
    """Call a function in a new Python process, and return its result, converted to JSON and back.

    An interruption kills the process with all its descendants.

    Args:
        function: A function of a module.
        args: Numbers, texts and tuples of them.
        variables: Further environment variables.
    """
    code = f"import json; from {function.__module__} import {function.__name__} as function; "
    code += f"print(json.dumps(function(*{args!r})))"
    command = [sys.executable, "-c", code]
    with start_tree(command, env={**os.environ, **variables}, stdout=subprocess.PIPE, text=True) as child:
        output: str = child.communicate()[0]
    if child.returncode:
        raise subprocess.CalledProcessError(child.returncode, command)
    return json.loads(output.splitlines()[-1])


@contextmanager
def start_tree(command: Sequence[str], **options: Any) -> Iterator[subprocess.Popen[Any]]:
    """Start a process. At the end of the block, it is killed with all its descendants if it has not ended.

    `options` are arguments of subprocess.Popen.
    """
    with subprocess.Popen(command, **options) as process:
        try:
            yield process
        finally:
            if process.poll() is None:
                kill_tree(process.pid)


def kill_tree(root: int) -> None:
    """Kill a process and all its descendants with SIGKILL. Processes that have ended are skipped."""
    for process in (root, *list_descendants(root)):
        with suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)


def process_title(process: int) -> str:
    """Return the title of a process; empty if it has ended."""
    try:
        return (PROC / str(process) / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    except OSError:
        return ""


def resident_bytes(process: int) -> int:
    """Return the private memory of a process in bytes; 0 if it has ended."""
    return _sum_sizes(process, "status", "RssAnon:")


def unique_bytes(process: int) -> int:
    """Return the bytes that only this process uses; 0 if it has ended."""
    return _sum_sizes(process, "smaps_rollup", "Private_")


def _sum_sizes(process: int, file: str, prefix: str) -> int:
    """Return the bytes in the lines of a file in /proc/PID that begin with `prefix`; 0 if the process has ended."""
    try:
        text = (PROC / str(process) / file).read_text()
    except OSError:
        return 0
    return sum(int(line.split()[1]) * 1024 for line in text.splitlines() if line.startswith(prefix))
