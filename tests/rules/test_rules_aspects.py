"""The pass in C over what rules look at misses no packet that breaks one, and finds most usual."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import strategies
from examples import scaled
from ibwire.capture import RecordBatch
from ibwire.capture.index import PADDING
from ibwire.dissect import Columns
from ibwire.rules import aspects
from ibwire.rules.aspects import Aspect
from ibwire.rules.catalogue import PACKET_RULES
from ibwire.rules.packet import Chunk
from ibwire_layers import headers as h
from ibwire_layers import outer
from ibwire_layers.opcodes import INFO, OpCode, Payload, Service
from ibwire_layers.outer import ROCEV2_PORT
from ibwire_layers.packet import Packet
from native_build import native_module
from strategies import HANDMADE, ROUTE4, ROUTE6, Frame
from vectors import LINK_PACKET, load

RARE = (h.XRCETH, h.FETH)
"""Packets with these headers are always examined."""

KNOWN = [each for each in Aspect if each is not Aspect.OTHER]


@pytest.fixture(autouse=True)
def _compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(aspects, "native", native_module())


def columns_of(made: Sequence[Frame]) -> Columns:
    lengths = np.array([len(frame.data) for frame in made], np.int64)
    data = b"".join(frame.data for frame in made) + bytes(PADDING)
    return Columns(
        RecordBatch(
            data=np.frombuffer(bytearray(data), np.uint8),
            offsets=np.cumsum(lengths) - lengths,
            cap_len=lengths,
            wire_len=lengths,
            time_ns=np.arange(len(made)),
            link_type=np.array([frame.link_type for frame in made], np.uint16),
            interface=np.zeros(len(made), np.uint32),
            first_number=1,
        )
    )


def unusual(columns: Columns) -> list[int]:
    """The aspects of each packet in which it is unusual, without `OTHER`."""
    rows = np.flatnonzero(columns.frames.payload >= 0)
    each = [aspects.unusual(columns, rows[at : at + 1]) for at in range(len(rows))]
    assert all(found & Aspect.OTHER for found in each)
    return [found & ~Aspect.OTHER for found in each]


def assert_nothing_is_missed(made: Sequence[Frame]) -> None:
    columns = columns_of(made)
    chunk = Chunk(columns, np.flatnonzero(columns.frames.payload >= 0))
    found = np.array(unusual(columns), np.int64)
    for each in PACKET_RULES:
        if each.aspect is not Aspect.OTHER:
            broken = np.flatnonzero(each.is_broken(chunk) & (found & int(each.aspect) == 0))
            names = [str(made[row]) for row in chunk.rows[broken].tolist()]
            assert not names, f"{each.rule.id}: {names}"


def usual(opcode: int, route: object = ROUTE4, *, syndrome: int = 0x1F) -> Frame:
    """A packet in which nothing is wrong."""
    info = INFO[opcode]
    size = {Payload.NONE: 0, Payload.PMTU: 256, Payload.EIGHT: 8}.get(info.payload, 7)
    fields = {
        h.RETH: {"va": 8, "dma_len": size},
        h.AtomicETH: {"va": 8},
        h.AETH: {"syndrome": syndrome},
    }
    extensions = tuple(kind(**fields.get(kind, {})) for kind in info.headers)
    bth = h.BTH(opcode=opcode, mig_req=1, dest_qp=0x11, psn=5)
    made = Packet(route, bth, extensions, b"x" * size).repaired()
    return Frame(f"{info.opcode.name} {syndrome:#x} {route}", made.build())


COMMON = [
    code
    for code, info in INFO.items()
    if info.service not in (Service.RD, Service.CNP)
    and not any(each in info.headers for each in RARE)
]


@pytest.mark.parametrize("route", [ROUTE4, ROUTE6], ids=["ipv4", "ipv6"])
def test_packets_that_break_no_rule_are_usual(route: object) -> None:
    made = [usual(code, route) for code in COMMON]
    found = unusual(columns_of(made))

    odd = [(str(frame), Aspect(what)) for frame, what in zip(made, found, strict=True) if what]
    # A UDP checksum that is not 0 is compared in Python.
    assert [each for each in odd if each[1] != Aspect.UDP_CHECKSUM] == []
    assert len(found) == len(COMMON)


def flipped(frame: Frame) -> list[Frame]:
    made = []
    for bit in range(8 * min(len(frame.data), 110)):
        data = bytearray(frame.data)
        data[bit // 8] ^= 1 << bit % 8
        made.append(Frame(f"{frame.name} {bit}", bytes(data), frame.link_type))
    return made


def test_packets_with_any_bit_flipped_are_examined_where_they_break_a_rule() -> None:
    for code in INFO:
        if INFO[code].service is not Service.RD:
            assert_nothing_is_missed(flipped(usual(code)))
    assert_nothing_is_missed(flipped(usual(OpCode.UD_SEND_ONLY, ROUTE6)))


def changed(
    *, ttl: int = 64, ports: tuple[int, int] = (0xC000, ROCEV2_PORT), **fields: int
) -> Frame:
    """A usual SEND but for these fields."""
    ip = replace(ROUTE4.ip, ttl=ttl)
    udp = outer.UDP(src_port=ports[0], dst_port=ports[1])
    bth = h.BTH(**{"opcode": OpCode.RC_SEND_ONLY, "mig_req": 1, "dest_qp": 0x11} | fields)
    extensions = (h.DETH(),) if bth.opcode == OpCode.UD_SEND_ONLY else ()
    made = Packet(replace(ROUTE4, ip=ip, udp=udp), bth, extensions, b"four").repaired()
    return Frame(f"{ports} {fields}", made.build())


ODD = {
    Aspect.HOP_LIMIT: changed(ttl=0),
    Aspect.UDP_PORT: changed(ports=(ROCEV2_PORT, 1021)),
    Aspect.P_KEY: changed(pkey=0x8000),
    Aspect.DEST_QP: changed(dest_qp=1),
    Aspect.Q_KEY: changed(opcode=OpCode.UD_SEND_ONLY, dest_qp=1),
}
"""What takes more than one bit."""


def test_each_aspect_is_that_of_a_rule_and_the_only_unusual_one_of_some_packet() -> None:
    found = {Aspect(each) for each in unusual(columns_of(list(ODD.values())))}
    for code in (*COMMON, OpCode.CNP):
        found |= {Aspect(each) for each in unusual(columns_of(flipped(usual(code))))}

    assert {each.aspect for each in PACKET_RULES} == set(Aspect)
    assert found >= set(KNOWN)


@pytest.mark.parametrize("aspect", ODD, ids=str)
def test_unusual_packet_has_that_aspect_alone(aspect: Aspect) -> None:
    assert unusual(columns_of([ODD[aspect]])) == [aspect]


@pytest.mark.parametrize(
    "opcode", [OpCode.RC_ACKNOWLEDGE, OpCode.RC_RDMA_READ_RESPONSE_ONLY], ids=["ack", "read"]
)
def test_any_syndrome_that_breaks_a_rule_is_examined(opcode: OpCode) -> None:
    assert_nothing_is_missed([usual(opcode, syndrome=value) for value in range(256)])


def test_golden_and_handmade_frames_that_break_a_rule_are_examined() -> None:
    golden = [
        Frame(vector.name, vector.frame, vector.link_type)
        for vector in load()
        if vector.link_type != LINK_PACKET
    ]

    assert_nothing_is_missed([*golden, *HANDMADE])


@pytest.mark.parametrize(
    "kind", [strategies.tagged, strategies.networked, strategies.transported, strategies.tunnelled]
)
def test_cut_frames_that_break_a_rule_are_examined(kind: Callable[[], Sequence[Frame]]) -> None:
    assert_nothing_is_missed(
        [frame.cut(n) for frame in kind() for n in range(min(len(frame.data), 150))]
    )


@settings(max_examples=scaled(100), deadline=None)
@given(st.lists(strategies.damaged() | strategies.random_frames, max_size=12))
def test_damaged_frames_that_break_a_rule_are_examined(made: list[Frame]) -> None:
    assert_nothing_is_missed(made)


def test_frames_outside_the_buffer_are_refused() -> None:
    columns = columns_of([usual(OpCode.RC_SEND_ONLY)])

    for wrong in (np.array([1]), np.array([-1])):
        with pytest.raises(ValueError, match="outside the buffer"):
            aspects.unusual(columns, wrong)
    columns.frames.limit[0] = len(columns.frames.data) + 1
    with pytest.raises(ValueError, match="outside the buffer"):
        aspects.unusual(columns, np.array([0]))


def test_everything_is_examined_without_the_compiled_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(aspects, "native", None)

    assert aspects.unusual(columns_of([usual(OpCode.RC_SEND_ONLY)]), np.array([0])) == sum(Aspect)
