"""`python -m benchmarks NAME`: studies that take minutes; each writes its table to benchmarks/results."""

import sys
from collections.abc import Callable

import tyro

from benchmarks import cut_cost, cut_models, paper004
from fedraa.cli import exit_code

STUDIES: dict[str, Callable[..., object]] = {
    "paper004": paper004.main,
    "cut_cost": cut_cost.main,
    "cut_models": cut_models.main,
}


def main() -> None:
    tyro.extras.subcommand_cli_from_dict(STUDIES, prog="python -m benchmarks", description=__doc__)


if __name__ == "__main__":
    sys.exit(exit_code(main))
