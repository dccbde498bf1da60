"""The memory that a capture tells of."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ibwire.rc.memory import Access, ProtectionDomain
from ibwire.replay import inferred
from ibwire.replay.inferred import InferredKeys, Memory

SPACE = ((1, 0), 5)
addresses = st.integers((1 << 32) - 5000, (1 << 32) + 5000)


@given(st.lists(st.tuples(addresses, st.binary(min_size=1, max_size=9000)), max_size=6))
def test_memory_holds_what_was_written_last(writes: Any) -> None:
    memory, model = Memory(), dict[int, int]()
    for va, data in writes:
        memory.write(SPACE, va, data)
        model.update(enumerate(data, va))

    start, size = (1 << 32) - 5000, 20000
    assert memory.read(SPACE, start, size) == bytes(model.get(start + n, 0) for n in range(size))


@given(
    addresses, st.binary(min_size=1, max_size=300), addresses, st.binary(min_size=1, max_size=300)
)
def test_bytes_are_known_otherwise_only_where_they_were_written(
    va: Any, data: bytes, other: Any, shown: bytes
) -> None:
    memory = Memory()
    memory.write(SPACE, va, data)
    written = dict(enumerate(data, va))

    expected = any(written.get(other + n, byte) != byte for n, byte in enumerate(shown))
    assert memory.contradicts(SPACE, other, shown) is expected


def test_the_same_address_under_another_key_or_host_is_other_memory() -> None:
    memory = Memory()
    memory.write(SPACE, 0, b"here")

    assert memory.read(((1, 0), 6), 0, 4) == bytes(4)
    assert memory.read(((2, 0), 5), 0, 4) == bytes(4)


def test_pages_that_were_not_written_for_long_are_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(inferred, "PAGES", 4)
    memory = Memory()
    for page in range(6):
        memory.write(SPACE, page * 4096, b"x")

    assert [memory.read(SPACE, page * 4096, 1) for page in range(6)] == [
        *[b"\0"] * 2,
        *[b"x"] * 4,
    ]


def test_a_region_of_two_gigabytes_costs_one_packet() -> None:
    keys = InferredKeys(Memory(), (1, 0))
    found = keys.find_remote(ProtectionDomain(keys), 1, 5, 0, 1 << 31, int(Access.REMOTE_WRITE))

    assert found is not None
    assert len(found[0].buffer) == 4096


def test_a_range_beyond_the_end_of_addresses_is_refused() -> None:
    keys = InferredKeys(Memory(), (1, 0))
    domain = ProtectionDomain(keys)

    assert keys.find_remote(domain, 1, 5, (1 << 64) - 4, 8, int(Access.REMOTE_READ)) is None


def test_only_what_was_executed_is_kept() -> None:
    memory = Memory()
    keys = InferredKeys(memory, (1, 0))
    for size in (0, 2):
        keys.expect()
        found = keys.find_remote(ProtectionDomain(keys), 1, 5, 0, 4, int(Access.REMOTE_WRITE))
        assert found is not None
        found[0].buffer[:4] = b"abcd"
        keys.release(size)

        assert memory.read(SPACE, 0, 4) == b"abcd"[:size].ljust(4, b"\0")
