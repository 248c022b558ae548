"""The one local training loop: momentum SGD on a dense submodel held in one flat buffer."""

import time
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedraa.local.scale import scale_readers
from fedraa.local.solver import Solver
from fedraa.messages import Task, Update
from fedraa.streams import generator, torch_seed
from fedraa.submodels import Traced

EPSILON = 1e-12  # guards SAM's division by the gradient norm


@dataclass(frozen=True, eq=False)
class Body:
    """A dense submodel whose parameters and gradients are views of flat buffers [k]."""

    module: nn.Module
    weights: Tensor
    gradient: Tensor

    @classmethod
    def of(cls, module: nn.Module, device: torch.device) -> "Body":
        module = module.to(device).train()
        parameters = [parameter for parameter in module.parameters() if parameter.requires_grad]
        weights = torch.cat([parameter.detach().reshape(-1) for parameter in parameters])
        gradient = torch.zeros_like(weights)
        start = 0
        for parameter in parameters:
            end = start + parameter.numel()
            parameter.data = weights[start:end].view(parameter.shape)
            parameter.grad = gradient[start:end].view(parameter.shape)
            start = end
        return cls(module, weights, gradient)


class Trainer:
    """Trains tasks one after another; holds no client's state, only one module per submodel shape.

    A result depends on the task, the shard and the seed alone, never on what was trained before: optimiser
    buffers start at zero for each task, minibatches and dropout are drawn from (seed, client, turn).
    """

    def __init__(
        self,
        traced: Traced,
        solver: Solver,
        *,
        seed: int,
        device: str = "cpu",
        fragment_scale: bool = False,
    ) -> None:
        self._traced = traced
        self._solver = solver
        self._seed = seed
        self._device = torch.device(device)
        self._fragment_scale = fragment_scale
        self._bodies: dict[tuple[int, ...], Body] = {}

    def train(self, task: Task, x: npt.NDArray[np.generic], y: npt.NDArray[np.int64]) -> Update:
        """Train the task's submodel on the client's shard x [n, ...], y [n]."""
        started = time.perf_counter()
        solver, body = self._solver, self._body(task.widths)
        w, g = body.weights, body.gradient
        anchor = torch.tensor(task.params, device=self._device)
        w.copy_(anchor)
        velocity = torch.zeros_like(w) if solver.momentum else None
        total = torch.zeros((), device=self._device)
        steps = 0
        torch.manual_seed(torch_seed(self._seed, "dropout", task.client, task.turn))
        for inputs, labels in self._minibatches(task, x, y):
            total += self._loss_gradient(body, inputs, labels)
            if solver.proximal:
                g.add_(w, alpha=solver.proximal).sub_(anchor, alpha=solver.proximal)
            if velocity is None:
                w.sub_(g, alpha=task.lr)
            else:
                w.sub_(velocity.mul_(solver.momentum).add_(g), alpha=task.lr)
            steps += 1
        return Update(
            task=task.id,
            client=task.client,
            fragment=task.fragment,
            version=task.version,
            params=w.cpu().numpy().copy(),
            steps=steps,
            loss=float(total) / steps,
            seconds=time.perf_counter() - started,
        )

    def _loss_gradient(self, body: Body, inputs: Tensor, labels: Tensor) -> Tensor:
        """Leaves the (SAM) gradient in body.gradient; returns the loss at the unperturbed weights.

        SAM: the gradient at w + rho g/||g||, one norm over all trained coordinates of the client (FedSAM
        eq. 4; the sign() factor of its eq. 3 is in no later equation), same minibatch for both passes.
        """
        loss = _backward(body, inputs, labels)
        if self._solver.sam:
            w, g = body.weights, body.gradient
            unperturbed = w.clone()
            w.add_(g.mul_(self._solver.sam / (torch.linalg.vector_norm(g) + EPSILON)))
            _backward(body, inputs, labels)
            w.copy_(unperturbed)
        return loss

    def _minibatches(
        self, task: Task, x: npt.NDArray[np.generic], y: npt.NDArray[np.int64]
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Minibatches of a new permutation per epoch; the last of an epoch may be smaller."""
        rng = generator(self._seed, "batches", task.client, task.turn)
        size, left = self._solver.batch_size, self._solver.batches(len(y))
        while left > 0:
            order = rng.permutation(len(y))
            for start in range(0, len(y), size)[:left]:
                rows = order[start : start + size]
                yield (
                    torch.from_numpy(x.take(rows, axis=0)).to(self._device),
                    torch.from_numpy(y.take(rows)).to(self._device),
                )
            left -= -(-len(y) // size)

    def _body(self, widths: tuple[int, ...]) -> Body:
        if widths not in self._bodies:
            module = self._traced.skeleton(widths)
            if self._fragment_scale:
                scale_readers(module, self._traced, widths)
            self._bodies[widths] = Body.of(module, self._device)
        return self._bodies[widths]


def _backward(body: Body, inputs: Tensor, labels: Tensor) -> Tensor:
    body.gradient.zero_()
    loss = F.cross_entropy(body.module(inputs), labels)
    loss.backward()  # type: ignore[no-untyped-call]  # torch leaves Tensor.backward untyped
    return loss.detach()
