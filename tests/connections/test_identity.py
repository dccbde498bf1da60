"""IP identifications: copies, swaps, and what was left out."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ibwire.connections.identity import DUPLICATE_NS, KEEP, Identity, Recent
from ibwire.connections.packets import ROW, Rows, TransportPacket


def packet(
    ip_id: int = 0, time_ns: int = 0, *, icrc: int | None = None, psn: int = 0
) -> TransportPacket:
    zeros = TransportPacket._make(0 for _ in TransportPacket._fields)
    icrc = ip_id if icrc is None else icrc
    return zeros._replace(ip_id=ip_id, time_ns=time_ns, psn=psn, opcode=4, icrc=icrc)


def noted(*ids: int) -> Identity:
    identity = Identity()
    for ip_id in ids:
        identity.note(packet(ip_id))
    return identity


def test_identifications_that_go_up_count_up_also_over_the_wrap() -> None:
    assert noted(7, 8, 12).counts_up
    assert noted(0xFFFE, 0xFFFF, 0, 1).counts_up


@pytest.mark.parametrize("ids", [(0, 0, 0), (5, 40000, 123), (9,), (-1, -1)])
def test_identifications_that_are_all_alike_or_random_do_not(ids: tuple[int, ...]) -> None:
    assert not noted(*ids).counts_up


def test_a_packet_behind_the_newest_was_overtaken() -> None:
    identity = noted(0xFFFF, 0, 1)

    assert identity.is_overtaken(packet(0xFFFF), otherwise=False)
    assert not identity.is_overtaken(packet(2), otherwise=True)


def test_without_counting_the_caller_decides_what_was_overtaken() -> None:
    identity = noted(0, 0)

    assert identity.is_overtaken(packet(0), otherwise=True)
    assert not identity.is_overtaken(packet(0), otherwise=False)


def test_the_same_identification_and_icrc_again_is_a_copy_at_any_time() -> None:
    identity = noted(7, 8)

    assert identity.is_duplicate(packet(8, 10**9), None, has_cause=True)
    assert not identity.is_duplicate(packet(9), packet(8), has_cause=False)
    assert not identity.is_duplicate(packet(8, icrc=99), packet(8), has_cause=False)


def test_without_counting_a_copy_comes_soon_and_for_no_reason() -> None:
    identity, before = noted(0, 0), packet(0, 1000)

    assert identity.is_duplicate(packet(0, 1000 + DUPLICATE_NS - 1), before, has_cause=False)
    assert not identity.is_duplicate(packet(0, 1000 + DUPLICATE_NS), before, has_cause=False)
    assert not identity.is_duplicate(packet(0, 1001), before, has_cause=True)
    assert not identity.is_duplicate(packet(0, 1001, icrc=5), before, has_cause=False)
    assert not identity.is_duplicate(packet(0, 1001), None, has_cause=False)


def test_what_was_left_out_is_counted_until_it_comes() -> None:
    identity = noted(10, 11)

    assert identity.note(packet(15)) == 3
    assert identity.note(packet(13)) == -1
    assert identity.note(packet(13)) == 0
    assert identity.note(packet(16)) == 0
    assert identity.note(packet(9)) == 0  # before the first


def test_unseen_identifications_between_two_packets() -> None:
    identity = noted(0xFFFD, 0xFFFF, 2)

    assert identity.unseen(packet(0xFFFD), packet(2)) == {0xFFFE, 0, 1}
    assert identity.unseen(packet(2), packet(3)) == set()
    assert identity.unseen(packet(2), packet(1)) == set()


STEPS = st.lists(st.integers(1, 2000), min_size=1, max_size=200)


@given(
    start=st.integers(0, 0xFFFF),
    steps=STEPS | st.just([0] * 100),
    cut=st.integers(0, 100),
    parts=st.integers(1, 20),
)
def test_many_at_once_are_as_one_by_one(start: int, steps: list[int], cut: int, parts: int) -> None:
    ids = (start + np.cumsum(steps) & 0xFFFF).astype(np.int32)
    alone, together = Identity(), Identity()
    skipped = [each.note(packet(int(i))) for each in (alone,) for i in ids]
    for each in ids[:cut]:
        together.note(packet(int(each)))
    count = sum(skipped[cut:])
    if len(ids) > cut:
        for few in np.array_split(ids[cut:], parts):
            if len(few):
                count -= int(together.note_many(few, few.astype(np.uint32)).sum())
        assert count == 0

    assert (together.high, together.counts_up) == (alone.high, alone.counts_up)
    expected = alone.newest
    seen = {*ids.tolist(), *(ids - 1 & 0xFFFF).tolist()}
    for each in seen:  # before they are put together
        assert together.icrc_of(each) == expected.get(each, -1)
    assert list(together.newest.items()) == list(expected.items())
    assert len(expected) <= KEEP


def test_identifications_that_come_round_to_the_first_are_all_remembered() -> None:
    ids = np.array([5, 40000, 5], np.int32)
    identity = Identity()

    identity.note_many(ids, np.array([1, 2, 3], np.uint32))

    assert list(identity.newest.items()) == [(40000, 2), (5, 3)]


@given(st.lists(st.tuples(st.integers(0, 100), st.just(0) | st.integers(1, 80)), max_size=300))
def test_the_newest_packets_are_kept_by_psn_however_they_come(puts: list[tuple[int, int]]) -> None:
    """Some one by one, in any order, some as arrays, whose PSNs go on."""
    recent, following, blank = Recent(), 0, packet()
    expected: dict[int, TransportPacket] = {}
    for number, (back, count) in enumerate(puts):
        psn = following if count else max(following - back, 0)
        packets = [packet(psn=psn + k, time_ns=number) for k in range(count or 1)]
        for each in packets:
            expected.pop(each.psn, None)
            expected[each.psn] = each
        following = max(following, psn + len(packets))
        if count:
            rows = Rows(np.array(packets, ROW))
            if back % 2:
                recent.add_many(rows.psn.astype(np.int64), rows)
            else:  # among others in the same arrays
                around = Rows(np.array([blank, *packets, blank], ROW))
                last = packets[-1].psn
                recent.add_places(
                    around.psn.astype(np.int64), around, 1, 1 + count, first=psn, last=last
                )
                if back % 4:
                    recent.copy_kept()
        else:
            recent.add(psn, packets[0])
    newest = dict(list(expected.items())[-KEEP:])

    assert recent.last_added == (list(newest.values()) or [None])[-1]
    assert recent.psns() == set(newest)
    assert all(recent.get(psn) == newest.get(psn) for psn in range(following + 1))
    assert recent.all() == newest
    assert all(recent.get(psn) == each for psn, each in newest.items())


def test_what_is_kept_of_arrays_of_many_connections_is_short() -> None:
    rows = Rows(np.array([packet(ip_id, psn=ip_id) for ip_id in range(1000)], ROW))
    ids, psn = rows.ip_id.copy(), rows.psn.astype(np.int64)
    identity, recent = Identity(), Recent()

    identity.remember(ids, rows.icrc.copy(), 100, 300, last=299, ahead=199)
    recent.add_places(psn, rows, 100, 300, first=100, last=299)
    identity.copy_kept()
    recent.copy_kept()
    ids[:], psn[:], rows.psn[:] = 0, 0, 0

    assert list(identity.newest) == list(range(300 - KEEP, 300))
    assert [each.psn for each in recent.all().values()] == list(range(300 - KEEP, 300))
