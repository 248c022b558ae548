"""The best learning rate of each method, found with as many trials for each; then both with their own, at equal time.

python examples/tuning.py, after pip install 'optuna>=4'; started again it goes on where it was stopped
"""

import fedraa as fl

METHODS = ("fed-raa", "fedavg")


def main() -> None:
    setting = {"clients": 6, "partition": "dirichlet", "local_epochs": 1, "engine": "local"}
    tuned = fl.tune(
        METHODS,
        {"lr": (0.02, 0.5, "log"), "momentum": [0.0, 0.5]},
        trials=3,
        time=0.3,
        out="runs/tune",
        ended=lambda trial, count, total, left: print(f"{count} of {total}: {trial.method} {trial.values}"),
        **setting,
    )
    for method, values in tuned.terms.items():
        at_edge = ", ".join(tuned.at_edge[method])
        print(f"best of {method}: {dict(values)}" + (f"; {at_edge} at the edge of the space" if at_edge else ""))
    frame = fl.compare(METHODS, seeds=(0, 1), time=0.6, terms="tuned", tuned=tuned.file, **setting)
    print(frame.groupby("method")["accuracy"].agg(["mean", "std"]).round(3))


if __name__ == "__main__":
    main()
