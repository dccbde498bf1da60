"""Keys, regions, windows: what each access check lets through and what it stops."""

from __future__ import annotations

import errno
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from each_case import each_case
from ibwire.base.errors import VerbsError
from ibwire.rc.memory import Access, KeyTable, MemoryRegion, ProtectionDomain
from ibwire.rc.sge import gather, scatter
from ibwire.rc.work import SGE, MWBindInfo

FULL = int(Access.LOCAL_WRITE | Access.REMOTE_WRITE | Access.REMOTE_READ | Access.REMOTE_ATOMIC)
BINDABLE = int(Access.LOCAL_WRITE | Access.MW_BIND)
READ, WRITE = int(Access.REMOTE_READ), int(Access.REMOTE_WRITE)
ATOMIC, LOCAL_WRITE = int(Access.REMOTE_ATOMIC), int(Access.LOCAL_WRITE)
TOP = 1 << 64
QP = 17


def raises(code: int, call: Callable[[], object]) -> None:
    with pytest.raises(VerbsError) as caught:
        call()
    assert caught.value.errno == code


# Registration.


@pytest.mark.parametrize("flag", [Access.REMOTE_WRITE, Access.REMOTE_ATOMIC])
def test_remote_write_and_atomic_need_local_write(pd: ProtectionDomain, flag: Access) -> None:
    raises(errno.EINVAL, lambda: pd.register(8, flag))
    assert pd.users == 0
    assert pd.register(8, flag | Access.LOCAL_WRITE).valid


def test_remote_read_needs_no_local_write(pd: ProtectionDomain) -> None:
    assert pd.register(8, READ).valid


@pytest.mark.parametrize(
    "flag",
    [
        Access.ON_DEMAND,
        Access.HUGETLB,
        Access.RELAXED_ORDERING,
        Access.FLUSH_GLOBAL,
        Access.FLUSH_PERSISTENT,
        1 << 29,
    ],
)
def test_flags_that_change_nothing_here_are_accepted(
    keys: KeyTable, pd: ProtectionDomain, flag: int
) -> None:
    region = pd.register(8, FULL | flag)

    assert keys.find_remote(pd, QP, region.rkey, region.iova, 8, WRITE) == (region, 0)


@pytest.mark.parametrize("flag", [1 << 10, 1 << 19, 1 << 30, -1])
def test_unknown_access_flags_are_einval(pd: ProtectionDomain, flag: int) -> None:
    raises(errno.EINVAL, lambda: pd.register(8, flag))


def test_memory_of_a_size_is_zero_bytes(pd: ProtectionDomain) -> None:
    assert bytes(pd.register(5, 0).buffer) == b"\0\0\0\0\0"


def test_region_and_its_bytearray_are_the_same_memory(pd: ProtectionDomain) -> None:
    memory = bytearray(b"abcdef")
    region = pd.register(memory, LOCAL_WRITE)

    region.write(region.iova + 2, b"XY")
    memory[0] = ord("Z")

    assert memory == b"ZbXYef"
    assert region.read(region.iova, 4) == b"ZbXY"


def test_wider_items_count_as_their_bytes(pd: ProtectionDomain) -> None:
    assert pd.register(memoryview(bytearray(24)).cast("Q"), 0).length == 24


def test_sliced_memory_with_gaps_is_einval(pd: ProtectionDomain) -> None:
    raises(errno.EINVAL, lambda: pd.register(memoryview(bytearray(8))[::2], 0))


def test_read_only_memory_has_no_local_write(pd: ProtectionDomain) -> None:
    raises(errno.EFAULT, lambda: pd.register(memoryview(b"abcd"), LOCAL_WRITE))
    region = pd.register(memoryview(b"abcd"), READ)
    raises(errno.EFAULT, lambda: region.write(region.iova, b"x"))


def test_negative_size_is_einval_and_an_impossible_one_enomem(pd: ProtectionDomain) -> None:
    raises(errno.EINVAL, lambda: pd.register(-1, 0))
    raises(errno.ENOMEM, lambda: pd.register(1 << 62, 0))
    raises(errno.ENOMEM, lambda: pd.register(1 << 80, 0))


@pytest.mark.parametrize("iova", [-1, TOP - 7, TOP])
def test_address_range_past_64_bits_is_einval(pd: ProtectionDomain, iova: int) -> None:
    raises(errno.EINVAL, lambda: pd.register(8, 0, iova=iova))


def test_zero_based_region_begins_at_0(keys: KeyTable, pd: ProtectionDomain) -> None:
    region = pd.register(8, FULL | Access.ZERO_BASED)

    assert region.iova == 0
    assert keys.find_remote(pd, QP, region.rkey, 3, 5, READ) == (region, 3)
    raises(errno.EINVAL, lambda: pd.register(8, Access.ZERO_BASED, iova=4096))


def test_addresses_handed_out_never_overlap(pd: ProtectionDomain) -> None:
    regions = [pd.register(size, 0) for size in (0, 1, 4095, 4096, 4097, 0, 3)]

    ends = [(r.iova, r.iova + r.length) for r in regions]
    assert all(end < start for (_, end), (start, _) in pairwise(ends))


def test_closed_domain_registers_nothing(pd: ProtectionDomain) -> None:
    pd.close()

    raises(errno.EINVAL, lambda: pd.register(8, 0))
    raises(errno.EINVAL, lambda: pd.allocate_window(1))


def test_domain_in_use_cannot_be_closed(pd: ProtectionDomain) -> None:
    region, window = pd.register(8, 0), pd.allocate_window(2)

    raises(errno.EBUSY, pd.close)
    region.deregister()
    raises(errno.EBUSY, pd.close)
    window.deallocate()
    pd.close()


# Keys.


def test_key_is_a_24_bit_index_and_8_more_bits(pd: ProtectionDomain) -> None:
    made = [pd.register(1, 0).lkey for _ in range(600)]

    assert len({key >> 8 for key in made}) == 600
    assert all(0 < key >> 8 < 1 << 24 for key in made)


def test_rkey_is_the_lkey(pd: ProtectionDomain) -> None:
    """As in rxe since Linux 6.4: a reregistration may grant remote access to a known key."""
    for access in (0, FULL):
        region = pd.register(8, access)
        assert region.rkey == region.lkey


def test_keys_are_the_same_in_every_run() -> None:
    first, second = (ProtectionDomain(KeyTable()) for _ in range(2))

    assert [first.register(9, 0).lkey for _ in range(5)] == [
        second.register(9, 0).lkey for _ in range(5)
    ]


def test_devices_that_start_elsewhere_share_no_key_or_address() -> None:
    a, b = ProtectionDomain(KeyTable()), ProtectionDomain(KeyTable(1000))

    ours, theirs = ([pd.register(9, 0) for _ in range(20)] for pd in (a, b))

    assert not {r.lkey for r in ours} & {r.lkey for r in theirs}
    assert not {r.iova for r in ours} & {r.iova for r in theirs}


def test_indices_start_again_with_other_low_bytes() -> None:
    last = (1 << 24) - 2
    pd = ProtectionDomain(KeyTable(last))
    before = pd.register(1, 0).lkey
    keeper = pd.register(1, 0).lkey

    assert before >> 8 == (1 << 24) - 1
    assert keeper >> 8 == 1
    first = ProtectionDomain(KeyTable()).register(1, 0).lkey
    assert first >> 8 == 1
    assert first != keeper


def test_index_in_use_is_passed_over_when_indices_start_again(keys: KeyTable) -> None:
    taken = keys.new_key() >> 8
    keys._handed_out += (1 << 24) - 2  # As if the other indices had been used and freed.

    assert keys.new_key() >> 8 == taken + 1


# Local access.


def test_local_read_needs_no_flag_and_local_write_does(
    keys: KeyTable, pd: ProtectionDomain
) -> None:
    region = pd.register(8, 0)

    assert keys.find_local(pd, region.lkey, region.iova, 8, 0) is region
    assert keys.find_local(pd, region.lkey, region.iova, 8, LOCAL_WRITE) is None


def test_other_domain_low_byte_or_index_is_a_fault(keys: KeyTable, pd: ProtectionDomain) -> None:
    region, other = pd.register(8, FULL), ProtectionDomain(keys)
    at = region.iova

    assert keys.find_local(other, region.lkey, at, 8, 0) is None
    assert keys.find_remote(other, QP, region.rkey, at, 8, READ) is None
    for key in (region.lkey ^ 1, region.lkey + 256, 0, -1, 1 << 40):
        assert keys.find_local(pd, key, at, 8, 0) is None
        assert keys.find_remote(pd, QP, key, at, 8, READ) is None


def test_deregistered_key_is_a_fault(keys: KeyTable, pd: ProtectionDomain) -> None:
    memory = bytearray(8)
    region = pd.register(memory, FULL)
    at, key = region.iova, region.lkey

    region.deregister()
    region.deregister()

    assert keys.find_local(pd, key, at, 8, 0) is None
    assert keys.find_remote(pd, QP, key, at, 8, READ) is None
    assert not region.valid
    assert pd.users == 0
    raises(errno.EFAULT, lambda: region.read(at, 1))
    memory.append(1)  # Nothing holds it any more.


# Remote access.


@pytest.mark.parametrize("granted", [READ, WRITE, ATOMIC, READ | ATOMIC, FULL, 0])
@pytest.mark.parametrize("wanted", [READ, WRITE, ATOMIC])
def test_each_remote_access_needs_its_flag(
    keys: KeyTable, pd: ProtectionDomain, granted: int, wanted: int
) -> None:
    region = pd.register(8, granted | LOCAL_WRITE)

    found = keys.find_remote(pd, QP, region.rkey, region.iova, 8, wanted)

    assert (found is not None) == bool(granted & wanted)


def test_flush_needs_every_requested_placement(keys: KeyTable, pd: ProtectionDomain) -> None:
    """An older rxe was content with any of them (reference/transport#memory-access)."""
    region = pd.register(8, Access.FLUSH_GLOBAL)
    both = int(Access.FLUSH_GLOBAL | Access.FLUSH_PERSISTENT)

    assert keys.find_remote(pd, QP, region.rkey, region.iova, 8, int(Access.FLUSH_GLOBAL))
    assert keys.find_remote(pd, QP, region.rkey, region.iova, 8, both) is None


@each_case(
    ("start", "length", "inside"),
    [
        (0, 16, True),
        (0, 0, True),
        (16, 0, True),
        (15, 1, True),
        (0, 17, False),
        (16, 1, False),
        (17, 0, False),
        (15, 2, False),
        (-1, 1, False),
        (-1, 2, False),
        (-1, 0, False),
        (4, -1, False),
        (0, TOP - 1, False),
        (8, TOP - 8, False),
        (8, TOP, False),
    ],
)
@each_case("iova", [0, 4096, TOP - 16])
def test_bounds(iova: int, start: int, length: int, inside: bool) -> None:
    keys = KeyTable()
    pd = ProtectionDomain(keys)
    region = pd.register(16, FULL, iova=iova)
    va = iova + start

    assert (keys.find_local(pd, region.lkey, va, length, 0) is region) == inside
    found = keys.find_remote(pd, QP, region.rkey, va, length, READ)
    assert found == ((region, start) if inside else None)
    # A wire has no address outside 64 bits; the wrapped one must not do either.
    if not inside:
        assert keys.find_remote(pd, QP, region.rkey, va % TOP, length, READ) is None


def test_zero_length_region_has_only_zero_length_accesses(
    keys: KeyTable, pd: ProtectionDomain
) -> None:
    region = pd.register(0, FULL)

    assert keys.find_remote(pd, QP, region.rkey, region.iova, 0, READ) == (region, 0)
    assert keys.find_remote(pd, QP, region.rkey, region.iova, 1, READ) is None
    assert region.read(region.iova, 0) == b""
    assert pd.register(memoryview(bytearray()), 0).length == 0


def test_application_outside_its_region_is_efault(pd: ProtectionDomain) -> None:
    region = pd.register(8, LOCAL_WRITE)

    for addr, size in ((region.iova - 1, 2), (region.iova + 7, 2), (0, 1), (region.iova, -1)):
        raises(errno.EFAULT, lambda a=addr, s=size: region.read(a, s))  # type: ignore[misc]
    raises(errno.EFAULT, lambda: region.write(region.iova + 7, b"ab"))


def test_atomics_see_a_little_endian_number(pd: ProtectionDomain) -> None:
    memory = bytearray(b"\xff" + bytes([1, 2, 3, 4, 5, 6, 7, 8]) + b"\xff")
    region = pd.register(memory, FULL)

    assert region.load64(1) == 0x0807060504030201
    region.store64(1, (1 << 64) + 0x1122)
    assert memory == b"\xff\x22\x11\0\0\0\0\0\0\xff"


# Reregistration.


def test_reregistration_keeps_the_key(keys: KeyTable, pd: ProtectionDomain) -> None:
    """pyverbs' test_mr_rereg_access continues with the rkey of a region without remote access."""
    region = pd.register(8, LOCAL_WRITE)
    rkey = region.rkey
    assert keys.find_remote(pd, QP, rkey, region.iova, 8, WRITE) is None

    region.reregister(access=LOCAL_WRITE | WRITE)

    assert region.rkey == rkey
    assert keys.find_remote(pd, QP, rkey, region.iova, 8, WRITE) == (region, 0)


def test_reregistration_moves_to_another_domain(keys: KeyTable, pd: ProtectionDomain) -> None:
    other = ProtectionDomain(keys)
    region = pd.register(8, 0)

    region.reregister(pd=other)

    assert keys.find_local(pd, region.lkey, region.iova, 8, 0) is None
    assert keys.find_local(other, region.lkey, region.iova, 8, 0) is region
    assert (pd.users, other.users) == (0, 1)


def test_reregistered_memory_has_another_address(keys: KeyTable, pd: ProtectionDomain) -> None:
    region, memory = pd.register(8, 0), bytearray(b"0123456789abcdef")
    old = region.iova

    region.reregister(memory=memory)

    assert keys.find_local(pd, region.lkey, old, 8, 0) is None
    assert region.read(region.iova, 16) == bytes(memory)
    region.reregister(iova=4096)
    assert region.read(4096, 16) == bytes(memory)


def test_failed_reregistration_changes_nothing(keys: KeyTable, pd: ProtectionDomain) -> None:
    region, foreign, closed = (
        pd.register(8, FULL),
        ProtectionDomain(KeyTable()),
        ProtectionDomain(keys),
    )
    closed.close()
    before = (region.pd, region.iova, region.length, region.access, region.rkey)

    raises(errno.EINVAL, lambda: region.reregister(access=WRITE, memory=16))
    raises(errno.EINVAL, lambda: region.reregister(pd=foreign, memory=16))
    raises(errno.EINVAL, lambda: region.reregister(pd=closed, memory=16))
    raises(errno.EINVAL, lambda: region.reregister(iova=TOP))
    raises(errno.EFAULT, lambda: region.reregister(memory=memoryview(b"abc")))

    assert before == (region.pd, region.iova, region.length, region.access, region.rkey)
    assert (pd.users, foreign.users, closed.users) == (1, 0, 0)
    region.deregister()
    raises(errno.EINVAL, lambda: region.reregister(access=0))


# Nothing outside: a map of bytes, kept in another way than the code keeps it.


ARENA = 256


@dataclass(frozen=True)
class Piece:
    """A region in the arena: the bytes at [start, start + length) have addresses from iova."""

    start: int
    length: int
    iova: int
    access: int
    domain: int


def arena_map(piece: Piece) -> dict[int, int]:
    """Arena position of every address of a region."""
    return {piece.iova + i: piece.start + i for i in range(piece.length)}


iovas = st.one_of(
    st.integers(0, 40), st.integers(1 << 32, (1 << 32) + 40), st.integers(TOP - 40, TOP - 1)
)


@st.composite
def pieces(draw: st.DrawFn) -> Piece:
    start = draw(st.integers(1, ARENA - 42))
    length = draw(st.integers(0, 40))
    iova = min(draw(iovas), TOP - length)
    access = draw(st.sampled_from([0, READ, LOCAL_WRITE, LOCAL_WRITE | WRITE, FULL]))
    return Piece(start, length, iova, access, draw(st.integers(0, 1)))


hostile_addresses = st.one_of(iovas, st.integers(-50, TOP + 50))
hostile_lengths = st.one_of(
    st.integers(0, 45), st.integers(-5, TOP + 5), st.just(1 << 31), st.just((1 << 32) - 1)
)


def set_up(layout: list[Piece]) -> tuple[bytearray, list[ProtectionDomain], list[MemoryRegion]]:
    keys = KeyTable()
    domains = [ProtectionDomain(keys), ProtectionDomain(keys)]
    arena = bytearray(i % 251 for i in range(ARENA))
    view = memoryview(arena)
    regions = [
        domains[p.domain].register(view[p.start : p.start + p.length], p.access, iova=p.iova)
        for p in layout
    ]
    return arena, domains, regions


@given(
    st.lists(pieces(), min_size=1, max_size=4),
    st.integers(0, 3),
    st.integers(-1, 1),
    hostile_addresses,
    hostile_lengths,
    st.sampled_from([READ, WRITE, ATOMIC, READ | WRITE]),
)
def test_remote_access_reaches_exactly_the_mapped_bytes(
    layout: list[Piece], which: int, key_change: int, va: int, length: int, access: int
) -> None:
    _, domains, regions = set_up(layout)
    which %= len(layout)
    rkey = regions[which].rkey + key_change
    piece = layout[which]
    positions = arena_map(piece)
    edge = {piece.iova, piece.iova + piece.length}
    open_bytes = positions.keys() | (edge if length == 0 else set())
    allowed = (
        key_change == 0
        and piece.domain == 0
        and access & piece.access == access
        and 0 <= length <= 40
        and all(a in open_bytes for a in range(va, va + max(length, 1)))
    )

    found = domains[0].keys.find_remote(domains[0], QP, rkey, va, length, access)

    assert (found is not None) == allowed
    if found is not None and length:
        region, offset = found
        assert region is regions[which]
        assert piece.start + offset == positions[va]
        assert offset + length <= len(region.buffer)


@given(
    st.lists(pieces(), min_size=1, max_size=4),
    st.lists(st.tuples(st.integers(0, 4), st.integers(-3, 43), st.integers(0, 20)), max_size=4),
    st.integers(0, 30),
    st.binary(max_size=40),
)
def test_scatter_and_gather_touch_exactly_the_mapped_bytes(
    layout: list[Piece], shape: list[tuple[int, int, int]], offset: int, data: bytes
) -> None:
    arena, domains, regions = set_up(layout)
    untouched = bytes(arena)
    sges: list[SGE] = []
    readable: list[int | None] = []
    writable: list[int | None] = []
    for which, start, length in shape:
        known = which < len(layout)
        piece = layout[which % len(layout)]
        key = regions[which % len(layout)].lkey if known else 0xBAD00
        sges.append(SGE(piece.iova + start, length, key))
        positions = arena_map(piece) if known and piece.domain == 0 else {}
        at = [positions.get(piece.iova + start + i) for i in range(length)]
        readable += at
        writable += at if piece.access & LOCAL_WRITE else [None] * length
    wanted = slice(offset, offset + len(data))
    from_, to = readable[wanted], writable[wanted]
    complete = len(from_) == len(data)

    read = gather(domains[0].keys, domains[0], sges, offset, len(data))
    assert bytes(arena) == untouched
    written = scatter(domains[0].keys, domains[0], sges, offset, data)

    gathered = [untouched[p] for p in from_ if p is not None]
    assert read == (bytes(gathered) if complete and None not in from_ else None)
    assert written == (complete and None not in to)
    expected = bytearray(untouched)
    if written:
        for position, byte in zip(to, data, strict=True):
            assert position is not None
            expected[position] = byte
    assert arena == expected


@given(
    st.integers(0, 40),
    iovas,
    hostile_addresses,
    hostile_lengths,
    st.booleans(),
    hostile_addresses,
    hostile_lengths,
)
def test_window_reaches_only_bytes_of_its_region(
    size: int,
    iova: int,
    addr: int,
    length: int,
    zero_based: bool,
    va: int,
    wanted: int,
) -> None:
    iova = min(iova, TOP - size)
    keys = KeyTable()
    pd = ProtectionDomain(keys)
    region, window = pd.register(size, BINDABLE, iova=iova), pd.allocate_window(2)
    access = READ | (int(Access.ZERO_BASED) if zero_based else 0)
    lent = range(addr, addr + length) if 0 < length <= 40 else range(0)

    bound = keys.bind(window, QP, pd, MWBindInfo(region, addr, length, access), 9)
    found = keys.find_remote(pd, QP, window.rkey, va, wanted, READ)

    assert bound == (len(lent) > 0 and set(lent) <= set(range(iova, iova + size)))
    if found is not None:
        first = va + addr if zero_based else va
        assert bound
        assert 0 <= wanted <= length
        assert set(range(first, first + wanted)) <= set(lent)
        assert found == (region, first - iova)
