"""A run, read from its directory."""

import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from fedraa.arguments import RUN_PATH, check_flags, to_path
from fedraa.config.experiment import Experiment
from fedraa.errors import InputError
from fedraa.objectives import MetricSpec, read_metric_spec
from fedraa.objectives.metric_spec import metric_heading
from fedraa.rundir.checked_files import read_evals, read_summary
from fedraa.rundir.clients_file import read_clients
from fedraa.rundir.config_file import read_config, time_axis_label
from fedraa.rundir.event_reader import read_events
from fedraa.rundir.failures import read_failure
from fedraa.rundir.file_names import CLIENTS, CONFIG, EVALS, EVENTS, SUMMARY
from fedraa.rundir.partition_file import DataPartition, read_partition
from fedraa.rundir.run_lock import WRITER, is_written

if TYPE_CHECKING:
    import pandas as pd
    from torch import nn

    from fedraa.rundir.plots import Plot


class History:
    """A run, read from its directory: `events`, `evals`, `summary`, `config`, `experiment`.

    Every access to a property reads the file again, so a History can follow a run that another process writes.

        history = fedraa.History("runs/fed-raa-digits-0")
        history.evals.plot("t", "accuracy")
        commits = history.events.query("kind == 'commit'")

    `t` is the time on the run's clock. On the virtual clock it is simulated time: in time units or, with physical
    units, in seconds. One time unit is the time for five local epochs of the full model on a device of compute 1 with
    an average number of samples. On the wall clock `t` is real seconds. `wall` is always real seconds since the start,
    without interruptions. Accuracies are from 0 to 1.

    `events` has one row per event in the order of the log. All events have `seq` (0, 1, ...), `kind`, `t` and `wall`.
    The other columns depend on the kind, and are NaN for events of other kinds:

    dispatch    A client receives a task: `task` (its number), `client`, `fragment` (or the label of its submodel),
                `version` (updates of this fragment when sent, or the round), `step` (updates of the
                whole server so far), `cost` (expected duration on the clock), `feasible_fragments` (within the delay
                bound), `fragment_updates` (updates per fragment at the choice), `bytes_down`, `energy` (of the task, in
                joules, if the devices have watts), `lr` (of the task, if the rate is adaptive), `size` (parameters of
                the submodel, if the method cuts a submodel for each task)
    commit      Its update is applied: `task`, `client`, `fragment`, `base_version` (when sent), `version` (now),
                `staleness` (updates of this fragment since it was sent), `staleness_total` (of any fragment),
                `weight` (of the update, if all clients of a round report), `bytes_up`, `samples` (of the client),
                `flops` (of the task), `train_loss` (mean over the task), `unprotected` (as in `round`, for a buffer of
                updates), `seconds` and `waited` (on the wall clock, if durations are learned: the seconds between
                dispatch and arrival in which a worker trained the task, and the other seconds)
    drop        A task failed by the fault of its client: `task`, `client`, `fragment`, `error` (the reason), `action`
                (retry: the client gets another task; quarantined: it gets no more tasks; stop: the run stops)
    round       A synchronous round is closed: `round` (0, 1, ...), `clients` (that reported), `coverage_min` and
                `coverage_max` (clients per coordinate of the model), `uncovered` (coordinates that no client trained),
                `coverage_min_trained` (the minimum over the trained coordinates), `longest_untrained` (the number of
                rounds for which the longest untrained coordinate has not been trained),
                `drift` (root mean square distance between the clients' models and the model that they received,
                computed in float32),
                `unprotected` (with a robust aggregator: coordinates that too few clients trained to be protected)
    eval        The full model is evaluated: `step` and the columns of `evals`; a loss that is not finite is NaN
    lost        An update came too late for its round: `task`, `client`, `fragment`, `reason` (count: the round had
                enough updates; deadline: the deadline passed), `flops` (those of the task times the finished share of
                its modelled training). A task that a deadline cut short has `cut_at` (its number of local steps) in its
                `dispatch` line.
    fault       A failure of a worker: `task` and `worker` (NaN if none), `error`, `action` (retry, give up, none)
    checkpoint  A checkpoint is written, with the option `checkpoint_every`: `step`
    end         The run has ended: `reason` (steps, time, accuracy, target, callback, or participations: all clients
                have had their maximum number of tasks), `step`, `model_sha256`

    `evals` has one row per evaluation: `step` (server updates, or rounds), `t` (the time of the evaluated model),
    `wall`, `accuracy` and `loss` (mean cross-entropy, nats) on the whole test set. `client_mean`, `client_std` and
    `client_worst` describe the accuracies on the test samples of each client. Each further metric has a column. With
    `personalised`, or with a method that keeps personal models, the columns `personal_mean`, `personal_std` and
    `personal_worst` describe the accuracies of personal models of sampled clients: the models that clients keep, or the
    global model after training on the client's data, as in a task.

    With another objective, its metrics over all test samples replace `accuracy`. For multilabel they are `f1`,
    `accuracy` and `exact`; for regression `mse`, `mae` and `r2`; for next-token `perplexity` and `accuracy`; for
    segmentation `mean_iou` and `pixel_accuracy`. A custom objective names its metrics in `better`. `loss` is the mean
    loss of the objective. The columns `client_...` describe its main metric, `history.metric_spec.main`. If less is
    better, the worst client has the largest value.

    `clients` has one row per client and evaluation, with `client_evals`: `step` and `t` of the evaluation, `client`
    (its number), `name` (its name in the data), `samples` (training samples), `test_samples`, the metrics and `loss` of
    the full model on the client's test samples (NaN without test samples), `personal_accuracy` or `personal_` and the
    main metric (of the client's personal model; only in runs that evaluate personal models, NaN for other clients),
    `updates` (the number of the client's updates that were applied until then), `quarantined` (the reason if the client
    was quarantined until then, otherwise empty).

    Raises ValueError if the directory is no run directory or is damaged.
    """

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        self.directory = to_path("run", directory, RUN_PATH)
        for name in (CONFIG, EVENTS, EVALS):
            if not (self.directory / name).is_file():
                run = next((path.parent for path in sorted(self.directory.glob(f"*/{CONFIG}"))), None)
                hint = "give the directory that a run wrote; `fedraa status` lists those in runs/"
                if run is not None:
                    hint = f"give a run in this folder, such as {run}"
                elif (self.directory / WRITER).is_file():
                    hint = "if its run is still starting, try again when it has printed its first evaluation"
                raise InputError("run", f"{self.directory} is not a run directory; it has no {name}", hint=hint)

    def __repr__(self) -> str:
        flags = self.config["experiment"]
        parts = [f"{method_name(self.config)} on {flags['dataset']}", self.state]
        last = self._last_eval()
        if last is not None:
            main = self.metric_spec.main
            parts.append(f"step {int(last['step'])}, {main} {float(last[main]):.4f}")
        return f"<History of {self.directory}: {', '.join(parts)}>"

    @property
    def state(self) -> str:
        """The state: `running`, `interrupted`, `failed`, or `ended by` with the reason."""
        if (self.directory / SUMMARY).exists():
            return f"ended by {self.summary['reason']}"
        if is_written(self.directory / EVENTS):
            return "running"
        return "failed" if read_failure(self.directory) else "interrupted"

    @property
    def config(self) -> dict[str, Any]:
        """The resolved configuration in config.json.

        Raises InputError if the file is damaged.
        """
        return read_config(self.directory / CONFIG)

    @property
    def metric_spec(self) -> MetricSpec:
        """The metrics of an evaluation, the better direction of each metric (higher or lower), and the main metric."""
        return read_metric_spec(self.config)

    @property
    def experiment(self) -> Experiment:
        """The experiment of the run.

        Raises InputError if this version of fedraa cannot run it.
        """
        return Experiment(**self.config["experiment"])

    @property
    def summary(self) -> dict[str, object]:
        """The totals of a finished run, from summary.json.

        `dropped` is the number of tasks that failed by their clients' fault. `dropped_clients` has an entry for each of
        these clients, with its `tasks` and the last `reason`. `quarantined` has an entry for each client that gets no
        more tasks, with `reason` and `time`.

        Raises ValueError if the run is not finished.
        """
        path = self.directory / SUMMARY
        if not path.exists():
            raise InputError(
                "run", f"{self.directory} has no {SUMMARY}, because the run has not ended", hint="resume it"
            )
        return read_summary(path, self.metric_spec)

    def load_model(
        self,
        model: "nn.Module | Callable[..., nn.Module] | str | None" = None,
        *,
        transforms: Sequence[object] | None = None,
        trust: bool = False,
    ) -> "nn.Module":
        """Return the trained model as a module in evaluation mode.

        The module takes unscaled inputs, as in the data set. It scales them as the run did and applies the transforms
        that are not random.

            net = fedraa.History("runs/fed-raa-digits-0").load_model()
            predicted = net(images).argmax(1)

        Args:
            model: The model, if the run was started with an object. The object does not change.
            transforms: The transforms of the run, if they were defined in a script or a notebook.
            trust: True to allow the import of user code that the run directory names.

        Raises:
            ValueError: The run has not ended, or the model does not fit.
        """
        # torch is slow to import.
        from fedraa.rundir.trained_model import load_trained

        check_flags(trust=trust)
        return load_trained(self.directory, self.config, model=model, transforms=transforms, trust=trust)

    @property
    def events(self) -> "pd.DataFrame":
        """One row per event; see the class for the columns."""
        # pandas is slow to import, and workers do without it.
        import pandas as pd

        return pd.DataFrame(self.lines())

    @property
    def evals(self) -> "pd.DataFrame":
        """One row per evaluation, empty before the first; see the class for the columns."""
        return read_evals(self.directory / EVALS, self.metric_spec)

    @property
    def clients(self) -> "pd.DataFrame":
        """One row per client and evaluation; see the class for the columns.

        Raises InputError if the run was started without `client_evals`.
        """
        return read_clients(self.directory, self.metric_spec)

    @property
    def has_clients(self) -> bool:
        """True if the run writes clients.csv."""
        return (self.directory / CLIENTS).exists()

    @property
    def partition(self) -> DataPartition:
        """The partition of the data.

        `train[n]` and `test[n]` are the row numbers of client n's samples.

            x[history.partition.train[3]]
        """
        return read_partition(self.directory)

    @property
    def title(self) -> str:
        """A short description of the run."""
        flags = self.config["experiment"]
        return f"{method_name(self.config)} on {flags['dataset']}, seed {flags['seed']}"

    def plot(self, y: str | None = None, x: str = "t") -> "Plot":
        """Return a matplotlib figure of column y of `evals` over column x. The default of y is the main metric.

            history.plot()
            history.plot("loss", "step").savefig("loss.png")

        Raises ValueError for a column that does not exist.
        """
        # matplotlib is slow to import, and workers do without it.
        from fedraa.rundir.plots import plot_column

        column = self.metric_spec.main if y is None else y
        time_label = time_axis_label(self.config["experiment"])
        return plot_column(self.evals, column, x, title=self.title, time_label=time_label)

    def _repr_html_(self) -> str:
        from fedraa.rundir.plots import render_html

        rows = {"state": self.state, "directory": str(self.directory)}
        last = self._last_eval()
        if last is not None:
            rows |= {"step": f"{last['step']:.0f}", "time": f"{last['t']:.4g}"}
            names = (*self.metric_spec.names, "loss", "client_worst")
            rows |= {metric_heading(name): f"{last[name]:.4f}" for name in dict.fromkeys(names)}
        return render_html(self.title, rows, self.evals, self.metric_spec.main)

    def lines(self) -> list[dict[str, Any]]:
        """Return the events of the log without an incomplete last line.

        Raises InputError for any other line that is not an event.
        """
        return list(read_events(self.directory, partial=True))

    def _last_eval(self) -> dict[str, Any] | None:
        evals = self.evals
        if evals.empty:
            return None
        return dict(evals.iloc[-1])


def method_name(config: Mapping[str, Any]) -> str:
    """Return the name of a run's method, from the content of config.json."""
    return title_of_method(config["experiment"]["method"])


def title_of_method(method: object) -> str:
    """Return the name of a method that an experiment has as a text, an object, or a mapping from config.json."""
    if isinstance(method, Mapping):
        return str(method["name"])
    return str(method)
