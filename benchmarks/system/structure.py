"""Measure the structure of the code: folders, levels of imports, and import cycles.

In this module, the word folder means a package in fedraa (such as `fedraa/client`), a module at the root of fedraa
(such as `fedraa/rng.py`), or one of the packages `actors` and `schedulers`. A folder imports only folders of lower
levels.
"""

import ast
import re
from collections.abc import Mapping, Sequence
from graphlib import CycleError, TopologicalSorter
from itertools import chain
from pathlib import Path

from fedraa.cli.console import print_line
from fedraa.errors import InputError

ROOT = Path(__file__).parents[2]
PACKAGES = ("fedraa", "actors", "schedulers")
Graph = Mapping[str, set[str]]
"""A mapping from each node to the nodes that it imports."""


# A new method changes about as many files as contain the name of this method. The source uses the name for nothing
# else.
SAMPLE_METHOD = "asyncfeded"


def main() -> None:
    """Print the metrics of the code's structure, and then the folders by level."""
    for name, value in structure_metrics().items():
        print_line(f"{name:42} {value}")
    print_line("\nlevel  folders")
    folders = folder_graph(module_graph(PACKAGES))
    for number, names in enumerate(assign_levels(folders), start=1):
        print_line(f"{number:5}  {', '.join(names)}")


def structure_metrics() -> dict[str, int]:
    """Return the metrics of the code's structure, such as the number of import cycles, by name."""
    modules = module_graph(PACKAGES)
    folders = folder_graph(modules)
    return {
        "modules": len(modules),
        "modules at the root of fedraa": len(list((ROOT / "fedraa").glob("*.py"))),
        "folders": sum(1 for name in folders if is_package(name)),
        "levels": len(assign_levels(folders)),
        "imports between modules": sum(map(len, modules.values())),
        "imports between folders": sum(map(len, folders.values())),
        "cycles": len(find_cycles(modules)) + len(find_cycles(folders)),
        "source files that a new method touches": len(files_that_name(SAMPLE_METHOD)),
        "files to read for the idea of fedavg": 1,
        "files to read for the whole path of fedavg": 1 + len(read_next("fedavg")),
        "files to read for the idea of fed-raa": 1,
        "files to read for the whole path of fed-raa": 1 + len(read_next("fed_raa")),
    }


def files_that_name(method: str) -> list[str]:
    """Return the source files that contain the name of a method."""
    folders = (*PACKAGES, "docs/site")
    paths = chain.from_iterable(sorted((ROOT / folder).rglob("*.py")) for folder in folders)
    return [_relative_path(path) for path in paths if re.search(rf"\b{method}\b", path.read_text())]


def read_next(method_file: str) -> list[str]:
    """Return the files that the docstring of a method's file lists after "Read next".

    Raises ValueError if a listed file is not imported when the method runs.
    """
    path = ROOT / f"fedraa/methods/{method_file}.py"
    docstring = ast.get_docstring(ast.parse(path.read_text())) or ""
    named = re.findall(r"[\w/]+\.py", docstring.partition("Read next: ")[2])
    graph = module_graph(PACKAGES)
    # Every run also imports the engine, although no file of a method imports it.
    reached = _reachable_nodes(graph, _module_name(path)) | _reachable_nodes(graph, "fedraa.engine.executor")
    for name in named:
        path = ROOT / name if (ROOT / name).is_file() else ROOT / "fedraa" / name
        if _module_name(path) not in reached:
            raise ValueError(f"structure: {method_file} names {name} to read next, but no run of the method imports it")
    return named


def assign_levels(folders: Graph) -> list[list[str]]:
    """Return the folders of each level, the lowest level first. A folder imports only folders of lower levels.

    Raises ValueError for an import cycle.
    """
    level: dict[str, int] = {}
    for name in below_first(folders):
        level[name] = max((level[below] + 1 for below in folders.get(name, ())), default=0)
    highest = max(level.values(), default=-1)
    return [sorted(name for name in level if level[name] == number) for number in range(highest + 1)]


def imported_names(source: str) -> set[str]:
    """Return all imports of a module as dotted names, including those for type checkers.

    `from a.b import c` gives `a.b.c`, even if `c` is not a module.
    """
    names = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"line {node.lineno}: import by the full name"
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith(("import_module", "__import__")):
            names |= {str(arg.value) for arg in node.args if isinstance(arg, ast.Constant)}
    return names


def module_graph(packages: Sequence[str]) -> Graph:
    """Return the modules that each module of the packages imports."""
    paths = chain.from_iterable(sorted((ROOT / package).rglob("*.py")) for package in packages)
    files = {_module_name(path): path for path in paths}
    graph: dict[str, set[str]] = {}
    for name, path in files.items():
        targets = (_resolve_module(dotted_name, files) for dotted_name in imported_names(path.read_text()))
        graph[name] = {target for target in targets if target is not None and target != name}
    return graph


def folder_graph(modules: Graph) -> Graph:
    """Return the folders that each folder imports."""
    folders: dict[str, set[str]] = {}
    for name, targets in modules.items():
        here = folder_of_module(name)
        folders.setdefault(here, set()).update(target for target in map(folder_of_module, targets) if target != here)
    return folders


def folder_of_module(module: str) -> str:
    """Return the folder to which a module belongs."""
    package, *folders = module.split(".")
    if package == "fedraa":
        return ".".join([package, *folders[:1]])
    return package


def find_cycles(graph: Graph) -> list[tuple[str, ...]]:
    """Return the groups of nodes that import each other, directly or indirectly."""
    reach = {name: _reachable_nodes(graph, name) for name in graph}
    return sorted({tuple(sorted(other for other in reach[name] if name in reach[other])) for name in graph} - {()})


def below_first(graph: Graph) -> list[str]:
    """Return the nodes in an order in which each node imports only nodes before it.

    Raises ValueError for an import cycle.
    """
    try:
        return list(TopologicalSorter(graph).static_order())
    except CycleError as error:
        raise InputError("structure", f"the imports form a cycle, {' > '.join(error.args[1])}") from None


def is_package(folder: str) -> bool:
    """Return True for a package, False for a module at the root of fedraa, such as `fedraa.rng`."""
    return folder != "fedraa" and (ROOT / folder.replace(".", "/")).is_dir()


def _relative_path(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def _module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts).removesuffix(".__init__")


def _resolve_module(name: str, files: Mapping[str, Path]) -> str | None:
    """Return the module to which a dotted name belongs; None for another package's name."""
    if name in files:
        return name
    module = name.rpartition(".")[0]
    return module if module in files else None


def _reachable_nodes(graph: Graph, start: str) -> set[str]:
    reached: set[str] = set()
    waiting = list(graph[start])
    while waiting:
        name = waiting.pop()
        if name not in reached:
            reached.add(name)
            waiting += graph[name]
    return reached
