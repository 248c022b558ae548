"""The public functions, such as `run` and `compare`. Only this module imports all other subpackages."""

import gc
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from torch import nn

from fedraa.arguments import RUN_PATH, RUN_PATHS, check_flags, check_functions, to_path, to_paths
from fedraa.callbacks.callback_list import CallbackList
from fedraa.callbacks.make_callbacks import Callbacks, make_callbacks
from fedraa.composition.method import Method
from fedraa.composition.registry import find_method
from fedraa.config.experiment import Experiment, with_fields
from fedraa.config.processes import cluster_address
from fedraa.config.sections import ClusterOptions
from fedraa.data import Dataset, FederatedDataset
from fedraa.engine.build import build_run
from fedraa.engine.local_engine import run_here
from fedraa.engine.objects import split_objects
from fedraa.engine.process_guard import exclusive_process, refuse_nested_run, run_alone
from fedraa.engine.resume import (
    check_log,
    load_for_resume,
    resume_command,
    suggest_continuation,
)
from fedraa.engine.run_spec import RunSpec
from fedraa.engine.run_warnings import find_no_step, issue_warnings
from fedraa.errors import CallbackRaised, InputError, Interrupted, Unwritable, WorkersLost
from fedraa.rundir.file_names import CONFIG, SUMMARY
from fedraa.rundir.history import History
from fedraa.rundir.reserved_directory import refuse_used, reserve_directory, run_name
from fedraa.rundir.status import runs_below
from fedraa.settings.terms import Terms
from fedraa.settings.tuned import read_tuned_about, warn_of_other_data

if TYPE_CHECKING:
    import pandas as pd

RUNS = Path("runs")


def run(
    experiment: Experiment | None = None,
    *,
    model: nn.Module | Callable[[int], nn.Module] | str | None = None,
    dataset: Dataset | FederatedDataset | Callable[[], Dataset | FederatedDataset] | Path | str | None = None,
    callbacks: Callbacks = (),
    restarts: int = 0,
    **fields: object,
) -> History:
    """Run an experiment to its end. Return the History of its run directory.

        fedraa.run(method="fedavg", dataset="digits", rounds=20)
        fedraa.run(experiment, model=Net(), dataset=fedraa.Dataset(...), seed=3)
        fedraa.run(experiment, callbacks=[fedraa.EarlyStopping(patience=3), fedraa.CSV("evals.csv")])

    Args:
        experiment: The settings; `fields` replace some of them.
        model: An nn.Module, or a name. It returns logits `[batch, classes]`, or the input of the objective.
        dataset: A Dataset, a FederatedDataset, a function that returns one, or a name.
        callbacks: Callbacks, which receive the events of the run and may end it.
        restarts: The maximum number of new local clusters on which the run resumes if Ray dies.
        **fields: Fields of the experiment.

    Only one run at a time trains in a process; calls in other threads wait. A callback must not start a run. Raises
    InputError before the start if the experiment cannot be run, RunFailed if the run cannot continue, and Interrupted
    after Ctrl-C. `resume` continues a run after Ctrl-C or an exception of a callback.
    """
    refuse_nested_run()
    module, data, fields = split_objects(model, dataset, fields)
    experiment = with_fields(experiment, fields)
    return _run_experiment(experiment, module, data, make_callbacks(callbacks, quiet=experiment.quiet), restarts)


def _run_experiment(
    experiment: Experiment,
    model: nn.Module | None,
    dataset: Dataset | FederatedDataset | None,
    callbacks: CallbackList,
    restarts: int = 0,
) -> History:
    """Run an experiment. `model` and `dataset`, if given, replace the ones that the experiment names."""
    _check_restarts(restarts, experiment)
    if experiment.out is not None:
        refuse_used(experiment.out)
    with _convert_early_interrupt(callbacks):
        spec = build_run(experiment, model, dataset, callbacks.prepare)
    name = run_name(experiment.method, spec.data.dataset.name, experiment.seed)
    with run_directory(experiment.out, name) as directory:
        return _execute_run(spec, directory, callbacks, resume=False, restarts=restarts)


def _run_or_continue(
    experiment: Experiment,
    directory: Path,
    model: nn.Module | None,
    dataset: Dataset | FederatedDataset | None,
    callbacks: CallbackList,
) -> History:
    """Run an experiment in the directory. Continue an interrupted run there, and return a run that has ended there."""
    if (directory / SUMMARY).exists():
        return History(directory)
    if not (directory / CONFIG).exists():
        return _run_experiment(experiment, model, dataset, callbacks)
    with _convert_early_interrupt(callbacks):
        spec = build_run(experiment, model, dataset, callbacks.prepare)
    check_log(directory)
    return _execute_run(spec, directory, callbacks, resume=True, restarts=0)


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
    """Resume a run from its last checkpoint, or extend it. Return its History.

        fedraa.resume("runs/mine", model=Net(), scheduler=HighestLoss(), updates=400)

    Args:
        directory: The run directory.
        model: The same object as in the call of `run`, if it had one.
        dataset: The same object as in the call of `run`, if it had one.
        callbacks: The callbacks of the run, which must be passed again. They first receive all earlier events.
        trust: Allow the import of user code that the run directory names (`package.module:Name`).
        restarts: The maximum number of new local clusters on which the run resumes if Ray dies.
        quiet: True or False replaces the setting of the run.
        **fields: Components that were passed to `run` as objects. A larger `updates`, `rounds`, `time` or
            `target_accuracy`, or a better `target`, extends the run, even if it is finished. The result then equals
            that of one longer run bit for bit. The fields `device`, `data_dir`, `engine`, `workers`, `address`,
            `placement`, `resources` and `server_node` may have other values than before.

    If the newest checkpoint is damaged, the run resumes from an earlier one with a warning. Raises ValueError for a
    finished run that is not extended, a run that another process writes, and a missing or different object. Raises
    Interrupted after Ctrl-C.
    """
    refuse_nested_run()
    module, data, fields = split_objects(model, dataset, fields)
    directory = to_path("run", directory, RUN_PATH)
    if quiet is None:
        quiet = bool(History(directory).config["experiment"].get("quiet"))
    check_flags(trust=trust, quiet=quiet)
    callback_list = make_callbacks(callbacks, quiet=quiet)
    with _convert_early_interrupt(callback_list):
        spec, is_extended = load_for_resume(directory, module, data, fields, trust=trust, doing=callback_list.prepare)
    _check_restarts(restarts, spec.experiment)
    return _execute_run(spec, directory, callback_list, resume=True, restarts=restarts, extend=is_extended)


def compare(  # noqa: PLR0913 - a call names its arguments
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
    """Run every method with every seed, with the same settings and the same budget. Return one row per run.

    Args:
        methods: Names or Method objects with distinct names.
        seeds: The seeds.
        experiment: The settings; `fields` replace some of them.
        model: As in `run`. If it is a module, every run starts from the weights of this module.
        dataset: As in `run`.
        terms: The source of values for fields that are not set. "equal": momentum 0, uniform weighting, no decay, no
            clipping, 5 epochs, all clients. "paper": the values of each method's paper. "tuned": the values in the file
            `tuned`. None: the defaults of each method.
        tuned: The file that `tune` writes. A warning appears if it is for another data set.
        callbacks: As in `run`.
        ended: A function that is called with the History of each finished run.
        **fields: Fields of the experiment. A field that only some methods have is set only for these methods.

    Every run has a directory METHOD-SEED below `out` (default: a folder in runs/), beside compare.csv and compare.png.
    If `out` has runs of the same comparison, they are not repeated, and an interrupted run continues.

    Columns: method, seed, accuracy and best_accuracy (with objectives other than classification, their main metric),
    client_worst (this metric for the worst client), reason (of the end), steps, tasks, time (on the run's clock), wall
    (seconds), time_to_target (NaN if not reached), bytes_down, bytes_up, flops, staleness_mean, staleness_max, faults,
    model_sha256, note (if no step was finished), directory (of the run). With watts of devices, also energy (joules).

        fedraa.compare(["fed-raa", "fedavg"], seeds=range(3), time=8, terms="equal", engine="local")

    Raises ValueError, before the start, for methods or settings that cannot be compared.
    """
    # Reports take seconds to import.
    from fedraa.report.cells import make_experiments
    from fedraa.report.compare import check_begun_run, refuse_other_runs, write_comparison

    check_functions(ended=ended)
    module, data, fields = split_objects(model, dataset, fields)
    experiment = with_fields(experiment, fields)
    tuned_file = None if tuned is None else to_path("tuned", tuned)
    about, tuned_values = ({}, None) if tuned_file is None else read_tuned_about(tuned_file)
    runs = make_experiments(methods, seeds, experiment, terms, tuned_values)
    names = [run_name(settings.method, settings.seed) for settings in runs]
    begun = None
    if experiment.out is not None and os.path.isdir(experiment.out) and runs_below(experiment.out):
        begun = experiment.out
        refuse_other_runs(begun, names)
    elif experiment.out is not None:
        refuse_used(experiment.out)
    callback_list = make_callbacks(callbacks, quiet=experiment.quiet)
    with _convert_early_interrupt(callback_list):
        for number, settings in enumerate(runs, 1):
            callback_list.prepare(f"checking run {number} of {len(runs)}")
            spec = build_run(settings, module, data)
            data_name = spec.data.dataset.name
            if begun is not None:
                check_begun_run(begun / names[number - 1], spec)
    if tuned_file is not None:
        warn_of_other_data(tuned_file, about, experiment.dataset if data is None else data_name)
    histories = []
    name = run_name("compare", data_name, experiment.seed)
    together = open_session(experiment, experiment.client_count)
    reservation = run_directory(experiment.out, name, may_be_used=begun is not None)
    with exclusive_process(), reservation as directory, together:
        for number, settings in enumerate(runs, 1):
            place = f"run {number} of {len(runs)}: {settings.method} seed {settings.seed}"
            callback_list = make_callbacks(callbacks, quiet=settings.quiet, place=place)
            run_out = directory / names[number - 1]
            settings = settings.model_copy(update={"out": run_out})
            histories.append(_run_or_continue(settings, run_out, module, data, callback_list))
            if ended is not None:
                ended(histories[-1])
        try:
            return write_comparison(histories, directory, data_name)
        except OSError as error:
            error.add_note(f"all runs have ended, and `fedraa report {directory}` shows them")
            raise


def replay(directory: str | os.PathLike[str]) -> str:
    """Check a run's log against the rules of its method, line by line. Return a summary of the check.

    Every decision, weight, cost and time must follow from config.json and the earlier lines. The check needs neither
    the dataset nor the model, and does not check losses, accuracies and real times.

        print(fedraa.replay("runs/fed-raa-digits-0"))

    Raises Inconsistent at the first line that breaks a rule, and ValueError if the directory holds no run.
    """
    from fedraa.replay.replay import replay as check

    return check(to_path("run", directory, RUN_PATH))


def report(
    runs: Sequence[str | os.PathLike[str]] | str | os.PathLike[str],
    out: str | os.PathLike[str] = "report.html",
    *,
    theme: Literal["auto", "light", "dark"] = "auto",
    landscape: bool = False,
    trust: bool = False,
) -> Path:
    """Write an HTML page with tables and plots about runs.

    Runs that differ only in their seed are shown as mean and 95 % interval. Unfinished runs are marked.

        fedraa.report(["runs/compare"], "page.html")

    Args:
        runs: One or more run directories, or folders of them.
        out: The HTML file to write.
        theme: The colours; "auto" follows the light or dark setting of the browser.
        landscape: Add plots of the loss around every final model. These plots need the datasets.
        trust: Allow the import of user code that a run directory names, for `landscape`.

    Returns the folder NAME_files beside the page, with every table as CSV and LaTeX and every plot as PDF. Raises
    ValueError for a path that is no run, a run without an evaluation, and a run that is listed twice.
    """
    from fedraa.report import report as write

    check_flags(landscape=landscape, trust=trust)
    return write(to_paths("runs", runs, RUN_PATHS), to_path("out", out), theme=theme, landscape=landscape, trust=trust)


def method(name: str) -> Method:
    """Return the method with this name. `fedraa methods` lists the names, and "a+b" combines two methods.

    The result has the attributes `submodel`, `local`, `update` and `schedule`. Raises ValueError for an unknown name.
    """
    return find_method(name)


def _check_restarts(restarts: int, options: ClusterOptions) -> None:
    if isinstance(restarts, bool) or not isinstance(restarts, int) or restarts < 0:
        raise InputError("restarts", got=restarts, expected="a whole number from 0")
    if restarts and options.engine != "ray":
        problem = f"it needs the engine ray, not {options.engine}"
        raise InputError("restarts", problem, got=restarts, hint="give the engine ray, or leave it out")
    address = cluster_address(options)
    if restarts and address is not None:
        problem = f"the cluster at {address} cannot be restarted from this process"
        raise InputError("restarts", problem, got=restarts, hint="leave it out")


def _execute_run(
    spec: RunSpec, directory: Path, callbacks: CallbackList, *, resume: bool, restarts: int, extend: bool = False
) -> History:
    raised = None
    is_complete = False
    try:
        with run_alone():
            if spec.experiment.engine == "ray":
                # Ray takes seconds to import.
                from actors.cluster.engine import run_on_ray

                is_complete = run_on_ray(spec, directory, callbacks, resume=resume, extend=extend, restarts=restarts)
            else:
                is_complete = run_here(spec, directory, callbacks, resume=resume, extend=extend)
    except CallbackRaised as wrapped:
        raised = wrapped.error
    except (Unwritable, WorkersLost, KeyboardInterrupt) as error:
        is_resumable = (directory / CONFIG).exists() and not (directory / SUMMARY).exists()
        # Interrupted already has this hint.
        if is_resumable and not isinstance(error, Interrupted):
            error.add_note(suggest_continuation(spec, directory))
        raise
    finally:
        callbacks.close()
    # The objects of a run form reference cycles, which would fill the memory after several runs.
    gc.collect()
    stopped = f"stopped, with a checkpoint; resume with: {resume_command(spec, directory)}"
    if raised is not None:
        if not (directory / SUMMARY).exists():
            raised.add_note(stopped)
        raise raised
    if not is_complete:
        raise Interrupted(stopped)
    issue_warnings([find_no_step(History(directory).summary)])
    return History(directory)


def open_session(options: ClusterOptions, clients: int) -> AbstractContextManager[None]:
    """Return a context with one Ray cluster for all runs in it. With the local engine it does nothing."""
    if options.engine == "local":
        return nullcontext()
    from actors.cluster.engine import provide_cluster

    return provide_cluster(options, clients)


def open_calls(
    options: ClusterOptions, clients: int, parts: Iterable[object]
) -> AbstractContextManager[Callable[..., Future[Any]]]:
    """Return a context for calls of functions on the nodes of a cluster; see `actors.cluster.calls`."""
    from actors.cluster.calls import open_calls as on_cluster

    return on_cluster(options, clients, parts)


def run_directory(out: Path | None, name: str, *, may_be_used: bool = False) -> AbstractContextManager[Path]:
    """Reserve a run directory during the block: `out`, or a new directory `name` in runs/.

    The directory is removed if no run began in it. Raises ValueError if another run uses it, or if `out` has other
    files and `may_be_used` is False.
    """

    def name_directory(number: int) -> Path:
        return RUNS / (name if number == 1 else f"{name}-{number}")

    return reserve_directory(out, name_directory, may_be_used=may_be_used)


@contextmanager
def _convert_early_interrupt(callbacks: CallbackList) -> Iterator[None]:
    """Convert Ctrl-C in the block to Interrupted. After the block, tell the callbacks that preparations are over."""
    try:
        yield
    except KeyboardInterrupt:
        raise Interrupted("stopped before the start; nothing was changed") from None
    finally:
        callbacks.prepare(None)
