"""The command `python -m fedraa`."""

import sys

from fedraa.quick_imports import quick_imports


def main() -> int:
    """Run the command line. Ctrl-C during the imports or a missing package prints one line instead of a traceback."""
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


if __name__ == "__main__":
    sys.exit(main())
