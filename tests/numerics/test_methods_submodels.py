"""Every submodel method in rounds against its paper's formula in NumPy, on 72 parameters.

Only the random draws come from the package. The masks, slices, local steps and means are computed here.
"""

from collections.abc import Sequence

import numpy as np
import pytest
from numpy_mlp import Array, loss_gradient, sgd
from tiny import LR, SEED, Stepped, close, minibatches, spec, start
from two_layers import MASKABLE, SIZE, WIDTHS, coordinates, quarters

from fedraa.engine.run_spec import RunSpec
from fedraa.rng import generator

Mask = np.ndarray


class System(Stepped):
    """A run with five clients and two hidden layers."""

    def __init__(self, method: str, clients: int = 5, **flags: object) -> None:
        super().__init__(spec(method, clients=clients, hidden=WIDTHS[1:-1], **flags))


def mean_over_covering(theta: Array, masks: Sequence[Mask], deltas: Sequence[Array]) -> Array:
    """Return theta + (1 / Gamma) sum of the deltas of clients that trained a coordinate, if Gamma > 0 (rule A)."""
    covered = np.sum(masks, axis=0)
    total = np.sum([delta * mask for delta, mask in zip(deltas, masks, strict=True)], axis=0)
    return np.where(covered > 0, theta + total / np.maximum(covered, 1), theta)


def mean_over_all(theta: Array, masks: Sequence[Mask], deltas: Sequence[Array]) -> Array:
    """Return the mean of m w + (1 - m) theta over all participants (rule B)."""
    filled = [np.where(mask, theta + delta, theta) for delta, mask in zip(deltas, masks, strict=True)]
    return np.mean(filled, axis=0)


def labels(run: RunSpec, client: int) -> set[int]:
    return set(run.data.client(client)[1].tolist())


def masked_delta(system: System, theta: Array, mask: Mask, client: int, turn: int, **terms: float) -> Array:
    """Return m w - m theta [d]."""
    return sgd(theta, minibatches(system.run, client, turn), WIDTHS, lr=LR, mask=mask, **terms) - theta * mask


def slice_delta(
    system: System, theta: Array, kept: Sequence[Sequence[int]], client: int, turn: int
) -> tuple[Mask, Array]:
    """Return the coordinates of the network of these units, and its delta on them, as vectors [d]."""
    where, widths = coordinates(kept)
    mask, delta = np.zeros(SIZE, bool), np.zeros(SIZE)
    mask[where] = True
    delta[where] = sgd(theta[where], minibatches(system.run, client, turn), widths, lr=LR) - theta[where]
    return mask, delta


def train_with_doubled_inputs(w: Array, batches: Sequence[tuple[Array, np.ndarray]], widths: Sequence[int]) -> Array:
    """Train a network in which layers 2 and 3 read 2 h: gradients of W are twice as large. SGD has momentum .5."""
    inputs, hidden, second, classes = widths
    factor = np.ones(len(w))
    start = inputs * hidden + hidden
    factor[start : start + hidden * second] = 2
    start += hidden * second + second
    factor[start : start + second * classes] = 2
    w, velocity = w.copy(), np.zeros(len(w))
    for x, y in batches:
        _, g = loss_gradient(w * factor, x, y, widths)
        velocity = 0.5 * velocity + g * factor
        w = w - LR / 2 * velocity
    return w


@pytest.mark.parametrize("scaled", [True, False])
def test_ist_follows_its_formula(scaled: bool) -> None:
    """Each group is shuffled and distributed in turn. Slices are written back, and the output bias is a mean.

    A client has half of the units. With scaling, both layers that read them read twice their values, at half the rate.
    """
    system = System("ist", clients=2, override={"submodel.scaled": scaled})
    theta = start(system.run)
    for turn in range(3):
        rng = generator(SEED, "groups", turn)
        first, second = rng.permutation(6), rng.permutation(4)
        after, trained = theta.copy(), np.zeros(SIZE, bool)
        biases = []
        for client in range(2):
            kept = np.sort(first[3 * client :][:3]), np.sort(second[2 * client :][:2])
            where, widths = coordinates(kept)
            batches = minibatches(system.run, client, turn)
            if scaled:
                new = train_with_doubled_inputs(theta[where], batches, widths)
            else:
                new = sgd(theta[where], batches, widths, lr=LR, momentum=0.5)
            after[where], trained[where] = new, True
            biases.append(new[-4:])
        after[-4:] = np.mean(biases, axis=0)
        before = system.server.params.copy()
        system.round()
        close(system.server.params, after)
        # Half of the 4 x 6 weights between the hidden layers connect different groups, and stay unchanged.
        assert (~trained).sum() == 12
        np.testing.assert_array_equal(system.server.params[~trained], before[~trained])
        theta = after


def test_oap_follows_its_formula() -> None:
    """Each client prunes the smallest quarters of every tensor.

    A weight is averaged over the clients that trained it.
    """
    system = System("oap", capacities=(0.75, 0.5, 1.0))
    theta = start(system.run)
    for turn in range(3):
        part = quarters(theta)
        masks = [part >= 4 - kept for kept in (3, 2, 4, 3, 2)]
        deltas = [masked_delta(system, theta, masks[n], n, turn, momentum=0.5) for n in range(5)]
        system.round()
        # theta + (w - m theta) is w if m is 1, so this is the mean of the weights.
        theta = mean_over_covering(theta, masks, deltas)
        close(system.server.params, theta)


@pytest.mark.parametrize("method", ["heterofl", "fedrolex"])
def test_heterofl_and_fedrolex_follow_their_formulas(method: str) -> None:
    """Clients train dense slices with clipping, decay and momentum. Logits of absent labels are 0.

    Only clients with a label average its output row. A logit that is always 0 is an output row at 0 without a
    gradient. FedRolex draws capacities in each round, and its window starts at the round's number times the stride.
    """
    shares = (1.0, 0.5, 0.25)
    # Clipping and decay are stronger than the defaults, so that both have an effect in a few rounds.
    flags = {"capacities": shares, "weight_decay": 0.05, "clip": 0.2, "partition": "labels"}
    system = System(
        method, clients=4, **flags, **({"override": {"submodel.stride": 2}} if method == "fedrolex" else {})
    )
    assert {len(labels(system.run, client)) for client in range(4)} == {2}
    theta = start(system.run)
    clipped = False
    for turn in range(3):
        masks, deltas = [], []
        for client in range(4):
            share, first = shares[client % 3], 0
            if method == "fedrolex":
                share, first = generator(SEED, "capacity", turn, client).choice(shares), 2 * turn
            kept = [sorted((first + np.arange(np.ceil(share * size).astype(int))) % size) for size in (6, 4)]
            where, widths = coordinates(kept)
            held = np.ones(len(where), bool)
            for label in {0, 1, 2, 3} - labels(system.run, client):
                row = len(where) - 4 - 4 * widths[2] + label * widths[2]
                held[row : row + widths[2]] = False
                held[len(where) - 4 + label] = False
            w, v = theta[where], np.zeros(len(where))
            for x, y in minibatches(system.run, client, turn):
                _, g = loss_gradient(w, x, y, widths, held)
                clipped |= bool(np.linalg.norm(g) > 0.2)
                g = g * min(1, 0.2 / np.linalg.norm(g)) + 0.05 * w
                v = 0.9 * v + g
                w = w - LR * v
            mask, delta = np.zeros(SIZE, bool), np.zeros(SIZE)
            mask[where] = held
            delta[where] = w - theta[where]
            masks.append(mask)
            deltas.append(delta)
        system.round()
        theta = mean_over_covering(theta, masks, deltas)
        close(system.server.params, theta)
    assert clipped


def regions(level: str, turn: int, every: int, clients: int) -> list[Mask]:
    """Return RAM-Fed's masks: all regions in round 0, later two of four (L), one (S), or at random one or two (MIX).

    A region has a quarter of the hidden units (6 and 4), with all weights into them and their biases, a quarter of the
    weights from the last hidden layer to the 4 classes, and a quarter of the output biases. In every `every`-th round
    all clients take the same regions.
    """
    six, four = [0, 0, 1, 2, 2, 3], [0, 1, 2, 3]
    region = np.concatenate([np.repeat(six, 3), six, np.repeat(four, 6), four, np.tile(four, 4), four])
    assert len(region) == SIZE
    large = generator(SEED, "levels", turn).permutation(clients)[: clients // 2]
    masks = []
    for client in range(clients):
        count = 2 if level == "L" or (level == "MIX" and client in large) else 1
        common = turn % every == 0
        rng = generator(SEED, "gap", turn) if common else generator(SEED, "regions", turn, client)
        masks.append(np.isin(region, rng.permutation(4)[:count]) if turn else np.ones(SIZE, bool))
    return masks


@pytest.mark.parametrize("level", ["L", "S", "MIX"])
def test_ra_fed_follows_its_formula(level: str) -> None:
    """Algorithm 1: Delta = (theta_0 - theta_T) / gamma; theta -= gamma / Gamma * sum Delta where Gamma > 0."""
    system = System("ra-fed", override={"submodel.level": level, "submodel.uncovered_every": 2})
    theta = start(system.run)
    for turn in range(4):
        masks = regions(level, turn, 2, 5)
        deltas = [masked_delta(system, theta, masks[n], n, turn, momentum=0.5) / -LR for n in range(5)]
        assert turn != 2 or not np.all(np.any(masks, axis=0))
        system.round()
        theta = mean_over_covering(theta, masks, [-LR * delta for delta in deltas])
        close(system.server.params, theta)


@pytest.mark.parametrize("level", ["L", "S"])
@pytest.mark.parametrize("method", ["ram-fed", "ram-fed-mifa"])
def test_ram_fed_follows_its_formula(method: str, level: str) -> None:
    """Algorithm 2: v = mean_n u_n + (1 / Gamma) sum_{covering n} (Delta_n - u_n), theta -= gamma v, u_n <- Delta_n.

    Regions that no client trains move by the mean memory. MIFA's form is v = mean_n u_n with the new u_n.
    """
    system = System(method, override={"submodel.level": level, "submodel.uncovered_every": 2})
    theta, u = start(system.run), np.zeros((5, SIZE))
    for turn in range(4):
        masks = regions(level, turn, 2, 5)
        deltas = [masked_delta(system, theta, masks[n], n, turn, momentum=0.5) / -LR for n in range(5)]
        remembered = u.mean(axis=0)
        corrected = mean_over_covering(remembered, masks, [deltas[n] - u[n] for n in range(5)])
        u = np.where(masks, deltas, u)
        v = u.mean(axis=0) if method == "ram-fed-mifa" else corrected
        before = theta
        theta = theta - LR * v
        system.round()
        close(system.server.params, theta)
        if turn == 2:
            uncovered = ~np.any(masks, axis=0)
            assert uncovered.any()
            close(system.server.params[uncovered], (before - LR * remembered)[uncovered])
            assert np.abs(LR * remembered[uncovered]).max() > 1e-2


def test_subdismo_follows_its_formula() -> None:
    """Algorithm 1: w~ = w + delta g / |g| with masked g, w -= eta grad f(w~) * m. Each round has one random split."""
    system = System("subdismo", override={"local.sam_rho": 0.3}, server_lr=0.7)
    theta = start(system.run)
    ends = MASKABLE[-1].stop
    for turn in range(3):
        split = np.array_split(generator(SEED, "split", turn).permutation(ends), 4)
        masks = []
        for client in range(5):
            chosen = generator(SEED, "parts", turn, client).choice(4, 1 if client < 2 else 2, replace=False)
            mask = np.arange(SIZE) >= ends
            mask[np.concatenate([split[part] for part in chosen])] = True
            masks.append(mask)
        deltas = [masked_delta(system, theta, masks[n], n, turn, sam_rho=0.3) for n in range(5)]
        system.round()
        theta = mean_over_covering(theta, masks, [0.7 * delta for delta in deltas])
        close(system.server.params, theta)


def test_bernoulli_follows_its_formula() -> None:
    """Algorithm 1: m ~ Bernoulli(p_i) on every coordinate, theta <- (1 / N) sum (m w + (1 - m) theta)."""
    system = System("bernoulli", capacities=(0.5, 0.2))
    theta = start(system.run)
    for turn in range(3):
        masks = [generator(SEED, "bernoulli", turn, n).random(SIZE) < (0.5, 0.2)[n % 2] for n in range(5)]
        deltas = [masked_delta(system, theta, masks[n], n, turn) for n in range(5)]
        system.round()
        theta = mean_over_all(theta, masks, deltas)
        close(system.server.params, theta)


def test_bernoulli_kernels_follow_their_formula() -> None:
    """Algorithm 1 as in the experiments: clients train random units of every layer, and the whole output layer."""
    system = System("bernoulli-kernels", capacities=(0.5, 0.3))
    theta = start(system.run)
    for turn in range(3):
        masks, deltas = [], []
        for client in range(5):
            rng = generator(SEED, "bernoulli", turn, client)
            sizes = ((3, 2), (2, 2))[client % 2]  # ceil(p K) of 6 and of 4
            kept = [sorted(rng.permutation(size)[:count]) for size, count in zip((6, 4), sizes, strict=True)]
            mask, delta = slice_delta(system, theta, kept, client, turn)
            masks.append(mask)
            deltas.append(delta)
        system.round()
        theta = mean_over_all(theta, masks, deltas)
        close(system.server.params, theta)


def test_shuffled_follows_its_formula() -> None:
    """Algorithm 2 has fixed blocks, in one order per cycle and capacity. Models are completed by theta and averaged."""
    system = System("shuffled", capacities=(0.5, 0.3))
    theta = start(system.run)
    for turn in range(5):
        masks = []
        for client in range(5):
            count = (2, 4)[client % 2]  # ceil(1 / 0.3) = 4
            block_of = generator(SEED, "blocks", count).permutation(SIZE) * count // SIZE
            order = generator(SEED, "cycle", count, turn // count).permutation(count)
            masks.append(block_of == order[turn % count])
        deltas = [masked_delta(system, theta, masks[n], n, turn) for n in range(5)]
        system.round()
        theta = mean_over_all(theta, masks, deltas)
        close(system.server.params, theta)


@pytest.mark.parametrize("shuffled", [True, False])
def test_shuffled_kernels_follow_their_formula(shuffled: bool) -> None:
    """Algorithm 2 on units: layers of 6 and 4 units have two blocks each, in different orders."""
    system = System("shuffled-kernels", capacities=(0.5,), override={"submodel.shuffled": shuffled})
    theta = start(system.run)
    for turn in range(4):
        cycle, position = divmod(turn, 2)
        rng = generator(SEED, "cycle", 2, cycle)
        # Without shuffling, each layer starts its cycle one block after the block at which the previous
        # layer starts.
        orders = [rng.permutation(2), rng.permutation(2)] if shuffled else [[0, 1], [[0, 1], [1, 0]][cycle]]
        a, b = (order[position] for order in orders)
        kept = range(3 * a, 3 * a + 3), range(2 * b, 2 * b + 2)
        trained = [slice_delta(system, theta, kept, client, turn) for client in range(5)]
        system.round()
        theta = mean_over_all(theta, [mask for mask, _ in trained], [delta for _, delta in trained])
        close(system.server.params, theta)


def test_prunefl_follows_its_formula() -> None:
    """All clients train one mask of half of every tensor. It is chosen again every second round.

    In the first two rounds only client 0 trains, and each round ends with a new mask. Later the smallest 30 % of each
    tensor's weights may be removed. They compete with the absent weights by the sum of squared gradients since the last
    choice, which clients also compute for absent weights. Absent weights are 0 in the model. A weight that returns has
    its earlier value. The mean is weighted by samples.
    """
    system = System("prunefl", submodel="adaptive-pruning(density=0.5, reprune_every=2, initial=2)")
    sizes = system.run.data.sizes
    assert len(set(sizes.tolist())) > 2
    began = start(system.run)
    mask = np.ones(SIZE, bool)
    for where in MASKABLE:
        smallest = np.argsort(np.abs(began[where]))[
            : where.stop - where.start - round(0.5 * (where.stop - where.start))
        ]
        mask[where][smallest] = False
    theta, pruned, squares = began * mask, began.copy(), np.zeros(SIZE)
    close(system.server.params, theta)
    regrown = 0
    for turn in range(6):
        new = []
        cohort = range(1) if turn < 2 else range(5)
        for client in cohort:
            w = theta.copy()
            for x, y in minibatches(system.run, client, turn if client == 0 else turn - 2):
                _, g = loss_gradient(w, x, y, WIDTHS)
                squares += sizes[client] * g**2
                w = w - LR * g * mask
            new.append(w)
        theta = np.average(new, axis=0, weights=sizes[list(cohort)])
        if turn < 2 or turn % 2 == 1:
            kept = mask.copy()
            for where in MASKABLE:
                present = where.start + np.flatnonzero(mask[where])
                share = 0.3 * 0.5 ** ((turn + 1) / 10_000)
                kept[present[np.argsort(np.abs(theta[present]))[: int(share * len(present))]]] = False
            free = [c for c in range(MASKABLE[-1].stop) if not kept[c]]
            places = int(mask.sum() - kept.sum())
            kept[sorted(free, key=lambda c: -squares[c])[:places]] = True
            regrown += int((kept & ~mask).sum())
            pruned = np.where(mask & ~kept, theta, pruned)
            theta = np.where(kept, np.where(mask, theta, pruned), 0)
            mask, squares = kept, np.zeros(SIZE)
        system.round()
        close(system.server.params, theta)
        ours = system.server.state()["followers"][1]
        np.testing.assert_allclose(ours["squares"], squares, rtol=1e-3, atol=1e-4)
    assert regrown > 3
