"""Run the blocks of code in documents as a reader would, with fewer seeds and less time."""

import re
import shlex
from pathlib import Path

from benchmarks.__main__ import COMMANDS
from fedraa.cli.main import _parse_arguments, main

ROOT = Path(__file__).parents[2]
SHORTER = {
    "--seeds 0 1 2": "--seeds 0",
    "--seeds 0 1 ": "--seeds 0 ",
    "--time 8": "--time 1",
    "--time 3": "--time 1",
    "--time 5": "--time 1",
    "--time 2 ": "--time 0.5 ",
    "--updates 200": "--updates 40",
    "--updates 100": "--updates 20",
    "--workers 4 --device": "--workers 1 --device",
}
# Programs that a test cannot run. Only the existence of the files that they name is checked.
NOT_RUN = ("chmod", "docker", "export", "helm", "kind", "kubectl", "ray", "sbatch", "source", "ssh")


def blocks(text: str) -> list[tuple[str, str]]:
    """Return language and text of every block of a document, in order."""
    return re.findall(r"^```(\w+)\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL)


def run_blocks(text: str, name: str, folder: Path, engine: str | None = None) -> int:
    """Run the blocks of a document in `folder`, the working directory. Return the number of commands.

    A block that begins with a file name is written to this file. The folder has benchmarks/results of the checkout.

    Args:
        text: The document.
        name: Its name, for error messages.
        folder: An empty folder.
        engine: The engine of runs that do not choose how they run; None for the default.
    """
    (folder / "benchmarks").mkdir()
    (folder / "benchmarks" / "results").symlink_to(ROOT / "benchmarks" / "results")
    commands = 0
    for language, block in blocks(text):
        if named := re.match(r"# (\w+\.(py|toml))\n", block):
            (folder / named[1]).write_text(block)
        elif language == "python":
            exec(compile(block, name, "exec"), {"__name__": "documented"})
        elif language == "sh":
            for line in block.strip().split("\n"):
                run(line, engine=engine)
                commands += 1
    return commands


def run(line: str, *, only_parse: bool = False, engine: str | None = None) -> None:
    """Run a command of `fedraa`. For other programs, check that the command exists.

    Args:
        line: The command.
        only_parse: True to parse it only.
        engine: The engine of a run that does not choose how it runs; None for the default.
    """
    for long, short in SHORTER.items():
        line = line.replace(long, short)
    program, *arguments = shlex.split(line, comments=True)
    if program == "make":
        assert f"\n{arguments[0]}:" in (ROOT / "Makefile").read_text()
    elif program in NOT_RUN:
        assert all((ROOT / argument).is_file() for argument in arguments if argument.startswith("deploy/"))
    elif program == "python":
        assert arguments[:2] == ["-m", "benchmarks"]
        assert arguments[2] in COMMANDS
    else:
        assert program == "fedraa"
        # tests/cluster/test_real_cluster.py runs commands with an address on a cluster. A board is served until Ctrl-C.
        if "--address" in arguments or arguments[0] == "board" or (only_parse and "--config" not in arguments):
            assert _parse_arguments(arguments)
            return
        if only_parse:
            return
        if arguments[0] == "resume" and len(arguments) == 2:
            # A run that has ended needs a new limit. Without its summary it counts as killed, and can be resumed as it
            # is.
            Path(arguments[1], "summary.json").unlink(missing_ok=True)
        if arguments[0] == "report" and "--theme" not in arguments:
            # One theme has half of the plots. Another test looks at a page with both themes.
            arguments += ["--theme", "light"]
        if engine is not None and arguments[0] == "run" and not {"--engine", "--workers"} & {*arguments}:
            arguments += ["--engine", engine]
        assert main(arguments) == 0, line
