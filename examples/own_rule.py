"""A custom update rule of an asynchronous server, compared with the rule of FedAsync.

python examples/own_rule.py
cd examples && fedraa check own_rule:Shortened
"""

import numpy as np

import fedraa as fl


class Shortened(fl.AsyncRule):
    """The rule theta <- theta + a * delta. The weight a falls with the staleness, and is smaller for long deltas."""

    # `fedraa plan` and `fedraa check` show this description of the values that the rule keeps.
    keeps = "usual length per fragment"
    # The weights depend on the values of updates. `fedraa replay` cannot compute them, because the log has no values.
    needs_values = True

    def __init__(self, largest: float = 0.6) -> None:
        self.largest = largest

    def start(self, model):
        self.usual = [0.0] * model.fragments

    def apply_update(self, update, model):
        length = float(np.sqrt(np.sum(update.delta**2, dtype=np.float64)))
        usual = self.usual[update.fragment] or length
        self.usual[update.fragment] = 0.9 * usual + 0.1 * length
        weight = self.largest * min(1.0, usual / length) / (1 + update.staleness) ** 0.5
        model.params[update.where] += np.float32(weight) * update.delta
        return fl.ApplyResult(weight)


def main() -> None:
    unequal = {"clients": 8, "partition": "dirichlet", "dirichlet": 0.3, "time": 1.0, "engine": "local"}
    for name, own in (("fedasync", {}), ("custom", {"async_rule": Shortened(largest=0.8)})):
        history = fl.run(method="fedasync", **unequal, **own)
        last = history.evals.iloc[-1]
        weights = history.events["weight"].dropna()
        print(f"{name}: accuracy {last['accuracy']:.1%}, weights from {weights.min():.2f} to {weights.max():.2f}")


if __name__ == "__main__":
    main()
