"""What config.json says of a run: who it is, and what its figures are."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedraa.components.imports import importing_only
from fedraa.config.experiment import Experiment
from fedraa.errors import InputError
from fedraa.objectives import Figures, figures_of
from fedraa.rundir.config_file import read_config
from fedraa.rundir.file_names import CONFIG
from fedraa.rundir.history import method_name
from fedraa.rundir.run_stats import whole_number


@dataclass(frozen=True)
class About:
    """`flags` is the experiment as JSON holds it; `steps` and `time` are the limits that end the run, if there are any;
    `started` is when it was configured, in seconds since 1970."""

    method: str
    dataset: str
    seed: int
    clients: int
    clock: str
    unit: str
    parameters: int
    steps: int | None
    time: float | None
    started: float
    figures: Figures
    flags: Mapping[str, Any]
    given: tuple[str, ...] = ()
    """The fields that were given as objects."""


def about(directory: Path) -> About:
    """ValueError, one sentence, for what is no configuration of a run."""
    config = read_config(directory / CONFIG)
    flags = config["experiment"]
    try:
        limits, clock, figures = config["resolved"]["limits"], str(flags["clock"]), figures_of(config)
        if not {figures.main} <= {str(name) for name in figures.columns}:
            raise InputError("figures", f"{figures.main}, by which the run is judged, is not among them")
        return About(
            method=method_name(config),
            dataset=str(flags["dataset"]),
            seed=int(flags["seed"]),
            clients=max(1, whole_number(flags["clients"])),
            clock=clock,
            unit="s" if clock == "wall" or flags.get("units") == "physical" else "time units",
            parameters=max(1, whole_number(config["resolved"]["parameters"])),
            steps=None if limits["steps"] is None else whole_number(limits["steps"]),
            time=None if limits["time"] is None else float(limits["time"]),
            started=(directory / CONFIG).stat().st_mtime,
            figures=figures,
            flags=flags,
            given=tuple(map(str, config.get("given", ()))),
        )
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        what = f"{type(error).__name__}: {error}"
        raise InputError("run", f"{directory / CONFIG} is not a run's configuration ({what})") from None


def repeats(flags: Mapping[str, Any], given: tuple[str, ...] = ()) -> str:
    """Return the command that repeats a run, or a sentence if this version knows no such experiment.

    No code that a run directory names is imported for it.
    """
    from fedraa.board.of_reports import command

    try:
        with importing_only(()):
            return command(Experiment(**flags), given)
    except (TypeError, ValueError) as error:
        return f"# cannot be told: {' '.join(str(error).split())}"
