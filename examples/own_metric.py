"""A custom metric in every evaluation, and a run that ends when the metric no longer improves.

python examples/own_metric.py
"""

from collections.abc import Mapping

from torch import Tensor

import fedraa as fl


class Top2(fl.Metric):
    """The share of samples whose class is among the two most likely classes. `values` returns 0 or 1 per sample."""

    name = "top2"

    def values(self, outputs: Tensor, labels: Tensor) -> Tensor:
        return (outputs.topk(2).indices == labels[:, None]).any(dim=1)


class PrintedEvaluations(fl.Callback):
    """A callback that prints each evaluation. It ends the run by returning True."""

    def on_eval(self, step: int, t: float, metrics: Mapping[str, float]) -> bool:
        print(f"step {step:3}: accuracy {metrics['accuracy']:.1%}, top 2 {metrics['top2']:.1%}")
        return metrics["top2"] > 0.995


def main() -> None:
    experiment = fl.Experiment(method="fed-raa", clients=8, metrics=(Top2(),), updates=400, engine="local")
    history = fl.run(
        experiment, callbacks=[PrintedEvaluations(), fl.EarlyStopping("top2", patience=3, min_delta=0.002)]
    )
    best = history.evals.loc[history.evals["top2"].idxmax()]
    print(f"{history.state} after {history.summary['steps']} of 400 updates; best top 2 at step {best['step']:.0f}")


if __name__ == "__main__":
    main()
