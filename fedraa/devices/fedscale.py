"""Devices from the two trace files of FedScale (Lai et al. 2022, https://github.com/SymbioticLab/FedScale).

The file `client_device_capacity` is a pickled dict: device -> {"computation": milliseconds for the inference of one
sample, "communication": kbit/s in both directions}. The file `client_behave_trace` is a pickled dict: device ->
{"duration", "inactive": [...], "finish_time", "active": [...], "model"} with times in seconds. A device is available
from `active[k]` to `inactive[k]`, including both seconds, and its trace repeats after `finish_time`. The two files
describe different devices.
"""

import pickle
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fedraa.devices.availability import Availability, Spans
from fedraa.errors import InputError, read_failure
from fedraa.messages import Floats
from fedraa.numbers import Positive
from fedraa.reading.regular_files import open_regular_file
from fedraa.rng import generator

# Unpickling NumPy's numbers needs these functions. All others are forbidden for safety.
_ALLOWED = {
    ("numpy", "dtype"),
    ("numpy.core.multiarray", "scalar"),
    ("numpy._core.multiarray", "scalar"),
}


@dataclass(frozen=True)
class FedScaleFleet:
    """Random devices from FedScale's file `client_device_capacity`, in physical units.

    An inference time of c milliseconds becomes the compute speed `flops` / c * 1000 FLOP/s. Training on a sample costs
    three inferences, as in FedScale. A link of k kbit/s moves k * 1000 / 8 bytes/s in each direction. Clients get
    different devices if the file has enough devices.

    Args:
        path: The file.
        flops: The FLOPs for the inference of one sample, for the model that FedScale timed.
    """

    path: str
    flops: Positive

    def __call__(self, clients: int, rng: np.random.Generator) -> Mapping[str, Floats]:
        path = Path(self.path)
        devices = _read_devices(path)
        drawn = _draw_devices(list(devices), clients, rng)
        speeds = np.array([_read_number(path, device, devices[device], "computation") for device in drawn])
        links = np.array([_read_number(path, device, devices[device], "communication") for device in drawn]) * 125
        return {"compute": self.flops / speeds * 1000, "downlink": links, "uplink": links}


def read_fedscale_availability(path: Path, clients: int, seed: int) -> Availability:
    """Return the availability of random devices from FedScale's file `client_behave_trace`, in seconds.

    Clients get different devices if the file has enough devices.

    Args:
        path: The file.
        clients: The number of clients.
        seed: The seed with which devices are drawn.

    Raises:
        InputError: The file is malformed. The error names the device.
    """
    devices = _read_devices(path)
    drawn = _draw_devices(list(devices), clients, generator(seed, "fedscale"))
    spans: dict[int, Spans] = {}
    periods: dict[int, float] = {}
    for client, device in enumerate(drawn):
        spans[client], periods[client] = _read_spans(path, device, devices[device])
    return Availability(spans, None, periods)


class _Unpickler(pickle.Unpickler):
    """An unpickler that refuses all objects except plain values and NumPy numbers."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _ALLOWED:
            raise pickle.UnpicklingError(f"it would call {module}.{name}")
        return super().find_class(module, name)


def _read_devices(path: Path) -> dict[Any, Any]:
    try:
        with open_regular_file(path) as stream:
            devices = _Unpickler(stream).load()
    # A damaged pickle can raise any exception.
    except Exception as error:
        raise InputError(str(path), f"it cannot be read as a pickle of numbers ({read_failure(error)})") from None
    if not isinstance(devices, dict) or not devices:
        raise InputError(str(path), got=devices, expected="a dict of devices, as in FedScale")
    return devices


def _draw_devices(devices: list[Any], clients: int, rng: np.random.Generator) -> list[Any]:
    """Return a random device for each client. The devices differ if there are at least as many devices as clients."""
    places = rng.choice(len(devices), clients, replace=clients > len(devices))
    return [devices[place] for place in places.tolist()]


def _read_number(path: Path, device: object, entry: Any, name: str) -> float:
    """Return a positive number from a device's entry. Raise InputError if the entry lacks this number.

    Args:
        path: The file, for errors.
        device: The device, for errors.
        entry: The entry of the device in the file.
        name: The key of the number.
    """
    value: Any = entry.get(name) if isinstance(entry, dict) else None
    is_number = isinstance(value, int | float | np.integer | np.floating) and not isinstance(value, bool)
    if not is_number or not 0 < float(value) < np.inf:
        raise InputError(f"{path}: device {device} {name}", got=value, expected="a number above 0")
    return float(value)


def _read_spans(path: Path, device: object, entry: Any) -> tuple[Spans, float]:
    """Return the spans (start, end) in which a device is available, and the time after which they repeat.

    Args:
        path: The file, for errors.
        device: The device, for errors.
        entry: The entry of the device in the file.
    """
    field = f"{path}: device {device}"
    period = _read_number(path, device, entry, "finish_time")
    try:
        starts, ends = (np.asarray(entry.get(name), np.float64) for name in ("active", "inactive"))
    except (TypeError, ValueError):
        raise InputError(field, got=entry, expected="two lists of numbers, active and inactive") from None
    if starts.ndim != 1 or starts.shape != ends.shape or not starts.size:
        raise InputError(field, "active and inactive are not lists of equal length", expected="one number or more each")
    times = np.column_stack((starts, ends)).ravel()
    if not (np.diff(times) >= 0).all() or times[0] < 0 or not times[-1] <= period:
        raise InputError(field, "its times are not ascending", expected=f"spans from 0 to finish_time, {period:g}")
    # A span includes its last second, but must not overlap the next span or the period's end.
    ends = np.minimum(ends + 1, np.append(starts[1:], period))
    spans = [(start, end) for start, end in zip(starts.tolist(), ends.tolist(), strict=True) if start < end]
    if not spans:
        raise InputError(field, "it is never available")
    return spans, period
