"""The structure of the source in figures: rooms, arrows, circles."""

import ast
from collections.abc import Mapping, Sequence
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

from fedraa.cli.display import say

ROOT = Path(__file__).parents[2]
PACKAGES = ("fedraa", "actors", "schedulers")
Graph = Mapping[str, set[str]]
"""The nodes, and for each the nodes that it imports."""


def main() -> None:
    """Print the figures of the structure: root modules, rooms, arrows between modules, circles."""
    modules = module_graph(PACKAGES)
    rooms = room_graph(modules)
    say(f"modules                {len(modules)}")
    say(f"  at the root of fedraa {len(list((ROOT / 'fedraa').glob('*.py')))}")
    say(f"rooms                  {sum(1 for name in rooms if is_package(name))}")
    say(f"arrows between modules {sum(map(len, modules.values()))}")
    say(f"arrows between rooms   {sum(map(len, rooms.values()))}")
    say(f"circles                {len(circles(modules)) + len(circles(rooms))}")
    say(f"from below to above    {', '.join(below_first(rooms))}")


def imported(source: str) -> set[str]:
    """What a module imports anywhere in it, as dotted names: in functions, for type checkers alone, by name.

    `from a.b import c` is `a.b.c`, whether `c` is a module or not.
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
    """Which module of these packages imports which."""
    files = {_name(path): path for package in packages for path in sorted((ROOT / package).rglob("*.py"))}
    return {
        name: {target for each in imported(path.read_text()) if (target := _module(each, files)) and target != name}
        for name, path in files.items()
    }


def room_graph(modules: Graph) -> Graph:
    """Which room imports which. A room is a folder of fedraa, a module at its root, or another package as a whole."""
    rooms: dict[str, set[str]] = {}
    for name, targets in modules.items():
        here = room(name)
        rooms.setdefault(here, set()).update(there for there in map(room, targets) if there != here)
    return rooms


def room(module: str) -> str:
    package, _, rest = module.partition(".")
    return f"{package}.{rest.partition('.')[0]}" if package == "fedraa" and rest else package


def circles(graph: Graph) -> list[tuple[str, ...]]:
    """The groups of nodes that import each other, directly or through others."""
    reach = {name: _reachable(graph, name) for name in graph}
    return sorted({tuple(sorted(other for other in reach[name] if name in reach[other])) for name in graph} - {()})


def below_first(graph: Graph) -> list[str]:
    """The nodes in an order in which each imports only what comes before it."""
    try:
        return list(TopologicalSorter(graph).static_order())
    except CycleError as error:
        raise ValueError(f"structure: the imports go in a circle, {' > '.join(error.args[1])}") from None


def is_package(room: str) -> bool:
    return room != "fedraa" and (ROOT / room.replace(".", "/")).is_dir()


def _name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _module(name: str, files: Mapping[str, Path]) -> str | None:
    """The module that a dotted name is, or is in."""
    return name if name in files else next((at for at in [name.rpartition(".")[0]] if at in files), None)


def _reachable(graph: Graph, start: str) -> set[str]:
    found: set[str] = set()
    waiting = list(graph[start])
    while waiting:
        name = waiting.pop()
        if name not in found:
            found.add(name)
            waiting += graph[name]
    return found
