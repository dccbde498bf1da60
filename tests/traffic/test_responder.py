"""An emulated responder takes what a stream sends: every message arrives, nothing is refused."""

from typing import Any

import pytest

from examples import sampled
from ibwire.base.units import US
from ibwire.rc.attributes import QPType
from ibwire.testing import End, Pair
from ibwire.traffic.builder import Builder
from ibwire.traffic.stream import Icrc, Payload, Stream, Verb
from ibwire_layers import headers as h
from ibwire_layers.opcodes import Service
from ibwire_layers.packet import Packet
from ibwire_layers.syndrome import AckKind, kind

MESSAGES = 200
SIZE = 1 << 20


def answers(end: End, stream: Stream) -> list[Packet]:
    """What a device answers to so many messages."""
    found: list[Any] = []
    count = MESSAGES * stream.packets
    now = 0
    for block in Builder([stream]).blocks(64):
        for row, length in zip(block.frames, block.lengths.tolist(), strict=True):
            if not count:
                return found
            count -= 1
            now += US
            end.device.receive(row[:length].tobytes(), now)
            while (frame := end.device.poll_transmit(now)) is not None:
                found.append(Packet.parse(frame))
    raise AssertionError("the blocks have ended")


def to(end: End, **more: Any) -> Stream:
    """A stream to the queue pair of an end, and into its memory."""
    values: dict[str, Any] = {
        "src": "10.0.0.1",
        "dst": "10.0.0.2",
        "qpns": ((end.qp.number, 1),),
        "src_qpn": 7,
        "va": end.mr.iova,
        "rkey": end.mr.rkey,
    }
    return Stream(**{**values, **more})


def acknowledged(packets: list[Packet]) -> list[int]:
    """PSNs of acknowledgements, of which none may be a NAK."""
    psns = []
    for packet in packets:
        aeth = packet.extension(h.AETH)
        if aeth is not None:
            assert kind(aeth.syndrome) is AckKind.ACK
            psns.append(packet.bth.psn)
    return psns


@pytest.mark.parametrize("size", sampled([1025, 0, 5000, 1, 1024], 2))
@pytest.mark.parametrize("first", sampled([0xFFFFF0, 0], 2))
@pytest.mark.parametrize("verb", [Verb.SEND, Verb.SEND_IMM, Verb.WRITE, Verb.WRITE_IMM, Verb.READ])
def test_a_reliable_responder_acknowledges_every_message(verb: Verb, first: int, size: int) -> None:
    end = Pair(psn_a=first, size=SIZE).b
    for _ in range(MESSAGES):
        end.post_recv(8192)
    stream = to(end, verb=verb, psn=first, size=size, imm=5)

    psns = acknowledged(answers(end, stream))

    last = (first + MESSAGES * stream.psns - 1) % 2**24
    assert psns[-1] == last
    received = end.recv_cq.poll(1000)
    takes = verb in (Verb.SEND, Verb.SEND_IMM, Verb.WRITE_IMM)
    assert len(received) == (MESSAGES if takes else 0)
    assert {wc.status.name for wc in received} <= {"SUCCESS"}
    assert {wc.byte_len for wc in received} <= {size}


def test_writes_that_step_lie_one_behind_the_other_in_memory() -> None:
    end = Pair(size=SIZE).b
    places = 100
    stream = to(
        end, size=1500, payload=Payload.COUNTER, va_step=1500, va_window=places * 1500, psn=0
    )

    acknowledged(answers(end, stream))

    memory = bytes(end.mr.buffer)
    packets = [memory[place * 1500 : place * 1500 + 8] for place in range(places)]
    # 200 messages of two packets: the second round of the window has numbers 200, 202, ...
    assert [int.from_bytes(each) for each in packets] == list(range(200, 400, 2))


def test_atomics_add_up_in_memory() -> None:
    end = Pair(size=SIZE).b

    found = answers(end, to(end, verb=Verb.FADD, swap=3))

    originals = [packet.extension(h.AtomicAckETH) for packet in found]
    assert [each.orig for each in originals if each] == [3 * n for n in range(MESSAGES)]


@pytest.mark.parametrize("verb", [Verb.SEND, Verb.SEND_IMM, Verb.WRITE_IMM])
def test_an_unreliable_connection_receives_every_message(verb: Verb) -> None:
    end = Pair(size=SIZE, qp_type=QPType.UC).b
    for _ in range(MESSAGES):
        end.post_recv(8192)

    assert answers(end, to(end, verb=verb, service=Service.UC, size=3000)) == []
    assert len(end.recv_cq.poll(1000)) == MESSAGES


def test_a_cnp_is_counted_where_it_arrives() -> None:
    end = Pair(size=SIZE).b

    assert answers(end, to(end, verb=Verb.CNP)) == []
    assert end.qp.counters.cnps_received == MESSAGES


def test_packets_with_a_wrong_icrc_are_dropped() -> None:
    end = Pair(size=SIZE).b

    assert answers(end, to(end, icrc=Icrc.WRONG)) == []


def test_a_wrong_key_is_refused() -> None:
    end = Pair(size=SIZE).b

    (nak, *_) = answers(end, to(end, rkey=end.mr.rkey + 1))

    aeth = nak.extension(h.AETH)
    assert aeth is not None
    assert kind(aeth.syndrome) is AckKind.NAK
