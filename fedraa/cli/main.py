"""The commands of the command line. Each class is a command, and its fields are the options."""

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from itertools import chain
from pathlib import Path
from typing import Annotated, Literal

import tyro

from fedraa.cli.doctor import Doctor
from fedraa.cli.exit_code import exit_code, interrupt_on_termination, warnings_in_sentences
from fedraa.cli.help import HELP_FLAGS, show_overview
from fedraa.cli.operations import Fetch, Status, Stop, Submit
from fedraa.cli.parse import Command, parse_command
from fedraa.cli.resume import Resume
from fedraa.cli.status_line import LOADING, add_progress_bar, show_status_line
from fedraa.config.experiment import Experiment
from fedraa.config.processes import cluster_address, count_cores
from fedraa.config.sections import ClusterOptions
from fedraa.config.usual_names import suggest_name
from fedraa.errors import InputError, no_effect_error
from fedraa.quick_imports import quick_imports
from fedraa.waiting import Waiting

DESCRIPTION = "Federated learning of model fragments and submodels on unequal devices."


@dataclass(frozen=True)
class Run:
    """Run an experiment and write its run directory."""

    experiment: tyro.conf.OmitArgPrefixes[Experiment]
    callbacks: tuple[str, ...] = ()
    """Callbacks: early-stopping(patience=3), csv(path='evals.csv'), tensorboard, wandb(project='NAME'), mlflow, or a
    custom one as package.module:Name (default: none)."""
    restarts: int = 0
    """Maximum number of times that the run resumes on a new local cluster after Ray failed."""
    config: Path | None = None
    """TOML file of options, such as local_epochs = 5; options on the command line override it (default: none)."""

    def __call__(self) -> None:
        with (
            show_status_line(quiet=self.experiment.quiet) as waiting,
            _prestart_ray(self.experiment, self.experiment.client_count, waiting),
        ):
            with quick_imports():
                from fedraa.api import run
                from fedraa.cli.display import print_run

            callbacks = add_progress_bar(self.callbacks, waiting)
            history = run(self.experiment, callbacks=callbacks, restarts=self.restarts)
        if not self.experiment.quiet:
            print_run(history)


@dataclass(frozen=True)
class Compare:
    """Run several methods with the same options and limits, and compare them in a table."""

    methods: tyro.conf.Positional[tuple[str, ...]]
    """Names of methods from `fedraa methods`, crossings a+b, or custom ones as package.module:NAME."""
    experiment: tyro.conf.OmitArgPrefixes[Experiment]
    seeds: tuple[int, ...] = (0,)
    """Random seeds, with one run per method and seed."""
    terms: Literal["equal", "paper", "tuned"] | None = None
    """Source of settings that no option sets: equal for all methods, the paper of each method, or the file of --tuned
    (default: the defaults of each method)."""
    tuned: Path | None = None
    """File that `fedraa tune` wrote, for --terms tuned (default: none)."""
    config: Path | None = None
    """TOML file of options, such as local_epochs = 5; options on the command line override it (default: none)."""

    def __call__(self) -> None:
        with show_status_line(quiet=self.experiment.quiet) as waiting:
            with quick_imports():
                from fedraa.cli.compare import run_comparison

            run_comparison(self.methods, self.seeds, self.experiment, self.terms, self.tuned, waiting)


@dataclass(frozen=True)
class Tune:
    """Find the best hyperparameters of each method on validation samples."""

    methods: tyro.conf.Positional[tuple[str, ...]]
    """Names of methods from `fedraa methods`, crossings a+b, or custom ones as package.module:NAME."""
    experiment: tyro.conf.OmitArgPrefixes[Experiment]
    space: tuple[str, ...] = ()
    """Values to try, as NAME=LOW:HIGH, NAME=LOW:HIGH:log or NAME=VALUE,VALUE,..., such as lr=0.01:1:log
    local_steps=5,20,80 (required)."""
    trials: int = 12
    """Number of trials of each method."""
    jobs: int = 1
    """Number of trials at the same time, in processes or on CPUs of the cluster at --address; only 1 gives
    repeatable results."""
    config: Path | None = None
    """TOML file of options, such as local_epochs = 5; options on the command line override it (default: none)."""

    def __call__(self) -> None:
        with show_status_line(quiet=self.experiment.quiet) as waiting:
            with quick_imports():
                from fedraa.cli.tune import run_tuning

            run_tuning(self.methods, self.space, self.trials, self.experiment, self.jobs, waiting)


@dataclass(frozen=True)
class Methods:
    """List all methods, or show one method, or the custom components of a module."""

    names: tyro.conf.Positional[tuple[str, ...]] = ()
    """Methods to show with all their settings, or modules such as my_ext with components to list (default: a list of
    all methods)."""
    json: bool = False
    """Print JSON instead of a table."""

    def __call__(self) -> None:
        with quick_imports():
            from fedraa.cli.methods import show_methods

        show_methods(self.names, as_json=self.json)


@dataclass(frozen=True)
class Plan:
    """Show the cost of a run before it starts: task costs, delay bound, memory and duration."""

    experiment: tyro.conf.OmitArgPrefixes[Experiment]
    data: Path | None = None
    """Folder for clients.png, a picture of the data partition, which is also printed as a table (default: none)."""
    epsilon: float | None = None
    """Epsilon of differential privacy for which the necessary noise is printed; needs --privacy (default: none)."""
    nodes: int | None = None
    """Nodes of a cluster, for which memory and traffic are printed; needs --engine ray (default: none)."""
    config: Path | None = None
    """TOML file of options, such as local_epochs = 5; options on the command line override it (default: none)."""

    def __call__(self) -> None:
        with show_status_line() as waiting:
            from fedraa.cli.plan import show_plan

            show_plan(self.experiment, self.data, waiting, self.epsilon, nodes=self.nodes)


@dataclass(frozen=True)
class Replay:
    """Check, without training, that the log of a run follows the rules of the run's method."""

    run: tyro.conf.Positional[Path]
    """Run directory."""

    def __call__(self) -> None:
        with show_status_line() as waiting:
            from fedraa.cli.console import print_line
            from fedraa.replay.replay import replay

            assert waiting is not None
            waiting.say(f"replaying {self.run}")
            checked = replay(self.run)
        print_line(checked)


@dataclass(frozen=True)
class Report:
    """Write a page of tables and plots about runs, with CSV, LaTeX and PDF files."""

    runs: tyro.conf.Positional[tuple[Path, ...]]
    """Run directories, or folders of run directories."""
    out: Path = Path("report.html")
    """HTML page to write; its CSV, LaTeX and PDF files are written to the folder NAME_files beside it."""
    theme: Literal["auto", "light", "dark"] = "auto"
    """Colours of the page; auto follows the setting of the reader's browser."""
    landscape: bool = False
    """Also compute the loss around every final model, and its sharpness, from the data set."""
    trust: bool = False
    """Import the custom components that the run directories name, for --landscape."""
    tensorboard: Path | None = None
    """Folder to which the evaluations are also written for TensorBoard (default: none)."""
    wandb: str | None = None
    """Project of Weights & Biases to which the evaluations are also sent (default: none)."""

    def __call__(self) -> None:
        if self.trust and not self.landscape:
            raise no_effect_error("trust", True, "no --landscape", "give --landscape, or leave it out")
        with show_status_line() as waiting:
            from fedraa.cli.console import print_line, printing_results
            from fedraa.report import report, to_tensorboard, to_wandb

            assert waiting is not None
            if self.tensorboard is not None:
                to_tensorboard(self.runs, self.tensorboard)
            if self.wandb is not None:
                to_wandb(self.runs, self.wandb)
            waiting.say(f"writing {self.out}")
            folder = report(self.runs, self.out, theme=self.theme, landscape=self.landscape, trust=self.trust)
        with printing_results("the report", self.out):
            print_line(f"the report is {self.out}; tables and plots for papers are in {folder}")


@dataclass(frozen=True)
class Board:
    """Serve a live page of the runs in a folder: curves, timelines and comparison."""

    folder: tyro.conf.Positional[Path] = Path("runs")
    """Folder with run directories at any depth."""
    port: int = 0
    """Port of the page on 127.0.0.1; 0 takes any free port."""

    def __call__(self) -> None:
        from fedraa.cli.board import serve_board

        serve_board(self.folder, self.port)


@dataclass(frozen=True)
class Profile:
    """Show the real time that a run spent on training, waiting, sending and evaluating."""

    run: tyro.conf.Positional[Path]
    """Run directory."""

    def __call__(self) -> None:
        from fedraa.cli.display import print_profile
        from fedraa.rundir.profile import read_profile

        print_profile(read_profile(self.run))


@dataclass(frozen=True)
class Check:
    """Check a custom component or method: same results with the same seed, exact resume."""

    component: tyro.conf.Positional[str]
    """Component or method as package.module:Name, or with values as package.module:Name(share=0.1)."""
    as_: Annotated[str | None, tyro.conf.arg(name="as")] = None
    """Kind of the component: staleness, partitioner, metric, ...; needed for a function (default: by its class)."""
    ray: bool = False
    """Also run the component on Ray, with one and with two workers."""

    def __call__(self) -> None:
        with show_status_line() as waiting:
            from fedraa.cli.console import print_line
            from fedraa.errors import PromiseBroken
            from fedraa.numbers import format_count

            with quick_imports():
                from fedraa.testing.kit import check

            assert waiting is not None
            waiting.say(f"checking {self.component} in small experiments")
            findings = check(self.component, as_=self.as_, ray=self.ray)
        print_line(repr(findings))
        if not findings.held:
            count = len(findings.failures)
            raise PromiseBroken(findings.part, f"it fails {format_count(count, 'check')}")


@dataclass(frozen=True)
class New:
    """Create the folder of a study: a configuration, custom components, a test and a README."""

    folder: tyro.conf.Positional[Path]
    """Folder to create."""

    def __call__(self) -> None:
        from fedraa.cli.console import print_line
        from fedraa.cli.new import write_study

        written = write_study(self.folder)
        print_line(f"{self.folder} has {', '.join(path.name for path in written)}; read its README.md first")


COMMAND_GROUPS: dict[str, dict[str, Callable[..., Command]]] = {
    "Runs": {"run": Run, "resume": Resume, "compare": Compare, "tune": Tune, "plan": Plan},
    "Results": {"report": Report, "board": Board, "replay": Replay, "profile": Profile},
    "Methods and components": {"methods": Methods, "check": Check, "new": New},
    "Running processes and clusters": {"status": Status, "stop": Stop, "submit": Submit, "fetch": Fetch},
    "Installation": {"doctor": Doctor},
}
COMMANDS = dict(chain.from_iterable(group.items() for group in COMMAND_GROUPS.values()))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command in the arguments, by default those of the process, and return the exit code.

    The current directory is added to the import path, so that custom components in it can be imported.
    """
    if arguments is None:
        arguments = sys.argv[1:]
    return exit_code(lambda: _run_command(arguments))


def _run_command(arguments: Sequence[str]) -> None:
    try:
        folder = os.getcwd()
    except FileNotFoundError:
        raise InputError("folder", "the current folder was deleted", hint="change to another one: cd") from None
    if folder not in sys.path:
        sys.path.insert(0, folder)
    if list(arguments) in (["--version"], ["-V"]):
        sys.stdout.write(f"fedraa {version('fedraa')}\n")
        return
    if len(arguments) == 1 and arguments[0] in HELP_FLAGS:
        show_overview(DESCRIPTION, COMMAND_GROUPS)
        return
    with interrupt_on_termination(), warnings_in_sentences():
        _parse_arguments(arguments)()


@contextmanager
def _prestart_ray(options: ClusterOptions, clients: int, waiting: Waiting | None) -> Iterator[None]:
    """Start a private Ray cluster, if the run needs one, while the block imports PyTorch."""
    # A cluster for more workers than cores starts later, after the check of the memory of all workers.
    cores = count_cores(options, clients)
    if options.engine == "local" or cluster_address(options) is not None or cores > (os.cpu_count() or 1):
        yield
        return
    if waiting is not None:
        waiting.say("starting Ray")
    from actors.cluster.own_cluster import prestart_cluster

    with prestart_cluster(cores):
        if waiting is not None:
            waiting.say(LOADING)
        yield


def _parse_arguments(arguments: Sequence[str]) -> Command:
    command = parse_command(COMMANDS, arguments, DESCRIPTION)
    if isinstance(command, Submit):
        _check_submitted(command.command)
    return command


def _check_submitted(words: Sequence[str]) -> None:
    """Raise InputError unless the words of `submit` begin with a command."""
    if not words:
        hint = "give it after --, as in fedraa submit -- run --out /data/runs/job"
        raise InputError("command", "it is missing", hint=hint)
    if words[0] not in COMMANDS:
        hint = suggest_name(words[0], list(COMMANDS)) or "see fedraa --help"
        raise InputError(words[0], "there is no such command of fedraa", hint=hint)


if __name__ == "__main__":
    sys.exit(main())
