"""FedASMU: the weight of a client's model, and how its controls follow the loss."""

from math import inf

import numpy as np
import pytest
from played_rules import START, Played
from refusals import refuses

from fedraa import Experiment
from fedraa.engine.build import build_run
from fedraa.methods.fedasmu import FedASMU
from fedraa.server.async_rule import AsyncModel, AsyncRule, ClientUpdate

TRAINED = [(0, (2.0, 2.0), 0), (0, (2.0, 2.5), 0), (1, (1.0, 0.0), 2)]


def weigh(rule: AsyncRule, model: AsyncModel, client: int, *, staleness: int, loss: float, fragment: int = 0) -> float:
    new = np.zeros(2, np.float32)
    return rule.apply_update(ClientUpdate(client, fragment, slice(None), new, new, staleness, 1, loss), model).weight


def test_fedasmu_equals_the_models_and_weights_by_hand() -> None:
    """The losses of these updates are equal, so that the controls stay constant."""
    played = Played(FedASMU()).all(TRAINED)
    played.close((1.5, 2), (1.707107, 2.207107), (1.530330, 1.655330))
    np.testing.assert_allclose([result.weight for result in played.taken], (0.5, 0.414214, 0.25), atol=1e-6)


def test_the_controls_of_a_client_follow_its_loss() -> None:
    """Client 1 keeps its controls. The controls of client 0 are (1.02, .48, .02) after its loss falls by 2."""
    model = AsyncModel(np.array(START, np.float32), 2, 1)
    rule = FedASMU(mu=0.5).bind(model)
    weights = [
        weigh(rule, model, client, staleness=3, loss=loss) for client, loss in ((0, 3.0), (1, 9.0), (0, 1.0), (0, 2.0))
    ]
    np.testing.assert_allclose(rule._controls, [(1.01, 0.49, 0.01), (1, 0.5, 0)], rtol=1e-12)
    controls = ((1, 0.5, 0), (1, 0.5, 0), (1, 0.5, 0), (1.02, 0.48, 0.02))
    for number, (weight, (scale, decay, offset)) in enumerate(zip(weights, controls, strict=True), 1):
        xi = scale / number**0.5 * 4**-decay + offset
        assert weight == pytest.approx(0.5 * xi / (1 + 0.5 * xi), rel=1e-12)


def test_controls_are_never_negative() -> None:
    model = AsyncModel(np.array(START, np.float32), 1, 1)
    rule = FedASMU().bind(model)
    for loss in (0.0, 1000.0, 0.0):
        assert 0 <= weigh(rule, model, 0, staleness=0, loss=loss) < 1
    # After the rise: (0, 10.5, 0).
    np.testing.assert_allclose(rule._controls, [(10, 0.5, 10)])


def test_fragments_have_separate_counts_and_losses() -> None:
    model = AsyncModel(np.array(START, np.float32), 1, 2)
    rule = FedASMU().bind(model)
    weights = [
        weigh(rule, model, 0, staleness=0, loss=9.0),
        weigh(rule, model, 0, staleness=0, loss=1.0, fragment=1),
        weigh(rule, model, 0, staleness=0, loss=inf, fragment=1),
    ]
    assert rule._controls.tolist() == [[1, 0.5, 0]]
    # xi = 1 / sqrt(t), where t counts the updates of the fragment: 1, 1 and 2.
    np.testing.assert_allclose(weights, [1 / 2, 1 / 2, 1 / (2**0.5 + 1)])


def test_fedasmu_ignores_an_update_over_its_limit() -> None:
    played = Played(FedASMU(delay_limit=2)).all([(0, (2.0, 2.0), 2), (0, (2.0, 2.0), 1)])
    assert [result.new_version for result in played.taken] == [False, True]
    assert played.thetas[0] == START
    assert played.taken[1].weight == pytest.approx(2**-0.5 / (1 + 2**-0.5))


@pytest.mark.parametrize("privacy", ["central", "local"])
def test_privacy_refuses_weights_that_follow_losses(privacy: str) -> None:
    private = {"engine": "local", "method": "fedasmu", "privacy": privacy}
    with refuses("privacy", "fedasmu"):
        build_run(Experiment(**private))
    build_run(Experiment(**private, override={"update.rate": 0.0}))
