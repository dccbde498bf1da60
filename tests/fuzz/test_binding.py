"""Packets of cases as frames: those of drill scripts, and the defaults of omitted fields."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fuzz.cases import EXTENSIONS, WIDTHS
from ibwire.drill import parse
from ibwire.drill.language.expressions import Scope
from ibwire.drill.language.steps import Inject
from ibwire.drill.packets import Wire, build
from ibwire.fuzz.case import BAD, GOOD, NONE, CaseError, Connection, Packet
from ibwire.fuzz.targets.emulated_device import ADDRESS, PEER_ADDRESS, Emulation
from ibwire.fuzz.vocabulary.binding import Binding
from ibwire_layers.crc import internet_checksum
from ibwire_layers.opcodes import INFO, OpCode, Service
from ibwire_layers.packet import CrcStatus
from ibwire_layers.packet import Packet as WholePacket

EMULATION = Emulation(Connection())
SYMBOLS = EMULATION.symbols
BINDING = Binding(PEER_ADDRESS, ADDRESS)
RC = [int(opcode) for opcode, info in INFO.items() if info.service is Service.RC]
BASE = 0x555555


def frame(packet: Packet) -> bytes:
    return BINDING.frame(packet, BASE, SYMBOLS)


def in_drill(line: str) -> bytes:
    """The frame of a `<` line, for the same connection."""
    connection = EMULATION.connection
    wire = Wire(
        BINDING.route,
        SYMBOLS["qpn"],
        SYMBOLS["peer_qpn"],
        SYMBOLS["pkey"],
        connection.mtu,
        connection.rq_psn,
        connection.sq_psn,
        SYMBOLS["va"],
        SYMBOLS["rkey"],
    )
    script = parse(f"// Any.\n< {line}\n".encode(), "any.drill")
    said = script.cases[0].steps[0]
    assert isinstance(said, Inject)
    return build(said.literal, wire, Scope("any.drill", SYMBOLS))


@given(st.data())
def test_a_packet_is_that_of_a_drill_line(data: st.DataObject) -> None:
    """Header by header from our own writers, and from the field tables that drill uses."""
    opcode = data.draw(st.sampled_from(RC))
    keys = {kind.KEY for kind in INFO[opcode].headers}
    widths = WIDTHS | {
        f"{part}.{name}": width
        for part, names in EXTENSIONS.items()
        if part in keys
        for name, width in names.items()
    }
    names = data.draw(st.sets(st.sampled_from(sorted(widths)), max_size=5))
    names |= {"bth.ack_req"}
    names |= {name for name in ("immdt.imm_data", "ieth.rkey") if name in widths}
    fields = {name: data.draw(st.integers(0, (1 << widths[name]) - 1)) for name in sorted(names)}
    length, at = data.draw(st.integers(0, 600)), data.draw(st.integers(0, 1 << 17))
    pad, more = data.draw(st.none() | st.integers(0, 5)), data.draw(st.integers(0, 5))
    icrc = data.draw(st.sampled_from((GOOD, BAD)) | st.integers(0, 0xFFFFFFFF))
    packet = Packet(opcode, length=length, at=at, fields=fields, pad=pad, more=more, icrc=icrc)
    words = [OpCode(opcode).name, str(BASE), f"len={length} at={at} more={more}"]
    words += [f"{name}={value}" for name, value in fields.items()]
    words += [f"pad={pad}"] * (pad is not None)
    words.append(f"icrc={ {GOOD: 'good', BAD: 'bad'}.get(icrc, icrc) }")

    assert frame(packet) == in_drill(" ".join(words))


@given(st.sampled_from(RC), st.integers(0, 60), st.integers(0, 40))
def test_a_packet_is_cut_as_drill_cuts_it(opcode: int, length: int, cut: int) -> None:
    packet = Packet(opcode, length=length, cut=cut)
    whole = len(frame(replace(packet, cut=None))) - 42 - 4  # Ethernet, IPv4, UDP; ICRC
    fields = {"immdt.imm_data": 0x1A2B3C4D, "ieth.rkey": SYMBOLS["mw.rkey"]}
    keys = {kind.KEY for kind in INFO[opcode].headers}
    said = [f"{name}={value}" for name, value in fields.items() if name.partition(".")[0] in keys]
    line = f"{OpCode(opcode).name} {BASE} ack len={length} cut={min(cut, whole)} {' '.join(said)}"

    assert frame(packet) == in_drill(line)


@given(st.sampled_from(RC), st.integers(0, 600))
def test_omitted_fields_are_correct(opcode: int, length: int) -> None:
    packet = WholePacket.parse(frame(Packet(opcode, ("expected", 3), length)))

    assert packet.icrc_status() is CrcStatus.GOOD
    assert packet.bth.psn == BASE + 3
    assert (packet.bth.dest_qp, packet.bth.pkey) == (SYMBOLS["qpn"], 0xFFFF)
    assert packet.bth.pad_count == -length % 4
    assert len(packet.payload) == length


@pytest.mark.parametrize(("icrc", "status"), [(BAD, CrcStatus.BAD), (0x12345678, CrcStatus.BAD)])
def test_icrc_is_wrong_only_where_the_case_requests_it(icrc: int, status: CrcStatus) -> None:
    packet = Packet(int(OpCode.RC_SEND_ONLY), length=8, icrc=icrc)

    assert WholePacket.parse(frame(packet)).icrc_status() is status


@pytest.mark.parametrize(
    ("field", "expected"),
    [("ip.ttl", "ip.ttl=3"), ("eth.dst", "eth.dst=3"), ("udp.length", "udp.length=3")],
)
def test_headers_before_the_bth_change_as_those_of_drill(field: str, expected: str) -> None:
    packet = Packet(int(OpCode.RC_SEND_ONLY), length=8, fields={field: 3})

    assert frame(packet) == in_drill(f"SEND_ONLY {BASE} ack len=8 {expected}")


def test_lengths_are_those_of_a_packet_without_icrc() -> None:
    """20 bytes of IPv4, 8 of UDP, 12 of the BTH, 8 of payload.

    A host drops a packet shorter than its IP header says (RFC 1812, 5.2.2), so a device
    would not see it.
    """
    packet = Packet(int(OpCode.RC_SEND_ONLY), length=8, icrc=NONE)
    whole = frame(packet)

    assert len(whole) == 14 + 48
    assert whole == in_drill(f"SEND_ONLY {BASE} ack len=8 icrc=none")
    assert whole[16:18] == (48).to_bytes(2)
    assert whole[38:40] == (28).to_bytes(2)
    assert internet_checksum(whole[14:34]) == 0


def test_numbers_are_cut_to_their_fields() -> None:
    long = Packet(int(OpCode.RC_RDMA_WRITE_ONLY), fields={"reth.va": (1 << 64) + 5})
    short = Packet(int(OpCode.RC_RDMA_WRITE_ONLY), fields={"reth.va": 5})

    assert frame(long) == frame(short)


def test_an_unknown_symbol_is_an_error() -> None:
    packet = Packet(int(OpCode.RC_RDMA_WRITE_ONLY), fields={"reth.va": ("nowhere", 0)})

    with pytest.raises(CaseError, match="this connection has no nowhere"):
        frame(packet)
