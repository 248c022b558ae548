"""From words to a command: typed flags over the values of a configuration file, one sentence for every mistake."""

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import MISSING, fields
from inspect import signature
from itertools import takewhile
from typing import Annotated, Any, Union

import tyro
from tyro import _errors  # private, and the only way to tyro's mistakes as values: pyproject.toml closes tyro's range

from fedraa.cli.help import show_help
from fedraa.config.experiment import Experiment
from fedraa.config.file import CALLBACKS
from fedraa.config.usual_names import meant

Command = Callable[[], None]
EXPERIMENT = "experiment"  # the value of a command whose fields are flags
Commands = Mapping[str, Callable[..., Command]]
Functions = Mapping[str, Callable[..., object]]  # commands of any program, by name
# The words of Python and tyro for what cannot be a value.
_NO_NUMBER = re.compile(r"(?:invalid literal for int\(\) .*|could not convert string to float): (?P<given>.+)")
_NO_SUCH = re.compile(r"Could not find valid parse for arguments: \[(?P<given>.+)\]")
_UNION = re.compile(r"no type matching (?P<allowed>.+) could be instantiated from (?P<given>.+)\.")


def parse(commands: Commands, arguments: Sequence[str], description: str | None) -> Command:
    """The command that these words ask for; ValueError, one sentence, for a mistake in them."""
    name = arguments[0] if arguments else ""
    if name in commands and not {"-h", "--help"}.isdisjoint(takewhile(lambda word: word != "--", arguments)):
        show_help(name, commands[name])
        raise SystemExit(0)
    if name in commands:
        _refuse_twice(arguments)
    path = _config(arguments) if "config" in _flags(commands, name) else None
    several = tuple(
        Annotated[
            command,
            tyro.conf.subcommand(each, prefix_name=False, **_defaults(command, path if each == name else None)),
        ]
        for each, command in commands.items()
    )
    one_of: Any = Union[several]  # noqa: UP007  # made as the program runs
    with in_sentences("fedraa", commands, arguments):
        parsed: Command = tyro.cli(one_of, args=list(arguments), prog="fedraa", description=description)
    return parsed


def _refuse_twice(arguments: Sequence[str]) -> None:
    """Raise ValueError for a flag that is given twice: the parser would keep the last one."""
    seen = set[str]()
    for word in takewhile(lambda word: word != "--", arguments):
        if not word.startswith("--"):
            continue
        flag = word.partition("=")[0].replace("_", "-").replace("--no-", "--", 1)
        if flag in seen:
            raise ValueError(f"{flag}: given twice; give it once")
        seen.add(flag)


@contextmanager
def in_sentences(program: str, commands: Functions, arguments: Sequence[str]) -> Iterator[None]:
    """Within, a mistake in these words, for tyro to read, is a ValueError, one sentence."""

    def mistake(event: _errors.ParseErrorEvent) -> None:
        _one_sentence(event, program, commands, arguments)

    with _errors.on_parse_error(mistake):
        yield


def _config(arguments: Sequence[str]) -> str | None:
    """The configuration file that was given."""
    for word, value in zip(arguments, [*arguments[1:], None], strict=True):
        flag, equals, rest = word.partition("=")
        if flag == "--config":
            return rest if equals else value
    return None


def _defaults(command: Callable[..., Command], path: str | None) -> dict[str, Any]:
    """The command as it is without flags, where a configuration file says so."""
    if path is None:
        return {}
    rest = {
        item.name: tyro.MISSING if item.default is MISSING else item.default
        for item in fields(command)  # type: ignore[arg-type]  # commands are dataclasses
    }
    return {"default": command(**rest | {"experiment": Experiment.from_file(path)})}


def _flags(commands: Functions, name: str) -> list[str]:
    """The flags of a command as its values are called."""
    own = list(signature(commands[name]).parameters) if name in commands else []
    if EXPERIMENT in own:  # which is none itself
        own.remove(EXPERIMENT)
        own += Experiment.model_fields
    return own


def _one_sentence(
    event: _errors.ParseErrorEvent,
    program: str,
    commands: Functions,
    arguments: Sequence[str],
) -> None:
    """Turns tyro's error boxes into sentences; what is not known here is left to tyro."""
    match event:
        case _errors.UnrecognizedArgs(tokens=tokens):
            raise ValueError(_unknown(tokens[0], program, commands, arguments))
        case _errors.InvalidChoice(argument=argument, value=value, choices=choices):
            named = sorted(set(choices) - {"None"})  # which is to leave the flag out; they come in any order
            raise ValueError(f"{_flag(argument)}: got {value!r}; choose one of {', '.join(named)}")
        case _errors.BadValue(argument=argument, offending_value=value):
            given = "no value" if value is None else repr(value)
            raise ValueError(f"{_flag(argument)}: {_got(given, argument.lowered.metavar)}")
        case _errors.InstantiationFailure(argument=None, message=message):
            raise ValueError(message)
        case _errors.InstantiationFailure(argument=argument, message=message):
            if (wrong := _NO_NUMBER.match(message) or _NO_SUCH.match(message)) and argument is not None:
                raise ValueError(f"{_flag(argument)}: {_got(wrong['given'], argument.lowered.metavar)}")
            if union := _UNION.match(message):
                raise ValueError(f"{_flag(argument)}: {_got(union['given'], union['allowed'])}")
            raise ValueError(f"{_flag(argument)}: {message.splitlines()[0]}")
        case _errors.MissingSubcommand(found_token=token):
            given = "no command" if token is None else repr(token)
            raise ValueError(f"got {given}; choose one of {', '.join(commands)}")
        case _errors.MissingArgs(missing_arguments=missing):
            raise ValueError(f"{_flag(missing[0].arg)}: missing; see {_asked(program, commands, arguments)} --help")


def _unknown(token: str, program: str, commands: Functions, arguments: Sequence[str]) -> str:
    """Return the sentence about a word that tyro does not know, with the word that the user may mean."""
    see = f"see {_asked(program, commands, arguments)} --help"
    if not token.startswith("-"):
        if token == arguments[0]:
            return f"{token}: there is no such command{meant(token, list(commands)) or f'; {see}'}"
        return _too_many(token, program, arguments) or f"{token}: there is no such argument; {see}"
    token = token.partition("=")[0]
    if arguments[0] not in commands:
        return f"{token}: comes before the command; choose one of {', '.join(commands)}"
    name, flags = token.lstrip("-").replace("-", "_"), _flags(commands, arguments[0])
    if name in flags:
        if token.startswith("--"):  # it is given by its place
            return f"{token}: there is no such flag; give the {name} alone, {see}"
        return f"{token}: there is no such flag; did you mean --{name.replace('_', '-')}?"
    if name in commands:
        return f"{token}: there is no such flag; the command is {program} {name}"
    if name == "seeds" and "seed" in flags:
        return f"{token}: there is no such flag; give --seed for one run, or {program} compare METHOD --seeds 0 1"
    if name in CALLBACKS and "callbacks" in flags:
        return f'{token}: there is no such flag; give --callbacks "{CALLBACKS[name]}"'
    known = [f"--{flag.replace('_', '-')}" for flag in flags]
    return f"{token}: there is no such flag{meant(token, known) or f'; {see}'}"


def _too_many(token: str, program: str, arguments: Sequence[str]) -> str | None:
    """Return the sentence about a further value of a flag that takes one; None if no flag has a value before it."""
    values: list[str] = []
    flag = ""
    for word in arguments:
        if word.startswith("--"):
            flag, equals, value = word.partition("=")
            values = [value] if equals else []
            continue
        if flag and values and word == token:
            several = [*values, token]
            example = f"{program} compare METHOD --seeds {' '.join(several)}" if flag == "--seed" else ""
            given = f"{flag.lstrip('-').replace('-', '_')}: got {' '.join(several)}; expected one value"
            return f"{given}; for several: {example}" if example else given
        values.append(word)
    return None


def _asked(program: str, commands: Collection[str], arguments: Sequence[str]) -> str:
    """The program, and its command if there is one."""
    return " ".join([program, *arguments[: bool(arguments) and arguments[0] in commands]])


def _got(given: str, takes: str | None) -> str:
    """What was given for what a flag takes, both without tyro's brackets; that it may be left out need not be said."""
    takes = re.sub(r"\[(\w+) \[\1 \.\.\.\]\]", r"\1 ...", takes or "nothing")
    return f"got {given.strip('[]')}, but takes {re.sub(r'[{}]', '', takes).replace('None|', '')}"


def _flag(argument: "tyro._arguments.ArgumentDefinition | None") -> str:
    assert argument is not None
    return argument.lowered.name_or_flags[0].lstrip("-").rpartition(".")[2].replace("-", "_")
