"""Imports point one way: benchmarks -> actors -> {schedulers, fedraa}. Only actors and tests import Ray.

Three benchmarks that measure Ray itself also import Ray. Imports form no cycle, neither among modules nor among
folders. Imports within functions and imports only for type checkers also count.
"""

from pathlib import Path

import pytest

from benchmarks.system.structure import PACKAGES, ROOT, find_cycles, folder_graph, imported_names, module_graph

MAY_IMPORT = {
    "schedulers": set(),
    "fedraa": {"schedulers"},
    "actors": {"schedulers", "fedraa", "ray"},
    "benchmarks": {"schedulers", "fedraa", "actors"},
}
# These benchmarks measure Ray without fedraa, or kill its processes, so they import Ray.
MEASURES_RAY = {f"benchmarks/system/{name}.py" for name in ("chaos_kills", "memory", "plan_nodes", "throughput")}
ON_TOP = {"fedraa/api.py", "fedraa/cli/doctor.py", "fedraa/cli/main.py", "fedraa/cli/operations.py"}
# Private names that fedraa imports. Each of these libraries, except torch, has an upper bound in pyproject.toml.
PRIVATE = {
    # These are tyro's parse errors.
    "fedraa/cli/parse.py": {"tyro._errors"},
    # These serve for loopback, fewer processes, health checks, a private token, and checks of an address.
    "actors/ray_versions.py": {"ray._raylet", "ray._private"},
    # PyTorch's documentation ("Extending PyTorch") tells users to import TorchDispatchMode by this name.
    "fedraa/submodels/meter.py": {"torch.utils._python_dispatch"},
}
VERSION_RANGES = {"ray": '"ray[default]>=2.40,<2.61"', "tyro": '"tyro>=1.0.17,<1.1"'}
MAX_FILE_LINES = 400

MODULES = [
    path.relative_to(ROOT).as_posix() for package in MAY_IMPORT for path in sorted((ROOT / package).rglob("*.py"))
]


@pytest.fixture(scope="module")
def imported() -> dict[str, set[str]]:
    """Return the names that each module imports."""
    return {module: imported_names((ROOT / module).read_text()) for module in MODULES}


def test_module_imports_only_packages_below_it(imported: dict[str, set[str]]) -> None:
    wrong = {}
    for module, names in imported.items():
        package = module.split("/")[0]
        allowed = MAY_IMPORT[package] | {package}
        if module in ON_TOP:
            allowed |= {"actors"}
        if module in MEASURES_RAY:
            allowed |= {"ray"}
        packages = {name.split(".")[0] for name in names} & {*MAY_IMPORT, "ray"}
        if packages - allowed:
            wrong[module] = packages - allowed
    assert wrong == {}


def test_imports_form_no_cycle() -> None:
    modules = module_graph([*PACKAGES, "benchmarks"])
    assert find_cycles(modules) == []
    assert find_cycles(folder_graph(modules)) == []


def test_only_listed_modules_import_the_cli_and_the_api() -> None:
    folders = folder_graph(module_graph(["fedraa"]))
    assert {name for name in folders if "fedraa.cli" in folders[name]} <= {"fedraa.__main__"}
    assert {name for name in folders if "fedraa.api" in folders[name]} <= {
        "fedraa",
        "fedraa.__main__",
        "fedraa.cli",
        # The test kit runs experiments through the public functions.
        "fedraa.testing",
        "fedraa.tuning",
    }


def test_package_root_has_at_most_10_modules() -> None:
    assert len(list((ROOT / "fedraa").glob("*.py"))) <= 10


def test_only_listed_modules_import_private_names_of_libraries(imported: dict[str, set[str]]) -> None:
    private = {module: {*map(private_part, names)} - {None} for module, names in imported.items()}
    assert {module: names for module, names in private.items() if names} == PRIVATE


def test_libraries_with_private_imports_have_an_upper_version_bound() -> None:
    libraries = {name.split(".")[0] for names in PRIVATE.values() for name in names}
    assert libraries == {*VERSION_RANGES, "torch"}
    text = (ROOT / "pyproject.toml").read_text()
    assert all(requirement in text for requirement in VERSION_RANGES.values())


def test_source_files_have_at_most_400_lines() -> None:
    product = [module for module in MODULES if not module.startswith("benchmarks/")]
    assert [module for module in product if len((ROOT / module).read_text().splitlines()) > MAX_FILE_LINES] == []


@pytest.mark.parametrize(
    ("source", "names"),
    [
        ("import ray", {"ray"}),
        ("def f():\n    from ray.util import x", {"ray.util.x"}),
        ("if TYPE_CHECKING:\n    import fedraa.engine.loop as loop", {"fedraa.engine.loop"}),
        ("importlib.import_module('actors.pool.executor')", {"actors.pool.executor"}),
        ("arrays = 'import ray'", set()),
    ],
)
def test_imported_names_finds_every_form_of_import(source: str, names: set[str]) -> None:
    assert imported_names(source) == names


@pytest.mark.parametrize(
    ("name", "private"),
    [
        ("ray._private.services.canonicalize", "ray._private"),
        ("tyro._errors", "tyro._errors"),
        ("torch.utils.flop_counter", None),
        ("fedraa.cli._own", None),
        ("__future__.annotations", None),
    ],
)
def test_private_part_is_the_name_up_to_its_first_private_part(name: str, private: str | None) -> None:
    assert private_part(name) == private


def test_find_cycles_finds_every_cycle() -> None:
    graph = {"a": {"b"}, "b": {"c"}, "c": {"b", "d"}, "d": set(), "e": {"a", "f"}, "f": {"e"}}
    assert find_cycles(graph) == [("b", "c"), ("e", "f")]


def test_every_folder_of_the_source_tree_is_a_package() -> None:
    folders = {path.parent for package in MAY_IMPORT for path in (ROOT / package).rglob("*.py")}
    assert [folder for folder in folders if not (folder / "__init__.py").exists()] == []


def test_base_names_of_tests_are_unique() -> None:
    """The folders of tests are not packages, so two test files must not have the same name."""
    names = [path.name for path in Path(ROOT / "tests").rglob("*.py") if path.name != "conftest.py"]
    assert sorted(names) == sorted(set(names))


def private_part(name: str) -> str | None:
    """Return the name up to its first private part; None if it has no private part, or is a name of this project."""
    parts = name.split(".")
    if parts[0] in MAY_IMPORT or parts[0] == "__future__":
        return None
    return next((".".join(parts[: i + 1]) for i, part in enumerate(parts) if part.startswith("_")), None)
