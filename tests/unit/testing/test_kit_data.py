"""Checks of objectives, transforms and data: the built-in ones pass, and each kind of mistake is detected."""

import re
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from promises import only

import fedraa as fl
from fedraa.testing.data_testers import ALONE, EACH, LABELS, data_experiment
from fedraa.testing.kinds import KINDS
from fedraa.testing.kit import RUNS
from fedraa.testing.objective_tester import DIRECTION, EXACT, GRADIENT, NUMBERS
from fedraa.testing.other_process import digest_elsewhere
from fedraa.testing.samples import make_images, make_tokens
from fedraa.testing.tester import GIVEN

pytestmark = pytest.mark.usefixtures("no_other_processes")

RNG = np.random.default_rng(0)
X, Y = RNG.standard_normal((120, 6)).astype(np.float32), np.arange(120) % 3


class Quantile(fl.Objective):
    better: ClassVar = {"covered": "max"}
    main = "covered"

    def losses(self, outputs: Any, targets: Any) -> Any:
        error = targets - outputs.squeeze(1)
        return torch.maximum(0.9 * error, -0.1 * error)

    def measured(self, outputs: Any, targets: Any) -> Any:
        return {"covered": targets <= outputs.squeeze(1)}


class Centred(Quantile):
    """An objective in which the loss of a sample depends on the whole batch."""

    def losses(self, outputs: Any, targets: Any) -> Any:
        return (targets - outputs.squeeze(1) + outputs.mean()).square()


class Root(Quantile):
    def losses(self, outputs: Any, targets: Any) -> Any:
        return (targets - outputs.squeeze(1)).square().sqrt()


class Hard(Quantile):
    def losses(self, outputs: Any, targets: Any) -> Any:
        return (outputs.squeeze(1).detach() - targets).square()


class Infinite(Quantile):
    def metrics(self, sums: Any) -> Any:
        return {"covered": float("nan")}


class WrongWay(fl.Objective):
    better: ClassVar = {"error": "max"}
    main = "error"

    def losses(self, outputs: Any, targets: Any) -> Any:
        return (targets - outputs.squeeze(1)).abs()

    def measured(self, outputs: Any, targets: Any) -> Any:
        return {"error": (targets - outputs.squeeze(1)).abs()}


class Spoils(Quantile):
    def losses(self, outputs: Any, targets: Any) -> Any:
        targets += 1
        return super().losses(outputs, targets)


class Pairs(fl.Objective):
    """An objective with a mean and a logarithm of the variance for every target."""

    def losses(self, outputs: Any, targets: Any) -> Any:
        mean, log = outputs.unbind(1)
        return ((targets - mean).square() / log.exp() + log) / 2


@pytest.mark.parametrize("part", [Quantile, Pairs])
def test_correct_objective_passes(part: Any) -> None:
    findings = fl.check(part)
    assert findings.held, repr(findings)
    assert {EXACT, NUMBERS} <= {name for name, _ in findings.lines}


@pytest.mark.parametrize(
    ("part", "promise", "names"),
    [
        (Centred, EXACT, ["Centred ", " 16"]),
        (Root, GRADIENT, ["Root ", " gradient ", " 0"]),
        (Hard, RUNS, ["Hard "]),
        (Infinite, NUMBERS, ["Infinite ", " covered nan ", " 16 "]),
        (WrongWay, DIRECTION, ["WrongWay ", " error "]),
        (Spoils, GIVEN, ["Spoils ", " targets"]),
    ],
)
def test_incorrect_objective_fails_one_check(part: Any, promise: str, names: list[str]) -> None:
    only(part, promise, *names)


class Dim(fl.Transform):
    def apply(self, x: Any, rng: Any) -> Any:
        return x * torch.from_numpy(rng.uniform(0.5, 1, (len(x), 1, 1, 1)).astype("float32"))


class Scale(fl.Transform):
    """A transform that divides by the largest value of the batch."""

    random = False

    def apply(self, x: Any, rng: Any) -> Any:
        return x / x.abs().max()


class Drawn(fl.Transform):
    def apply(self, x: Any, rng: Any) -> Any:
        return x + float(np.random.default_rng().random())


@pytest.mark.parametrize("part", [Dim, "normalize(mean=(1,), std=(2,))"])
def test_correct_transform_passes(part: Any) -> None:
    findings = fl.check(part)
    assert findings.held, repr(findings)


def test_incorrect_transform_fails() -> None:
    only(Scale, EACH, "Scale ", " batch ")
    only(Drawn, RUNS, "Drawn")
    fl.testing.check(lambda x, rng: -x, as_="transform")


class Read(fl.Rows):
    def __len__(self) -> int:
        return len(Y)

    def read(self, rows: Any) -> Any:
        return X[rows], Y[rows]


class OfTheBatch(Read):
    def read(self, rows: Any) -> Any:
        return X[rows] - X[rows].mean(axis=0), Y[rows]


class OtherLabels(Read):
    def labels(self) -> Any:
        return (Y + 1) % 3


class Torch(torch.utils.data.Dataset[Any]):
    def __len__(self) -> int:
        return len(Y)

    def __getitem__(self, row: int) -> Any:
        return torch.from_numpy(X[row]), int(Y[row])


class Augmented(Torch):
    """A data set that draws numbers which no seed determines."""

    def __getitem__(self, row: int) -> Any:
        x, y = super().__getitem__(row)
        return x + torch.rand(()), y


def samples(client: int) -> Any:
    rng = np.random.default_rng(client)
    return rng.standard_normal((8 + client, 6)).astype(np.float32), rng.integers(0, 3, 8 + client)


def numbers() -> fl.FederatedDataset:
    return fl.FederatedDataset("mine", (X, X[:, 0]), (X[:9], X[:9, 0]), clients=(np.arange(120) % 3).tolist())


@pytest.mark.parametrize(
    "part",
    [
        Read,
        Torch(),
        samples,
        numbers,
        fl.FederatedDataset("mine", Torch(), (X[:9], Y[:9]), clients=(np.arange(120) % 3).tolist()),
        lambda: make_tokens(),
        lambda: make_images(3),
    ],
)
def test_correct_data_pass(part: Any) -> None:
    findings = fl.check(part, as_="dataset")
    assert findings.held, repr(findings)


def test_incorrect_data_fail(tmp_path: Path) -> None:
    only(OfTheBatch, ALONE, "OfTheBatch ", " row ")
    only(OtherLabels, LABELS, "OtherLabels ")
    findings = fl.check(Augmented(), as_="dataset")
    assert re.search(r"^Augmented .* event \d", findings.failures[0])
    assert re.search(r"^Augmented .* row \d", findings.failures[1])
    only(lambda: 3, RUNS, "component: got 3; ", as_="dataset")
    fields = {"tokens": X, "mask": X}
    several = fl.FederatedDataset("several", (fields, Y), (fields, Y))
    only(several, RUNS, "several ", " inputs", " model")
    np.save(tmp_path / "x.npy", X)
    only(f"npy:{tmp_path}", RUNS, "x_train.npy", as_="dataset")


def test_check_builds_an_experiment_for_data_with_one_test_sample() -> None:
    dataset = fl.FederatedDataset("one", (X, Y), (X[:1], Y[:1]))
    assert data_experiment(dataset, lambda clients: fl.Experiment(clients=clients)).dataset is dataset


def test_process_that_dies_without_a_message_is_reported_by_its_exit_code(monkeypatch: pytest.MonkeyPatch) -> None:
    died = SimpleNamespace(communicate=lambda: ("", ""), returncode=-9)
    monkeypatch.setattr(subprocess, "Popen", lambda *arguments, **options: died)
    with pytest.raises(RuntimeError, match="exit code -9"):
        digest_elsewhere(KINDS["staleness"], "constant")
