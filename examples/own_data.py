"""Data of your own, with clients of their own: six sensors, each with its own gain and offset, and what they saw.

python examples/own_data.py; files, folders of images and tables are in docs/guides/data.md
"""

import numpy as np
import torch
from torch import Tensor

import fedraa as fl

CENTRES = np.random.default_rng(0).normal(size=(4, 12))


def sensor(number: int, count: int) -> tuple[np.ndarray, np.ndarray]:
    """What one sensor saw: samples [count, 12] and which of four things each was."""
    rng = np.random.default_rng([number, count])
    y = rng.integers(0, 4, count)
    x = CENTRES[y] + rng.normal(size=(count, 12))
    return ((1 + number / 10) * x + number / 5).astype(np.float32), y


def noisy(x: Tensor, rng: np.random.Generator) -> Tensor:
    """A transform: what becomes of samples [b, 12] each time that they are trained on, drawn from the run's seed."""
    return x + torch.from_numpy(0.1 * rng.normal(size=x.shape)).float()


def main() -> None:
    train = {f"sensor {n}": sensor(n, 60 + 40 * n) for n in range(6)}  # those of higher numbers saw more
    test = {f"sensor {n}": sensor(n, 50) for n in range(6)}
    data = fl.FederatedDataset.of_clients("sensors", train, None, test_of_clients=test, classes=4)
    for method in ("fed-raa", "fedavg"):
        experiment = fl.Experiment(method=method, hidden=(32,), transforms=(noisy,), time=2.0, engine="local")
        last = fl.run(experiment, dataset=data).evals.iloc[-1]
        print(f"{method}: accuracy {last['accuracy']:.1%}, of the worst sensor {last['client_worst']:.1%}")


if __name__ == "__main__":
    main()
