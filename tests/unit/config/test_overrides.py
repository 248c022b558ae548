"""The field `override` of an experiment: texts, tables, files and config.json."""

import json
from pathlib import Path
from typing import Any

import pytest
from refusals import refuses

import fedraa as fl
from fedraa import Experiment
from fedraa.cli.main import main
from fedraa.config.overrides import override_texts, read_overrides, split_paths
from fedraa.engine.build import build_run
from fedraa.errors import InputError
from fedraa.report.command import run_command
from fedraa.server.staleness import Polynomial


def test_an_experiment_has_95_fields() -> None:
    """The number of fields changes only on purpose, because most values of a method are paths of `override`."""
    assert len(Experiment.model_fields) == 95


VALUES: list[tuple[object, dict[str, Any]]] = [
    (None, {}),
    ((), {}),
    ("local.clip=1", {"local.clip": 1}),
    (["local.clip=1.5", "update.staleness=hinge"], {"local.clip": 1.5, "update.staleness": "hinge"}),
    (["submodel.capacities.levels=0.5,1"], {"submodel.capacities.levels": (0.5, 1)}),
    (["local.full-rate=True", "local.compressor = 8bit"], {"local.full_rate": True, "local.compressor": "8bit"}),
    (["update.optimizer=adam(beta1=0.5)"], {"update.optimizer": "adam(beta1=0.5)"}),
    ({"local": {"clip": 1, "sam_rho": 0.1}}, {"local.clip": 1, "local.sam_rho": 0.1}),
    ({"submodel": {"capacities": {"levels": [0.5, 1.0]}}}, {"submodel.capacities.levels": (0.5, 1.0)}),
    ({"update.staleness": {"kind": "hinge", "a": 2}}, {"update.staleness": "hinge(a=2)"}),
    ({"submodel": "rolling"}, {"submodel": "rolling"}),
]


@pytest.mark.parametrize(("value", "expected"), VALUES)
def test_texts_and_tables_become_values_by_path(value: object, expected: dict[str, Any]) -> None:
    experiment = Experiment(override=value)
    assert experiment.override == expected
    assert read_overrides(override_texts(experiment.override), ()) == expected
    assert Experiment(**json.loads(experiment.model_dump_json())) == experiment


@pytest.mark.parametrize(
    ("value", "names"),
    [
        (3, ["PATH=VALUE"]),
        (["local.clip"], ["PATH=VALUE"]),
        (["local.clip=1", "local.clip=2"], ["local.clip"]),
        ({"local": {"clip": 1}, "local.clip": 2}, ["local.clip"]),
        ({"lr": 0.1}, ["lr"]),
        ({"stride": 2}, ["fedraa methods NAME"]),
    ],
)
def test_malformed_overrides_are_refused(value: object, names: list[str]) -> None:
    with refuses("override", *names):
        Experiment(override=value)


def test_split_paths_keeps_the_other_overrides() -> None:
    override = {"local.clip": 1.0, "local.sam_rho": 0.1}
    fields = split_paths({"lr": 0.1, "local.sam_rho": 0.2}, override)
    assert fields == {"lr": 0.1, "override": {"local.clip": 1.0, "local.sam_rho": 0.2}}
    assert split_paths({"lr": 0.1}, override) == {"lr": 0.1}


SMALL: dict[str, Any] = {"method": "fedasync", "clients": 3, "hidden": (4,), "local_steps": 1, "updates": 6}
SMALL |= {"engine": "local", "quiet": True}


def test_run_with_an_override_equals_the_run_with_the_field(tmp_path: Path) -> None:
    by_path = fl.run(**SMALL, override={"update.mixing": 0.3}, out=tmp_path / "path")
    by_field = fl.run(**SMALL, mixing=0.3, out=tmp_path / "field")
    assert by_path.summary["model_sha256"] == by_field.summary["model_sha256"]
    assert by_path.config["experiment"]["override"] == {"update.mixing": 0.3}
    assert "consistent" in fl.replay(tmp_path / "path")


def test_a_run_with_an_override_is_resumed_and_replayed(tmp_path: Path) -> None:
    override = {"update.staleness": Polynomial(0.9), "local.sam_rho": 0.05}
    fields = SMALL | {"override": override, "out": tmp_path / "run"}
    fl.run(**fields)
    assert fl.resume(tmp_path / "run", updates=12).summary["steps"] == 12
    whole = fl.run(**fields | {"updates": 12, "out": tmp_path / "whole"})
    assert fl.History(tmp_path / "run").summary["model_sha256"] == whole.summary["model_sha256"]
    assert "consistent" in fl.replay(tmp_path / "run")


def test_a_run_with_a_changed_override_is_not_resumed(tmp_path: Path) -> None:
    fl.run(**SMALL, override={"update.mixing": 0.3}, out=tmp_path / "run")
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    config["experiment"]["override"] = {"update.mixing": 0.4}
    (tmp_path / "run" / "config.json").write_text(json.dumps(config))
    with pytest.raises(InputError, match=r"update\.mixing"):
        fl.resume(tmp_path / "run", updates=12)


def test_compare_leaves_out_overrides_that_a_method_does_not_have(tmp_path: Path) -> None:
    fields = {"clients": 3, "hidden": (4,), "local_steps": 1, "time": 0.5, "engine": "local", "quiet": True}
    override = {"update.mixing": 0.3, "local.sam_rho": 0.05}
    fl.compare(["fedasync", "fedavg"], override=override, out=tmp_path, **fields)
    runs = [fl.History(path.parent) for path in sorted(tmp_path.glob("*/config.json"))]
    assert [run.config["experiment"]["override"] for run in runs] == [override, {"local.sam_rho": 0.05}]
    with refuses("update.size", "fedasync", "fedavg"):
        fl.compare(["fedasync", "fedavg"], override={"update.size": 3}, out=tmp_path / "none", **fields)


def test_flags_of_the_command_line_set_values(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = [
        "run",
        "--method",
        "fedasync",
        "--clients",
        "3",
        "--hidden",
        "4",
        "--local-steps",
        "1",
        "--updates",
        "3",
        "--engine",
        "local",
        "--quiet",
    ]
    assert main([*words, "--out", str(tmp_path / "run"), "--override", "update.mixing=0.3", "local.clip=1"]) == 0
    experiment = fl.History(tmp_path / "run").experiment
    assert experiment.override == {"update.mixing": 0.3, "local.clip": 1}
    assert "--override update.mixing=0.3 local.clip=1" in run_command(experiment)
    assert main([*words, "--override", "update.mixin=0.3"]) == 2
    assert capsys.readouterr().err.startswith("fedraa: update.mixin: ")


def test_a_file_has_a_table_of_overrides(tmp_path: Path) -> None:
    text = (
        'method = "fedasync"\nclients = 3\nhidden = [4]\nlocal_steps = 1\nupdates = 3\nengine = "local"\nquiet = true\n'
    )
    text += "[override]\nupdate.mixing = 0.3\n[override.local]\nclip = 1.0\n"
    (tmp_path / "my.toml").write_text(text)
    assert main(["run", "--config", str(tmp_path / "my.toml"), "--out", str(tmp_path / "run")]) == 0
    assert fl.History(tmp_path / "run").experiment.override == {"update.mixing": 0.3, "local.clip": 1.0}


@pytest.mark.parametrize(("word", "hint"), [("sam", "local.sam_rho"), ("stride", "submodel.stride")])
def test_an_unknown_field_has_the_path_as_its_hint(word: str, hint: str, capsys: pytest.CaptureFixture[str]) -> None:
    with refuses(word, f'override={{"{hint}": ...}}'):
        Experiment(**{word: 1})
    assert main(["run", f"--{word}", "1"]) == 2
    assert f"--override {hint}=VALUE" in capsys.readouterr().err


def test_methods_shows_the_values_of_a_method(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["methods", "fedrolex", "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert (row["name"], row["values"]["submodel.stride"]) == ("fedrolex", 1)
    assert main(["methods", "fedrolx"]) == 2
    assert "fedrolex" in capsys.readouterr().err


@pytest.mark.parametrize("value", ["auto", (0.5, 1.0)])
def test_error_about_a_missing_setting_shows_the_value_that_the_user_gave(value: object) -> None:
    with refuses("capacities", got=value):
        build_run(Experiment(method="fedavg", capacities=value))
