"""The page of compatibility: the versions that were tried, and the result of each check."""

from benchmarks.system.compat import COMBINATIONS, DOES_NOT_APPLY, PACKAGES, Row, read_combinations
from benchmarks.system.compat_checks import CHECKS

HEAD = """# Compatibility

You will find the versions of Python, Ray and the other dependencies with which fedraa was tested, and the command that
tests them on your machine.

`pyproject.toml` has the range of versions of each dependency. Each row of the tables is a combination of versions.
`lowest` has the lowest version of every range, and `newest` has the newest versions of all packages. A combination
that is named after a version of Ray or Python has this version, and the versions of `constraints.txt` for all other
packages. In `flower`, `flwr[simulation]` and fedraa are installed together.

In each combination, several checks start the same run of 40 updates:

| column | check |
|---|---|
| `import` | `import fedraa` gives no warning |
| `local` | `fedraa run --engine local` |
| `cluster` | `fedraa run` on the built-in cluster with two workers |
| `resume` | `kill -9` ends a worker, and later the run; `fedraa resume` completes the run |
| `address` | `fedraa run --address` on a cluster that `ray start --head` has started |
| `submit` | `fedraa submit` sends the run to this cluster as a job |
| `shards` | `fedraa run --address --server-shards 2` |
| `flower` | a simulation of Flower runs in the same environment |

A check fails if it prints a Python warning, or if its model is not bit for bit equal to the model of the check `local`.
"""

COMMAND = """## Test it yourself

The command needs [uv](https://docs.astral.sh/uv/) and the interpreters of Python. Each combination takes some minutes
and some gigabytes. Without `--only`, the command tests the combinations that the table does not have:

```sh
python -m benchmarks compat
python -m benchmarks compat --only python-3.13 lowest
```

On a busy machine, the processes of Ray may need longer to start than Ray allows (15 s or 30 s in Ray 2.55).
Repeat a combination that failed for this reason with `--only`.

The table is `benchmarks/results/compat.csv`. It also has the full digests, the seconds, and the reason of each failure.
"""


def compatibility_page() -> str:
    """Return the page with the two tables: the versions and the checks of each combination."""
    rows = list(read_combinations().values())
    digests = {row["digest"] for row in rows}
    versions = _format_table(("combination", "python", *PACKAGES), rows)
    checks = _format_table(("combination", *CHECKS, "digest"), rows)
    sentence = f"The models of all {len(rows)} combinations have the same digest, so they have the same bits."
    if len(digests) > 1:
        sentence = f"The models of the {len(rows)} combinations have {len(digests)} different digests."
    untested = [f"`{name}`" for name in COMBINATIONS if name not in {row["combination"] for row in rows}]
    if untested:
        sentence += f" These combinations were not tested: {', '.join(untested)}."
    return "\n".join([HEAD, f"## Versions\n\n{versions}\n", f"## Results\n\n{sentence}\n\n{checks}\n", COMMAND])


def _format_table(columns: tuple[str, ...], rows: list[Row]) -> str:
    lines = [f"| {' | '.join(columns)} |", "|---" * len(columns) + "|"]
    for row in rows:
        cells = [row[column] for column in columns]
        lines.append(f"| {' | '.join(_shorten(cell) for cell in cells)} |")
    return "\n".join(lines)


def _shorten(cell: str) -> str:
    """Return the text of a cell: a dash for a check that does not apply, and 16 characters of a digest."""
    if cell == DOES_NOT_APPLY:
        return "–"
    return cell[:16]
