"""The virtual memory of scripts, alone and through `mem_alloc`."""

from __future__ import annotations

import errno
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ibwire.base.errors import VerbsError
from ibwire.verbs import mem_alloc
from ibwire.verbs.memory import PAGE, Memory
from ibwire.verbs.network import Network, use
from ibwire.verbs.pyverbs_error import PyverbsRDMAError


@given(st.lists(st.tuples(st.integers(0, 5000), st.integers(0, 12)), max_size=20))
def test_blocks_are_aligned_and_never_touch(wanted: list[tuple[int, int]]) -> None:
    memory = Memory()
    blocks = [(memory.allocate(size, 1 << log), size, 1 << log) for size, log in wanted]

    assert all(start % alignment == 0 for start, _, alignment in blocks)
    for (start, size, _), (following, _, _) in pairwise(blocks):
        assert start + size < following


@given(st.integers(0, 1 << 64), st.integers(-5, 1 << 33), st.data())
def test_only_bytes_of_one_block_can_be_had(address: int, size: int, data: st.DataObject) -> None:
    memory = Memory()
    starts = [memory.allocate(100) for _ in range(3)]
    if data.draw(st.booleans()):
        address = data.draw(st.sampled_from(starts)) + data.draw(st.integers(-3, 103))
        size = data.draw(st.integers(-1, 103))
    inside = any(s <= address and size >= 0 and address + size <= s + 100 for s in starts)
    if inside:
        assert len(memory.at(address, size)) == size
        return

    with pytest.raises(VerbsError) as fault:
        memory.at(address, size)
    assert fault.value.errno == errno.EFAULT


def test_released_block_is_inaccessible_and_its_neighbours_are_not() -> None:
    memory = Memory()
    first, second, third = (memory.allocate(10) for _ in range(3))
    memory.release(second)

    assert memory.at(first, 10) is not None
    assert memory.at(third, 10) is not None
    with pytest.raises(VerbsError):
        memory.at(second, 1)
    with pytest.raises(VerbsError):
        memory.release(second)


def test_addresses_of_two_networks_are_the_same_numbers_for_other_bytes() -> None:
    with use(Network()):
        one = mem_alloc.malloc(8)
        mem_alloc.write(one, b"one", 3)
    with use(Network()):
        other = mem_alloc.malloc(8)

        assert other == one
        assert mem_alloc.read(other, 3) == bytes(3)


def test_numbers_are_written_big_endian_and_read_little_endian() -> None:
    address = mem_alloc.malloc(16)
    mem_alloc.writebe32(address, 0x01020304, 1)
    mem_alloc.writebe64(address, 0x05060708090A0B0C, 1)

    assert mem_alloc.read(address, 12, 4) == bytes(range(1, 13))
    assert mem_alloc.read32(address, 1) == 0x04030201
    assert mem_alloc.read64(address, 1) == 0x0C0B0A0908070605


def test_mapped_pages_are_whole_and_zeroed_by_advice() -> None:
    address = mem_alloc.mmap(length=PAGE + 1)
    assert address % PAGE == 0
    mem_alloc.write(address, b"x" * 2 * PAGE, 2 * PAGE)

    mem_alloc.madvise(address, PAGE)

    assert mem_alloc.read(address, PAGE) == bytes(PAGE)
    assert mem_alloc.read(address, 1, PAGE) == b"x"
    mem_alloc.munmap(address, 2 * PAGE)
    with pytest.raises(PyverbsRDMAError):
        mem_alloc.read(address, 1)


def test_what_cannot_be_allocated_is_a_memory_error() -> None:
    for impossible in (
        lambda: mem_alloc.malloc(1 << 62),
        lambda: mem_alloc.malloc(-1),
        lambda: mem_alloc.posix_memalign(8, 3),
        lambda: mem_alloc.mmap(length=0),
        lambda: mem_alloc.mmap(flags=mem_alloc.MAP_SHARED_),
        lambda: mem_alloc.munmap(4096, 4096),
    ):
        with pytest.raises(MemoryError):
            impossible()


def test_freeing_nothing_is_allowed() -> None:
    mem_alloc.free(0)


def test_writing_more_than_is_given_is_refused() -> None:
    with pytest.raises(PyverbsRDMAError) as pyverbs_errors:
        mem_alloc.write(mem_alloc.malloc(8), b"abc", 4)
    assert pyverbs_errors.value.error_code == errno.EFAULT


def test_advice_inside_a_page_is_refused() -> None:
    with pytest.raises(PyverbsRDMAError) as pyverbs_errors:
        mem_alloc.madvise(mem_alloc.mmap() + 1, 1)
    assert pyverbs_errors.value.error_code == errno.EINVAL
