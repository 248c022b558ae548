"""Regression on scikit-learn's bundled diabetes data: Fed-RAA against FedAvg at equal time.

python examples/regression.py
"""

import argparse

import numpy as np
from sklearn.datasets import load_diabetes

import fedraa as fl


def diabetes() -> fl.Dataset:
    """Return 442 patients with ten measurements each; the target is the progress of the disease, standardised."""
    x, y = load_diabetes(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(y))
    x, y = x[order], (y[order] - y.mean()) / y.std()
    return fl.Dataset("diabetes", x[:352], y[:352], x[352:], y[352:])


def main() -> None:
    flags = argparse.ArgumentParser(description=__doc__)
    flags.add_argument("--time", type=float, default=10.0)
    flags.add_argument("--clients", type=int, default=10)
    given = flags.parse_args()
    # each half learns all of it, at twice the scale: together they are the mean, not the sum
    halves = {"fragments": 2, "override": {"local.scale_activations": True}}
    for method, own in (("fed-raa", halves), ("fedavg", {})):
        experiment = fl.Experiment(
            method=method,
            objective="regression",
            hidden=(32,),
            clients=given.clients,
            lr=0.01,
            time=given.time,
            engine="local",
            **own,
        )
        last = fl.run(experiment, dataset=diabetes()).evals.iloc[-1]
        print(f"{method}: mse {last['mse']:.3f}, mae {last['mae']:.3f}, r2 {last['r2']:.3f} on unseen patients")


if __name__ == "__main__":
    main()
