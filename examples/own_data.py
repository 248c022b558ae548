"""Your data with your clients: six sensors are the clients. Their samples differ in gain and offset.

python examples/own_data.py    # for files, folders of images and tables, see docs/guides/data.md
"""

import numpy as np
import torch
from torch import Tensor

import fedraa as fl

CENTRES = np.random.default_rng(0).normal(size=(4, 12))


def record_samples(number: int, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Return a sensor's samples [count, 12] and their labels, one of four classes."""
    rng = np.random.default_rng([number, count])
    y = rng.integers(0, 4, count)
    x = CENTRES[y] + rng.normal(size=(count, 12))
    return ((1 + number / 10) * x + number / 5).astype(np.float32), y


def add_noise(x: Tensor, rng: np.random.Generator) -> Tensor:
    """Transform samples [b, 12] before each training step; the noise depends on the run's seed."""
    return x + torch.from_numpy(0.1 * rng.normal(size=x.shape)).float()


def main() -> None:
    # Sensors with higher numbers have more samples.
    train = {f"sensor {n}": record_samples(n, 60 + 40 * n) for n in range(6)}
    test = {f"sensor {n}": record_samples(n, 50) for n in range(6)}
    data = fl.FederatedDataset.of_clients("sensors", train, test_of_clients=test, classes=4)
    for method in ("fed-raa", "fedavg"):
        experiment = fl.Experiment(method=method, hidden=(32,), transforms=(add_noise,), time=2.0, engine="local")
        last = fl.run(experiment, dataset=data).evals.iloc[-1]
        print(f"{method}: accuracy {last['accuracy']:.1%}, of the worst sensor {last['client_worst']:.1%}")


if __name__ == "__main__":
    main()
