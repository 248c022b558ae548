"""The session of a run: it runs the loop with one executor, and writes the run directory."""

from contextlib import closing, suppress
from functools import partial
from itertools import islice
from pathlib import Path
from threading import Event
from typing import Any

import torch
from torch import nn

from fedraa.callbacks.callback_list import EventSink
from fedraa.engine.client_results import ClientResults
from fedraa.engine.event_dispatcher import EventDispatcher
from fedraa.engine.executor import Executor
from fedraa.engine.factories import make_server, make_worker_spec
from fedraa.engine.loop import Loop
from fedraa.engine.loop_options import LoopOptions
from fedraa.engine.loop_state import CALLBACK, LoopState, StopReason
from fedraa.engine.resume_guard import pinned_settings
from fedraa.engine.run_description import PENDING_EVALS_KEY, describe_run, params_digest
from fedraa.engine.run_spec import RunSpec
from fedraa.errors import CallbackRaised, InputError, RunFailed
from fedraa.rundir.atomic_files import json_text, raise_unwritable, replace_file, write_text
from fedraa.rundir.checkpoint import ASKED, Saver, load_latest
from fedraa.rundir.clients_file import clients_csv_columns
from fedraa.rundir.digests import write_seal
from fedraa.rundir.event_log import EventLog
from fedraa.rundir.event_reader import read_events
from fedraa.rundir.file_names import CHECKPOINTS, CONFIG, FAILURE, MODEL, SEAL, SUMMARY
from fedraa.rundir.growing_file import describe_damage
from fedraa.rundir.history import History
from fedraa.rundir.partition_file import write_partition
from fedraa.rundir.profile import PROFILE, ProfileTimes
from fedraa.rundir.summary import summarise_run
from fedraa.server.stores.local import Store

# The wall clock starts after this time even if some workers have not started, because they may lack resources.
MAX_START_S = 60.0
STOP_CHECK_INTERVAL_S = 0.1


class RunSession:
    """The owner of a run's loop, in the user's process or in the server's Ray actor."""

    def __init__(
        self,
        spec: RunSpec,
        directory: Path,
        executor: Executor,
        stop: Event,
        callbacks: EventSink | None = None,
        *,
        driver: str | None = None,
        description: dict[str, object] | None = None,
        store: Store | None = None,
    ) -> None:
        """Create the session.

        Args:
            spec: The run.
            directory: The run directory.
            executor: Trains the tasks.
            stop: Ends the run when it is set.
            callbacks: Receive all events of the run.
            driver: Identifies the user's process if it is another process; None otherwise.
            description: The description of the user's process if it is another process; None otherwise.
            store: Keeps the parameters. With None, the server keeps them.
        """
        self._spec = spec
        self._directory = directory
        self._description = description
        self._dispatcher = EventDispatcher(callbacks)
        experiment = spec.experiment
        self._log = EventLog(directory, driver, self._dispatcher.recorded, clients=experiment.client_evals is not None)
        # Each checkpoint gets a copy of these settings. They must not change between a checkpoint and a resume.
        self._pinned: dict[str, Any] = {}
        self._workers = executor.workers
        self._store = store
        self._stop = stop
        self._saver = Saver()
        self._loop = Loop(
            make_server(spec, self._log.record, store, executor.share),
            executor,
            self._log,
            LoopOptions(
                limits=spec.limits,
                eval_every=spec.eval_every,
                checkpoint_every=experiment.checkpoint_every,
                timing=spec.timing,
                wall=spec.wall,
                max_update_norm=experiment.max_update_norm,
                main_metric=spec.objective.main,
                personal_clients=spec.personal_clients if spec.kept_models else (),
            ),
            save=self._save_checkpoint,
            stop=stop,
            dispatcher=self._dispatcher,
            client_results=self._client_results(),
        )

    def _client_results(self) -> ClientResults:
        client_evals = self._spec.experiment.client_evals
        if client_evals is None:
            return ClientResults()
        # With the setting `final`, only the last evaluation is written.
        every: int | None = None
        if client_evals == "all":
            every = 1
        elif isinstance(client_evals, int):
            every = client_evals
        order = clients_csv_columns(self._spec.metric_spec)
        return ClientResults(self._spec.data, every, partial(self._log.evaluated_clients, order=order))

    def execute(self, *, resume: bool = False) -> bool:
        """Run to the end and write the model and the summary. Return False if the run was stopped and saved.

        Args:
            resume: True to continue from the last usable checkpoint. A run that has ended does nothing.

        Raises:
            ValueError: No checkpoint can be used.
            CallbackRaised: A callback failed. The run is saved.
            Unwritable: The directory cannot be written.
        """
        try:
            if resume and (self._directory / SUMMARY).exists():
                self._replay_events(None, None)
                return True
            self._begin_loop(resume)
            reason = self._run_loop()
            if reason is None:
                return False
            self._write_results(reason)
            self._dispatcher.deliver()
            return True
        except (RunFailed, InputError) as error:
            # If the disk caused the failure, this write also fails. The first error is more useful.
            with suppress(OSError):
                write_text(self._directory / FAILURE, f"{error}\n")
            raise
        finally:
            # An error of the checkpoint must not hide an earlier error.
            with closing(self._log), suppress(Exception):
                self._saver.wait()

    def _await_workers(self) -> None:
        """Wait for the workers, so that their start does not count as time of the run."""
        clock = self._loop.clock
        start = clock.elapsed_seconds()
        while not self._loop.executor.await_workers(STOP_CHECK_INTERVAL_S):
            if self._stop.is_set() or clock.elapsed_seconds() - start > MAX_START_S:
                break
        clock.exclude(clock.elapsed_seconds() - start)

    def _run_loop(self) -> StopReason | None:
        if self._spec.wall:
            self._await_workers()
        try:
            reason = self._loop.run()
        except CallbackRaised:
            if self._loop.phase is LoopState.RUNNING:
                self._save_checkpoint()
            self._await_checkpoint()
            raise
        self._await_checkpoint()
        return reason

    def _begin_loop(self, resume: bool) -> None:
        state = None
        if resume:
            state = load_latest(self._directory / CHECKPOINTS, partial(describe_damage, self._directory))
        with raise_unwritable(self._directory):
            (self._directory / SEAL).unlink(missing_ok=True)
            (self._directory / FAILURE).unlink(missing_ok=True)
            # This also restores a missing or damaged file of a resumed run.
            write_partition(self._directory, self._spec.data)
            # If the server died before it wrote the configuration, the run starts again.
            if state is None and not (self._directory / CONFIG).exists():
                description = self._description or describe_run(self._spec, self._dispatcher.waits_for_evaluations)
                write_text(self._directory / CONFIG, json_text(description))
        config = History(self._directory).config
        if config["resolved"]["limits"] != self._spec.limits.described():
            raise InputError("run", "another process changed its limits", got=self._directory, hint="resume it again")
        self._pinned = pinned_settings(config)
        self._loop.evaluations.max_pending_evals = config["resolved"][PENDING_EVALS_KEY]
        if state is not None:
            # The clock starts only after the callbacks have received the earlier events again.
            self._replay_events(state["log"]["seq"], state["next_undelivered"])
            self._loop.restore(state)
            return
        self._log.begin(self._spec.metric_spec)
        self._loop.begin()

    def _replay_events(self, count: int | None, next_undelivered: int | None) -> None:
        """Deliver the first `count` events of the log again, or all of them if `count` is None."""
        if self._dispatcher.subscribed:
            self._dispatcher.replay_events(islice(read_events(self._directory), count), next_undelivered)

    def _write_results(self, reason: StopReason) -> None:
        params = self._loop.server.params
        digest = params_digest(self._spec, params)
        end: dict[str, object] = {"reason": reason}
        if reason == CALLBACK:
            end["by"] = self._loop.stop_source
        self._log.record("end", self._loop.clock.now, **end, step=self._loop.server.step, model_sha256=digest)
        # A power failure must not lose lines of a run that has a summary, because such a run cannot be resumed.
        self._log.sync()
        module = make_worker_spec(self._spec).evaluator(self._spec.evaluation_data, "cpu").prepare(params)
        with raise_unwritable(self._directory):
            _save_model(module, self._directory / MODEL)
            write_text(self._directory / PROFILE, self._measure_times().model_dump_json(indent=2) + "\n")
            summary = json_text(self._make_summary())
            write_seal(self._directory, {SUMMARY: summary})
            write_text(self._directory / SUMMARY, summary)

    def _measure_times(self) -> ProfileTimes:
        return ProfileTimes(
            wall=self._log.wall,
            count=self._workers,
            server=self._loop.times.server.seconds,
            workers=self._loop.times.workers.seconds,
        )

    def _make_summary(self) -> dict[str, object]:
        """Return the summary, with the key `average` if the metrics measure a mean of the last models."""
        summary: dict[str, object] = {**summarise_run(History(self._directory))}
        summary["time_to_target"] = self._loop.evaluations.time_to_target
        if self._spec.method.schedule.polyak_fraction:
            summary["average"] = self._spec.method.schedule.polyak_fraction
        if self._store is not None:
            summary["shards"] = self._store.report()
        return summary

    def _save_checkpoint(self) -> float:
        """Save a checkpoint. Return the duration of the last finished write of a checkpoint, in seconds."""
        self._log.sync()
        state = self._loop.state() | {ASKED: self._pinned}
        with raise_unwritable(self._directory):
            self._saver.save(self._directory / CHECKPOINTS, self._loop.server.step, state)
        return self._saver.seconds

    def _await_checkpoint(self) -> None:
        with raise_unwritable(self._directory):
            self._saver.wait()


def _save_model(module: nn.Module, path: Path) -> None:
    """Write the model. If the disk fails, raise the disk's error instead of torch's."""
    try:
        with replace_file(path) as stream:
            torch.save(module.state_dict(), stream)
    except RuntimeError as error:
        if isinstance(error.__context__, OSError):
            raise error.__context__ from None
        raise
