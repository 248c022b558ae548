"""The message appears if the process ends within the context, and only then."""

import subprocess
import sys

import pytest

CODE = """
import os
from actors.cluster.exit_message import explain_exit
with explain_exit("cluster: it's gone; try again"):
    {inside}
{after}
"""


@pytest.mark.parametrize(
    ("inside", "after", "message"),
    [
        ("os._exit(1)", "", "fedraa: cluster: it's gone; try again\n"),
        ("pass", "os._exit(1)", ""),
        ("raise SystemExit(1)", "", ""),
    ],
)
def test_message_is_written_if_the_process_ends_inside(inside: str, after: str, message: str) -> None:
    code = CODE.format(inside=inside, after=after)
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (ended.returncode, ended.stderr) == (1, message)
