"""Kill and freeze processes and damage files many times, and compare the results with undisturbed runs.

    python -m benchmarks.system.chaos [--kinds KIND ...] [--continue]

Each kind of disturbance is applied to several methods, or to each kind of process. Every run must end with the same
model and the same log as the undisturbed run, bit for bit; only faults may be added to the log. If a run cannot be
resumed, fedraa must refuse it with a one-sentence error before it changes anything. The table is written row by row.
With --continue, existing rows are kept and not repeated.
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

from benchmarks.system import chaos_clients, chaos_files, chaos_kills, chaos_processes
from benchmarks.system.chaos_table import Kind, Table, print_line

SEED = 0
KINDS = {
    kind.name: kind for kind in (*chaos_files.KINDS, *chaos_clients.KINDS, *chaos_processes.KINDS, *chaos_kills.KINDS)
}


def run_trials(kind: Kind, table: Table, again: bool) -> list[str]:
    """Run the trials of one kind of disturbance, and return the names of those with a wrong result.

    Args:
        kind: The kind of disturbance.
        table: The table of results.
        again: True to repeat the trials that already have a row in the table.
    """
    trials = {of: trial for of, trial in kind.trials.items() if again or not table.has_row(kind.name, of)}
    if not trials:
        return []
    wrong = []
    with kind.around():
        for of, trial in trials.items():
            started = time.monotonic()
            with TemporaryDirectory(prefix="fedraa-chaos-") as folder:
                tally = trial(Path(folder), np.random.default_rng([SEED, zlib.crc32(f"{kind.name} {of}".encode())]))
            table.put(kind.name, of, tally, time.monotonic() - started)
            print_line(f"{kind.name}, {of}: {tally.right} of {tally.count} right")
            if not tally.well:
                wrong.append(f"{kind.name} ({of})")
    return wrong


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the requested kinds of disturbances and write the table. Exit with an error if a result is wrong."""
    parser = argparse.ArgumentParser(prog="chaos")
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS), metavar="KIND", help=", ".join(KINDS))
    parser.add_argument("--continue", dest="keep_rows", action="store_true", help="keep the rows of the table")
    options = parser.parse_args(arguments)
    logging.getLogger("fedraa").setLevel(logging.ERROR)
    logging.getLogger("actors").setLevel(logging.ERROR)
    table = Table()
    wrong = []
    for name in options.kinds:
        wrong += run_trials(KINDS[name], table, again=not options.keep_rows)
    if wrong:
        sys.exit(f"chaos: wrong results: {', '.join(wrong)}")


if __name__ == "__main__":
    main()
