"""Find convolutions for which PyTorch overwrites memory on this CPU, and measure the cost of fedraa's protection.

    python -m benchmarks convolutions                        # with all instructions that this CPU has
    python -m benchmarks convolutions --isa AVX2             # as on a CPU without AVX-512
    python -m benchmarks convolutions --protect              # with fedraa's protection, so that no case may fail
    python -m benchmarks convolutions --quick                # only a few cases, which take seconds
    python -m benchmarks convolutions --cost                 # step times with and without the protection

Each case is one convolution in a separate process with glibc's heap checks. Its output and gradients are compared with
the results of PyTorch without oneDNN. A case fails if its process dies or hangs, or if a number is wrong. Each row of
`convolutions.csv` is written at once. A stopped search therefore continues. `convolutions.md` has the tables.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import Literal

import torch
from rich.console import Console

from benchmarks.system import convolution_cost
from benchmarks.system.convolution_cases import Case, all_cases, quick_cases
from benchmarks.system.option_checks import refuse_below
from benchmarks.system.rows import open_table, write_table
from fedraa.errors import RunFailed

RESULTS = Path(__file__).parents[1] / "results" / "convolutions.csv"
HEAP_CHECKS = {"MALLOC_CHECK_": "3", "MALLOC_PERTURB_": "165", "OMP_NUM_THREADS": "1"}
# glibc 2.34 and later check the heap only if this library is loaded.
HEAP_LIBRARY = "libc_malloc_debug.so.0"
CASES_PER_LINE = 40
# oneDNN ignores other values of ONEDNN_MAX_CPU_ISA.
Isa = Literal[
    "DEFAULT",
    "SSE41",
    "AVX",
    "AVX2",
    "AVX2_VNNI",
    "AVX2_VNNI_2",
    "AVX512_CORE",
    "AVX512_CORE_VNNI",
    "AVX512_CORE_BF16",
    "AVX512_CORE_FP16",
    "AVX512_CORE_AMX",
    "AVX512_CORE_AMX_FP16",
]
NAMES = tuple(field.name for field in fields(Case))
COLUMNS = ("cpu", "isa", "torch", "onednn", "protected", *NAMES, "result")


def main(
    isa: Isa = "DEFAULT",
    protect: bool = False,
    quick: bool = False,
    cost: bool = False,
    sampled: int = 300,
    out: Path = RESULTS,
) -> None:
    """Search for convolutions that fail, and write the tables.

    Args:
        isa: the instructions that oneDNN may use, a value of ONEDNN_MAX_CPU_ISA; DEFAULT for all that the CPU has.
        protect: search with fedraa's protection.
        quick: try a few cases only, and write nothing.
        cost: do not search, but measure step times with and without the protection.
        sampled: the number of random cases in addition to the systematic ones.
        out: the CSV file with the cases; the page of tables is written into the same folder.
    """
    if cost:
        convolution_cost.main(isa=isa, quick=quick)
        return
    refuse_below(0, sampled=sampled)
    rows = [] if quick else open_table(out, COLUMNS)
    console = Console()
    setting = describe_setting(isa, protect=protect)
    cases = quick_cases() if quick else all_cases(sampled)
    known = {row_key(row) for row in rows}
    left = [case for case in cases if row_key(as_row(setting, case, "")) not in known]
    for start in range(0, len(left), CASES_PER_LINE):
        chunk = left[start : start + CASES_PER_LINE]
        results = run_cases(chunk, isa=isa, protect=protect)
        rows += [as_row(setting, case, result) for case, result in zip(chunk, results, strict=True)]
        failed = sum(result not in ("ok", "refused") for result in results)
        console.print(f"{start + len(chunk)} of {len(left)} cases, {failed} of the last {len(chunk)} failed")
        if not quick:
            write_table(out, COLUMNS, rows)
    page = format_page(rows)
    if not quick:
        out.with_suffix(".md").write_text(page)
    console.print(page, markup=False, highlight=False, soft_wrap=True)


def run_cases(cases: Sequence[Case], *, isa: str, protect: bool) -> list[str]:
    """Test the cases, and return a result for each: `ok`, `wrong`, `died`, `hung`, or `refused` (by PyTorch).

    Args:
        cases: The cases.
        isa: The instructions that oneDNN may use.
        protect: True to use fedraa's protection.
    """
    code = f"from benchmarks.system.convolution_cases import run_child; run_child(protect={protect})"
    child = subprocess.run(
        [sys.executable, "-c", code],
        env=child_environment(isa),
        input=json.dumps([asdict(case) for case in cases]),
        capture_output=True,
        text=True,
    )
    if child.returncode != 0:
        raise RunFailed("convolutions", f"the search stopped: {child.stderr.strip()[-2000:]}")
    return child.stdout.splitlines()


def child_environment(isa: str) -> dict[str, str]:
    """Return environment variables with which glibc ends a process that damaged its heap."""
    environment = os.environ | HEAP_CHECKS | {"ONEDNN_MAX_CPU_ISA": isa}
    if any(Path("/lib").glob(f"*/{HEAP_LIBRARY}")) or any(Path("/lib64").glob(HEAP_LIBRARY)):
        environment["LD_PRELOAD"] = HEAP_LIBRARY
    return environment


def describe_setting(isa: str, *, protect: bool) -> dict[str, str]:
    """Return the columns of the CSV file that have the same value in all rows of a search."""
    onednn = re.findall(r"(?:MKL-DNN|oneDNN) v(\S+)", torch.__config__.show())
    return {
        "cpu": cpu_name(),
        "isa": isa,
        "torch": torch.__version__,
        "onednn": [*onednn, "none"][0],
        "protected": str(protect),
    }


def cpu_name() -> str:
    """Return the CPU's name and its widest vector instructions."""
    text = Path("/proc/cpuinfo").read_text()
    names = re.findall(r"model name\s*: (.*)", text)
    instructions = {"avx512f": "AVX-512", "avx2": "AVX2", "": "without AVX2"}
    widest = next(name for flag, name in instructions.items() if flag in text)
    return f"{[*names, 'unknown'][0]} ({widest})"


def as_row(setting: dict[str, str], case: Case, result: str) -> dict[str, str]:
    """Return the table row of a case."""
    values = {name: str(value) for name, value in asdict(case).items()} | {"sides": "x".join(map(str, case.sides))}
    return setting | values | {"result": result}


def row_key(row: dict[str, str]) -> tuple[str, ...]:
    """Return all values of a row except the result. They identify the tested case."""
    return tuple(row[name] for name in COLUMNS if name != "result")


def format_page(rows: Sequence[dict[str, str]]) -> str:
    """Return a Markdown page with a table for each combination of CPU, instructions and versions.

    A table has a row for each property of convolutions, such as the stride. The row lists the values of the property in
    the failed cases and in the passed cases.
    """
    parts = ["# Convolutions that overwrite memory", "", (__doc__ or "\n\n" * 2).split("\n\n")[2].strip(), ""]
    searches = dict.fromkeys(tuple(row[name] for name in COLUMNS[:5]) for row in rows)
    for search in searches:
        chosen = [row for row in rows if tuple(row[name] for name in COLUMNS[:5]) == search]
        parts += [*table_of(search, chosen), ""]
    return "\n".join(parts)


def table_of(search: tuple[str, ...], rows: Sequence[dict[str, str]]) -> Iterator[str]:
    """Yield the lines of a table: the results of all rows with the same CPU, instructions, versions and protection."""
    cpu, isa, version, onednn, protected = search
    failed = [row for row in rows if row["result"] not in ("ok", "refused")]
    ran = [row for row in rows if row["result"] != "refused"]
    limit = "all instructions of the CPU" if isa == "DEFAULT" else f"limited to {isa}"
    yield f"## {cpu}, {limit}, {'with' if protected == 'True' else 'without'} the protection"
    yield ""
    yield f"PyTorch {version}, oneDNN {onednn}. {len(failed)} of {len(ran)} cases failed."
    if not failed:
        return
    yield ""
    yield "| property | values in cases that failed | values in cases that passed only |"
    yield "| --- | --- | --- |"
    for name in NAMES:
        bad = {row[name] for row in failed}
        good = {row[name] for row in ran} - bad
        yield f"| {name.replace('_', ' ')} | {list_values(bad)} | {list_values(good)} |"


def list_values(values: set[str]) -> str:
    """Return the values of a property of convolutions as text, numbers first."""
    return ", ".join(sorted(values, key=lambda value: (not value.isdigit(), value.zfill(9)))) or "-"
