"""The public functions: from an experiment to its run, on whichever engine. The one module that imports everything."""

import gc
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import nn

from fedraa.callbacks import CALLBACKS, Callback, ProgressBar, ProgressLog, RunStart
from fedraa.callbacks.callback_list import CallbackList, refuse_strange_hooks
from fedraa.callbacks.failure_warnings import FailureWarnings
from fedraa.composition.method import Method
from fedraa.composition.registry import find
from fedraa.config.experiment import Experiment
from fedraa.config.file import check_names
from fedraa.config.processes import cluster_address
from fedraa.data import Dataset, FederatedDataset
from fedraa.engine.build import build
from fedraa.engine.executor import LocalExecutor
from fedraa.engine.objects import split_objects
from fedraa.engine.process_guard import exclusive, refuse_nested_run, run_alone
from fedraa.engine.resume import how_to_go_on, lengthen, resumed
from fedraa.engine.run_spec import RunSpec
from fedraa.engine.run_warnings import find_no_step, warn
from fedraa.engine.session import RunSession
from fedraa.engine.stop_signals import interruptible, terminable
from fedraa.engine.worker_spec import choose_device
from fedraa.errors import CallbackRaised, InputError, Interrupted, Unwritable
from fedraa.rundir.atomic_files import written
from fedraa.rundir.checkpoint import newest_first
from fedraa.rundir.claim import claimed, refuse_used
from fedraa.rundir.file_names import CHECKPOINTS, SUMMARY
from fedraa.rundir.history import History
from fedraa.settings.terms import Terms
from fedraa.settings.tuned import read_tuned
from fedraa.waiting import is_shown

if TYPE_CHECKING:
    import pandas as pd

RUNS = Path("runs")
NOT_IN_NAMES = re.compile(r"[^\w.+-]+")  # of run directories
Callbacks = Sequence[Callback | type[Callback] | str | Mapping[str, object]]
"""Who is told what happens: objects, classes, names (`early-stopping(patience=3)`) or paths (`my_module:Name`)."""


def run(
    experiment: Experiment | None = None,
    *,
    model: nn.Module | Callable[[int], nn.Module] | str | None = None,
    dataset: Dataset | FederatedDataset | Callable[[], Dataset | FederatedDataset] | Path | str | None = None,
    callbacks: Callbacks = (),
    restarts: int = 0,
    **fields: object,
) -> History:
    """Run an experiment to its end; the History reads the run directory that it wrote.

    `fields` are those of an Experiment, in place of the experiment's own. `model`, an nn.Module, and `dataset`, a
    Dataset, a FederatedDataset or a function that returns one, may be your own; a name is a field as any other. The
    model takes a batch of the dataset's samples, and returns logits `[batch, classes]`, or what the objective takes.
    `callbacks` are told what happens, and may end the run. If Ray itself dies, the run goes on with a new cluster of
    our own, up to `restarts` times.

        fedraa.run(method="fedavg", dataset="digits", rounds=20, engine="local")
        fedraa.run(experiment, model=Net(), dataset=fedraa.Dataset(...), seed=3)
        fedraa.run(experiment, callbacks=[fedraa.EarlyStopping(patience=3), fedraa.CSV("evals.csv")])

    Runs in threads of one process take turns. A run inside a run, as from a callback, is refused.

    Raises ValueError, one sentence, before anything is started or written, for an experiment that cannot be run;
    RunFailed when a running one cannot go on; Interrupted, a KeyboardInterrupt, after Ctrl-C, when `resume` can go on,
    and so it can where what a callback has raised comes out of here.
    """
    refuse_nested_run()
    module, data, fields = split_objects(model, dataset, fields)
    experiment = _changed(experiment, fields)
    return _run(experiment, module, data, _callbacks(callbacks, quiet=experiment.quiet), restarts)


def _run(
    experiment: Experiment,
    model: nn.Module | None,
    dataset: Dataset | FederatedDataset | None,
    told: CallbackList,
    restarts: int = 0,
) -> History:
    """Run an experiment whose named model and dataset may be replaced by objects."""
    _check_restarts(restarts, experiment)
    if experiment.out is not None:
        refuse_used(experiment.out)
    with _before_the_start(told):
        spec = build(experiment, model, dataset, told.prepare)
    with run_directory(experiment, spec.data.dataset.name) as directory:
        return _execute(spec, directory, told, resume=False, restarts=restarts)


def resume(
    directory: str | os.PathLike[str],
    *,
    model: nn.Module | Callable[[int], nn.Module] | str | None = None,
    dataset: Dataset | FederatedDataset | Callable[[], Dataset | FederatedDataset] | None = None,
    callbacks: Callbacks = (),
    trust: bool = False,
    restarts: int = 0,
    quiet: bool | None = None,
    **fields: object,
) -> History:
    """Go on with a run that was interrupted or killed, from its last checkpoint, to the end it would have had.

    What was given as an object is given again: `model`, `dataset`, and components by the field of the experiment that
    takes them. So are `restarts` and `callbacks`, which a run does not keep: callbacks are told first what was before
    the checkpoint. A run goes on for longer, also one that has ended, with a larger `updates`, `rounds`, `time` or
    `target_accuracy`, or a better `target`, and is then the run that it would have been with that from the start, bit
    for bit. `quiet` is that of the run unless you set it.

    Code of others that the run directory names, `package.module:Name`, is imported if you `trust` it; what you give
    again is yours. What was damaged since is noticed before anything is trained: then the run goes on from an earlier
    checkpoint, with a warning, or is refused.

        fedraa.resume("runs/mine", model=Net(), scheduler=HighestLoss(), updates=400)

    Raises ValueError, one sentence, for a run that has ended and is not made longer, that another process is writing,
    that lacks something, or that was of something else; Interrupted after Ctrl-C.
    """
    refuse_nested_run()
    module, data, fields = split_objects(model, dataset, fields)
    directory = Path(directory)
    if quiet is None:
        quiet = bool(History(directory).config["experiment"].get("quiet"))
    told = _callbacks(callbacks, quiet=quiet)
    with _before_the_start(told):
        spec, longer = resumed(directory, module, data, fields, trust=trust, doing=told.prepare)
    _check_restarts(restarts, spec.experiment)
    if longer:
        with written(directory):
            lengthen(directory, spec)
    return _execute(spec, directory, told, resume=True, restarts=restarts)


def compare(
    methods: Sequence[str | Method] | str | Method,
    seeds: Sequence[int] = (0,),
    experiment: Experiment | None = None,
    *,
    model: nn.Module | Callable[[int], nn.Module] | str | None = None,
    dataset: Dataset | FederatedDataset | Callable[[], Dataset | FederatedDataset] | Path | str | None = None,
    terms: Terms | None = None,
    tuned: str | os.PathLike[str] | None = None,
    callbacks: Callbacks = (),
    ended: Callable[[History], None] | None = None,
    **fields: object,
) -> "pd.DataFrame":
    """Run every method with every seed under the same flags and budget; returns one row per run.

    `methods` are names or Method objects, each with a name of its own. `model` and `dataset` are as in `run`; every run
    begins with the same weights of a module.

    `fields` are those of an Experiment, in place of the experiment's own. A field that only some of the methods know is
    set for those. With `terms` "equal" all have one momentum, weighting, weight decay, clipping, local work and
    participation, those of the fields, or else 0, uniform, 0, none, 5 epochs and all; with "paper" each method has what
    its paper states; with "tuned" what is for it in the file `tuned`, which `tune` writes. Without, each has its own
    where the fields say nothing. Whatever differs between the methods then is in differences.csv.

    Every run has a directory METHOD-SEED below the experiment's `out` (default: a new folder under runs/), beside
    compare.csv, which is the table, and compare.png. `ended` is called with the History of each run that has ended.

    Columns: method, seed; accuracy, best_accuracy, client_worst (shares, 0 to 1; for another objective its metrics);
    reason of the end, steps, tasks; time (on the run's clock), wall (seconds), time_to_target (NaN if not reached);
    bytes_down, bytes_up, flops; staleness_mean, staleness_max; faults; model_sha256; note (if no step was finished);
    directory.

        frame = fedraa.compare(["fed-raa", "fedavg"], seeds=range(3), time=8, terms="equal", engine="local")
        frame.groupby("method")["accuracy"].mean()

    Raises ValueError, one sentence, before anything is started or written, for what cannot be compared.
    """
    from fedraa.report.cells import cells  # reports take seconds to import
    from fedraa.report.compare import write

    module, given, fields = split_objects(model, dataset, fields)
    experiment = _changed(experiment, fields)
    found = None if tuned is None else read_tuned(Path(tuned))
    runs = cells(methods, seeds, experiment, terms, found)
    together = experiment.model_copy(update={"method": "compare"})
    if together.out is not None:
        refuse_used(together.out)
    with _before_the_start(told := _callbacks(callbacks, quiet=experiment.quiet)):
        for number, each in enumerate(runs, 1):
            told.prepare(f"checking run {number} of {len(runs)}")
            data = build(each, module, given).data.dataset.name
    histories = []
    with exclusive(), run_directory(together, data) as directory, session(experiment):
        for number, each in enumerate(runs, 1):
            place = f"run {number} of {len(runs)}: {each.method} seed {each.seed}"
            each = each.model_copy(update={"out": directory / run_name(each.method, each.seed)})
            histories.append(_run(each, module, given, _callbacks(callbacks, quiet=each.quiet, place=place)))
            if ended is not None:
                ended(histories[-1])
        return write(histories, directory, data)


def replay(directory: str | os.PathLike[str]) -> str:
    """Check a run's log against the rules of its method, line by line; returns what was checked, in a sentence or two.

    Every decision, weight, cost and time must follow from config.json and the lines before it; neither the dataset nor
    the model is needed. What was measured is believed: losses, accuracies, real time.

        print(fedraa.replay("runs/fed-raa-digits-0"))

    Raises Inconsistent at the first line that does not follow, and ValueError for what is no run directory.
    """
    from fedraa.replay.replay import replay as check

    return check(Path(directory))


def report(
    runs: Sequence[str | os.PathLike[str]],
    out: str | os.PathLike[str] = "report.html",
    *,
    theme: Literal["auto", "light", "dark"] = "auto",
    landscape: bool = False,
    trust: bool = False,
) -> Path:
    """Write the page `out` about runs, or folders of them: what they show in words, tables and figures.

    Returns the folder beside it, NAME_files, with every table as CSV and LaTeX and every figure as PDF. Runs that
    differ in their seed alone are one group, shown as mean and 95 % confidence interval. `theme` auto is light or dark
    as the reader's screen is; `landscape` adds the loss around every final model, for which it loads the datasets, and
    imports code of others that a run directory names if you `trust` it.

        fedraa.report(["runs/compare"], "page.html")

    Runs that have not ended are shown as far as they are, and marked.

    Raises ValueError, one sentence, for what is no run, has no evaluation yet, or is given twice.
    """
    from fedraa.report import report as write

    return write([Path(run) for run in runs], Path(out), theme=theme, landscape=landscape, trust=trust)


def method(name: str) -> Method:
    """The method of that name, as `fedraa methods` lists them, or the crossing "a+b"; ValueError says which there are.

    It is a value, the choices of which it is made:

        fedraa.method("fed-raa").schedule
    """
    return find(name)


def run_name(*parts: object) -> str:
    """Return the name of a run directory, made from these parts."""
    return "-".join(NOT_IN_NAMES.sub("-", str(part)).strip("-.") for part in parts)


def _changed(experiment: Experiment | None, fields: Mapping[str, object]) -> Experiment:
    """The experiment (default: that of all defaults) with these fields; ValueError for what they do not take."""
    if experiment is not None and not isinstance(experiment, Experiment):
        raise InputError("experiment", got=experiment, expected="an Experiment, or its fields by their names")
    if experiment is not None and not fields:
        return experiment
    check_names(fields, Experiment.model_fields)
    return Experiment(**({} if experiment is None else dict(experiment)) | dict(fields))


def _callbacks(given: Callbacks, *, quiet: bool, place: str = "") -> CallbackList:
    """Return the callbacks, and unless they show a bar or the run is quiet, one that logs how far the run is.

    Args:
        given: Callbacks in any of the forms that a user gives.
        quiet: Whether nothing is logged.
        place: Which of several runs it is, for the log.
    """
    if isinstance(given, str | Mapping) or not isinstance(given, Sequence):
        raise InputError("callbacks", got=given, expected="a list")
    made = [CALLBACKS.make(each) for each in given]
    for callback in made:
        refuse_strange_hooks(callback)
    bar = is_shown() and any(isinstance(callback, ProgressBar) for callback in made)
    if not quiet and not bar:
        made.append(ProgressLog(place))
    return CallbackList([*made, FailureWarnings()])


def _check_restarts(restarts: int, experiment: Experiment) -> None:
    if restarts < 0:
        raise InputError("restarts", got=restarts, expected="0 or more")
    if restarts and experiment.engine != "ray":
        raise InputError("restarts", f"it needs the engine ray, not {experiment.engine}", got=restarts)
    if restarts and (address := cluster_address(experiment)) is not None:
        raise InputError("restarts", f"the cluster at {address} cannot be started again from here", hint="leave it out")


def _execute(spec: RunSpec, directory: Path, callbacks: CallbackList, *, resume: bool, restarts: int) -> History:
    raised, ended = None, False
    try:
        with run_alone():
            if spec.experiment.engine == "ray":
                from actors.cluster.engine import run_on_ray  # Ray takes seconds to import

                ended = run_on_ray(spec, directory, callbacks, resume, restarts)
            else:
                ended = run_here(spec, directory, callbacks, resume)
    except CallbackRaised as wrapped:
        raised = wrapped.error
    except (Unwritable, KeyboardInterrupt) as error:
        if not isinstance(error, Interrupted) and newest_first(directory / CHECKPOINTS):  # that says so itself
            error.add_note(f"go on from the last checkpoint with: {how_to_go_on(spec, directory)}")
        raise
    finally:
        callbacks.close()
    gc.collect()  # a run's objects refer to each other; several runs in one process must not add up
    stopped = f"stopped, with a checkpoint; go on with: {how_to_go_on(spec, directory)}"
    if raised is not None:
        if not (directory / SUMMARY).exists():
            raised.add_note(stopped)
        raise raised
    if not ended:
        raise Interrupted(stopped)
    warn([find_no_step(History(directory).summary)])
    return History(directory)


def session(experiment: Experiment) -> AbstractContextManager[None]:
    """One Ray cluster for all runs within, where the engine is Ray: each would start one otherwise."""
    if experiment.engine == "local":
        return nullcontext()
    from actors.cluster.engine import cluster

    return cluster(experiment)


def calls(experiment: Experiment, parts: Iterable[object]) -> AbstractContextManager[Callable[..., Future[Any]]]:
    """Calls of functions on the nodes of the experiment's cluster, as `actors.cluster.calls` has them."""
    from actors.cluster.calls import calls as on_cluster

    return on_cluster(experiment, parts)


def run_here(spec: RunSpec, directory: Path, callbacks: CallbackList, resume: bool) -> bool:
    """Run in this process; return True at the end, False if it was stopped. CallbackRaised if a callback has failed."""
    experiment = spec.experiment
    torch.set_num_threads(experiment.threads_per_worker)
    device = choose_device(experiment.device)
    trainer, evaluator = spec.worker_spec.trainer(device), spec.worker_spec.evaluator(spec.evaluation_data, device)
    executor = LocalExecutor(trainer, evaluator, spec.data, experiment.stack)
    stop = Event()

    def interrupt() -> None:
        stop.set()
        executor.drop()

    with interruptible(interrupt), terminable(interrupt):
        callbacks.start(RunStart(experiment, directory, spec.limits, resume, spec.figures, spec.method.asynchronous))
        return RunSession(spec, directory, executor, stop, callbacks).execute(resume=resume)


@contextmanager
def run_directory(experiment: Experiment, data: str) -> Iterator[Path]:
    """Meanwhile the run directory is this run's alone: `out`, new or empty, or a new one under runs/.

    That is named after the method, the data and the seed. ValueError if it is another's. Where nothing was begun in it,
    nothing stays of it.
    """
    name = run_name(experiment.method, data, experiment.seed)
    with claimed(experiment.out, lambda number: RUNS / (name if number == 1 else f"{name}-{number}")) as directory:
        yield directory


@contextmanager
def _before_the_start(told: CallbackList) -> Iterator[None]:
    """Ctrl-C within has interrupted nothing that could be gone on with; the callbacks are told when it is over."""
    try:
        yield
    except KeyboardInterrupt:
        raise Interrupted("stopped before the start; nothing was changed") from None
    finally:
        told.prepare(None)
