"""Memory windows: what is bound, what it opens, and what ends it."""

from __future__ import annotations

import errno
from collections.abc import Callable
from typing import Any

import pytest

from ibwire.base.errors import VerbsError
from ibwire.rc.memory import (
    Access,
    KeyTable,
    MemoryRegion,
    MemoryWindow,
    ProtectionDomain,
    WindowState,
)
from ibwire.rc.work import MWBindInfo, SendWR, WCFlags, WCOpcode, WCStatus, WROpcode
from ibwire.testing import Pair, statuses, summaries
from ibwire_layers import headers as h

BINDABLE = int(Access.LOCAL_WRITE | Access.MW_BIND)
READ, WRITE = int(Access.REMOTE_READ), int(Access.REMOTE_WRITE)
ATOMIC, LOCAL_WRITE = int(Access.REMOTE_ATOMIC), int(Access.LOCAL_WRITE)
TOP = 1 << 64
QP = 17

S = WCStatus


def raises(code: int, call: Callable[[], object]) -> None:
    with pytest.raises(VerbsError) as caught:
        call()
    assert caught.value.errno == code


# In the key table.


def bind(
    window: MemoryWindow,
    region: MemoryRegion | None,
    start: int = 0,
    length: int = 8,
    access: int = READ | WRITE,
    *,
    pd: ProtectionDomain | None = None,
    qp: int = QP,
    low: int = 0x55,
) -> bool:
    addr = start + (region.iova if region is not None else 0)
    info = MWBindInfo(region, addr, length, access)
    return window.pd.keys.bind(window, qp, pd or window.pd, info, low)


@pytest.mark.parametrize("kind", [1, 2])
def test_window_permits_access_to_its_part_only(
    keys: KeyTable, pd: ProtectionDomain, kind: int
) -> None:
    region, window = pd.register(64, BINDABLE), pd.allocate_window(kind)
    assert bind(window, region, 16, 8)
    at = region.iova + 16

    assert keys.find_remote(pd, QP, window.rkey, at, 8, WRITE) == (region, 16)
    assert keys.find_remote(pd, QP, window.rkey, at + 7, 1, READ) == (region, 23)
    assert keys.find_remote(pd, QP, window.rkey, at - 1, 1, READ) is None
    assert keys.find_remote(pd, QP, window.rkey, at, 9, READ) is None
    assert keys.find_remote(pd, QP, window.rkey, at, 8, ATOMIC) is None
    assert keys.find_remote(ProtectionDomain(keys), QP, window.rkey, at, 8, READ) is None
    assert keys.find_local(pd, window.rkey, at, 8, 0) is None


@pytest.mark.parametrize(("kind", "served"), [(1, True), (2, False)])
def test_type_2_window_serves_only_the_queue_pair_that_bound_it(
    keys: KeyTable, pd: ProtectionDomain, kind: int, served: bool
) -> None:
    region, window = pd.register(64, BINDABLE), pd.allocate_window(kind)
    assert bind(window, region)

    found = keys.find_remote(pd, QP + 1, window.rkey, region.iova, 8, READ)

    assert (found is not None) == served


@pytest.mark.parametrize("kind", [1, 2])
def test_binding_keeps_the_index_and_takes_the_low_byte(pd: ProtectionDomain, kind: int) -> None:
    region, window = pd.register(64, BINDABLE), pd.allocate_window(kind)
    old = window.rkey

    assert bind(window, region, low=0xABCDEF77)

    assert window.rkey == old & 0xFFFFFF00 | 0x77
    assert pd.keys.find_remote(pd, QP, old, region.iova, 8, READ) is None


def test_type_1_window_is_bound_again_at_once(keys: KeyTable, pd: ProtectionDomain) -> None:
    one, two = pd.register(64, BINDABLE), pd.register(64, BINDABLE)
    window = pd.allocate_window(1)
    assert bind(window, one, low=1)
    old = window.rkey

    assert bind(window, two, low=2)

    assert keys.find_remote(pd, QP, old, one.iova, 8, READ) is None
    assert keys.find_remote(pd, QP, window.rkey, two.iova, 8, READ) == (two, 0)
    one.deregister()
    raises(errno.EINVAL, two.deregister)


@pytest.mark.parametrize("with_region", [False, True])
def test_zero_length_binding_unbinds_type_1(pd: ProtectionDomain, with_region: bool) -> None:
    region, window = pd.register(64, BINDABLE), pd.allocate_window(1)
    assert bind(window, region)

    assert bind(window, region if with_region else None, length=0, low=0x66)

    assert window.rkey & 0xFF == 0x66
    assert window.state is WindowState.VALID
    assert pd.keys.find_remote(pd, QP, window.rkey, region.iova, 0, READ) is None
    region.deregister()


@pytest.mark.parametrize("with_region", [False, True])
def test_zero_length_binding_of_type_2_is_a_fault(pd: ProtectionDomain, with_region: bool) -> None:
    region, window = pd.register(64, BINDABLE), pd.allocate_window(2)

    assert not bind(window, region if with_region else None, length=0)
    assert window.state is WindowState.FREE


def test_type_2_window_must_be_free_to_be_bound(keys: KeyTable, pd: ProtectionDomain) -> None:
    region, window = pd.register(64, BINDABLE), pd.allocate_window(2)
    assert bind(window, region, 0, low=1)

    assert not bind(window, region, 8, low=2)

    assert window.rkey & 0xFF == 1
    assert keys.find_remote(pd, QP, window.rkey, region.iova, 8, READ) == (region, 0)
    assert keys.invalidate(window.rkey, pd, QP)
    assert bind(window, region, 8, low=2)


@pytest.mark.parametrize("kind", [1, 2])
def test_window_of_another_domain_cannot_be_bound(
    keys: KeyTable, pd: ProtectionDomain, kind: int
) -> None:
    other = ProtectionDomain(keys)
    ours, theirs = pd.register(64, BINDABLE), other.register(64, BINDABLE)
    window = pd.allocate_window(kind)

    assert not bind(window, ours, pd=other)
    assert not bind(window, theirs)


@pytest.mark.parametrize("kind", [1, 2])
@pytest.mark.parametrize(
    ("granted", "wanted", "bound"),
    [
        (LOCAL_WRITE, READ, False),
        (int(Access.MW_BIND), READ, True),
        (int(Access.MW_BIND), 0, True),
        (int(Access.MW_BIND), WRITE, False),
        (int(Access.MW_BIND), ATOMIC, False),
        (BINDABLE, READ | WRITE | ATOMIC, True),
        (BINDABLE, LOCAL_WRITE | WRITE, True),
        (BINDABLE, 1 << 15, False),
        (BINDABLE | Access.ZERO_BASED, READ, False),
    ],
)
def test_what_a_region_must_grant_for_a_window(
    pd: ProtectionDomain, kind: int, granted: int, wanted: int, bound: bool
) -> None:
    """C10-73, C10-74; the region needs no remote access itself."""
    region, window = pd.register(64, granted), pd.allocate_window(kind)

    assert bind(window, region, access=wanted) == bound


@pytest.mark.parametrize("kind", [1, 2])
@pytest.mark.parametrize(
    ("start", "length", "bound"),
    [
        (0, 64, True),
        (63, 1, True),
        (0, 65, False),
        (64, 1, False),
        (-1, 2, False),
        (8, TOP - 8, False),
        (8, -4, False),
    ],
)
def test_window_lies_within_its_region(
    pd: ProtectionDomain, kind: int, start: int, length: int, bound: bool
) -> None:
    region, window = pd.register(64, BINDABLE), pd.allocate_window(kind)

    assert bind(window, region, start, length) == bound


def test_zero_based_window_counts_from_its_own_start(keys: KeyTable, pd: ProtectionDomain) -> None:
    region, window = pd.register(64, BINDABLE), pd.allocate_window(2)

    assert bind(window, region, 16, 8, READ | Access.ZERO_BASED)

    assert keys.find_remote(pd, QP, window.rkey, 3, 5, READ) == (region, 19)
    assert keys.find_remote(pd, QP, window.rkey, 3, 6, READ) is None
    assert keys.find_remote(pd, QP, window.rkey, region.iova + 16, 1, READ) is None


def test_zero_based_window_lies_within_its_region_too(pd: ProtectionDomain) -> None:
    region, window = pd.register(64, BINDABLE), pd.allocate_window(2)

    assert not bind(window, region, 60, 8, READ | Access.ZERO_BASED)


def test_type_1_window_is_never_zero_based(pd: ProtectionDomain) -> None:
    region, window = pd.register(64, BINDABLE), pd.allocate_window(1)

    assert not bind(window, region, access=READ | Access.ZERO_BASED)


def test_bound_region_is_neither_deregistered_nor_reregistered(pd: ProtectionDomain) -> None:
    region, window = pd.register(64, BINDABLE), pd.allocate_window(2)
    assert bind(window, region)

    raises(errno.EINVAL, region.deregister)
    raises(errno.EINVAL, lambda: region.reregister(access=0))
    window.deallocate()
    region.deregister()


def test_deregistered_region_takes_no_window(pd: ProtectionDomain) -> None:
    region, window = pd.register(64, BINDABLE), pd.allocate_window(1)
    region.deregister()

    assert not bind(window, region)


@pytest.mark.parametrize("kind", [1, 2])
def test_deallocated_window_is_worthless(keys: KeyTable, pd: ProtectionDomain, kind: int) -> None:
    region, window = pd.register(64, BINDABLE), pd.allocate_window(kind)
    assert bind(window, region)
    rkey = window.rkey

    window.deallocate()
    window.deallocate()

    assert keys.find_remote(pd, QP, rkey, region.iova, 8, READ) is None
    assert not keys.invalidate(rkey, pd, QP)
    assert not bind(window, region)
    assert window.state is WindowState.INVALID
    assert pd.users == 1


def test_invalidated_window_is_free_and_opens_nothing(keys: KeyTable, pd: ProtectionDomain) -> None:
    region, window = pd.register(64, BINDABLE), pd.allocate_window(2)
    assert bind(window, region)

    assert keys.invalidate(window.rkey, pd, QP)

    assert window.state is WindowState.FREE
    assert keys.find_remote(pd, QP, window.rkey, region.iova, 8, READ) is None
    assert keys.invalidate(window.rkey, pd, QP)
    region.deregister()


def test_what_cannot_be_invalidated(keys: KeyTable, pd: ProtectionDomain) -> None:
    region, first, second = pd.register(64, BINDABLE), pd.allocate_window(1), pd.allocate_window(2)
    assert bind(first, region)
    assert bind(second, region)

    assert not keys.invalidate(region.rkey, pd, QP)
    assert not keys.invalidate(first.rkey, pd, QP)
    assert not keys.invalidate(second.rkey ^ 1, pd, QP)
    assert not keys.invalidate(second.rkey, pd, QP + 1)
    assert not keys.invalidate(second.rkey, ProtectionDomain(keys), QP)
    assert not keys.invalidate(0, pd, QP)
    assert keys.find_remote(pd, QP, second.rkey, region.iova, 8, READ) == (region, 0)


def test_there_are_windows_of_type_1_and_2(pd: ProtectionDomain) -> None:
    for kind in (0, 3):
        raises(errno.EINVAL, lambda k=kind: pd.allocate_window(k))  # type: ignore[misc]
    assert pd.users == 0


# By the verbs.


def windowed() -> tuple[Pair, Any, Any, int]:
    """A window of type 2 over bytes 100 to 299 of a region of `b`, bound by a work request."""
    pair = Pair()
    region = pair.b.pd.register(1000, int(Access.LOCAL_WRITE | Access.MW_BIND))
    window = pair.b.pd.allocate_window(2)
    new = window.rkey & ~0xFF | (window.rkey + 1) & 0xFF
    info = MWBindInfo(region, region.iova + 100, 200, int(Access.REMOTE_WRITE))
    pair.b.qp.post_send(SendWR(WROpcode.BIND_MW, rkey=new, mw=window, bind_info=info, wr_id=50))
    pair.run()
    (wc,) = pair.b.send_cq.poll(9)
    assert (wc.wr_id, wc.status, wc.opcode) == (50, S.SUCCESS, WCOpcode.BIND_MW)
    assert pair.packets() == []  # a local operation
    return pair, region, window, new


def through(pair: Pair, region: Any, rkey: int, start: int, length: int) -> WCStatus:
    """How a WRITE through a key ends."""
    pair.a.post_send(WROpcode.RDMA_WRITE, length=length, rkey=rkey, remote_addr=region.iova + start)
    pair.run()
    return pair.a.poll_send_cq()[0].status


def test_window_opens_what_it_is_bound_to() -> None:
    pair, region, window, rkey = windowed()
    data = bytes(range(200))
    pair.a.write(0, data)

    assert window.rkey == rkey
    assert through(pair, region, rkey, 100, 200) is S.SUCCESS
    assert region.read(region.iova, 1000) == bytes(100) + data + bytes(700)
    assert through(pair, region, rkey, 101, 200) is S.REM_ACCESS_ERR
    assert summaries(pair.packets("b"))[-1] == "ACKNOWLEDGE 1 0x62"


def test_send_with_invalidate_closes_the_window() -> None:
    pair, region, _, rkey = windowed()
    pair.b.post_recv(64, wr_id=3)
    pair.a.post_send(WROpcode.SEND_WITH_INV, length=8, invalidate_rkey=rkey)
    pair.run()

    assert pair.packets("a")[0].opcode_name == "RC_SEND_ONLY_WITH_INVALIDATE"
    assert pair.packets("a")[0].extension(h.IETH).rkey == rkey
    (wc,) = pair.b.poll_recv_cq()
    assert (wc.wr_id, wc.status, wc.opcode) == (3, S.SUCCESS, WCOpcode.RECV)
    assert (wc.wc_flags, wc.imm_data, wc.byte_len) == (WCFlags.WITH_INV, rkey, 8)
    assert statuses(pair.a.poll_send_cq()) == [(0, S.SUCCESS)]
    assert through(pair, region, rkey, 100, 8) is S.REM_ACCESS_ERR
    assert region.read(region.iova, 1000) == bytes(1000)


def test_local_invalidate_closes_the_window() -> None:
    pair, region, _, rkey = windowed()
    pair.b.qp.post_send(SendWR(WROpcode.LOCAL_INV, invalidate_rkey=rkey, wr_id=51))
    pair.run()

    (wc,) = pair.b.send_cq.poll(9)
    assert (wc.wr_id, wc.status, wc.opcode) == (51, S.SUCCESS, WCOpcode.LOCAL_INV)
    assert through(pair, region, rkey, 100, 8) is S.REM_ACCESS_ERR


def test_bind_that_may_not_be_is_a_bind_error_after_what_was_posted_before() -> None:
    """A region without MW_BIND; local operations take no PSN."""
    pair = Pair()
    window = pair.a.pd.allocate_window(2)
    info = MWBindInfo(pair.a.mr, pair.a.mr.iova, 8, int(Access.REMOTE_WRITE))
    pair.a.post_send(WROpcode.RDMA_WRITE, length=8, wr_id=1)
    pair.a.qp.post_send(SendWR(WROpcode.BIND_MW, mw=window, bind_info=info, wr_id=2))
    pair.a.post_send(WROpcode.RDMA_WRITE, length=8, wr_id=3)
    pair.run()

    assert summaries(pair.packets("a")) == ["RDMA_WRITE_ONLY 0"]
    assert statuses(pair.a.poll_send_cq()) == [
        (1, S.SUCCESS),
        (2, S.MW_BIND_ERR),
        (3, S.WR_FLUSH_ERR),
    ]
