"""A sweep: a run for each value of a grid, and all of them as one table of pandas.

python examples/sweep.py; runs that are there are read, one that was interrupted goes on, so it can be started again
"""

from itertools import product
from pathlib import Path

import pandas as pd

import fedraa as fl

FOLDER = Path("runs/sweep")
GRID = {"lr": (0.02, 0.1), "staleness": ("constant", "polynomial"), "seed": (0, 1)}
FLEET = {"method": "fedasync", "clients": 8, "compute": "1:0.25,5:0.75", "time": 0.4, "engine": "local"}


def run(values: dict[str, object]) -> fl.History:
    out = FOLDER / "-".join(map(str, values.values()))
    if not out.exists():
        return fl.run(**FLEET, **values, out=out)
    ended = (out / "summary.json").exists()
    return fl.History(out) if ended else fl.resume(out)


def main() -> None:
    rows = []
    for point in product(*GRID.values()):
        values = dict(zip(GRID, point, strict=True))
        history = run(values)
        accuracy, late = history.evals["accuracy"], history.summary["staleness_mean"]
        rows.append(values | {"last": accuracy.iloc[-1], "mean over time": accuracy.mean(), "mean staleness": late})
    frame = pd.DataFrame(rows)
    frame.to_csv(FOLDER / "sweep.csv", index=False)
    print(frame.groupby(["lr", "staleness"])[["last", "mean over time", "mean staleness"]].mean().round(3))


if __name__ == "__main__":
    main()
