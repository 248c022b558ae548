"""Components: parts that a user names, imports or makes, and how each describes itself so that it can be made again.

A component is given as a name (`gre-raa`), with values if it takes some (`polynomial(exponent=0.3)`), as an import path
(`package.module:Name`, likewise with values), as a mapping (`{"kind": NAME_OR_PATH, field: value, ...}`), or as an
object: an instance, a class that takes no arguments, or a function where that is enough.

What is built in comes the same way: a `Seam` knows its names, and what any component must be able to do.
"""

import ast
import inspect
import re
import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from copy import deepcopy
from dataclasses import dataclass, field, fields, is_dataclass
from difflib import get_close_matches
from enum import Enum
from importlib import import_module
from types import FunctionType, ModuleType
from typing import Any, Generic, TypeVar

import numpy as np

from fedraa.errors import short_text
from fedraa.numbers import taken

T = TypeVar("T")

KIND = "kind"
OURS = ("fedraa", "schedulers")  # packages whose classes are known by their names alone
_TEXT = re.compile(r"\s*(?P<what>[^()]+?)\s*(?:\((?P<values>.*)\))?\s*", re.DOTALL)
_SENTENCE = re.compile(r"[a-z_]+: ")  # ours, which names a field
_PATH = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.<>]*")
_importable: ContextVar[Collection[str] | None] = ContextVar("_importable", default=None)  # None: any path


@dataclass(frozen=True)
class Seam(Generic[T]):
    """One place where components fit: `name` is the field that takes them, `builtin` those that have a name.

    `needs` are the methods that a component must have (`__call__`: it is called itself). `short` reads what is neither
    a name nor a path, such as `sample:10`; it raises ValueError.
    """

    name: str
    needs: tuple[str, ...]
    builtin: Mapping[str, Callable[..., T]]
    short: Callable[[str], T] | None = None
    example: str = field(default="", compare=False)

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
        match = _TEXT.fullmatch(text)
        what, values = (text, None) if match is None else (match["what"], match["values"])
        if self.short is not None and values is None and self._is_short(what):
            return self.short(text)
        found = self._find(what)
        if values is None and not inspect.isclass(found) and what not in self.builtin:
            return found  # a function, or an object that its module has made
        return self._called(found, *_arguments(self.name, text, values or ""), text)

    def _is_short(self, what: str) -> bool:
        """Whether it is neither a name that stands alone nor a path; names come before modules."""
        if what in self.builtin:
            parameters = inspect.signature(self.builtin[what]).parameters.values()
            return any(parameter.default is inspect.Parameter.empty for parameter in parameters)
        if any(getattr(made, "__name__", "") == what for made in self.builtin.values()):
            return False  # the class's name, as a configuration that was written has it
        return what.partition(":")[0] in self.builtin or not is_path(what)

    def _find(self, what: str) -> Any:
        if what in self.builtin:
            return self.builtin[what]
        if not is_path(what):
            for made in self.builtin.values():
                if getattr(made, "__name__", "") == what:  # as a configuration that was written has it
                    return made
            close = get_close_matches(what, self.builtin, n=1)
            hint = f"did you mean {close[0]}? " if close else ""
            raise ValueError(f"{self.name}: there is no {what!r}; {hint}{self._takes()}")
        return imported(self.name, what)

    def _called(self, make: Any, arguments: tuple[Any, ...], values: dict[str, Any], said: str) -> Any:
        if arguments or values:
            _check_given(make, arguments, values, f"{self.name}: {said}")
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
        names = ", ".join(self.builtin)
        return f"takes {names + ', or ' if names else ''}an own one as package.module:Name"


def check_part(part: object, said: str) -> None:
    """Changes a part's numbers, flags and text, in place, into equal ones of the types that one of our classes has.

    Of an own part these are fields that it inherits from ours, but what it annotates anew. ValueError, one sentence
    that begins with `said`, for what the class refuses.
    """
    kinds = type(part).__mro__
    ours = next((at for at, kind in enumerate(kinds) if is_ours(kind) and is_dataclass(kind)), None)
    if ours is None:
        return
    anew = {name for kind in kinds[:ours] for name in inspect.get_annotations(kind)}
    names = [each.name for each in fields(kinds[ours]) if each.name not in anew and hasattr(part, each.name)]
    for name, value in taken({name: getattr(part, name) for name in names}, kinds[ours], said).items():
        if type(value) is not type(getattr(part, name)) or isinstance(value, tuple):
            object.__setattr__(part, name, value)  # most are frozen


def _check_given(make: Any, arguments: tuple[Any, ...], values: Mapping[str, Any], said: str) -> None:
    """The same of what a class of ours is to be made with, before it looks at that itself."""
    if inspect.isclass(make) and is_ours(make) and is_dataclass(make):
        names = (each.name for each in fields(make) if each.init)
        taken(dict(zip(names, arguments, strict=False)) | dict(values), make, said)


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


class Stateful:
    """Whatever a part keeps in its attributes is saved with checkpoints and comes back on resume.

    Override both for what is neither numbers, text, lists, dicts with text keys nor NumPy arrays.
    """

    def state(self) -> dict[str, Any]:
        return dict(vars(self))

    def restore(self, state: dict[str, Any]) -> None:
        vars(self).update(state)


def saved(part: Any) -> dict[str, Any]:
    """A part's state for a checkpoint; ValueError if a checkpoint cannot hold it."""
    with calling("state", part):
        state: dict[str, Any] = part.state()
    if not isinstance(state, Mapping):
        raise ValueError(f"state: {type(part).__name__} gave {type(state).__name__}; takes a dict")
    if wrong := _unfit(state):
        raise ValueError(
            f"state: {type(part).__name__} keeps {wrong}; a checkpoint takes numbers, text, lists, dicts with text "
            "keys and NumPy arrays, so give it methods state and restore"
        )
    return state


def _unfit(value: object) -> str | None:
    if isinstance(value, Mapping):
        keys = (f"a dict with the key {key!r}" for key in value if not isinstance(key, str))
        return next(keys, None) or next(filter(None, map(_unfit, value.values())), None)
    if isinstance(value, list | tuple):
        return next(filter(None, map(_unfit, value)), None)
    if isinstance(value, np.ndarray | np.generic):
        return f"an array of {value.dtype}" if value.dtype.hasobject else None
    return None if value is None or isinstance(value, bool | int | float | str) else f"a {type(value).__name__}"


@contextmanager
def calling(where: str, part: object) -> Iterator[None]:
    """Whatever a part raises within is a ValueError, a sentence that names the field `where` and the part."""
    try:
        yield
    except (Exception, SystemExit) as error:
        if isinstance(error, ValueError) and _SENTENCE.match(str(error)):
            raise
        who = getattr(part, "__qualname__", type(part).__qualname__)
        raise ValueError(f"{where}: {who} failed with {type(error).__name__}: {one_line(error)}") from error


def one_line(error: BaseException) -> str:
    """What an error says, which may be of several lines, as a part of a sentence."""
    return " ".join(str(error).split())


def is_path(text: str) -> bool:
    """Whether this is an import path, `package.module:Name`."""
    return _PATH.fullmatch(text) is not None


def paths_in(written: object) -> list[str]:
    """The import paths in a component as it was written down, and in the components that it holds."""
    if isinstance(written, Mapping | list | tuple):
        items = written.values() if isinstance(written, Mapping) else written
        return [path for item in items for path in paths_in(item)]
    match = _TEXT.fullmatch(written) if isinstance(written, str) else None
    if match is None:
        return []
    own = [match["what"]] if is_path(match["what"]) else []
    try:
        return own + paths_in(_arguments("", "", match["values"] or ""))
    except ValueError:
        return own


@contextmanager
def importing_only(paths: Collection[str]) -> Iterator[None]:
    """Within, no other import path is followed, wherever it comes from: nobody's code is run that was not asked for."""
    token = _importable.set(paths)
    try:
        yield
    finally:
        _importable.reset(token)


def imported(where: str, path: str) -> Any:
    """What `package.module:Name` stands for; ValueError, a sentence that names the field `where`, if there is none."""
    allowed = _importable.get()
    if allowed is not None and path not in allowed:
        raise ValueError(f"{where}: {path} is code that would be imported and run; if you trust it, give --trust")
    module, _, name = path.partition(":")
    try:
        found: Any = imported_module(where, module, path)
        for part in name.split("."):
            found = getattr(found, part)
    except AttributeError as error:
        if module == "__main__" or "<" in name:
            raise ValueError(f"{where}: {path} was made in a script or a notebook; give it again") from None
        raise ValueError(f"{where}: {path} cannot be imported: {error}") from None
    return found


def imported_module(where: str, module: str, path: str = "") -> ModuleType:
    """A module of the user's own; ValueError, a sentence that names the field `where`, if there is none.

    `path` is what is wanted of it, for that sentence.
    """
    try:
        return sys.modules[module] if module == "__main__" else import_module(module)
    except (ImportError, ValueError) as error:
        raise ValueError(f"{where}: {path or module} cannot be imported: {error}") from None
    except (Exception, SystemExit) as error:  # whatever a module of the user's own does as it is read
        said = f"{type(error).__name__}: {one_line(error)}"
        raise ValueError(f"{where}: {path or module} cannot be imported: {said}") from error


def is_foreign(described: Any) -> bool:
    """Whether a component, as it was written down, is none of ours."""
    kind = described.get(KIND, "") if isinstance(described, Mapping) else described
    return isinstance(kind, str) and is_path(kind.partition("(")[0].strip())


def path_of(made: object) -> str:
    """Where a class or a function can be imported from; the bare name for our own classes."""
    name: str = getattr(made, "__qualname__", type(made).__qualname__)
    module: str = getattr(made, "__module__", type(made).__module__)
    return name if is_ours(made) and inspect.isclass(made) else f"{module}:{name}"


def is_ours(made: object) -> bool:
    """Whether a class or a function, or the class of an object, is one of our packages'."""
    module: str = getattr(made, "__module__", type(made).__module__)
    return module.partition(".")[0] in OURS


def describe(part: object) -> Any:
    """A component as JSON, from which `Seam.make` makes its equal: kind and values, or what it was if that is JSON.

    Values are the fields of a dataclass, or the attributes that are named like the arguments of `__init__`.
    """
    if isinstance(part, Enum | np.generic):
        part = part.value if isinstance(part, Enum) else part.item()
    if part is None or isinstance(part, bool | int | float | str):
        return part
    if isinstance(part, tuple | list):
        return [describe(item) for item in part]
    if isinstance(part, Mapping):
        return {str(key): describe(value) for key, value in part.items()}
    if isinstance(part, FunctionType) or inspect.isclass(part):
        return path_of(part)
    return {KIND: path_of(type(part))} | {name: describe(value) for name, value in values_of(part).items()}


def text_of(part: object) -> Any:
    """A component as a flag takes it, `package.module:Name(field=value)`; as JSON where that cannot be said so."""
    described = describe(part)
    if not isinstance(described, dict) or any(isinstance(value, dict) for value in described.values()):
        return described
    given = {name: value for name, value in described.items() if name != KIND}
    if not isinstance(part, Mapping):  # which says no more than it means to
        given = {name: value for name, value in given.items() if value != _default(part, name)}
    values = ", ".join(f"{name}={value!r}" for name, value in given.items())
    return described[KIND] + (f"({values})" if values else "")


def says(text: str, described: Mapping[str, Any]) -> bool:
    """Whether a component's text, `Name(field=value)`, says of what `describe` wrote down what it is."""
    match = _TEXT.fullmatch(text)
    try:
        arguments, values = ((), {}) if match is None else _arguments("", text, match["values"] or "")
    except ValueError:
        return False
    said = {KIND: text if match is None else match["what"]} | {name: describe(value) for name, value in values.items()}
    return not arguments and all(described.get(name) == value for name, value in said.items())


def values_of(part: object) -> dict[str, Any]:
    """The values that a component was made with, as far as it keeps them."""
    if is_dataclass(part):
        return {item.name: getattr(part, item.name) for item in fields(part) if item.init and hasattr(part, item.name)}
    parameters = inspect.signature(type(part).__init__).parameters
    return {name: vars(part)[name] for name in parameters if name in getattr(part, "__dict__", {})}


def _default(part: object, name: str) -> object:
    parameter = inspect.signature(type(part)).parameters.get(name)
    return inspect.Parameter.empty if parameter is None else parameter.default


def _arguments(where: str, text: str, values: str) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The literals between the brackets of a component."""
    try:
        call = ast.parse(f"f({values})", mode="eval").body
        assert isinstance(call, ast.Call)
        assert all(word.arg for word in call.keywords)
        by_name = {str(word.arg): ast.literal_eval(word.value) for word in call.keywords}
        made = tuple(ast.literal_eval(argument) for argument in call.args), by_name
    except (SyntaxError, ValueError, AssertionError):
        raise ValueError(f"{where}: the values in {text!r} are not Python literals, as in Name(share=0.1)") from None
    names = [word.arg for word in call.keywords]
    if twice := [name for name in by_name if names.count(name) > 1]:
        raise ValueError(f"{where}: {text!r} has {twice[0]} twice; give it once")
    return made


def rebuild(where: str, described: Any, kinds: Mapping[str, Callable[..., Any]]) -> Any:
    """What `describe` wrote down: mappings with a kind become objects, of one of `kinds` or imported, lists tuples."""
    if isinstance(described, list | tuple):
        return tuple(rebuild(where, item, kinds) for item in described)
    if not isinstance(described, Mapping) or KIND not in described:
        return described
    values = {name: rebuild(where, value, kinds) for name, value in described.items() if name != KIND}
    kind = str(described[KIND])
    if kind not in kinds and not is_path(kind):
        raise ValueError(f"{where}: there is no {kind!r}; it was written by another version")
    try:
        return (kinds.get(kind) or imported(where, kind))(**values)
    except TypeError as error:
        raise ValueError(f"{where}: {kind} cannot be made: {error}") from None
