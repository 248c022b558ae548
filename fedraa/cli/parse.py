"""Convert command-line arguments to a command object.

Flags override the values of a configuration file. Every mistake in the arguments becomes an InputError.
"""

import re
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import MISSING, fields
from functools import partial
from inspect import signature
from itertools import pairwise, takewhile
from typing import Annotated, Any, Union

import tyro

# Only the error objects of this private module have fields such as the invalid argument. A private module may change,
# so pyproject.toml limits tyro's version.
from tyro import _errors

from fedraa.cli.help import HELP_ALL, HELP_FLAGS, show_help
from fedraa.config.experiment import CHANGEABLE, Experiment
from fedraa.config.file import CALLBACKS
from fedraa.config.usual_names import suggest_name
from fedraa.errors import InputError

Command = Callable[[], None]
# The commands of fedraa by name. Each is a class whose fields are the flags.
Commands = Mapping[str, Callable[..., Command]]
# The commands of a program by name. Each is a class, or a function whose parameters are the flags.
Functions = Mapping[str, Callable[..., object]]
# This field of a command holds an experiment. The experiment's fields become flags of the command.
EXPERIMENT = "experiment"
# These patterns match the messages of Python and tyro about an invalid value.
_NO_NUMBER = re.compile(r"(?:invalid literal for int\(\) .*|could not convert string to float): (?P<value>.+)")
_NO_SUCH = re.compile(r"Could not find valid parse for arguments: \[(?P<value>.+)\]")
_UNION = re.compile(r"no type matching (?P<allowed>.+) could be instantiated from (?P<value>.+)\.")


def parse_command(commands: Commands, arguments: Sequence[str], description: str | None) -> Command:
    """Create the command object that the command-line arguments describe.

    Args:
        commands: The commands by name.
        arguments: The arguments of the process.
        description: A sentence about the program in the general help.

    Raises:
        InputError: The arguments have a mistake.
    """
    name = next(iter(arguments), "")
    _answer_help(commands, arguments)
    if name in commands:
        _refuse_twice(arguments)
        _refuse_empty(arguments)
    subcommands = []
    for command_name, command in commands.items():
        path = None
        if command_name == name and "config" in _flag_names(commands, name):
            path = _value_of_config_flag(arguments)
        subcommand = tyro.conf.subcommand(command_name, prefix_name=False, **_command_default(command, path))
        subcommands.append(Annotated[command, subcommand])
    # The members of the union are only known at run time, so it cannot be written as A | B.
    one_of: Any = Union[tuple(subcommands)]  # noqa: UP007
    with errors_as_sentences("fedraa", commands, arguments), warnings.catch_warnings():
        # tyro warns because `--override` takes texts, but its default is a mapping.
        warnings.filterwarnings("ignore", "The field .*override. is annotated", UserWarning)
        parsed: Command = tyro.cli(one_of, args=list(arguments), prog="fedraa", description=description)
    return parsed


def _answer_help(commands: Commands, arguments: Sequence[str]) -> None:
    """If the arguments contain a help flag, print the help of the command and exit.

    A command after `--` counts: `fedraa submit -- run --help` prints the help of `run`.
    """
    words = list(arguments)
    if "--" in words and HELP_FLAGS.isdisjoint(words[: words.index("--")]):
        words = words[words.index("--") + 1 :]
    if words and words[0] in commands and not HELP_FLAGS.isdisjoint(words):
        show_help(words[0], commands[words[0]], all_options=HELP_ALL in words)
        raise SystemExit(0)


def _refuse_twice(arguments: Sequence[str]) -> None:
    """Raise InputError for a repeated flag. The parser would use only its last value."""
    seen = set[str]()
    for word in takewhile(lambda word: word != "--", arguments):
        if not word.startswith("--"):
            continue
        flag = word.partition("=")[0].replace("_", "-").replace("--no-", "--", 1)
        if flag in seen:
            raise InputError(flag, "it is given twice", hint="give it once")
        seen.add(flag)


def _refuse_empty(arguments: Sequence[str]) -> None:
    """Raise InputError for an empty value. As a path it would be the current folder."""
    for before, word in pairwise(takewhile(lambda word: word != "--", arguments)):
        if word.startswith("--") and word.endswith("="):
            name = word.removesuffix("=")
        elif not word:
            name = before if before.startswith("--") else arguments[0]
        else:
            continue
        raise InputError(name, got="", expected="a value", hint="a variable of the shell may be unset")


@contextmanager
def errors_as_sentences(program: str, commands: Functions, arguments: Sequence[str]) -> Iterator[None]:
    """Convert tyro's parser errors in the block to InputErrors.

    Args:
        program: The name of the program.
        commands: The commands by name.
        arguments: The arguments of the process.
    """
    with _errors.on_parse_error(partial(_raise_sentence, program=program, commands=commands, arguments=arguments)):
        yield


def _value_of_config_flag(arguments: Sequence[str]) -> str | None:
    for word, value in zip(arguments, [*arguments[1:], None], strict=True):
        if word == "--config":
            return value
        if word.startswith("--config="):
            return word.partition("=")[2]
    return None


def _command_default(command: Callable[..., Command], path: str | None) -> dict[str, Any]:
    """Return tyro's argument `default`: the command with the experiment of the configuration file.

    Without a file, return an empty dict, so that tyro uses its own defaults.
    """
    if path is None:
        return {}
    values: dict[str, Any] = {}
    # The type hint says that a command is a function, but it is a dataclass.
    for field in fields(command):  # type: ignore[arg-type]
        values[field.name] = field.default
        if field.default is MISSING:
            values[field.name] = tyro.MISSING
    return {"default": command(**values | {"experiment": Experiment.from_file(path)})}


def _flag_names(commands: Functions, name: str) -> list[str]:
    """Return a command's flags in the form `batch_size`; an empty list for an unknown command."""
    if name not in commands:
        return []
    names = list(signature(commands[name]).parameters)
    # The fields of the experiment are flags, but the experiment itself is not.
    if EXPERIMENT in names:
        names.remove(EXPERIMENT)
        names += Experiment.model_fields
    return names


def _raise_sentence(
    event: _errors.ParseErrorEvent,
    program: str,
    commands: Functions,
    arguments: Sequence[str],
) -> None:
    """Raise an InputError that explains an error of tyro's parser. Do nothing if the error has an unknown type."""
    match event:
        case _errors.UnrecognizedArgs(tokens=tokens):
            raise _unknown_word_error(tokens[0], program, commands, arguments)
        case _errors.InvalidChoice(argument=argument, value=value, choices=choices):
            # The user cannot type `None`. tyro's order is arbitrary.
            names = sorted(set(choices) - {"None"})
            raise InputError(_flag_name(argument), got=value, expected=f"one of {', '.join(names)}")
        case _errors.BadValue(argument=argument, offending_value=value):
            if value is None:
                raise InputError(
                    _flag_name(argument), "it has no value", expected=_allowed_values(argument.lowered.metavar)
                )
            raise InputError(_flag_name(argument), got=value, expected=_allowed_values(argument.lowered.metavar))
        case _errors.InstantiationFailure(argument=None, message=message):
            # An InputError of the experiment has the form "field: problem".
            field, _, problem = message.partition(": ")
            raise InputError(field, problem)
        case _errors.InstantiationFailure(argument=argument, message=message) if argument is not None:
            wrong = _NO_NUMBER.match(message) or _NO_SUCH.match(message)
            if wrong:
                raise _bad_value_error(argument, wrong["value"], argument.lowered.metavar)
            union = _UNION.match(message)
            if union:
                raise _bad_value_error(argument, union["value"], union["allowed"])
            expected = _allowed_values(argument.lowered.metavar)
            raise InputError(_flag_name(argument), message.splitlines()[0], expected=expected)
        case _errors.MissingSubcommand(found_token=token):
            expected = f"one of {', '.join(commands)}"
            if token is None:
                raise InputError("command", "it is missing", expected=expected)
            raise InputError("command", got=token, expected=expected)
        case _errors.MissingArgs(missing_arguments=missing):
            raise InputError(_flag_name(missing[0].arg), "it is missing", hint=_help_hint(program, commands, arguments))


def _unknown_word_error(token: str, program: str, commands: Functions, arguments: Sequence[str]) -> InputError:
    """Return the error for an unknown argument, with a similar one as a hint."""
    see = _help_hint(program, commands, arguments)
    if not token.startswith("-"):
        if token == arguments[0]:
            return InputError(token, "there is no such command", hint=suggest_name(token, list(commands)) or see)
        return _too_many_values_error(token, program, arguments) or InputError(
            token, "there is no such argument", hint=see
        )
    token = token.partition("=")[0]
    if arguments[0] not in commands:
        hint = f"begin with one of {', '.join(commands)}"
        return InputError(token, "a flag cannot come before the command", hint=hint)
    name = token.lstrip("-").replace("-", "_")
    flags = _flag_names(commands, arguments[0])
    if name in flags and token.startswith("--"):
        # The user typed the name of a positional argument as if it were a flag.
        hint = f"give the {name} without a flag, {see}"
    elif name in flags:
        hint = f"did you mean --{name.replace('_', '-')}?"
    elif name in commands:
        hint = f"the command is {program} {name}"
    elif arguments[0] == "resume" and name in CHANGEABLE:
        hint = f"change it in Python: fedraa.resume(RUN, {name}=...)"
    elif arguments[0] == "resume" and name in _flag_names(commands, "run"):
        hint = f"a resumed run keeps its options; to change this one, start another run: {program} run {token}"
    elif name == "seeds" and "seed" in flags:
        hint = f"give --seed for one run, or {program} compare METHOD --seeds 0 1"
    elif name in CALLBACKS and "callbacks" in flags:
        hint = f'give --callbacks "{CALLBACKS[name]}"'
    else:
        known = [f"--{flag.replace('_', '-')}" for flag in flags]
        hint = suggest_name(token, known) or see
        if hint == see and arguments[0] == "submit" and "--" not in arguments:
            hint = f"put -- before the command, as in {program} submit -- run {token}"
    return InputError(token, "there is no such flag", hint=hint)


def _too_many_values_error(token: str, program: str, arguments: Sequence[str]) -> InputError | None:
    """Return the error for several values after a flag that takes only one.

    Returns None if the unknown argument `token` does not stand directly after a flag and its value.
    """
    values: list[str] = []
    flag = ""
    for word in arguments:
        if word.startswith("--"):
            flag, equals, value = word.partition("=")
            values = []
            if equals:
                values = [value]
            continue
        if flag and values and word == token:
            all_values = [*values, token]
            hint = ""
            if flag == "--seed":
                hint = f"for several seeds: {program} compare METHOD --seeds {' '.join(all_values)}"
            return InputError(flag.lstrip("-").replace("-", "_"), got=all_values, expected="one value", hint=hint)
        values.append(word)
    return None


def _help_hint(program: str, commands: Functions, arguments: Sequence[str]) -> str:
    """Return a hint to run `--help` for the command in the arguments, or for the program."""
    if not arguments or arguments[0] not in commands:
        return f"see {program} --help"
    help_flag = "--help"
    if EXPERIMENT in signature(commands[arguments[0]]).parameters:
        help_flag = HELP_ALL
    return f"see {program} {arguments[0]} {help_flag}"


def _bad_value_error(
    argument: "tyro._arguments.ArgumentDefinition | None", text: str, allowed: str | None
) -> InputError:
    """Return the error for an invalid value. `text` is the value in tyro's message."""
    # Several values are a list in tyro's message, such as "'1', 'b'".
    values = text.strip("[]'\"").replace("', '", " ")
    return InputError(_flag_name(argument), got=values, expected=_allowed_values(allowed))


def _allowed_values(metavar: str | None) -> str:
    """Return the values that a flag takes, without tyro's brackets and without `None`."""
    text = re.sub(r"\[(\w+) \[\1 \.\.\.\]\]", r"\1 ...", metavar or "no value")
    text = re.sub(r"[{}]", "", text).replace("None|", "")
    if text.endswith(" ..."):
        text += " with spaces between the values"
    return text


def _flag_name(argument: "tyro._arguments.ArgumentDefinition | None") -> str:
    assert argument is not None
    return argument.lowered.name_or_flags[0].lstrip("-").rpartition(".")[2].replace("-", "_")
