"""Metrics of the structure of the code: rooms, floors and import cycles.

A room is a folder of fedraa, or another package as a whole. The floor of a room is its level in the order of imports: a
room imports only rooms of lower floors.
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
"""The nodes, and for each the nodes that it imports."""


# `files_that_name` counts the files that name this method. Its name has no other meaning in the code.
SAMPLE_METHOD = "asyncfeded"


def main() -> None:
    """Print the metrics: modules, rooms (folders), floors (levels of imports), cycles, and files to read or change."""
    for name, value in structure_metrics().items():
        print_line(f"{name:42} {value}")
    print_line("\nfloor  rooms")
    rooms = room_graph(module_graph(PACKAGES))
    for number, names in enumerate(assign_floors(rooms), start=1):
        print_line(f"{number:5}  {', '.join(names)}")


def structure_metrics() -> dict[str, int]:
    """Return the metrics of the structure by name."""
    modules = module_graph(PACKAGES)
    rooms = room_graph(modules)
    return {
        "modules": len(modules),
        "modules at the root of fedraa": len(list((ROOT / "fedraa").glob("*.py"))),
        "rooms": sum(1 for name in rooms if is_package(name)),
        "floors": len(assign_floors(rooms)),
        "imports between modules": sum(map(len, modules.values())),
        "imports between rooms": sum(map(len, rooms.values())),
        "cycles": len(find_cycles(modules)) + len(find_cycles(rooms)),
        "source files that a new method touches": len(files_that_name(SAMPLE_METHOD)),
        "files to read for the idea of fedavg": 1,
        "files to read for the whole path of fedavg": 1 + len(read_next("fedavg")),
        "files to read for the idea of fed-raa": 1,
        "files to read for the whole path of fed-raa": 1 + len(read_next("fed_raa")),
    }


def files_that_name(method: str) -> list[str]:
    """Return the source files that name a method. A new method has to touch these files, besides its test."""
    folders = (*PACKAGES, "docs/site")
    paths = chain.from_iterable(sorted((ROOT / folder).rglob("*.py")) for folder in folders)
    return [_relative_path(path) for path in paths if re.search(rf"\b{method}\b", path.read_text())]


def read_next(method_file: str) -> list[str]:
    """Return the files that the docstring of a method file says to read next.

    Raises ValueError for a file that no run of the method imports.
    """
    path = ROOT / f"fedraa/methods/{method_file}.py"
    docstring = ast.get_docstring(ast.parse(path.read_text())) or ""
    named = re.findall(r"[\w/]+\.py", docstring.partition("Read next: ")[2])
    graph = module_graph(PACKAGES)
    # The engine runs the components of a method. A file is on the path if the method or the engine imports it, directly
    # or indirectly.
    reached = _reachable_nodes(graph, _module_name(path)) | _reachable_nodes(graph, "fedraa.engine.executor")
    for name in named:
        path = ROOT / name if (ROOT / name).is_file() else ROOT / "fedraa" / name
        if _module_name(path) not in reached:
            raise ValueError(f"structure: {method_file} names {name} to read next, but no run of the method imports it")
    return named


def assign_floors(rooms: Graph) -> list[list[str]]:
    """Return the rooms floor by floor: a room imports only rooms of lower floors. Raises ValueError for a cycle."""
    floor: dict[str, int] = {}
    for name in below_first(rooms):
        floor[name] = max((floor[below] + 1 for below in rooms.get(name, ())), default=0)
    highest = max(floor.values(), default=-1)
    return [sorted(name for name in floor if floor[name] == number) for number in range(highest + 1)]


def imported_names(source: str) -> set[str]:
    """Return all imports of a module as dotted names, also within functions and only for type checkers.

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
    """Return the modules of these packages, each with the modules that it imports."""
    paths = chain.from_iterable(sorted((ROOT / package).rglob("*.py")) for package in packages)
    files = {_module_name(path): path for path in paths}
    graph: dict[str, set[str]] = {}
    for name, path in files.items():
        targets = (_resolve_module(dotted_name, files) for dotted_name in imported_names(path.read_text()))
        graph[name] = {target for target in targets if target is not None and target != name}
    return graph


def room_graph(modules: Graph) -> Graph:
    """Return the rooms, each with the rooms that it imports.

    A room is a folder of fedraa, a module at its root, or another package as a whole.
    """
    rooms: dict[str, set[str]] = {}
    for name, targets in modules.items():
        here = room_of_module(name)
        rooms.setdefault(here, set()).update(target for target in map(room_of_module, targets) if target != here)
    return rooms


def room_of_module(module: str) -> str:
    """Return the room of a module."""
    package, *folders = module.split(".")
    if package == "fedraa":
        return ".".join([package, *folders[:1]])
    return package


def find_cycles(graph: Graph) -> list[tuple[str, ...]]:
    """Return the groups of nodes that import each other, directly or indirectly."""
    reach = {name: _reachable_nodes(graph, name) for name in graph}
    return sorted({tuple(sorted(other for other in reach[name] if name in reach[other])) for name in graph} - {()})


def below_first(graph: Graph) -> list[str]:
    """Return the nodes in an order in which each imports only nodes before it. Raises ValueError for a cycle."""
    try:
        return list(TopologicalSorter(graph).static_order())
    except CycleError as error:
        raise InputError("structure", f"the imports form a cycle, {' > '.join(error.args[1])}") from None


def is_package(room: str) -> bool:
    """Return True if a room is a package. The modules at the root of fedraa are a room, but not a subpackage."""
    return room != "fedraa" and (ROOT / room.replace(".", "/")).is_dir()


def _relative_path(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def _module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts).removesuffix(".__init__")


def _resolve_module(name: str, files: Mapping[str, Path]) -> str | None:
    """Return the module that a dotted name is, or that contains the name; None for a name of another package."""
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
