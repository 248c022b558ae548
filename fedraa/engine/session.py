"""One run over one pool: from the first dispatch to a complete run directory."""

import json
from contextlib import suppress
from functools import partial
from pathlib import Path
from threading import Event
from typing import Any

import torch
from torch import nn

from fedraa.callbacks.callback_list import Listeners
from fedraa.engine.client_results import ClientResults
from fedraa.engine.event_dispatcher import Announcer
from fedraa.engine.executor import Executor
from fedraa.engine.loop import CALLBACK, Loop
from fedraa.engine.resume_guard import asked
from fedraa.engine.run_description import describe, recorded_aside, sha256
from fedraa.engine.run_spec import RunSpec
from fedraa.errors import CallbackRaised, RunFailed
from fedraa.messages import State
from fedraa.rundir.atomic_files import replacing, write_text, written
from fedraa.rundir.checkpoint import ASKED, Saver, load_latest
from fedraa.rundir.clients_file import columns_of
from fedraa.rundir.digests import seal
from fedraa.rundir.event_log import EventLog
from fedraa.rundir.file_names import CHECKPOINTS, CONFIG, FAILURE, MODEL, SEAL, SUMMARY
from fedraa.rundir.growing_file import damage
from fedraa.rundir.history import History
from fedraa.rundir.partition_file import write_partition
from fedraa.rundir.profile import PROFILE, Spent
from fedraa.rundir.summary import summarise
from fedraa.server.stores.local import Store


class RunSession:
    """DataHosts the loop of one run. It lives in the driver, or in the server actor."""

    def __init__(
        self,
        spec: RunSpec,
        directory: Path,
        executor: Executor,
        stop: Event,
        callbacks: Listeners | None = None,
        *,
        driver: str | None = None,
        description: dict[str, object] | None = None,
        store: Store | None = None,
    ) -> None:
        """`driver` and `description` are of the process that the user started, where that is another one.

        `callbacks` are told what happens, from the first event on. `store` keeps the parameters (default: the server).
        """
        self._spec = spec
        self._directory = directory
        self._description = description
        self._announcer = Announcer(callbacks)
        experiment = spec.experiment
        self._log = EventLog(directory, driver, self._announcer.recorded, clients=experiment.client_evals is not None)
        self._asked: dict[str, Any] = {}  # of config.json, for checkpoints
        self._workers = executor.workers
        self._store = store
        self._saver = Saver()
        self._loop = Loop(
            spec.server(self._log.record, store, executor.share),
            executor,
            self._log,
            limits=spec.limits,
            eval_every=spec.eval_every,
            checkpoint_every=experiment.checkpoint_every,
            timing=spec.timing,
            wall=spec.wall,
            max_update_norm=experiment.max_update_norm,
            save=self._save,
            stop=stop,
            announcer=self._announcer,
            figure=spec.objective.main,
            client_results=self._client_results(),
        )

    def _client_results(self) -> ClientResults:
        asked = self._spec.experiment.client_evals
        if asked is None:
            return ClientResults()
        every = {"final": None, "all": 1}.get(asked) if isinstance(asked, str) else asked
        order = columns_of(self._spec.figures)
        return ClientResults(self._spec.data, every, partial(self._log.evaluated_clients, order=order))

    def execute(self, *, resume: bool = False) -> bool:
        """Runs to the end and writes the model and the summary; False if it was stopped before, all being saved.

        With `resume` it goes on from the last usable checkpoint, if it has not ended meanwhile; ValueError says why it
        cannot, CallbackRaised that a callback has failed, all being saved, Unwritable that the directory takes no more.
        """
        try:
            if resume and (self._directory / SUMMARY).exists():
                self._tell_the_past(None)
                return True
            self._begin(resume)
            if (reason := self._run()) is None:
                return False
            self._finish(reason)
            self._announcer.tell()
            return True
        except RunFailed as error:
            # The disk may be why the run failed.
            with suppress(OSError):
                write_text(self._directory / FAILURE, f"{error}\n")
            raise
        finally:
            with suppress(Exception):  # of a checkpoint, where something else has gone wrong before
                self._saver.wait()
            self._log.close()

    def _run(self) -> str | None:
        try:
            reason = self._loop.run()
        except CallbackRaised:
            if not self._loop.ending:
                self._save()
            self._saved()
            raise
        self._saved()
        return reason

    def _begin(self, resume: bool) -> None:
        state = load_latest(self._directory / CHECKPOINTS, self._damage) if resume else None
        with written(self._directory):
            (self._directory / SEAL).unlink(missing_ok=True)
            (self._directory / FAILURE).unlink(missing_ok=True)
            if state is None and not (self._directory / CONFIG).exists():  # so early may a server have died
                write_partition(self._directory, self._spec.data)
                description = self._description or describe(self._spec, self._announcer.waits_for_evaluations)
                write_text(self._directory / CONFIG, json.dumps(description, indent=2) + "\n")
        config = History(self._directory).config
        self._asked = asked(config)
        self._loop.aside = recorded_aside(config, self._loop.aside)
        if state is not None:
            self._loop.restore(state)
            self._tell_the_past(state.get("heard"))
            return
        self._log.begin(self._spec.figures)
        self._loop.begin()

    def _tell_the_past(self, heard: int | None) -> None:
        if self._announcer.hears:
            self._announcer.past(History(self._directory).lines(), heard)

    def _damage(self, state: State) -> str | None:
        """Why this checkpoint cannot be gone on from, if the log no longer holds what it held then."""
        return damage(self._directory, state["log"])

    def _finish(self, reason: str) -> None:
        params = self._loop.server.params
        digest = sha256(self._spec, params)
        why = {"reason": reason} | ({"by": self._loop.by} if reason == CALLBACK else {})
        self._log.record("end", self._loop.now, **why, step=self._loop.server.step, model_sha256=digest)
        module = self._spec.worker_spec.evaluator(self._spec.evaluation_data, "cpu").prepare(params)
        with written(self._directory):
            _save_model(module, self._directory / MODEL)
            write_text(self._directory / PROFILE, self._spent().model_dump_json(indent=2) + "\n")
            summary = json.dumps(self._summary(), indent=2) + "\n"
            seal(self._directory, {SUMMARY: summary})
            write_text(self._directory / SUMMARY, summary)

    def _spent(self) -> Spent:
        return Spent(
            wall=self._log.wall,
            count=self._workers,
            server=self._loop.server_time.seconds,
            workers=self._loop.worker_time.seconds,
        )

    def _summary(self) -> dict[str, object]:
        """`average` is said where it is of a mean of the model, with all that was measured."""
        average, store = self._spec.method.schedule.average, self._store
        return {
            **summarise(History(self._directory)),
            "time_to_target": self._loop.time_to_target,
            **({"average": average} if average else {}),
            **({} if store is None else {"shards": store.report()}),
        }

    def _save(self) -> float:
        """Returns how many seconds the last checkpoint took to be written that is on the disk."""
        self._log.sync()
        state = self._loop.state() | {ASKED: self._asked}
        with written(self._directory):
            self._saver.save(self._directory / CHECKPOINTS, self._loop.server.step, state)
        return self._saver.seconds

    def _saved(self) -> None:
        with written(self._directory):
            self._saver.wait()


def _save_model(module: nn.Module, path: Path) -> None:
    """What `torch.save` writes; what the disk has said, where torch turns it into words of its own."""
    try:
        with replacing(path) as stream:
            torch.save(module.state_dict(), stream)
    except RuntimeError as error:
        if isinstance(error.__context__, OSError):
            raise error.__context__ from None
        raise
