"""Every field either changes a run or is refused: no field is ignored."""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from refusals import refuses
from torch import nn

import fedraa as fl
from fedraa.cli.main import COMMANDS, main
from fedraa.cli.parse import parse_command
from fedraa.composition.registry import find_method, list_methods
from fedraa.config.experiment import Experiment
from fedraa.config.overrides import split_paths
from fedraa.data import make_partitioner
from fedraa.data.partition.dirichlet import Dirichlet
from fedraa.data.partition.features import Noise, Rotation
from fedraa.data.partition.hsu import Hsu
from fedraa.data.partition.labels import Labels
from fedraa.data.partition.quantity import LogNormal, PowerLaw
from fedraa.data.partition.shards import SortedShards
from fedraa.engine.build import build_run
from fedraa.settings.resolve import drop_unused_options, resolve_method

METHODS = list_methods()

SMALL: dict[str, Any] = {
    "clients": 4,
    "hidden": (8, 8),
    "local_steps": 2,
    "engine": "local",
    "partition": "dirichlet",
    "eval_every": 100,
    "quiet": True,
}
# The fields and paths of a method, each with a value that no method has. Fields that choose a component are not here.
METHOD_FIELDS: dict[str, Any] = {
    "fragments": 2,
    "ratios": (0.35, 0.65),
    "cut_layers": ("1",),
    "local.scale_activations": True,
    "update.server_gain": 0.7,
    "update.participation_correction": 0.4,
    "submodel.level": "MIX",
    "submodel.uncovered_every": 2,
    "submodel.stride": 3,
    "submodel.density": 0.3,
    "submodel.layers": 4,
    "submodel.server_compute": 3.0,
    "local.full_rate": True,
    "local.logit_calibration": 0.4,
    "schedule.download_compressor": "8bit",
    "local.sam_rho": 0.2,
    "local.grad_mix": 0.4,
    "scheduler": "minimum-priority",
    "delay_bound": 0.4,
    "mixing": 0.33,
    "staleness": "polynomial(exponent=0.9)",
    "server_lr": 0.37,
    "concurrency": 2,
    "buffer_size": 3,
    "server_optimizer": "adagrad",
    "participation": "sample:2",
    "capacities": (0.5, 0.25),
    "momentum": 0.77,
    "weight_decay": 0.05,
    "clip": 0.1,
    "compress": "topk:0.1",
    "prox_mu": 0.4,
    "polyak_fraction": 0.4,
    "local_optimizer": "adamw(weight_decay=0.02)",
}
# Methods of every kind: fragments, whole models, cuts, masks, a split; asynchronous and with rounds.
KINDS = ("fed-raa", "fedasync", "fedavg", "heterofl", "ram-fed", "splitfed", "fedcm")


def model_and_log(out: Path, method: str, **fields: Any) -> tuple[str, str]:
    """Return the model and the log of a run."""
    limit = {"updates": 10} if find_method(method).asynchronous else {"rounds": 4}
    history = fl.run(**SMALL | limit | {"method": method, "out": out} | split_paths(fields, {}))
    lines = [json.loads(line) for line in (out / "events.jsonl").read_text().splitlines()]
    return history.summary["model_sha256"], str([{**line, "wall": 0} for line in lines])


@pytest.mark.slow
@pytest.mark.parametrize("method", KINDS)
def test_field_of_a_method_changes_the_run_or_is_refused(method: str, tmp_path: Path) -> None:
    plain = model_and_log(tmp_path / "plain", method)
    refused = set()
    for field, value in METHOD_FIELDS.items():
        try:
            changed = model_and_log(tmp_path / field, method, **{field: value})
        except ValueError as error:
            assert str(error).startswith(f"{field}: "), error  # noqa: PT017  # each field has another message
            refused.add(field)
        else:
            assert changed != plain, f"{field} is ignored by {method}"
    assert refused, "a method that knows every field"
    assert refused < METHOD_FIELDS.keys()


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(
    ("path", "value"), [("local.scale_activations", True), ("local.full_rate", True), ("submodel.server_compute", 3.0)]
)
def test_scale_needs_cut_widths_and_server_compute_a_split(method: str, path: str, value: object) -> None:
    """The methods are those whose runs are equal with and without the value."""
    # The submodels of ist scale both themselves, and fed-quilt has full_rate, which also scales the activations.
    ignored = not _cuts(method) or method == "ist" or (method, path) == ("fed-quilt", "local.scale_activations")
    if path == "submodel.server_compute":
        ignored = method != "splitfed"
    changes: Mapping[str, Any] = {"method": method, "override": {path: value}, "hidden": (8,)}
    if ignored:
        with refuses(path, got=value):
            resolve_method(Experiment(**changes))
        assert drop_unused_options(Experiment(**changes)).override == {}
    else:
        assert resolve_method(Experiment(**changes)).name


def _cuts(name: str) -> bool:
    """Return True for a method that trains narrower models."""
    cutting = r"fed-quilt|fed-raa.*|heterofl.*|fedrolex.*|ist|.*-kernels|hetlora|flora|fedgmr-units"
    return re.fullmatch(cutting, name) is not None


# Combinations in which the first field has no effect.
IGNORED: list[dict[str, Any]] = [
    {"dirichlet": 0.05, "partition": "iid"},
    {"dirichlet": 0.5, "partition": "iid"},
    {"dirichlet": 0.05, "partition": "labels"},
    {"dirichlet": 0.05, "partition": "dirichlet:0.1"},
    {"dirichlet": 0.05, "partition": Dirichlet(0.1)},
    {"local_steps": 2, "local_epochs": 1},
    {"local_steps": "auto", "local_epochs": 1},
    {"time_scale": 2.0},
    {"address": "auto", "engine": "local"},
    {"resources": ("1:CPU=1", "1:CPU=1"), "engine": "local"},
    {"server_node": "here", "engine": "local"},
    {"server_shards": 2, "engine": "local"},
    {"data_on_nodes": True, "engine": "local"},
    {"placement": "spread", "engine": "local"},
    {"data_dir": "data"},
    {"data_dir": "data", "dataset": "mine.npz"},
    {"data_dir": "data", "dataset": "mine.csv"},
    {"data_dir": "data", "dataset": "folder:images"},
    {"data_dir": "data", "dataset": "csv('mine.csv', target='y')"},
    {"hidden": (8,), "model": "cnn"},
    {"dropout": 0.5, "model": "cnn"},
    {"availability_period": 3.0},
    {"statistics": "all"},
    {"delay_bound": 1.0, "scheduler": "random"},
    {"delay_bound": 1.0, "scheduler": "offline"},
    {"delay_bound": 1.0, "method": "fedasync"},
    {"scheduler": "random", "method": "fedasync"},
    {"aggregator": "filled", "method": "fedavg"},
    {"personal_layers": ("batch-norm",), "method": "fedavg"},
    {"personalised": 20, "clients": 4},
    {"client_evals_of": 2},
    {"error_feedback": "ef", "method": "fedavg"},
    {"local_optimizer_state": "keep", "local_optimizer": "sgd", "momentum": 0.0},
    {"client_evals_of": 20, "client_evals": "final", "clients": 4},
    {"concurrency": 50, "method": "fedasync"},
    {"scheduler": "random", "fragments": 1},
    {"delay_bound": 1.0, "fragments": 1},
    {"override": {"submodel.capacities.redraw": True}, "method": "bernoulli"},
    {"override": {"submodel.capacities.redraw": True}, "capacities": (0.5,), "method": "heterofl"},
    {"override": {"local.scale_activations": True}, "fragments": 1},
    {"override": {"local.full_rate": True}, "fragments": 1},
    {"override": {"local.scale_activations": True, "local.full_rate": True}, "fragments": 2},
    {"override": {"local.full_rate": True}, "method": "ist"},
    {"override": {"local.scale_activations": True}, "submodel": "disjoint-groups", "method": "heterofl"},
    {"override": {"submodel.stride": 3}, "capacities": (1.0,), "method": "fedrolex"},
    {"override": {"submodel.stride": 0}, "capacities": (1.0, 1.0), "method": "fedrolex"},
    {"override": {"submodel.shuffled": True}, "capacities": (1.0,), "method": "shuffled"},
    {"override": {"local.scale_activations": True}, "capacities": (1.0,), "method": "heterofl"},
    {"lr_schedule": "cosine:auto@local", "local_steps": 1},
    {"lr_schedule": "cosine:8@local", "local_epochs": 1, "batch_size": 2000},
    {"weights": "samples", "method": "ram-fed"},
    {"weights": "samples", "method": "ram-fed-mifa"},
    {"weights": "samples", "method": "signsgd"},
    {"aggregator": "hetlora", "method": "heterofl"},
    {"aggregator": "flora", "method": "fedavg"},
    {"rounds": 3, "updates": 3},
    {"rounds": 3},
    {"updates": 3, "method": "fedavg"},
]


@pytest.mark.parametrize("fields", IGNORED, ids=lambda fields: "-".join(map(str, fields.items())))
def test_field_without_effect_is_refused_in_python(fields: dict[str, Any]) -> None:
    name = next(iter(fields.get("override", fields)))
    with pytest.raises(ValueError, match=rf"^{re.escape(name)}\b") as error:
        build_run(Experiment(**{"clients": 4} | fields))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "fields",
    [
        {"override": {"submodel.stride": 3}, "capacities": (1.0, 0.5), "method": "fedrolex"},
        {"override": {"local.scale_activations": True}, "fragments": 2},
        {"override": {"local.scale_activations": True, "submodel.scaled": False}, "method": "ist"},
        {"override": {"schedule.staleness_clock": "server"}, "async_rule": "fadas"},
        {"lr_schedule": "steps:0:0.1@local", "local_steps": 1},
        {"lr_schedule": "cosine:auto@local", "local_steps": 2},
        {"lr_schedule": "cosine:100", "local_steps": 1},
    ],
    ids=lambda fields: "-".join(map(str, fields.items())),
)
def test_fields_with_an_effect_are_accepted(fields: dict[str, Any]) -> None:
    assert build_run(Experiment(**{"clients": 4} | fields)).method


def test_every_field_that_can_be_without_effect_is_listed() -> None:
    """Every field is in the list of fields without effect above, or has a test that shows its effect."""
    listed = METHOD_FIELDS.keys() | {next(iter(fields)) for fields in IGNORED}
    always = {
        *("method", "dataset", "model", "objective", "clients", "partition", "transforms", "allow_nan"),
        *(
            "compute",
            "units",
            "availability",
            "links",
            "duration_jitter",
            "async_rule",
            "aggregator",
            "submodel",
            "override",
        ),
        *("weights", "gradient_transforms", "lr", "batch_size", "lr_schedule"),
        *("local_epochs", "time", "target_accuracy", "target", "eval_every", "metrics", "validation"),
        *("checkpoint_every", "max_update_norm", "client_retries", "on_bad_client", "seed", "engine"),
        *(
            "workers",
            "threads_per_worker",
            "device",
            "bf16",
            "vmap_batch",
            "clock",
            "out",
            "quiet",
            "client_evals",
            "standardise",
        ),
        *("attack", "attackers", "personal_layers", "privacy", "privacy_delta", "max_participations"),
        *("next_client", "over_selection", "deadline", "late"),
    }
    assert Experiment.model_fields.keys() - listed - always == set()


def test_field_without_effect_is_refused_in_a_file(tmp_path: Path) -> None:
    (tmp_path / "my.toml").write_text('partition = "iid"\ndirichlet = 0.05\n')
    with refuses(f"{tmp_path / 'my.toml'}: dirichlet", "partition iid", got=0.05):
        Experiment.from_file(tmp_path / "my.toml")


@pytest.mark.parametrize(
    "words",
    [
        "--dirichlet 0.05 --partition iid",
        "--local-steps 2 --local-epochs 1",
        "--placement spread --engine local",
        "--time-scale 2",
    ],
)
def test_field_without_effect_is_refused_as_a_flag(words: str, capsys: pytest.CaptureFixture[str]) -> None:
    field = words.split()[0].lstrip("-").replace("-", "_")
    assert main(["run", *words.split()]) == 2
    assert f"{field}: " in capsys.readouterr().err


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"dirichlet": 0.05}, Dirichlet(0.05)),
        ({"dirichlet": 0.5}, Dirichlet(0.5)),
        ({"partition": "dirichlet:0.1"}, Dirichlet(0.1)),
        ({"partition": "dirichlet"}, Dirichlet(0.5)),
        ({"partition": "dirichlet", "dirichlet": 0.2}, Dirichlet(0.2)),
        ({"partition": {"kind": "dirichlet"}, "dirichlet": 0.2}, Dirichlet(0.2)),
        ({"partition": "labels:4"}, Labels(4)),
        ({"partition": "labels(per_client=4)"}, Labels(4)),
        ({"partition": "shards:3"}, SortedShards(3)),
        ({"partition": "powerlaw:2"}, PowerLaw(2.0)),
        ({"partition": "hsu:0.1"}, Hsu(0.1)),
        ({"partition": "rotation:45"}, Rotation(45.0)),
        ({"partition": "lognormal:1.2"}, LogNormal(1.2)),
        ({"partition": "noise:0.3"}, Noise(0.3)),
        ({"partition": "dirichlet: 0.1"}, Dirichlet(0.1)),
        ({"partition": "dirichlet:1e-1"}, Dirichlet(0.1)),
    ],
)
def test_fields_partition_and_dirichlet_choose_the_partition(fields: dict[str, Any], expected: object) -> None:
    made = build_run(Experiment(clients=4, **fields)).experiment
    own = make_partitioner(made.partition, dirichlet=made.dirichlet)
    assert repr(own) == repr(expected)


@pytest.mark.parametrize(
    "partition",
    ["dirichlet:x", "dirichlet:", "dirichlet:0", "dirichlet:-1", "labels:0", "labels:1.5", "iid:3", "natural:2"],
)
def test_number_that_a_partition_does_not_take_is_refused(partition: str) -> None:
    with pytest.raises(ValueError, match=r"^partition[.:]"):
        build_run(Experiment(clients=4, partition=partition))


def test_partition_misspelt_with_a_number_has_a_suggestion() -> None:
    with refuses("partition", got="dirchlet") as refused:
        build_run(Experiment(clients=4, partition="dirchlet:0.1"))
    assert refused.value.hint.endswith(" dirichlet?")


def test_drop_unused_options_removes_fields_without_effect_on_the_method() -> None:
    override = {"local.scale_activations": True, "submodel.server_compute": 2.0, "update.mixing": 0.4}
    trial = Experiment(method="fedasync", override=override, scheduler="random", lr=0.3)
    kept = drop_unused_options(trial)
    assert (kept.override, kept.scheduler, kept.lr) == ({"update.mixing": 0.4}, None, 0.3)
    other = drop_unused_options(trial.model_copy(update={"method": "fed-raa"}))
    assert (other.scheduler, list(other.override)) == ("random", ["local.scale_activations", "update.mixing"])


@pytest.mark.parametrize("field", ["hidden", "dropout"])
def test_fields_of_the_mlp_are_refused_with_a_custom_model(field: str) -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.last = nn.Linear(64, 10)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            out: torch.Tensor = self.last(x.flatten(1))
            return out

    values = {"hidden": (8,), "dropout": 0.5}
    with refuses(field, got=values[field]):
        build_run(Experiment(clients=4, **{field: values[field]}), Net())


@pytest.mark.parametrize(
    "words",
    [
        "run --seed 0 --seed 1",
        "run --lr=0.1 --lr 0.2",
        "run --bf16 --no-bf16",
        "run --batch_size 3 --batch-size 4",
        "compare fedavg --seeds 0 1 --seeds 2",
        "report runs --out a --out b",
        "run --config a.toml --config b.toml",
    ],
)
def test_flag_given_twice_is_refused(words: str) -> None:
    with pytest.raises(ValueError, match=r"^--[a-z0-9-]+: .*twice"):
        parse_command(COMMANDS, words.split(), None)


@pytest.mark.parametrize(
    ("words", "name"),
    [
        (["run", "--out", ""], "--out"),
        (["run", "--out="], "--out"),
        (["compare", "fedavg", "--tuned", ""], "--tuned"),
        (["resume", ""], "resume"),
        (["report", "a", ""], "report"),
    ],
)
def test_empty_value_is_refused(words: list[str], name: str) -> None:
    """An unset variable of the shell gives such a value. As a path it would be the current folder."""
    with refuses(name, got=""):
        parse_command(COMMANDS, words, None)


@pytest.mark.parametrize("field", ["out", "data_dir", "links", "availability"])
def test_empty_path_is_refused(field: str) -> None:
    with refuses(field, got=""):
        Experiment(**{field: ""})


def test_flags_after_two_dashes_belong_to_the_submitted_command() -> None:
    assert parse_command(COMMANDS, ["submit", "--address", "http://x", "--", "run", "--lr", "0.1", "--lr", "0.2"], None)


def test_trust_without_landscape_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", "runs", "--trust"]) == 2
    assert "trust: " in capsys.readouterr().err
