"""The best learning rate of each method, from equal numbers of trials, and both methods compared at equal time.

pip install 'optuna>=4'
python examples/tuning.py    # started again after an interruption, it continues
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
