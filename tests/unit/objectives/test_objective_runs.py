"""Runs with other objectives than classification: columns, targets, stops, resumption and errors."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from refusals import read_strict_json, refuses
from torch import Tensor, nn

import fedraa as fl
from fedraa.engine.build import build_run
from fedraa.engine.factories import make_server, make_worker_spec
from fedraa.objectives import MetricSpec, read_metric_spec
from fedraa.rundir.status import read_status

SMALL: dict[str, Any] = {"engine": "local", "clients": 3, "local_epochs": 1, "batch_size": 16, "quiet": True}
RNG = np.random.default_rng(1)
X = RNG.normal(size=(120, 4)).astype(np.float32)
Y = X @ np.array([1.0, -2.0, 0.5, 0.0])
LINE = fl.Dataset("line", X[:90], Y[:90], X[90:], Y[90:])
# Every token is one more than the token before it.
COUNT = (RNG.integers(0, 6, (120, 1)) + np.arange(7)) % 6
# Some sequences end early.
COUNT[::5, 5:] = 7
TOKENS = fl.Dataset("count", COUNT[:90, :-1], COUNT[:90, 1:], COUNT[90:, :-1], COUNT[90:, 1:], 6)


class Interval(fl.Objective):
    better = {"covered": "max"}  # noqa: RUF012  # users omit the annotation

    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        error = targets - outputs.squeeze(1)
        return torch.maximum(0.9 * error, -0.1 * error)

    def measured(self, outputs: Tensor, targets: Tensor) -> dict[str, Tensor]:
        return {"covered": targets <= outputs.squeeze(1)}


def chain() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Embedding(8, 8), nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 6))


# Without it, a run of fragments warns that the full model adds the predictions of all fragments.
SCALED = {"local.scale_activations": True}


def run(out: Path, dataset: fl.Dataset = LINE, **fields: Any) -> fl.History:
    model = fields.pop("model", None)
    defaults = {"objective": "regression", "hidden": (8,)} if model is None else {"objective": "next-token(ignore=7)"}
    return fl.run(fl.Experiment(**{**SMALL, **defaults, **fields}, out=out), dataset=dataset, model=model)


@pytest.mark.parametrize(
    "limit", [{"method": "fedavg", "rounds": 8}, {"method": "fed-raa", "updates": 40, "override": SCALED}]
)
def test_regression_learns_and_logs_its_metrics(limit: dict[str, Any], tmp_path: Path) -> None:
    history = run(tmp_path / "run", **limit)
    evals = history.evals
    names = ["mse", "mae", "r2", "loss", "client_mean", "client_std", "client_worst"]
    assert list(evals.columns) == ["step", "t", "wall", *names]
    assert evals["mse"].iloc[-1] < 0.5 * evals["mse"].iloc[0]
    # Smaller values of this metric are better.
    assert (evals["client_worst"] >= evals["client_mean"]).all()
    assert evals["loss"].to_numpy() == pytest.approx(evals["mse"].to_numpy(), rel=1e-6)
    assert history.summary["best_mse"] == evals["mse"].min()
    assert "accuracy" not in history.summary
    assert history.metric_spec == MetricSpec(("mse", "mae", "r2"), "mse", ("mse", "mae"))
    assert "consistent" in fl.replay(history.directory)
    assert read_status(history.directory).value == evals["mse"].iloc[-1]
    assert ", mse " in repr(history)


@pytest.mark.parametrize("limit", [{"method": "fedavg", "rounds": 6}, {"method": "fed-raa", "updates": 30}])
def test_next_token_model_learns(limit: dict[str, Any], tmp_path: Path) -> None:
    history = run(tmp_path / "run", TOKENS, model=chain(), lr=0.5, **limit)
    evals = history.evals
    assert evals["perplexity"].iloc[-1] < 0.7 * evals["perplexity"].iloc[0]
    assert evals["perplexity"].to_numpy() == pytest.approx(np.exp(evals["loss"]).to_numpy(), rel=1e-9)
    assert "consistent" in fl.replay(history.directory)


class Below(fl.Regression):
    """A loss that may be negative, as the log-likelihood of a density."""

    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return super().losses(outputs, targets) - 100


@pytest.mark.parametrize("limit", [{"method": "fedavg", "rounds": 3}, {"method": "fed-raa", "updates": 9}])
def test_run_with_negative_losses_is_consistent(limit: dict[str, Any], tmp_path: Path) -> None:
    history = run(tmp_path / "run", objective=Below(), **limit)
    assert history.evals["loss"].max() < 0
    assert "consistent" in fl.replay(history.directory)


@pytest.mark.filterwarnings("ignore::fedraa.RunWarning")
@pytest.mark.filterwarnings("error")
def test_infinite_perplexity_is_logged_without_a_warning(tmp_path: Path) -> None:
    history = run(tmp_path / "run", TOKENS, model=chain(), lr=100.0, method="fedavg", momentum=0.0, rounds=2)
    assert np.isinf(history.evals["client_worst"].iloc[-1])
    # JSON has no infinity.
    assert read_strict_json(history.directory / "summary.json")["client_worst"] is None
    assert np.isnan(history.summary["client_worst"])
    assert "consistent" in fl.replay(history.directory)


@pytest.mark.filterwarnings("error")
def test_perplexity_with_an_infinite_square_causes_no_warning() -> None:
    spec = build_run(fl.Experiment(**SMALL, objective="next-token(ignore=7)"), dataset=TOKENS, model=chain())
    model = chain()
    assert isinstance(model[-1], nn.Linear)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
        # Every token except 0 has a loss of 600.
        model[-1].bias[0] = 600.0
    params = torch.cat([p.detach().flatten() for p in model.parameters()]).numpy()
    metrics = make_worker_spec(spec).evaluator(spec.evaluation_data, "cpu").evaluate(params).metrics
    assert 1e154 < metrics["client_worst"] < math.inf


@pytest.mark.parametrize("split", ["x_train", "x_test"])
def test_token_beyond_the_embedding_is_refused_before_the_start(split: str, tmp_path: Path) -> None:
    tokens = getattr(TOKENS, split).copy()
    # The embedding of the model has 8 rows. The checks of the model's shape use only the first samples.
    tokens[25, 3] = 9
    with refuses(f"model: Sequential with token 9 in {split}", "num_embeddings"):
        run(tmp_path / "run", replace(TOKENS, **{split: tokens}), model=chain())
    assert not (tmp_path / "run").exists()


def test_target_ends_a_run_and_a_better_target_extends_it(tmp_path: Path) -> None:
    whole = run(tmp_path / "whole", method="fedavg", rounds=8)
    reached = float(whole.evals["mse"].iloc[2])
    history = run(tmp_path / "run", method="fedavg", rounds=8, target=f"mse:{reached}")
    assert history.summary["reason"] == "target"
    assert len(history.evals) == 3
    assert history.summary["time_to_target"] == history.evals["t"].iloc[-1]
    assert "consistent" in fl.replay(history.directory)
    with refuses("target", "mse:9", f"mse {reached:g}"):
        fl.resume(history.directory, dataset=LINE, target="mse:9")
    longer = fl.resume(history.directory, dataset=LINE, target="mse:1e-9")
    assert longer.summary["reason"] == "steps"
    assert longer.summary["model_sha256"] == whole.summary["model_sha256"]


def test_early_stopping_ends_a_run_without_improvement(tmp_path: Path) -> None:
    stop = fl.EarlyStopping(patience=2, min_delta=100.0)
    fields = {**SMALL, "objective": "regression", "hidden": (8,), "method": "fedavg", "rounds": 8}
    history = fl.run(fl.Experiment(**fields, out=tmp_path / "run"), dataset=LINE, callbacks=[stop])
    assert history.summary["by"] == "EarlyStopping"
    assert len(history.evals) == 3


def test_custom_objective_by_its_path_trains_and_replays(tmp_path: Path) -> None:
    history = run(tmp_path / "run", objective=f"{__name__}:Interval", method="fedavg", rounds=8)
    evals = history.evals
    assert list(evals.columns[3:5]) == ["covered", "loss"]
    assert evals["loss"].iloc[-1] < evals["loss"].iloc[0]
    # The clients have equal shares.
    assert evals["client_mean"].iloc[-1] == pytest.approx(evals["loss"].iloc[-1], rel=1e-6)
    assert read_metric_spec(history.config).main == "loss"
    assert "consistent" in fl.replay(history.directory)


def test_config_of_a_classification_has_all_keys(tmp_path: Path) -> None:
    history = fl.run(fl.Experiment(**SMALL, hidden=(10,), updates=2, out=tmp_path / "run"))
    resolved = history.config["resolved"]
    assert resolved["metric_spec"] == MetricSpec().described() | {
        "names": list(MetricSpec().names),
        "less": list(MetricSpec().less),
    }
    assert (resolved["metrics"], resolved["base"]) == ([], None)
    assert set(resolved["limits"]) == {"steps", "time", "accuracy", "target"}
    assert history.metric_spec == MetricSpec()


class Sides(nn.Module):
    """A model with two named inputs, one of them a mask. It returns logits and an auxiliary head in a dict."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.hidden, self.head, self.aux = (
            nn.Embedding(8, 6),
            nn.Linear(6, 8),
            nn.Linear(8, 6),
            nn.Linear(6, 6),
        )

    def forward(self, tokens: Tensor, mask: Tensor) -> dict[str, Tensor]:
        states = self.embed(tokens) * mask.unsqueeze(-1)
        return {"logits": self.head(torch.relu(self.hidden(states))), "aux": self.aux(states)}


def test_model_with_two_inputs_dict_outputs_and_auxiliary_head_learns(tmp_path: Path) -> None:
    def inputs(rows: slice) -> dict[str, np.ndarray[Any, Any]]:
        return {"tokens": COUNT[rows, :-1], "mask": COUNT[rows, :-1] != 7}

    torch.manual_seed(0)
    data = fl.Dataset("sides", inputs(slice(90)), COUNT[:90, 1:], inputs(slice(90, None)), COUNT[90:, 1:], 6)
    objective = "next-token(ignore=7, auxiliary={'aux': 0.3})"
    history = run(tmp_path / "run", data, model=Sides(), objective=objective, updates=20, lr=0.5)
    assert history.evals["perplexity"].iloc[-1] < 0.8 * history.evals["perplexity"].iloc[0]
    assert history.config["resolved"]["groups"]["hidden"] == 8


@pytest.mark.parametrize(
    ("fields", "field", "names"),
    [
        ({"method": "heterofl", "rounds": 1}, "objective", ["heterofl ", "labels", " regression "]),
        ({"override": {"local.logit_calibration": 0.5}}, "local.logit_calibration", ["0.5", " regression"]),
        ({"vmap_batch": 4}, "objective", ["vmap_batch 4 ", "labels", " regression "]),
        ({"target": "mse"}, "target", ["'mse'", "METRIC:VALUE", "csv("]),
        ({"target": "mse:1", "target_accuracy": 0.5}, "target", ["'mse:1'", "target_accuracy 0.5 "]),
        ({"objective": "regresion"}, "objective", ["'regresion'", " regression?"]),
    ],
)
def test_incompatible_fields_are_refused_before_the_start(
    fields: dict[str, Any], field: str, names: list[str], tmp_path: Path
) -> None:
    with refuses(field, *names) as refused:
        run(tmp_path / "run", **fields)
    assert "\n" not in str(refused.value)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("fields", "remedies"),
    [
        ({"vmap_batch": 4, "override": SCALED}, {"vmap_batch": 1}),
        (
            {"method": "heterofl", "rounds": 1},
            {"override": {"local.label_masked": False, "update.owned_head": False}},
        ),
        ({"method": "moon", "rounds": 1}, {"method": "fedavg"}),
    ],
    ids=str,
)
def test_remedies_for_options_that_need_labels_allow_the_run(
    fields: dict[str, Any], remedies: dict[str, Any], tmp_path: Path
) -> None:
    option, value = next(iter(remedies.items()))
    first = next(iter(value)) if isinstance(value, dict) else option
    with refuses("objective", first):
        run(tmp_path / "refused", **fields)
    run(tmp_path / "run", **fields | remedies)


@pytest.mark.parametrize(
    ("fields", "field", "shown"),
    [
        ({"partition": "dirichlet"}, "partition", "Dirichlet"),
        ({"target": "accuracy:0.5"}, "target", "mse, mae, r2, loss"),
        ({"objective": "next-token"}, "dataset 'line': y_train", "float64 [90]"),
        ({"objective": "classification"}, "dataset 'line': y_train", "float64 [90]"),
    ],
)
def test_objective_that_the_data_do_not_fit_is_refused_before_the_start(
    fields: dict[str, Any], field: str, shown: str, tmp_path: Path
) -> None:
    with refuses(field, shown):
        run(tmp_path / "run", **fields)
    assert not (tmp_path / "run").exists()


def test_default_logit_calibration_is_off_for_data_without_labels() -> None:
    flags = {**SMALL, "method": "fed-quilt"}
    labelled = fl.Dataset("rows", X[:90], np.arange(90) % 3, X[90:], np.arange(30) % 3, 3)
    assert (
        build_run(
            fl.Experiment(**flags, objective="next-token(ignore=7)"), chain(), TOKENS
        ).method.local.logit_calibration
        == 0
    )
    assert build_run(fl.Experiment(**flags), dataset=labelled).method.local.logit_calibration == 0.8


def test_a_model_that_does_not_fit_the_objective_is_refused(tmp_path: Path) -> None:
    with refuses("model: Linear", "[2, 3]", "[2]"):
        run(tmp_path / "run", model=nn.Linear(4, 3), objective="regression")


def test_fedrobust_refuses_integer_inputs() -> None:
    tokens = fl.Dataset("tokens", COUNT[:90], COUNT[:90, 0], COUNT[90:], COUNT[90:, 0], 6)
    model = nn.Sequential(nn.Embedding(8, 4), nn.Flatten(), nn.Linear(28, 6))
    with refuses("method", "fedrobust", "int64"):
        build_run(fl.Experiment(**SMALL, method="fedrobust"), model, tokens)


def test_statistics_are_estimated_on_samples_of_all_clients(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedraa.engine.run_spec.STATISTICS_SAMPLES", 30)
    data = fl.Dataset("rows", np.arange(90.0)[:, None], np.arange(90) % 3, X[90:, :1], np.arange(30) % 3, 3)
    model = nn.Sequential(nn.Linear(1, 10), nn.BatchNorm1d(10), nn.Linear(10, 3))
    spec = build_run(fl.Experiment(**SMALL), model, data)
    rows, share = spec.evaluation_data, 30 / 90
    held = [np.isin(rows.x_train, spec.data.client(client)[0]).sum() for client in range(3)]
    assert len(rows.x_train) == 30
    # The mean and the deviation come from all clients, not only from the first client.
    assert min(held) > 0.5 * share * 30
    assert len(build_run(fl.Experiment(**SMALL, statistics="all"), model, data).evaluation_data.x_train) == 90
    assert len(build_run(fl.Experiment(**SMALL, method="fedavg"), nn.Linear(1, 3), data).evaluation_data.x_train) == 0


def test_full_gradient_does_not_depend_on_dropout() -> None:
    spec = build_run(fl.Experiment(**SMALL, hidden=(8,), dropout=0.5, method="mimelite"))
    trainer, server = make_worker_spec(spec).trainer("cpu"), make_server(spec, lambda kind, t, /, **fields: None)
    task = server.assign(next(iter(server.begin())), 0.0)
    x, y = spec.data.client(task.client)
    gradients = [trainer.train(turn, x, y).extras["gradient"] for turn in (task, _later(task))]
    assert np.array_equal(*gradients)


def _later(task: Any) -> Any:
    from dataclasses import replace

    return replace(task, turn=task.turn + 1)


def test_personal_metrics_evaluate_clients_after_local_training(tmp_path: Path) -> None:
    """With one step on one full batch, the personal model is one step of gradient descent, computed by hand."""
    model = nn.Linear(4, 1, bias=False)
    fields = {**SMALL, "objective": "regression", "method": "fedavg", "rounds": 1, "momentum": 0.0}
    fields |= {"batch_size": 128, "local_steps": 1, "local_epochs": None, "lr": 0.1, "personalised": 2}
    history = fl.run(fl.Experiment(**fields, out=tmp_path / "run"), model=model, dataset=LINE)
    spec = build_run(fl.Experiment(**fields), model, LINE)
    w, losses = model.weight.detach().numpy()[0].astype(np.float64), []
    clients = list(spec.evaluation_data.personal)  # type: ignore[attr-defined]
    for client in clients:
        x, y = spec.data.client(client)
        rows = spec.data.test_order[spec.data.test_offsets[client] : spec.data.test_offsets[client + 1]]
        after = w - 0.1 * 2 * x.T @ (x @ w - y) / len(y)
        losses.append(np.square(spec.data.dataset.x_test[rows] @ after - LINE.y_test[rows]).mean())
    first = history.evals.iloc[0]
    assert len(clients) == 2
    assert first["personal_mean"] == pytest.approx(np.mean(losses), rel=1e-4)
    assert first["personal_worst"] == pytest.approx(max(losses), rel=1e-4)
    assert first["personal_mean"] < first["client_mean"]
    assert "consistent" in fl.replay(history.directory)
    plain = fl.run(fl.Experiment(**{**fields, "personalised": None}, out=tmp_path / "plain"), model=model, dataset=LINE)
    assert plain.summary["model_sha256"] == history.summary["model_sha256"]


class NoTargets(Interval):
    def targets(self, train: Any, test: Any, classes: int) -> Any:
        return train["price"], test, classes


def test_an_error_in_targets_names_the_objective_and_its_line(tmp_path: Path) -> None:
    with refuses("dataset 'line': objective", "NoTargets failed with IndexError", "test_objective_runs.py, line"):
        run(tmp_path / "run", objective=NoTargets())
