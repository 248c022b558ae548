"""MR.AsyncFL: the model stays the weighted sum of the clients' last models."""

import numpy as np
import pytest
from played_rules import Played, random_arrivals, same

from fedraa.methods.area import Area
from fedraa.methods.fedasync import ConvexMix
from fedraa.methods.mr_asyncfl import ModelReplacement
from fedraa.server.async_rule import AsyncModel, ClientUpdate

TRAINED = [(0, (2.0, 2.0), 0), (0, (2.0, 2.5), 0), (1, (1.0, 0.0), 2)]


def test_mr_asyncfl_equals_the_models_and_weights_by_hand() -> None:
    played = Played(ModelReplacement())
    weights = []
    for client, trained, _ in TRAINED:
        played.take(client, trained)
        weights.append(played.rule._weights[0].tolist())
    played.close((1.6, 2), (1.68, 2.34), (1.544, 1.36))
    np.testing.assert_allclose(weights, [(0.6, 0.4), (0.68, 0.32), (0.544, 0.456)], rtol=1e-12)
    np.testing.assert_allclose([result.weight for result in played.taken], (0.6, 0.68, 0.456), rtol=1e-12)


@pytest.mark.parametrize("gamma", [0.5, 0.95])
def test_mr_asyncfl_is_the_weighted_sum_of_the_last_models(gamma: float) -> None:
    played = Played(ModelReplacement(gamma=gamma), 4, np.ones(5))
    last = np.ones((4, 5))
    weights = np.full(4, 0.25)
    for client, trained, _ in random_arrivals(300, 4):
        played.take(client, trained)
        last[client] = trained
        weights *= gamma
        weights[client] += 1 - gamma
        np.testing.assert_allclose(played.rule._weights[0], weights, rtol=1e-12)
        assert played.rule._weights.sum() == pytest.approx(1, abs=1e-12)
        np.testing.assert_allclose(played.model.params, weights @ last, rtol=0, atol=1e-5)


def test_mr_asyncfl_of_gamma_1_is_area_of_one_update() -> None:
    same(ModelReplacement(gamma=1.0), Area(1), random_arrivals(50, 3))


def test_mr_asyncfl_adds_the_first_change_of_each_client_to_fedasync() -> None:
    """While no client reports twice: theta of FedAsync plus gamma c_i (w - theta_0), c_i = gamma^k / N."""
    played = Played(ModelReplacement(), 3, np.ones(5))
    theta = np.ones(5)
    for number, (_, trained, _) in enumerate(random_arrivals(3, 3)):
        played.take(number, trained)
        theta = 0.8 * theta + 0.2 * np.array(trained) + 0.8 ** (number + 1) / 3 * (np.array(trained) - 1)
    np.testing.assert_allclose(played.model.params, theta, rtol=1e-5)


def test_mr_asyncfl_of_one_client_is_the_model_of_the_client() -> None:
    same(ModelReplacement(), ConvexMix(mixing=1.0), random_arrivals(9, 1), clients=1)


def test_mr_asyncfl_has_weights_for_each_fragment() -> None:
    model = AsyncModel(np.zeros(4, np.float32), 2, 2)
    rule = ModelReplacement(gamma=0.5).bind(model)
    for client, fragment, where in ((0, 0, [0, 1]), (1, 1, [2, 3]), (0, 0, [0, 1])):
        new = np.full(2, 8, np.float32)
        rule.apply_update(
            ClientUpdate(client, fragment, np.array(where), new, np.zeros(2, np.float32), 0, 1, 0.0), model
        )
    # c of fragment 0: (.75, .25), then (.875, .125). Each model is the sum over clients of c_i times 8 or 0.
    assert rule._weights.tolist() == [[0.875, 0.125], [0.25, 0.75]]
    assert model.params.tolist() == [7, 7, 6, 6]


def test_mr_asyncfl_memory_counts_client_rows_and_the_initial_model() -> None:
    assert ModelReplacement().memory(100, 10) == 100 * (4 * 10 + 4)
