"""Profiles of sixteen real devices, with the source of each number.

A number that no source states is None. The compute speed is a benchmark's result; real training is slower. The
benchmark HPL computes in double precision, and training in single precision can be up to twice as fast.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from fedraa.devices.device_columns import parse_float, split_clients
from fedraa.errors import InputError
from fedraa.messages import Floats

HPL = "https://github.com/geerlingguy/top500-benchmark"
CLPEAK = "https://github.com/krrishnarraj/clpeak/blob/master/results"


@dataclass(frozen=True)
class DeviceProfile:
    """A real device.

    Attributes:
        kind: The kind of device, and the benchmark that measured its speed.
        compute: The speed in the benchmark, in FLOP/s.
        source: The web address of the measurement.
        watts: The mean power during the benchmark in watts, from the same source; None if it is unknown.
        memory: The memory that training can use, in bytes; None if it is unknown.
    """

    kind: str
    compute: float
    source: str
    watts: float | None = None
    memory: float | None = None


PROFILES: Mapping[str, DeviceProfile] = {
    "moto-g": DeviceProfile("phone, 4 cores, clpeak", 4.65e9, f"{CLPEAK}/Portable_Computing_Language/Moto_G.log"),
    "xiaomi-mi-11": DeviceProfile(
        "phone, FMLA", 55.142088e9, "https://github.com/zchrissirhcz/pixel/blob/master/contrib/flops/README.md"
    ),
    "oneplus-3t": DeviceProfile("phone, GPU, clpeak", 263.18e9, f"{CLPEAK}/Qualcomm_Snapdragon/OnePlus_3T.log"),
    "raspberry-pi-zero-2w": DeviceProfile("board, HPL", 0.370e9, f"{HPL}/issues/26", watts=2.1),
    "milk-v-mars": DeviceProfile("RISC-V board, HPL", 2.06e9, f"{HPL}/issues/35", watts=4.7),
    "raspberry-pi-4": DeviceProfile("board, HPL", 11.889e9, f"{HPL}/issues/13", watts=7.2),
    "raspberry-pi-5": DeviceProfile("board, HPL", 30.249e9, f"{HPL}/issues/18", watts=11),
    "orange-pi-5": DeviceProfile("board, HPL", 53.333e9, f"{HPL}/issues/14", watts=11.5),
    "jetson-nano": DeviceProfile(
        "board, GPU, clpeak", 230.95e9, f"{CLPEAK}/Portable_Computing_Language/Jetson_Nano_Tegra_X1.txt"
    ),
    "macbook-neo": DeviceProfile("laptop, HPL", 57.012e9, f"{HPL}/issues/95", watts=10.6),
    "framework-12": DeviceProfile("laptop, HPL", 64.555e9, f"{HPL}/issues/97", watts=24),
    "macbook-pro-m2-pro": DeviceProfile("laptop, HPL", 296.93e9, f"{HPL}/issues/21"),
    "thinkcentre-m710q": DeviceProfile("desktop, HPL", 72.472e9, f"{HPL}#results", watts=41),
    "mac-mini-m4": DeviceProfile("desktop, HPL", 299.93e9, f"{HPL}/issues/47", watts=39.6),
    "tesla-v100": DeviceProfile("GPU, clpeak", 14135.97e9, f"{CLPEAK}/NVIDIA_CUDA/Tesla_V100.log", memory=32e9),
    "nvidia-a100": DeviceProfile(
        "GPU, clpeak", 19386.64e9, f"{CLPEAK}/NVIDIA_CUDA/NVIDIA_A100-SXM4-40GB.log", memory=40e9
    ),
}


@dataclass(frozen=True)
class ProfileFleet:
    """Devices with profiles of `PROFILES`, in physical units. The first clients have the first profile, and so on.

    Bandwidths are infinite, unless `--links` sets them. The devices have the column `watts_train` if the power of all
    their profiles is known.

    Args:
        shares: The profiles and their shares of the clients, such as `raspberry-pi-5:0.75,macbook-neo:0.25`.
    """

    shares: str

    def __call__(self, clients: int, rng: np.random.Generator) -> Mapping[str, Floats]:
        names, shares = self._parse_shares()
        devices = [PROFILES[name] for name in np.repeat(names, split_clients(shares, clients))]
        columns = {
            "compute": np.array([device.compute for device in devices]),
            "memory": np.array([np.inf if device.memory is None else device.memory for device in devices]),
        }
        watts = [device.watts for device in devices]
        if None not in watts:
            columns["watts_train"] = np.array(watts, np.float64)
        return columns

    def _parse_shares(self) -> tuple[list[str], Floats]:
        names = []
        shares = []
        for part in self.shares.split(","):
            name, _, share = part.strip().partition(":")
            if name not in PROFILES:
                raise InputError("compute: profiles", got=name, expected=", ".join(PROFILES))
            names.append(name)
            shares.append(_parse_share(part, share))
        if abs(sum(shares) - 1) > 1e-6:
            raise InputError("compute: profiles", got=self.shares, expected="shares that sum to 1")
        return names, np.array(shares)


def _parse_share(part: str, text: str) -> float:
    share = parse_float(text)
    if not share >= 0:
        raise InputError("compute: profiles", got=part, expected="NAME:SHARE, where SHARE is 0 or more")
    return share
