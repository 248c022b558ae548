"""One model, many unequal devices: federated learning on submodels.

    import fedraa as fl

    history = fl.run(fl.Experiment(method="fed-raa", dataset="digits", updates=200))
    history.evals.plot("t", "accuracy")

Runs:
    run              run an experiment to its end
    resume           go on with a run that was interrupted, or for longer
    compare          several methods under the same flags and budget, as a table
    tune             the values with which each method does best, for such a comparison
    replay           check a run's log against the rules of its method
    report           one page of tables and figures about runs
    check            whether a part of your own keeps the promises that runs are built on
    testing          the same for your tests: fl.testing.check(part)
    Experiment       what one run is: every flag of the command line
    History          a run, read from its directory
    Dataset          training and test samples of your own
    FederatedDataset  samples with clients of their own, read where they are trained
    load_dataset     a data set by its name or file, with the values that it holds
    lora             a model with low-rank adapters, which alone are trained and sent
    merged           the plain model again, what adapters learnt added to its weights
    method           a named method, to look at or to change
    Method           a method: the choices of which it is made

Parts of your own (give a name, "package.module:Name", or an object):
    Scheduler        who trains which fragment
    AsyncRule        what becomes of an arrival
    Taken            what an AsyncRule says of one: its weight, and whether the model is a new version
    StalenessWeight  how an arrival's weight falls with its staleness
    Aggregator       what becomes of a round's deltas
    ServerOptimizer  the server's step along them
    Participation    who takes part in a round
    SubmodelPolicy   which part of the model a client trains in a round
    LocalTerm        what bends the gradient of a local step
    Compressor       how clients send their deltas back
    Partitioner      which client owns which sample
    Rows             samples that are read by row, wherever they are
    Transform        what becomes of samples before they are trained on
    Objective        what is learnt: the loss and its figures
    Metric           a further figure of every evaluation
    Callback         who is told what happens, and may end a run
    tracing_rules    what torch functions that are new to tracing do to the units of a model

Callbacks that are there:
    EarlyStopping    ends a run that no longer gets better
    CSV              evaluations, live, as a table
    TensorBoard      evaluations, live, for TensorBoard
    WandB            evaluations, live, to Weights & Biases
    ProgressBar      how far a run is, in a terminal or a notebook

What may be raised, besides the ValueError of a mistake:
    RunFailed        a run cannot go on
    Interrupted      a run was stopped, by Ctrl-C or SIGTERM, with a checkpoint to go on from
    Inconsistent     a log does not follow the rules of its method
    PromiseBroken    a part does not keep what runs are built on
    RunWarning       a warning: a run can go on, but is probably not what is wanted

`help(fedraa.run)`, `help(fedraa.Experiment)` and so on tell more; `fedraa --help` is the command line.
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
    from fedraa.callbacks import CSV, Callback, EarlyStopping, ProgressBar, TensorBoard, WandB
    from fedraa.client.compression import Compressor
    from fedraa.client.gradient_transforms import LocalTerm
    from fedraa.composition.method import Method
    from fedraa.config.experiment import Experiment
    from fedraa.data.dataset import Dataset
    from fedraa.data.load import load_dataset
    from fedraa.data.partition import Partitioner
    from fedraa.data.sources.federated_dataset import FederatedDataset
    from fedraa.data.sources.rows import Rows
    from fedraa.data.transforms import Transform
    from fedraa.errors import Inconsistent, Interrupted, PromiseBroken, RunFailed, RunWarning
    from fedraa.evaluation.metrics import Metric
    from fedraa.ledger.participation import Participation
    from fedraa.models.lora import lora, merged
    from fedraa.objectives.objective import Objective
    from fedraa.rundir.history import History
    from fedraa.server.async_rule import AsyncRule, Taken
    from fedraa.server.optimizers import ServerOptimizer
    from fedraa.server.staleness import StalenessWeight
    from fedraa.submodels.policies.policy import SubmodelPolicy
    from fedraa.submodels.tracing.rules import tracing_rules
    from fedraa.testing.kit import check
    from fedraa.tuning.tuner import tune
    from schedulers import Scheduler

__all__ = [
    "CSV",
    "Aggregator",
    "AsyncRule",
    "Callback",
    "Compressor",
    "Dataset",
    "EarlyStopping",
    "Experiment",
    "FederatedDataset",
    "History",
    "Inconsistent",
    "Interrupted",
    "LocalTerm",
    "Method",
    "Metric",
    "Objective",
    "Participation",
    "Partitioner",
    "ProgressBar",
    "PromiseBroken",
    "Rows",
    "RunFailed",
    "RunWarning",
    "Scheduler",
    "ServerOptimizer",
    "StalenessWeight",
    "SubmodelPolicy",
    "Taken",
    "TensorBoard",
    "Transform",
    "WandB",
    "check",
    "compare",
    "load_dataset",
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

# Where every public name is made; a test compares this with `__all__`, the imports and the text above.
_HOMES = {
    "Aggregator": "fedraa.aggregation.aggregator",
    "AsyncRule": "fedraa.server.async_rule",
    "CSV": "fedraa.callbacks",
    "Callback": "fedraa.callbacks",
    "Compressor": "fedraa.client.compression",
    "Dataset": "fedraa.data.dataset",
    "EarlyStopping": "fedraa.callbacks",
    "Experiment": "fedraa.config.experiment",
    "FederatedDataset": "fedraa.data.sources.federated_dataset",
    "History": "fedraa.rundir.history",
    "Inconsistent": "fedraa.errors",
    "Interrupted": "fedraa.errors",
    "LocalTerm": "fedraa.client.gradient_transforms",
    "Method": "fedraa.composition.method",
    "Metric": "fedraa.evaluation.metrics",
    "Objective": "fedraa.objectives.objective",
    "Participation": "fedraa.ledger.participation",
    "Partitioner": "fedraa.data.partition",
    "ProgressBar": "fedraa.callbacks",
    "PromiseBroken": "fedraa.errors",
    "Rows": "fedraa.data.sources.rows",
    "RunFailed": "fedraa.errors",
    "RunWarning": "fedraa.errors",
    "Scheduler": "schedulers",
    "ServerOptimizer": "fedraa.server.optimizers",
    "StalenessWeight": "fedraa.server.staleness",
    "SubmodelPolicy": "fedraa.submodels.policies.policy",
    "Taken": "fedraa.server.async_rule",
    "TensorBoard": "fedraa.callbacks",
    "Transform": "fedraa.data.transforms",
    "WandB": "fedraa.callbacks",
    "check": "fedraa.testing.kit",
    "compare": "fedraa.api",
    "load_dataset": "fedraa.data.load",
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
    """The functions `replay` and `report` are public, not the packages of these names: an import sets those here."""

    def __setattr__(self, name: str, value: object) -> None:
        if not (name in _HOMES and isinstance(value, ModuleType)):
            super().__setattr__(name, value)

    def __reduce__(self) -> tuple[object, ...]:
        """By name: parts that are made in a script refer to this module, and travel to Ray with what they refer to."""
        return import_module, (self.__name__,)


sys.modules[__name__].__class__ = _Package
sys.meta_path.insert(0, _Finder())


def __getattr__(name: str) -> object:
    """Public names load on first use: torch and pandas take seconds that `fedraa --help` need not wait for."""
    if name not in _HOMES:
        raise AttributeError(f"module 'fedraa' has no attribute {name!r}")
    home = import_module(_HOMES[name])
    return home if home.__name__ == f"{__name__}.{name}" else getattr(home, name)


def __dir__() -> list[str]:
    return __all__
