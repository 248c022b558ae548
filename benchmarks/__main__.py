"""`python -m benchmarks`: studies that compare methods (`list`, `run STUDY`), and measurements of the system fedraa."""

import sys
from collections.abc import Callable
from subprocess import CalledProcessError

import tyro

from benchmarks.studies import paper004
from benchmarks.studies.commands import list_studies, run_study
from benchmarks.studies.options import RunOptions
from benchmarks.studies.paper_pages import write_claims
from benchmarks.system import (
    board,
    chaos_matrix,
    compat,
    convolutions,
    cut_cost,
    cut_models,
    fault_counts,
    faults,
    gpu,
    large_models,
    link_faults,
    million,
    peers,
    plan_nodes,
    prose,
    same_bits,
    structure,
    tasks,
    throughput,
)
from fedraa.cli.exit_code import exit_code, interrupt_on_termination
from fedraa.cli.parse import errors_as_sentences
from fedraa.errors import RunFailed

PROGRAM = "python -m benchmarks"
COMMANDS: dict[str, Callable[..., object]] = {
    "list": list_studies,
    "run": run_study,
    "claims": write_claims,
    "paper004": paper004.main,
    "board": board.main,
    "chaos": chaos_matrix.main,
    "compat": compat.main,
    "convolutions": convolutions.main,
    "cut_cost": cut_cost.main,
    "cut_models": cut_models.main,
    "fault_counts": fault_counts.main,
    "faults": faults.main,
    "gpu": gpu.main,
    "large_models": large_models.main,
    "link_faults": link_faults.main,
    "million": million.main,
    "peers": peers.main,
    "plan_nodes": plan_nodes.main,
    "prose": prose.main,
    "same_bits": same_bits.main,
    "structure": structure.main,
    "tasks": tasks.main,
    "throughput": throughput.main,
}


# Error messages suggest flags of these functions. The flags of `run` are the fields of RunOptions.
FLAGS = COMMANDS | {"run": RunOptions}


def main() -> None:
    """Run the command in the arguments of this process."""
    try:
        # A SIGTERM also ends the processes that a command has started.
        with interrupt_on_termination(), errors_as_sentences(PROGRAM, FLAGS, sys.argv[1:]):
            tyro.extras.subcommand_cli_from_dict(COMMANDS, prog=PROGRAM, description=__doc__)
    except CalledProcessError as error:
        problem = f"it ended with exit code {error.returncode}: {' '.join(map(str, error.cmd))}"
        raise RunFailed("process", problem, hint="its output is above") from None


if __name__ == "__main__":
    sys.exit(exit_code(main))
