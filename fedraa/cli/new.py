"""The command `fedraa new`, which creates the folder of a small example study."""

import shutil
from importlib.resources import files
from pathlib import Path

from fedraa.errors import InputError
from fedraa.rundir.atomic_files import write_text

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
    try:
        for template in sorted(files("fedraa.cli").joinpath("study").iterdir(), key=lambda path: path.name):
            path = folder / template.name.removesuffix(SUFFIX)
            write_text(path, template.read_text().replace("# NAME", f"# {folder.resolve().name}", 1))
            written.append(path)
    except OSError:
        # The command refuses a folder that exists, so an incomplete one would have to be removed by hand.
        shutil.rmtree(folder, ignore_errors=True)
        raise
    return written
