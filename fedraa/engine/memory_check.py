"""A check before the start: the memory that a run certainly needs must be free on the machine."""

from dataclasses import dataclass
from pathlib import Path

import torch

from fedraa.config.processes import cluster_address, count_workers, has_other_machines
from fedraa.data.sources.contents import inspect_contents
from fedraa.data.tree import count_bytes
from fedraa.engine.run_spec import RunSpec
from fedraa.engine.worker_spec import choose_device
from fedraa.errors import InputError
from fedraa.numbers import format_quantity
from fedraa.privacy.local import LOCAL_NOISE_BYTES

# Bytes of a process with torch and Ray, measured on Linux.
PROCESS_BYTES = 200e6
# Bytes of a process on a GPU before it holds any data.
GPU_CONTEXT_BYTES = 400e6
GIGA = 1e9
MEMORY_INFO = Path("/proc/meminfo")
CONTROL_GROUP = Path("/sys/fs/cgroup")
# If a Linux control group (cgroup version 1) has no limit, it reports a number near 2^63.
MIN_UNLIMITED_BYTES = 2.0**62


@dataclass(frozen=True)
class Free:
    """The free bytes of this machine's main memory, and of its GPU (`gpu`, None without a GPU)."""

    memory: float
    gpu: float | None

    @classmethod
    def measure_free(cls, device: str) -> "Free":
        """Return the free memory that the operating system, the control group and the GPU driver report."""
        gpu = None
        if choose_device(device) == "cuda":
            gpu, _ = torch.cuda.mem_get_info()
        return cls(free_memory(), gpu)


@dataclass(frozen=True)
class Need:
    """The bytes that a run certainly needs.

    Attributes:
        server: Bytes of the server.
        per_client: Additional bytes that the server needs for each client.
        data: Bytes of the data in the object store.
        worker: Bytes of each worker.
        task: Bytes of the largest task of a worker.
    """

    server: float
    per_client: float
    data: float
    worker: float
    task: float

    @classmethod
    def of(cls, spec: RunSpec) -> "Need":
        """Return lower bounds of the memory that a run needs."""
        experiment = spec.experiment
        size = spec.params.nbytes
        clients = spec.max_participants
        remembered = float(spec.update_bytes(clients))
        per_client = remembered - spec.update_bytes(clients - 1)
        remembered += spec.noise_bytes
        per_client += spec.kept_bytes
        remembered += clients * spec.kept_bytes
        if spec.attack is not None and spec.attack.attack.colludes:
            per_client += size
            remembered += clients * size
        # Each task in flight has its own version of its fragment.
        if spec.method.asynchronous and spec.method.schedule.scheduled:
            sent = min(spec.measure(part.widths).bytes for part in spec.submodels)
            per_client += sent
            remembered += spec.at_a_time * sent
            remembered += sum(part.index.nbytes for part in spec.submodels if part.index is not None)
        task = experiment.vmap_batch * max(spec.measure(part.widths).memory for part in spec.submodels)
        if spec.privacy is not None and spec.privacy.local:
            largest = max(spec.measure(part.widths).params for part in spec.submodels)
            task = max(task, LOCAL_NOISE_BYTES * largest)
        dataset = spec.data.dataset
        # The server has the model, a copy for the evaluation, and a copy for a step. Polyak averaging adds one copy.
        copies = 4 if spec.method.schedule.polyak_fraction else 3
        server = copies * size + remembered
        if experiment.engine == "local" and count_workers(experiment, experiment.client_count) == 1:
            return cls(server=server, per_client=per_client, data=0.0, worker=task, task=task)
        # All processes share the arrays and files of a data source. Every worker has a copy of the source's other
        # contents.
        source = inspect_contents(spec.data.source)
        stored = sum(count_bytes(part) for part in (dataset.x_train, dataset.y_train, dataset.x_test, dataset.y_test))
        stored += source.array_bytes + source.file_bytes + source.copied_bytes
        worker = task + PROCESS_BYTES + source.copied_bytes
        return cls(server=server, per_client=per_client, data=float(stored), worker=worker, task=task)


def check_memory(spec: RunSpec, free: Free | None = None) -> None:
    """Raise InputError for a run that does not fit into memory. The error states how many clients or workers fit.

    The memory of a running Ray cluster is unknown and therefore not checked. If the user's program has joined a cluster
    that has only nodes on this machine, the memory of this machine is checked.
    """
    experiment = spec.experiment
    if cluster_address(experiment) is not None or (experiment.engine == "ray" and has_other_machines()):
        return
    free = free or Free.measure_free(experiment.device)
    need = Need.of(spec)
    count = count_workers(experiment, experiment.client_count)
    beside = free.memory - need.data - need.worker
    if need.server > beside:
        max_clients = 0
        if need.per_client:
            max_clients = int((beside - need.server) / need.per_client) + experiment.client_count
        problem = (
            f"the server of {experiment.method} needs {need.server / GIGA:.3g} GB for {experiment.client_count} "
            f"clients, data and a worker need {(need.data + need.worker) / GIGA:.3g} GB, "
            f"and {free.memory / GIGA:.3g} GB are free"
        )
        if max_clients > 0:
            raise InputError("clients", problem, got=experiment.client_count, expected=f"at most {max_clients}")
        raise InputError("memory", problem, hint="take a smaller model or a larger machine")
    # `fit` is infinite on a system that does not report its free memory.
    fit = (free.memory - need.server - need.data) / need.worker
    if count > fit:
        problem = (
            f"each worker needs {need.worker / GIGA:.3g} GB, the server and the data need "
            f"{(need.server + need.data) / GIGA:.3g} GB, and {free.memory / GIGA:.3g} GB are free"
        )
        raise InputError("workers", problem, got=count, expected=f"at most {int(fit)}")
    if free.gpu is None:
        return
    fit_on_gpu = int(free.gpu / (GPU_CONTEXT_BYTES + need.task))
    if count > fit_on_gpu:
        needed = (GPU_CONTEXT_BYTES + need.task) / GIGA
        problem = f"each worker needs {needed:.3g} GB of the GPU, which has {free.gpu / GIGA:.3g} GB free"
        if fit_on_gpu:
            raise InputError("workers", problem, got=count, expected=f"at most {fit_on_gpu}")
        raise InputError("workers", problem, got=count, hint="give --device cpu")


def refuse_oversized(field: str, value: object, need: float) -> None:
    """Raise InputError if the arrays of a field need more memory than this machine has free.

    Args:
        field: The field.
        value: The value of the field.
        need: A lower bound of the bytes of the arrays.
    """
    free = free_memory()
    if need > free:
        problem = f"it needs {format_quantity(need, 'B')} of memory, and {format_quantity(free, 'B')} are free"
        raise InputError(field, problem, got=value)


def free_memory() -> float:
    """Return the free bytes: the minimum of the machine's and the control group's free memory.

    Only Linux reports these values. On other systems the result is infinity, so that no run is refused.
    """
    return min(_available_bytes(), _group_left())


def _available_bytes() -> float:
    """Return the kernel's estimate of the memory that new processes may take without swapping."""
    kilobytes = _read_number(MEMORY_INFO, "MemAvailable:")
    return float("inf") if kilobytes is None else 1024 * kilobytes


def _group_left() -> float:
    """Return the free bytes of this process's control group; infinity if the group has no limit."""
    for limit, used, cached in (
        ("memory.max", "memory.current", "inactive_file"),
        ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes", "total_inactive_file"),
    ):
        file = CONTROL_GROUP / limit
        if not file.is_file():
            continue
        allowed = float(file.read_text().replace("max", "inf"))
        if allowed < MIN_UNLIMITED_BYTES:
            # The used bytes include cached files, which the kernel drops before it refuses memory.
            cache = _read_number(file.with_name("memory.stat"), cached) or 0.0
            return allowed - float((CONTROL_GROUP / used).read_text()) + cache
    return float("inf")


def _read_number(path: Path, name: str) -> float | None:
    """Return the number after a name at the start of a line; None if there is no such line or file."""
    if path.is_file():
        for line in path.read_text().splitlines():
            words = line.split()
            if words[0] == name:
                return float(words[1])
    return None
