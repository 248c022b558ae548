"""The display of metrics during a run, of tables and of quantities."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from rich.table import Table

from fedraa.cli.console import print_line, print_table
from fedraa.cli.main import main
from fedraa.cli.methods import choice_text
from fedraa.cli.plan_data import data_table
from fedraa.composition.registry import list_methods
from fedraa.config.experiment import Experiment
from fedraa.engine.build import build_run
from fedraa.numbers import format_quantity
from fedraa.rundir.history import History

METHODS = list_methods()


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (999.6, "1 kB"),
        (6040, "6.04 kB"),
        (1234567, "1.23 MB"),
        (2.5e12, "2.5 TB"),
        (3e18, "3000 PB"),
    ],
)
def test_format_quantity_chooses_the_prefix_of_the_unit(value: float, text: str) -> None:
    assert format_quantity(value, "B") == text


@pytest.mark.parametrize(
    ("method", "axis", "text"),
    [
        ("fed-raa", "submodel", "Fragments: ratios 0.1 0.2 0.3 0.4, min_units 1, min_embedding_units 1"),
        ("fed-raa", "update", "ConvexMix: mixing 0.6, staleness constant"),
        ("fedavg", "submodel", "Full"),
        ("fedavg", "update", "Mean: weights samples"),
        ("ram-fed", "update", "Mean: weights uniform, (MemorisedMean)"),
        ("scaffold", "local", "LocalTraining: control"),
        ("fedprox", "local", "LocalTraining: momentum 0.5, prox_mu 0.1"),
    ],
)
def test_choice_text_names_the_class_and_its_values(method: str, axis: str, text: str) -> None:
    assert choice_text(getattr(METHODS[method], axis)) == text


def test_methods_are_listed_as_a_table_and_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["methods"]) == 0
    shown = capsys.readouterr().out
    assert main(["methods", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert [method["name"] for method in listed] == list(METHODS)
    assert all(name in shown for name in METHODS)
    assert set(listed[0]) == {"name", "paper", "note", "state", "submodel", "local", "update", "schedule"}
    fed_raa = next(method for method in listed if method["name"] == "fed-raa")
    assert fed_raa["schedule"]["scheduler"] == "gre-raa"
    assert fed_raa["submodel"]["ratios"] == [0.1, 0.2, 0.3, 0.4]


def test_methods_are_grouped_by_family_in_100_columns(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    assert main(["methods"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 100
    place = {line.split()[0]: number for number, line in enumerate(lines) if line.split()}
    headings = [number for number, line in enumerate(lines) if " server, steps are " in line]
    heading = {name: max(number for number in headings if number < place[name]) for name in METHODS}
    for name, method in METHODS.items():
        server = "synchronous server, steps are rounds: "
        if method.asynchronous:
            server = "asynchronous server, steps are updates: "
        assert lines[heading[name]].startswith(server)
    for pair in (("fed-raa", "fed-quilt"), ("fedavg", "scaffold"), ("heterofl", "oap"), ("fedasync", "ringmaster")):
        assert len({heading[name] for name in pair}) == 1
    assert len({heading[name] for name in ("fed-raa", "fedasync", "heterofl-async", "fedavg", "heterofl")}) == 5


def test_methods_fit_the_width_of_a_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TTY_COMPATIBLE", "1")
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "140")
    assert main(["methods"]) == 0
    widest = max(map(len, re.sub(r"\x1b\[[0-9;]*m", "", capsys.readouterr().out).splitlines()))
    assert 100 < widest <= 140


OWN = """
import fedraa as fl
from fedraa import Aggregator

class Lowest(fl.Scheduler):
    '''The lowest loss.

    More.
    '''
    def choose(self, view, rng): ...

class Heard(fl.Callback): pass
class Kept(fl.RoundState): pass
class Steps(fl.LocalAlgorithm): pass
class Other: pass
MINE = fl.method("fed-raa").replace(scheduler=Lowest())
"""


def test_methods_command_lists_the_components_of_a_user_module(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "brought_ext.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    assert main(["methods", "brought_ext", "--json"]) == 0
    listed = {row["name"]: row for row in json.loads(capsys.readouterr().out)}
    brought = ("MINE", "Lowest", "Heard", "Kept", "Steps")
    assert list(listed) == [*METHODS, *(f"brought_ext:{name}" for name in brought)]
    assert listed["brought_ext:Lowest"] == {
        "name": "brought_ext:Lowest",
        "option": "--scheduler",
        "note": "The lowest loss.",
    }
    assert listed["brought_ext:MINE"]["schedule"]["scheduler"] == "brought_ext:Lowest"
    assert listed["brought_ext:Heard"]["option"] == "--callbacks"
    assert {listed[f"brought_ext:{name}"]["option"] for name in ("Kept", "Steps")} == {"in a method"}
    assert main(["methods", "brought_ext"]) == 0
    shown = capsys.readouterr().out
    assert all(name in shown for name in listed)


def test_method_of_a_user_module_runs_like_a_built_in_method(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mine_ext.py").write_text("import fedraa as fl\nMINE = fl.method('fed-raa').replace(mixing=0.25)\n")
    monkeypatch.chdir(tmp_path)
    flags = ["--engine", "local", "--clients", "2", "--hidden", "8", "--local-steps", "1", "--updates", "4", "--quiet"]
    assert main(["run", "--method", "mine_ext:MINE", *flags, "--out", "own"]) == 0
    assert main(["run", "--method", "fed-raa", "--mixing", "0.25", *flags, "--out", "named"]) == 0
    own, named = History("own"), History("named")
    assert own.summary["model_sha256"] == named.summary["model_sha256"]
    assert own.config["method"]["update"] == named.config["method"]["update"]
    assert main(["replay", "own"]) == 0
    assert main(["run", "--method", "mine_ext:absent", *flags]) == 2
    assert main(["run", "--method", "mine_ext:fl", *flags]) == 2
    assert capsys.readouterr().err.splitlines()[-1].startswith("fedraa: method: ")


def test_methods_of_a_missing_module_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["methods", "no_such_ext"]) == 2
    err = capsys.readouterr().err
    assert err.startswith("fedraa: names: got 'no_such_ext'; ")
    assert err.count("\n") == 1


@pytest.mark.parametrize("width", [60, 80, 120])
@pytest.mark.parametrize("words", [["methods"], ["plan", "--method", "fed-raa"], ["plan", "--method", "heterofl"]])
def test_a_narrow_terminal_cuts_nothing_off(
    words: list[str], width: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TTY_COMPATIBLE", "1")
    monkeypatch.setenv("COLUMNS", str(width))
    assert main(words) == 0
    shown = re.sub(r"\x1b\[[\d;]*m", "", capsys.readouterr().out)
    table = shown.partition("delay bound")[0].partition("server memory")[0]
    assert "…" not in shown
    assert max(map(len, table.splitlines())) <= width
    assert all(name in shown for name in METHODS) or words[0] == "plan"


def test_brackets_and_colons_of_values_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    """Rich would read a title as markup, and `:100:` as the name of an emoji."""
    table = Table("setting", title="csv('runs[/b] [old].csv')")
    table.add_row("steps:100:0.1")
    print_table(table)
    print_line("steps:100:0.1")
    shown = capsys.readouterr().out
    assert "csv('runs[/b] [old].csv')" in " ".join(shown.split())
    assert shown.count("steps:100:0.1") == 2


def test_clients_with_similar_names_differ_in_the_table_of_the_data(capsys: pytest.CaptureFixture[str]) -> None:
    data = build_run(Experiment(clients=2, updates=1, engine="local")).data
    names = ("[site] hospital-north", "[/site] hospital-south")
    print_table(data_table(replace(data, names=names), "iid"))
    shown = capsys.readouterr().out
    assert all(name in shown for name in names)


def test_a_narrow_table_keeps_its_caption(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("TTY_COMPATIBLE", "1")
    monkeypatch.setenv("COLUMNS", "20")
    table = Table("method", "best", caption="* at the edge")
    table.add_row("fed-raa-with-a-name", "lr=0.1*")
    print_table(table)
    assert "* at the edge" in capsys.readouterr().out
