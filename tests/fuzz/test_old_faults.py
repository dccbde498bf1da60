"""What is said of a packet of a minimised case, in brackets, is true of it."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from ibwire.fuzz.case import Case, Command, Connection, Mad, Packet, Post, Step
from ibwire.fuzz.judge.packet_faults import with_own_faults
from ibwire.rc.profile import SPEC
from ibwire.rc.work import WROpcode
from ibwire_layers.opcodes import OpCode

SEND = Packet(int(OpCode.RC_SEND_ONLY), why="many")
WRITE = Packet(int(OpCode.RC_RDMA_WRITE_ONLY), why="size")
READ = Packet(int(OpCode.RC_RDMA_READ_REQUEST), fields={"reth.rkey": 0, "reth.dma_len": 8})
POST = Post(int(WROpcode.SEND))
ACK = Packet(int(OpCode.RC_ACKNOWLEDGE), ("una", 0), why="MSN")
DATAGRAM = Packet(int(OpCode.UD_SEND_ONLY), length=1024, why="no bytes")
UD = Connection(service="UD")


def whys(connection: Connection, steps: Sequence[Step]) -> list[str]:
    """What is in brackets."""
    done = with_own_faults(Case(connection, tuple(steps)), SPEC)
    assert [type(each) for each in done.steps] == [type(each) for each in steps]
    return [each.why for each in done.steps if isinstance(each, Packet)]


@pytest.mark.parametrize(
    ("connection", "steps", "wanted"),
    [
        (Connection(), [SEND, WRITE], ["", ""]),
        (Connection(), [SEND, SEND.altered(psn=("expected", -1))], ["", "a duplicate SEND"]),
        (Connection(), [SEND.altered(psn=("expected", 1))], ["a request behind a gap"]),
        (Connection(), [WRITE.altered(fields={"bth.ack_req": 0}, why="bth.ack_req")], [""]),
        (Connection(), [READ.altered(why="partition")], ["an unknown R_Key"]),
        (Connection(), [POST, ACK], [""]),
        (Connection(), [POST, ACK.altered(fields={"aeth.syndrome": 0x21})], ["an RNR NAK"]),
        (UD, [DATAGRAM], ["a datagram longer than its receive request"]),
        (UD, [DATAGRAM.altered(length=8)], [""]),
    ],
)
def test_a_packet_says_what_is_wrong_with_it_whatever_it_was_made_for(
    connection: Connection, steps: Sequence[Step], wanted: list[str]
) -> None:
    assert whys(connection, steps) == wanted


def test_a_message_to_a_connection_manager_says_nothing_but_its_fields() -> None:
    made = Mad(message="REJ", fields={"rej.reason": 4}, why="refused")

    assert whys(Connection(), [Command("connect"), made, Mad(why="repeated")]) == ["", ""]
