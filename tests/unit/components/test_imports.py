"""The error about a user's module names the line that fails and the right next step."""

import re
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedraa as fl
from fedraa.components.calls import convert_errors
from fedraa.components.imports import import_object
from fedraa.errors import InputError
from fedraa.server.async_rule import AsyncModel

NOT_FOUND = "run in the folder of the module, or install it"


@pytest.mark.parametrize(
    ("name", "code", "hint"),
    [
        ("raises_value", "\nraise ValueError('bad')\n", "correct raises_value.py, line 2"),
        ("raises_input", "import fedraa as fl\nfl.method('fedasync').replace(momentum='x')\n", "line 2"),
        ("in_function", "def f():\n    return {}['a']\n\nf()\n", "correct f (in_function.py, line 2)"),
        ("needs_other", "import a_package_that_is_not_here\n", NOT_FOUND),
    ],
)
def test_error_about_a_failing_module_names_the_next_step(
    name: str, code: str, hint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / f"{name}.py").write_text(code)
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(InputError) as caught:
        import_object("method", f"{name}:X")
    assert caught.value.hint.endswith(hint)


class Broken:
    def choose(self) -> object:
        raise KeyError("missing")


def test_error_about_a_failing_component_names_the_line() -> None:
    with pytest.raises(InputError) as caught, convert_errors("scheduler", Broken()):
        Broken().choose()
    line = Broken.choose.__code__.co_firstlineno + 1
    assert caught.value.hint == f"correct Broken.choose (test_imports.py, line {line})"


class Adds(fl.AsyncRule):
    def apply_update(self, update: Any, model: Any) -> fl.ApplyResult:
        model.params += 1
        return fl.ApplyResult(1.0)


def test_error_about_assigning_the_model_hints_at_the_change_in_place() -> None:
    rule = Adds()
    with pytest.raises(InputError) as caught, convert_errors("async_rule", rule):
        rule.apply_update(None, AsyncModel(np.zeros(2, np.float32), clients=1, fragments=1))
    assert "params[:]" in caught.value.hint


class ReadsUnknown(fl.AsyncRule):
    def apply_update(self, update: Any, model: Any) -> fl.ApplyResult:
        return fl.ApplyResult(model.momentum)


def test_error_about_an_unknown_attribute_lists_the_attributes_that_exist() -> None:
    rule = ReadsUnknown()
    with pytest.raises(InputError) as caught, convert_errors("async_rule", rule):
        rule.apply_update(None, AsyncModel(np.zeros(2, np.float32), clients=1, fragments=1))
    names = {field.name for field in fields(AsyncModel)} | {"at_work"}
    listed = re.search(r"AsyncModel has only ([\w, ]+); correct ", caught.value.hint)
    assert listed is not None
    assert set(listed[1].split(", ")) == names
