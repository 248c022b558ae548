"""Slots of the shared memory are reused only when no array uses them, and packed objects keep their values."""

import gc
import os

import numpy as np
import pytest

from fedraa.engine import shared_memory
from fedraa.engine.shared_memory import ALIGNMENT, INLINE_BYTES, SharedMemory, Slots, count_room, pack, unpack, write

LARGE = np.arange(INLINE_BYTES, dtype=np.float32)
SMALL = np.arange(3, dtype=np.float32)


def test_slot_is_reused_after_the_last_array_in_it_is_gone() -> None:
    slots = Slots()
    lease = slots.lease(100)
    place = lease.place
    array = np.frombuffer(lease.content.data[:40], np.float32)
    part = array[2:5]
    del lease, array
    gc.collect()
    other = slots.lease(100)
    assert other.place != place
    del part
    gc.collect()
    assert slots.lease(100).place == place


def test_slot_much_larger_than_needed_is_kept_for_larger_arrays() -> None:
    slots = Slots()
    large = slots.lease(2**20).place
    gc.collect()
    small = slots.lease(2**17)
    assert small.place != large
    assert slots.lease(2**19).place == large


@pytest.mark.parametrize("room", [0, LARGE.nbytes, 2 * LARGE.nbytes + 2 * ALIGNMENT])
def test_object_is_the_same_whether_its_arrays_fit_into_the_slot_or_not(room: int) -> None:
    slots = Slots()
    value = {"first": LARGE, "second": LARGE[::-1].copy(), "small": SMALL, "columns": np.asfortranarray(np.eye(90))}
    lease = slots.lease(max(1, room))
    packed = pack(value, room)
    assert count_room(packed.arrays) <= room
    pieces = write(packed.arrays, lease.place, lease.content)
    assert len(pieces) == {0: 0, LARGE.nbytes: 1}.get(room, 2)
    found = unpack(packed.body, pieces, lambda place: lease.content)
    assert found.keys() == value.keys()
    assert all(np.array_equal(found[name], value[name]) for name in value)
    in_slot = [array for array in found.values() if not array.flags.writeable]
    assert len(in_slot) == len(pieces)


def test_new_slots_do_not_overlap() -> None:
    slots = Slots()
    leases = [slots.lease(size) for size in (1, 5000, 4096, 0, 4097)]
    for number, lease in enumerate(leases):
        lease.content[:] = number
    assert [set(lease.content.tolist()) for lease in leases] == [{number} for number in range(5)]


def test_many_slots_need_few_file_descriptors() -> None:
    slots = Slots()
    slots.lease(1)
    before = len(os.listdir("/dev/fd"))
    leases = [slots.lease(INLINE_BYTES) for _ in range(500)]
    assert len(os.listdir("/dev/fd")) <= before + 1
    assert len({lease.place for lease in leases}) == 500


def test_slots_larger_than_a_segment_do_not_overlap(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_memory, "SEGMENT_BYTES", 2**16)
    slots = Slots()
    leases = [slots.lease(size) for size in (2**12, 2**18 + 1, 2**15, 2**16, 2**15, 2**15, 2**17)]
    for number, lease in enumerate(leases):
        lease.content[:] = number
    other = SharedMemory(slots.memory.descriptor)
    assert [set(other.view(lease.place)) for lease in leases] == [{number} for number in range(7)]
