"""The checks of custom local optimizers."""

from typing import Any

import pytest
from promises import only

import fedraa as fl
from fedraa.testing.client_testers import MOVES, PIECES
from fedraa.testing.tester import COVERED

pytestmark = pytest.mark.usefixtures("no_other_processes")


class NormalizedStep(fl.LocalOptimizer):
    def descend(
        self, weights: Any, gradient: Any, state: Any, *, lr: float, momentum: float, weight_decay: float
    ) -> None:
        weights.sub_(gradient / (gradient.norm() + 1e-9), alpha=lr)


class MovesAll(fl.LocalOptimizer):
    def descend(
        self, weights: Any, gradient: Any, state: Any, *, lr: float, momentum: float, weight_decay: float
    ) -> None:
        weights.sub_(gradient + 1e-3, alpha=lr)


class RebindsWeights(fl.LocalOptimizer):
    def descend(
        self, weights: Any, gradient: Any, state: Any, *, lr: float, momentum: float, weight_decay: float
    ) -> None:
        weights = weights - lr * gradient


class SignStep(fl.LocalOptimizer):
    def descend(
        self, weights: Any, gradient: Any, state: Any, *, lr: float, momentum: float, weight_decay: float
    ) -> None:
        weights.sub_(gradient.sign_(), alpha=lr)


def test_optimizer_step_that_depends_on_other_coordinates_fails() -> None:
    only(NormalizedStep(), PIECES, "NormalizedStep ")


def test_optimizer_step_on_masked_coordinates_fails() -> None:
    only(MovesAll(), COVERED, "MovesAll ")


def test_optimizer_step_that_changes_no_weights_fails() -> None:
    only(RebindsWeights(), MOVES, "RebindsWeights ")


def test_optimizer_step_by_coordinate_passes() -> None:
    assert fl.check(SignStep).held
