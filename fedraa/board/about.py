"""Facts about a run from its config.json."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedraa.callbacks.events import Limits
from fedraa.errors import InputError
from fedraa.objectives import MetricSpec, read_metric_spec
from fedraa.rundir.config_file import read_config, time_unit
from fedraa.rundir.file_names import CONFIG
from fedraa.rundir.history import method_name
from fedraa.rundir.run_stats import whole_number


@dataclass(frozen=True)
class About:
    """The part of a run's configuration that the board shows.

    Attributes:
        method: Name of the method.
        dataset: Name of the data set.
        seed: Seed of the run.
        clients: Number of clients.
        clock: `virtual` or `wall`.
        unit: Unit of the run's clock: `s` or `time units`.
        parameters: Number of trained parameters.
        limits: The limits of steps and time.
        started: Time at which config.json was last written, in seconds since 1970.
        metric_spec: The metrics of an evaluation.
        flags: The options of the experiment, as in config.json.
        given: The options that the user set to Python objects. A command line cannot contain them.
    """

    method: str
    dataset: str
    seed: int
    clients: int
    clock: str
    unit: str
    parameters: int
    limits: Limits
    started: float
    metric_spec: MetricSpec
    flags: Mapping[str, Any]
    given: tuple[str, ...] = ()


def read_about(directory: Path) -> About:
    """Return the facts in a run's config.json. Raise InputError if the file is not a run's configuration."""
    config = read_config(directory / CONFIG)
    flags = config["experiment"]
    try:
        limits = config["resolved"]["limits"]
        clock = str(flags["clock"])
        metric_spec = read_metric_spec(config)
        if metric_spec.main not in metric_spec.columns:
            raise InputError("metric_spec", f"the main metric {metric_spec.main} is not among the columns")
        return About(
            method=method_name(config),
            dataset=str(flags["dataset"]),
            seed=int(flags["seed"]),
            clients=max(1, whole_number(flags["clients"])),
            clock=clock,
            unit=time_unit(flags),
            parameters=max(1, whole_number(config["resolved"]["parameters"])),
            limits=Limits(
                steps=None if limits["steps"] is None else whole_number(limits["steps"]),
                time=None if limits["time"] is None else float(limits["time"]),
                accuracy=None,
            ),
            started=(directory / CONFIG).stat().st_mtime,
            metric_spec=metric_spec,
            flags=flags,
            given=tuple(map(str, config.get("given", ()))),
        )
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        reason = f"{type(error).__name__}: {error}"
        raise InputError("run", f"{directory / CONFIG} is not a run's configuration ({reason})") from None
