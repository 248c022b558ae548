"""The devices: compute, bandwidth, latency and memory of every client, and what a task costs on them.

Two systems of units, told apart by `relative`:

- relative (the default): compute 1 trains the full model on an average shard for `REFERENCE_EPOCHS` local
  epochs in time 1; bandwidth 1 moves the full model in time 1; memory 1 holds the training of the full model.
- physical: FLOP/s, bytes/s, seconds, bytes.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from fedraa.rng import generator

Floats = npt.NDArray[np.float64]

# The local epochs that a relative cost of 1 stands for: those of the Fed-RAA paper.
REFERENCE_EPOCHS = 5
COLUMNS = {"compute": None, "downlink": np.inf, "uplink": np.inf, "latency": 0.0, "memory": np.inf}


@dataclass(frozen=True, eq=False)
class Load:
    """What tasks ask of a device, in the fleet's units; scalars, or arrays that broadcast to [N, M].

    `work` and `down`, `up` are fractions of the reference task and of the full model (relative), or FLOPs and
    bytes (physical); `memory` likewise.
    """

    work: Floats | float
    down: Floats | float
    up: Floats | float
    memory: Floats | float = 0.0


@dataclass(frozen=True, eq=False)
class Fleet:
    """One row per client: float64 arrays [N] in the units above."""

    compute: Floats
    downlink: Floats
    uplink: Floats
    latency: Floats
    memory: Floats
    relative: bool = True

    def __len__(self) -> int:
        return len(self.compute)

    def cost(self, load: Load, clients: npt.NDArray[np.int64] | int | slice = slice(None)) -> Floats:
        """latency + down/downlink + work/compute + up/uplink, in time units (ALGORITHMS section 4 row 1).

        With `clients` an array [n, 1] and loads that broadcast to [n, M], the table c[n, j].
        """
        return np.asarray(
            self.latency[clients]
            + load.down / self.downlink[clients]
            + load.work / self.compute[clients]
            + load.up / self.uplink[clients]
        )

    def fits(self, load: Load, clients: npt.NDArray[np.int64] | int | slice = slice(None)) -> npt.NDArray[np.bool_]:
        """Whether the training state of a task fits the device's memory; broadcasts as `cost`."""
        return np.asarray(load.memory <= self.memory[clients] * (1 + 1e-9))


def make_fleet(capabilities: str, clients: int, *, units: str, seed: int) -> Fleet:
    """The fleet that `--capabilities` describes.

    Tiers `1:0.5,3:0.5` (capability:share, in client order), a distribution `lognormal:SIGMA` (median 1),
    `uniform:LOW:HIGH` or `zipf:A`, or a CSV file with a row per device and the columns compute and, where
    wanted, downlink, uplink, latency, memory.
    """
    if capabilities.endswith(".csv"):
        table = _read_csv(Path(capabilities), clients)
    else:
        table = {"compute": _compute(capabilities, clients, seed)}
    rows = {
        name: np.asarray(table.get(name, np.full(clients, default)), np.float64) for name, default in COLUMNS.items()
    }
    return Fleet(**rows, relative=units == "relative")


def _compute(spec: str, clients: int, seed: int) -> Floats:
    name, *arguments = spec.split(":")
    takes = {"lognormal": 1, "uniform": 2, "zipf": 1}
    if name in takes:
        values = [_number(spec, text) for text in arguments]
        if len(values) != takes[name] or min(values) <= 0:
            raise ValueError(
                f"capabilities: {spec!r} takes {takes[name]} positive number(s) after {name!r}, "
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


def tier_sizes(capabilities: str, clients: int) -> npt.NDArray[np.int64]:
    """How many clients each tier has, int64 [tiers]; ValueError for `capabilities` that are no tiers."""
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


def _read_csv(path: Path, clients: int) -> dict[str, Floats]:
    import pandas as pd  # slow to import, and workers do without

    try:
        frame = pd.read_csv(path)
    except (OSError, ValueError) as error:
        raise ValueError(f"capabilities: {path} cannot be read as CSV: {_first_line(error)}") from error
    unknown = sorted(set(frame.columns) - set(COLUMNS))
    if unknown or "compute" not in frame.columns:
        raise ValueError(
            f"capabilities: {path} has the columns {list(frame.columns)}; it needs compute and may have "
            "downlink, uplink, latency, memory"
        )
    if len(frame) != clients:
        raise ValueError(f"capabilities: {path} has {len(frame)} devices for {clients} clients; give one row each")
    table: dict[str, Floats] = {}
    for name in frame.columns:
        values = pd.to_numeric(frame[name], errors="coerce").to_numpy(np.float64)
        low_enough = values < 0 if name == "latency" else values <= 0
        bad = np.flatnonzero(np.isnan(values) | low_enough | ((name in ("compute", "latency")) & np.isinf(values)))
        if bad.size:
            least = "at least 0" if name == "latency" else "over 0"
            raise ValueError(
                f"capabilities: {path} row {bad[0] + 1} has {name} {frame[name].iloc[bad[0]]}; "
                f"it must be a number {least}"
            )
        table[name] = values
    return table


def _first_line(error: Exception) -> str:
    return str(error).strip().split("\n")[0]
