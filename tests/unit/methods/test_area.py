"""AREA: the model is the mean of the clients' last models after every flush."""

import numpy as np
import pytest
from played_rules import Played, random_arrivals, same

from fedraa.methods.area import Area
from fedraa.methods.fedasync import ConvexMix
from fedraa.server.async_rule import AsyncModel, ClientUpdate

TRAINED = [(0, (2.0, 2.0), 0), (0, (2.0, 2.5), 0), (1, (1.0, 0.0), 2)]


def test_area_of_one_update_equals_the_models_by_hand() -> None:
    """y_1 stays (1, 2) until client 1 reports: (1.5, 2) = ((2, 2) + (1, 2)) / 2."""
    Played(Area(1)).all(TRAINED).close((1.5, 2), (1.5, 2.25), (1.5, 1.25))


def test_area_of_two_updates_equals_the_models_by_hand() -> None:
    played = Played(Area(2)).all([(0, (2.0, 2.0), 0), (1, (1.0, 0.0), 0), (0, (2.0, 2.5), 0), (0, (3.0, 3.0), 0)])
    played.close((1, 2), (1.5, 1), (1.5, 1), (2, 1.5))
    assert [result.new_version for result in played.taken] == [False, True, False, True]
    assert {result.weight for result in played.taken} == {0.5}


@pytest.mark.parametrize("size", [1, 3])
def test_area_after_a_flush_is_the_mean_of_the_last_models(size: int) -> None:
    played = Played(Area(size), 4, np.ones(5))
    last = np.ones((4, 5), np.float32)
    for client, trained, _ in random_arrivals(300, 4):
        result = played.take(client, trained)
        last[client] = trained
        if result.new_version:
            mean = last.astype(np.float64).mean(axis=0).astype(np.float32)
            np.testing.assert_array_max_ulp(played.model.params, mean, maxulp=1)


def test_area_of_one_client_is_the_model_of_the_client() -> None:
    same(Area(1), ConvexMix(mixing=1.0), random_arrivals(9, 1), clients=1)


def test_area_on_fragments_replaces_only_the_coordinates_of_the_update() -> None:
    model = AsyncModel(np.zeros(3, np.float32), 2, 2)
    rule = Area(1).bind(model)
    zeros = np.zeros(2, np.float32)
    for client, fragment, where, trained in ((0, 0, [0, 1], (4, 8)), (0, 1, [1, 2], (2, 6)), (1, 0, [0, 1], (2, 2))):
        new = np.array(trained, np.float32)
        rule.apply_update(ClientUpdate(client, fragment, np.array(where), new, zeros, 0, 1, 0.0), model)
    # y_0 = (4, 2, 6), y_1 = (2, 2, 0).
    assert model.params.tolist() == [3, 2, 3]


def test_area_memory_counts_client_rows_their_mean_and_the_initial_model() -> None:
    assert Area().memory(100, 10) == 100 * (4 * 10 + 8 + 4)
