"""The fleet that `capabilities` describes: tiers, a distribution, a file of devices, or the user's own function."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fedraa.components.imports import is_path
from fedraa.components.registry import Seam
from fedraa.components.text import text_of
from fedraa.devices.device_columns import check_columns, check_values, read_csv
from fedraa.devices.fleet import COLUMNS, Fleet, Floats
from fedraa.rng import generator

DISTRIBUTIONS = {"lognormal": 1, "uniform": 2, "zipf": 1}  # and how many numbers each takes
FLEETS: Seam[Callable[..., Any]] = Seam("capabilities", ("__call__",), {})


def make_fleet(capabilities: object, clients: int, *, units: str, seed: int) -> Fleet:
    """The fleet that `--capabilities` describes.

    Tiers `1:0.5,3:0.5` (capability:share, in client order), a distribution `lognormal:SIGMA` (median 1),
    `uniform:LOW:HIGH` or `zipf:A`, or a CSV file with a row per device and the columns compute and, where
    wanted, downlink, uplink, latency, memory. Or the user's own: a function `(clients, rng)`, or its import path,
    that gives compute as an array [clients], or a mapping of those columns. ValueError says what is wrong.
    """
    if not isinstance(capabilities, str) or _is_own(capabilities):
        table = _called(capabilities, clients, seed)
    elif capabilities.endswith(".csv"):
        table = read_csv(Path(capabilities), clients)
    else:
        table = {"compute": _compute(capabilities, clients, seed)}
    rows = {
        name: np.asarray(table.get(name, np.full(clients, default)), np.float64) for name, default in COLUMNS.items()
    }
    return Fleet(**rows, relative=units == "relative")


def _is_own(capabilities: str) -> bool:
    path = is_path(capabilities.partition("(")[0].strip())
    return path and not capabilities.endswith(".csv") and capabilities.partition(":")[0] not in DISTRIBUTIONS


def _called(given: object, clients: int, seed: int) -> dict[str, Floats]:
    """What the user's own function gives, checked as a CSV file is."""
    function = FLEETS.make(given)
    name = getattr(function, "__qualname__", type(function).__qualname__)
    try:
        made = function(clients, generator(seed, "fleet"))
        columns = dict(made) if isinstance(made, Mapping) else {"compute": made}
        arrays = {str(column): np.asarray(values, np.float64) for column, values in columns.items()}
    except Exception as error:
        raise ValueError(f"capabilities: {name} failed with {type(error).__name__}: {error}") from error
    check_columns(name, list(arrays))
    for column, values in arrays.items():
        if values.shape != (clients,):
            raise ValueError(
                f"capabilities: {name} gave {column} of shape {list(values.shape)} for {clients} clients; give one each"
            )
        check_values(name, column, values, lambda n: f"client {n}", values.tolist())
    return arrays


def _compute(spec: str, clients: int, seed: int) -> Floats:
    name, *arguments = spec.split(":")
    if name in DISTRIBUTIONS:
        values = [_number(spec, text) for text in arguments]
        if len(values) != DISTRIBUTIONS[name] or min(values) <= 0:
            raise ValueError(
                f"capabilities: {spec!r} takes {DISTRIBUTIONS[name]} positive number(s) after {name!r}, "
                "e.g. lognormal:0.5, uniform:1:10 or zipf:2"
            )
        rng = generator(seed, "fleet")
        if name == "lognormal":
            return rng.lognormal(0.0, values[0], clients)
        if name == "uniform":
            if values[0] > values[1]:
                raise ValueError(f"capabilities: {spec!r} has a lower end above its upper end")
            return rng.uniform(values[0], values[1], clients)
        if values[0] <= 1:
            raise ValueError(f"capabilities: {spec!r} must have an exponent over 1")
        return 1.0 / rng.zipf(values[0], clients)
    return np.repeat(*_tiers(spec, clients))


def tier_sizes(capabilities: object, clients: int) -> npt.NDArray[np.int64]:
    """How many clients each tier has, int64 [tiers]; ValueError for `capabilities` that are no tiers."""
    if not isinstance(capabilities, str) or _is_own(capabilities) or capabilities.endswith(".csv"):
        raise ValueError(
            f"resources: capabilities {text_of(capabilities)!r} have no tiers; give some, as in 1:0.5,3:0.5"
        )
    return _tiers(capabilities, clients)[1]


def _tiers(spec: str, clients: int) -> tuple[Floats, npt.NDArray[np.int64]]:
    """The level of each tier and how many clients are of it."""
    pairs = [part.split(":") for part in spec.split(",")]
    if any(len(pair) != 2 for pair in pairs):
        raise ValueError(
            f"capabilities: {spec!r} is neither tiers (1:0.5,3:0.5), lognormal:S, uniform:LOW:HIGH, zipf:A "
            "nor a .csv file"
        )
    levels = np.array([_number(spec, level) for level, _ in pairs])
    shares = np.array([_number(spec, share) for _, share in pairs])
    if (levels <= 0).any():
        raise ValueError(f"capabilities: {spec!r} has the capability {levels.min():g}; all must be over 0")
    if (shares < 0).any() or abs(shares.sum() - 1) > 1e-6:
        raise ValueError(f"capabilities: the shares of {spec!r} sum to {shares.sum():g}; they must sum to 1")
    ends = np.floor(np.cumsum(shares) * clients + 0.5).astype(int)
    ends[-1] = clients
    return levels, np.diff(np.concatenate(([0], ends)))


def _number(spec: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = np.nan
    if not np.isfinite(value):
        raise ValueError(
            f"capabilities: {text!r} in {spec!r} is not a finite number; use tiers (1:0.5,3:0.5), lognormal:S, "
            "uniform:LOW:HIGH, zipf:A or a .csv file"
        )
    return value
