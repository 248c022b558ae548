"""Train the workload with fedraa.

The arguments are the file of the workload, the engine, the value of `--vmap-batch`, and the number of workers if it is
not the default.
"""

import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

import fedraa as fl
from benchmarks.system.peer_programs.peer_work import Work, report


def main() -> None:
    """Train all rounds. Report the time at which each round ended, and the final accuracy."""
    work = Work.read()
    engine, stack = sys.argv[2], int(sys.argv[3])
    workers = int(sys.argv[4]) if len(sys.argv) > 4 else None
    x_train, y_train, x_test, y_test = (
        np.asarray(work.array(name)) for name in ("x_train", "y_train", "x_test", "y_test")
    )
    settings: dict[str, Any]
    if work.asynchronous:
        updates = work.rounds * work.cohort
        settings = {"method": "fedasync", "updates": updates, "eval_every": updates}
        settings |= {"staleness": "polynomial", "prox_mu": 0.0}
    else:
        settings = {"method": "fedavg", "rounds": work.rounds, "eval_every": work.rounds}
        settings["participation"] = f"sample:{work.cohort}"
    dataset = fl.Dataset("peers", x_train, y_train, x_test, y_test, classes=10)
    with TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        history = fl.run(
            **settings,
            model=work.make_model(),
            dataset=dataset,
            clients=work.clients,
            partition="iid",
            local_epochs=work.epochs,
            batch_size=work.batch,
            lr=work.lr,
            momentum=0.0,
            checkpoint_every=settings["eval_every"],
            engine=engine,
            workers=workers,
            vmap_batch=stack,
            quiet=True,
            out=out,
        )
        # The log's times are real seconds since the start of the run.
        kind = "commit" if work.asynchronous else "round"
        walls = [line["wall"] for line in history.lines() if line["kind"] == kind]
        if work.asynchronous:
            walls = walls[work.cohort - 1 :: work.cohort]
        ended = time.time()
        report([ended - (walls[-1] - wall) for wall in walls], work.accuracy(history.load_model(work.make_model())))


if __name__ == "__main__":
    main()
