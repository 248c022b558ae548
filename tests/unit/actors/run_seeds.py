"""`make seeds`: simulate a run with many seeds, and print the seeds that fail and the seeds per minute.

python tests/unit/actors/run_seeds.py [FIRST] [COUNT]
"""

import logging
import sys
import time
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[3])]
from simulated_cluster import simulated_cluster  # noqa: E402
from simulated_run import play  # noqa: E402


def main(first: int = 0, count: int = 5000) -> int:
    logging.disable(logging.CRITICAL)
    failing = []
    with simulated_cluster():
        play(first)
        began = time.process_time()
        for seed in range(first, first + count):
            try:
                play(seed)
            # A seed may fail in any way, also with an assertion.
            except Exception as error:
                failing.append(seed)
                print(f"seed {seed}: {error!r}", flush=True)  # noqa: T201
    minutes = (time.process_time() - began) / 60
    print(f"{count} seeds, {len(failing)} failing, {count / minutes:,.0f} seeds per CPU minute")  # noqa: T201
    return len(failing) > 0


if __name__ == "__main__":
    sys.exit(main(*map(int, sys.argv[1:])))
