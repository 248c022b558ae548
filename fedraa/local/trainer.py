"""The one local training loop: momentum SGD on a dense submodel held in one flat buffer."""

import time
from collections import OrderedDict, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import chain
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from fedraa.local.adversary import Adversary
from fedraa.local.body import PADDING, Body, Stack
from fedraa.local.descent import Descent
from fedraa.local.scale import scale_readers
from fedraa.local.solver import Solver
from fedraa.local.split import SplitBody
from fedraa.messages import Task, Update
from fedraa.models import set_scaler_rate
from fedraa.streams import generator, torch_seed
from fedraa.submodels import Traced, hollow, trainable

FULL_BATCH = 1024  # minibatch of the full-batch gradient: a matter of memory, not of the result
RESIDENT_BYTES = 2 * 2**30  # of shards that a trainer keeps on a GPU
BY_PIECE = 2**19  # numbers in a submodel, about what a core's cache holds, from which descent goes by parameter

Shard = tuple[Tensor, Tensor]


class Work(NamedTuple):
    """A task, and the client's shard x [n, ...], y [n]."""

    task: Task
    x: npt.NDArray[np.generic]
    y: npt.NDArray[np.int64]


class Trainer:
    """Trains tasks one after another; holds no client's state, only one module per submodel shape.

    The weights of all these modules are in one buffer, their gradients in another, as large as the largest needs.

    A result depends on the task, the shard and the seed alone, never on what was trained before: optimiser
    buffers start at zero for each task, minibatches and dropout are drawn from (seed, client, turn).

    On a GPU whole shards are kept on the device, those used last, up to `resident_bytes` (None: `RESIDENT_BYTES` on a
    GPU, 0 elsewhere): then a client must always come with the same shard. With `bf16` the forward pass is computed in
    bfloat16 where torch's autocast allows it; weights, gradients and updates stay float32.

    With `stack` > 1, up to so many tasks of the same shape are trained at once; what comes out is not bit for bit what
    it is without, but still depends on task, shard and seed alone.
    """

    def __init__(
        self,
        traced: Traced,
        solver: Solver,
        *,
        seed: int,
        device: str = "cpu",
        fragment_scale: bool = False,
        bf16: bool = False,
        resident_bytes: int | None = None,
        stack: int = 1,
    ) -> None:
        self._traced = traced
        self._solver = solver
        self._seed = seed
        self._device = torch.device(device)
        self._fragment_scale = fragment_scale
        self._bf16 = bf16
        self._height = stack
        self._stacks: dict[tuple[int, ...], Stack] = {}
        self._bodies: dict[tuple[int, ...], Body] = {}
        self._weights = self._gradient = torch.empty(0, device=self._device)
        if resident_bytes is None:
            resident_bytes = RESIDENT_BYTES if self._device.type == "cuda" else 0
        self._resident_bytes, self._held = resident_bytes, 0
        self._resident: OrderedDict[int, Shard] = OrderedDict()

    def train(self, task: Task, x: npt.NDArray[np.generic], y: npt.NDArray[np.int64]) -> Update:
        """Train the task's submodel on the client's shard x [n, ...], y [n]."""
        started = time.perf_counter()
        self._seed_dropout(task)
        body = self._body(task.widths)
        descent = Descent(self._solver, body, task, [y], self._device, bf16=self._bf16)
        extras: dict[str, Tensor] = {}
        if self._solver.full_gradient:
            extras["gradient"] = self._full_gradient(descent, x, y)
        if self._solver.adversary:
            descent.adversary = Adversary(self._tensor(task.extras["adversary"]), torch.Size(x.shape[1:]))
        total = torch.zeros((), device=self._device)
        steps = 0
        for inputs, labels in self._minibatches(task, x, y):
            total += descent.step(inputs, labels)
            steps += 1
        descent.compress()
        if descent.squares is not None:
            extras["squares"] = descent.squares
        if descent.adversary is not None:
            extras["adversary"] = descent.adversary.state.detach()
        del descent  # its buffers, before the weights are copied
        return Update(
            task=task.id,
            client=task.client,
            fragment=task.fragment,
            version=task.version,
            params=body.weights.cpu().numpy().copy(),
            steps=steps,
            loss=float(total) / steps,
            seconds=time.perf_counter() - started,
            extras={name: tensor.cpu().numpy() for name, tensor in extras.items()},
        )

    def train_stacked(self, work: Sequence[Work]) -> list[Update]:
        """Train all of this, of what has the same shape as much at once as a stack holds."""
        updates: dict[int, Update] = {}
        alike: dict[object, list[int]] = defaultdict(list)
        for number, one in enumerate(work):
            alike[self._shape(one)].append(number)
        for numbers in alike.values():
            for start in range(0, len(numbers), self._height):
                some = numbers[start : start + self._height]
                updates |= zip(some, self._train_stack([work[number] for number in some]), strict=True)
        return [updates[number] for number in range(len(work))]

    def _shape(self, work: Work) -> object:
        """What tasks of one stack have in common."""
        task = work.task
        return task.widths, self._batch_rows(len(work.y)), task.lr, task.mask is None, tuple(task.extras)

    def _batch_rows(self, samples: int) -> int:
        """The rows of a minibatch in a stack: the first power of two that takes a shard of so many, or a minibatch."""
        return min(self._solver.batch_size, 1 << (samples - 1).bit_length())

    def _train_stack(self, work: Sequence[Work]) -> list[Update]:
        started = time.perf_counter()
        filled = [*work, *[work[0]] * (self._height - len(work))]
        stack = self._stack(work[0].task.widths)
        whole, labels = stacked([one.task for one in filled]), [one.y for one in filled]
        descent = Descent(self._solver, stack, whole, labels, self._device, bf16=self._bf16)
        totals = torch.zeros(self._height, device=self._device)
        steps = [self._solver.batches(len(one.y)) for one in work]
        trained: dict[int, Update] = {}
        for step, batch in enumerate(self._stacked_minibatches(work), 1):
            totals += descent.step(*batch)
            for row in (row for row, last in enumerate(steps) if last == step):
                task = work[row].task
                descent.compress(row)
                squares = {} if descent.squares is None else {"squares": descent.squares[row].cpu().numpy().copy()}
                trained[row] = Update(
                    task=task.id,
                    client=task.client,
                    fragment=task.fragment,
                    version=task.version,
                    params=stack.weights[row].cpu().numpy().copy(),
                    steps=step,
                    loss=float(totals[row]) / step,
                    seconds=0.0,
                    extras=squares,
                )
        seconds = (time.perf_counter() - started) / len(work)
        return [replace(trained[row], seconds=seconds) for row in range(len(work))]

    def _stacked_minibatches(self, work: Sequence[Work]) -> Iterator[tuple[Tensor, Tensor]]:
        """Minibatches [height, b, ...] and their labels, PADDING where a shard has no more samples or steps.

        All shards and the order of their samples go to the device first.
        """
        most, width = max(len(one.y) for one in work), self._batch_rows(len(work[0].y))
        steps = max(self._solver.batches(len(one.y)) for one in work)
        x = np.zeros((self._height, most + 1, *work[0].x.shape[1:]), work[0].x.dtype)
        y = np.full((self._height, most + 1), PADDING)
        orders = np.full((steps, self._height, width), most)  # the row of no sample
        for row, one in enumerate(work):
            x[row, : len(one.y)], y[row, : len(one.y)] = one.x, one.y
            batches = chain.from_iterable(self._epochs(one.task, len(one.y)))
            for step, chosen in enumerate(batches):
                orders[step, row, : len(chosen)] = chosen
        inputs, labels, orders_there = self._tensor(x), self._tensor(y), self._tensor(orders)
        rows = torch.arange(self._height, device=self._device)[:, None]
        for chosen_there in orders_there:
            yield inputs[rows, chosen_there], labels[rows, chosen_there]

    def _seed_dropout(self, task: Task) -> None:
        """Seeds the one generator that is drawn from: torch.manual_seed asks for a traceback per kind of device."""
        seed = torch_seed(self._seed, "dropout", task.client, task.turn)
        if self._device.type == "cuda":
            torch.cuda.manual_seed(seed)
        else:
            torch.default_generator.manual_seed(seed)

    def _full_gradient(self, descent: "Descent", x: npt.NDArray[np.generic], y: npt.NDArray[np.int64]) -> Tensor:
        """The gradient of the mean loss over the whole shard, with weight decay, at the received weights [k]."""
        total = torch.zeros_like(descent.body.weights)
        for start in range(0, len(y), FULL_BATCH):
            rows = np.arange(start, min(start + FULL_BATCH, len(y)))
            inputs, labels = self._batch(x, y, rows)
            descent.body.backward(descent.loss(inputs, labels))
            total.add_(descent.body.gradient, alpha=len(rows) / len(y))
        return total.add_(descent.body.weights, alpha=self._solver.weight_decay)

    def _minibatches(
        self, task: Task, x: npt.NDArray[np.generic], y: npt.NDArray[np.int64]
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """The task's minibatches, from the device if its shard is there."""
        shard = self._on_device(task.client, x, y)
        for batches in self._epochs(task, len(y)):
            if shard is None:
                yield from (self._batch(x, y, order) for order in batches)
            else:
                rows = self._tensor(np.concatenate(batches))
                for start in range(0, len(rows), self._solver.batch_size):
                    chosen = rows[start : start + self._solver.batch_size]
                    yield shard[0].index_select(0, chosen), shard[1].index_select(0, chosen)

    def _epochs(self, task: Task, samples: int) -> Iterator[list[npt.NDArray[np.int64]]]:
        """The samples of each minibatch: a new permutation per epoch; the last of an epoch may be smaller."""
        rng = generator(self._seed, "batches", task.client, task.turn)
        size, left = self._solver.batch_size, self._solver.batches(samples)
        while left > 0:
            order = rng.permutation(samples)
            yield [order[start : start + size] for start in range(0, samples, size)[:left]]
            left -= -(-samples // size)

    def _on_device(self, client: int, x: npt.NDArray[np.generic], y: npt.NDArray[np.int64]) -> Shard | None:
        """The client's shard on the device; None if it is not kept there. The longest unused make room."""
        size = x.nbytes + y.nbytes
        if client in self._resident:
            self._resident.move_to_end(client)
        elif size > self._resident_bytes:
            return None
        else:
            while self._held + size > self._resident_bytes:
                _, dropped = self._resident.popitem(last=False)
                self._held -= sum(tensor.nbytes for tensor in dropped)
            # torch.tensor copies: on a CPU a view of the object store would be kept alive
            self._resident[client] = (torch.tensor(x, device=self._device), torch.tensor(y, device=self._device))
            self._held += size
        return self._resident[client]

    def _batch(
        self, x: npt.NDArray[np.generic], y: npt.NDArray[np.int64], rows: npt.NDArray[np.int64]
    ) -> tuple[Tensor, Tensor]:
        return self._tensor(x.take(rows, axis=0)), self._tensor(y.take(rows))

    def _tensor(self, array: npt.NDArray[np.generic]) -> Tensor:
        return torch.from_numpy(array).to(self._device)

    def _module(self, widths: tuple[int, ...]) -> nn.Module:
        """A submodel of this shape, without weights."""
        module = self._traced.skeleton(widths)
        hollow(module)
        set_scaler_rate(module, rate(self._traced, widths))
        if self._fragment_scale:
            scale_readers(module, self._traced, widths)
        return SplitBody(module, self._solver.split) if self._solver.split else module

    def _stack(self, widths: tuple[int, ...]) -> Stack:
        if widths not in self._stacks:
            self._stacks[widths] = Stack(self._module(widths), self._height, self._device)
        return self._stacks[widths]

    def _body(self, widths: tuple[int, ...]) -> Body:
        if widths not in self._bodies:
            module = self._module(widths)
            size = sum(parameter.numel() for parameter in trainable(module))
            held = 0 if size >= BY_PIECE and not self._solver.needs_whole_gradient else size
            sizes = max(size, len(self._weights)), max(held, len(self._gradient))
            if sizes != (len(self._weights), len(self._gradient)):
                self._bodies.clear()  # the old buffers go before the new come
                self._weights = self._gradient = torch.empty(0)
                self._weights, self._gradient = (torch.empty(length, device=self._device) for length in sizes)
            self._bodies[widths] = Body(module, self._weights[:size], self._gradient[:size] if held else None)
        return self._bodies[widths]


def rate(traced: Traced, widths: tuple[int, ...]) -> float:
    """The width share of a cut: mean over the groups, as HeteroFL's model rate where all are cut alike."""
    shares = [kept / group.size for kept, group in zip(widths, traced.groups, strict=True)]
    return sum(shares) / len(shares) if shares else 1.0


def stacked(tasks: Sequence[Task]) -> Task:
    """Tasks of one shape as one whose buffers are [height, k]."""
    masks = [task.mask for task in tasks if task.mask is not None]
    return replace(
        tasks[0],
        params=np.stack([task.params for task in tasks]),
        mask=np.stack(masks) if masks else None,
        extras={name: np.stack([task.extras[name] for task in tasks]) for name in tasks[0].extras},
    )
