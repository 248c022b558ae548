"""Asynchronous servers whose policy draws a submodel for every task: against NumPy and against other servers."""

from copy import deepcopy
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from refusals import refuses
from tiny import CLIENTS, Stepped, close, spec

from fedraa import Experiment
from fedraa.composition.method import Method
from fedraa.composition.registry import list_methods
from fedraa.engine.build import build_run
from fedraa.engine.factories import make_server
from fedraa.engine.run_spec import RunSpec
from fedraa.messages import Update
from fedraa.methods.fedasync import ConvexMix
from fedraa.methods.fedbuff import FedBuffRule
from fedraa.server.schedule import AsyncSampled
from fedraa.submodels.assignment import Assignment
from fedraa.submodels.policies.masked import Pruned
from fedraa.submodels.policies.policy import RunContext, SubmodelPolicy, SubmodelSampler
from fedraa.submodels.policies.pruning import AdaptivePruning
from fedraa.submodels.policies.slices import Full

METHODS = list_methods()

ARRIVALS = (2, 0, 2, 1, 1, 0, 0, 2)


def custom_method(method: str, **choices: Any) -> Method:
    return replace(METHODS[method], **choices)


def run_arrivals(run: RunSpec) -> Stepped:
    """Return the server after updates of clients in the order of `ARRIVALS`. Each client then gets its next task."""
    stepped = Stepped(run)
    out = {client: stepped.server.assign(client, 0.0) for client in range(CLIENTS)}
    for client in ARRIVALS:
        stepped.server.commit(stepped.train(out[client]), 1.0)
        out[client] = stepped.server.assign(client, 1.0)
    return stepped


def test_sampled_whole_models_equal_fedasync() -> None:
    drawn = custom_method("fedasync", schedule=AsyncSampled(), submodel=Full())
    ours, theirs = (
        run_arrivals(spec(drawn, staleness="polynomial")),
        run_arrivals(spec("fedasync", staleness="polynomial")),
    )
    np.testing.assert_array_equal(ours.server.params, theirs.server.params)
    for kind in ("dispatch", "commit"):
        fields = ("client", "version", "step", "cost", "bytes_down") if kind == "dispatch" else ("staleness", "weight")
        for mine, other in zip(ours.records.of(kind), theirs.records.of(kind), strict=True):
            assert [mine[field] for field in fields] == [other[field] for field in fields]


@pytest.mark.parametrize("method", ["heterofl-async", "fedrolex-async", "bernoulli-async"])
def test_update_mixes_only_the_trained_coordinates(method: str) -> None:
    """theta <- (1 - a) theta + a w on the trained coordinates with a = .6 / sqrt(1 + staleness).

    The other coordinates keep their bits.
    """
    stepped = Stepped(spec(method))
    server, theta = stepped.server, stepped.server.params.astype(np.float64)
    out = {client: server.assign(client, 0.0) for client in range(CLIENTS)}
    sizes, kept_coordinates = set(), 0
    for step, client in enumerate(ARRIVALS):
        task, before = out[client], server.params.copy()
        assignment = server.task_table.in_flight[task.id].assignment
        update = stepped.train(task)
        where = np.arange(len(theta))[assignment.where]
        a = 0.6 / np.sqrt(1 + step - task.version)
        theta[where] = (1 - a) * theta[where] + a * assignment.trained(update.params)
        server.commit(update, 1.0)
        close(server.params, theta)
        rest = np.setdiff1d(np.arange(len(theta)), where)
        np.testing.assert_array_equal(server.params[rest], before[rest])
        sizes.add(len(where))
        kept_coordinates += len(rest)
        out[client] = server.assign(client, 1.0)
    assert len(sizes) > 1 or method == "bernoulli-async"
    assert kept_coordinates > 0
    assert [line["staleness"] for line in stepped.records.of("commit")] == [0, 1, 1, 3, 0, 3, 0, 4]


def test_policy_sees_the_current_model_also_after_a_restore() -> None:
    """OAP masks the smallest weights of the current version. A restored server draws the same masks."""
    run = spec(Method(submodel=Pruned(), update=ConvexMix(), schedule=AsyncSampled(), name="own"), capacities=(0.5,))
    stepped, masks = Stepped(run), []
    for client in (0, 0, 1):
        task = stepped.server.assign(client, 0.0)
        stepped.server.commit(stepped.train(task), 1.0)
        again = make_server(run, stepped.records)
        again.restore(stepped.server.state())
        for other in (0, 1):
            drawn = [one.assign(other, 1.0) for one in (deepcopy(stepped.server), again)]
            np.testing.assert_array_equal(drawn[0].mask, drawn[1].mask)
        masks.append(drawn[0].mask)
    assert (masks[0] != masks[2]).any()


def test_rolling_window_moves_with_every_version() -> None:
    stepped = Stepped(spec(custom_method("fedrolex-async"), capacities=(0.4,)))
    indices = []
    for _ in range(3):
        task = stepped.server.assign(0, 0.0)
        indices.append(stepped.server.task_table.in_flight[task.id].assignment.submodel.index)
        stepped.server.commit(stepped.train(task), 1.0)
    assert (indices[0] != indices[1]).any()
    assert (indices[1] != indices[2]).any()


def test_buffered_rule_adds_the_deltas_of_trained_coordinates() -> None:
    """With masks and a buffer of one update per client: theta + 1/N sum of the deltas on trained coordinates."""
    stepped = Stepped(spec(custom_method("bernoulli-async", update=FedBuffRule(CLIENTS, "constant"))))
    theta, total = stepped.server.params.astype(np.float64), np.zeros(44)
    tasks = [stepped.server.assign(client, 0.0) for client in range(CLIENTS)]
    for task in tasks:
        assignment, update = stepped.server.task_table.in_flight[task.id].assignment, stepped.train(task)
        total[assignment.where] += assignment.trained(update.params - task.params)
        stepped.server.commit(update, 1.0)
    close(stepped.server.params, theta + total / CLIENTS)


def test_policy_that_needs_rounds_is_refused() -> None:
    method = Method(submodel=AdaptivePruning(), update=ConvexMix(), schedule=AsyncSampled(), name="mine")
    with refuses("submodel", "AdaptivePruning"):
        build_run(Experiment(method=method, engine="local"))


class CountsUpdates(SubmodelSampler):
    """A sampler whose choice may depend on the updates of clients."""

    def receive(self, assignment: Assignment, update: Update, weight: float) -> None:
        raise AssertionError("no run calls this method")


class ByUpdates(SubmodelPolicy):
    """A custom policy with the sampler `CountsUpdates`."""

    def bind(self, run: RunContext) -> SubmodelSampler:
        return CountsUpdates()


@pytest.mark.parametrize(
    "fields", [{"method": "bernoulli-async"}, {"method": "bernoulli", "weights": "uniform", "privacy": "central"}]
)
def test_choice_by_updates_is_refused_without_rounds_and_with_central_privacy(fields: dict[str, Any]) -> None:
    with refuses("submodel", "ByUpdates"):
        build_run(Experiment(**fields, submodel=ByUpdates(), engine="local"))
