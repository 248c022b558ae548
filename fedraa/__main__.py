"""The command `python -m fedraa`."""

import sys

from fedraa.quick_imports import quick_imports


def main() -> int:
    """Run the command line. Ctrl-C during the imports prints one line instead of a traceback."""
    try:
        with quick_imports():
            from fedraa.cli.main import main as command
    except KeyboardInterrupt:
        sys.stderr.write("\nfedraa: interrupted\n")
        return 130
    return command()


if __name__ == "__main__":
    sys.exit(main())
