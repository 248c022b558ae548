"""The engine `local`: a run in this process or in worker processes, without Ray."""

from contextlib import closing
from pathlib import Path
from threading import Event

import torch

from fedraa.callbacks.callback_list import CallbackList
from fedraa.config.processes import count_workers
from fedraa.engine.executor import LocalExecutor
from fedraa.engine.process_executor import ProcessExecutor
from fedraa.engine.resume import extend_limits
from fedraa.engine.run_spec import RunSpec
from fedraa.engine.sendable import refuse_unsendable
from fedraa.engine.session import RunSession
from fedraa.engine.stop_signals import stop_on_interrupt, stop_on_termination


def run_here(spec: RunSpec, directory: Path, callbacks: CallbackList, *, resume: bool, extend: bool = False) -> bool:
    """Run without Ray, and return False if the run was stopped.

    Args:
        spec: The run.
        directory: The run directory.
        callbacks: The user's callbacks.
        resume: True if the run continues from a checkpoint.
        extend: True if the run gets the limits of `spec`, which are larger than before.

    Raises:
        InputError: A component cannot be sent to worker processes, or the device is missing.
        CallbackRaised: A callback failed.
    """
    experiment = spec.experiment
    torch.set_num_threads(experiment.threads_per_worker)
    stop = Event()
    workers = count_workers(experiment, experiment.client_count)
    executor: LocalExecutor | ProcessExecutor
    if workers == 1:
        executor = LocalExecutor.of(spec)
    else:
        refuse_unsendable(spec)
        executor = ProcessExecutor(spec, workers)

    def stop_run() -> None:
        stop.set()
        executor.drop()

    with closing(executor), stop_on_interrupt(stop_run), stop_on_termination(stop_run):
        callbacks.start(spec.make_start(directory, resumed=resume))
        if extend:
            extend_limits(directory, spec)
        return RunSession(spec, directory, executor, stop, callbacks).execute(resume=resume)
