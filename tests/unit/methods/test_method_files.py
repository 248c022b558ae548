"""Each method has one file, which a reader opens first; a new file is found without a change elsewhere."""

import ast
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from refusals import refuses

import fedraa as fl
from benchmarks.system.structure import ROOT
from fedraa.cli.main import main
from fedraa.components import registry as component_registry
from fedraa.composition import registry
from fedraa.composition.method import Method
from fedraa.composition.registry import component_classes, find_method, list_methods
from fedraa.replay.replay import replay
from fedraa.server.async_rule import ASYNC_RULE
from fedraa.settings.terms import on_terms

FILES = sorted(path for path in (ROOT / "fedraa/methods").glob("*.py") if path.name != "__init__.py")
MAX_READ_NEXT = 4
PLUGIN = '''
"""Half steps (Nobody 2026, Algorithm 1).

When delta arrives: theta <- theta + 0.5 * delta

Read next: server/async_rule.py (the interface of a rule).
"""

from dataclasses import dataclass

from fedraa.composition.method import Method, PaperSettings
from fedraa.composition.registry import register
from fedraa.server.async_rule import ASYNC_RULE, AsyncRule, ApplyResult
from fedraa.server.schedule import AsyncSchedule


@ASYNC_RULE.register("half-step")
@dataclass
class HalfStep(AsyncRule):
    def apply_update(self, update, model):
        model.params[update.where] += 0.5 * update.delta
        return ApplyResult(0.5)


register(
    Method(
        name="half-steps",
        paper="Nobody 2026",
        update=HalfStep(),
        schedule=AsyncSchedule(),
        paper_settings=PaperSettings(source="Nobody 2026", values={"lr": 0.3}),
    )
)
'''


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_method_file_begins_with_pseudo_code_and_names_at_most_four_files_to_read(path: Path) -> None:
    text = ast.get_docstring(ast.parse(path.read_text()))
    assert text is not None
    idea, _, read_next = text.partition("Read next: ")
    named = re.findall(r"([\w/]+\.py)", read_next)
    assert 1 <= len(named) <= MAX_READ_NEXT
    for name in named:
        assert (ROOT / "fedraa" / name).is_file() or (ROOT / name).is_file()
    # A summary with the source, and a block of at least one line below it.
    assert re.search(r"\(.+\)|[:.]", idea.splitlines()[0])
    assert len(idea.strip().splitlines()) >= 3


def test_fedavg_names_the_four_files_of_its_path() -> None:
    text = (ROOT / "fedraa/methods/fedavg.py").read_text()
    assert len(re.findall(r"[\w/]+\.py", text.partition("Read next: ")[2].partition('"""')[0])) == MAX_READ_NEXT


def test_every_method_has_a_formula_a_use_case_and_paper_settings() -> None:
    assert len(list_methods()) >= 49
    for name, method in list_methods().items():
        assert name == method.name
        assert method.formula
        assert method.when
        assert method.paper_settings is not None
        assert not method.variant_of or method.variant_of in list_methods()


def test_variants_follow_the_method_that_they_vary() -> None:
    names = list(list_methods())
    at = names.index("fed-raa")
    variants = [name for name, method in list_methods().items() if method.variant_of == "fed-raa"]
    assert names[at + 1 : at + 1 + len(variants)] == variants


def test_order_of_imports_does_not_matter() -> None:
    code = (
        "import sys, importlib, pkgutil, fedraa.methods as package\n"
        "found = sorted(info.name for info in pkgutil.iter_modules(package.__path__))\n"
        "step = -1 if sys.argv[1] == 'reverse' else 1\n"
        "for name in found[::step]: importlib.import_module(f'fedraa.methods.{name}')\n"
        "from fedraa.composition.registry import component_classes, list_methods\n"
        "from fedraa.server.async_rule import ASYNC_RULE\n"
        "from fedraa.aggregation.registry import AGGREGATOR\n"
        "print(sorted(list_methods()), sorted(component_classes()))\n"
        "print(sorted(ASYNC_RULE.names()), sorted(AGGREGATOR.names()))"
    )
    outputs = {
        subprocess.run([sys.executable, "-c", code, order], capture_output=True, text=True, check=True).stdout
        for order in ("forward", "reverse")
    }
    assert len(outputs) == 1


def test_names_of_component_classes_are_unique() -> None:
    bases = [kind for kind in component_classes().values() if isinstance(kind, type)]
    names = [kind.__name__ for kind in bases]
    assert sorted(names) == sorted(set(names))
    for name, kind in component_classes().items():
        assert kind.__name__ == name


@pytest.fixture
def plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Provide a plug-in package with one module that registers one method."""
    package = tmp_path / "more_methods"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "half_steps.py").write_text(PLUGIN)
    monkeypatch.syspath_prepend(tmp_path)
    list_methods()
    monkeypatch.setattr(component_registry, "PLUGIN_PACKAGES", ["fedraa.methods", "more_methods"])
    component_registry.load_plugins.cache_clear()
    yield
    registry._registered.pop("half-steps", None)
    ASYNC_RULE.registered.pop("half-step", None)
    component_registry.load_plugins.cache_clear()
    for name in ("more_methods", "more_methods.half_steps"):
        sys.modules.pop(name, None)


def _weights(history: fl.History) -> list[float]:
    return [event["weight"] for event in history.lines() if event["kind"] == "commit"]


@pytest.mark.usefixtures("plugin")
def test_method_of_a_plugin_package_is_found_by_runs_lists_and_replay(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert find_method("half-steps").paper == "Nobody 2026"
    assert on_terms(fl.Experiment(method="half-steps"), "paper").lr == 0.3
    assert main(["methods", "--json"]) == 0
    assert "half-steps" in [row["name"] for row in json.loads(capsys.readouterr().out)]
    small = {"dataset": "digits", "clients": 3, "hidden": (8,), "local_steps": 1, "updates": 4, "quiet": True}
    history = fl.run(method="half-steps", engine="local", out=tmp_path / "run", **small)
    assert _weights(history) == [0.5] * 4
    assert "consistent" in replay(tmp_path / "run")
    other = fl.run(method="fedasync", async_rule="half-step", engine="local", out=tmp_path / "other", **small)
    assert _weights(other) == [0.5] * 4


def test_a_name_cannot_be_registered_twice() -> None:
    with pytest.raises(AssertionError, match="fedavg"):
        registry.register(Method(name="fedavg"))
    with pytest.raises(AssertionError, match="ringmaster"):
        ASYNC_RULE.register("ringmaster")(object)


def test_terms_paper_are_refused_for_a_custom_method() -> None:
    with refuses("terms", "own"):
        on_terms(fl.Experiment(method=Method()), "paper")
