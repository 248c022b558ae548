"""Algorithms with several streams of minibatches: losses and learning rates of 0.5 (w - 1)^2, computed by hand."""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from quadratic import close, quadratic
from torch import Tensor

from fedraa.client.local_algorithm import LocalAlgorithm, LocalRun
from fedraa.composition.registry import find_method
from fedraa.messages import Update


def train_task(algorithm: LocalAlgorithm, **fields: Any) -> Update:
    """Return the update of a client with two equal samples. The stream "" has two minibatches."""
    fedavg = find_method("fedavg")
    method: Any = replace(fedavg, local=replace(fedavg.local, algorithm=algorithm))
    stepped = quadratic(method, (1.0,), (2,), batch_size=1, local_epochs=1, **fields)
    [client] = stepped.server.begin()
    return stepped.train(stepped.server.assign(client, 0.0))


@dataclass(frozen=True)
class Zipped(LocalAlgorithm):
    """Local training on the stream "" and on another stream in turn."""

    yields_first: str = ""
    trains_first: str = ""

    def train(self, run: LocalRun) -> None:
        streams: Iterable[Any] = zip(run.minibatches(), run.minibatches("other", 1), strict=True)
        if self.yields_first == "other":
            swapped = zip(run.minibatches("other", 1), run.minibatches(), strict=True)
            streams = ((main, other) for other, main in swapped)
        for main, other in streams:
            if self.trains_first == "other":
                run.step(*other)
                run.step(*main)
            else:
                run.step(*main)
                run.step(*other)


@pytest.mark.parametrize("yields_first", ["", "other"])
@pytest.mark.parametrize(
    ("trains_first", "loss"),
    # With the learning rate 0.1, each step multiplies 1 - w by 0.9.
    [("", (0.5 + 0.5 * 0.9**4) / 2), ("other", (0.5 * 0.9**2 + 0.5 * 0.9**6) / 2)],
)
def test_loss_of_a_task_is_the_mean_over_the_counted_stream(yields_first: str, trains_first: str, loss: float) -> None:
    update = train_task(Zipped(yields_first, trains_first))
    close(update.loss, loss)
    close(update.params, [1 - 0.9**4])
    assert update.steps == 2


@dataclass(frozen=True)
class Changed(LocalAlgorithm):
    """Local training that copies the labels of each minibatch, or reads all minibatches before the first step."""

    copies: bool

    def train(self, run: LocalRun) -> None:
        minibatches: Iterable[tuple[Any, Tensor]] = run.minibatches()
        if not self.copies:
            minibatches = list(minibatches)
        for inputs, labels in minibatches:
            if self.copies:
                labels = labels.clone()
            run.step(inputs, labels)


@pytest.mark.parametrize("copies", [False, True])
def test_loss_and_rate_of_copied_or_collected_minibatches_are_those_of_plain_training(copies: bool) -> None:
    update = train_task(Changed(copies), lr_schedule="cosine:auto@local")
    # The learning rates are 0.1 and 0.05.
    close(update.loss, (0.5 + 0.5 * 0.9**2) / 2)
    close(update.params, [1 - 0.9 * 0.95])


@dataclass(frozen=True)
class Warmed(LocalAlgorithm):
    """One epoch on another stream, and then `steps` steps on each minibatch of the stream ""."""

    rates: list[float] = field(default_factory=list)
    steps: int = 1

    def train(self, run: LocalRun) -> None:
        for inputs, labels in run.minibatches("warm", 1):
            self.rates.append(run.lr)
            run.step(inputs, labels)
        for inputs, labels in run.minibatches():
            for _ in range(self.steps):
                self.rates.append(run.lr)
                run.step(inputs, labels)


@pytest.mark.parametrize("steps", [1, 2])
def test_local_schedule_counts_only_minibatches_of_the_counted_stream(steps: int) -> None:
    algorithm = Warmed(steps=steps)
    update = train_task(algorithm, lr_schedule="cosine:auto@local")
    # The factors of the two local steps are 1 and (1 + cos(pi / 2)) / 2. The other stream has the factor 1.
    close(algorithm.rates, [0.1, 0.1] + [0.1] * steps + [0.05] * steps)
    close(update.params, [1 - 0.9**2 * 0.9**steps * 0.95**steps])


@dataclass(frozen=True)
class WarmedSeparately(LocalAlgorithm):
    """One epoch of steps with their own schedule, and then the local steps."""

    def train(self, run: LocalRun) -> None:
        with run.separate_steps():
            for inputs, labels in run.minibatches("warm", 1):
                run.step(inputs, labels)
        super().train(run)


def test_separate_steps_have_their_own_schedule() -> None:
    update = train_task(WarmedSeparately(), lr_schedule="cosine:auto@local")
    close(update.params, [1 - (0.9 * 0.95) ** 2])
    close(update.loss, (0.5 * (0.9 * 0.95) ** 2 + 0.5 * (0.9 * 0.95 * 0.9) ** 2) / 2)
