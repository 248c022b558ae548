"""Training of several tasks in one batched computation.

On a GPU this is faster than training one task after another, because it launches fewer kernels.
"""

import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedraa.client.flat_module import PADDING, BatchedModule
from fedraa.client.halfway_cosine import HalfwayCosine
from fedraa.client.local_step import LocalStep
from fedraa.client.local_training import LocalTraining
from fedraa.client.lr_schedule import follows_length
from fedraa.client.trainer import Trainer, Work
from fedraa.messages import Task, Update
from fedraa.submodels import Traced
from fedraa.submodels.flat import copy_to_numpy


class BatchedTrainer(Trainer):
    """A trainer that trains up to `stack` tasks with the same submodel shape at the same time.

    These tasks form a stack, with one row per task. Stacks and minibatches are padded, so that a task's result does not
    depend on the other tasks of its stack. Results differ from results of `Trainer` by rounding.
    """

    def __init__(self, traced: Traced, local: LocalTraining, stack: int, **options: Any) -> None:
        """Create the trainer.

        Args:
            traced: The traced model.
            local: The settings of local training.
            stack: Maximum number of tasks that are trained at the same time.
            options: Other arguments of `Trainer`.
        """
        super().__init__(traced, local, **options)
        self._height = stack
        self._stacks: dict[tuple[int, ...], BatchedModule] = {}

    def train_all(self, work: Sequence[Work]) -> list[Update]:
        """Train all tasks. Return their updates in the order of `work`."""
        updates: dict[int, Update] = {}
        alike: dict[object, list[int]] = defaultdict(list)
        for number, one in enumerate(work):
            alike[self._stack_key(one)].append(number)
        for numbers in alike.values():
            for start in range(0, len(numbers), self._height):
                stack = numbers[start : start + self._height]
                updates |= zip(stack, self._train_stack([work[number] for number in stack]), strict=True)
        return [updates[number] for number in range(len(work))]

    def reset(self) -> None:
        super().reset()
        self._stacks.clear()

    def _stack_key(self, work: Work) -> object:
        """Return a key that is equal for tasks that can be trained in one stack."""
        task = work.task
        length = None
        if follows_length(self._local.lr_schedule):
            length = self._count_steps(task, len(work.y))
        masking = (task.mask is None, task.keeps_rest)
        return task.widths, self._batch_rows(len(work.y)), task.lr, masking, tuple(task.extras), length

    def _batch_rows(self, samples: int) -> int:
        """Return the padded minibatch size: a power of two, but at most the size of the largest minibatch."""
        return min(self._local.batch_size + self._local.min_batch - 1, 1 << (samples - 1).bit_length())

    def _train_stack(self, work: Sequence[Work]) -> list[Update]:
        started = time.perf_counter()
        for one in work:
            self._refuse_too_few_samples(len(one.y))
        filled = [*work, *[work[0]] * (self._height - len(work))]
        stack = self._stack_for_widths(work[0].task.widths)
        whole = stack_tasks([one.task for one in filled])
        labels = [one.y for one in filled]
        steps = [self._count_steps(one.task, len(one.y)) for one in work]
        local_step = LocalStep(
            self._local, self._components, stack, whole, labels, self._device, steps=steps[0], bf16=self._bf16
        )
        totals = torch.zeros(self._height, device=self._device)
        halfway, received = None, None
        if self._target_cosine is not None:
            halfway = HalfwayCosine(steps, self._target_cosine, stack.module)
            received = local_step.received_buffer(whole.params)
        trained: dict[int, Update] = {}
        for step, batch in enumerate(self._stacked_minibatches(work), 1):
            totals += local_step.step(*batch)
            if halfway is not None:
                halfway.record(step, stack.weights)
            for row, last in enumerate(steps):
                if last != step:
                    continue
                task = work[row].task
                cosine = None
                if halfway is not None and received is not None:
                    cosine = halfway.compute(received, stack.weights, row, local_step.embeddings)
                extras = self._compress_update(local_step, task, row)
                extras |= local_step.optimizer_state(row)
                if local_step.squares is not None:
                    extras["squares"] = local_step.squares[row]
                trained[row] = Update(
                    task=task.id,
                    client=task.client,
                    fragment=task.fragment,
                    version=task.version,
                    params=copy_to_numpy(stack.weights[row]),
                    steps=step,
                    loss=float(totals[row]) / step,
                    seconds=0.0,
                    extras={name: copy_to_numpy(buffer) for name, buffer in extras.items()},
                    cosine=cosine,
                )
        seconds = (time.perf_counter() - started) / len(work)
        return [replace(trained[row], seconds=seconds) for row in range(len(work))]

    def _stacked_minibatches(self, work: Sequence[Work]) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield the inputs [rows, b, ...] and labels [rows, b] of each step of a stack.

        The label is PADDING if a client has no more samples or steps.
        """
        longest = max(len(one.y) for one in work)
        width = self._batch_rows(len(work[0].y))
        steps = max(self._count_steps(one.task, len(one.y)) for one in work)
        x = np.zeros((self._height, longest + 1, *work[0].x.shape[1:]), work[0].x.dtype)
        y = np.full((self._height, longest + 1), PADDING)
        # Row `longest` of x and y is padding. A minibatch with fewer than `width` samples is filled with this row.
        orders = np.full((steps, self._height, width), longest)
        new_epochs: dict[int, list[tuple[int, int]]] = defaultdict(list)
        for row, one in enumerate(work):
            x[row, : len(one.y)] = one.x
            y[row, : len(one.y)] = one.y
            step = 0
            for epoch, batches in enumerate(self._iter_epochs(one.task, len(one.y))):
                new_epochs[step].append((row, epoch))
                for chosen in batches:
                    orders[step, row, : len(chosen)] = chosen
                    step += 1
        inputs, labels, device_orders = (self._to_tensor(array) for array in (x, y, orders))
        rows = torch.arange(self._height, device=self._device)[:, None]
        augment = [self._transforms.make_augmentation(one.task.client, one.task.turn) for one in work]
        for step, order in enumerate(device_orders):
            for row, epoch in new_epochs[step]:
                read_epoch = work[row].read_epoch
                if epoch and read_epoch is not None:
                    new_x, new_y = read_epoch(epoch)
                    inputs[row, : len(new_y)] = self._to_tensor(new_x)
                    labels[row, : len(new_y)] = self._to_tensor(new_y)
            batch = inputs[rows, order]
            if self._transforms:
                counts = (orders[step] != longest).sum(axis=1).tolist()
                for row, samples in enumerate(counts[: len(work)]):
                    if samples:
                        batch[row, :samples] = augment[row](batch[row, :samples])
            yield batch, labels[rows, order]

    def _stack_for_widths(self, widths: tuple[int, ...]) -> BatchedModule:
        if widths not in self._stacks:
            self._stacks[widths] = BatchedModule(self._make_module(widths), self._height, self._device)
        return self._stacks[widths]


def stack_tasks(tasks: Sequence[Task]) -> Task:
    """Return one task whose arrays [n, k] hold the arrays [k] of n tasks with the same submodel shape."""
    masks = [task.mask for task in tasks if task.mask is not None]
    mask = np.stack(masks) if masks else None
    return replace(
        tasks[0],
        buffer=np.stack([task.params for task in tasks]),
        mask=mask,
        extras={name: np.stack([task.extra_values(name) for task in tasks]) for name in tasks[0].extras},
    )
