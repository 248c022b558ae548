"""One model, many unequal devices: federated learning on submodels.

    import fedraa as fl

    history = fl.run(fl.Experiment(method="fed-raa", dataset="digits", updates=200))
    history.evals.plot("t", "accuracy")

Runs:
    run              run an experiment to its end
    resume           go on with a run that was interrupted, or for longer
    compare          several methods under the same flags and budget, as a table
    replay           check a run's log against the rules of its method
    report           one page of tables and figures about runs
    Experiment       what one run is: every flag of the command line
    History          a run, read from its directory
    Dataset          training and test samples of your own
    method           a named method, to look at or to change
    Method           a method: the choices of which it is made

Parts of your own (give a name, "package.module:Name", or an object):
    Scheduler        who trains which fragment
    Aggregator       the mean of a round's updates
    ServerOptimizer  the server's step along that mean
    Participation    who takes part in a round
    Compressor       how clients send their updates back

`help(fedraa.run)`, `help(fedraa.Experiment)` and so on tell more; `fedraa --help` is the command line.
"""

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fedraa.api import compare, method, replay, report, resume, run
    from fedraa.client.terms.compression import Compressor
    from fedraa.config.experiment import Experiment
    from fedraa.data.dataset import Dataset
    from fedraa.methods.catalog import Method
    from fedraa.rundir.history import History
    from fedraa.server.aggregation.aggregate import Aggregator
    from fedraa.server.optimizers import ServerOptimizer
    from fedraa.server.participation import Participation
    from schedulers import Scheduler

__all__ = [
    "Aggregator",
    "Compressor",
    "Dataset",
    "Experiment",
    "History",
    "Method",
    "Participation",
    "Scheduler",
    "ServerOptimizer",
    "compare",
    "method",
    "replay",
    "report",
    "resume",
    "run",
]

# Where every public name is made; a test compares this with `__all__`, the imports and the text above.
_HOMES = {
    "Aggregator": "fedraa.server.aggregation.aggregate",
    "Compressor": "fedraa.client.terms.compression",
    "Dataset": "fedraa.data.dataset",
    "Experiment": "fedraa.config.experiment",
    "History": "fedraa.rundir.history",
    "Method": "fedraa.methods.catalog",
    "Participation": "fedraa.server.participation",
    "Scheduler": "schedulers",
    "ServerOptimizer": "fedraa.server.optimizers",
    "compare": "fedraa.api",
    "method": "fedraa.api",
    "replay": "fedraa.api",
    "report": "fedraa.api",
    "resume": "fedraa.api",
    "run": "fedraa.api",
}


class _Package(ModuleType):
    """The functions `replay` and `report` are public, not the packages of these names: an import sets those here."""

    def __setattr__(self, name: str, value: object) -> None:
        if not (name in _HOMES and isinstance(value, ModuleType)):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package


def __getattr__(name: str) -> object:
    """Public names load on first use: torch and pandas take seconds that `fedraa --help` need not wait for."""
    if name not in _HOMES:
        raise AttributeError(f"module 'fedraa' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return __all__
