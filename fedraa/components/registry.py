"""Registries that map the names of one kind of component to classes.

Plug-in packages register more components when they are imported.
"""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from pkgutil import iter_modules
from typing import Any, Generic, TypeVar

from fedraa.components.calls import copy_component
from fedraa.components.component_errors import argument_error, names_text, unknown_component_error
from fedraa.components.field_checks import check_arguments, check_component_fields
from fedraa.components.imports import import_object, is_path
from fedraa.components.text import COMPONENT_TEXT, KIND, parse_arguments
from fedraa.errors import InputError, StructuredError, one_line

T = TypeVar("T")
Made = TypeVar("Made", bound=Callable[..., Any])
PLUGIN_PACKAGES = [
    "fedraa.methods",
    "fedraa.aggregation.robust",
    "fedraa.attacks",
    "fedraa.client.optimizers",
    "fedraa.privacy",
    "fedraa.selection",
]


@dataclass(frozen=True)
class ComponentRegistry(Generic[T]):
    """A registry of one kind of component.

    Attributes:
        name: The field of an experiment that takes the component.
        needs: The methods that a component must have. `__call__` means that the component itself is called.
        registered: The registered components by name, without those of plug-ins that are not yet imported.
        short: A function that creates a component from a short text such as `sample:10`, and raises InputError for
            other text. None if the components have no short texts.
        example: An example of a component, for help texts.
        hints: Names that belong to another field, each with the hint for the user's error.
        base: The class in the package fedraa from which a custom component derives. Empty if there is no such class.
    """

    name: str
    needs: tuple[str, ...]
    registered: dict[str, Any] = field(default_factory=dict)
    short: Callable[[str], T] | None = None
    example: str = field(default="", compare=False)
    hints: Mapping[str, str] = field(default_factory=dict)
    base: str = field(default="", compare=False)

    def register(self, name: str) -> Callable[[Made], Made]:
        """Return a decorator that registers a class or function under a new name."""

        def register_component(component: Made) -> Made:
            assert name not in self.registered, f"{self.name}: the name {name} is registered twice"
            self.registered[name] = component
            return component

        return register_component

    def names(self) -> Mapping[str, Callable[..., T]]:
        """Return all registered components by name, with those of the plug-in packages."""
        load_plugins()
        return self.registered

    def resolve(self, source: object) -> T:
        """Return the component that `source` describes: a text, a mapping, a class or an object.

        Raises InputError if it describes no component of this kind.
        """
        if isinstance(source, str):
            return self._check_component(self._from_text(source), source)
        if isinstance(source, Mapping):
            values = dict(source)
            kind = values.pop(KIND, None)
            if not isinstance(kind, str):
                raise InputError(self.name, got=source, expected=f"a mapping in which {KIND!r} is a name or path")
            return self._check_component(self._make_component(self._find_component(kind), (), values, kind), kind)
        if inspect.isclass(source):
            return self._check_component(self._make_component(source, (), {}, source), source)
        return self._check_component(source, source)

    def copy_for_run(self, source: object) -> T:
        """Return a copy of the component, which one run may change.

        Raises InputError if the component cannot be copied.
        """
        return copy_component(self.name, self.resolve(source))

    def _from_text(self, text: str) -> Any:
        name = text
        values = None
        match = COMPONENT_TEXT.fullmatch(text)
        if match is not None:
            name = match["kind"]
            values = match["values"]
        if self.short is not None and values is None and self._is_short(name):
            return self.short(text)
        component = self._find_component(name)
        if values is None and not inspect.isclass(component) and name not in self.registered:
            # The object at the import path is the component itself.
            return component
        return self._make_component(component, *parse_arguments(self.name, text, values or ""), text)

    def _is_short(self, text: str) -> bool:
        """Return True if the text must be converted by the function `short`."""
        if text in self.registered:
            parameters = inspect.signature(self.registered[text]).parameters.values()
            return any(parameter.default is inspect.Parameter.empty for parameter in parameters)
        if any(getattr(component, "__name__", "") == text for component in self.registered.values()):
            # The text is the name of a class, as in configuration files.
            return False
        return text.partition(":")[0] in self.registered or not is_path(text)

    def _find_component(self, name: str) -> Any:
        if is_path(name):
            return import_object(self.name, name)
        # `names` imports the plug-ins. It is called only for an unknown name, because server shards must not import
        # torch.
        component = _find_by_name(self.registered, name) or _find_by_name(self.names(), name)
        if component is None:
            raise unknown_component_error(self.name, name, self.registered, hint=self.hints.get(name.lower(), ""))
        return component

    def _make_component(self, make: Any, arguments: tuple[Any, ...], values: dict[str, Any], source: object) -> Any:
        """Create a component by calling a class or a function. Errors contain the user's `source`."""
        if arguments or values:
            check_arguments(make, arguments, values, self.name)
        try:
            return make(*arguments, **values)
        except TypeError as error:
            mismatch = argument_error(self.name, make, arguments, values, source)
            if mismatch is None:
                problem = f"it cannot be created: {one_line(error)}"
                mismatch = InputError(self.name, problem, got=source, hint="correct its code or its values")
            raise mismatch from None
        except StructuredError:
            raise
        # The user's class can raise any exception.
        except (Exception, SystemExit) as error:
            problem = f"it cannot be created: {type(error).__name__}: {one_line(error)}"
            hint = "correct its code or its values"
            raise InputError(self.name, problem, got=source, hint=hint) from error

    def _check_component(self, component: Any, source: object) -> T:
        """Check the methods and fields of a component, and return it. Errors contain the user's `source`."""
        missing = [name for name in self.needs if not callable(getattr(component, name, None))]
        if missing:
            problem = f"it has no method {' or '.join(missing)}"
            if missing == ["__call__"]:
                problem = "it is not callable"
            hint = f"derive its class from fedraa.{self.base}" if self.base else ""
            raise InputError(self.name, problem, got=source, expected=names_text(self.names()), hint=hint)
        check_component_fields(component, self.name)
        result: T = component
        return result


def _find_by_name(registered: Mapping[str, Callable[..., T]], name: str) -> Callable[..., T] | None:
    """Return the component with a registered name or class name; None if there is none.

    Configuration files use the names of classes.
    """
    by_class = {getattr(component, "__name__", ""): component for component in registered.values()}
    return registered.get(name) or by_class.get(name)


@cache
def load_plugins() -> None:
    """Import all modules of the plug-in packages, which register their components."""
    for package in PLUGIN_PACKAGES:
        paths = import_module(package).__path__
        for module in sorted(info.name for info in iter_modules(paths, f"{package}.")):
            import_module(module)
