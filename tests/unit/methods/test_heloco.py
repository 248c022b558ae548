"""HeLoCo: the correction of a delta by the momentum, in independent NumPy, and its reductions."""

from pathlib import Path

import numpy as np
import pytest
from played_rules import START, Played, random_arrivals, same

from fedraa import Experiment, run
from fedraa.composition.registry import list_methods
from fedraa.messages import values_of
from fedraa.methods.fedbuff import FedBuffRule
from fedraa.methods.heloco import HeLoCo, split_by_tensor
from fedraa.server.async_rule import AsyncModel, ClientUpdate
from fedraa.server.stores.local import LocalStore
from fedraa.submodels.assignment import Assignment, Submodel

GAINS = [(1.0, 0.0), (0.5, 0.5), (0.0, -2.0), (1.0, 0.8)]


def corrected(delta: np.ndarray, m: np.ndarray) -> np.ndarray:
    """Return the corrected delta of one tensor by the formulas with unit vectors, in float64."""
    if not m.any():
        return delta
    length, u, v = np.linalg.norm(delta), delta / np.linalg.norm(delta), m / np.linalg.norm(m)
    cosine = u @ v
    confidence = length / (length + 3 * np.linalg.norm(m))
    if cosine >= 0.2:
        return delta
    if cosine < 0:
        return delta - min(0.5 * -cosine * confidence, 0.5) * cosine * length * v
    turned = min((1 - cosine) * confidence, 1)
    direction = (1 - turned) * u + turned * v
    return length * direction / np.linalg.norm(direction)


def test_heloco_equals_the_models_and_momenta_by_hand() -> None:
    played = Played(HeLoCo())
    momenta = []
    for gain in GAINS:
        played.take(0, gain)
        momenta.append(played.rule._m.tolist())
    played.close((1.763, 2), (2.2012, 2.3815), (2.347043, 0.907587), (3.340903, 0.485326))
    expected = [(0.1, 0), (0.14, 0.05), (0.134711, -0.151889), (0.241486, -0.180755)]
    np.testing.assert_allclose(momenta, expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    ("delta", "m", "expected"),
    [
        ((0.0, -2.0), (0.14, 0.05), (0.087108, -1.968890)),
        ((1.0, 0.8), (0.134711, -0.151889), (1.202463, -0.440550)),
    ],
)
def test_heloco_shrinks_a_delta_against_the_momentum_and_turns_others(
    delta: tuple[float, float], m: tuple[float, float], expected: tuple[float, float]
) -> None:
    of_delta, of_momentum = HeLoCo().find_factors(np.array(delta, np.float32), np.array(m, np.float32))
    np.testing.assert_allclose(of_delta * np.array(delta) + of_momentum * np.array(m), expected, rtol=0, atol=5e-6)


def test_heloco_corrects_each_tensor_and_keeps_momentum_outside_the_submodel() -> None:
    tensors = ((2, 3), (4,))
    model = AsyncModel(np.zeros(10, np.float32), 2, 1, tensors=tensors)
    rule = HeLoCo(server_lr=0.5, rho=0.8).bind(model)
    theta, m = np.zeros(10), np.zeros(10)
    rng = np.random.default_rng(0)
    kinds = set()
    for _ in range(60):
        where = np.sort(rng.choice(10, 7, replace=False))
        sent, new = rng.standard_normal((2, 7)).astype(np.float32)
        rule.apply_update(ClientUpdate(0, 0, where, new, sent, 0, 1, 0.0), model)
        delta = new.astype(np.float64) - sent
        for in_tensor in (where < 6, where >= 6):
            place = where[in_tensor]
            step = 0.8 * corrected(delta[in_tensor], m[place])
            kinds.add((len(place), bool(delta[in_tensor] @ m[place] < 0)))
            m[place] = 0.9 * m[place] + 0.1 * step
            theta[place] += 0.5 * (step + 0.9 * m[place])
        np.testing.assert_allclose(rule._m, m, rtol=0, atol=1e-5)
        np.testing.assert_allclose(model.params, theta, rtol=0, atol=1e-4)
    assert len(kinds) > 4


def test_heloco_with_all_deltas_kept_is_nesterov_momentum() -> None:
    played = Played(HeLoCo(min_cosine=-1.0), 3, np.ones(5))
    theta, m = np.ones(5), np.zeros(5)
    for client, gain, _ in random_arrivals(30, 3):
        played.take(client, gain)
        m = 0.9 * m + 0.1 * np.array(gain)
        theta = theta + 0.7 * (np.array(gain) + 0.9 * m)
    np.testing.assert_allclose(played.model.params, theta, rtol=1e-4)


def test_heloco_without_momentum_is_fedbuff_of_one_update() -> None:
    rule = HeLoCo(server_lr=0.3, beta=0.0, min_cosine=-1.0)
    same(rule, FedBuffRule(1, "constant", server_lr=0.3), random_arrivals(30, 3))


def test_clients_receive_the_look_ahead_model() -> None:
    submodel = Submodel((2,), None)
    store = LocalStore(np.array(START, np.float32), [submodel], HeLoCo(), [1, 1])
    rule = store._rule
    assert values_of(store.cut(Assignment(0, submodel), 0)).tolist() == list(START)
    rule.apply_update(
        ClientUpdate(0, 0, slice(None), np.ones(2, np.float32), np.zeros(2, np.float32), 0, 1, 0.0), store._model
    )
    expected = store.params + 0.7 * 0.9 * rule._m
    np.testing.assert_allclose(values_of(store.cut(Assignment(0, submodel), 1)), expected, rtol=1e-6)


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        (slice(None), [([0, 1, 2, 3, 4, 5], [0, 1, 2, 3, 4, 5]), ([6, 7], [6, 7])]),
        (np.array([1, 5, 7]), [([1, 5], [0, 1]), ([7], [2])]),
        (np.array([6]), [([6], [0])]),
    ],
)
def test_an_update_is_split_by_tensor(where: np.ndarray | slice, expected: list[tuple[list[int], list[int]]]) -> None:
    size = 8 if isinstance(where, slice) else len(where)
    pieces = [
        (np.arange(8)[place].tolist(), np.arange(size)[piece].tolist())
        for place, piece in split_by_tensor(((2, 3), (2,)), where, size)
    ]
    assert pieces == expected


@pytest.mark.parametrize("method", ["fed-raa", "heterofl-async"])
def test_heloco_trains_submodels(method: str, tmp_path: Path) -> None:
    base = list_methods()[method]
    own = base.replace(async_rule="heloco(server_lr=0.3)")
    flags = {"dataset": "digits", "clients": 4, "hidden": (16,), "updates": 30, "local_steps": 5, "lr": 0.2, "seed": 1}
    history = run(Experiment(method=own, engine="local", quiet=True, out=tmp_path / "run", **flags))
    assert history.evals["loss"].iloc[-1] < 0.8 * history.evals["loss"].iloc[0]
