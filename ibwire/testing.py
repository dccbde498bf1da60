"""What a test needs of a transport: two connected devices, or one whose peer is the test.

    pair = Pair(mtu=256, faults={"a": [{"drop": {"nth": 2}}]})
    pair.b.post_recv(4096)
    pair.a.post_send(WROpcode.SEND, 1000)
    pair.run()
    assert [wc.status for wc in pair.a.poll_send_cq()] == [WCStatus.SUCCESS]

Everything is emulated and in virtual time. docs/pytest.md has the fixtures that give a
test these objects.
"""

from __future__ import annotations

from collections.abc import Iterable

from ibwire.peer import (
    QKEY,
    End,
    LoggedFrame,
    Pair,
    Peer,
    create_queue_pair,
    describe_frame,
    events_of,
)
from ibwire.rc.work import WC, WCStatus
from ibwire_layers.headers import AETH
from ibwire_layers.packet import Packet

__all__ = [
    "QKEY",
    "End",
    "LoggedFrame",
    "Pair",
    "Peer",
    "create_queue_pair",
    "describe_frame",
    "events_of",
    "opcode_names",
    "statuses",
    "summaries",
]


def statuses(completions: Iterable[WC]) -> list[tuple[int, WCStatus]]:
    """`wr_id` and status of completions."""
    return [(wc.wr_id, wc.status) for wc in completions]


def opcode_names(packets: Iterable[Packet]) -> list[str]:
    """Opcodes of packets, without the service: `SEND_FIRST`."""
    return [packet.opcode_name.split("_", 1)[1] for packet in packets]


def summaries(packets: Iterable[Packet]) -> list[str]:
    """Opcode without the service, PSN, and the syndrome if any: `ACKNOWLEDGE 7 0x1f`."""
    found = []
    for packet in packets:
        aeth = packet.extension(AETH)
        (name,) = opcode_names([packet])
        syndrome = "" if aeth is None else f" {aeth.syndrome:#04x}"
        found.append(f"{name} {packet.bth.psn}{syndrome}")
    return found
