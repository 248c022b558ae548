"""Imports point one way: benchmarks -> actors -> {schedulers, fedraa}; only actors and tests import Ray.

Three benchmarks do, too: those whose subject is Ray itself.
"""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("benchmarks", "actors", "schedulers", "fedraa")
MAY_IMPORT = {
    "schedulers": set(),
    "fedraa": {"schedulers"},
    "actors": {"schedulers", "fedraa", "ray"},
    "benchmarks": {"schedulers", "fedraa", "actors"},
}
# What measures bare Ray, or kills its processes, has to name it.
MEASURES_RAY = {"benchmarks/system/chaos.py", "benchmarks/system/memory.py", "benchmarks/system/throughput.py"}
FRONT_DOOR = {"fedraa/api.py", "fedraa/cli/main.py"}


def imported(source: str) -> set[str]:
    """The top-level packages that a module imports anywhere in it, by statement or by name."""
    names = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"line {node.lineno}: import by the full name"
            names.add(str(node.module))
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith(("import_module", "__import__")):
            names |= {arg.value for arg in node.args if isinstance(arg, ast.Constant)}
    return {name.split(".")[0] for name in names}


MODULES = [path.relative_to(ROOT).as_posix() for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))]


@pytest.mark.parametrize("module", MODULES)
def test_a_module_imports_only_what_lies_behind_it(module: str) -> None:
    package = module.split("/")[0]
    allowed = MAY_IMPORT[package] | {package}
    allowed |= ({"actors"} if module in FRONT_DOOR else set()) | ({"ray"} if module in MEASURES_RAY else set())
    ours = imported((ROOT / module).read_text()) & {*PACKAGES, "ray"}
    assert ours <= allowed, f"{module} imports {sorted(ours - allowed)}"


@pytest.mark.parametrize(
    ("source", "packages"),
    [
        ("import ray", {"ray"}),
        ("def f():\n    from ray.util import x", {"ray"}),
        ("if TYPE_CHECKING:\n    import fedraa.engine.loop as loop", {"fedraa"}),
        ("importlib.import_module('actors.pool.executor')", {"actors"}),
        ("arrays = 'import ray'", set()),
    ],
)
def test_every_way_to_import_is_seen(source: str, packages: set[str]) -> None:
    assert imported(source) == packages


def test_every_package_of_the_source_tree_is_installed() -> None:
    listed = (ROOT / "pyproject.toml").read_text().split("packages = [")[1].split("]")[0]
    there = {
        path.parent.relative_to(ROOT).as_posix().replace("/", ".")
        for package in PACKAGES
        for path in (ROOT / package).rglob("__init__.py")
    }
    assert {line.strip(' ",') for line in listed.split("\n") if line.strip()} == there
