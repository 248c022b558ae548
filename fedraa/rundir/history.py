"""A run, read from its directory."""

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedraa.config.experiment import Experiment
from fedraa.errors import InputError
from fedraa.objectives import Figures, figures_of
from fedraa.rundir.checked_files import read_evals, read_summary
from fedraa.rundir.clients_file import read_clients
from fedraa.rundir.config_file import read_config
from fedraa.rundir.event_reader import read_events
from fedraa.rundir.failures import read_failure
from fedraa.rundir.file_names import CLIENTS, CONFIG, EVALS, EVENTS, SUMMARY
from fedraa.rundir.partition_file import DataPartition, read_partition
from fedraa.rundir.run_lock import is_written

if TYPE_CHECKING:
    import pandas as pd
    from torch import nn

    from fedraa.rundir.plots import Plot


class History:
    """A run, read from its directory: `events`, `evals`, `summary`, `config`, `experiment`.

    Everything is read anew when it is asked for, so it can follow a run that another process is writing.

        history = fedraa.History("runs/fed-raa-digits-0")
        history.evals.plot("t", "accuracy")
        commits = history.events.query("kind == 'commit'")

    `t` is the time on the run's clock: modelled on the virtual clock, in time units (1 is five local epochs of the full
    model over an average shard on a device of compute 1) or, with physical units, in seconds; real seconds on the wall
    clock. `wall` is always real seconds since the start, less interruptions. Accuracies are shares, 0 to 1.

    `events`, one row per event in the order of the log; what another kind has is NaN. All have `seq` (0, 1, ...),
    `kind`, `t` and `wall`; then, by kind:

    dispatch    a client is given a task: `task` (its number), `client`, `fragment` (or the label of its submodel),
                `version` (of that fragment, as sent: updates so far; the round, in rounds), `step` (updates of the
                whole server so far), `cost` (duration expected, on the clock), `feasible` (fragments that the scheduler
                may choose), `counts` (updates per fragment that it chose by), `bytes_down`
    commit      its update is in the model: `task`, `client`, `fragment`, `base_version` (as sent), `version` (now),
                `staleness` (updates of this fragment since it was sent), `global_staleness` (of any), `mix` (weight of
                the update; in rounds, if all report), `bytes_up`, `samples` (of the client), `flops` (of the task),
                `train_loss` (mean over it)
    drop        its task came to nothing, by its own fault: `task`, `client`, `fragment`, `what` went wrong, `action`
                (retry: it is given work again; quarantined: it is left out from now on; stop: the run stops)
    round       a synchronous round is closed: `round` (0, 1, ...), `clients` (that reported), `coverage_min` and
                `coverage_max` (clients per coordinate of the model), `uncovered` (coordinates that nobody trained),
                `coverage_min_trained` (the minimum over those that somebody did), `longest_untrained` (rounds),
                `drift` (root mean square distance of the clients' models from what they were sent)
    eval        the full model on the test set: `step` and the columns of `evals`; a loss that is not finite is NaN
    fault       something failed: `task` and `worker` (NaN if none), `what`, `action` (retry, give up, none)
    checkpoint  with a given `checkpoint_every`: `step`
    end         `reason` (steps, time, accuracy, target or callback), `step`, `model_sha256`

    `evals`, one row per evaluation: `step` (server updates, or rounds), `t` (of the model, not of the result), `wall`,
    `accuracy` and `loss` (mean cross-entropy, nats) on the whole test set, `client_mean`, `client_std`, `client_worst`
    of the accuracies on the clients' own shares of it; further metrics have a column each. With `personalised`
    `personal_mean`, `personal_std`, `personal_worst` are those of some clients that have first trained the model on
    their own data, as a task does. With another objective its
    figures are in place of `accuracy`, from sums over all test samples: multilabel `f1`, `accuracy`, `exact`;
    regression `mse`, `mae`, `r2`; next-token `perplexity`, `accuracy`; segmentation `mean_iou`, `pixel_accuracy`; an
    own one those that it names in `better`. `loss` is its mean loss, and the clients' are of the figure that the
    objective is judged by, `history.figures.main`: their worst is the largest where less is better.

    `clients`, one row per client and evaluation, with `client_evals`: `step` and `t` of the evaluation, `client` (its
    number), `name` (what the data call it), `samples` (training samples), `test_samples` (its own), the figures and
    `loss` of the full model on these (NaN if it has none), `updates` (its updates that were applied by then),
    `quarantined` (the reason if it is left out by then, otherwise empty).

    Raises ValueError, one sentence, for what is no run directory, or is damaged.
    """

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        self.directory = Path(directory)
        for name in (CONFIG, EVENTS, EVALS):
            if not (self.directory / name).is_file():
                raise InputError("run", f"{self.directory} is not a run directory; it has no {name}")

    def __repr__(self) -> str:
        flags = self.config["experiment"]
        parts = [f"{method_name(self.config)} on {flags['dataset']}", self.state]
        if (last := self._last_eval()) is not None:
            main = self.figures.main
            parts.append(f"step {int(last['step'])}, {main} {float(last[main]):.4f}")
        return f"<History of {self.directory}: {', '.join(parts)}>"

    @property
    def state(self) -> str:
        """`running` (another process is writing it), `interrupted`, `failed`, or `ended by` what ended it."""
        if (self.directory / SUMMARY).exists():
            return f"ended by {self.summary['reason']}"
        if is_written(self.directory / EVENTS):
            return "running"
        return "failed" if read_failure(self.directory) else "interrupted"

    @property
    def config(self) -> dict[str, Any]:
        """The resolved configuration in config.json, with current names; InputError if the file does not hold one."""
        return read_config(self.directory / CONFIG)

    @property
    def figures(self) -> Figures:
        """The metrics of an evaluation, the direction of each, and the main metric."""
        return figures_of(self.config)

    @property
    def experiment(self) -> Experiment:
        """The experiment; InputError if this version cannot run it."""
        return Experiment(**self.config["experiment"])

    @property
    def summary(self) -> dict[str, object]:
        """Totals of a run that has ended, as in summary.json; ValueError if it has not.

        `dropped` counts the tasks that failed by their clients' fault, `dropped_clients` names these clients, each with
        its `tasks` and the last `reason`, and `quarantined` those that got no more work, with `reason` and `time`.
        """
        path = self.directory / SUMMARY
        if not path.exists():
            raise InputError(
                "run", f"{self.directory} has no {SUMMARY}, so that the run has not ended", hint="resume it"
            )
        return read_summary(path, self.figures)

    def load_model(
        self,
        model: "nn.Module | Callable[..., nn.Module] | str | None" = None,
        *,
        transforms: Sequence[object] | None = None,
        trust: bool = False,
    ) -> "nn.Module":
        """Return the trained model as a module in evaluation mode that takes inputs as the data set holds them.

        It scales inputs as the run has, applies the transforms that are not random, and then the model with its
        trained parameters and buffers.

            net = fedraa.History("runs/fed-raa-digits-0").load_model()
            predicted = net(images).argmax(1)

        A model that was given to the run as an object is given again, as are `transforms` of a script or a notebook.
        The object itself does not change. Code of others that the run directory names is imported only with `trust`.
        Raises ValueError, one sentence, for a run that has not ended, or a model that does not fit.
        """
        from fedraa.rundir.trained_model import load_trained  # torch is slow to import

        return load_trained(self.directory, self.config, model=model, transforms=transforms, trust=trust)

    @property
    def events(self) -> "pd.DataFrame":
        """One row per event, its columns as told above; columns of other kinds are NaN."""
        import pandas as pd  # here and below: it is slow to import, and workers do without

        return pd.DataFrame(self.lines())

    @property
    def evals(self) -> "pd.DataFrame":
        """One row per evaluation, its columns as told above; empty before the first."""
        return read_evals(self.directory / EVALS, self.figures)

    @property
    def clients(self) -> "pd.DataFrame":
        """One row per client and evaluation, for the evaluations that `client_evals` asks for, as told above.

        ValueError if the run was not asked for them.
        """
        return read_clients(self.directory, self.figures)

    @property
    def has_clients(self) -> bool:
        """Whether the run writes the results of its clients."""
        return (self.directory / CLIENTS).exists()

    @property
    def partition(self) -> DataPartition:
        """Which sample belongs to which client: `train[n]` and `test[n]` are the rows of client n.

            x[history.partition.train[3]]

        ValueError if an older version wrote the run.
        """
        return read_partition(self.directory)

    @property
    def title(self) -> str:
        """The run in a few words."""
        flags = self.config["experiment"]
        return f"{method_name(self.config)} on {flags['dataset']}, seed {flags['seed']}"

    def plot(self, y: str | None = None, x: str = "t") -> "Plot":
        """A matplotlib figure of a column of `evals`, that the run is judged by if none is given, over another.

            history.plot()
            history.plot("loss", "step").savefig("loss.png")

        Raises ValueError, one sentence, for a column that is not there.
        """
        from fedraa.rundir.plots import plot  # matplotlib is slow to import, and workers do without

        clock = str(self.config["experiment"]["clock"])
        return plot(self.evals, self.figures.main if y is None else y, x, title=self.title, clock=clock)

    def _repr_html_(self) -> str:
        from fedraa.rundir.plots import html

        rows = {"state": self.state, "directory": str(self.directory)}
        if (last := self._last_eval()) is not None:
            rows |= {"step": f"{last['step']:.0f}", "time": f"{last['t']:.4g}"}
            names = (*self.figures.names, "loss", "client_worst")
            rows |= {name.replace("_", " "): f"{last[name]:.4f}" for name in dict.fromkeys(names)}
        return html(self.title, rows, self.evals, self.figures.main)

    def lines(self) -> list[dict[str, Any]]:
        """Return the events of the log; InputError names the first line that is not an event."""
        return list(read_events(self.directory))

    def _last_eval(self) -> dict[str, Any] | None:
        evals = self.evals
        return None if evals.empty else dict(evals.iloc[-1])


def method_name(config: Mapping[str, Any]) -> str:
    """What a run's method is called, given by name or, as a mapping has it, as an object."""
    given = config["experiment"]["method"]
    return str(given["name"] if isinstance(given, Mapping) else given)
