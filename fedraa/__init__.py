"""One model, many unequal devices: federated learning on submodels.

    import fedraa as fl

    history = fl.run(fl.Experiment(method="fed-raa", dataset="digits", updates=200))
    history.evals.plot("t", "accuracy")

Runs:
    run              run an experiment to its end
    resume           continue an interrupted run, or extend a run
    compare          run several methods with the same settings and budget, and return a table
    tune             search the best settings of each method for a fair comparison
    replay           check a run's log against the rules of its method
    report           one page of tables and figures about runs
    check            test a custom component: is it deterministic, and does it resume and replay?
    testing          the same check for your test suite: fl.testing.check(component)
    Experiment       the settings of one run, with a field for each option of `fedraa run`
    History          the log and the results of a run, read from its directory
    Dataset          custom training and test samples
    FederatedDataset  samples that are divided among clients and read where clients train
    load_dataset     a data set by its name or file, with unscaled values
    early_exits      a model with a classifier after each block, for depthfl
    EarlyExits       the class of the models that `early_exits` returns
    load_personal_model  the personal model of a client of a run
    lora             a model with low-rank adapters; only these are trained and sent
    merged           the model before `lora`, with the trained adapters added to its weights
    method           a named method, to inspect or to change
    Method           the class of methods: four choices that together are a method

Custom components (pass a name, "package.module:Name", or an object):
    Scheduler        chooses the fragment that a client trains next
    AsyncRule        applies a client update at an asynchronous server
    ApplyResult      the result of an AsyncRule: the weight, and whether the model has a new version
    StalenessWeight  returns the weight of an update from its staleness
    Aggregator       combines the deltas of a round, for example to their mean
    Attack           changes the data or the deltas of some clients
    ServerOptimizer  takes the server's step along the combined delta of a round
    Participation    draws the clients that take part in a round
    Selection        chooses the clients that train next, by their losses, durations and participations
    SelectionContext  the observations that a Selection receives
    SubmodelPolicy   chooses the part of the model that a client trains in a round
    GradientTransform  changes the gradient in a local step
    LocalOptimizer   takes the local step along the gradient
    LocalAlgorithm   trains a task in its own way, for example a personal model beside the global one
    KeptBuffer       values that each client keeps between its tasks
    Mean             the server's update of a method in rounds, with an aggregator, an optimizer and a RoundState
    AsyncSchedule    the schedule of a method that applies each client update at once
    RoundState       state of a method in rounds besides the model, at the server or for each client
    Compressor       compresses the deltas that clients send
    Partitioner      assigns every sample to a client
    Rows             samples that are read by row, from any storage
    Transform        changes samples before training
    Objective        computes the loss and its metrics
    Classification   the objective for one class per sample, from which a custom loss for labels derives
    MultiLabel       the objective for several labels per sample
    Regression       the objective for numbers
    NextToken        the objective for a token at every position
    Segmentation     the objective for a class of every pixel
    Metric           computes a further metric in every evaluation
    Callback         receives events of a run, and may end it
    tracing_rules    adds rules for torch functions that the model tracer does not know

Built-in callbacks:
    EarlyStopping    ends a run that no longer improves
    CSV              adds each evaluation to a CSV file during the run
    TensorBoard      writes each evaluation for TensorBoard
    WandB            sends each evaluation to Weights & Biases
    MLflow           sends each evaluation to MLflow
    ProgressBar      shows the progress of a run, in a terminal or a notebook

Exceptions and warnings, besides the ValueError for a wrong setting:
    RunFailed        a run cannot continue
    Interrupted      a run was stopped, by Ctrl-C, SIGTERM or SIGHUP, with a checkpoint to resume from
    Inconsistent     a log does not follow the rules of its method
    PromiseBroken    a custom component failed a check of `fedraa check`
    RunWarning       a warning: the run works, but its settings are probably a mistake

See `help(fedraa.run)`, `help(fedraa.Experiment)` and so on for details, and `fedraa --help` for the command line.
"""

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING

from fedraa.engine.torchvision_operators import Finder as _Finder

if TYPE_CHECKING:
    from fedraa import testing
    from fedraa.aggregation.aggregator import Aggregator
    from fedraa.api import compare, method, replay, report, resume, run
    from fedraa.attacks.attack import Attack
    from fedraa.callbacks import CSV, Callback, EarlyStopping, MLflow, ProgressBar, TensorBoard, WandB
    from fedraa.client.compression import Compressor
    from fedraa.client.gradient_transforms import GradientTransform
    from fedraa.client.kept_buffer import KeptBuffer
    from fedraa.client.local_algorithm import LocalAlgorithm
    from fedraa.client.local_optimizer import LocalOptimizer
    from fedraa.composition.method import Method
    from fedraa.config.experiment import Experiment
    from fedraa.data.dataset import Dataset
    from fedraa.data.load import load_dataset
    from fedraa.data.partition import Partitioner
    from fedraa.data.sources.federated_dataset import FederatedDataset
    from fedraa.data.sources.rows import Rows
    from fedraa.data.transforms import Transform
    from fedraa.engine.personal_model import load_personal_model
    from fedraa.errors import Inconsistent, Interrupted, PromiseBroken, RunFailed, RunWarning
    from fedraa.evaluation.metrics import Metric
    from fedraa.ledger.participation import Participation, Selection
    from fedraa.ledger.selection_context import SelectionContext
    from fedraa.models.exits import EarlyExits, early_exits
    from fedraa.models.lora import lora, merged
    from fedraa.objectives.builtin import Classification, MultiLabel, NextToken, Regression, Segmentation
    from fedraa.objectives.objective import Objective
    from fedraa.rundir.history import History
    from fedraa.server.async_rule import ApplyResult, AsyncRule
    from fedraa.server.optimizers import ServerOptimizer
    from fedraa.server.round_state import RoundState
    from fedraa.server.round_update import Mean
    from fedraa.server.schedule import AsyncSchedule
    from fedraa.server.staleness import StalenessWeight
    from fedraa.submodels.policies.policy import SubmodelPolicy
    from fedraa.submodels.tracing.rules import tracing_rules
    from fedraa.testing.kit import check
    from fedraa.tuning.tuner import tune
    from schedulers import Scheduler

__all__ = [
    "CSV",
    "Aggregator",
    "ApplyResult",
    "AsyncRule",
    "AsyncSchedule",
    "Attack",
    "Callback",
    "Classification",
    "Compressor",
    "Dataset",
    "EarlyExits",
    "EarlyStopping",
    "Experiment",
    "FederatedDataset",
    "GradientTransform",
    "History",
    "Inconsistent",
    "Interrupted",
    "KeptBuffer",
    "LocalAlgorithm",
    "LocalOptimizer",
    "MLflow",
    "Mean",
    "Method",
    "Metric",
    "MultiLabel",
    "NextToken",
    "Objective",
    "Participation",
    "Partitioner",
    "ProgressBar",
    "PromiseBroken",
    "Regression",
    "RoundState",
    "Rows",
    "RunFailed",
    "RunWarning",
    "Scheduler",
    "Segmentation",
    "Selection",
    "SelectionContext",
    "ServerOptimizer",
    "StalenessWeight",
    "SubmodelPolicy",
    "TensorBoard",
    "Transform",
    "WandB",
    "check",
    "compare",
    "early_exits",
    "load_dataset",
    "load_personal_model",
    "lora",
    "merged",
    "method",
    "replay",
    "report",
    "resume",
    "run",
    "testing",
    "tracing_rules",
    "tune",
]

# The module of every public name. A test compares the names with `__all__` and the docstring.
_HOMES = {
    "Aggregator": "fedraa.aggregation.aggregator",
    "AsyncRule": "fedraa.server.async_rule",
    "AsyncSchedule": "fedraa.server.schedule",
    "Attack": "fedraa.attacks.attack",
    "CSV": "fedraa.callbacks",
    "Callback": "fedraa.callbacks",
    "Classification": "fedraa.objectives.builtin",
    "Compressor": "fedraa.client.compression",
    "Dataset": "fedraa.data.dataset",
    "EarlyExits": "fedraa.models.exits",
    "EarlyStopping": "fedraa.callbacks",
    "Experiment": "fedraa.config.experiment",
    "FederatedDataset": "fedraa.data.sources.federated_dataset",
    "History": "fedraa.rundir.history",
    "Inconsistent": "fedraa.errors",
    "Interrupted": "fedraa.errors",
    "GradientTransform": "fedraa.client.gradient_transforms",
    "KeptBuffer": "fedraa.client.kept_buffer",
    "LocalAlgorithm": "fedraa.client.local_algorithm",
    "LocalOptimizer": "fedraa.client.local_optimizer",
    "MLflow": "fedraa.callbacks",
    "Mean": "fedraa.server.round_update",
    "Method": "fedraa.composition.method",
    "Metric": "fedraa.evaluation.metrics",
    "MultiLabel": "fedraa.objectives.builtin",
    "NextToken": "fedraa.objectives.builtin",
    "Objective": "fedraa.objectives.objective",
    "Participation": "fedraa.ledger.participation",
    "Partitioner": "fedraa.data.partition",
    "ProgressBar": "fedraa.callbacks",
    "PromiseBroken": "fedraa.errors",
    "Regression": "fedraa.objectives.builtin",
    "RoundState": "fedraa.server.round_state",
    "Rows": "fedraa.data.sources.rows",
    "RunFailed": "fedraa.errors",
    "RunWarning": "fedraa.errors",
    "Scheduler": "schedulers",
    "Segmentation": "fedraa.objectives.builtin",
    "Selection": "fedraa.ledger.participation",
    "SelectionContext": "fedraa.ledger.selection_context",
    "ServerOptimizer": "fedraa.server.optimizers",
    "StalenessWeight": "fedraa.server.staleness",
    "SubmodelPolicy": "fedraa.submodels.policies.policy",
    "ApplyResult": "fedraa.server.async_rule",
    "TensorBoard": "fedraa.callbacks",
    "Transform": "fedraa.data.transforms",
    "WandB": "fedraa.callbacks",
    "check": "fedraa.testing.kit",
    "compare": "fedraa.api",
    "early_exits": "fedraa.models.exits",
    "load_dataset": "fedraa.data.load",
    "load_personal_model": "fedraa.engine.personal_model",
    "lora": "fedraa.models.lora",
    "merged": "fedraa.models.lora",
    "method": "fedraa.api",
    "replay": "fedraa.api",
    "report": "fedraa.api",
    "resume": "fedraa.api",
    "run": "fedraa.api",
    "testing": "fedraa.testing",
    "tracing_rules": "fedraa.submodels.tracing.rules",
    "tune": "fedraa.tuning.tuner",
}


class _Package(ModuleType):
    """The module class of `fedraa`.

    Python would replace the functions `fedraa.replay` and `fedraa.report` when it imports the subpackages with these
    names. This class keeps the functions.
    """

    def __setattr__(self, name: str, value: object) -> None:
        if not (name in _HOMES and isinstance(value, ModuleType)):
            super().__setattr__(name, value)

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle the module by its name. Ray may pickle an object of the user that refers to the module."""
        return import_module, (self.__name__,)


sys.modules[__name__].__class__ = _Package
sys.meta_path.insert(0, _Finder())


def __getattr__(name: str) -> object:
    """Import a public name on first use, so that `fedraa --help` need not import torch and pandas."""
    if name not in _HOMES:
        raise AttributeError(f"module 'fedraa' has no attribute {name!r}")
    home = import_module(_HOMES[name])
    return home if home.__name__ == f"{__name__}.{name}" else getattr(home, name)


def __dir__() -> list[str]:
    return __all__
