"""Find the best learning rate and momentum of two methods with the same number of trials, then compare the methods.

pip install 'optuna>=4'
python examples/tuning.py    # If you start it again after an interruption, it continues.
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
        print(f"best of {method}: {dict(values)}")
        if tuned.at_edge[method]:
            print(f"  at the edge of the space: {', '.join(tuned.at_edge[method])}")
    frame = fl.compare(METHODS, seeds=(0, 1), time=0.6, terms="tuned", tuned=tuned.file, **setting)
    print(frame.groupby("method")["accuracy"].agg(["mean", "std"]).round(3))


if __name__ == "__main__":
    main()
