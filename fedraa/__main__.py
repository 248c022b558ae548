"""The command `fedraa` as `python -m fedraa`."""

import sys

from fedraa.quick_imports import quick_imports


def main() -> int:
    """Run the command line. Ctrl-C also prints a sentence during the import, which takes a moment."""
    try:
        with quick_imports():
            from fedraa.cli.main import main as command
    except KeyboardInterrupt:
        sys.stderr.write("\nfedraa: interrupted\n")
        return 130
    return command()


if __name__ == "__main__":
    sys.exit(main())
