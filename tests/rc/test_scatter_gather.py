"""Data of a message, spread over pieces of memory and collected from them."""

from __future__ import annotations

import pytest

from ibwire.rc.memory import Access, KeyTable, ProtectionDomain
from ibwire.rc.sge import gather, scatter
from ibwire.rc.work import SGE

READ, LOCAL_WRITE = int(Access.REMOTE_READ), int(Access.LOCAL_WRITE)


def test_list_of_sges_is_one_run_of_bytes(keys: KeyTable, pd: ProtectionDomain) -> None:
    one, two = pd.register(bytearray(b"abcdef"), LOCAL_WRITE), pd.register(4, LOCAL_WRITE)
    sges = [SGE(one.iova + 1, 3, one.lkey), SGE(0, 0, 0xBAD), SGE(two.iova, 4, two.lkey)]

    assert scatter(keys, pd, sges, 2, b"XYZ")

    assert bytes(one.buffer) == b"abcXef"
    assert bytes(two.buffer) == b"YZ\0\0"
    assert gather(keys, pd, sges, 0, 7) == b"bcXYZ\0\0"
    assert gather(keys, pd, sges, 3, 2) == b"YZ"


def test_no_bytes_need_no_key(keys: KeyTable, pd: ProtectionDomain) -> None:
    for sges in ([], [SGE(0, 0, 0xBAD)], [SGE(0, 8, 0xBAD)], [SGE(0, 0, 0), SGE(9, 9, 9)]):
        assert gather(keys, pd, sges, 0, 0) == b""
        assert scatter(keys, pd, sges, 0, b"")


def test_scatter_that_fails_in_its_last_part_writes_nothing(
    keys: KeyTable, pd: ProtectionDomain
) -> None:
    good, readable = pd.register(4, LOCAL_WRITE), pd.register(4, READ)
    sges = [SGE(good.iova, 4, good.lkey), SGE(readable.iova, 4, readable.lkey)]

    assert not scatter(keys, pd, sges, 0, b"12345678")
    assert not scatter(keys, pd, sges[:1], 1, b"1234")
    assert bytes(good.buffer) == bytes(4)
    assert gather(keys, pd, sges, 0, 8) == bytes(8)


@pytest.mark.parametrize("count", [1, 2])
def test_scatter_needs_local_write_and_gather_does_not(
    keys: KeyTable, pd: ProtectionDomain, count: int
) -> None:
    region = pd.register(bytearray(b"abcd"), READ)
    sges = [SGE(region.iova, 4, region.lkey)] * count

    assert not scatter(keys, pd, sges, 0, b"wxyz")
    assert bytes(region.buffer) == b"abcd"
    assert gather(keys, pd, sges, 0, 4) == b"abcd"


def test_list_that_is_too_short_is_a_fault(keys: KeyTable, pd: ProtectionDomain) -> None:
    region = pd.register(16, LOCAL_WRITE)
    short = SGE(region.iova, 4, region.lkey)

    for sges in ([], [short], [short, short]):
        assert gather(keys, pd, sges, 0, 9) is None
        assert not scatter(keys, pd, sges, 0, bytes(9))
