"""Fed-RAA on a memory-mapped array of 3 GB on disk, from which two workers on Ray read one client at a time.

python examples/larger_than_memory.py    # in a folder with 3 GB of free space, where it writes and removes the array
"""

import argparse
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

import fedraa as fl

FEATURES, CLASSES, CLIENTS = 1024, 10, 200
CENTRES = np.random.default_rng(0).standard_normal((CLASSES, FEATURES), np.float32)


def write_split(folder: Path, split: str, rows: int) -> None:
    """Write noise around the centre of each class, 2048 rows at a time. The rows of a client are consecutive."""
    rng = np.random.default_rng(rows)
    y = rng.integers(0, CLASSES, rows)
    np.save(folder / f"y_{split}.npy", y)
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
    options = flags.parse_args()
    # The array is written below the current folder, because /tmp may be in memory.
    with TemporaryDirectory(dir=".") as parent:
        folder = Path(parent, "noise")
        folder.mkdir()
        write_split(folder, "train", options.megabytes * 10**6 // (4 * FEATURES))
        write_split(folder, "test", 5 * CLIENTS)
        workers = {"ray": 2}.get(options.engine)
        experiment = fl.Experiment(local_epochs=1, updates=options.updates, engine=options.engine, workers=workers)
        history = fl.run(experiment, dataset=f"npy:{folder}")
    print(f"{options.megabytes} MB of {CLIENTS} clients: accuracy {history.evals['accuracy'].iloc[-1]:.1%}")


if __name__ == "__main__":
    main()
