"""Clients with the losses 0.5 (output - t_i)^2 of models with one or two numbers, whose steps are computed by hand."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from tiny import Stepped
from torch import Tensor, nn

import fedraa as fl
from fedraa.engine.build import build_run
from fedraa.messages import Vector


class HalfSquare(fl.Objective):
    """0.5 (output - target)^2."""

    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return 0.5 * (outputs.squeeze(1) - targets) ** 2


class Point(nn.Module):
    """A model whose output is its parameter `w`."""

    def __init__(self, start: float = 0.0) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.tensor([start]))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.w


class Pair(nn.Module):
    """A model whose output is the sum of the parameters of `body` and `head`."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = Point(), Point()

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = self.body(x) + self.head(x)
        return output


@dataclass(frozen=True)
class InOrder(fl.Partitioner):
    """A partition in the order of the samples: the first samples for the first client, and so on."""

    sizes: tuple[int, ...]

    def assign(self, labels: Any, clients: int, rng: np.random.Generator) -> list[Any]:
        return np.split(np.arange(sum(self.sizes)), np.cumsum(self.sizes)[:-1])


def quadratic(
    method: str,
    targets: tuple[float, ...],
    sizes: tuple[int, ...] | None = None,
    model: nn.Module | None = None,
    **fields: Any,
) -> Stepped:
    """Return a run of full gradients with the learning rate 0.1, in which client i has `sizes[i]` samples."""
    sizes = sizes or (1,) * len(targets)
    y = np.repeat(targets, sizes)
    x = np.ones((len(y), 1), np.float32)
    common: dict[str, Any] = {"lr": 0.1, "momentum": 0.0, "batch_size": 4, "engine": "local", "standardise": False}
    common |= {"clients": len(targets), "partition": InOrder(sizes), "objective": HalfSquare()}
    dataset = fl.Dataset("quadratic", x, y, x, y)
    run = build_run(fl.Experiment(method=method, **(common | fields)), dataset=dataset, model=model or Point())
    return Stepped(run)


def train_round(stepped: Stepped) -> list[Vector]:
    """Return the trained weights of each client of a round, after the server has received them."""
    tasks = [stepped.server.assign(client, 0.0) for client in stepped.server.begin()]
    updates = [stepped.train(task) for task in tasks]
    for update in updates:
        stepped.server.commit(update, 1.0)
    return [update.params for update in updates]


def kept(stepped: Stepped, name: str) -> Vector:
    """Return the values [n, size] that clients keep, a row for each of the n clients that have trained."""
    states = stepped.server.task_table.client_states
    rows: Vector = states.copy_rows(range(stepped.run.experiment.client_count))[f"kept_{name}"]
    return rows


def close(got: Any, expected: Any) -> None:
    np.testing.assert_allclose(got, expected, rtol=2e-6, atol=1e-7)
