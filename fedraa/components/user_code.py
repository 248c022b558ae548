"""Find the line of the user's code that raised an exception."""

import sys
import traceback
from pathlib import Path

BUILT_IN = {"__main__", "actors", "benchmarks", "fedraa", "schedulers"}
DEPENDENCIES = {
    "matplotlib",
    "numpy",
    "pandas",
    "pydantic",
    "ray",
    "rich",
    "scipy",
    "sklearn",
    "torch",
    "torchvision",
    "tyro",
}
# Packages that the user did not write.
LIBRARIES = BUILT_IN | DEPENDENCIES | sys.stdlib_module_names


def find_user_code(error: BaseException) -> str | None:
    """Return the name, file and line of the innermost function that is the user's code.

    Returns None if the traceback has no code of the user.
    """
    places = [
        (frame.f_code, line)
        for frame, line in traceback.walk_tb(error.__traceback__)
        if str(frame.f_globals.get("__name__")).partition(".")[0] not in LIBRARIES
    ]
    if not places:
        return None
    code, line = places[-1]
    place = f"{Path(code.co_filename).name}, line {line}"
    if code.co_qualname == "<module>":
        return place
    return f"{code.co_qualname} ({place})"
