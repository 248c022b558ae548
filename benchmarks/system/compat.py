"""Test fedraa with different versions of Python, Ray and other dependencies.

    python -m benchmarks compat                           # the combinations that the table does not have
    python -m benchmarks compat --only ray-2.40.0 lowest  # these two, even if the table has them

`uv` makes a virtual environment for each combination of versions. The checks start one small run in several ways. All
these runs must end with the same bits of the model. As soon as a combination is tested, its row of
`benchmarks/results/compat.csv` is written. An interrupted command therefore continues when it is started again.
"""

import json
import shutil
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

from benchmarks.system.compat_checks import (
    ALONE,
    CHECKS,
    FLOWER_COLUMN,
    ON_HEAD,
    CheckFailed,
    Environment,
    run_flower,
    start_head,
)
from benchmarks.system.option_checks import refuse_unknown_names
from benchmarks.system.rows import open_table, read_table, write_table
from fedraa.cli.console import print_line
from fedraa.errors import InputError

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks" / "results" / "compat.csv"
FOLDER = ROOT / "build" / "compat"
RAY_VERSIONS = ("2.40.0", "2.44.1", "2.48.0", "2.51.1", "2.55.1", "2.60.0")
# For each of these packages, the table has a column with the package's version.
PACKAGES = ("ray", "torch", "numpy", "pandas", "pydantic")
FLOWER_PACKAGE = "flwr[simulation]"
COLUMNS = ("combination", "python", *PACKAGES, *CHECKS, "digest", "seconds", "problem")
YES, NO, DOES_NOT_APPLY = "yes", "no", "does not apply"

Row = dict[str, str]


@dataclass(frozen=True)
class Combination:
    """Versions that are installed together.

    Attributes:
        python: The version of Python.
        versions: `pinned`: the versions in constraints.txt. `lowest`, `newest`: the lowest or the newest versions that
            pyproject.toml allows.
        requirements: Further requirements, which override pinned versions.
    """

    python: str = "3.11"
    versions: Literal["pinned", "lowest", "newest"] = "pinned"
    requirements: tuple[str, ...] = ()


COMBINATIONS = {f"ray-{version}": Combination(requirements=(f"ray=={version}",)) for version in RAY_VERSIONS} | {
    "python-3.12": Combination(python="3.12"),
    "python-3.13": Combination(python="3.13"),
    "lowest": Combination(versions="lowest"),
    "newest": Combination(versions="newest"),
    "flower": Combination(versions="newest", requirements=(FLOWER_PACKAGE,)),
}


def main(only: tuple[str, ...] = (), folder: Path = FOLDER, out: Path = RESULTS) -> None:
    """Test combinations of versions, and add a row to the table for each.

    Args:
        only: Names of combinations (default: those that the table does not have).
        folder: The folder of the virtual environments and of their runs.
        out: The table.
    """
    if only:
        refuse_unknown_names("only", only, COMBINATIONS)
    open_table(out, COLUMNS)
    rows = read_combinations(out)
    if shutil.which("uv") is None:
        raise InputError("uv", "it is not installed", hint="install it with: pip install uv")
    names = only or tuple(name for name in COMBINATIONS if name not in rows)
    for number, name in enumerate(names, start=1):
        print_line(f"{number} of {len(names)}: {name}")
        rows[name] = try_combination(name, COMBINATIONS[name], folder / name)
        write_table(out, COLUMNS, (rows[known] for known in COMBINATIONS if known in rows))
        print_line(describe_row(rows[name]))


def try_combination(name: str, combination: Combination, folder: Path) -> Row:
    """Install a combination of versions, run all checks, and return the table row.

    Args:
        name: The name of the combination.
        combination: The versions.
        folder: The folder for the virtual environment and the runs. Its files are deleted first.
    """
    start = time.monotonic()
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    row = dict.fromkeys(COLUMNS, "") | dict.fromkeys(CHECKS, NO)
    row |= {"combination": name, "python": combination.python}
    if FLOWER_PACKAGE not in combination.requirements:
        row[FLOWER_COLUMN] = DOES_NOT_APPLY
    try:
        environment = install(combination, folder)
    except CheckFailed as error:
        row["problem"] = str(error)
    else:
        row |= _installed_versions(environment)
        run_checks(environment, row)
    row["seconds"] = f"{time.monotonic() - start:.0f}"
    return row


def install(combination: Combination, folder: Path) -> Environment:
    """Install fedraa and a combination of versions in a new virtual environment.

    Raises CheckFailed if the installation fails.
    """
    environment = Environment(folder, folder / "venv" / "bin" / "python")
    _run_uv("venv", "--python", combination.python, str(folder / "venv"))
    options = ["--python", str(environment.python), *combination.requirements]
    if combination.versions == "lowest":
        options += ["--resolution", "lowest-direct"]
    if combination.versions == "pinned":
        options += ["--constraints", str(write_constraints(combination, folder))]
    _run_uv("pip", "install", *options, "--editable", str(ROOT))
    return environment


def write_constraints(combination: Combination, folder: Path) -> Path:
    """Write a copy of constraints.txt without the packages in `combination.requirements`. Return the copy's path."""
    own = {requirement.partition("==")[0] for requirement in combination.requirements}
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    path = folder / "constraints.txt"
    path.write_text("\n".join(line for line in lines if line.partition("==")[0] not in own))
    return path


def _run_uv(*arguments: str) -> str:
    """Run uv and return its output. Raise CheckFailed with uv's error message if uv fails."""
    ended = subprocess.run(["uv", "--quiet", *arguments], capture_output=True, text=True)
    if ended.returncode:
        raise CheckFailed(" ".join(ended.stderr.split()))
    return ended.stdout


def _installed_versions(environment: Environment) -> Row:
    listed = json.loads(_run_uv("pip", "list", "--python", str(environment.python), "--format", "json"))
    versions = {package["name"]: str(package["version"]) for package in listed}
    python = environment.execute("-c", "import platform; print(platform.python_version())").strip()
    return {"python": python} | {name: versions[name] for name in PACKAGES}


def run_checks(environment: Environment, row: Row) -> None:
    """Run all checks and write their results into `row`."""
    problems: list[str] = []

    def record(column: str, check: Callable[[], str | None]) -> None:
        print_line(f"  {column}")
        try:
            digest = check()
        except (CheckFailed, OSError) as error:
            problems.append(f"{column}: {error}")
            return
        if digest is not None:
            row["digest"] = row["digest"] or digest
            if digest != row["digest"]:
                problems.append(f"{column}: the digest of the model is {digest}")
                return
        row[column] = YES

    for column, check in ALONE.items():
        record(column, partial(check, environment))
    try:
        with start_head(environment) as head:
            for column, check_on_head in ON_HEAD.items():
                record(column, partial(check_on_head, environment, head))
    except CheckFailed as error:
        problems.append(str(error))
    if row[FLOWER_COLUMN] != DOES_NOT_APPLY:
        record(FLOWER_COLUMN, partial(run_flower, environment))
    row["problem"] = "; ".join(problems)


def describe_row(row: Row) -> str:
    """Return a sentence that lists a combination's passed and failed checks."""
    failed = [name for name in CHECKS if row[name] == NO]
    if failed:
        return f"{row['combination']}: {', '.join(failed)} failed: {row['problem']}"
    return f"{row['combination']}: all checks passed, digest {row['digest'][:16]}, {row['seconds']} s"


def read_combinations(path: Path = RESULTS) -> dict[str, Row]:
    """Return the rows of the table by combination; empty if there is no file."""
    return {row["combination"]: row for row in read_table(path)}
