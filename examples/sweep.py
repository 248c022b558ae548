"""A sweep: a run for each point of a grid, and a pandas table of all runs.

python examples/sweep.py    # If you start it again, it reads finished runs and resumes interrupted runs.
"""

from itertools import product
from pathlib import Path

import pandas as pd

import fedraa as fl

FOLDER = Path("runs/sweep")
GRID = {"lr": (0.02, 0.1), "staleness": ("constant", "polynomial"), "seed": (0, 1)}
FLEET = {"method": "fedasync", "clients": 8, "compute": "1:0.25,5:0.75", "time": 0.4, "engine": "local"}


def run_point(values: dict[str, object]) -> fl.History:
    out = FOLDER / "-".join(map(str, values.values()))
    if not out.exists():
        return fl.run(**FLEET, **values, out=out)
    if (out / "summary.json").exists():
        return fl.History(out)
    return fl.resume(out)


def main() -> None:
    rows = []
    for point in product(*GRID.values()):
        values = dict(zip(GRID, point, strict=True))
        history = run_point(values)
        accuracy = history.evals["accuracy"]
        staleness = history.summary["staleness_mean"]
        metrics = {"last": accuracy.iloc[-1], "mean over time": accuracy.mean(), "mean staleness": staleness}
        rows.append(values | metrics)
    frame = pd.DataFrame(rows)
    frame.to_csv(FOLDER / "sweep.csv", index=False)
    print(frame.groupby(["lr", "staleness"])[["last", "mean over time", "mean staleness"]].mean().round(3))


if __name__ == "__main__":
    main()
