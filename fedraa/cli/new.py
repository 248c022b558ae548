"""The command `fedraa new`, which creates the folder of a small example study."""

from importlib.resources import files
from pathlib import Path

from fedraa.errors import InputError

SUFFIX = ".txt"


def write_study(folder: Path) -> list[Path]:
    """Write the files of the example study into a new folder and return their paths.

    Raises InputError if the folder exists, or cannot be created.
    """
    try:
        folder.mkdir(parents=True)
    except FileExistsError:
        raise InputError("folder", "it already exists", got=folder, hint="give a new folder") from None
    except OSError as error:
        problem = f"the folder cannot be created: {error.strerror}"
        raise InputError("folder", problem, got=folder, hint="give another folder") from None
    written = []
    for template in sorted(files("fedraa.cli").joinpath("study").iterdir(), key=lambda path: path.name):
        path = folder / template.name.removesuffix(SUFFIX)
        path.write_text(template.read_text().replace("# NAME", f"# {folder.resolve().name}", 1))
        written.append(path)
    return written
