"""Creation of the fleet (all devices) from the option `compute`."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fedraa.components.calls import convert_errors
from fedraa.components.imports import is_path
from fedraa.components.registry import ComponentRegistry
from fedraa.components.text import KIND, text_of
from fedraa.devices.device_columns import check_columns, check_values, parse_float, read_devices, split_clients
from fedraa.devices.fedscale import FedScaleFleet
from fedraa.devices.fleet import COLUMNS, WATTS, Fleet
from fedraa.devices.link_traces import LinkTrace
from fedraa.devices.profiles import ProfileFleet
from fedraa.errors import InputError
from fedraa.messages import Floats
from fedraa.rng import generator

DISTRIBUTIONS = {"lognormal": 1, "uniform": 2, "zipf": 1}
"""The number of values that each distribution needs."""
FORMS = (
    "tiers (1:0.5,3:0.5), lognormal:S, uniform:LOW:HIGH, zipf:A, a .csv file, profiles('NAME:SHARE,...'), or "
    "fedscale('FILE', flops=F)"
)
FLEETS: ComponentRegistry[Callable[..., Any]] = ComponentRegistry(
    "compute", ("__call__",), {"fedscale": FedScaleFleet, "profiles": ProfileFleet}
)


def make_fleet(compute: object, clients: int, *, units: str, seed: int) -> Fleet:
    """Return the fleet that the option `compute` describes.

    Args:
        compute: One of these forms:
            `1:0.5,3:0.5` (tiers): pairs SPEED:SHARE; the first clients have the first speed, and so on.
            `lognormal:SIGMA` (with median 1), `uniform:LOW:HIGH` or `zipf:A`: speeds are drawn at random.
            A CSV file: one row per device, with the column compute. The columns downlink, uplink, latency, memory,
                those in `WATTS`, and count (the number of devices of a row) are optional.
            `fedscale('FILE', flops=F)` for a FedScaleFleet, or `profiles('NAME:SHARE,...')` for a ProfileFleet.
            A custom function `(clients, rng)`, or its import path. It returns the speeds as an array [clients], or a
                mapping with the columns of such a CSV file.
        clients: The number of clients.
        units: `relative` or `physical`.
        seed: The seed of the random numbers.

    Raises:
        InputError: `compute` has none of these forms, or a value is out of range.
    """
    is_described = isinstance(compute, Mapping) and KIND in compute
    if not isinstance(compute, str) and not callable(compute) and not is_described:
        hint = "pass speeds as a function that returns them: lambda clients, rng: speeds"
        raise InputError("compute", got=compute, expected=f"{FORMS}, or a function (clients, rng)", hint=hint)
    if not isinstance(compute, str) or _names_function(compute):
        table = _call_function(compute, clients, units=units, seed=seed)
    elif compute.endswith(".csv"):
        table = read_devices(Path(compute), clients)
    else:
        table = {"compute": _draw_speeds(compute, clients, seed)}
    rows: dict[str, Any] = {
        name: np.asarray(table.get(name, np.full(clients, default)), np.float64) for name, default in COLUMNS.items()
    }
    watts = {name: table[name] for name in WATTS if name in table}
    if watts and units == "relative":
        raise InputError("units", got=units, expected="physical, because joules are watts times seconds")
    return Fleet(**rows, relative=units == "relative", watts=watts, links={})


def with_links(fleet: Fleet, links: Mapping[int, LinkTrace]) -> Fleet:
    """Return a copy of the fleet in which some clients have bandwidths that change with time, as their traces state.

    The mean of a trace replaces the client's constant bandwidth.
    """
    downlink = fleet.downlink.copy()
    uplink = fleet.uplink.copy()
    for client, trace in links.items():
        downlink[client] = trace.mean_downlink
        uplink[client] = trace.mean_uplink
    return replace(fleet, downlink=downlink, uplink=uplink, links=links)


def _names_function(compute: str) -> bool:
    """Return True if the text names a function: a key of FLEETS, or an import path."""
    name = compute.partition("(")[0].strip()
    if name in FLEETS.registered:
        return True
    return is_path(name) and not compute.endswith(".csv") and compute.partition(":")[0] not in DISTRIBUTIONS


def _call_function(compute: object, clients: int, *, units: str, seed: int) -> dict[str, Floats]:
    """Call a function that describes the devices. Check and return its columns.

    Args:
        compute: The function, its name in FLEETS, or its import path.
        clients: The number of clients.
        units: `relative` or `physical`.
        seed: The seed of the function's random numbers.
    """
    function = FLEETS.resolve(compute)
    if isinstance(function, FedScaleFleet | ProfileFleet) and units == "relative":
        raise InputError("units", got=units, expected="physical, because the speeds of these devices are in FLOP/s")
    name = getattr(function, "__qualname__", type(function).__qualname__)
    with convert_errors(f"compute: {name}", function):
        columns = function(clients, generator(seed, "fleet"))
        if not isinstance(columns, Mapping):
            columns = {"compute": columns}
        arrays = {str(column): np.asarray(values, np.float64) for column, values in columns.items()}
    check_columns(name, list(arrays))
    for column, values in arrays.items():
        if values.shape != (clients,):
            expected = f"one value for each of {clients} clients"
            raise InputError(f"compute: {name} {column}", got=values, expected=expected)
        check_values(name, column, values, lambda n: f"client {n}", values.tolist())
    return arrays


def _draw_speeds(spec: str, clients: int, seed: int) -> Floats:
    name, *arguments = spec.split(":")
    if name in DISTRIBUTIONS:
        values = [_parse_number(spec, text) for text in arguments]
        if len(values) != DISTRIBUTIONS[name] or min(values) <= 0:
            expected = "positive numbers, as in lognormal:0.5, uniform:1:10 or zipf:2"
            raise InputError("compute", got=spec, expected=expected)
        rng = generator(seed, "fleet")
        if name == "lognormal":
            speeds = rng.lognormal(0.0, values[0], clients)
            # With a huge sigma, some speeds exceed the range of float64.
            if not (np.isfinite(speeds) & (speeds > 0)).all():
                problem = "some speeds would be 0 or infinite"
                raise InputError("compute", problem, got=spec, hint="use a smaller number, as in lognormal:0.5")
            return speeds
        if name == "uniform":
            if values[0] > values[1]:
                raise InputError("compute", got=spec, expected="uniform:LOW:HIGH with LOW not above HIGH")
            return rng.uniform(values[0], values[1], clients)
        if values[0] <= 1:
            raise InputError("compute", got=spec, expected="an exponent above 1")
        return 1.0 / rng.zipf(values[0], clients)
    return np.repeat(*_parse_tiers(spec, clients))


def tier_sizes(compute: object, clients: int) -> npt.NDArray[np.int64]:
    """Return the number of clients in each tier, int64 [tiers]. Raise InputError if `compute` has no tiers."""
    if not isinstance(compute, str) or _names_function(compute) or compute.endswith(".csv"):
        problem = f"compute {text_of(compute)!r} has no tiers"
        raise InputError("resources", problem, hint="give tiers, as in --compute 1:0.5,3:0.5")
    return _parse_tiers(compute, clients)[1]


def _parse_tiers(spec: str, clients: int) -> tuple[Floats, npt.NDArray[np.int64]]:
    """Return the compute speed [tiers] and the number of clients [tiers] of each tier."""
    pairs = [part.split(":") for part in spec.split(",")]
    if any(len(pair) != 2 for pair in pairs):
        raise InputError("compute", got=spec, expected=FORMS)
    levels = np.array([_parse_number(spec, level) for level, _ in pairs])
    shares = np.array([_parse_number(spec, share) for _, share in pairs])
    if (levels <= 0).any():
        problem = f"it has the compute speed {levels.min():g}"
        raise InputError("compute", problem, got=spec, expected="speeds above 0")
    if (shares < 0).any() or abs(shares.sum() - 1) > 1e-6:
        problem = f"its shares sum to {shares.sum():g}"
        raise InputError("compute", problem, got=spec, expected="shares that sum to 1")
    return levels, split_clients(shares, clients)


def _parse_number(spec: str, text: str) -> float:
    value = parse_float(text)
    if not np.isfinite(value):
        raise InputError("compute", f"{text!r} is not a finite number", got=spec, expected=FORMS)
    return value
