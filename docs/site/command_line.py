"""The page of all commands and options, generated from the command line."""

from html import escape
from itertools import groupby

from fedraa.cli.flags import OWN, POSITIONAL, list_flags
from fedraa.cli.main import COMMANDS
from fedraa.composition.overrides import SHORTCUTS

HEAD = """# Command line

You will find every option of every command. `fedraa COMMAND --help` prints the everyday options, and `fedraa COMMAND
--help-all` prints all of them. An option without a default uses the value of the method. `--config FILE.toml` reads
options from a file, in which `local_epochs = 5` means `--local-epochs 5`.

## Values of a method

`--override PATH=VALUE` sets any value of a method's four choices: `--override local.sam_rho=0.05 submodel.stride=2`. In
Python this is `override={"local.sam_rho": 0.05}`, and in a configuration file it is a table `[override]`.
`fedraa methods NAME` lists every path with its value. The options in this table are shortcuts. Each of them sets the
value of a path:

"""


def command_line() -> str:
    """Return the page. It has a section per command; only the first command with an experiment's options lists them."""
    sections, experiment_at = [HEAD + _shortcuts()], ""
    for name, command in COMMANDS.items():
        flags = list_flags(command)
        positional = "".join(f" {flag.name}" for flag in flags if flag.group == POSITIONAL)
        lines = [f"## fedraa {name}{positional}", " ".join(str(command.__doc__).split())]
        has_experiment = any(flag.sets_experiment_field for flag in flags)
        for group, members in groupby(flags, key=lambda flag: flag.group):
            is_own = group in (POSITIONAL, OWN)
            if not is_own and experiment_at:
                continue
            if not is_own:
                lines.append(f"### {group}")
            lines.append(_table([(flag.typed, flag.default, flag.text) for flag in members]))
        if has_experiment:
            if experiment_at:
                lines.append(f"It also has all options of [fedraa {experiment_at}](#fedraa-{experiment_at}).")
            experiment_at = experiment_at or name
        sections.append("\n\n".join(lines))
    return "\n\n".join(sections) + "\n"


def _shortcuts() -> str:
    """Return a table of the flags that set the value of a path."""
    lines = ["| flag | path |", "|---|---|"]
    for name, paths in SHORTCUTS.items():
        flag = "--" + name.replace("_", "-")
        lines.append(f"| `{flag}` | {', else '.join(f'`{path}`' for path in paths)} |")
    return "\n".join(lines)


def _table(rows: list[tuple[str, str, str]]) -> str:
    lines = ["| flag | default | what it does |", "|---|---|---|"]
    lines += [f"| {_code(flag)} | {_code(default)} | {_cell(text)} |" for flag, default, text in rows]
    return "\n".join(lines)


def _code(text: str) -> str:
    """Return code as HTML, because a code span of Markdown shows the escape of a pipe."""
    return f"<code>{_cell(text)}</code>" if text else ""


def _cell(text: str) -> str:
    return escape(text, quote=False).replace("|", "&#124;")
