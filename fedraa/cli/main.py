"""The command line: typed flags from the typed configuration, one sentence for every mistake."""

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Literal

import tyro

from fedraa.cli.exit_code import exit_code, terminable, warnings_in_sentences
from fedraa.cli.operations import Fetch, Status, Stop, Submit
from fedraa.cli.parse import Command, parse
from fedraa.cli.waited import LOADING, waited, with_bar
from fedraa.config.experiment import Experiment
from fedraa.config.processes import cluster_address, cores
from fedraa.config.sections import ClusterOptions, StopOptions
from fedraa.errors import InputError
from fedraa.waiting import Waiting


@dataclass(frozen=True)
class Run:
    """Run one experiment and write its run directory."""

    experiment: tyro.conf.OmitArgPrefixes[Experiment]
    callbacks: tuple[str, ...] = ()
    """Callbacks, which receive the events and may end the run: early-stopping(patience=3), csv(path='evals.csv'),
    tensorboard, wandb, or a custom one as package.module:Name. Runs do not record them: give them again on resume."""
    restarts: int = 0
    """Number of times that the run resumes on a new local cluster after Ray itself failed."""
    config: Path | None = None
    """A .toml file of flags, local_epochs = 5 for --local-epochs 5; flags given here win."""

    def __call__(self) -> None:
        with (
            waited(quiet=self.experiment.quiet) as waiting,
            _ray_begins(self.experiment, self.experiment.clients, waiting),
        ):
            from fedraa.api import run
            from fedraa.cli.display import closing_table, say_next

            callbacks = with_bar(self.callbacks, waiting)
            history = run(self.experiment, callbacks=callbacks, restarts=self.restarts)
        if not self.experiment.quiet:
            closing_table(history)
            say_next(history.directory)


@dataclass(frozen=True)
class Resume:
    """Go on with an interrupted or killed run, from its last checkpoint; or with any run for longer, by a limit."""

    run: tyro.conf.Positional[Path]
    """A run directory."""
    updates: int | None = None
    """End after so many server updates instead, more than before."""
    rounds: int | None = None
    """End after so many rounds instead, more than before."""
    time: float | None = None
    """End at this time on the run's clock instead, later than before."""
    target_accuracy: float | None = None
    """End when the test accuracy reaches this instead, a higher one than before."""
    target: str | None = None
    """End when this metric reaches a new and better value: METRIC:VALUE."""
    quiet: bool = False
    """No progress, no table."""
    callbacks: tuple[str, ...] = ()
    """Callbacks, which receive the events and may end the run: early-stopping(patience=3), csv(path='evals.csv'),
    tensorboard, wandb, or a custom one as package.module:Name. They first receive the earlier events of the run."""
    trust: bool = False
    """Import the code that the run directory names, where it names any: a model or parts of somebody's own."""
    restarts: int = 0
    """Number of times that the run resumes on a new local cluster after Ray itself failed."""

    def __call__(self) -> None:
        limits = {name: value for name in StopOptions.model_fields if (value := getattr(self, name)) is not None}
        with waited(quiet=self.quiet) as waiting:
            from fedraa.api import resume
            from fedraa.cli.display import closing_table, say_next

            callbacks = with_bar(self.callbacks, waiting)
            history = resume(
                self.run,
                callbacks=callbacks,
                trust=self.trust,
                restarts=self.restarts,
                quiet=self.quiet,
                **limits,
            )
        if not self.quiet:
            closing_table(history)
            say_next(history.directory)


@dataclass(frozen=True)
class Compare:
    """Run several methods under the same flags and budget: one table, one plot."""

    methods: tyro.conf.Positional[tuple[str, ...]]
    """Names of methods, see `fedraa methods`."""
    experiment: tyro.conf.OmitArgPrefixes[Experiment]
    seeds: tuple[int, ...] = (0,)
    """One run per method and seed."""
    terms: Literal["equal", "paper", "tuned"] | None = None
    """What is not given by flags: equal (one momentum, weighting, weight decay, clipping, local work and participation
    for all), paper (what each method's states) or tuned (from --tuned); default: what each method has here."""
    tuned: Path | None = None
    """The file that `fedraa tune` wrote, for --terms tuned."""
    config: Path | None = None
    """A .toml file of flags, local_epochs = 5 for --local-epochs 5; flags given here win."""

    def __call__(self) -> None:
        with waited(quiet=self.experiment.quiet) as waiting:
            from fedraa.cli.compare import compare

            compare(self.methods, self.seeds, self.experiment, self.terms, self.tuned, waiting)


@dataclass(frozen=True)
class Tune:
    """Find the values with which each method does best on validation data, with as many trials for each."""

    methods: tyro.conf.Positional[tuple[str, ...]]
    """Names of methods, see `fedraa methods`, or own ones as package.module:NAME."""
    experiment: tyro.conf.OmitArgPrefixes[Experiment]
    space: tuple[str, ...] = ()
    """What is tried, NAME=LOW:HIGH, NAME=LOW:HIGH:log or NAME=VALUE,VALUE,..., such as lr=0.01:1:log
    local_steps=5,20,80."""
    trials: int = 12
    """For each method."""
    jobs: int = 1
    """Trials at a time, each in a process of its own, or on a CPU of the cluster at --address; with one, the same seed
    comes to the same."""
    config: Path | None = None
    """A .toml file of flags, local_epochs = 5 for --local-epochs 5; flags given here win."""

    def __call__(self) -> None:
        with waited(quiet=self.experiment.quiet) as waiting:
            from fedraa.cli.tune import tune

            tune(self.methods, self.space, self.trials, self.experiment, self.jobs, waiting)


@dataclass(frozen=True)
class Methods:
    """List every method with its four choices, or show every value of one method."""

    names: tyro.conf.Positional[tuple[str, ...]] = ()
    """Methods, to show each value with its path; or your modules, such as my_ext, to list their methods and components
    also."""
    json: bool = False
    """As JSON."""

    def __call__(self) -> None:
        from fedraa.cli.methods import methods

        methods(self.names, as_json=self.json)


@dataclass(frozen=True)
class Plan:
    """What a run will cost, before it is run: costs, delay bound, feasible sets, memory, time."""

    experiment: tyro.conf.OmitArgPrefixes[Experiment]
    data: Path | None = None
    """Show, too, how the samples are dealt to the clients: as a table, and as clients.png in this folder."""
    config: Path | None = None
    """A .toml file of flags, local_epochs = 5 for --local-epochs 5; flags given here win."""

    def __call__(self) -> None:
        with waited() as waiting:
            from fedraa.cli.plan import plan

            plan(self.experiment, self.data, waiting)


@dataclass(frozen=True)
class Replay:
    """Check a run's log against the rules."""

    run: tyro.conf.Positional[Path]
    """A run directory."""

    def __call__(self) -> None:
        with waited() as waiting:
            from fedraa.cli.display import say
            from fedraa.replay.replay import replay

            assert waiting is not None
            waiting.say(f"replaying {self.run}")
            checked = replay(self.run)
        say(checked)


@dataclass(frozen=True)
class Report:
    """One page of tables and figures about runs, with CSV, LaTeX and PDF beside it."""

    runs: tyro.conf.Positional[tuple[Path, ...]]
    """Run directories, or folders of them."""
    out: Path = Path("report.html")
    """The page to write; the files go into NAME_files beside it."""
    theme: Literal["auto", "light", "dark"] = "auto"
    """auto is light or dark as the reader's screen is."""
    landscape: bool = False
    """Also the loss around every final model, and its sharpness; needs the dataset."""
    trust: bool = False
    """For that, import the code that the run directories name, where they name any."""
    tensorboard: Path | None = None
    """Also write the evaluations here for TensorBoard."""
    wandb: str | None = None
    """Also send the evaluations to this project of Weights & Biases."""

    def __call__(self) -> None:
        if self.trust and not self.landscape:
            raise InputError("trust", "it has no effect without --landscape", hint="give --landscape, or leave it out")
        with waited() as waiting:
            from fedraa.cli.display import say
            from fedraa.report import report, to_tensorboard, to_wandb

            assert waiting is not None
            if self.tensorboard is not None:
                to_tensorboard(self.runs, self.tensorboard)
            if self.wandb is not None:
                to_wandb(self.runs, self.wandb)
            waiting.say(f"writing {self.out}")
            folder = report(self.runs, self.out, theme=self.theme, landscape=self.landscape, trust=self.trust)
        say(f"{self.out}; tables and figures for papers are in {folder}")


@dataclass(frozen=True)
class Board:
    """A live page of all runs below a folder, those going on too: curves, timelines, comparison."""

    folder: tyro.conf.Positional[Path] = Path("runs")
    """A folder of run directories, or of folders of them."""
    port: int = 0
    """On 127.0.0.1; 0 takes any that is free."""

    def __call__(self) -> None:
        from fedraa.cli.board import board

        board(self.folder, self.port)


@dataclass(frozen=True)
class Profile:
    """Where a run's real time went: training, waiting, sending, mixing, evaluating."""

    run: tyro.conf.Positional[Path]
    """A run directory."""

    def __call__(self) -> None:
        from fedraa.cli.display import profile_table
        from fedraa.rundir.profile import profile

        profile_table(profile(self.run))


@dataclass(frozen=True)
class Check:
    """Prove that an own part keeps the promises that runs are built on: same bits, exact resume, memory as claimed."""

    part: tyro.conf.Positional[str]
    """The part, as package.module:Name or with values, package.module:Name(share=0.1)."""
    as_: Annotated[str | None, tyro.conf.arg(name="as")] = None
    """What kind of part it is, where that is not seen, as of a function: staleness, partitioner, metric, ..."""
    ray: bool = False
    """Also run it on Ray, with one worker and with two."""

    def __call__(self) -> None:
        with waited() as waiting:
            from fedraa.cli.display import say
            from fedraa.errors import PromiseBroken
            from fedraa.testing.kit import check

            assert waiting is not None
            waiting.say(f"checking {self.part} in small experiments")
            findings = check(self.part, as_=self.as_, ray=self.ray)
        say(repr(findings))
        if not findings.held:
            count = len(findings.failures)
            raise PromiseBroken(findings.part, f"it breaks {count} promise{'s' * (count > 1)}")


@dataclass(frozen=True)
class New:
    """A folder to start a study from: a configuration, own parts, a test and a README, all of which run."""

    folder: tyro.conf.Positional[Path]
    """The folder to make."""

    def __call__(self) -> None:
        from fedraa.cli.display import say
        from fedraa.cli.new import new

        written = new(self.folder)
        say(f"{self.folder} has {', '.join(path.name for path in written)}; begin with its README.md")


COMMANDS: dict[str, Callable[..., Command]] = {
    "run": Run,
    "resume": Resume,
    "compare": Compare,
    "tune": Tune,
    "methods": Methods,
    "plan": Plan,
    "replay": Replay,
    "report": Report,
    "board": Board,
    "check": Check,
    "new": New,
    "profile": Profile,
    "status": Status,
    "stop": Stop,
    "submit": Submit,
    "fetch": Fetch,
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command in the arguments (default: those of the process) and return the exit code.

    The current directory is added to the import path, as with `python -m fedraa`, so that user-defined components can
    be imported.
    """
    if (here := os.getcwd()) not in sys.path:
        sys.path.insert(0, here)
    return exit_code(lambda: _do(sys.argv[1:] if arguments is None else arguments))


def _do(arguments: Sequence[str]) -> None:
    if list(arguments) in (["--version"], ["-V"]):
        sys.stdout.write(f"fedraa {version('fedraa')}\n")
        return
    with terminable(), warnings_in_sentences():
        _parse(arguments)()


@contextmanager
def _ray_begins(options: ClusterOptions, clients: int, waiting: Waiting | None) -> Iterator[None]:
    """Start a private cluster while this process imports PyTorch. Each takes about as long as the other."""
    if options.engine == "local" or cluster_address(options) is not None:
        yield
        return
    if waiting is not None:
        waiting.say("starting Ray")
    from actors.cluster.own_cluster import begun

    with begun(cores(options, clients)):
        if waiting is not None:
            waiting.say(LOADING)
        yield


def _parse(arguments: Sequence[str]) -> Command:
    return parse(COMMANDS, arguments, __doc__)


if __name__ == "__main__":
    sys.exit(main())
