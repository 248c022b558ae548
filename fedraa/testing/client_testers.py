"""Tests of client components, such as local optimizers. The tests use synthetic inputs."""

from collections.abc import Sequence
from copy import deepcopy
from functools import cache
from types import EllipsisType
from typing import Any, ClassVar

import numpy as np
import torch

from fedraa.client.gradient_transforms import StepContext
from fedraa.client.local_optimizer import OptimizerSteps
from fedraa.data import divide_samples
from fedraa.evaluation.metrics import make_metrics
from fedraa.messages import Update
from fedraa.models import build_model
from fedraa.submodels.assignment import Assignment
from fedraa.submodels.policies.policy import RoundContext, RunContext
from fedraa.submodels.traced import Traced
from fedraa.submodels.tracing.trace import trace_module
from fedraa.testing.tester import CLIENTS, COVERED, SIZE, Tester, draw_numbers, make_rng

PIECES = "same bits in pieces"
MOVES = "changes the weights"
SHARDS = 10


class PolicyTester(Tester):
    """A test of a submodel policy, which draws a submodel for every client in each round."""

    stateful = True
    state_fields: ClassVar[tuple[str, ...]] = ("_params", "_sampler")

    def __init__(self, part: Any, size: int = SIZE) -> None:
        super().__init__(deepcopy(part), size)
        self._params = draw_numbers(_trace_model().size, 0)
        self._run = RunContext(
            _trace_model(), CLIENTS, 3, self._params, _make_example(), durations=lambda: np.arange(1.0, 1 + CLIENTS)
        )
        # If a scheduler assigns the submodels, the policy has no sampler.
        self._sampler = None if self.part.scheduled else self.part.bind(self._run)

    def step(self, k: int) -> object:
        if self._sampler is None:
            with self.watch_arguments({}):
                return [[units.tobytes() for units in kept] for kept in self.part.submodels(_trace_model())]
        round, client = divmod(k, CLIENTS)
        with self.watch_arguments({"context.params": self._params}):
            drawn = self._sampler.draw(RoundContext(client, round, client, CLIENTS, float(k), self._params, self._run))
        trained = self._trained_coordinates(drawn)
        delta = np.full(len(trained), 0.01, np.float32)
        squares = np.abs(draw_numbers(len(self._params), 1, k))
        update = Update(k, client, drawn.label, round, delta, 1, 1.0, 0.0, {"squares": squares})
        self._sampler.receive(drawn, update, 1.0)
        if client == CLIENTS - 1:
            self._sampler.close(self._params, draw_numbers(len(self._params), 2, k), self._params != 0, 0.05)
        return drawn.label, drawn.submodel.widths, trained.tobytes()

    def _trained_coordinates(self, drawn: Assignment) -> Any:
        """Return the coordinates (parameters) that a client trains. Record a broken requirement if they are invalid."""
        size = len(self._params)
        length = size if drawn.submodel.index is None else len(drawn.submodel.index)
        if drawn.mask is not None and (drawn.mask.dtype != bool or drawn.mask.shape != (length,)):
            self.broken.setdefault(
                COVERED, f"draws a mask {drawn.mask.dtype} {drawn.mask.shape} for {length} coordinates; expected bool"
            )
            return np.arange(size)
        where = np.arange(size)[drawn.where]
        if len(np.unique(where)) != len(where):
            self.broken.setdefault(COVERED, "draws a coordinate twice")
        return where


def _make_example() -> torch.Tensor:
    return torch.from_numpy(draw_numbers(2 * 16, 9).reshape(2, 16))


@cache
def _trace_model() -> Traced:
    example = _make_example()
    return trace_module(build_model("mlp", example, SHARDS, hidden=(8, 8), dropout=0.0, seed=0), example)


class TermTester(Tester):
    """A test of a gradient transform. About half of the gradients and weights are masked, so they are 0."""

    pieces: ClassVar[bool] = True

    def step(self, k: int) -> object:
        # The size must be a multiple of 64, the size of the pieces below.
        size = 256
        mask = torch.from_numpy(make_rng(4, k).random(size) < 0.5)
        gradient, weights, received = (torch.from_numpy(draw_numbers(size, which, k)) * mask for which in (1, 2, 3))
        term = self.part.begin({})
        changed = gradient.clone()
        with self.watch_arguments({"context.weights": weights, "context.received": received}):
            term.apply(changed, StepContext(weights, received, ...))
        if not term.masked and changed[~mask].any():
            self.broken.setdefault(
                COVERED,
                "changes masked coordinates, although it sets masked = False; set masked = True, or do not change them",
            )
        if not term.whole and not torch.equal(changed, self._in_pieces(gradient, weights, received)):
            self.broken.setdefault(
                PIECES,
                "changes a gradient differently in pieces than as a whole; set whole = True if it needs the whole",
            )
        return changed.numpy().tobytes()

    def _in_pieces(self, gradient: torch.Tensor, weights: torch.Tensor, received: torch.Tensor) -> torch.Tensor:
        changed = gradient.clone()
        for start in range(0, len(changed), 64):
            piece = slice(start, start + 64)
            self.part.begin({}).apply(changed[piece], StepContext(weights[piece], received[piece], piece))
        return changed


class LocalOptimizerTester(Tester):
    """A test of a local optimizer with gradients and weights of which about half are masked to 0.

    Steps for two clients together must be equal to steps for each client. Steps on pieces of the parameters must be
    equal to steps on all parameters.
    """

    pieces: ClassVar[bool] = True
    further: Sequence[str] = (MOVES,)

    def step(self, k: int) -> object:
        # The size must be a multiple of 64, the size of the pieces below.
        size = 256
        mask = torch.from_numpy(make_rng(4, k).random((2, size)) < 0.5)
        weights = torch.from_numpy(draw_numbers(2 * size, 1, k).reshape(2, size)) * mask
        gradients = [torch.from_numpy(draw_numbers(2 * size, 2, k, n).reshape(2, size)) * mask for n in range(3)]
        with self.watch_arguments({}):
            trained = self._descend(weights, gradients, [...])
        if torch.equal(trained, weights):
            self.broken.setdefault(
                MOVES, "does not change the weights; change them in place, as weights.sub_(...) does"
            )
        if not torch.equal(trained[~mask], weights[~mask]):
            self.broken.setdefault(
                COVERED, "moves masked coordinates, whose weight, state and gradient are 0; leave them unchanged"
            )
        pieces = [slice(start, start + 64) for start in range(0, size, 64)]
        for row, together in enumerate(trained):
            own_gradients = [gradient[row] for gradient in gradients]
            if self.part.needs_whole_gradient:
                # Torch may round the norm of a matrix row in another way than the norm of a vector.
                if not torch.allclose(self._descend(weights[row], own_gradients, [...]), together):
                    self.broken.setdefault(
                        PIECES, "moves a client differently beside another one; take norms over the last dimension"
                    )
                continue
            whole = self._descend(weights[row], own_gradients, [...])
            in_pieces = self._descend(weights[row], own_gradients, pieces)
            if not (torch.equal(whole, together) and torch.equal(in_pieces, together)):
                self.broken.setdefault(
                    PIECES,
                    "moves a coordinate differently if the tensor holds other coordinates or clients; "
                    "compute each coordinate independently",
                )
        return trained.numpy().tobytes()

    def _descend(
        self, weights: torch.Tensor, gradients: list[torch.Tensor], pieces: Sequence[slice | EllipsisType]
    ) -> torch.Tensor:
        """Return the weights after one optimizer step per gradient. Each step updates the weights piece by piece.

        Args:
            weights: Weights [k] of one client, or [2, k] of two clients.
            gradients: The gradient of each step, in the shape of the weights.
            pieces: Slices of the weights [k], or `...` for the whole tensor.
        """
        trained = weights.clone()
        steps = OptimizerSteps(self.part, trained, {}, momentum=0.5, weight_decay=0.01, sizes=[weights.shape[-1]])
        for gradient in gradients:
            steps.begin_step()
            for piece in pieces:
                steps.descend(trained[piece], gradient[piece].clone(), piece, 0.05)
        return trained


class CompressorTester(Tester):
    """A test of a compressor with deltas of three sizes."""

    def step(self, k: int) -> object:
        size = (self.size, 1, 0)[k % 3]
        delta = torch.from_numpy(draw_numbers(size, 1, k))
        with self.watch_arguments({"delta": delta}):
            arrived = self.part.apply(delta, make_rng(2, k))
        if arrived.shape != delta.shape or arrived.dtype != delta.dtype:
            got = f"{arrived.dtype} {list(arrived.shape)}"
            self.broken.setdefault(
                COVERED, f"returns {got} for a delta {delta.dtype} {list(delta.shape)}; keep its type and shape"
            )
        return arrived.numpy().tobytes(), int(self.part.bytes(size))


class MetricTester(Tester):
    """A test of a metric with random outputs and labels."""

    covers: ClassVar[bool] = False

    def step(self, k: int) -> object:
        outputs = torch.from_numpy(draw_numbers(32 * SHARDS, 1, k).reshape(32, SHARDS))
        labels = torch.from_numpy(make_rng(2, k).integers(0, SHARDS, 32))
        (metric,) = make_metrics([self.part])
        with self.watch_arguments({}):
            return metric.values(outputs, labels).tobytes()


class PartitionerTester(Tester):
    """A test of a partitioner with random labels."""

    covers: ClassVar[bool] = False

    def step(self, k: int) -> object:
        train, test = make_rng(1, k).permutation(2000) % SHARDS, np.arange(100) % SHARDS
        train, test = train.astype(np.int64), test.astype(np.int64)
        with self.watch_arguments({"labels": train}):
            dealt = divide_samples(self.part, train, test, SHARDS, seed=k)
        return [array.tobytes() for array in (*dealt.train, *dealt.test)]
