"""Each built-in objective against NumPy: loss, gradient, and metrics from sums over unequal batches."""

from collections.abc import Mapping
from fractions import Fraction
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from refusals import refuses

from fedraa.objectives import Classification, Objective
from fedraa.objectives.builtin import (
    OBJECTIVE,
    MultiLabel,
    NextToken,
    Regression,
    Segmentation,
    _sum_squared_deviations,
)

Array = np.ndarray[Any, Any]
RNG = np.random.default_rng(5)


def softmax(z: Array, axis: int) -> Array:
    e = np.exp(z - z.max(axis=axis, keepdims=True))
    return np.asarray(e / e.sum(axis=axis, keepdims=True))


def onehot(y: Array, classes: int) -> Array:
    return np.eye(classes)[np.clip(y, 0, classes - 1)]


def cross_entropy(z: Array, y: Array, ignore: int = -100) -> tuple[float, Array]:
    """Return the mean over the targets that count, and its gradient (softmax - onehot) / count.

    Classes are the last axis.
    """
    p, seen = softmax(z, -1), y != ignore
    picked = np.take_along_axis(p, np.clip(y, 0, z.shape[-1] - 1)[..., None], -1)[..., 0]
    gradient = (p - onehot(y, z.shape[-1])) * seen[..., None] / seen.sum()
    return float(-np.log(picked[seen]).mean()), gradient


def classification() -> tuple[Any, ...]:
    z, y = RNG.normal(size=(11, 4)), RNG.integers(0, 4, 11)
    loss, gradient = cross_entropy(z, y)
    return Classification(), z, y, loss, gradient, {"accuracy": (z.argmax(1) == y).mean()}


def multilabel() -> tuple[Any, ...]:
    z, y = RNG.normal(size=(11, 3)), RNG.integers(0, 2, (11, 3)).astype(np.float32)
    p = 1 / (1 + np.exp(-z))
    loss = -(y * np.log(p) + (1 - y) * np.log(1 - p)).mean()
    predicted = z > 0
    f1 = 2 * (predicted & (y > 0)).sum() / (predicted.sum() + y.sum())
    metrics = {"f1": f1, "accuracy": (predicted == y).mean(), "exact": (predicted == y).all(1).mean()}
    return MultiLabel(), z, y, loss, (p - y) / y.size, metrics


def regression() -> tuple[Any, ...]:
    z, y = RNG.normal(size=(11, 2)), RNG.normal(size=(11, 2)).astype(np.float32)
    error, y64 = z - y, y.astype(np.float64)
    r2 = 1 - (error**2).sum(0) / ((y64 - y64.mean(0)) ** 2).sum(0)
    metrics = {"mse": (error**2).mean(), "mae": np.abs(error).mean(), "r2": r2.mean()}
    return Regression(), z, y, (error**2).mean(), 2 * error / y.size, metrics


def next_token() -> tuple[Any, ...]:
    z, y = RNG.normal(size=(11, 5, 6)), RNG.integers(0, 6, (11, 5))
    # One sample has only padding, and one sample ends early.
    y[2], y[3, 2:] = 9, 9
    loss, gradient = cross_entropy(z, y, 9)
    seen = y != 9
    metrics = {"perplexity": np.exp(loss), "accuracy": (z.argmax(-1) == y)[seen].mean()}
    return NextToken(ignore=9), z, y, loss, gradient, metrics


def segmentation() -> tuple[Any, ...]:
    # Class 3 exists, but no sample has it.
    z, y = RNG.normal(size=(11, 4, 3, 5)), RNG.integers(0, 3, (11, 3, 5))
    y[0, 1] = -100
    loss, gradient = cross_entropy(np.moveaxis(z, 1, -1), y)
    predicted, seen = z.argmax(1), y != -100
    matrix = np.zeros((4, 4))
    np.add.at(matrix, (y[seen], predicted[seen]), 1)
    iou = np.diag(matrix) / (matrix.sum(0) + matrix.sum(1) - np.diag(matrix))
    metrics = {"mean_iou": iou.mean(), "pixel_accuracy": np.diag(matrix).sum() / matrix.sum()}
    return Segmentation(), z, y, loss, np.moveaxis(gradient, -1, 1), metrics


CASES = {each.__name__: each() for each in (classification, multilabel, regression, next_token, segmentation)}


@pytest.mark.parametrize("name", CASES)
def test_loss_and_gradient_equal_numpy(name: str) -> None:
    objective, z, y, loss, gradient, _ = CASES[name]
    outputs = torch.tensor(z, requires_grad=True)
    result = objective.training_loss(outputs, outputs, torch.from_numpy(y))
    result.backward()
    assert outputs.grad is not None
    assert result.item() == pytest.approx(loss, rel=1e-6)
    np.testing.assert_allclose(outputs.grad.numpy(), gradient, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("cuts", [(), (1, 3), (2, 7, 10)])
def test_metrics_do_not_depend_on_the_batches(name: str, cuts: tuple[int, ...]) -> None:
    objective, z, y, loss, _, metrics = CASES[name]
    total: dict[str, Array] = {}
    summed = 0.0
    for rows in np.split(np.arange(len(y)), cuts):
        outputs, targets = torch.from_numpy(z[rows]), torch.from_numpy(y[rows])
        summed += objective.summed_loss(outputs, targets)
        for key, values in objective.sums(outputs, targets).items():
            assert values.dtype is torch.float64
            total[key] = total.get(key, 0) + values.sum(0).numpy()
    assert dict(objective.metrics(total)) == pytest.approx(metrics, rel=1e-12)
    assert summed / total["count"] == pytest.approx(loss, rel=1e-6)
    assert list(objective.metrics(total)) == list(objective.better)


@pytest.mark.parametrize("name", CASES)
def test_metric_of_a_client_uses_only_the_samples_of_the_client(name: str) -> None:
    objective, z, y, _, _, _ = CASES[name]
    parts = np.split(np.arange(len(y)), [4, 5])
    sums = [objective.sums(torch.from_numpy(z[rows]), torch.from_numpy(y[rows])) for rows in parts]
    stacked = {key: np.stack([one[key].sum(0).numpy() for one in sums]) for key in sums[0]}
    expected = [
        objective.metrics({key: values[i] for key, values in stacked.items()})[objective.main] for i in range(3)
    ]
    assert objective.of_clients(stacked).tolist() == expected


def test_targets_that_are_all_ignored_give_zero_loss_and_no_gradient() -> None:
    outputs = torch.randn(2, 3, 4, requires_grad=True)
    loss = NextToken().loss(outputs, torch.full((2, 3), -100))
    loss.backward()
    assert loss.item() == 0
    assert outputs.grad is not None
    assert not outputs.grad.any()


@pytest.mark.parametrize(
    ("objective", "y", "field", "shown"),
    [
        (Regression(), np.array([1.0, np.nan]), "y_train row 1", "nan"),
        (Regression(), np.zeros((2, 2, 2)), "y_train", "[2, 2, 2]"),
        (MultiLabel(), np.array([[0, 1], [1, 2]]), "y_train row 1", "2"),
        (MultiLabel(), np.array([0, 1]), "y_train", "int64 [2]"),
        (NextToken(), np.array([[0, 3], [1, -1]]), "y_train row 1", "-1"),
        (NextToken(), np.array([0, 1]), "y_train", "int64 [2]"),
        (NextToken(), np.full((2, 2), -100), "y_train", "-100"),
        (Segmentation(), np.zeros((2, 3)), "y_train", "float64 [2, 3]"),
    ],
)
def test_wrong_targets_are_refused_with_their_row_or_shape(
    objective: Objective, y: Array, field: str, shown: str
) -> None:
    with refuses(field, shown):
        objective.targets(y, y.copy(), 0)


def test_objective_finds_the_outputs_in_every_form_that_models_return() -> None:
    tensor, other = torch.zeros(2), torch.ones(2)
    objective = OBJECTIVE.resolve("classification(auxiliary={'aux': 0.5})")

    class Output:
        logits = tensor

    single = ({"scores": tensor, "loss": None}, SimpleNamespace(scores=tensor, name="x"), (None, tensor))
    for result in (tensor, {"loss": other, "logits": tensor}, {"aux": other, "out": tensor}, Output(), *single):
        assert objective.outputs(result) is tensor
    assert objective.outputs((tensor, other)) is tensor
    assert objective.outputs(tensor.half()).dtype == objective.outputs(tensor.bfloat16()).dtype == torch.float32


@pytest.mark.parametrize("result", [{"a": torch.zeros(2), "b": torch.ones(2)}, {}, None, "logits", (None, [1])])
def test_ambiguous_or_missing_outputs_are_refused(result: object) -> None:
    with pytest.raises(TypeError):
        Classification().outputs(result)


def test_training_loss_adds_weighted_auxiliary_losses() -> None:
    z, y = torch.randn(3, 5, 4), torch.randint(0, 4, (5,))
    objective = Classification(auxiliary={"aux": 0.5, "1": 0.25})
    plain, aux = Classification().loss(z[0], y), Classification().loss(z[1], y)
    assert objective.training_loss({"logits": z[0], "aux": z[1]}, z[0], y).item() == pytest.approx(
        (plain + 0.5 * aux).item()
    )
    assert objective.training_loss((z[0], z[1]), z[0], y).item() == pytest.approx((plain + 0.25 * aux).item())
    assert torch.equal(objective.loss(z[0], y), plain)


def sum_one_by_one(objective: Objective, outputs: torch.Tensor, targets: torch.Tensor) -> dict[str, np.ndarray]:
    """Return the sums of an objective's values, added sample by sample as an evaluation does."""
    sums: dict[str, np.ndarray] = {}
    for name, values in objective.sums(outputs, targets).items():
        sums[name] = np.zeros((1, *values.shape[1:]))
        np.add.at(sums[name], np.zeros(len(values), np.int64), values.numpy())
    return {name: total[0] for name, total in sums.items()}


@pytest.mark.parametrize("samples", [2, 100, 5000])
def test_r2_of_constant_targets_is_minus_infinity(samples: int) -> None:
    """Targets without variance make any error infinitely large relative to it. A rounding error once gave 4e14."""
    y = torch.full((samples,), 0.1)
    sums = sum_one_by_one(Regression(), y + 0.5, y)
    assert Regression().metrics(sums)["r2"] == -np.inf


def test_r2_does_not_depend_on_the_offset_of_the_targets() -> None:
    rng = np.random.default_rng(0)
    # Multiples of 1/4 near a million are exact in float32.
    y = rng.integers(-8, 8, 20_000) / 4
    error = rng.integers(-3, 3, 20_000) / 4
    expected = 1 - np.square(error).sum() / np.square(y - y.mean()).sum()
    far = torch.from_numpy((1e6 + y).astype(np.float32))
    sums = sum_one_by_one(Regression(), far + torch.from_numpy(error.astype(np.float32)), far)
    assert Regression().metrics(sums)["r2"] == pytest.approx(expected, rel=1e-12)


def test_r2_without_samples_or_with_an_unknown_target_is_nan() -> None:
    y = torch.tensor([1.0, 3.0, torch.nan])
    assert np.isnan(Regression().metrics(sum_one_by_one(Regression(), y, y))["r2"])
    y = y[:2]
    sums = sum_one_by_one(Regression(), y, y)
    assert Regression().metrics(sums)["r2"] == 1
    with np.errstate(invalid="ignore"):
        assert np.isnan(Regression().metrics({name: 0 * total for name, total in sums.items()})["r2"])


def test_squared_deviations_of_targets_are_rounded_only_once() -> None:
    """They are tiny differences of large numbers, of which Python's fractions give the exact value."""
    rng = np.random.default_rng(0)
    total = rng.normal(size=50) * 10.0 ** rng.integers(-8, 9, 50)
    leading = total**2 / 7 * (1 + 1e-15 * rng.integers(0, 9, 50))
    sums: dict[str, Any] = {"wanted": total, "wanted_squared": leading, "wanted_rest": 1e-17 * leading}
    exact = []
    for a, b, c in zip(leading.tolist(), sums["wanted_rest"].tolist(), total.tolist(), strict=True):
        exact.append(float(Fraction(a) + Fraction(b) - Fraction(c) ** 2 / 7))
    deviations = _sum_squared_deviations(sums | {"samples": np.float64(7)})
    np.testing.assert_allclose(deviations, np.array(exact), rtol=1e-15)


def test_regression_refuses_outputs_whose_rows_are_not_the_samples() -> None:
    targets = torch.zeros(4, 2)
    assert Regression().expected_outputs(torch.zeros(4, 2), targets, 2) is None
    assert Regression().expected_outputs(torch.zeros(2, 4), targets, 2) is not None
    assert Regression().expected_outputs(torch.zeros(1, 4), targets[:, 0], 1) is not None
    assert Regression().expected_outputs(torch.zeros(4, 1), targets[:, 0], 1) is None


class Focal(Classification):
    """Classification with the focal loss (1 - p)^2 * -log(p), where p is the probability of the label."""

    def losses(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        entropy = super().losses(outputs, targets)
        return (1 - torch.exp(-entropy)) ** 2 * entropy


def test_losses_of_a_subclass_of_classification_are_trained_and_summed() -> None:
    z, y = RNG.normal(size=(11, 4)), RNG.integers(0, 4, 11)
    p = softmax(z, 1)[np.arange(11), y]
    expected = (1 - p) ** 2 * -np.log(p)
    outputs, targets = torch.from_numpy(z), torch.from_numpy(y)
    assert float(Focal().training_loss(outputs, outputs, targets)) == pytest.approx(expected.mean())
    assert Focal().summed_loss(outputs, targets) == pytest.approx(expected.sum())


class Counting(Classification):
    """Classification with the number of samples as a metric."""

    def measured(self, outputs: torch.Tensor, targets: torch.Tensor) -> Mapping[str, torch.Tensor]:
        return {**super().measured(outputs, targets), "samples": torch.ones(len(targets))}


def test_subclass_with_another_metric_computes_the_same_loss() -> None:
    """A subclass that keeps the losses is trained with the mean cross-entropy of one call."""
    outputs = torch.from_numpy(RNG.normal(size=(1001, 10)).astype(np.float32))
    targets = torch.from_numpy(RNG.integers(0, 10, 1001))
    assert Counting().loss(outputs, targets) == Classification().loss(outputs, targets)
    assert Counting().loss(outputs, targets) != Counting().losses(outputs, targets).mean()
