"""Devices of FedScale (Lai et al. 2022, https://github.com/SymbioticLab/FedScale): its two files of traces.

`client_device_capacity` is a pickle of a dict: device -> {"computation": milliseconds of one inference per sample,
"communication": kbit/s in both directions}. `client_behave_trace` is a pickle of a dict: device -> {"duration",
"inactive": [...], "finish_time", "active": [...], "model"} in seconds. A device is available from `active[k]` to
`inactive[k]`, both included, and its trace repeats after `finish_time`. The two files describe different devices.
"""

import pickle
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fedraa.devices.availability import Availability, Spans
from fedraa.errors import InputError
from fedraa.numbers import Positive
from fedraa.reading import opened
from fedraa.rng import generator

Floats = npt.NDArray[np.float64]
# NumPy's numbers need these functions. A pickle must not call any other.
_ALLOWED = {
    ("numpy", "dtype"),
    ("numpy.core.multiarray", "scalar"),
    ("numpy._core.multiarray", "scalar"),
}


@dataclass(frozen=True)
class FedScaleFleet:
    """Devices drawn from FedScale's file `client_device_capacity`, in physical units.

    A device with the inference time c ms has the compute speed `flops` / c * 1000 FLOP/s. Training on a sample costs
    three inferences. So a task of s samples on a model with `flops` per inference takes 3 * s * c / 1000 seconds, as in
    FedScale. A link of k kbit/s moves k * 1000 / 8 bytes/s down and up. Clients get different devices, unless there are
    more clients than devices.

    Args:
        path: The file.
        flops: The FLOPs of one inference of the model that was timed, per sample.
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
    """Return the available times of devices drawn from FedScale's file `client_behave_trace`, in seconds.

    Clients get different devices, unless there are more clients than devices.

    Args:
        path: The file.
        clients: The number of clients.
        seed: The seed from which devices are drawn.

    Raises:
        InputError: The file is malformed; the error names the device.
    """
    devices = _read_devices(path)
    drawn = _draw_devices(list(devices), clients, generator(seed, "fedscale"))
    spans: dict[int, Spans] = {}
    periods: dict[int, float] = {}
    for client, device in enumerate(drawn):
        spans[client], periods[client] = _read_spans(path, device, devices[device])
    return Availability(spans, None, periods)


class _Unpickler(pickle.Unpickler):
    """An unpickler of plain values. It calls no function of the file, except those of NumPy's numbers."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _ALLOWED:
            raise pickle.UnpicklingError(f"it would call {module}.{name}")
        return super().find_class(module, name)


def _read_devices(path: Path) -> dict[Any, Any]:
    try:
        with opened(path) as stream:
            devices = _Unpickler(stream).load()
    # A damaged pickle raises exceptions of many types.
    except Exception as error:
        raise InputError(str(path), f"it cannot be read as a pickle of numbers ({error})") from None
    if not isinstance(devices, dict) or not devices:
        raise InputError(str(path), got=devices, expected="a dict of devices, as FedScale has it")
    return devices


def _draw_devices(devices: list[Any], clients: int, rng: np.random.Generator) -> list[Any]:
    """Return a random device for each client, all different if there are enough."""
    places = rng.choice(len(devices), clients, replace=clients > len(devices))
    return [devices[place] for place in places.tolist()]


def _read_number(path: Path, device: object, entry: Any, name: str) -> float:
    """Return a positive number of a device; raise InputError if there is none.

    Args:
        path: The file for errors.
        device: The device.
        entry: The entry of the device in the file.
        name: The key of the number.
    """
    value: Any = entry.get(name) if isinstance(entry, dict) else None
    is_number = isinstance(value, int | float | np.integer | np.floating) and not isinstance(value, bool)
    if not is_number or not 0 < float(value) < np.inf:
        raise InputError(f"{path}: device {device} {name}", got=value, expected="a number over 0")
    return float(value)


def _read_spans(path: Path, device: object, entry: Any) -> tuple[Spans, float]:
    """Return the spans of a device as [start, end), and the time after which they repeat.

    Args:
        path: The file for errors.
        device: The device.
        entry: The entry of the device in the file.
    """
    field = f"{path}: device {device}"
    period = _read_number(path, device, entry, "finish_time")
    try:
        starts, ends = (np.asarray(entry.get(name), np.float64) for name in ("active", "inactive"))
    except (TypeError, ValueError):
        raise InputError(field, got=entry, expected="lists of numbers active and inactive") from None
    if starts.ndim != 1 or starts.shape != ends.shape or not starts.size:
        raise InputError(field, "active and inactive are no lists of the same length", expected="one span or more")
    times = np.column_stack((starts, ends)).ravel()
    if not (np.diff(times) >= 0).all() or times[0] < 0 or not times[-1] <= period:
        raise InputError(field, "its times are not ascending", expected=f"spans from 0 to finish_time, {period:g}")
    # The last second of a span is included. Spans must not overlap, and they end with the period.
    ends = np.minimum(ends + 1, np.append(starts[1:], period))
    spans = [(start, end) for start, end in zip(starts.tolist(), ends.tolist(), strict=True) if start < end]
    if not spans:
        raise InputError(field, "it is never available")
    return spans, period
