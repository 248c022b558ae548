"""PAdaMFed with variance reduction against its formulas in NumPy: unequal cohorts, means, controls and momentum."""

from typing import Any

import numpy as np
import pytest
from numpy_mlp import loss_gradient
from refusals import refuses
from tiny import CLIENTS, WIDTHS, Stepped, minibatches, spec, start

ETA, ROUNDS, COHORT = 0.05, 30, 2
# Two passes over 20 samples in minibatches of 6.
STEPS = 8


class Growing:
    """A participation of clients 0 and 1 in the first two rounds, and then of all clients."""

    def cohort(self, clients: int, round: int, rng: np.random.Generator) -> range:
        return range(clients if round > 1 else 2)


def test_rounds_follow_the_formula() -> None:
    run = spec(
        "padamfed",
        lr=ETA,
        partition="iid",
        participation=Growing(),
        rounds=ROUNDS,
        override={"update.auxiliary.cohort": COHORT},
    )
    beta = (COHORT * STEPS) ** (1 / 3) / ROUNDS ** (2 / 3)
    stepped, theta = Stepped(run), start(run)
    previous, c, m, controls = theta, np.zeros(44), np.zeros(44), np.zeros((CLIENTS, 44))
    turns = [0] * CLIENTS
    for turn in range(4):
        cohort = Growing().cohort(CLIENTS, turn, np.random.default_rng())
        b = beta * c + (1 - beta) * m
        steps, changes = [], np.zeros((CLIENTS, 44))
        for client in cohort:
            w, gradients = theta, []
            for x, y in minibatches(run, client, turns[client]):
                gradients.append(loss_gradient(w, x, y, WIDTHS)[1])
                earlier = loss_gradient(previous, x, y, WIDTHS)[1]
                q = gradients[-1] + b - beta * controls[client] - (1 - beta) * earlier
                w = w - ETA * q / np.linalg.norm(q)
            steps.append((theta - w) / (ETA * STEPS))
            turns[client] += 1
            changes[client] = np.mean(gradients, axis=0) - controls[client]
        previous, theta = theta, theta - beta * np.mean(steps, axis=0)
        m = beta * (changes.sum(axis=0) / len(cohort) + c) + (1 - beta) * m
        c = c + changes.sum(axis=0) / CLIENTS
        controls += changes
        stepped.round()
        np.testing.assert_allclose(stepped.server.params, theta, atol=2e-5)


def test_traffic_and_passes_count_the_additional_buffers_and_gradients() -> None:
    fields = {"lr": ETA, "local_steps": STEPS, "local_epochs": None}
    stepped, plain = Stepped(spec("padamfed", **fields)), Stepped(spec("fedavg", **fields))
    tasks, plain_tasks = stepped.round(), plain.round()
    assert [task.bytes_up for task in tasks] == [2 * task.bytes_up for task in plain_tasks]
    assert {line["bytes_down"] for line in stepped.records.of("dispatch")} == {3 * 4 * 44}
    flops, plain_flops = ([line["flops"] for line in run.records.of("commit")] for run in (stepped, plain))
    np.testing.assert_allclose(flops, 2 * np.array(plain_flops))


@pytest.mark.parametrize("submodel", ["ra-fed", "heterofl", "salf"])
def test_local_steps_in_submodels_have_the_length_of_the_rate(submodel: str) -> None:
    """Only trained coordinates count for the norm, and the other coordinates keep their controls."""
    stepped = Stepped(spec(f"{submodel}+padamfed", lr=ETA, local_steps=1, local_epochs=None))
    for _ in range(3):
        for client in stepped.server.begin():
            task = stepped.server.assign(client, 0.0)
            assignment = stepped.server.task_table.in_flight[task.id].assignment
            trained = np.zeros(44, bool)
            trained[assignment.where] = True
            update = stepped.train(task)
            moved = assignment.trained(update.params) - assignment.trained(task.params)
            assert np.linalg.norm(moved) == pytest.approx(ETA, rel=1e-4)
            controls = stepped.server._auxiliary._client  # type: ignore[attr-defined]
            before = controls.peek_row(client).copy()
            stepped.server.commit(update, 1.0)
            np.testing.assert_array_equal(controls.peek_row(client)[~trained], before[~trained])
            assert (controls.peek_row(client)[trained] != before[trained]).any()


def test_model_with_an_adaptive_mask_takes_the_step_from_the_pruned_model() -> None:
    """Weights that leave the mask after a round stay 0, and weights that enter it again keep their value."""
    override = {"submodel.initial": 0, "submodel.reprune_every": 1}
    stepped = Stepped(spec("prunefl+padamfed", lr=ETA, partition="iid", rounds=ROUNDS, override=override))
    server = stepped.server
    beta = (CLIENTS * STEPS) ** (1 / 3) / ROUNDS ** (2 / 3)
    has_changed = False
    for _ in range(4):
        theta = server.params.astype(np.float64)
        tasks = [server.assign(client, 0.0) for client in server.begin()]
        updates = [stepped.train(task) for task in tasks]
        for update in updates:
            server.commit(update, 1.0)
        mean = np.mean([update.params - theta for update in updates], axis=0)
        before, after = tasks[0].mask, server._sampler.mask  # type: ignore[attr-defined]
        assert before is not None
        both = before & after
        np.testing.assert_allclose(server.params[both], (theta + beta * mean / (ETA * STEPS))[both], atol=1e-6)
        np.testing.assert_array_equal(server.params[~after], 0)
        has_changed |= bool((before != after).any())
    assert has_changed


@pytest.mark.parametrize(
    "field", ["momentum", "compress", "local.sam_rho", "local_optimizer", "clip", "server_lr", "server_optimizer"]
)
def test_settings_that_break_the_formula_are_refused(field: str) -> None:
    values: dict[str, dict[str, Any]]
    values = {"momentum": {"momentum": 0.5}, "compress": {"compress": "topk:0.5"}, "clip": {"clip": 1.0}}
    values |= {"local.sam_rho": {"override": {"local.sam_rho": 0.1}}, "local_optimizer": {"local_optimizer": "adam"}}
    values |= {"server_lr": {"server_lr": 0.5}, "server_optimizer": {"server_optimizer": "adam"}}
    with refuses(field):
        spec("padamfed", **values[field])


def test_beta_follows_from_the_rounds_and_the_cohort_of_the_run() -> None:
    run = spec("padamfed", partition="iid", rounds=50, participation="bernoulli:0.5")
    auxiliary = Stepped(run).server._auxiliary  # type: ignore[attr-defined]
    assert auxiliary._beta == pytest.approx((0.5 * CLIENTS * STEPS) ** (1 / 3) / 50 ** (2 / 3))


@pytest.mark.parametrize(
    ("field", "fields"), [("rounds", {"time": 3.0}), ("cohort", {"rounds": 9, "participation": Growing()})]
)
def test_unknown_numbers_of_rounds_or_clients_are_refused(field: str, fields: dict[str, Any]) -> None:
    with refuses(f"update.auxiliary.{field}"):
        spec("padamfed", **fields)
