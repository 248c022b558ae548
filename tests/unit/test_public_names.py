"""`import fedraa` is fast, and dir(), help() and editors see all public names and no others."""

import ast
import pydoc
import re
import subprocess
import sys
from pathlib import Path

import pytest
from refusals import refuses

import fedraa
from fedraa import Experiment, History

SOURCE = ast.parse(Path(fedraa.__file__).read_text())


def test_dir_lists_every_public_name_and_each_has_a_docstring() -> None:
    assert dir(fedraa) == sorted(fedraa.__all__) == sorted(fedraa._HOMES)
    for name in fedraa.__all__:
        assert getattr(fedraa, name).__name__.removeprefix("fedraa.") == name
        assert getattr(fedraa, name).__doc__, name
    with pytest.raises(AttributeError, match="has no attribute 'walk'"):
        fedraa.walk  # noqa: B018  # this access raises


def test_type_checker_imports_and_the_docstring_list_the_public_names() -> None:
    block = next(node for node in SOURCE.body if isinstance(node, ast.If))
    seen = {alias.name for node in block.body if isinstance(node, ast.ImportFrom) for alias in node.names}
    assert seen == set(fedraa.__all__)
    rows = re.findall(r"^    (\w+)  +\S", str(fedraa.__doc__), flags=re.MULTILINE)
    assert sorted(rows) == sorted(fedraa.__all__)


def test_help_begins_with_the_public_names() -> None:
    text = pydoc.plain(pydoc.render_doc(fedraa))
    start = text[: text.index("PACKAGE CONTENTS")]
    assert all(re.search(rf"\b{name}\b", start) for name in fedraa.__all__)
    assert all(word not in text for word in ("import_module", "_HOMES", "ModuleType"))


def run_in_new_process(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_import_of_fedraa_loads_no_slow_library() -> None:
    slow = "{'torch', 'pandas', 'ray', 'matplotlib', 'pydantic', 'tyro', 'numpy'}"
    assert run_in_new_process(f"import sys, fedraa; dir(fedraa); print({slow} & set(sys.modules))") == "set()\n"


def test_star_import_brings_exactly_the_public_names() -> None:
    names: dict[str, object] = {}
    exec("from fedraa import *", names)
    assert sorted(names.keys() - {"__builtins__"}) == sorted(fedraa.__all__)


def test_functions_take_precedence_over_packages_of_the_same_name() -> None:
    code = "import fedraa, fedraa.replay.log_checker, fedraa.report.page\n"
    code += "print(fedraa.replay.__module__, fedraa.report.__module__)"
    assert run_in_new_process(code) == "fedraa.api fedraa.api\n"


def test_help_on_an_experiment_has_every_field_with_its_text() -> None:
    text = " ".join(pydoc.plain(pydoc.render_doc(Experiment)).replace("|", " ").split())
    for name, field in Experiment.model_fields.items():
        assert field.description, name
        assert " ".join(field.description.replace("|", " ").split()) in text
        assert f"{name} (" in text
    updates = " ".join(str(Experiment.model_fields["updates"].description).split())
    assert f"updates (int None = None): {updates}" in text
    assert "engine ('ray' 'local' = 'ray'):" in text


def test_history_docstring_names_every_column_and_event_kind(sample_runs: Path) -> None:
    told = str(History.__doc__)
    for directory in sample_runs.iterdir():
        history = History(directory)
        columns = {*history.evals.columns} | {key for line in history.lines() for key in line}
        kinds = {str(line["kind"]) for line in history.lines()}
        assert [name for name in columns | kinds if not re.search(rf"\b{name}\b", told)] == []


@pytest.mark.parametrize("name", ["run", "resume", "compare", "replay", "report", "method", "Experiment", "History"])
def test_help_on_public_names_documents_errors_and_usage(name: str) -> None:
    told = pydoc.plain(pydoc.render_doc(getattr(fedraa, name)))
    assert "Raises" in told or "ValueError" in told
    assert "fedraa." in told


def test_run_takes_the_fields_of_an_experiment(tmp_path: Path) -> None:
    base = Experiment(engine="local", clients=4, hidden=(8,), local_epochs=1, updates=3)
    history = fedraa.run(base, dataset="digits", model="mlp", seed=4, out=tmp_path / "run")
    assert (history.experiment.seed, history.experiment.updates, history.config["given"]) == (4, 3, [])
    assert repr(history).startswith(f"<History of {tmp_path / 'run'}: fed-raa on digits, ended by steps, step 3, ")
    with refuses("lrr", " lr?"):
        fedraa.run(base, lrr=3)
    with refuses("method", "fedavg", got="fedmagic"):
        fedraa.method("fedmagic")
    assert fedraa.method("fed-raa").asynchronous
