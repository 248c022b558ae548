"""Fed-Quilt's server step against its formula in NumPy: Muon steps for short tasks, plain deltas for long ones."""

from math import sqrt

import numpy as np
import pytest
from refusals import refuses

from fedraa import Experiment
from fedraa.methods.fed_quilt import DeltaMix, MuonDelta
from fedraa.server.async_rule import AsyncModel, AsyncRule, ClientUpdate
from fedraa.settings.resolve import resolve_method

# A network with 3 inputs, 4 hidden units and 2 outputs. Each fragment has two of the hidden units.
SHAPES = ((4, 3), (4,), (2, 4), (2,))
UNITS = ((0, 1), (2, 3))
CLIENTS, GAIN = 5, 1.2
PLACES = np.split(np.arange(12 + 4 + 8 + 2), np.cumsum([12, 4, 8]))


def newton_schulz(matrix: np.ndarray) -> np.ndarray:
    """Return Muon's approximation of U V^T for a matrix U S V^T, from its singular values in float64."""
    left, values, right = np.linalg.svd(matrix.astype(np.float64), full_matrices=False)
    values = values / np.linalg.norm(values)
    for _ in range(5):
        values = 3.4445 * values - 4.7750 * values**3 + 2.0315 * values**5
    result: np.ndarray = (left * values) @ right
    return result


def fragment_places(fragment: int) -> tuple[np.ndarray, ...]:
    """Return the coordinates in the model of the fragment's two matrices and two vectors."""
    units = list(UNITS[fragment])
    first, bias, second, last = PLACES
    return first.reshape(4, 3)[units], bias[units], second.reshape(2, 4)[:, units], last


def make_model(label_overlap: float = 1.0) -> AsyncModel:
    parts = [np.sort(np.concatenate([place.ravel() for place in fragment_places(number)])) for number in (0, 1)]
    common = tuple(np.searchsorted(part, PLACES[3]) for part in parts)
    params = np.random.default_rng(1).standard_normal(26).astype(np.float32)
    return AsyncModel(params, clients=CLIENTS, fragments=2, common=common, tensors=SHAPES, label_overlap=label_overlap)


def make_update(model: AsyncModel, fragment: int, steps: int, seed: int, staleness: int = 0) -> ClientUpdate:
    rng = np.random.default_rng(seed)
    where = np.sort(np.concatenate([place.ravel() for place in fragment_places(fragment)]))
    sent = model.params[where] + rng.standard_normal(len(where)).astype(np.float32)
    new = sent + rng.standard_normal(len(where)).astype(np.float32)
    return ClientUpdate(0, fragment, where, new, sent, staleness, samples=1, loss=1.0, steps=steps)


def apply_all(rule: AsyncRule, model: AsyncModel, updates: list[ClientUpdate]) -> AsyncRule:
    own = rule.bind(model)
    for update in updates:
        own.apply_update(update, model)
    return own


@pytest.mark.parametrize(
    ("staleness", "earlier", "overlap", "first_memory"),
    [
        ("constant", 0, 1.0, 5),
        ("polynomial", 0, 1.0, 5),
        ("constant", 799, 1.0, 5),
        ("constant", 2500, 1.0, 5),
        ("constant", 0, 0.4, 5),
        ("constant", 0, 0.2, 7.5),
        ("constant", 799, 0.15, 10),
        ("constant", 2500, 0.15, 10),
        ("constant", 0, 0.05, 20),
        ("constant", 0, 0.0, 20),
    ],
)
def test_short_tasks_lead_to_muon_steps_and_long_tasks_add_their_deltas(
    staleness: str, earlier: int, overlap: float, first_memory: float
) -> None:
    model = make_model(overlap)
    start = model.params.copy()
    tasks = [(0, 1, 0), (1, 2, 1), (0, 9, 3), (0, 7, 4), (1, 8, 0), (1, 1, 2), (0, 3, 0)]
    updates = [make_update(model, *task[:2], seed=seed, staleness=task[2]) for seed, task in enumerate(tasks)]
    rule = MuonDelta(staleness=staleness).bind(model)
    rule.restore(rule.state() | {"arrivals": [earlier, earlier]})
    for update in updates:
        rule.apply_update(update, model)

    theta, m = start.astype(np.float64), np.zeros(26)
    squares, arrivals = [0.0, 0.0], [earlier, earlier]
    agreements: list[float] = []
    for (fragment, steps, late), update in zip(tasks, updates, strict=True):
        decay = (1 + late) ** -0.5 if staleness == "polynomial" else 1.0
        weight = GAIN * 2 / CLIENTS * decay
        delta = np.zeros(26)
        delta[update.where] = update.new.astype(np.float64) - update.sent
        first, bias, second, last = fragment_places(fragment)
        theta[bias] += weight * delta[bias]
        # All five clients train the output bias, which is in both fragments.
        theta[last] += weight / 2 * delta[last]
        matrices = np.concatenate([first.ravel(), second.ravel()])
        if steps > 7:
            theta[matrices] += weight * delta[matrices]
            continue
        change = weight * delta[matrices]
        arrivals[fragment] += 1
        w = max(first_memory, min(arrivals[fragment] / 100, 20))
        shortening = sqrt(500 / arrivals[fragment]) if earlier else 1
        m[matrices] += (change - m[matrices]) / w
        squares[fragment] += (change @ change - squares[fragment]) / w
        bias_correction = 1 - (1 - 1 / first_memory) ** arrivals[fragment]
        mean = m[matrices] / bias_correction
        agreement = min(1.0, float(np.linalg.norm(mean)) / sqrt(squares[fragment] / bias_correction))
        agreements.append(agreement)
        for place in (first, second):
            nesterov = (1 - 1 / w) * m[place] + weight * delta[place] / w
            rows, columns = place.shape
            # The model has two matrices.
            length = 0.28 * sqrt(GAIN * 2 / CLIENTS * steps / 2) * agreement * sqrt(rows / columns) * shortening
            theta[place] += length * newton_schulz(nesterov)
    # Before the first delta the momentum is 0, so that delta agrees with it only if it is the first task.
    first_w = {0: first_memory, 799: max(8, first_memory), 2500: 20}[earlier]
    assert agreements[0] == pytest.approx(first_w**-0.5 if earlier else 1)
    assert 0.1 < min(agreements) < 0.9
    np.testing.assert_allclose(model.params, theta, rtol=0, atol=2e-5)


def test_length_of_a_muon_step_depends_on_the_local_steps_and_not_on_the_delta() -> None:
    lengths = {}
    for steps, scale in ((1, 1.0), (1, 100.0), (4, 1.0)):
        model = make_model()
        start = model.params.copy()
        update = make_update(model, 0, steps, seed=3)
        update = ClientUpdate(
            0, 0, update.where, update.sent + np.float32(scale) * update.delta, update.sent, 0, 1, 1.0, steps=steps
        )
        apply_all(MuonDelta(), model, [update])
        place = fragment_places(0)[0]
        lengths[steps, scale] = np.linalg.norm((model.params - start)[place])
    assert lengths[1, 100.0] == pytest.approx(lengths[1, 1.0], rel=1e-4)
    assert lengths[4, 1.0] == pytest.approx(2 * lengths[1, 1.0], rel=1e-4)


def test_only_long_tasks_are_delta_mix() -> None:
    tasks = [(0, 3, 0), (1, 2, 1), (0, 2, 4)]
    results = []
    for rule in (DeltaMix(staleness="polynomial"), MuonDelta(staleness="polynomial", short_steps=1)):
        model = make_model()
        updates = [make_update(model, fragment, steps, steps, late) for fragment, steps, late in tasks]
        apply_all(rule, model, updates)
        results.append(model.params)
    added, moved = results
    np.testing.assert_array_equal(added, moved)


def test_restored_rule_continues_with_the_same_steps() -> None:
    whole, parts = make_model(), make_model()
    updates = [make_update(whole, number % 2, 1 + number, seed=number) for number in range(6)]
    apply_all(MuonDelta(), whole, updates)
    first = apply_all(MuonDelta(), parts, updates[:3])
    second = MuonDelta().bind(parts)
    second.restore(first.state())
    for update in updates[3:]:
        second.apply_update(update, parts)
    np.testing.assert_array_equal(whole.params, parts.params)


@pytest.mark.parametrize(("path", "value"), [("update.short_steps", 0), ("update.server_lr", -0.1)])
def test_values_out_of_range_are_refused(path: str, value: float) -> None:
    with refuses(path, got=value):
        resolve_method(Experiment(method="fed-quilt", override={path: value}))
