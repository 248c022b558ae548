"""A guard that allows one run at a time in a process, because a run changes torch's settings and global generators."""

import logging
import os
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import torch

from fedraa.data.sources.item_generators import ItemGenerators
from fedraa.errors import InputError

logger = logging.getLogger(__name__)


class _Guard:
    """A re-entrant lock, and the thread that executes a run now."""

    def __init__(self) -> None:
        self.waited_before = False
        self.release_all()

    def release_all(self) -> None:
        self.lock = threading.RLock()
        self.running_thread: int | None = None


_guard = _Guard()
# A forked child does not inherit its parent's runs.
os.register_at_fork(after_in_child=_guard.release_all)


def refuse_nested_run() -> None:
    """Raise InputError if the calling thread is already in a run, for example in a callback of the run."""
    if _guard.running_thread == threading.get_ident():
        raise InputError(
            "run",
            "it starts inside another run, as from a callback",
            expected="one run at a time in a process",
            hint="start it after this run has ended, or in a new process",
        )


@contextmanager
def exclusive_process() -> Iterator[None]:
    """Let only one thread at a time execute the `with` block. Afterwards restore the settings that a run changes.

    These settings are torch's default dtype, precision of float32 products, number of threads and deterministic mode,
    and the global random generators of Python, NumPy and torch. In the block, the settings that change the values of a
    model have torch's defaults, because the same seed gives the same bits in every process.
    """
    if not _guard.lock.acquire(blocking=False):
        _log_first_wait()
        _guard.lock.acquire()
    try:
        with _unchanged_settings(), _default_settings(), ItemGenerators().restore_afterwards():
            yield
    finally:
        _guard.lock.release()


def _log_first_wait() -> None:
    """Log that a run waits for another run to end. Log it only once per process, because many runs may wait."""
    if not _guard.waited_before:
        _guard.waited_before = True
        logger.warning(
            "run: waiting for another run of this process to end; runs in threads take turns, so use processes to run "
            "in parallel"
        )


@contextmanager
def run_alone() -> Iterator[None]:
    """Execute the `with` block as the only run of the process. Raise InputError if the thread is already in a run."""
    refuse_nested_run()
    with exclusive_process():
        _guard.running_thread = threading.get_ident()
        try:
            yield
        finally:
            _guard.running_thread = None


@contextmanager
def _unchanged_settings() -> Iterator[None]:
    default_type = torch.get_default_dtype()
    precision = torch.get_float32_matmul_precision()
    threads = torch.get_num_threads()
    algorithms = torch.get_deterministic_debug_mode()
    # torch defines this attribute when the module is imported.
    fill = torch.utils.deterministic.fill_uninitialized_memory  # type: ignore[attr-defined]
    on_gpu = None
    # This function of torch has no type annotations.
    if torch.cuda.is_initialized():
        on_gpu = torch.cuda.get_rng_state_all()
    try:
        yield
    finally:
        torch.set_default_dtype(default_type)
        torch.set_float32_matmul_precision(precision)
        torch.set_num_threads(threads)
        # The mode is set only if it changed, because setting it can import much of PyTorch.
        if torch.get_deterministic_debug_mode() != algorithms:
            torch.set_deterministic_debug_mode(algorithms)
        torch.utils.deterministic.fill_uninitialized_memory = fill  # type: ignore[attr-defined]
        if on_gpu is not None:
            torch.cuda.set_rng_state_all(on_gpu)


@contextmanager
def _default_settings() -> Iterator[None]:
    """Execute the `with` block with torch's defaults for dtype, device, gradients, autocast and precision."""
    torch.set_default_dtype(torch.float32)
    torch.set_float32_matmul_precision("highest")
    with ExitStack() as stack:
        stack.enter_context(torch.inference_mode(False))
        stack.enter_context(torch.enable_grad())
        for kind in ("cpu", "cuda"):
            if torch.is_autocast_enabled(kind):
                stack.enter_context(torch.autocast(kind, enabled=False))
        # The context of a device makes every call of torch slower, so it is entered only if it is needed.
        if torch.get_default_device().type != "cpu":
            stack.enter_context(torch.device("cpu"))
        yield
