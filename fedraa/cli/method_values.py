"""The output of `fedraa methods NAME`: every setting of one method, with its value, option and meaning."""

import inspect
import re
from collections.abc import Mapping
from functools import cache, reduce

from docstring_parser import DocstringStyle, parse
from rich.markup import escape
from rich.padding import Padding

from fedraa.cli.console import page_console
from fedraa.components.text import is_built_in, text_of
from fedraa.composition.method import Method
from fedraa.composition.overrides import SHORTCUTS, values_by_path
from fedraa.config.experiment import Experiment

# Matches the default at the end of an option's help text. The output shows the method's value instead.
DEFAULT_NOTE = re.compile(r"\s*\(default: .*?\)(?=\.$)", re.DOTALL)


def show_values(method: Method) -> None:
    """Print the description of a method, and then all its settings.

    Each setting has a line with its path, value and option, and a line that explains it.
    """
    console = page_console()
    options = {method.path(name): name for name in SHORTCUTS}
    source = "; ".join(filter(None, (method.paper, method.note)))
    console.print(escape(": ".join(filter(None, (method.name, source)))), style="bold")
    for heading, text in describe_use(method).items():
        if text:
            console.print(f"\n{heading}")
            console.print(Padding(escape(text), (0, 0, 0, 4)))
    for path, value in values_by_path(method).items():
        option = options.get(path)
        shown = "" if option is None else f"  (--{option.replace('_', '-')})"
        console.print(f"\n{path} = {escape(value_text(value))}{shown}")
        console.print(Padding(escape(describe_value(method, path, option)), (0, 0, 0, 4)))


def describe_use(method: Method) -> dict[str, str]:
    """Return three texts by heading: the formula, when to use the method, and the settings of its paper."""
    settings = ""
    paper = method.paper_settings
    if paper is not None:
        values = ", ".join(f"{name} {join_values(value)}" for name, value in paper.values.items())
        settings = f"{values or 'none'} ({paper.source})"
        if paper.unstated:
            settings += f"; not stated: {paper.unstated}"
    return {
        "formula": method.formula.replace("`", ""),
        "when to use it": method.when,
        "settings of --terms paper": settings,
    }


def value_text(value: object) -> str:
    """Return a setting's value as the user can type it. For a component, return its class name.

    The settings of a component are shown on lines of their own.
    """
    if is_built_in(value) and hasattr(value, "__dataclass_fields__"):
        return type(value).__name__
    if value is None:
        return "not set"
    if value == ():
        return "none"
    return join_values(value)


def join_values(value: object) -> str:
    """Return a value as text. The elements of a tuple are separated by spaces."""
    if isinstance(value, tuple):
        return " ".join(map(str, value))
    return str(text_of(value))


def describe_value(method: Method, path: str, option: str | None) -> str:
    """Return the meaning of a setting, from its class's docstring or its option's help text.

    Args:
        method: The method.
        path: Path of the setting in the method, such as `update.mixing`.
        option: Name of the option for this setting; None if no option sets it.
    """
    *parents, name = path.split(".")
    owner = reduce(getattr, parents, method)
    texts = [attribute_texts(kind).get(name, "") for kind in type(owner).__mro__]
    if option is not None:
        texts.append(Experiment.model_fields[option].description or "")
    text = next(filter(None, texts))
    if getattr(owner, name) is not None:
        text = DEFAULT_NOTE.sub("", text)
    return " ".join(text.split())


@cache
def attribute_texts(kind: type) -> Mapping[str, str]:
    """Return the text of each attribute that the docstring of a class documents, by name."""
    attributes = parse(inspect.getdoc(kind) or "", DocstringStyle.GOOGLE).params
    return {item.arg_name: item.description or "" for item in attributes}
