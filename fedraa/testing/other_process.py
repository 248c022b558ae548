"""Small experiments in other processes. Each process iterates over a set of strings in a different order."""

import json
import os
import subprocess
import sys
from typing import Any

from fedraa.components.text import describe_component, is_built_in
from fedraa.composition.method import Method
from fedraa.testing.kinds import KINDS, Kind
from fedraa.testing.small_runs import run_small_experiment

# Values of PYTHONHASHSEED. With each value, Python iterates over a set of strings in a different order.
ORDERS = ("1", "2")


def can_travel(kind: Kind, part: Any) -> bool:
    """Return True for a method or custom component that another process can create from its description."""
    definition = part if hasattr(part, "__qualname__") else type(part)
    if is_built_in(definition) and not isinstance(part, Method):
        return False
    try:
        text = json.dumps(describe_component(part))
        # Other processes cannot import the script that runs here, nor classes that are defined in a function.
        if "__main__:" in text or "<locals>" in text or "<lambda>" in text:
            return False
        return bool(describe_component(kind.make(json.loads(text))) == describe_component(part))
    except (ValueError, TypeError):
        return False


def digest_elsewhere(kind: Kind, part: Any) -> list[str]:
    """Return the digests of a component's small experiment in two other processes.

    Raises RuntimeError if a process failed. The message is the last line of the error output, or the exit code.
    """
    command = [sys.executable, "-m", __name__, kind.name, json.dumps(describe_component(part))]
    path = os.pathsep.join(entry or os.getcwd() for entry in sys.path)
    started = [
        subprocess.Popen(
            command,
            env=os.environ | {"PYTHONHASHSEED": order, "PYTHONPATH": path},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for order in ORDERS
    ]
    outputs = [process.communicate() for process in started]
    for process, (_, error) in zip(started, outputs, strict=True):
        if process.returncode:
            raise RuntimeError([f"exit code {process.returncode}", *error.strip().splitlines()][-1])
    return [out.split()[-1] for out, _ in outputs]


if __name__ == "__main__":
    name, described = sys.argv[1:]
    here = KINDS[name]
    sys.stdout.write(
        run_small_experiment(lambda: here.small_experiment(here.make(json.loads(described)))).digest + "\n"
    )
