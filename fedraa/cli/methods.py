"""The output of `fedraa methods`: all methods, the settings of methods, or the components of modules."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, asdict, fields, is_dataclass
from types import ModuleType
from typing import Any

from rich import box
from rich.markup import escape
from rich.table import Table

from fedraa.cli.console import page_console, print_line, print_table
from fedraa.cli.method_values import join_values, show_values
from fedraa.client.local_algorithm import LocalAlgorithm
from fedraa.client.local_training import LocalTraining
from fedraa.components.imports import import_user_module, is_path
from fedraa.components.text import text_of
from fedraa.composition import registry
from fedraa.composition.method import Method
from fedraa.composition.overrides import values_by_path
from fedraa.errors import InputError, closest_name
from fedraa.server.round_state import RoundState

# The table of methods omits settings that equal these defaults.
PLAIN = LocalTraining(momentum=0.0)


def show_methods(names: Sequence[str], *, as_json: bool) -> None:
    """Print the settings of the named methods. Without names, list all methods.

    If the names are modules, also list the components of these modules.

    Args:
        names: Names of methods or of modules. `a+b` combines two methods. `package.module:NAME` is a custom method.
        as_json: True to print JSON.
    """
    chosen = [name for name in names if name in registry.list_methods() or "+" in name or is_path(name)]
    if chosen:
        _show_values([registry.find_method(name) for name in chosen], as_json=as_json)
    modules = [name for name in names if name not in chosen]
    if modules or not chosen:
        _list_methods_and_components(modules, as_json=as_json)


def _show_values(chosen: Sequence[Method], *, as_json: bool) -> None:
    if as_json:
        rows = [{"name": method.name, "values": values_by_path(method)} for method in chosen]
        print_line(json.dumps(rows, indent=2, default=text_of))
        return
    for method in chosen:
        show_values(method)
    print_line("set a value with its option, or with --override PATH=VALUE")


def _import_module(name: str) -> ModuleType:
    """Import a module.

    Raises InputError if the module does not exist. The error suggests the most similar method name.
    """
    try:
        return import_user_module("names", name)
    except InputError:
        if closest_name(name, registry.list_methods()):
            registry.find_method(name)
        raise


def _list_methods_and_components(modules: Sequence[str], *, as_json: bool) -> None:
    listed = dict(registry.list_methods())
    parts = []
    for module in map(_import_module, modules):
        methods, components = custom_methods(module), custom_components(module)
        if not methods and not components:
            expected = "a module that defines methods or classes of components"
            raise InputError("names", got=module.__name__, expected=expected, hint="`fedraa methods` lists all methods")
        listed |= methods
        parts += components
    if as_json:
        rows = [_json_row(name, method) for name, method in listed.items()]
        rows += [{"name": name, "option": option, "note": note} for name, option, note in parts]
        print_line(json.dumps(rows, indent=2, default=text_of))
        return
    console = page_console()
    for heading, members in group_by_family(listed).items():
        print_table(family_table(heading, members, max(map(len, listed))), console)
    print_line("`fedraa methods NAME` shows the values that options can set")
    if parts:
        table = Table("component", "option", "description", box=box.SIMPLE_HEAD)
        for name, option, note in parts:
            table.add_row(escape(name), option, escape(note))
        print_table(table)


def group_by_family(listed: Mapping[str, Method]) -> dict[str, dict[str, Method]]:
    """Return, for each family's heading, its methods by name. Asynchronous families come first."""
    families: dict[str, dict[str, Method]] = {}
    for name, method in sorted(listed.items(), key=lambda item: not item[1].asynchronous):
        families.setdefault(describe_family(method), {})[name] = method
    return families


def describe_family(method: Method) -> str:
    """Return the heading of a method's family: the kind of server and the trained part of the model."""
    server = "synchronous server, steps are rounds"
    if method.asynchronous:
        server = "asynchronous server, steps are updates"
    if method.submodel.scheduled:
        trained = "fragments"
    elif method.submodel.whole:
        trained = "whole model"
    else:
        trained = "submodels"
    return f"{server}: {trained}"


def family_table(heading: str, members: Mapping[str, Method], name_width: int) -> Table:
    """Return a table with the submodel, local training, server update and paper of each method.

    Args:
        heading: The heading of the family.
        members: The methods by name.
        name_width: Width of the first column in characters, which aligns the tables of all families.
    """
    table = Table(title=heading, title_justify="left", box=box.SIMPLE_HEAD, expand=True)
    table.add_column("method", width=name_width)
    for name, ratio in (("submodel", 16), ("local training", 22), ("server's update", 24), ("paper", 16)):
        table.add_column(name, ratio=ratio)
    for name, method in members.items():
        local = choice_text(method.local).partition(": ")[2]
        row = (name, type(method.submodel).__name__, local, choice_text(method.update), method.paper)
        table.add_row(*map(escape, row))
    return table


def custom_methods(module: ModuleType) -> dict[str, Method]:
    """Return the methods that a module defines, by their import paths."""
    return {f"{module.__name__}:{name}": value for name, value in vars(module).items() if isinstance(value, Method)}


def custom_components(module: ModuleType) -> list[tuple[str, str, str]]:
    """Return the import path, option and summary of every component class in a module.

    Components that are functions are not listed, because nothing marks them as components.
    """
    # These imports take a tenth of a second. The list of built-in methods does not need them.
    from fedraa.callbacks.callback import Callback
    from fedraa.testing.kinds import KINDS

    bases: dict[str, type | tuple[type, ...]] = {
        "--" + kind.registry.name.replace("_", "-"): kind.base for kind in KINDS.values()
    }
    bases["--callbacks"] = Callback
    bases["in a method"] = (LocalAlgorithm, RoundState)
    rows = []
    for name, value in vars(module).items():
        if isinstance(value, type) and value.__module__ == module.__name__:
            option = next((option for option, base in bases.items() if issubclass(value, base)), None)
            if option is not None:
                note = (vars(value).get("__doc__") or "").strip().partition("\n")[0]
                rows.append((f"{module.__name__}:{name}", option, note))
    return rows


def choice_text(choice: object) -> str:
    """Return one part of a method (submodel, local, update or schedule) as text: its class and non-default settings."""
    if not is_dataclass(choice):
        return type(choice).__name__
    texts = []
    for item in fields(choice):
        value = getattr(choice, item.name)
        if is_dataclass(value):
            default = item.default if item.default_factory is MISSING else item.default_factory()
            if value != default:
                texts.append(f"({choice_text(value)})")
        elif value is True:
            texts.append(item.name)
        elif value and not (isinstance(choice, LocalTraining) and value == getattr(PLAIN, item.name)):
            texts.append(f"{item.name} {join_values(value)}")
    return f"{type(choice).__name__}: {', '.join(texts)}".removesuffix(": ")


def _json_row(name: str, method: Method) -> dict[str, Any]:
    choices = {axis: _choice_fields(choice) for axis, choice in method.choices().items()}
    return {"name": name, "paper": method.paper, "note": method.note, "state": method.keeps} | choices


def _choice_fields(choice: object) -> dict[str, Any]:
    kind = {"kind": type(choice).__name__}
    # A custom rule may be a plain class.
    if not is_dataclass(choice) or isinstance(choice, type):
        return kind
    return kind | asdict(choice)
