"""The command `fedraa doctor`: versions, machine, cluster, and known faults of this installation."""

import json
import math
import os
import platform
import shutil
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from fedraa.errors import InputError

PACKAGES = (
    "fedraa",
    "ray",
    "torch",
    "torchvision",
    "numpy",
    "pandas",
    "pydantic",
    "matplotlib",
    "plotly",
    "rich",
    "tyro",
)
SHARED_MEMORY = Path("/dev/shm")
CPU_QUOTA = Path("/sys/fs/cgroup/cpu.max")
GIGABYTE = 1e9
# Ray's object store needs up to this fraction of the memory. If /dev/shm is smaller, Ray uses slower files in /tmp.
OBJECT_STORE_SHARE = 0.3
# Gigabytes that a run directory, Ray's logs and an object store on disk may need together.
MIN_DISK_GB = 2.0
# Maximum relative difference between a convolution's weight gradients in two memory formats.
GRADIENT_TOLERANCE = 1e-5


@dataclass(frozen=True)
class Finding:
    """A known fault of this installation, and its remedy."""

    problem: str
    remedy: str


@dataclass(frozen=True)
class Diagnosis:
    """The state of this installation of fedraa.

    Attributes:
        versions: The version of Python and of each package that fedraa uses; None for a missing package.
        machine: Descriptions of the system, processor, cores, memory and disk, by name.
        gpus: The name and memory of each GPU that PyTorch can use.
        cluster: The address of the checked Ray cluster, and whether it answers; None if no cluster was checked.
        findings: The known faults that this installation has.
    """

    versions: dict[str, str | None]
    machine: dict[str, str]
    gpus: list[str]
    cluster: str | None
    findings: list[Finding]


@dataclass(frozen=True)
class Doctor:
    """Show versions, machine and cluster, and the known faults of this installation."""

    address: str | None = None
    """Address of a Ray cluster that is also checked (default: RAY_ADDRESS, if it is set)."""
    json: bool = False
    """Print JSON instead of text, for example to report a fault."""

    def __call__(self) -> None:
        from fedraa.cli.console import print_line

        diagnosis = diagnose(self.address)
        if self.json:
            print_line(json.dumps(asdict(diagnosis), indent=1))
            return
        print_line(", ".join(f"{name} {number or 'missing'}" for name, number in diagnosis.versions.items()))
        for name, value in diagnosis.machine.items():
            print_line(f"{name:<19}{value}")
        print_line(f"{'GPU':<19}{'; '.join(diagnosis.gpus) or 'none that PyTorch can use'}")
        print_line(f"{'Ray cluster':<19}{diagnosis.cluster or 'none; each run on Ray starts a private one'}")
        if not diagnosis.findings:
            print_line("No known fault applies.")
        for finding in diagnosis.findings:
            print_line(f"Fault: {finding.problem}. Remedy: {finding.remedy}.")


def diagnose(address: str | None) -> Diagnosis:
    """Return the state of this installation of fedraa, and of the Ray cluster at `address`.

    If `address` is None, the address in the variable RAY_ADDRESS is checked, if it is set.
    """
    import torch

    from fedraa.config.processes import address_in_environment
    from fedraa.engine.run_description import installed_version

    address = address or address_in_environment()
    findings = [*_check_machine(), *_check_convolutions(), *_check_torchvision()]
    cluster = None
    if address is not None:
        cluster_findings = list(_check_cluster(address))
        cluster = f"{address} does not answer" if cluster_findings else f"{address} answers"
        findings += [*cluster_findings, *_check_token()]
    gpus = []
    for index in range(torch.cuda.device_count()):
        properties = torch.cuda.get_device_properties(index)
        gpus.append(f"{properties.name}, {properties.total_memory / GIGABYTE:.3g} GB")
    versions: dict[str, str | None] = {"python": platform.python_version()}
    versions.update({package: installed_version(package) for package in PACKAGES})
    return Diagnosis(versions, _describe_machine(), gpus, cluster, findings)


def _describe_machine() -> dict[str, str]:
    import torch

    from fedraa.engine.memory_check import free_memory

    memory = free_memory()
    shared = free_gigabytes(SHARED_MEMORY)
    return {
        "system": platform.platform(),
        "processor": f"{platform.machine()}, {torch.backends.cpu.get_cpu_capability()}",
        "cores": f"{count_usable_cores():g} of {os.cpu_count()} usable",
        "free memory": f"{memory / GIGABYTE:.1f} GB" if math.isfinite(memory) else "unknown on this system",
        "shared memory": f"{shared:.1f} GB free in {SHARED_MEMORY}" if shared is not None else "none",
        "free disk": f"{free_gigabytes(Path.cwd()):.1f} GB here",
    }


def count_usable_cores() -> float:
    """Return the number of cores that CPU affinity and the control group's quota allow."""
    from fedraa.vectors.chunked import count_cores

    cores = float(count_cores())
    if CPU_QUOTA.is_file():
        quota, period = CPU_QUOTA.read_text().split()
        if quota != "max":
            cores = min(cores, int(quota) / int(period))
    return cores


def free_gigabytes(folder: Path) -> float | None:
    """Return the free gigabytes of a folder's file system; None if the folder does not exist."""
    if not folder.is_dir():
        return None
    return shutil.disk_usage(folder).free / GIGABYTE


def _check_machine() -> Iterator[Finding]:
    from fedraa.engine.memory_check import free_memory

    cores = count_usable_cores()
    if cores < (os.cpu_count() or 1):
        yield Finding(
            f"this process may use {cores:g} of {os.cpu_count()} cores",
            f"give --workers {max(1, int(cores))} to runs on Ray",
        )
    shared = free_gigabytes(SHARED_MEMORY)
    if shared is None and sys.platform == "linux":
        yield Finding(
            f"{SHARED_MEMORY} is missing, and without it Ray does not start on Linux",
            f"mount a tmpfs at {SHARED_MEMORY}, or give --engine local to runs",
        )
    wanted = OBJECT_STORE_SHARE * free_memory() / GIGABYTE
    if shared is not None and shared < wanted and math.isfinite(wanted):
        yield Finding(
            f"{SHARED_MEMORY} has {shared:.1f} GB free; Ray needs up to {wanted:.1f} GB, or uses slower files in /tmp",
            f"start the container with --shm-size={math.ceil(wanted)}g",
        )
    disk = free_gigabytes(Path.cwd())
    if disk is not None and disk < MIN_DISK_GB:
        yield Finding(f"this disk has {disk:.1f} GB free", f"free {MIN_DISK_GB:g} GB before a long run")
    if not os.access(Path.cwd(), os.W_OK):
        yield Finding("this folder cannot be written", "give --out a path in another folder to runs")


def _check_convolutions() -> Iterator[Finding]:
    """Yield a finding if a strided pointwise convolution has different gradients in two memory formats.

    In some versions, PyTorch's kernel for this convolution writes beyond its buffer. The module
    `fedraa.models.safe_convolution` replaces the kernel.
    """
    import torch

    # This import replaces PyTorch's kernel with fedraa's. This function checks fedraa's kernel.
    from fedraa.models import safe_convolution

    assert safe_convolution.protection is not None
    images = torch.randn(4, 3, 9, 9, generator=torch.Generator().manual_seed(0))
    grads = []
    for memory_format in (torch.contiguous_format, torch.channels_last):
        layer = torch.nn.Conv2d(3, 5, 1, stride=2, bias=False)
        torch.nn.init.ones_(layer.weight)
        layer(images.contiguous(memory_format=memory_format)).square().sum().backward()
        assert layer.weight.grad is not None
        grads.append(layer.weight.grad)
    difference = (grads[0] - grads[1]).abs().max() / grads[0].abs().max()
    if not difference <= GRADIENT_TOLERANCE:
        yield Finding(
            "gradients of convolutions depend on the memory format, although fedraa replaces the faulty kernel",
            "report it with the output of: fedraa doctor --json",
        )


def _check_torchvision() -> Iterator[Finding]:
    try:
        import torchvision  # noqa: F401
    # A broken installation can raise any exception.
    except Exception as error:
        yield Finding(f"torchvision cannot be imported: {error}", "install the version that fits your PyTorch")


def _check_cluster(address: str) -> Iterator[Finding]:
    from actors.cluster.head import check_reachable

    try:
        check_reachable(address)
    except InputError as error:
        yield Finding(str(error), "correct the address, or start the cluster")


def _check_token() -> Iterator[Finding]:
    from actors.cluster.attach import find_open_token

    token = find_open_token()
    if token is not None:
        yield Finding(f"other users can read the token of the cluster in {token}", f"run: chmod 600 {token}")
