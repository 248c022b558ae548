"""Samples in a memory-mapped array of 3 GB on disk, read client by client by two workers on Ray; Fed-RAA.

python examples/larger_than_memory.py, where 3 GB are free: it writes the array there first, and removes it afterwards
"""

import argparse
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

import fedraa as fl

FEATURES, CLASSES, CLIENTS = 1024, 10, 200
CENTRES = np.random.default_rng(0).standard_normal((CLASSES, FEATURES), np.float32)


def write(folder: Path, split: str, rows: int) -> None:
    """Noise around a centre for each class, some rows at a time; each client's rows are a run of them."""
    rng = np.random.default_rng(rows)
    np.save(folder / f"y_{split}.npy", y := rng.integers(0, CLASSES, rows))
    np.save(folder / f"clients_{split}.npy", np.arange(rows) * CLIENTS // rows)
    x = np.lib.format.open_memmap(folder / f"x_{split}.npy", "w+", np.float32, (rows, FEATURES))
    for start in range(0, rows, 2048):
        labels = y[start : start + 2048]
        x[start : start + 2048] = CENTRES[labels] / 10 + rng.standard_normal((len(labels), FEATURES), np.float32)


def main() -> None:
    flags = argparse.ArgumentParser(description=__doc__)
    flags.add_argument("--megabytes", type=int, default=3000)
    flags.add_argument("--updates", type=int, default=2 * CLIENTS)
    flags.add_argument("--engine", default="ray")
    given = flags.parse_args()
    with TemporaryDirectory(dir=".") as made:  # not in /tmp, which may itself be memory
        (folder := Path(made, "noise")).mkdir()
        write(folder, "train", given.megabytes * 10**6 // (4 * FEATURES))
        write(folder, "test", 5 * CLIENTS)
        workers = 2 if given.engine == "ray" else None
        experiment = fl.Experiment(local_epochs=1, updates=given.updates, engine=given.engine, workers=workers)
        history = fl.run(experiment, dataset=f"npy:{folder}")
    print(f"{given.megabytes} MB of {CLIENTS} clients: accuracy {history.evals['accuracy'].iloc[-1]:.1%}")


if __name__ == "__main__":
    main()
