"""What is wrong on purpose is wrong in just that, also from packet to packet."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from each_case import each_case
from ibwire.base.errors import EncodeError
from ibwire.traffic.builder import Builder
from ibwire.traffic.layout import overridden
from ibwire.traffic.stream import Icrc, Link, Stream, Verb
from ibwire_layers import headers as h
from ibwire_layers.crc import internet_checksum
from ibwire_layers.fields import NAMES, changes_of
from ibwire_layers.opcodes import Service
from ibwire_layers.outer import UDP, Ethernet, IPv4
from ibwire_layers.packet import CrcStatus, Packet, RoCEv2Route

COUNT = 50


def packets(**more: Any) -> list[Packet]:
    values = {"qpns": ((0x11, 1), (0x12, 1)), "src": "10.0.0.1", "dst": "10.0.0.2", **more}
    block = next(Builder([Stream(**values)]).blocks(COUNT))
    rows = zip(block.frames, block.lengths.tolist(), strict=True)
    return [Packet.parse(row[:length].tobytes(), strict=False) for row, length in rows]


@pytest.mark.parametrize("name", ["bth.dest_qp", "bth.destqp", "infiniband.bth.destqp"])
def test_a_field_has_the_names_of_our_classes_our_columns_and_wireshark(name: str) -> None:
    assert {packet.bth.dest_qp for packet in packets(fields={name: 0x77})} == {0x77}


def test_every_name_of_tshark_for_these_headers_is_known() -> None:
    named = {field.wireshark for kind in (h.BTH, h.RETH, h.DETH, IPv4) for field in kind.FIELDS}

    assert named - {None} <= set(NAMES)


@each_case(
    "fields",
    [
        {"bth.tver": 3},
        {"bth.psn": 7},
        {"bth.ack_req": 0},
        {"bth.opcode": 0xFF},
        {"reth.dma_len": 1},
        {"reth.va": 5, "reth.rkey": 6},
        {"udp.src_port": 1},
        {"udp.dst_port": 4790},
        {"eth.type": 0x8847},
    ],
    ids=str,
)
def test_an_overridden_field_is_the_only_difference_but_for_checksums(
    fields: dict[str, int],
) -> None:
    block = next(Builder([stream(fields=fields)]).blocks(COUNT))
    right = next(Builder([stream()]).blocks(COUNT))

    allowed = set(range(len(right.frames[0]) - 4, len(right.frames[0])))
    for name, value in fields.items():
        ((kind, field),) = NAMES[name]
        start = {Ethernet: 0, IPv4: 14, UDP: 34, h.BTH: 42, h.RETH: 54}[kind]
        first = start + field.offset // 8
        allowed |= set(range(first, first + -(-field.width // 8)))
        for row in block.frames:
            assert getattr(kind.unpack(row.tobytes(), start), field.name) == value
    for made, plain in zip(block.frames, right.frames, strict=True):
        assert {int(at) for at in (made != plain).nonzero()[0]} <= allowed


def stream(**more: Any) -> Stream:
    return Stream(**{"qpns": ((0x11, 1),), "src": "10.0.0.1", "dst": "10.0.0.2", **more})


def test_the_icrc_fits_the_packet_as_it_is_sent() -> None:
    made = packets(fields={"bth.resv7": 0x55, "reth.rkey": 0xDEAD})

    assert {packet.icrc_status() for packet in made} == {CrcStatus.GOOD}
    assert {packet.bth.resv7 for packet in made} == {0x55}


def test_a_stale_icrc_fits_the_packet_before_its_fields_were_changed() -> None:
    right = packets()
    stale = packets(fields={"reth.rkey": 0xDEAD}, icrc=Icrc.STALE)

    assert [packet.icrc for packet in stale] == [packet.icrc for packet in right]
    assert {packet.icrc_status() for packet in stale} == {CrcStatus.BAD}


def test_a_wrong_icrc_is_the_right_one_inverted() -> None:
    wrong = packets(icrc=Icrc.WRONG)

    for packet in wrong:
        assert packet.icrc == bytes(each ^ 0xFF for each in packet.computed_icrc())


@pytest.mark.parametrize(
    "fields",
    [{"udp.length": 9}, {"ip.len": 2000}, {"ipv4.total_length": 21}, {"bth.pad_count": 3}],
    ids=str,
)
def test_a_length_that_lies_changes_no_other_length(fields: dict[str, int]) -> None:
    block = next(Builder([stream(fields=fields)]).blocks(COUNT))
    right = next(Builder([stream()]).blocks(COUNT))

    assert (block.lengths == right.lengths).all()
    assert (block.frames != right.frames).any()


def test_the_ip_checksum_fits_unless_it_is_what_is_wrong() -> None:
    fits = packets(fields={"ip.ttl": 1})[0].route
    lies = packets(fields={"ip.checksum": 0x1234}, count_ip_id=True, ce=1.0)[1].route

    assert isinstance(fits, RoCEv2Route)
    assert isinstance(lies, RoCEv2Route)
    assert internet_checksum(fits.ip.pack()) == 0
    assert lies.ip.checksum == 0x1234


@each_case(
    ("more", "named"),
    [
        ({"fields": {"bth.psm": 1}}, "bth.psm"),
        ({"fields": {"bth.psn": 1 << 24}}, "bth.psn"),
        ({"fields": {"bth.psn": -1}}, "bth.psn"),
        ({"fields": {"bth.psn": True}}, "bth.psn"),
        ({"fields": {"reth.va": 1}, "verb": Verb.SEND}, "reth.va"),
        ({"fields": {"ip.ttl": 1}, "link": Link.ROCEV1}, "ip.ttl"),
    ],
    ids=str,
)
def test_a_field_that_cannot_be_is_named(more: dict[str, Any], named: str) -> None:
    with pytest.raises(EncodeError) as caught:
        packets(**more)

    assert caught.value.field == named


@pytest.mark.parametrize("every", [2, 5, 7])
@pytest.mark.parametrize("size", [100, 2500, 1500])
def test_every_so_many_packets_of_a_queue_pair_are_wrong_and_the_others_right(
    every: int, size: int
) -> None:
    pairs = {"qpns": ((0x11, 1), (0x12, 2)), "size": size}
    changed = {"fields": {"bth.tver": 3}, "icrc": Icrc.WRONG, "fields_every": every}
    right = next(Builder([stream(**pairs)]).blocks(700)).frames
    mixed = next(Builder([stream(**pairs, **changed)]).blocks(700)).frames
    wrong = next(Builder([stream(**pairs, **changed | {"fields_every": 1})]).blocks(700)).frames

    count = {0x11: 0, 0x12: 0}
    assert len(right) == 700
    for number, row in enumerate(mixed):
        count[row[49]] += 1  # the last byte of the destination QP
        expected = wrong if count[row[49]] % every == 0 else right
        assert (row == expected[number]).all()


@settings(deadline=None)
@given(
    name=st.sampled_from(sorted(NAMES)),
    value=st.integers(0, 2**128 - 1),
    icrc=st.sampled_from([Icrc.RIGHT, Icrc.WRONG]),
    form=st.sampled_from(
        [
            {},
            {"verb": Verb.CAS, "va_step": 8, "va_window": 4096},
            {"verb": Verb.SEND_IMM, "service": Service.UD, "vlan": 5, "ack_every": 3},
            {"verb": Verb.ACK, "src": "fd00::1", "dst": "fd00::2"},
            {"verb": Verb.SEND_INV, "link": Link.ROCEV1},
        ]
    ),
)
def test_any_field_of_any_packet_is_overridden_as_in_each_packet_alone(
    name: str, value: int, icrc: Icrc, form: dict[str, Any]
) -> None:
    width = min(field.width for _, field in NAMES[name])
    fields = {name: value % (1 << width)}
    right = next(Builder([stream(**form)]).blocks(COUNT))
    try:
        found = next(Builder([stream(**form, fields=fields, icrc=icrc)]).blocks(COUNT))
    except EncodeError as error:
        assert error.field == name  # noqa: PT017 - most fields are in some packets only
        return

    for row, made in zip(right.frames, found.frames, strict=True):
        packet = overridden(Packet.parse(row.tobytes()), changes_of(fields))
        good = packet.computed_icrc()
        bad = bytes(each ^ 0xFF for each in good)
        packet = replace(packet, icrc=good if icrc is Icrc.RIGHT else bad)
        assert made.tobytes() == packet.build()
