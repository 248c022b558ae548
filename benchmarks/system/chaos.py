"""Kill and freeze processes, damage files, and compare each run with an undisturbed run.

    python -m benchmarks.system.chaos [--kinds KIND ...] [--continue]

The model and the log must be equal bit for bit. Only lines about faults may be added to the log. fedraa may refuse to
resume a run. It must then leave the run's files unchanged.
"""

import argparse
import logging
import sys
import time
import zlib
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from benchmarks.system import chaos_clients, chaos_files, chaos_kills, chaos_local, chaos_processes
from benchmarks.system.chaos_table import Kind, has_row, put_row
from fedraa.cli.console import print_line

SEED = 0
KINDS = {
    kind.name: kind
    for module in (chaos_files, chaos_clients, chaos_processes, chaos_kills, chaos_local)
    for kind in module.KINDS
}


def run_trials(kind: Kind, *, again: bool) -> list[str]:
    """Run the trials of one kind and return the names of the failed ones.

    Trials that already have a row in the table are repeated only if `again` is True.
    """
    trials = {of: trial for of, trial in kind.trials.items() if again or not has_row(kind.name, of)}
    if not trials:
        return []
    wrong = []
    with kind.around():
        for of, trial in trials.items():
            started = time.monotonic()
            with TemporaryDirectory(prefix="fedraa-chaos-") as folder:
                tally = trial(Path(folder), np.random.default_rng([SEED, zlib.crc32(f"{kind.name} {of}".encode())]))
            put_row(kind.name, of, tally, time.monotonic() - started)
            print_line(f"{kind.name}, {of}: {tally.right} of {tally.count} right")
            if not tally.well:
                wrong.append(f"{kind.name} ({of})")
    return wrong


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the requested kinds of disturbances and write the table.

    The command exits with an error if a result is wrong.
    """
    parser = argparse.ArgumentParser(prog="chaos")
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS), metavar="KIND", help=", ".join(KINDS))
    parser.add_argument("--continue", dest="keep_rows", action="store_true", help="keep the rows of the table")
    options = parser.parse_args(arguments)
    logging.getLogger("fedraa").setLevel(logging.ERROR)
    logging.getLogger("actors").setLevel(logging.ERROR)
    wrong = []
    for name in options.kinds:
        wrong += run_trials(KINDS[name], again=not options.keep_rows)
    if wrong:
        sys.exit(f"chaos: wrong results: {', '.join(wrong)}")


if __name__ == "__main__":
    main()
