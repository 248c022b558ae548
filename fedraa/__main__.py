"""The command `python -m fedraa`."""

import io
import os
import sys

from fedraa.quick_imports import quick_imports


def main() -> int:
    """Run the command line. Ctrl-C during the imports or a missing package prints one line instead of a traceback."""
    _prepare_streams()
    try:
        with quick_imports():
            from fedraa.cli.main import main as command
    except KeyboardInterrupt:
        sys.stderr.write("\nfedraa: interrupted\n")
        return 130
    # A submitted job runs with the first Python in the PATH of its node.
    except ModuleNotFoundError as error:
        hint = "install the dependencies of fedraa there, or put another Python first into the PATH"
        sys.stderr.write(f"fedraa: {sys.executable} has no package {error.name}; {hint}\n")
        return 2
    return command()


def _prepare_streams() -> None:
    """Replace closed standard streams, and let stdout escape the characters that its encoding lacks."""
    for name in ("stdin", "stdout", "stderr"):
        if getattr(sys, name) is None:
            # The null device takes the number of the closed stream, so that no file of a run gets it.
            setattr(sys, name, open(os.devnull, "r+"))  # noqa: SIM115 - it stays open
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")


if __name__ == "__main__":
    sys.exit(main())
