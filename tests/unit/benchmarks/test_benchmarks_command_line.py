"""Mistakes in the arguments of `python -m benchmarks` are refused before anything runs."""

import os
import signal
import subprocess
import sys
import time

import pytest
from refusals import refuses

from benchmarks.__main__ import COMMANDS, main
from fedraa.errors import RunFailed


@pytest.mark.parametrize(
    ("words", "field", "advice"),
    [
        ("run race --quick --seeds x", "seeds", "INT ..."),
        ("run race --quik", "--quik", "--quick?"),
        ("rn", "rn", "run?"),
        ("run", "study", "python -m benchmarks run --help"),
        ("list x", "x", "python -m benchmarks list --help"),
        ("million --methods fedvag", "methods", "fedavg"),
        ("million --repeats 0", "repeats", "at least 1"),
        ("large_models --methods fedprox", "methods", "fedavg"),
        ("large_models --repeats 0", "repeats", "at least 1"),
        ("cut_cost --models vgg", "models", "resnet18"),
        ("cut_cost --repeats 0", "repeats", "at least 1"),
        ("cut_models --libraries keras", "libraries", "timm"),
        ("board --events 2", "events", "at least 3"),
        ("chaos --cells", "cells", "different values"),
        ("compat --only ray-1.0", "only", "lowest"),
        ("convolutions --isa avx", "isa", "AVX2"),
        ("faults --engines", "engines", "different values"),
        ("gpu --stacks 0", "stacks", "at least 1"),
        ("gpu --out nowhere/gpu.csv", "out", "no folder"),
        ("large_models --hidden 8 0", "hidden", "at least 1"),
        ("link_faults --servers", "servers", "different values"),
        ("million --clients 99", "clients", "at least 100"),
        ("peers --out PYTHON_FILE", "out", "workload"),
        ("plan_nodes --width 0", "width", "at least 1"),
        ("prose --worst -1", "worst", "at least 0"),
        ("tasks --hidden", "hidden", "at least 1"),
        ("throughput --vmap-batch 0", "vmap_batch", "at least 1"),
    ],
)
def test_wrong_argument_is_refused(words: str, field: str, advice: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["benchmarks", *words.replace("PYTHON_FILE", __file__).split()])
    with refuses(field, advice):
        main()


def test_failed_process_of_a_command_is_reported_in_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        """Start a process that fails."""
        subprocess.run([sys.executable, "-c", "raise SystemExit(3)"], check=True)

    monkeypatch.setitem(COMMANDS, "list", fail)
    monkeypatch.setattr(sys, "argv", ["benchmarks", "list"])
    with refuses("process", "exit code 3", error=RunFailed):
        main()


@pytest.mark.usefixtures("default_sigterm_handler")
def test_sigterm_interrupts_a_command_so_that_its_processes_end(monkeypatch: pytest.MonkeyPatch) -> None:
    def terminate() -> None:
        """Send SIGTERM to this process."""
        # The default handler would end pytest.
        assert signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(10)

    monkeypatch.setitem(COMMANDS, "list", terminate)
    monkeypatch.setattr(sys, "argv", ["benchmarks", "list"])
    with pytest.raises(KeyboardInterrupt):
        main()
