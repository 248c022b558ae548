"""The built-in objectives."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar, TypeVar

import numpy as np
from pydantic import StrictInt
from torch import Tensor
from torch.nn import functional as F

from fedraa.components.registry import ComponentRegistry
from fedraa.errors import InputError
from fedraa.objectives.metric_spec import Direction
from fedraa.objectives.objective import Array, Objective, Sums, refuse_wrong, require_integers, require_numbers

Numbers = TypeVar("Numbers", Array, Tensor)


@dataclass(frozen=True)
class Classification(Objective):
    """Classification with one class per sample.

    The loss is the mean cross-entropy of logits [b, classes] and labels [b]. The metric is accuracy.
    """

    auxiliary: Mapping[str, float] = field(default_factory=dict)

    better: ClassVar[Mapping[str, Direction]] = {"accuracy": "max"}
    main: ClassVar[str] = "accuracy"
    classifies: ClassVar[bool] = True
    name: ClassVar[str] = "classification"

    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return F.cross_entropy(outputs, targets, reduction="none")

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        if not has_cross_entropy(self):
            return super().loss(outputs, targets)
        return F.cross_entropy(outputs, targets)

    def summed_loss(self, outputs: Tensor, targets: Tensor) -> float:
        if not has_cross_entropy(self):
            return super().summed_loss(outputs, targets)
        return float(F.cross_entropy(outputs, targets, reduction="sum"))

    def measured(self, outputs: Tensor, targets: Tensor) -> Mapping[str, Tensor]:
        return {"accuracy": outputs.argmax(1) == targets}

    def expected_outputs(self, outputs: Tensor, targets: Tensor, classes: int) -> str | None:
        wanted = [len(targets), classes]
        if list(outputs.shape) == wanted:
            return None
        return f"logits {wanted}, {classes} outputs of its last layer"


def has_cross_entropy(objective: Objective) -> bool:
    """Return True if the losses are those of Classification, and all of them count."""
    kind = type(objective)
    return kind.losses is Classification.losses and kind.counted is Classification.counted


@dataclass(frozen=True)
class MultiLabel(Objective):
    """Classification with any number of labels per sample.

    The loss is the binary cross-entropy of logits [b, labels] and targets of 0 and 1 [b, labels]. A positive logit
    predicts a label. `f1` is over all labels of all samples (micro). `accuracy` is the share of correct labels. `exact`
    is the share of samples without a wrong label.
    """

    auxiliary: Mapping[str, float] = field(default_factory=dict)

    better: ClassVar[Mapping[str, Direction]] = {"f1": "max", "accuracy": "max", "exact": "max"}
    main: ClassVar[str] = "f1"
    name: ClassVar[str] = "multilabel"

    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return F.binary_cross_entropy_with_logits(outputs, targets, reduction="none")

    def measured(self, outputs: Tensor, targets: Tensor) -> Mapping[str, Tensor]:
        predicted, present = outputs > 0, targets > 0
        right = predicted == present
        return {
            "right": right.sum(1),
            "both": (predicted & present).sum(1),
            "either": predicted.sum(1) + present.sum(1),
            "exact": right.all(1),
            "samples": right.new_ones(len(right)),
        }

    def metrics(self, sums: Sums) -> Mapping[str, float]:
        f1 = 1.0
        if sums["either"]:
            f1 = float(2 * sums["both"] / sums["either"])
        return {
            "f1": f1,
            "accuracy": float(sums["right"] / sums["count"]),
            "exact": float(sums["exact"] / sums["samples"]),
        }

    def targets(self, train: Array, test: Array, classes: int) -> tuple[Array, Array, int]:
        for name, y in (("y_train", train), ("y_test", test)):
            if y.ndim != 2 or y.dtype.kind not in "iubf":
                raise InputError(name, got=y, expected="an array [samples, labels] of 0 and 1")
            refuse_wrong(name, y, (y != 0) & (y != 1), "0 or 1")
        if train.shape[1] != test.shape[1]:
            raise InputError("y_test", got=test, expected=f"{train.shape[1]} labels per sample, as in y_train")
        return np.asarray(train, np.float32, "C"), np.asarray(test, np.float32, "C"), train.shape[1]

    def expected_outputs(self, outputs: Tensor, targets: Tensor, classes: int) -> str | None:
        if outputs.shape == targets.shape:
            return None
        return f"logits {list(targets.shape)}"


@dataclass(frozen=True)
class Regression(Objective):
    """Regression of one or several numbers per sample.

    The loss is the mean squared error of outputs and targets [b] or [b, k]. The metrics are mse, mae and r2. For k
    outputs, r2 is the mean over the outputs.
    """

    auxiliary: Mapping[str, float] = field(default_factory=dict)

    better: ClassVar[Mapping[str, Direction]] = {"mse": "min", "mae": "min", "r2": "max"}
    main: ClassVar[str] = "mse"
    name: ClassVar[str] = "regression"

    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return (outputs.reshape(targets.shape) - targets).square()

    def measured(self, outputs: Tensor, targets: Tensor) -> Mapping[str, Tensor]:
        wanted = targets.double().reshape(len(targets), -1)
        error = outputs.double().reshape(wanted.shape) - wanted
        squares = wanted.square()
        # The sums of the leading bits have no rounding errors if the squares are of equal size.
        leading = _leading_bits(squares, 24)
        return {
            "squared": error.square(),
            "absolute": error.abs().sum(1),
            "wanted": wanted,
            "wanted_squared": leading,
            "wanted_rest": squares - leading,
            "samples": wanted.new_ones(len(wanted)),
        }

    def metrics(self, sums: Sums) -> Mapping[str, float]:
        with np.errstate(divide="ignore", invalid="ignore"):
            r2 = np.mean(1 - sums["squared"] / _sum_squared_deviations(sums))
        return {
            "mse": float(sums["squared"].sum() / sums["count"]),
            "mae": float(sums["absolute"] / sums["count"]),
            "r2": float(r2),
        }

    def targets(self, train: Array, test: Array, classes: int) -> tuple[Array, Array, int]:
        for name, y in (("y_train", train), ("y_test", test)):
            if y.ndim not in (1, 2) or y.shape[1:] != train.shape[1:]:
                expected = "the shape [samples] or [samples, outputs], the same in y_train and y_test"
                raise InputError(name, got=y, expected=expected)
        train, test = (
            require_numbers(name, y).astype(np.float32) for name, y in (("y_train", train), ("y_test", test))
        )
        return train, test, int(np.prod(train.shape[1:]))

    def expected_outputs(self, outputs: Tensor, targets: Tensor, classes: int) -> str | None:
        if outputs.shape[:1] == targets.shape[:1] and outputs.numel() == targets.numel():
            return None
        return f"numbers {list(targets.shape)}"


def _sum_squared_deviations(sums: Sums) -> Array:
    """Return the sum of the squared deviations of the targets from their mean, for each output [k].

    The result is a small difference of large numbers if the targets are far from 0. These numbers are therefore exact
    products, and their sum is rounded only once. The result is 0 for constant targets, and NaN if a target is NaN.
    """
    samples, total = sums["samples"], sums["wanted"]
    terms = [
        *_exact_product(sums["wanted_squared"], samples),
        *_exact_product(sums["wanted_rest"], samples),
        *_exact_product(total, -total),
    ]
    return np.array([math.fsum(column) for column in zip(*(term.tolist() for term in terms), strict=True)]) / samples


def _exact_product(a: Array, b: Array) -> tuple[Array, Array]:
    """Return a float64 product and its rounding error (Dekker 1971)."""
    product = a * b
    a_leading, b_leading = _leading_bits(a, 26), _leading_bits(b, 26)
    a_rest, b_rest = a - a_leading, b - b_leading
    error = a_leading * b_leading - product + a_leading * b_rest + a_rest * b_leading + a_rest * b_rest
    return product, error


def _leading_bits(numbers: Numbers, bits: int) -> Numbers:
    """Return float64 numbers rounded to their first bits (Veltkamp 1968)."""
    scaled = numbers * (2 ** (53 - bits) + 1)
    leading: Numbers = scaled - (scaled - numbers)
    return leading


@dataclass(frozen=True)
class NextToken(Objective):
    """Prediction of a token at every position.

    The loss is the cross-entropy of logits [b, t, vocabulary] and target tokens [b, t], which the data set must shift
    by one position. Positions with the target `ignore` do not count. `perplexity` is exp(loss).
    """

    ignore: StrictInt = -100
    auxiliary: Mapping[str, float] = field(default_factory=dict)

    better: ClassVar[Mapping[str, Direction]] = {"perplexity": "min", "accuracy": "max"}
    main: ClassVar[str] = "perplexity"
    placed: ClassVar[bool] = True
    name: ClassVar[str] = "next-token"

    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return F.cross_entropy(outputs.movedim(-1, 1), targets, reduction="none", ignore_index=self.ignore)

    def counted(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return targets != self.ignore

    def measured(self, outputs: Tensor, targets: Tensor) -> Mapping[str, Tensor]:
        return {"hits": ((outputs.argmax(-1) == targets) & (targets != self.ignore)).sum(1)}

    def metrics(self, sums: Sums) -> Mapping[str, float]:
        count = max(float(sums["count"]), 1.0)
        with np.errstate(over="ignore"):
            return {"perplexity": float(np.exp(sums["loss"] / count)), "accuracy": float(sums["hits"] / count)}

    def targets(self, train: Array, test: Array, classes: int) -> tuple[Array, Array, int]:
        return _check_labels(train, test, classes, self.ignore, 2, "[samples, positions]")

    def expected_outputs(self, outputs: Tensor, targets: Tensor, classes: int) -> str | None:
        if outputs.shape[:-1] == targets.shape and outputs.shape[-1] >= classes:
            return None
        return f"logits {[*targets.shape, classes]}"


@dataclass(frozen=True)
class Segmentation(Objective):
    """Classification of every pixel.

    The loss is the cross-entropy of logits [b, classes, h, w] and labels [b, h, w]. Pixels with the label `ignore` do
    not count. `mean_iou` is the mean intersection / union over the classes that occur, with the pixels of all samples
    together.
    """

    ignore: StrictInt = -100
    auxiliary: Mapping[str, float] = field(default_factory=dict)

    better: ClassVar[Mapping[str, Direction]] = {"mean_iou": "max", "pixel_accuracy": "max"}
    main: ClassVar[str] = "mean_iou"
    placed: ClassVar[bool] = True
    name: ClassVar[str] = "segmentation"

    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return F.cross_entropy(outputs, targets, reduction="none", ignore_index=self.ignore)

    def counted(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return targets != self.ignore

    def measured(self, outputs: Tensor, targets: Tensor) -> Mapping[str, Tensor]:
        classes = outputs.shape[1]
        seen = (targets != self.ignore).flatten(1)
        # `counts` removes the extra class `classes`.
        present = targets.flatten(1).where(seen, classes)
        predicted = outputs.argmax(1).flatten(1).where(seen, classes)

        def count_labels(labels: Tensor) -> Tensor:
            zeros = labels.new_zeros(len(labels), classes + 1)
            return zeros.scatter_add_(1, labels, labels.new_ones(()).expand_as(labels))[:, :classes]

        return {
            "both": count_labels(present.where(present == predicted, classes)),
            "present": count_labels(present),
            "predicted": count_labels(predicted),
        }

    def metrics(self, sums: Sums) -> Mapping[str, float]:
        union = sums["present"] + sums["predicted"] - sums["both"]
        occurs = union > 0
        mean_iou = 0.0
        if occurs.any():
            mean_iou = float(np.mean(sums["both"][occurs] / union[occurs]))
        return {
            "mean_iou": mean_iou,
            "pixel_accuracy": float(sums["both"].sum() / max(float(sums["count"]), 1.0)),
        }

    def targets(self, train: Array, test: Array, classes: int) -> tuple[Array, Array, int]:
        return _check_labels(train, test, classes, self.ignore, 3, "[samples, height, width]")

    def expected_outputs(self, outputs: Tensor, targets: Tensor, classes: int) -> str | None:
        b, *size = targets.shape
        if outputs.shape[:1] + outputs.shape[2:] == targets.shape and outputs.shape[1] >= classes:
            return None
        return f"logits {[b, classes, *size]}"


def _check_labels(
    train: Array, test: Array, classes: int, ignore: int, ndim: int, form: str
) -> tuple[Array, Array, int]:
    """Return the training and the test labels of pixels or positions, and the number of classes.

    Args:
        train: The training labels.
        test: The test labels.
        classes: The number of classes, or 0 for the largest training label plus 1.
        ignore: The label that does not count.
        ndim: The number of dimensions that the labels must have.
        form: The description of this shape for errors.

    Raises:
        InputError: A label is wrong.
    """
    # For a single client, the caller passes the same array twice.
    is_client = train is test
    train, test = require_integers("y_train", train, ndim, form), require_integers("y_test", test, ndim, form)
    classes = classes or int(train.max(initial=0, where=train != ignore)) + 1
    for name, y in (("y_train", train), ("y_test", test)):
        wrong = (y != ignore) & ((y < 0) | (y >= classes))
        refuse_wrong(name, y, wrong, f"labels from 0 to {classes - 1}, or {ignore} for none")
        # All labels of a client may be `ignore`, but not all labels of a data set.
        if not is_client and (y == ignore).all():
            problem = f"every value is {ignore}, the label that does not count"
            raise InputError(name, problem, expected="at least one other label")
    return train, test, classes


OBJECTIVE: ComponentRegistry[Objective] = ComponentRegistry(
    "objective",
    ("losses", "loss", "sums", "metrics", "forward"),
    {
        "classification": Classification,
        "multilabel": MultiLabel,
        "regression": Regression,
        "next-token": NextToken,
        "segmentation": Segmentation,
    },
    base="Objective, or for class labels from fedraa.Classification",
)
