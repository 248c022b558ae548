"""Objectives on federated data: tables, sources that clients read, partitions, transforms, bad rows and errors."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from refusals import refuses
from torch import Tensor, nn

import fedraa as fl
from fedraa.cli.plan import show_plan
from fedraa.config.experiment import Experiment
from fedraa.engine.build import build_run

SMALL: dict[str, Any] = {
    "method": "fedavg",
    "engine": "local",
    "quiet": True,
    "local_epochs": 1,
    "batch_size": 8,
}
# Without it, a run of fragments warns that the full model adds the predictions of all fragments.
SCALED = {"local.scale_activations": True}
OF_MLP: dict[str, Any] = SMALL | {"hidden": (8,)}
RNG = np.random.default_rng(2)
X = RNG.normal(size=(90, 4)).astype(np.float32)
Y = (X @ np.array([1.0, -2.0, 0.5, 0.0])).astype(np.float32)
OWNERS = [f"shop {row % 3}" for row in range(90)]
TEST = (X[:18], Y[:18])


class Masked(nn.Module):
    """A model with tokens [b, t] and their mask as named inputs, and logits of the next token."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.hidden, self.head = nn.Embedding(8, 8), nn.Linear(8, 12), nn.Linear(12, 8)

    def forward(self, tokens: Tensor, mask: Tensor) -> Tensor:
        out: Tensor = self.head(torch.relu(self.hidden(self.embed(tokens) * mask.unsqueeze(-1))))
        return out


class Scattered(fl.Rows):
    """A dataset whose rows workers read when they train."""

    def __init__(self, x: Any = X, y: Any = Y) -> None:
        self.x, self.y = x, y

    def __len__(self) -> int:
        return len(self.y)

    def read(self, rows: Any) -> Any:
        x = {name: part[rows] for name, part in self.x.items()} if isinstance(self.x, dict) else self.x[rows]
        return x, self.y[rows]


def tokens(client: int, count: int = 12) -> tuple[dict[str, Any], Any]:
    """Return samples of a client. Every token is the previous token plus 1."""
    rows = (np.random.default_rng(client).integers(0, 7, (count, 1)) + np.arange(7)) % 7
    return {"tokens": rows[:, :-1], "mask": rows[:, :-1] != 3}, rows[:, 1:]


def table(folder: Path) -> Path:
    rows = [f"{','.join(f'{v:.4f}' for v in x)},{y:.4f},{owner}" for x, y, owner in zip(X, Y, OWNERS, strict=True)]
    path = folder / "sales.csv"
    path.write_text("\n".join(["a,b,c,d,target,client", *rows]))
    return path


@pytest.mark.parametrize(
    "limit", [{"method": "fedavg", "rounds": 8}, {"method": "fed-raa", "updates": 40, "override": SCALED}]
)
def test_regression_learns_from_a_table_with_a_client_column(limit: dict[str, Any], tmp_path: Path) -> None:
    fields = {**OF_MLP, **limit, "objective": "regression", "personalised": 2, "out": tmp_path / "run"}
    history = fl.run(dataset=str(table(tmp_path)), lr=0.05, **fields)
    assert history.evals["mse"].iloc[-1] < 0.5 * history.evals["mse"].iloc[0]
    assert history.evals["personal_mean"].notna().all()
    assert history.config["experiment"]["clients"] == 3
    assert "consistent" in fl.replay(history.directory)


def test_next_token_model_learns_from_samples_that_a_function_makes(tmp_path: Path) -> None:
    data = fl.FederatedDataset("count", tokens, tokens(9), classes=8, sizes=12)
    digests = []
    for method, limit in (("fedavg", {"rounds": 6}), ("fed-raa", {"updates": 24})):
        fields = {**SMALL, **limit, "method": method, "objective": "next-token", "clients": 4, "personalised": 2}
        history = fl.run(Experiment(**fields, out=tmp_path / method), dataset=data, model=Masked())
        assert history.evals["perplexity"].iloc[-1] < history.evals["perplexity"].iloc[0]
        assert history.evals["personal_mean"].notna().all()
        assert "consistent" in fl.replay(history.directory)
        digests.append(history.summary["model_sha256"])
    assert len(set(digests)) == 2


def test_samples_in_memory_and_samples_read_by_workers_give_the_same_run(tmp_path: Path) -> None:
    digests = set()
    for name, train in (("held", (X, Y)), ("read", Scattered())):
        data = fl.FederatedDataset("line", train, TEST, clients=OWNERS)
        fields = {**OF_MLP, "method": "fed-raa", "updates": 12, "objective": "regression", "personalised": 2}
        history = fl.run(Experiment(**fields, override=SCALED, out=tmp_path / name), dataset=data)
        digests.add((history.summary["model_sha256"], tuple(history.evals["personal_worst"])))
    assert len(digests) == 1


def test_clients_are_evaluated_on_their_test_samples() -> None:
    own = [owner for owner in OWNERS[:18] if owner != "shop 1"]
    rows = [row for row in range(18) if OWNERS[row] != "shop 1"]
    data = fl.FederatedDataset("line", (X, Y), (X[rows], Y[rows]), clients=OWNERS, test_clients=own)
    spec = build_run(Experiment(**OF_MLP, objective="regression", rounds=1, personalised=2), dataset=data)
    evaluated = spec.evaluation_data
    assert sorted(evaluated.personal) == [0, 2]  # type: ignore[attr-defined]
    np.testing.assert_array_equal(evaluated.test_of(2)[1], Y[2:18:3])


@pytest.mark.parametrize("partition", ["iid", "powerlaw", "lognormal", "noise", "natural"])
@pytest.mark.parametrize("train", [(X, Y), Scattered()])
def test_partition_without_classes_divides_regression_data(partition: str, train: Any) -> None:
    data = fl.FederatedDataset("line", train, TEST, clients=OWNERS)
    spec = build_run(
        Experiment(**OF_MLP, objective="regression", rounds=1, clients=3, partition=partition), dataset=data
    )
    assert spec.data.sizes.sum() == 90
    assert spec.data.labels is None
    assert np.concatenate([spec.data.client(n)[1] for n in range(3)]).sum() == pytest.approx(Y.sum(), rel=1e-3)


@pytest.mark.parametrize("partition", ["dirichlet", "labels", "shards"])
@pytest.mark.parametrize("train", [(X, Y), Scattered()])
def test_partition_by_class_is_refused_for_regression(partition: str, train: Any) -> None:
    data = fl.FederatedDataset("line", train, TEST)
    with refuses("partition", "iid", "powerlaw", "lognormal", "natural"):
        build_run(Experiment(**OF_MLP, objective="regression", rounds=1, clients=3, partition=partition), dataset=data)


def test_plan_of_samples_without_classes_shows_counts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    show_plan(Experiment(**OF_MLP, dataset=str(table(tmp_path)), objective="regression", rounds=2), tmp_path)
    output = " ".join(capsys.readouterr().out.split())
    assert re.search(r"sales: 72 samples .* 3 clients, natural\b", output)
    assert "shop 2" in output
    assert "labels" not in output
    assert (tmp_path / "clients.png").is_file()


@pytest.mark.parametrize("read", [False, True])
def test_client_with_nan_rows_is_refused_or_with_allow_nan_quarantined(read: bool, tmp_path: Path) -> None:
    x = X.copy()
    # This is the row of shop 1.
    x[4, 0] = np.nan
    data = fl.FederatedDataset("line", Scattered(x) if read else (x, Y), TEST, clients=OWNERS)
    fields = {**OF_MLP, "objective": "regression", "rounds": 3, "out": tmp_path / "run"}
    with refuses("dataset 'line': client 1: row 4" if read else "dataset 'line': x_train row 4 of client 'shop 1'"):
        fl.run(Experiment(**fields), dataset=data)
    with pytest.warns(fl.RunWarning, match="client 1"):
        history = fl.run(Experiment(**fields, allow_nan=True), dataset=data)
    assert [entry["client"] for entry in history.summary["quarantined"]] == [1]  # type: ignore[attr-defined]
    assert np.isfinite(history.evals["mse"]).all()


def test_nan_in_one_of_several_inputs_needs_allow_nan() -> None:
    x, y = tokens(0, 30)
    x = {"tokens": x["tokens"], "mask": x["mask"].astype(np.float32)}
    test = ({name: part[:6].copy() for name, part in x.items()}, y[:6])
    x["mask"][7, 1] = np.nan
    fields = {**SMALL, "objective": "next-token", "rounds": 1, "clients": 3}
    for train, field in (
        ((x, y), "dataset 'count': x_train row 7 of client 2"),
        (Scattered(x, y), "dataset 'count': client 2: row 7"),
    ):
        data = fl.FederatedDataset("count", train, test, classes=8)
        with refuses(field):
            build_run(Experiment(**fields), model=Masked(), dataset=data)
        build_run(Experiment(**fields, allow_nan=True), model=Masked(), dataset=data)
    counting = fl.Dataset("count", x, y, *test, 8)
    with refuses("dataset 'count': x_train row 7 of client 2"):
        build_run(Experiment(**fields), model=Masked(), dataset=counting)
    build_run(Experiment(**fields, allow_nan=True), model=Masked(), dataset=counting)


def wrong_tokens(client: int) -> tuple[dict[str, Any], Any]:
    x, y = tokens(client)
    return x, y + 2


def uneven(client: int) -> tuple[dict[str, Any], Any]:
    x, y = tokens(client)
    return x, y[:, :-1]


NAN = np.where(np.arange(90) == 5, np.nan, Y)
IMAGES = RNG.random((12, 1, 4, 4)).astype(np.float32)
PIXELS = RNG.integers(0, 2, (12, 4, 4))


@pytest.mark.parametrize(
    ("data", "fields", "field", "shown"),
    [
        (fl.FederatedDataset("d", (X, NAN), TEST), {}, "dataset 'd': y_train row 5", "nan"),
        (fl.FederatedDataset("d", Scattered(X, NAN), TEST), {}, "dataset 'd': y_train row 5", "nan"),
        (fl.FederatedDataset("d", (X, Y), TEST, classes=4), {}, "dataset 'd': classes", "4"),
        (
            fl.FederatedDataset("d", Scattered(), TEST),
            {"objective": "classification"},
            "dataset 'd': labels",
            "float32 [90]",
        ),
        (
            fl.FederatedDataset("d", tokens, tokens(9), sizes=12),
            {"objective": "next-token"},
            "dataset 'd': classes",
            "None",
        ),
        (
            fl.FederatedDataset("d", wrong_tokens, tokens(9), sizes=12, classes=8),
            {"objective": "next-token"},
            "dataset 'd': client 0: y_train row 0",
            "8",
        ),
        (
            fl.FederatedDataset("d", uneven, tokens(9), sizes=12, classes=8),
            {"objective": "next-token"},
            "dataset 'd': client 0: targets",
            "[5]",
        ),
        (
            fl.FederatedDataset("d", tokens(0, 30), tokens(9), classes=8),
            {"objective": "next-token", "partition": "noise"},
            "partition",
            "noise",
        ),
        (
            fl.FederatedDataset("d", tokens(0, 30), tokens(9), classes=8),
            {"objective": "next-token", "transforms": ("normalize",)},
            "transforms",
            "Normalize",
        ),
        (
            fl.Dataset("d", tokens(0, 30)[0], tokens(0, 30)[1], *tokens(9), 8),
            {"objective": "next-token", "transforms": (lambda x, rng: x,)},
            "transforms",
            "<lambda>",
        ),
        (
            fl.Dataset("d", X, Y, *TEST),
            {"transforms": ("crop",)},
            "transforms",
            "crop",
        ),
    ],
)
def test_data_or_transforms_that_do_not_fit_the_objective_are_refused(
    data: Any, fields: dict[str, Any], field: str, shown: str
) -> None:
    several = fields.get("objective") == "next-token"
    experiment = Experiment(
        **(SMALL if several else OF_MLP) | {"objective": "regression", "rounds": 1, "clients": 3, **fields}
    )
    with refuses(field, shown):
        build_run(experiment, dataset=data, model=Masked() if several else None)


def test_transform_that_moves_pixels_is_refused_for_segmentation() -> None:
    data = fl.Dataset("d", IMAGES, PIXELS, IMAGES, PIXELS, 2)
    fields = {"objective": "segmentation", "transforms": ("flip",), "rounds": 1, "clients": 3}
    with pytest.raises(ValueError, match=r"^transforms: Flip"):
        build_run(Experiment(**(OF_MLP | fields)), dataset=data)


def test_transform_that_moves_no_pixels_is_accepted_for_segmentation(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Conv2d(1, 6, 3, padding=1), nn.ReLU(), nn.Conv2d(6, 2, 1))
    fields = {**SMALL, "objective": "segmentation", "rounds": 2, "clients": 3, "transforms": ("normalize", brighter)}
    data = fl.Dataset("d", IMAGES, PIXELS, IMAGES, PIXELS, 2)
    history = fl.run(Experiment(**fields, out=tmp_path / "run"), dataset=data, model=model)
    assert history.evals["mean_iou"].between(0, 1).all()


def brighter(x: Tensor, rng: np.random.Generator) -> Tensor:
    return x + float(rng.random())
