"""Fed-RAA and FedAvg train a regression model on scikit-learn's diabetes data for the same virtual time.

python examples/regression.py
"""

import argparse

import numpy as np
from sklearn.datasets import load_diabetes

import fedraa as fl


def load_patients() -> fl.Dataset:
    """Return ten measurements of 442 patients; the target is the standardised progress of the disease."""
    x, y = load_diabetes(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(y))
    x, y = x[order], (y[order] - y.mean()) / y.std()
    return fl.Dataset("diabetes", x[:352], y[:352], x[352:], y[352:])


def main() -> None:
    flags = argparse.ArgumentParser(description=__doc__)
    flags.add_argument("--time", type=float, default=10.0)
    flags.add_argument("--clients", type=int, default=10)
    options = flags.parse_args()
    # Each fragment learns the whole task. With this scaling, the full model's output is the mean of their outputs.
    halves = {"fragments": 2, "override": {"local.scale_activations": True}}
    for method, own in (("fed-raa", halves), ("fedavg", {})):
        experiment = fl.Experiment(
            method=method,
            objective="regression",
            hidden=(32,),
            clients=options.clients,
            lr=0.01,
            time=options.time,
            engine="local",
            **own,
        )
        last = fl.run(experiment, dataset=load_patients()).evals.iloc[-1]
        print(f"{method}: mse {last['mse']:.3f}, mae {last['mae']:.3f}, r2 {last['r2']:.3f} on unseen patients")


if __name__ == "__main__":
    main()
