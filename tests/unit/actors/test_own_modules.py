"""The user's modules that Ray sends by value, and the processes that can import them."""

import sys
import threading
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from subprocess import run as execute
from typing import Any

import pytest
from ray import cloudpickle
from refusals import refuses

import fedraa as fl
from actors.cluster.own_parts import carry_by_value, share_import_paths
from fedraa.config.experiment import Experiment

MODULES = {
    "own_base_7": "class Base:\n    factor = 2\n",
    "own_part_7": (
        "import json\nimport own_tools_7\nfrom own_base_7 import Base\n"
        "class Part(Base):\n    def __call__(self, x):\n        return own_tools_7.double(x) + self.factor\n"
    ),
    "own_tools_7": "def double(x):\n    return 2 * x\n",
    "own_lock_7": "import threading\nLOCK = threading.Lock()\ndef part():\n    return LOCK\n",
}


@pytest.fixture
def module_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Return a folder with modules that this process imports."""
    for name, source in MODULES.items():
        (tmp_path / f"{name}.py").write_text(source)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    for name in MODULES:
        if name in cloudpickle.list_registry_pickle_by_value():
            cloudpickle.unregister_pickle_by_value(sys.modules[name])
        sys.modules.pop(name, None)


def call_in_other_process(pickled: Path, path: Path | None = None) -> Any:
    """Unpickle an object in another process, which can import the modules only from `path`, and return the result."""
    code = f"import pickle; print(pickle.load(open({str(pickled)!r}, 'rb'))[0](5))"
    extra = "" if path is None else f"import sys; sys.path.insert(0, {str(path)!r}); "
    return execute([sys.executable, "-c", extra + code], capture_output=True, text=True, check=False, cwd="/")


def test_user_module_and_its_user_imports_are_pickled_by_value(module_folder: Path, tmp_path: Path) -> None:
    part = import_module("own_part_7").Part()
    pickled = tmp_path / "pickle"
    pickled.write_bytes(cloudpickle.dumps([part]))
    assert "own_part_7" in call_in_other_process(pickled).stderr
    assert call_in_other_process(pickled, module_folder).stdout == "12\n"
    carry_by_value([part, Experiment()])
    assert {name for name in cloudpickle.list_registry_pickle_by_value() if name.endswith("_7")} == {
        "own_base_7",
        "own_part_7",
        "own_tools_7",
    }
    assert not {"json", "schedulers", "numpy"} & cloudpickle.list_registry_pickle_by_value()
    pickled.write_bytes(cloudpickle.dumps([part]))
    assert call_in_other_process(pickled).stdout == "12\n"


@pytest.mark.usefixtures("module_folder")
def test_module_that_cannot_be_pickled_is_refused() -> None:
    with refuses("address", "lock"):
        carry_by_value([import_module("own_lock_7").part])


def test_component_that_cannot_be_pickled_is_refused_with_its_field(tmp_path: Path) -> None:
    class Locked(fl.Scheduler):
        def __init__(self) -> None:
            self.lock = threading.Lock()

        def __deepcopy__(self, memo: object) -> "Locked":
            return self

        def choose(self, view: Any, rng: Any) -> int:
            return int(view.feasible[0])

        def state(self) -> dict[str, Any]:
            return {}

    with refuses("scheduler", "Locked", "lock", "--engine local"):
        fl.run(scheduler=Locked(), clients=2, updates=2, quiet=True, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_function_of_a_script_may_use_the_package_as_a_module() -> None:
    def part() -> str:
        return fl.ApplyResult.__name__

    assert cloudpickle.loads(cloudpickle.dumps(part))() == "ApplyResult"
    assert cloudpickle.loads(cloudpickle.dumps(fl)) is fl


def test_child_processes_import_the_modules_of_this_process(module_folder: Path) -> None:
    code = [sys.executable, "-c", "import own_part_7; print(own_part_7.Part()(5))"]
    assert execute(code, capture_output=True, check=False, cwd="/").returncode
    with share_import_paths():
        assert execute(code, capture_output=True, text=True, check=False, cwd="/").stdout == "12\n"
    assert execute(code, capture_output=True, check=False, cwd="/").returncode
