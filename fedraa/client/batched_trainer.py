"""Training of several tasks in one batched computation.

On a GPU this is faster than training one task after another, because it launches fewer kernels.
"""

import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedraa.client.flat_module import PADDING, BatchedModule, mask_merged
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
    depend on the other tasks of its stack. On a CPU, the rounding of matrix products depends on the row, because the
    addresses of rows differ. Therefore a task's row follows from its id. Results differ from results of `Trainer` by
    rounding.
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
            for stack in self._place([work[number].task for number in numbers]):
                rows = {row: numbers[place] for row, place in stack.items()}
                trained = self._train_stack({row: work[number] for row, number in rows.items()})
                updates |= {number: trained[row] for row, number in rows.items()}
        return [updates[number] for number in range(len(work))]

    def _place(self, tasks: Sequence[Task]) -> list[dict[int, int]]:
        """Divide tasks into stacks. Each stack has the indices of its tasks by row."""
        stacks: list[dict[int, int]] = []
        for number, task in enumerate(tasks):
            row = stack_row(task, self._height)
            if self._device.type != "cpu":
                row = number % self._height
            free = next((stack for stack in stacks if row not in stack), None)
            if free is None:
                free = {}
                stacks.append(free)
            free[row] = number
        return stacks

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

    def _train_stack(self, work: Mapping[int, Work]) -> dict[int, Update]:
        """Train a stack of tasks, which are given by row. Return the updates by row."""
        started = time.perf_counter()
        for one in work.values():
            self._refuse_too_few_samples(len(one.y))
        some = next(iter(work.values()))
        # Copies of a task are in the free rows. Their results are not used.
        filled = [work.get(row, some) for row in range(self._height)]
        stack = self._stack_for_widths(some.task.widths)
        whole = mask_merged(stack_tasks([one.task for one in filled]), stack)
        labels = [one.y for one in filled]
        steps = [self._count_steps(one.task, len(one.y)) for one in filled]
        length = self._count_steps(some.task, len(some.y))
        local_step = LocalStep(
            self._local, self._components, stack, whole, labels, self._device, steps=length, bf16=self._bf16
        )
        totals = torch.zeros(self._height, device=self._device)
        halfway, received = None, None
        # Tasks of one step have no halves.
        if self._target_cosine is not None and max(steps) > 1:
            halfway = HalfwayCosine(steps, self._target_cosine, stack.module)
            received = local_step.received_buffer(whole.params)
        trained: dict[int, Update] = {}
        for step, batch in enumerate(self._stacked_minibatches(work), 1):
            totals += local_step.step(*batch)
            if halfway is not None:
                halfway.record(step, stack.weights)
            for row, one in work.items():
                if steps[row] != step:
                    continue
                task = one.task
                cosine = None
                if halfway is not None and received is not None:
                    cosine = halfway.compute(received, stack.weights, row, local_step.embeddings)
                extras = self._finish_update(local_step, task, row)
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
        return {row: replace(update, seconds=seconds) for row, update in trained.items()}

    def _stacked_minibatches(self, work: Mapping[int, Work]) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield the inputs [rows, b, ...] and labels [rows, b] of each step of a stack.

        The label is PADDING if a row has no task, or if its client has no more samples or steps.
        """
        some = next(iter(work.values()))
        longest = max(len(one.y) for one in work.values())
        width = self._batch_rows(len(some.y))
        steps = max(self._count_steps(one.task, len(one.y)) for one in work.values())
        x = np.zeros((self._height, longest + 1, *some.x.shape[1:]), some.x.dtype)
        y = np.full((self._height, longest + 1), PADDING)
        # Row `longest` of x and y is padding. A minibatch with fewer than `width` samples is filled with this row.
        orders = np.full((steps, self._height, width), longest)
        new_epochs: dict[int, list[tuple[int, int]]] = defaultdict(list)
        for row, one in work.items():
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
        augment = {row: self._transforms.make_augmentation(one.task.client, one.task.turn) for row, one in work.items()}
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
                for row, change in augment.items():
                    if counts[row]:
                        batch[row, : counts[row]] = change(batch[row, : counts[row]])
            yield batch, labels[rows, order]

    def _stack_for_widths(self, widths: tuple[int, ...]) -> BatchedModule:
        if widths not in self._stacks:
            self._stacks[widths] = BatchedModule(self._make_module(widths), self._height, self._device)
        return self._stacks[widths]


def stack_row(task: Task, height: int) -> int:
    """Return the row of a task in a stack on a CPU."""
    return task.id % height


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
