"""Registries of components: their names, the class decorator, and the packages that register more."""

import inspect
from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import cache
from importlib import import_module
from pkgutil import iter_modules
from typing import Any, Generic, TypeVar

from fedraa.components.calls import one_line
from fedraa.components.field_checks import check_arguments, check_part
from fedraa.components.imports import imported, is_path
from fedraa.components.text import COMPONENT_TEXT, KIND, parse_arguments
from fedraa.errors import short_text

T = TypeVar("T")
Made = TypeVar("Made", bound=Callable[..., Any])
PLUGIN_PACKAGES = ["fedraa.methods"]


@dataclass(frozen=True)
class Seam(Generic[T]):
    """A registry of components: their names, and what any component of this kind must be able to do.

    Attributes:
        name: The field of an experiment that takes the component.
        needs: The methods that a component must have; `__call__` means that it is called itself.
        registered: The components that have a name so far. `names` gives all of them.
        short: Reads text that is neither a name nor a path, such as `sample:10`. It raises ValueError.
        example: An example for the help texts.
    """

    name: str
    needs: tuple[str, ...]
    registered: dict[str, Any] = field(default_factory=dict)
    short: Callable[[str], T] | None = None
    example: str = field(default="", compare=False)

    def register(self, name: str) -> Callable[[Made], Made]:
        """Return a decorator that gives a class or a function this name. AssertionError if the name is taken."""

        def keep(component: Made) -> Made:
            assert name not in self.registered, f"{self.name}: the name {name} is registered twice"
            self.registered[name] = component
            return component

        return keep

    def names(self) -> Mapping[str, Callable[..., T]]:
        """Return all components that have a name, those of the plug-in packages included."""
        load_plugins()
        return self.registered

    def make(self, given: object) -> T:
        """The component that was given, ready for use.

        Raises ValueError with one sentence: the field, what was given, what it takes.
        """
        if isinstance(given, str):
            return self._checked(self._from_text(given), given)
        if isinstance(given, Mapping):
            values = dict(given)
            what = values.pop(KIND, None)
            if not isinstance(what, str):
                raise ValueError(f"{self.name}: {short_text(dict(given))} has no {KIND!r}, a component's name or path")
            return self._checked(self._called(self._find(what), (), values, what), what)
        said = short_text(given)
        return self._checked(self._called(given, (), {}, said) if inspect.isclass(given) else given, said)

    def own(self, given: object) -> T:
        """A copy that one run may change; ValueError for what cannot be copied."""
        made = self.make(given)
        try:
            return deepcopy(made)
        except Exception as error:  # of whatever it holds: locks, files, generators
            raise ValueError(
                f"{self.name}: {type(made).__name__} cannot be copied for a run: {one_line(error)}; make what "
                "cannot be copied when it is first needed"
            ) from error

    def _from_text(self, text: str) -> Any:
        match = COMPONENT_TEXT.fullmatch(text)
        what, values = (text, None) if match is None else (match["what"], match["values"])
        if self.short is not None and values is None and self._is_short(what):
            return self.short(text)
        found = self._find(what)
        if values is None and not inspect.isclass(found) and what not in self.registered:
            return found  # a function, or an object that its module has made
        return self._called(found, *parse_arguments(self.name, text, values or ""), text)

    def _is_short(self, what: str) -> bool:
        """Whether it is neither a name that stands alone nor a path; names come before modules."""
        if what in self.registered:
            parameters = inspect.signature(self.registered[what]).parameters.values()
            return any(parameter.default is inspect.Parameter.empty for parameter in parameters)
        if any(getattr(made, "__name__", "") == what for made in self.registered.values()):
            return False  # the class's name, as a configuration that was written has it
        return what.partition(":")[0] in self.registered or not is_path(what)

    def _find(self, what: str) -> Any:
        if is_path(what):
            return imported(self.name, what)
        # Server shards find their components without the plug-ins, which need torch.
        component = _named(self.registered, what) or _named(self.names(), what)
        if component is None:
            close = get_close_matches(what, self.registered, n=1)
            hint = f"did you mean {close[0]}? " if close else ""
            raise ValueError(f"{self.name}: there is no {what!r}; {hint}{self._takes()}")
        return component

    def _called(self, make: Any, arguments: tuple[Any, ...], values: dict[str, Any], said: str) -> Any:
        if arguments or values:
            check_arguments(make, arguments, values, f"{self.name}: {said}")
        try:
            return make(*arguments, **values)
        except TypeError as error:
            why = _misfit(make, arguments, values, said) or one_line(error)
            raise ValueError(f"{self.name}: {said} cannot be made: {why}") from None
        except ValueError:  # which says what is wrong itself
            raise
        except (Exception, SystemExit) as error:  # of the user's own
            raise ValueError(
                f"{self.name}: {said} cannot be made: {type(error).__name__}: {one_line(error)}"
            ) from error

    def _checked(self, part: Any, said: str) -> T:
        missing = [name for name in self.needs if not callable(getattr(part, name, None))]
        if missing:
            what = "is not callable" if missing == ["__call__"] else f"has no method {' or '.join(missing)}"
            raise ValueError(f"{self.name}: {said} {what}; {self._takes()}")
        check_part(part, f"{self.name}: {said}")
        result: T = part
        return result

    def _takes(self) -> str:
        names = ", ".join(self.names())
        return f"takes {names + ', or ' if names else ''}an own one as package.module:Name"


def _named(registered: Mapping[str, Callable[..., T]], name: str) -> Callable[..., T] | None:
    """Return the component of that name, or of that class name: a configuration on disk has the latter."""
    by_class = {getattr(component, "__name__", ""): component for component in registered.values()}
    return registered.get(name) or by_class.get(name)


@cache
def load_plugins() -> None:
    """Import every module of the plug-in packages in alphabetical order; each registers what it defines."""
    for package in PLUGIN_PACKAGES:
        paths = import_module(package).__path__
        for module in sorted(info.name for info in iter_modules(paths, f"{package}.")):
            import_module(module)


def _misfit(make: Any, arguments: tuple[Any, ...], values: Mapping[str, Any], said: str) -> str | None:
    """Return what is wrong with the values that a component is made with; None if its signature takes them."""
    try:
        signature = inspect.signature(make)
        signature.bind(*arguments, **values)
    except ValueError:  # of what has no signature
        return None
    except TypeError as error:
        named = [each for each in signature.parameters.values() if each.kind is each.POSITIONAL_OR_KEYWORD]
        needed = [each.name for each in named if each.default is each.empty]
        if lacking := [name for name in needed[len(arguments) :] if name not in values]:
            example = ", ".join(f"{name}=..." for name in needed)
            return f"it lacks {' and '.join(lacking)}; give {said.partition('(')[0].strip()}({example})"
        return f"{one_line(error)}; it takes {', '.join(each.name for each in named) or 'no values'}"
    return None
