"""A sharded model has the same bits as an unsharded model after any updates."""

import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedraa.messages import Receipt, RemoteBuffer, Task, Update, Vector, values_of
from fedraa.methods.fed_quilt import DeltaMix
from fedraa.methods.fedasync import ConvexMix
from fedraa.server.async_rule import AsyncModel, AsyncRule
from fedraa.server.stores.local import LocalStore
from fedraa.server.stores.sharded import Shard, Split, assemble_pieces
from fedraa.server.update_checks import check_update
from fedraa.submodels.assignment import Assignment, Submodel

# The coordinates of three fragments: 0 and 5 are in all of them, and 9 is in none.
INDICES = ([0, 1, 2, 5], [0, 3, 4, 5, 10], [0, 5, 6, 7, 8, 11])
SIZE = 12
ALL = [np.array(index) for index in INDICES]
PARTS = [Submodel((len(index),), index) for index in ALL]


def task(fragment: int, params: Vector | RemoteBuffer, number: int = 0) -> Task:
    return Task(number, 0, 0, fragment, 0, 0, PARTS[fragment].widths, params, 0.1, 1.0)


def update(of: Task, params: Vector) -> Update:
    return Update(of.id, of.client, of.fragment, of.version, params, 1, 0.0, 0.0)


def shards(split: Split, params: Vector, rule: AsyncRule) -> list[Shard]:
    where = [[{p.shard: p.where for p in pieces}.get(s) for pieces in split.pieces] for s in range(len(split.own))]
    common = [[{p.shard: p.common for p in pieces}.get(s) for pieces in split.pieces] for s in range(len(split.own))]
    return [
        Shard(
            params[own],
            where[s],
            norms=True,
            adds_deltas=rule.mixing_formula == "add-delta",
            common=common[s],
            shared_weight=rule.shared_weight,
        )
        for s, own in enumerate(split.own)
    ]


def cut(split: Split, there: list[Shard], fragment: int) -> Vector:
    pieces = split.pieces[fragment]
    return assemble_pieces([p.place for p in pieces], [there[p.shard].cut(fragment) for p in pieces])


def test_coordinate_is_stored_on_the_shard_of_its_first_fragment() -> None:
    assert [own.tolist() for own in Split.of(ALL, SIZE, 2).own] == [[0, 1, 2, 5, 6, 7, 8, 11], [3, 4, 10]]
    three = Split.of(ALL, SIZE, 3)
    assert [own.tolist() for own in three.own] == [[0, 1, 2, 5], [3, 4, 10], [6, 7, 8, 11]]
    shared, own = three.pieces[2]
    assert (shared.shard, shared.place.tolist(), shared.where.tolist()) == (0, [0, 1], [0, 3])
    assert (own.shard, own.place.tolist(), own.where.tolist()) == (2, [2, 3, 4, 5], [0, 1, 2, 3])


@pytest.mark.parametrize("rule", [ConvexMix(mixing=0.7, staleness="polynomial"), DeltaMix(staleness="polynomial")])
@pytest.mark.parametrize("count", [1, 2, 3])
@given(
    seed=st.integers(0, 2**32 - 1),
    arrivals=st.lists(st.tuples(st.integers(0, 2), st.integers(0, 9)), min_size=1, max_size=12),
)
def test_sharded_and_unsharded_models_have_the_same_bits(
    rule: AsyncRule, count: int, seed: int, arrivals: list[tuple[int, int]]
) -> None:
    rng = np.random.default_rng(seed)
    start = rng.normal(size=SIZE).astype(np.float32)
    whole, split = LocalStore(start.copy(), PARTS, rule, [1] * 5), Split.of(ALL, SIZE, count)
    there = shards(split, start, rule.bind(AsyncModel(start, 5, len(PARTS))))
    for number, (fragment, stale) in enumerate(arrivals):
        assignment = Assignment(fragment, PARTS[fragment])
        sent = values_of(whole.cut(assignment, number))
        assert sent.tobytes() == cut(split, there, fragment).tobytes()
        new = rng.normal(size=len(sent)).astype(np.float32)
        work = task(fragment, sent, number)
        mix = whole.apply_update(work, assignment, update(work, new), stale).weight
        squared = 0.0
        for piece in split.pieces[fragment]:
            shard = there[piece.shard]
            receipt = shard.receive(number, "push", sent[piece.place], new[piece.place])
            assert (receipt.wrong, receipt.not_finite) == (None, 0)
            squared += receipt.squared
            shard.mix(fragment, number, "push", mix)
        assert squared == pytest.approx(np.square(new.astype(float) - sent).sum())
    full = start.copy()
    for shard, own in zip(there, split.own, strict=True):
        full[own] = shard.params
    assert full.tobytes() == whole.params.tobytes()
    assert full[9] == start[9]


def test_shard_discards_wrong_pushes_and_mixes_only_the_chosen_push() -> None:
    shard = Shard(np.zeros(2, np.float32), [np.arange(2)], norms=False)
    sent, good, other = (np.full(2, value, np.float32) for value in (0, 1, 9))
    refused = shard.receive(7, "a", sent, np.array([np.nan, 1], np.float32))
    assert (refused.wrong, refused.not_finite, refused.squared) == (None, 1, 0.0)
    assert shard.receive(7, "b", sent, np.zeros(3, np.float32)) == Receipt("b", wrong="have the shape (3,), not (2,)")
    assert shard.pushes == 0
    for name, piece in (("c", good), ("d", other)):
        assert shard.receive(7, name, sent, piece) == Receipt(name, largest=piece.max())
    with pytest.raises(KeyError):
        shard.mix(0, 8, "c", 0.5)
    shard.mix(0, 7, "c", 0.5)
    np.testing.assert_array_equal(shard.params, [0.5, 0.5])
    # Other pushes for the task are discarded.
    with pytest.raises(KeyError):
        shard.mix(0, 7, "d", 0.5)
    shard.receive(8, "e", sent, good)
    shard.forget_task(8)
    with pytest.raises(KeyError):
        shard.mix(0, 8, "e", 0.5)


@pytest.mark.parametrize(
    ("receipt", "why"),
    [
        (Receipt("a", squared=4.0), None),
        (Receipt("a", squared=4.1), "the update's norm 2.025 is over the bound 2"),
        (Receipt("a", not_finite=3), "params hold 3 values that are not finite"),
        (Receipt("a", wrong="are float64, not float32"), "params are float64, not float32"),
    ],
)
def test_validation_uses_the_receipts_of_shards(receipt: Receipt, why: str | None) -> None:
    work = task(0, RemoteBuffer(4))
    answer = replace(update(work, np.empty(0, np.float32)), receipt=receipt)
    assert check_update(answer, work, max_norm=2.0) == why


def test_shard_does_not_import_torch() -> None:
    code = "import sys, actors.server.shard; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_shared_weight_does_not_apply_to_full_weight_coordinates() -> None:
    full_weight = np.array([True, False, False, False])
    split = Split.of([np.array([0, 1, 2]), np.array([0, 2, 3])], 4, 2, full_weight)
    for pieces in split.pieces:
        common = [split.own[piece.shard][piece.where[piece.common]] for piece in pieces]
        assert np.concatenate(common).tolist() == [2]
