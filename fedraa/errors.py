"""Errors with a field, a value, the expected values and the next step."""

import os
import re
from collections.abc import Iterable, Iterator, Mapping, Set
from contextlib import contextmanager
from difflib import get_close_matches
from enum import Enum
from pathlib import PurePath
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any, Self

MAX_CHARACTERS = 80
_PLAIN = (bool, int, float, complex, type(None), Enum, range, slice)
_NOTHING = object()
# Names in other libraries, each with the name in fedraa.
OTHER_NAMES = {"fmnist": "fashion-mnist"}
# The minimum similarity, from 0 to 1, of a suggested name to the wrong name.
NEAR_MISS = 0.75


class StructuredError(Exception):
    """An error that keeps the parts of its message as attributes.

    The message is `field: got VALUE; expected EXPECTED; HINT` for a wrong value, and `field: PROBLEM; HINT` otherwise.

    Args:
        field: The option, argument, file or object that is wrong.
        problem: The defect, as the rest of a sentence that begins with the field.
        got: The wrong value. The message contains its short description.
        expected: The values that are allowed.
        hint: The next step for the user.
    """

    def __init__(
        self, field: str, problem: str = "", *, got: object = _NOTHING, expected: str = "", hint: str = ""
    ) -> None:
        self.field = field
        self.problem = problem
        self.got: object = None
        self.expected = expected
        self.hint = hint
        parts = []
        if got is not _NOTHING:
            self.got = got
            parts.append(f"got {short_text(got)}")
        if problem:
            parts.append(problem)
        if expected:
            parts.append(f"expected {expected}")
        if hint:
            parts.append(hint)
        text = "; ".join(parts)
        super().__init__(f"{field}: {text}" if text else field)

    @property
    def text(self) -> str:
        """Return the message without the field at its start."""
        return str(self).removeprefix(f"{self.field}: ")

    def with_field(self, field: str) -> Self:
        """Return this error with another field."""
        other = type(self).__new__(type(self))
        other.__dict__.update(self.__dict__)
        other.field = field
        other.args = (field + str(self).removeprefix(self.field),)
        return other

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle the parts of the error. The wrong value becomes text, because some objects cannot be pickled."""
        parts = dict(self.__dict__)
        if self.got is not None:
            parts["got"] = short_text(self.got)
        return _restore_error, (type(self), self.args, parts)


def _restore_error(kind: type[StructuredError], args: tuple[Any, ...], parts: dict[str, Any]) -> StructuredError:
    error = kind.__new__(kind)
    error.args = args
    error.__dict__.update(parts)
    return error


class InputError(StructuredError, ValueError):
    """An error about a value or an object of the user that cannot be used."""


class Interrupted(KeyboardInterrupt):
    """The interruption of a run. The message has the directory and the command that resumes the run."""


class RunWarning(UserWarning):
    """A warning that the settings of a run are probably a mistake. The message has the reason."""


class RunFailed(StructuredError):
    """An error after which the run cannot continue."""


class Unwritable(RunFailed):
    """An error about a run directory that cannot be written, for example on a full disk.

    The last checkpoint of the run is intact.
    """


class WorkersLost(RunFailed):
    """An error about a run that has lost all workers of a group. The run can be resumed."""


class Uncuttable(InputError):
    """An error about a model that cannot be cut into submodels."""


class ShardDied(StructuredError):
    """An error: a server shard died, and its parameters are lost. The run resumes from its last checkpoint."""


class Damaged(StructuredError):
    """An error about a checkpoint file that has changed since it was written."""


class Inconsistent(StructuredError):
    """An error about a log that contradicts the rules of the run's method.

    `field` names the file and the line. `got` is the value in this line, and `expected` the value that the rules give.
    """


class PromiseBroken(StructuredError):
    """An error about a custom component that failed a check.

    `field` names the component.
    """


class CallbackRaised(Exception):
    """An exception that carries the exception `error` of a callback until the run is saved.

    `error` is None in a server process, because the exception is in the user's process.
    """

    def __init__(self, error: Exception | SystemExit | None) -> None:
        super().__init__(repr(error))
        self.error = error


@contextmanager
def trap_system_exit() -> Iterator[None]:
    """Convert `sys.exit` in the block to a RuntimeError, so that the process continues."""
    try:
        yield
    except SystemExit as error:
        raise RuntimeError(f"sys.exit({error.code!r}) was called") from error


def no_effect_error(field: str, value: object, beside: str, remedy: str = "leave it out") -> InputError:
    """Return the error about a field that has no effect.

    Args:
        field: The field.
        value: The value that the user gave.
        beside: The other setting or object that makes the field useless. The message is "it has no effect with ...".
        remedy: The next step for the user.
    """
    return InputError(field, f"it has no effect with {beside}", got=value, hint=remedy)


def closest_name(word: str, known: Iterable[str]) -> str | None:
    """Return the known name that is almost the same as the word, or None.

    Names are almost the same if their similarity is at least `NEAR_MISS`, or if they have the same letters in another
    order. Capitals and punctuation do not count.
    """
    names = {_plain_name(name): name for name in known}
    plain = _plain_name(OTHER_NAMES.get(_plain_name(word), word))
    close = get_close_matches(plain, names, n=1, cutoff=NEAR_MISS)
    close += [name for name in names if sorted(name) == sorted(plain)]
    if not close:
        return None
    return names[close[0]]


def suggest_closest(word: str, known: Iterable[str]) -> str:
    """Return the question "did you mean NAME?"; empty if no known name is close."""
    close = closest_name(word, known)
    return "" if close is None else f"did you mean {close}?"


def _plain_name(name: str) -> str:
    return "".join(filter(str.isalnum, name)).lower()


def one_line(error: BaseException) -> str:
    """Return the message of an exception on one line."""
    return " ".join(str(error).split())


def first_line(error: BaseException) -> str:
    """Return the first line of an exception's message. If the message is empty, return the name of its class."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def last_line(error: BaseException) -> str:
    """Return the last line of an exception's message. If the message is empty, return the name of its class."""
    return (str(error).strip().splitlines() or [type(error).__name__])[-1].strip()


def read_failure(error: BaseException) -> str:
    """Return the reason why a file cannot be read, without the path of the file, which the message already has."""
    return getattr(error, "strerror", None) or first_line(error)


def locate_error(error: Exception, place: str) -> InputError:
    """Return an InputError that names the data set, file or client (`place`) of an error.

    If the error is an InputError, its field gets `place` as a prefix. Otherwise the field of the result is `place`.
    """
    if isinstance(error, InputError):
        return error.with_field(f"{place}: {error.field}")
    text = one_line(error)
    if not isinstance(error, ValueError):
        text = f"{type(error).__name__}: {text}"
    return InputError(place, text)


def locate_in_dataset(error: Exception, name: str) -> InputError:
    """Return an InputError that names the data set of an error, such as `folder:PATH` or `csv('PATH')`.

    If the error names a file of the data set, its field gets the prefix `dataset` without the name of the data set,
    because this name contains the path.
    """
    quoted = re.match(r"""\w+\(.*?(["'])(.+?)\1""", name)
    path = quoted[2] if quoted else name.partition(":")[2] or name
    spellings = "|".join(re.escape(text) for text in (path.rstrip("/"), os.path.normpath(path)))
    if isinstance(error, InputError) and re.match(rf"({spellings})([\s/:]|$)", error.field):
        return error.with_field(f"dataset: {error.field}")
    return locate_error(error, f"dataset {name!r}")


def plain_text(value: object) -> str:
    """Return a value as the command line shows it.

    The items of a list have spaces between them, and numbers have no trailing zeros.
    """
    if isinstance(value, list | tuple):
        return " ".join(map(str, value))
    if isinstance(value, float):
        return f"{value:g}"
    return str(value)


def short_text(value: object) -> str:
    """Return a short description of a value: `repr` of short plain values, otherwise the type."""
    if isinstance(value, str | bytes):
        return _cut_text(repr(value))
    if isinstance(value, PurePath):
        return _cut_text(repr(str(value)))
    if isinstance(value, type):
        return f"the class {value.__name__}"
    if isinstance(value, ModuleType):
        return f"the module {value.__name__}"
    if isinstance(value, FunctionType) and value.__name__ == "<lambda>":
        return "a lambda"
    if isinstance(value, FunctionType | BuiltinFunctionType | MethodType):
        return f"the function {value.__name__}"
    if isinstance(value, _PLAIN):
        return _cut_text(repr(value))
    if hasattr(value, "dtype") and hasattr(value, "shape"):
        return _array_text(value)
    if isinstance(value, list | tuple | Set | Mapping):
        return _collection_text(value)
    return _object_text(value)


def _array_text(value: Any) -> str:
    """Describe an array, a tensor or a column of a table. A single number is described by its value."""
    kind = type(value).__name__
    if kind.endswith("64") or kind.endswith("32") or kind.endswith("16") or kind in ("bool", "bool_", "int8", "uint8"):
        return repr(value.item())
    name = {"ndarray": "array", "Tensor": "tensor", "Parameter": "tensor"}.get(kind, kind)
    dtype = str(value.dtype).removeprefix("torch.")
    return f"{_article_of(name)} {name} of {dtype} {list(value.shape)}"


def _collection_text(value: Any) -> str:
    """Return the text of a short collection of plain items, or the type and size of any other collection."""
    items = list(value)
    nouns = ("item", "items")
    if isinstance(value, Mapping):
        items = list(value.values())
        nouns = ("entry", "entries")
    if len(items) <= MAX_CHARACTERS and all(map(_is_plain, value)) and all(map(_is_plain, items)):
        text = repr(value)
        if len(text) <= MAX_CHARACTERS:
            return text
    kind = type(value).__name__
    noun = nouns[0] if len(items) == 1 else nouns[1]
    size = f"{_article_of(kind)} {kind} of {len(items)} {noun}"
    item_types = {type(item).__name__ for item in items}
    if len(item_types) == 1:
        return f"{size} of type {item_types.pop()}"
    return size


def _is_plain(item: object) -> bool:
    """Return True for values with a short `repr`: numbers, text, and short collections of these."""
    if isinstance(item, list | tuple):
        return len(item) <= MAX_CHARACTERS and all(map(_is_plain, item))
    return isinstance(item, str | bytes | bool | int | float | complex | None)


def _object_text(value: Any) -> str:
    """Return the type of an object. For a table, also return its shape. For a data set, return only its `repr`."""
    kind = type(value).__name__
    if kind in ("Dataset", "FederatedDataset", "Federated") and type(value).__module__.startswith("fedraa."):
        return f"a {value!r}"
    shape = getattr(value, "shape", None)
    if isinstance(shape, tuple) and all(isinstance(size, int) for size in shape):
        return f"{_article_of(kind)} {kind} of {list(shape)}"
    is_module = any(
        base.__module__.startswith("torch.nn") and base.__name__ == "Module" for base in type(value).__mro__
    )
    if is_module and not kind.endswith("Module"):
        return f"{_article_of(kind)} {kind} module"
    return f"{_article_of(kind)} {kind}"


def _cut_text(text: str) -> str:
    if len(text) <= MAX_CHARACTERS:
        return text
    return f"{text[: MAX_CHARACTERS - 3]}..."


def _article_of(word: str) -> str:
    if word[:1].lower() in "aeiou" and not word.lower().startswith(("uni", "use", "one")):
        return "an"
    return "a"
