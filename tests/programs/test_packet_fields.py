"""The header fields of sent packets that a user chooses, in frames of two endpoints."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import click
import pytest

from ibwire.base.node import Frame
from ibwire.cli.packet_fields import PacketFieldOptions
from ibwire.programs import perf
from ibwire.programs.packet_fields import PacketFields
from ibwire.programs.perf_cm import connect_cm, serve_cm
from ibwire.programs.perf_flows import Plan
from ibwire.programs.perftest import Verb
from ibwire_layers.opcodes import OpCode
from ibwire_layers.packet import Packet
from socket_port import SocketEndpoint, endpoints, side_by_side

CHOSEN = PacketFields(traffic_class=0x8A, hop_limit=33, pkey=0x8123, source_port=50000)


def record(endpoint: SocketEndpoint) -> list[Packet]:
    """The packets that an endpoint sends from now on."""
    packets: list[Packet] = []
    send = endpoint.port.send

    def recording(frames: Sequence[Frame]) -> int:
        taken = send(frames)
        packets.extend(Packet.parse(frame) for frame in frames[:taken])
        return taken

    endpoint.port.send = recording  # type: ignore[method-assign]
    return packets


def fields(packet: Packet) -> tuple[int, int, int, int]:
    ip = packet.route.ip
    return (
        ip.dscp << 2 | ip.ecn,
        ip.ttl,
        packet.bth.pkey,
        packet.route.udp.src_port,
    )


def test_every_packet_of_both_ends_has_them() -> None:
    a, b = endpoints(packet_fields=CHOSEN)
    sent, answered = record(a), record(b)
    port: list[int] = []
    ready = threading.Event()

    def listens(number: int) -> None:
        port.append(number)
        ready.set()

    plan = Plan(Verb.WRITE, messages=5)
    with a, b, a.port, b.port:
        side_by_side(
            lambda: ready.wait() and perf.connect(a, plan, "127.0.0.1", port[0]),
            lambda: perf.serve(b, plan, 0, addresses=["127.0.0.1"], listens=listens),
        )

    assert {fields(each) for each in (*sent, *answered)} == {(0x8A, 33, 0x8123, 50000)}


def test_responses_carry_the_class_of_a_connection_that_the_peer_requested() -> None:
    asking, serving = endpoints()
    asking.packet_fields = PacketFields(traffic_class=0x8A, hop_limit=33)
    sent, answered = record(asking), record(serving)
    plan = Plan(Verb.WRITE, messages=5)
    ready = threading.Event()
    with asking, serving, asking.port, serving.port:
        side_by_side(
            lambda: ready.wait() and connect_cm(asking, plan, "10.0.0.2"),
            lambda: serve_cm(serving, plan, listens=lambda port: ready.set()),
        )

    acknowledgements = [each for each in answered if each.bth.opcode == OpCode.RC_ACKNOWLEDGE]
    assert acknowledgements
    assert {fields(each)[:2] for each in (*sent, *acknowledgements)} == {(0x8A, 33)}


OPTIONS = {
    "tclass": None,
    "dscp": None,
    "ecn": None,
    "hop_limit": None,
    "pkey": 0xFFFF,
    "source_port": None,
}


def test_dscp_and_ecn_are_the_traffic_class() -> None:
    options = PacketFieldOptions(**OPTIONS | {"dscp": 26, "ecn": 2})

    assert options.fields_for("spec").traffic_class == 106


@pytest.mark.parametrize(
    ("given", "profile", "reason"),
    [
        ({"tclass": 1, "ecn": 0}, "spec", "--tclass excludes --dscp and --ecn"),
        ({"hop_limit": 3}, "rxe", "--hop-limit: profile rxe always sends 64"),
        ({"pkey": 0x8001}, "rxe", "--pkey: profile rxe always sends 0xffff"),
    ],
)
def test_what_excludes_each_other_is_refused(
    given: dict[str, int], profile: str, reason: str
) -> None:
    options = PacketFieldOptions(**OPTIONS | given)

    with pytest.raises(click.UsageError, match=reason):
        options.fields_for(profile)
