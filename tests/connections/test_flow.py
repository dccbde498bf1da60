"""Flows are distinguished by both addresses, the destination queue pair and the service."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from emulated_traffic import pcap
from examples import scaled
from ibwire.capture import open_capture
from ibwire.connections import flow, packets
from ibwire.connections.flow import FlowKey, FlowKeys, Flows
from ibwire.dissect import Columns
from ibwire_layers import headers as h
from ibwire_layers.opcodes import OpCode, Service
from ibwire_layers.outer import UDP, Ethernet, IPv4, IPv6
from ibwire_layers.packet import Packet, RoCEv2Route


def frame(
    src: int, dst: int, qpn: int, opcode: int = OpCode.RC_SEND_ONLY, src_qpn: int = 0
) -> bytes:
    ip = IPv4(src=src, dst=dst) if src < 1 << 32 else IPv6(src=src, dst=dst)
    extensions = (h.DETH(src_qp=src_qpn),) if opcode == OpCode.UD_SEND_ONLY else ()
    payload = bytes(16 if opcode == OpCode.CNP else 0)
    route = RoCEv2Route(ip, UDP(src_port=50000), Ethernet(type=0x0800 if src < 1 << 32 else 0x86DD))
    return Packet(route, h.BTH(opcode, dest_qp=qpn), extensions, payload).repaired().build()


def columns(frames: list[bytes]) -> Columns:
    with open_capture(pcap(enumerate(frames))) as capture:
        (batch,) = capture.batches()
        return Columns(batch)


def numbers(flows: Flows, frames: list[bytes]) -> list[int]:
    chunk = columns(frames)
    found: list[int] = flows.numbers(chunk, packets.known(chunk)).tolist()
    return found


WIDE = 0xFE80 << 112
ENDS = st.sampled_from((0x0A000001, 0x0A000002, 0x0A000003))
KINDS = st.tuples(ENDS, ENDS, st.integers(1, 4), st.booleans())


@settings(max_examples=scaled(30))
@given(st.lists(KINDS, min_size=1, max_size=60), st.integers(0, 60))
def test_flows_are_numbered_as_they_are_met_also_over_chunks(
    kinds: list[tuple[int, int, int, bool]], cut: int
) -> None:
    met: dict[tuple[int, int, int, bool], int] = {}
    expected = [met.setdefault(kind, len(met)) for kind in kinds]
    frames = [frame(a + WIDE * wide, b + WIDE * wide, qpn) for a, b, qpn, wide in kinds]
    flows = Flows()

    found = [
        number for part in (frames[:cut], frames[cut:]) if part for number in numbers(flows, part)
    ]

    assert found == expected
    assert len(flows.keys) == len(met)


def test_a_key_says_who_sends_to_which_queue_pair() -> None:
    flows = Flows()

    numbers(flows, [frame(0x0A000001, 0x0A000002, 5), frame(1 + WIDE, 2 + WIDE, 6)])

    assert list(flows.keys) == [
        FlowKey("10.0.0.1", "10.0.0.2", 5, Service.RC),
        FlowKey("fe80::1", "fe80::2", 6, Service.RC),
    ]
    assert flows.find(flows.keys[1]) == 1
    assert flows.find(FlowKey("10.0.0.1", "10.0.0.2", 7, Service.RC)) is None


def test_ends_of_flows_have_small_numbers_however_many_addresses_there_are() -> None:
    """Pairing shifts them by 42 bits: numbers up to the addresses of a capture are too many."""
    keys = FlowKeys()
    for host in range(20_000):
        keys.append(FlowKey("h", f"{host}", 1, Service.RC))
        if host % 3 == 0:
            keys.append(FlowKey(f"{host}", "h", 2, Service.UC if host % 2 else Service.RC))
    flows = np.array([*range(5, len(keys), 7), 1, 0, 2], np.int64)

    there, back = keys.ends(flows)

    own = [(keys[each].src, keys[each].dst, keys[each].service) for each in flows.tolist()]
    number = dict(zip(own, there.tolist(), strict=True))
    assert [number[each] for each in own] == there.tolist()
    assert sorted(set(number.values())) == list(range(len(number)))
    assert back.tolist() == [number.get((dst, src, kind), -1) for src, dst, kind in own]
    assert max(back) >= 0


def test_services_and_senders_of_datagrams_are_flows_of_their_own() -> None:
    ends = 0x0A000001, 0x0A000002, 5
    frames = [
        frame(*ends),
        frame(*ends, OpCode.UC_SEND_ONLY),
        frame(*ends, OpCode.UD_SEND_ONLY, 7),
        frame(*ends, OpCode.UD_SEND_ONLY, 8),
        frame(*ends, OpCode.CNP),
    ]
    flows = Flows()

    assert numbers(flows, frames) == [0, 1, 2, 3, 0]
    assert [key.src_qpn for key in flows.keys] == [None, None, 7, 8]


def test_a_full_table_of_direct_answers_makes_no_difference(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(flow, "_SLOTS", 2)
    frames = [frame(0x0A000001, 0x0A000002, qpn) for qpn in range(1, 200)]
    flows = Flows()

    for _ in range(2):
        assert numbers(flows, frames) == list(range(199))


def test_rows_that_may_not_begin_a_flow_get_none() -> None:
    frames = [frame(0x0A000001, 0x0A000002, qpn) for qpn in (1, 2, 1)]
    chunk, flows = columns(frames), Flows()

    found = flows.numbers(chunk, packets.known(chunk), np.array([True, False, False]))

    assert found.tolist() == [0, -1, 0]
    assert len(flows.keys) == 1
