"""`fedraa new`: a folder with a runnable study to start from."""

from importlib.resources import files
from pathlib import Path

from fedraa.errors import InputError

SUFFIX = ".txt"


def new(folder: Path) -> list[Path]:
    """Write the study's files into a new folder and return their paths.

    Raises ValueError if the folder exists, or cannot be made.
    """
    try:
        folder.mkdir(parents=True)
    except FileExistsError:
        raise InputError("folder", f"{folder} exists already", hint="give a new folder") from None
    except OSError as error:
        raise InputError("folder", f"{folder} cannot be made: {error.strerror}") from None
    written = []
    for template in sorted(files("fedraa.cli").joinpath("study").iterdir(), key=lambda each: each.name):
        path = folder / template.name.removesuffix(SUFFIX)
        path.write_text(template.read_text().replace("# NAME", f"# {folder.resolve().name}", 1))
        written.append(path)
    return written
