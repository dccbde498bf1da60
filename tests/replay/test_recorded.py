"""Which requests and responses of a capture belong together."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ibwire.replay.conversation import Conversation
from ibwire.replay.recorded import Exchanges
from ibwire_layers.opcodes import OpCode
from replay.recording import capture_of, edited, records_of, replayed

CAPTURES = Path(__file__).parents[2] / "captures"


def pairs(source: Any, **options: Any) -> Any:
    """Destination and source QPN of every exchange."""
    return {(r.dst_qpn, r.src_qpn) for r in replayed(source, **options)}


# The pairs are those that the tools printed when the captures were taken (manifest).


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("rcx-all-ops.pcap", {(0x66, 0x9B)}),
        ("vlan-rc-pingpong.pcap", {(0x8E, 0xC3), (0xC3, 0x8E)}),
        ("cm-rping.pcap", {(0x5E, 0x92), (0x92, 0x5E)}),
    ],
)
def test_queue_pairs_of_a_connection(name: str, expected: Any) -> None:
    assert pairs(CAPTURES / name) == expected


def test_three_connections_at_once_are_told_apart_by_the_connection_manager() -> None:
    expected = {(0x94, 0x60), (0x95, 0x61), (0x96, 0x62)}

    assert pairs(CAPTURES / "cm-ucmatose.pcap") == expected | {(b, a) for a, b in expected}


def test_and_without_it_by_their_psns() -> None:
    def edit(number: int, packet: Any) -> Any:
        return None if packet.bth.opcode == OpCode.UD_SEND_ONLY else packet

    expected = {(0x94, 0x60), (0x95, 0x61), (0x96, 0x62)}

    assert pairs(edited(CAPTURES / "cm-ucmatose.pcap", edit)) == expected | {
        (b, a) for a, b in expected
    }


def test_fifty_connections_of_one_host_are_told_apart() -> None:
    """The probe used queue pair 0x2000 + n for its experiment n, to 0x44 + n."""
    found = pairs(CAPTURES / "probe-odd-frames.pcap")
    expected = {(0x44 + n, 0x2000 + n) for n in range(50)}

    # Experiment 28 asks a queue pair that does not exist, and then the right one with
    # the same PSN: of two that fit the first is taken. The request to 0x75 is from a stranger.
    assert found - expected == {(0xABCDEF, 0x201C), (0x60, None), (0x75, None)}
    assert expected - found == {(0x60, 0x201C)}


def test_a_capture_of_requests_alone_has_no_other_queue_pair() -> None:
    def edit(number: int, packet: Any) -> Any:
        return None if packet.bth.dest_qp == 0x9B else packet

    assert pairs(edited(CAPTURES / "rcx-all-ops.pcap", edit)) == {(0x66, None)}


def test_responses_alone_are_counted() -> None:
    def edit(number: int, packet: Any) -> Any:
        return None if packet.bth.dest_qp == 0x66 else packet

    conversation = Conversation(edited(CAPTURES / "rcx-all-ops.pcap", edit))

    assert list(conversation.reports()) == []
    assert conversation.unclaimed == 25


def test_datagrams_and_unreliable_connections_are_no_exchanges() -> None:
    for name in ("ud-pingpong.pcap", "uc-write-bw.pcap"):
        assert pairs(CAPTURES / name) == set()


def test_a_queue_pair_that_is_connected_again_is_another_exchange() -> None:
    """The same capture twice, the second time with other PSNs agreed."""

    def edit(number: int, packet: Any) -> Any:
        if packet.bth.opcode == OpCode.UD_SEND_ONLY:
            # StartingPSN in REQ and REP: bytes 24 + 44 and 24 + 20 of the datagram.
            start = 68 if packet.payload[17] == 0x10 else 44
            if packet.payload[17] not in (0x10, 0x13):
                return packet
            psn = int.from_bytes(packet.payload[start : start + 3]) + 0x1000 & 0xFFFFFF
            payload = packet.payload[:start] + psn.to_bytes(3) + packet.payload[start + 3 :]
            return replace(packet, payload=payload)
        return replace(packet, bth=replace(packet.bth, psn=packet.bth.psn + 0x1000 & 0xFFFFFF))

    path = CAPTURES / "cm-rping.pcap"
    again = records_of(edited(path, edit))
    reports = replayed(capture_of([*records_of(path), *again]))

    assert len(reports) == 4
    assert [d for r in reports for d in r.differences] == []


def test_the_quietest_exchange_is_given_up_when_there_are_too_many(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    whole = replayed(CAPTURES / "probe-odd-frames.pcap")
    monkeypatch.setattr(Exchanges, "LIMIT", 5)
    reports = replayed(CAPTURES / "probe-odd-frames.pcap")

    # Every experiment is over before the fifth after it begins.
    assert len(reports) == len(whole)
    assert [d for r in reports for d in r.differences] == []
