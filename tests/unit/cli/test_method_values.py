"""The page of one method: every value has a meaning, and an unset value names its default."""

import json
from dataclasses import replace
from textwrap import dedent

import pytest

from fedraa.cli.main import main
from fedraa.cli.method_values import describe_value, show_values, value_text
from fedraa.composition import registry
from fedraa.composition.overrides import SHORTCUTS, values_by_path


@pytest.mark.parametrize("name", registry.list_methods())
def test_every_value_of_a_method_has_a_meaning(name):
    method = registry.find_method(name)
    options = {method.path(option): option for option in SHORTCUTS}
    for path in values_by_path(method):
        assert len(describe_value(method, path, options.get(path)).split()) >= 3, path


def test_only_an_unset_value_names_its_default():
    method = registry.find_method("fed-raa-sync")
    assert "default: K*" in describe_value(method, "schedule.delay_bound", "delay_bound")
    assert "default" not in describe_value(method.replace(delay_bound=2.0), "schedule.delay_bound", "delay_bound")


def test_values_are_shown_as_they_can_be_typed():
    method = registry.find_method("fed-raa")
    assert value_text(method.update) == "ConvexMix"
    assert value_text((0.1, 0.9)) == "0.1 0.9"
    assert value_text(()) == "none"
    assert value_text(None) == "not set"


def test_page_of_a_method_has_its_formula_use_and_paper_settings(capsys):
    method = registry.find_method("fadas")
    assert main(["methods", "fadas"]) == 0
    page = " ".join(capsys.readouterr().out.split())
    for text in (method.formula, method.when, method.paper_settings.source, "buffer_size 5", "update.delay_limit 1"):
        assert text in page


def test_the_title_of_a_method_without_a_paper_and_a_note_is_its_name(capsys):
    method = replace(registry.find_method("fadas"), paper="", note="")
    show_values(method)
    assert capsys.readouterr().out.splitlines()[0] == "fadas"


def test_methods_lists_a_module_whose_rule_is_no_dataclass(tmp_path, monkeypatch, capsys):
    code = """
        import fedraa as fl

        class Fading(fl.AsyncRule):
            def apply_update(self, update, model):
                return fl.ApplyResult(0.0)

        FADING = fl.method("fedasync").replace(async_rule=Fading())
    """
    (tmp_path / "listed_rule.py").write_text(dedent(code))
    monkeypatch.syspath_prepend(str(tmp_path))
    assert main(["methods", "listed_rule"]) == 0
    assert "listed_rule:FADING" in capsys.readouterr().out
    assert main(["methods", "listed_rule", "--json"]) == 0
    rows = {row["name"]: row for row in json.loads(capsys.readouterr().out)}
    assert rows["listed_rule:FADING"]["update"] == {"kind": "Fading"}


def test_methods_refuses_a_module_without_methods_and_components(capsys):
    assert main(["methods", "json"]) == 2
    assert capsys.readouterr().err.startswith("fedraa: names: got 'json'; ")
