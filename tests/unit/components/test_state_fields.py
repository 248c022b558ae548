"""Components declare the attributes that checkpoints hold. Restored attributes keep their types and their arrays."""

import io
from collections import deque
from typing import Any, ClassVar

import numpy as np
import pytest
from refusals import refuses

from fedraa.aggregation.registry import AGGREGATOR
from fedraa.components.state import Stateful, save_state
from fedraa.composition.registry import list_methods
from fedraa.rundir.checkpoint import read_state, write_state
from fedraa.server.async_rule import ASYNC_RULE, AsyncModel
from fedraa.server.optimizers import SERVER_OPTIMIZER


class Memory(Stateful):
    state_fields: ClassVar[tuple[str, ...]] = (
        "_mean",
        "rows",
        "last",
        "seen",
        "recent",
        "scale",
        "order",
        "spare",
        "inner",
        "pair",
    )

    def __init__(self, size: int = 3, inner: "Counter | None" = None) -> None:
        self._mean = np.zeros(size)
        self.rows: dict[int, np.ndarray] = {}
        self.last: dict[str, list[int]] = {}
        self.seen: set[int] = set()
        self.recent: deque[float] = deque(maxlen=2)
        self.scale = np.float32(0)
        self.order: list[int] = []
        self.spare: np.ndarray | None = None
        self.inner = Counter() if inner is None else inner
        self.pair = (Counter(), Counter())
        self.not_saved = object()


class Counter(Stateful):
    state_fields: ClassVar[tuple[str, ...]] = ("count",)

    def __init__(self) -> None:
        self.count = 0


class NamedCounter(Counter):
    state_fields: ClassVar[tuple[str, ...]] = ("name",)

    def __init__(self) -> None:
        super().__init__()
        self.name = "none"


class Undeclared(Stateful):
    def __init__(self) -> None:
        self.count = 0
        self.history = np.zeros(0)


def from_file(state: dict[str, Any]) -> dict[str, Any]:
    stream = io.BytesIO()
    write_state(stream, state)
    return read_state(stream.getvalue())


def filled() -> Memory:
    memory = Memory()
    memory._mean[:] = (1, 2, 3)
    memory.rows = {7: np.ones(2, np.float32), 3: np.zeros(2, np.float32)}
    memory.last = {"a": [1]}
    memory.seen = {5, 2}
    memory.recent.extend((0.5, 1.5, 2.5))
    memory.scale = np.float32(0.1)
    memory.order = [4, 1]
    memory.spare = np.arange(2)
    memory.inner.count = 9
    memory.pair[1].count = 8
    return memory


def test_restored_fields_keep_their_types() -> None:
    memory = Memory()
    memory.restore(from_file(save_state(filled())))
    assert memory._mean.tolist() == [1, 2, 3]
    assert [(client, row.tolist()) for client, row in memory.rows.items()] == [(7, [1, 1]), (3, [0, 0])]
    assert memory.rows[7].dtype == np.float32
    assert memory.last == {"a": [1]}
    assert memory.seen == {2, 5}
    assert memory.recent == deque([1.5, 2.5])
    assert memory.recent.maxlen == 2
    assert memory.scale == np.float32(0.1)
    assert isinstance(memory.scale, np.float32)
    assert memory.order == [4, 1]
    assert memory.spare is not None
    assert memory.spare.tolist() == [0, 1]
    assert memory.inner.count == 9
    assert [counter.count for counter in memory.pair] == [0, 8]


def test_saved_state_drops_underscores_and_lists_a_dict_by_client_as_pairs() -> None:
    state = save_state(filled())
    assert list(state) == ["mean", "rows", "last", "seen", "recent", "scale", "order", "spare", "inner", "pair"]
    assert [client for client, _ in state["rows"]] == [7, 3]
    assert state["last"] == {"a": [1]}
    assert state["seen"] == [2, 5]
    assert state["inner"] == {"count": 9}


def test_restore_keeps_arrays_and_components_as_the_same_objects() -> None:
    memory = Memory()
    mean, view, inner, pair = memory._mean, memory._mean[1:], memory.inner, memory.pair[1]
    memory.restore(save_state(filled()))
    assert memory._mean is mean
    assert view.tolist() == [2, 3]
    assert memory.inner is inner
    assert memory.pair[1] is pair
    assert pair.count == 8


def test_components_in_a_deque_stay_the_same_objects() -> None:
    class Queue(Stateful):
        state_fields: ClassVar[tuple[str, ...]] = ("waiting",)

        def __init__(self) -> None:
            self.waiting = deque([Counter(), Counter()], maxlen=3)

    saved, resumed = Queue(), Queue()
    saved.waiting[1].count = 8
    before = list(resumed.waiting)
    resumed.restore(from_file(save_state(saved)))
    assert list(resumed.waiting) == before
    assert [counter.count for counter in resumed.waiting] == [0, 8]
    assert resumed.waiting.maxlen == 3


def test_components_that_are_restored_from_one_state_share_no_values() -> None:
    state = save_state(filled())
    first, second = Memory(), Memory()
    first.restore(state)
    second.restore(state)
    first.rows[7][:] = -1
    first._mean[:] = -1
    first.last["a"].append(2)
    assert second.rows[7].tolist() == [1, 1]
    assert second._mean.tolist() == [1, 2, 3]
    assert second.last == {"a": [1]}


def test_array_that_is_none_is_restored_as_none() -> None:
    memory = filled()
    memory.restore(save_state(Memory()))
    assert memory.spare is None
    assert memory.rows == {}


def test_subclass_also_saves_the_fields_of_its_base() -> None:
    counter, again = NamedCounter(), NamedCounter()
    counter.count, counter.name = 4, "four"
    again.restore(save_state(counter))
    assert save_state(again) == {"count": 4, "name": "four"}


def test_component_without_state_fields_saves_all_attributes() -> None:
    part, again = Undeclared(), Undeclared()
    part.count, part.history = 3, np.arange(4.0)
    again.restore(from_file(save_state(part)))
    assert again.count == 3
    assert again.history.tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("value", [np.zeros(4), np.zeros(3, np.float32), 0.0, [0.0, 0.0, 0.0]])
def test_an_array_of_another_shape_or_type_is_refused(value: object) -> None:
    state = save_state(filled()) | {"mean": value}
    with refuses("checkpoint", "Memory._mean", "float64 [3]") as caught:
        Memory().restore(state)
    assert caught.value.got is value


def test_a_state_that_lacks_a_field_or_a_component_is_refused() -> None:
    state = save_state(filled())
    del state["order"]
    with refuses("checkpoint", "Memory.order"):
        Memory().restore(state)
    with refuses("checkpoint", "Memory.pair", "2"):
        Memory().restore(save_state(filled()) | {"pair": [{"count": 1}]})


@pytest.mark.parametrize("value", [{(1, 2): 3}, {(1, 2)}, [{1}], {"a": {1: 2}}])
def test_a_field_that_a_checkpoint_cannot_hold_is_refused(value: Any) -> None:
    memory = Memory()
    memory.order = value
    with refuses("state", "Memory", "state_fields"):
        save_state(memory)


SIZE, CLIENTS = 5, 4
PARTS = [
    *(ASYNC_RULE.resolve(name).bind(AsyncModel(np.zeros(SIZE, np.float32), CLIENTS, 1)) for name in ASYNC_RULE.names()),
    *(AGGREGATOR.resolve(name).bind(SIZE, CLIENTS) for name in AGGREGATOR.names()),
    *(SERVER_OPTIMIZER.resolve(name).bind(SIZE) for name in SERVER_OPTIMIZER.names()),
]


@pytest.mark.parametrize("part", PARTS, ids=lambda part: type(part).__name__)
def test_restore_keeps_arrays_of_built_in_components_as_the_same_objects(part: Stateful) -> None:
    before = arrays(part)
    part.restore(from_file(save_state(part)))
    after = arrays(part)
    assert before.keys() == after.keys()
    assert all(after[name] is before[name] for name in before)


def arrays(part: Stateful) -> dict[str, np.ndarray]:
    return {name: value for name, value in vars(part).items() if isinstance(value, np.ndarray)}


def test_every_built_in_component_of_a_method_declares_its_fields() -> None:
    parts = [method.update for method in list_methods().values()]
    for part in parts:
        if isinstance(part, Stateful):
            assert hasattr(type(part), "state_fields"), type(part).__name__
