"""`python -m fedraa` is the command `fedraa`."""

import sys


def main() -> int:
    """The command line; Ctrl-C is a sentence also while that itself is read, which takes a moment."""
    try:
        from fedraa.cli.main import main as command
    except KeyboardInterrupt:
        sys.stderr.write("\nfedraa: interrupted\n")
        return 130
    return command()


if __name__ == "__main__":
    sys.exit(main())
