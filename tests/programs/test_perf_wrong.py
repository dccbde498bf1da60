"""Wrong contents and counts that `ibwire perf` finds."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from ibwire.base.errors import PeerError
from ibwire.programs.perf_contents import pieces_kept, pieces_sent
from ibwire.programs.perf_flows import Flow, Plan, Receives
from ibwire.programs.perf_requests import Outgoing, Reads
from ibwire.programs.perftest import Layout, Record, Verb
from ibwire.rc.attributes import QPAttr, QPAttrMask, QPState, QPType
from ibwire.rc.device import Device
from ibwire.rc.qp import QPInit
from ibwire.rc.work import WC, WCOpcode, WCStatus
from programs.perf_play import play
from socket_port import endpoints


def test_wrong_byte_of_a_send_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """The sender's row of bytes has one that is wrong, which is in 64 of 256 pieces."""
    spoil(monkeypatch, Outgoing)
    _, server = play(Plan(Verb.SEND, size=64, messages=256))

    assert not server.passed
    assert server.wrong == 64


def test_wrong_byte_of_a_write_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the last round of 64 places these pieces cover byte 100."""
    spoil(monkeypatch, Outgoing)
    _, server = play(Plan(Verb.WRITE, size=64, messages=128))

    # The last messages are 64 to 127, piece n begins at byte n: 64 to 100 have it.
    assert server.wrong == 37


def spoil(monkeypatch: pytest.MonkeyPatch, kind: type) -> None:
    make = kind.__init__  # type: ignore[misc]

    def spoiled(self: Any, pd: Any, pieces: Any, *rest: Any) -> None:
        row = bytearray(pieces.row)
        row[100] ^= 1
        pieces.row = bytes(row)
        make(self, pd, pieces, *rest)

    monkeypatch.setattr(kind, "__init__", spoiled)


def test_wrong_byte_of_a_read_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """The server's memory differs in its first byte: place 0 of 64."""
    change_server_memory(monkeypatch, 0)
    client, _ = play(Plan(Verb.READ, size=64, messages=128))

    assert client.wrong == 2


@pytest.mark.parametrize("swaps", [False, True])
def test_wrong_number_of_an_atomic_is_counted(monkeypatch: pytest.MonkeyPatch, swaps: bool) -> None:
    """Place 0 of 64 holds 128 more or less: its first result is wrong, and from there it counts."""
    change_server_memory(monkeypatch, 0, 0x80)
    client, server = play(Plan(Verb.ATOMIC, messages=256, swaps=swaps))

    assert client.wrong == 1
    assert not server.passed


def change_server_memory(monkeypatch: pytest.MonkeyPatch, offset: int, bits: int = 1) -> None:
    bring_up = Flow.bring_up

    def change(self: Flow, *arguments: Any) -> None:
        bring_up(self, *arguments)
        if self.own.gid & 0xFF == 2:
            assert self.buffer is not None
            self.buffer.buffer[offset] ^= bits

    monkeypatch.setattr(Flow, "bring_up", change)


@pytest.mark.parametrize("is_ibwire", [False, True])
def test_places_that_no_write_has_reached_are_counted(is_ibwire: bool) -> None:
    a, _ = endpoints()
    plan, layout = Plan(Verb.WRITE, size=64), Layout(64)
    cqs = (a.device.create_cq(200), a.device.create_cq(1000))
    with a, a.port:
        flow = Flow(a, a.device.alloc_pd(), plan, layout, cqs, 0, 0)
        flow.peer = Record(1, 2, 3)

        assert flow.written(is_ibwire=is_ibwire, messages=10)[0] == 10
        assert flow.written(is_ibwire=is_ibwire, messages=1000)[0] == layout.places


def test_message_of_another_size_is_wrong() -> None:
    plan = Plan(Verb.SEND, size=100, messages=10)
    _, server = play(plan, replace(plan, size=90))

    assert server.wrong == 10


def test_client_that_sends_fewer_than_were_agreed() -> None:
    plan = Plan(Verb.SEND, size=100, messages=100)
    with pytest.raises(
        PeerError, match="has sent 10 of 100 messages: start both ends with the same -n"
    ):
        play(plan, replace(plan, messages=10))


def test_what_has_been_seen_does_not_count_for_what_has_not_come() -> None:
    """A message of the very same bytes that never arrives is found: its memory was cleared."""
    device = Device("a", "10.0.0.1")
    pd = device.alloc_pd()
    peer, layout = Record(1, 2, 3, 4, 5), Layout(3000)
    kept = pieces_kept(peer, layout)
    reads = Reads(pd, kept, layout, peer, 0, 1)
    (sge,) = reads.signaled[0].sg_list
    region = device.keys.find_local(pd, sge.lkey, sge.addr, sge.length, 0)
    assert region is not None
    region.write(sge.addr, kept.row[:3000])

    assert reads.settle(0, 1) == 0
    assert reads.settle(0, 1) == 1

    cq = device.create_cq(4)
    qp = device.create_qp(QPInit(QPType.RC, pd, cq, cq))
    qp.modify(QPAttr(qp_state=QPState.INIT), INIT_MASK)
    sent = pieces_sent(peer, layout)
    receives = Receives(pd, qp, Plan(Verb.SEND, size=3000, receives=1), sent)
    wr = qp.receives.waiting[0]
    region = device.keys.find_local(pd, wr.sg_list[0].lkey, wr.sg_list[0].addr, 3000, 0)
    assert region is not None
    region.write(region.iova, sent.row[:3000])
    wc = WC(0, WCStatus.SUCCESS, WCOpcode.RECV, qp.number, byte_len=3000)

    assert receives.take(wc, 0)
    assert not receives.take(wc, 0)


INIT_MASK = int(
    QPAttrMask.STATE | QPAttrMask.PKEY_INDEX | QPAttrMask.PORT | QPAttrMask.ACCESS_FLAGS
)
