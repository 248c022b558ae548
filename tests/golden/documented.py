"""Blocks of code in documents, run as a reader would, but for fewer seeds and less time."""

import re
import shlex
from pathlib import Path

from benchmarks.__main__ import COMMANDS
from fedraa.cli.main import _parse, main

ROOT = Path(__file__).parents[2]
SHORTER = {"--seeds 0 1 2": "--seeds 0", "--time 8": "--time 1", "--time 3": "--time 1"}
# That the files which they name are there is all that can be told.
THERE = ("export", "chmod", "ray", "sbatch", "source", "ssh")


def blocks(text: str) -> list[tuple[str, str]]:
    """Language and text of every block of a document, in their order."""
    return re.findall(r"^```(\w+)\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL)


def run_blocks(text: str, name: str, folder: Path) -> int:
    """Runs them in `folder`, the working directory; how many commands there were. A block that names a file is it.

    What a checkout has in benchmarks/results is there, too.
    """
    (folder / "benchmarks").mkdir()
    (folder / "benchmarks" / "results").symlink_to(ROOT / "benchmarks" / "results")
    commands = 0
    for language, block in blocks(text):
        if named := re.match(r"# (\w+\.(py|toml))\n", block):  # a file of the reader's
            (folder / named[1]).write_text(block)
        elif language == "python":
            exec(compile(block, name, "exec"), {"__name__": "documented"})
        elif language == "sh":
            for line in block.strip().split("\n"):
                run(line)
                commands += 1
    return commands


def run(line: str, *, only_parse: bool = False) -> None:
    """A command, `fedraa`'s as it stands; of the long ones, that they are there."""
    for long, short in SHORTER.items():
        line = line.replace(long, short)
    program, *arguments = shlex.split(line, comments=True)
    if program == "make":
        assert f"\n{arguments[0]}:" in (ROOT / "Makefile").read_text()
    elif program in THERE:
        assert all((ROOT / argument).is_file() for argument in arguments if argument.startswith("actors/"))
    elif program == "python":
        assert arguments[:2] == ["-m", "benchmarks"]
        assert arguments[2] in COMMANDS
    else:
        assert program == "fedraa"
        # tests/cluster/test_real_cluster.py runs what has an address, on a cluster; a board is served until Ctrl-C
        if "--address" in arguments or arguments[0] == "board" or (only_parse and "--config" not in arguments):
            assert _parse(arguments)
            return
        if only_parse:
            return
        if arguments[0] == "resume" and len(arguments) == 2:  # as after a kill: one that has ended is at its end
            Path(arguments[1], "summary.json").unlink(missing_ok=True)
        assert main(arguments) == 0, line
