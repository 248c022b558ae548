"""The kinds of components that fedraa can check. Each has a tester and a small experiment."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from fedraa.aggregation.aggregator import Aggregator
from fedraa.aggregation.low_rank import LowRank
from fedraa.aggregation.registry import AGGREGATOR
from fedraa.aggregation.robust.rows import RobustAggregator
from fedraa.client.compression import COMPRESSOR, Compressor, Sign
from fedraa.client.gradient_transforms import GRADIENT_TRANSFORM, GradientTransform, WeightDecay
from fedraa.client.local_optimizer import LOCAL_OPTIMIZER, LocalOptimizer
from fedraa.components.registry import ComponentRegistry
from fedraa.composition.method import Method
from fedraa.composition.registry import find_method, list_methods
from fedraa.config.experiment import Experiment
from fedraa.data import FederatedDataset, Rows, Transform
from fedraa.data.load import SOURCES
from fedraa.data.partition import PARTITIONERS, Partitioner, make_partitioner
from fedraa.data.transforms.make import TRANSFORMS, make_transform
from fedraa.evaluation.metrics import METRICS, Metric
from fedraa.ledger.participation import PARTICIPATION, Selection
from fedraa.methods.depthfl import FirstBlocks
from fedraa.objectives import Objective, make_objective
from fedraa.objectives.builtin import OBJECTIVE
from fedraa.server.async_rule import ASYNC_RULE, AsyncRule
from fedraa.server.optimizers import SERVER_OPTIMIZER, ServerOptimizer
from fedraa.server.round_update import Mean
from fedraa.server.schedule import SCHEDULER
from fedraa.server.staleness import STALENESS, StalenessWeight
from fedraa.submodels.policies import SUBMODEL, SubmodelPolicy
from fedraa.testing import client_testers, data_testers, objective_tester, server_testers
from fedraa.testing.method_tester import start_method_tester
from fedraa.testing.samples import SmallExperiment, adapter_model, make_vectors
from fedraa.testing.tester import Tester
from schedulers import Scheduler

CLIENTS = 4
SMALL: dict[str, Any] = {
    "hidden": (12,),
    "clients": CLIENTS,
    "local_steps": 2,
    "batch_size": 8,
    "engine": "local",
    "device": "cpu",
}
ARRIVALS = 24
ROUNDS = 3
Fields = Callable[[Any], dict[str, Any]]


@dataclass(frozen=True)
class Kind:
    """A kind of component, such as scheduler or aggregator, with the classes and functions that check it.

    Args:
        name: The name of the kind.
        base: The base class or classes of components of this kind.
        registry: The registry of these components.
        tester: A class or function that starts a tester. The tester calls a component with synthetic inputs.
        usual: A built-in component of this kind, for a comparison of the cost.
        fields: A function that returns the fields of an experiment with a component.
        arguments: The arguments of a plain function that can serve as a component. Empty if no function can.
        maker: A function that makes a component from a description. None uses the registry.
        experiment_maker: A function that returns the small experiment. None uses the samples of `make_vectors`.
        usual_asynchronous: A built-in component for the comparison with an asynchronous method. None uses `usual`.
    """

    name: str
    base: type | tuple[type, ...]
    registry: ComponentRegistry[Any]
    tester: Callable[..., Tester]
    usual: Any
    fields: Fields
    arguments: str = ""
    maker: Callable[[Any], Any] | None = None
    experiment_maker: Callable[[Any, Callable[[Any], Experiment]], SmallExperiment] | None = None
    usual_asynchronous: Any = None

    def make(self, description: object) -> Any:
        """Return the component that an object, a class or a text describes.

        Raises ValueError if the description fits no component.
        """
        if self.maker is not None:
            return self.maker(description)
        return self.registry.resolve(description)

    def usual_for(self, part: Any) -> Any:
        """Return a built-in component. A check compares the cost of `part` with the cost of this component."""
        if self.usual_asynchronous is not None and part.asynchronous:
            return self.usual_asynchronous
        return self.usual

    def small_experiment(self, part: Any) -> SmallExperiment:
        """Return a small experiment with this component. It has about 15 tasks."""
        if self.experiment_maker is not None:
            return self.experiment_maker(part, self.experiment)
        return SmallExperiment(self.experiment(part), make_vectors())

    def experiment(self, part: Any) -> Experiment:
        return Experiment(**SMALL | self.fields(part))


def _asynchronous_fields(field: str) -> Fields:
    return lambda part: {"method": "fed-raa", field: part, "updates": ARRIVALS // getattr(part, "per_step", 1) or 1}


def _round_fields(field: str, **more: Any) -> Fields:
    """Return a function that takes a component and returns the fields of an experiment with it.

    The component is the value of the field named `field`. The experiment has rounds, in which each client trains a
    different mask of the model. `more` are further fields.
    """
    return lambda part: {"method": "ra-fed", field: part, "rounds": ROUNDS, **more}


def _aggregator_fields(part: Any) -> dict[str, Any]:
    """Return the fields of an experiment with this aggregator.

    An aggregator of low-rank adapters needs clients with different ranks. A robust aggregator needs a minimum number
    of clients.
    """
    fields = {"method": "ra-fed", "aggregator": part, "rounds": ROUNDS}
    if isinstance(part, LowRank):
        fields["method"] = "hetlora"
    if isinstance(part, RobustAggregator):
        fields["clients"] = max(CLIENTS, part.min_clients)
    return fields


def _try_with_adapters(part: Any, experiment: Callable[[Any], Experiment]) -> SmallExperiment:
    """Return the small experiment for an aggregator or a method. If `part` averages adapters, the model has them."""
    aggregator = part
    if isinstance(part, Method) and isinstance(part.update, Mean):
        aggregator = part.update.resolve_aggregator()
    if isinstance(aggregator, LowRank):
        return SmallExperiment(experiment(part), make_vectors(), adapter_model)
    return SmallExperiment(experiment(part), make_vectors())


def _compressor_fields(part: Any) -> dict[str, Any]:
    """Return the fields of an experiment with this compressor. If it sends signs, the server uses a majority vote."""
    method = "ra-fed"
    if isinstance(part, Sign) and not part.scaled:
        method = "signsgd"
    return {"method": method, "compress": part, "rounds": ROUNDS}


def _policy_fields(part: Any) -> dict[str, Any]:
    """Return the fields of an experiment whose method has this submodel policy.

    The method is a built-in method with a policy of the same class. If no built-in method has such a policy, the
    method is fed-raa or fedavg.
    """
    base: Method = list_methods()["fed-raa" if part.scheduled else "fedavg"]
    if type(base.submodel) is not type(part):
        for method in list_methods().values():
            if type(method.submodel) is type(part) and method.asynchronous == part.scheduled:
                base = method
                break
    return _method_fields(replace(base, submodel=part))


def _method_fields(part: Any) -> dict[str, Any]:
    limit = {"updates": max(1, ARRIVALS // part.update.per_step)} if part.asynchronous else {"rounds": ROUNDS}
    model = {"model": "mlp-exits", "hidden": (12, 12)} if isinstance(part.submodel, FirstBlocks) else {}
    return {"method": part, **limit, **model}


def _list_fields(field: str) -> Fields:
    """Return a function from a component to the fields of an experiment that uses the component.

    In the experiment, the value of the field named `field` is the tuple `(component,)`.
    """
    return lambda part: {"method": "ra-fed", field: (part,), "rounds": ROUNDS}


def _data_fields(clients: int) -> dict[str, Any]:
    """Return the fields of an experiment in which at most four clients take part in a round."""
    return {"method": "ra-fed", "clients": None, "participation": f"sample:{min(4, clients)}", "rounds": ROUNDS}


def is_correct(outputs: Tensor, labels: Tensor) -> Tensor:
    """Return 1 for each correctly classified sample, otherwise 0."""
    return outputs.argmax(dim=1) == labels


_LIST = (
    Kind(
        "scheduler", Scheduler, SCHEDULER, server_testers.SchedulerTester, "gre-raa", _asynchronous_fields("scheduler")
    ),
    Kind(
        "staleness",
        StalenessWeight,
        STALENESS,
        server_testers.StalenessTester,
        "constant",
        _asynchronous_fields("staleness"),
        "(staleness)",
    ),
    Kind(
        "async-rule",
        AsyncRule,
        ASYNC_RULE,
        server_testers.AsyncRuleTester,
        "convex-mix",
        _asynchronous_fields("async_rule"),
    ),
    Kind(
        "aggregator",
        Aggregator,
        AGGREGATOR,
        server_testers.AggregatorTester,
        "covered",
        _aggregator_fields,
        experiment_maker=_try_with_adapters,
    ),
    Kind(
        "server-optimizer",
        ServerOptimizer,
        SERVER_OPTIMIZER,
        server_testers.OptimizerTester,
        "sgd",
        _round_fields("server_optimizer"),
    ),
    Kind(
        "participation",
        Selection,
        PARTICIPATION,
        server_testers.ParticipationTester,
        "all",
        _round_fields("participation", clients=12, local_steps=1),
    ),
    Kind("submodel", SubmodelPolicy, SUBMODEL, client_testers.PolicyTester, "full", _policy_fields),
    Kind(
        "gradient-transform",
        GradientTransform,
        GRADIENT_TRANSFORM,
        client_testers.TermTester,
        WeightDecay(1e-4),
        _list_fields("gradient_transforms"),
    ),
    Kind(
        "local-optimizer",
        LocalOptimizer,
        LOCAL_OPTIMIZER,
        client_testers.LocalOptimizerTester,
        "sgd",
        _round_fields("local_optimizer"),
    ),
    Kind("compressor", Compressor, COMPRESSOR, client_testers.CompressorTester, "8bit", _compressor_fields),
    Kind(
        "partitioner",
        Partitioner,
        PARTITIONERS,
        client_testers.PartitionerTester,
        "iid",
        _round_fields("partition", clients=10, local_steps=1),
        "(labels, clients, rng)",
        make_partitioner,
    ),
    Kind(
        "metric",
        Metric,
        METRICS,
        client_testers.MetricTester,
        is_correct,
        _list_fields("metrics"),
        "(outputs, labels)",
    ),
    Kind(
        "objective",
        Objective,
        OBJECTIVE,
        objective_tester.ObjectiveTester,
        "regression",
        _round_fields("objective"),
        maker=make_objective,
        experiment_maker=objective_tester.objective_experiment,
    ),
    Kind(
        "transform",
        Transform,
        TRANSFORMS,
        data_testers.TransformTester,
        "flip",
        _list_fields("transforms"),
        "(x, rng)",
        make_transform,
        data_testers.transform_experiment,
    ),
    Kind(
        "dataset",
        (FederatedDataset, Rows),
        SOURCES,
        data_testers.DataTester,
        make_vectors(),
        _data_fields,
        "()",
        data_testers.make_data,
        data_testers.data_experiment,
    ),
    Kind(
        "method",
        Method,
        ComponentRegistry("method", ()),
        start_method_tester,
        "scaffold",
        _method_fields,
        maker=find_method,
        experiment_maker=_try_with_adapters,
        usual_asynchronous="fedasync",
    ),
)
KINDS: dict[str, Kind] = {kind.name: kind for kind in _LIST}
