"""The test of an objective. It uses synthetic inputs."""

import math
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from fedraa.config.experiment import Experiment
from fedraa.errors import InputError, short_text
from fedraa.objectives import Objective, describe_misfit
from fedraa.testing.samples import SmallExperiment, Task, list_tasks, make_vectors
from fedraa.testing.tester import SIZE, Tester, draw_numbers

EXACT = "exact sums over unequal batches"
GRADIENT = "finite gradient of the loss"
NUMBERS = "metrics are numbers"
DIRECTION = "metric improves as the loss falls"
ROWS = 16
CUTS = (0, 5, 6, ROWS)
# The test takes this number of gradient steps with this learning rate. The loss falls, so the metrics must improve.
DESCENT_STEPS = 150
DESCENT_RATE = 0.05


def first_task(objective: Objective) -> tuple[Task, Tensor]:
    """Return the first synthetic data set (a Task) that the objective accepts, and its targets.

    Raises the error of the first data set if the objective accepts none.
    """
    first: Exception | None = None
    for task in list_tasks():
        data = task.data
        if objective.classifies != (data is make_vectors()):
            continue
        try:
            y, classes = data.y_test, data.classes
            if not objective.classifies:
                _, y, classes = objective.targets(data.y_train, data.y_test, data.classes)
            targets = torch.from_numpy(y[:ROWS].copy())
            problem = describe_misfit(objective, torch.zeros(ROWS, *task.outputs), targets, classes)
            if problem is None:
                return task, targets
            raise InputError(objective.name, f"it does not accept the outputs of a model: the model {problem}")
        # A user-defined objective may raise any exception.
        except Exception as error:
            first = first or error
    assert first is not None
    raise first


def objective_experiment(part: Objective, experiment: Callable[[Any], Experiment]) -> SmallExperiment:
    """Return a small experiment on the first synthetic data set that the objective accepts."""
    task, _ = first_task(part)
    return SmallExperiment(experiment(part), task.data, task.model)


class ObjectiveTester(Tester):
    """A test of an objective, with random outputs and the targets of a synthetic data set.

    The data set is the first one that the objective accepts.
    """

    covers: ClassVar[bool] = False
    further: Sequence[str] = (EXACT, GRADIENT, NUMBERS, DIRECTION)

    def __init__(self, part: Objective, size: int = SIZE) -> None:
        super().__init__(part, size)
        task, self._given = first_task(part)
        self._shape = task.outputs

    def step(self, k: int) -> object:
        if k == 0:
            self._check_requirements()
        rows = slice((1, 3, ROWS)[k % 3])
        outputs, targets = self._draw_outputs(k)[rows], self._fresh_targets[rows]
        with self.watch_arguments({"outputs": outputs, "targets": targets}):
            loss = self.part.loss(outputs, targets)
            sums = self.part.sums(outputs, targets)
        return float(loss), {name: values.numpy().tobytes() for name, values in sums.items()}

    @property
    def _fresh_targets(self) -> Tensor:
        """Return a copy of the targets. If the objective changes it, later calls are not affected."""
        return self._given.clone()

    def _draw_outputs(self, k: int) -> Tensor:
        return torch.from_numpy(draw_numbers(ROWS * math.prod(self._shape), 1, k)).reshape(ROWS, *self._shape)

    def _check_requirements(self) -> None:
        outputs = self._draw_outputs(0)
        for requirement, sentence in (
            (EXACT, self._check_sums(outputs)),
            (
                GRADIENT,
                self._check_gradient(outputs) or self._check_gradient(torch.zeros_like(outputs), may_be_zero=True),
            ),
            (NUMBERS, self._check_numbers(outputs)),
        ):
            if sentence is not None:
                self.broken[requirement] = sentence
        if not self.broken:
            sentence = self._check_direction(outputs)
            if sentence is not None:
                self.broken[DIRECTION] = sentence

    def _check_sums(self, outputs: Tensor) -> str | None:
        whole = self.part.sums(outputs, self._fresh_targets)
        pieces = [self.part.sums(outputs[a:b], self._fresh_targets[a:b]) for a, b in pairwise(CUTS)]
        for name, values in whole.items():
            if not torch.allclose(values, torch.cat([piece[name] for piece in pieces]), rtol=1e-4, atol=1e-5):
                return (
                    f"returns another {name} for a sample in a batch of {ROWS} than in a smaller one; an evaluation "
                    "sums these values, so each must depend only on its sample"
                )
        return None

    def _check_gradient(self, outputs: Tensor, *, may_be_zero: bool = False) -> str | None:
        where = "at outputs of 0" if may_be_zero else "at random outputs"
        outputs = outputs.clone().requires_grad_()
        loss = self.part.training_loss(outputs, outputs, self._fresh_targets)
        if not loss.requires_grad:
            return "has a loss without a gradient, as after detach or argmax, so that no model can learn from it"
        (gradient,) = torch.autograd.grad(loss, outputs, allow_unused=True)
        if gradient is None or not (may_be_zero or gradient.any()):
            return f"has a gradient of 0 {where}, so that no model can learn from it"
        if not torch.isfinite(gradient).all():
            return f"has a gradient that is not finite {where}, as for a root or a logarithm of 0"
        return None

    def _compute_figures(self, outputs: Tensor) -> dict[str, float]:
        sums = {name: values.sum(0).numpy() for name, values in self.part.sums(outputs, self._fresh_targets).items()}
        return {**self.part.metrics(sums), "loss": float(sums["loss"] / sums["count"])}

    def _check_numbers(self, outputs: Tensor) -> str | None:
        for name, value in self._compute_figures(outputs).items():
            if not isinstance(value, int | float | np.number) or not math.isfinite(value):
                return f"returns {name} {short_text(value)} for {ROWS} synthetic samples; it must be a finite number"
        sums = {name: values[:3].numpy() for name, values in self.part.sums(outputs, self._fresh_targets).items()}
        clients = np.asarray(self.part.of_clients(sums))
        if clients.shape != (3,):
            return f"returns values {list(clients.shape)} for 3 clients from of_clients; expected one for each"
        return None

    def _check_direction(self, outputs: Tensor) -> str | None:
        main = self.part.main
        direction = self.part.summary().better(main)
        before = self._compute_figures(outputs)[main]
        moved = outputs.clone().requires_grad_()
        optimizer = torch.optim.Adam([moved], lr=DESCENT_RATE)
        for _ in range(DESCENT_STEPS):
            optimizer.zero_grad()
            self.part.loss(moved, self._fresh_targets).backward()
            optimizer.step()
        after = self._compute_figures(moved.detach())[main]
        improvement = after - before if direction == "max" else before - after
        if improvement < -1e-6:
            return (
                f"declares that {main} is better at its {direction}, but it changes from {before:.3g} to {after:.3g} "
                "as the loss falls; runs would be compared in the wrong direction"
            )
        return None
