"""The fast codec of the transport agrees with the layouts of `ibwire_layers`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path as FilePath
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from each_case import each_case
from examples import sampled
from ibwire.base.unbuilt import headers_of
from ibwire.capture import open_capture
from ibwire.fabric.switch.routing import flow_key
from ibwire.impair.stages import mark_ce
from ibwire.rc.device import gid_of, mac_of
from ibwire.rc.packet import FIELDS, FORMS, TransportPacket, decode, encode
from ibwire.rc.path import Arrivals, Path, ethernet_route, ib_route, icrc_fits
from ibwire_layers import headers as h
from ibwire_layers.errors import DecodeError
from ibwire_layers.opcodes import INFO, OpCode, Service
from ibwire_layers.outer import LinkType
from ibwire_layers.packet import Packet, RoCEv2Route, Route, with_lengths
from ibwire_layers.schema import Header

NAMES: dict[type[Header], dict[str, str]] = {
    h.RETH: {"va": "va", "rkey": "rkey", "dma_len": "dma_len"},
    h.AtomicETH: {"va": "va", "rkey": "rkey", "swap": "swap", "compare": "compare"},
    h.AETH: {"syndrome": "syndrome", "msn": "msn"},
    h.AtomicAckETH: {"orig": "original"},
    h.ImmDt: {"imm_data": "imm_data"},
    h.IETH: {"rkey": "invalidate_rkey"},
    h.XRCETH: {"xrc_srq": "xrc_srq"},
    h.DETH: {"qkey": "qkey", "src_qp": "src_qp"},
    h.FETH: {"sel": "sel", "plt": "plt"},
    h.CNPReserved: {},
}
"""Field of a header: the same in a `TransportPacket`."""

TRANSPORTS = sorted(
    opcode for opcode, info in INFO.items() if info.service is not Service.RD
)  # RD has no queue pair here

WIDTHS = {
    "va": 64,
    "swap": 64,
    "compare": 64,
    "orig": 64,
    "rkey": 32,
    "dma_len": 32,
    "qkey": 32,
    "imm_data": 32,
    "msn": 24,
    "xrc_srq": 24,
    "src_qp": 24,
    "syndrome": 8,
    "sel": 2,
    "plt": 4,
}


@st.composite
def packets(draw: st.DrawFn) -> tuple[h.BTH, tuple[Header, ...], bytes]:
    """BTH, extension headers and payload of any packet whose reserved bits are zero."""
    opcode = draw(st.sampled_from(TRANSPORTS))
    payload = draw(st.binary(max_size=70))
    numbers = draw(st.randoms(use_true_random=False)).getrandbits
    extensions = tuple(
        kind(**{name: numbers(WIDTHS[name]) for name in NAMES[kind]})
        for kind in INFO[opcode].headers
    )
    bth = h.BTH(
        opcode,
        se=numbers(1),
        mig_req=numbers(1),
        pad_count=-len(payload) & 3,
        pkey=numbers(16),
        becn=numbers(1),
        resv6a=numbers(6),
        dest_qp=numbers(24),
        ack_req=numbers(1),
        psn=numbers(24),
    )
    return bth, extensions, payload


def numbers_of(packet: TransportPacket) -> dict[str, Any]:
    """The fields of a packet, without those that its headers do not have.

    What follows its ICRC is not read with it.
    """
    return {
        name: getattr(packet, name)
        for name in FIELDS
        if hasattr(packet, name) and name not in ("arrival", "path")
    }


def expected_numbers(bth: h.BTH, extensions: tuple[Header, ...], payload: bytes) -> dict[str, Any]:
    said: dict[str, Any] = {
        "form": FORMS[bth.opcode],
        "psn": bth.psn,
        "dest_qp": bth.dest_qp,
        "payload": payload,
        "pad_count": bth.pad_count,
        "ack_req": bth.ack_req,
        "se": bth.se,
        "mig_req": bth.mig_req,
        "pkey": bth.pkey,
        "becn": bth.becn,
        "reserved": bth.resv6a,
    }
    for header in extensions:
        for field, name in NAMES[type(header)].items():
            said[name] = getattr(header, field)
    return said


@given(packets())
def test_decode_reads_what_the_layouts_wrote(
    given_packet: tuple[h.BTH, tuple[Header, ...], bytes],
) -> None:
    bth, extensions, payload = given_packet
    data = bth.pack() + b"".join(each.pack() for each in extensions) + payload
    data += bytes(bth.pad_count)

    packet = decode(b"before" + data + b"after", 6, 6 + len(data))

    assert packet is not None
    assert numbers_of(packet) == expected_numbers(bth, extensions, payload)


@given(packets())
def test_encode_writes_what_the_layouts_would(
    given_packet: tuple[h.BTH, tuple[Header, ...], bytes],
) -> None:
    bth, extensions, payload = given_packet
    packet = TransportPacket(FORMS[bth.opcode], bth.psn, payload)
    for name, value in expected_numbers(bth, extensions, payload).items():
        setattr(packet, name, value)

    written = b"".join(each.pack() for each in (bth, *extensions)) + payload
    assert encode(packet) == written + bytes(bth.pad_count)


@given(st.binary(max_size=80), st.integers(0, 255))
def test_decode_of_anything_is_a_packet_or_none(data: bytes, opcode: int) -> None:
    packet = decode(bytes([opcode]) + data, 0, len(data) + 1)

    if packet is not None:
        assert len(packet.payload) + packet.pad_count + packet.form.header_size == len(data) + 1


@each_case("tver", range(1, 16))
def test_another_transport_version_is_malformed(tver: int) -> None:
    assert decode(h.BTH(OpCode.RC_SEND_ONLY, tver=tver).pack(), 0, 12) is None


@each_case("opcode", TRANSPORTS, ids=lambda opcode: OpCode(opcode).name)
def test_a_packet_shorter_than_its_headers_is_malformed(opcode: int) -> None:
    size = INFO[opcode].header_size
    whole = h.BTH(opcode).pack() + bytes(size - 12)

    assert decode(whole, 0, size) is not None
    assert decode(whole, 0, size - 1) is None


def test_a_pad_count_larger_than_the_rest_is_malformed() -> None:
    data = h.BTH(OpCode.RC_SEND_ONLY, pad_count=3).pack()

    assert decode(data + bytes(2), 0, 14) is None
    assert decode(data + bytes(3), 0, 15) is not None


def test_reserved_bits_are_ignored() -> None:
    said = h.BTH(OpCode.RC_ACKNOWLEDGE, fecn=1, resv7=0x7F, psn=5, ack_req=0).pack()

    packet = decode(said + bytes(4), 0, 16)

    assert packet is not None
    assert (packet.psn, packet.ack_req, packet.becn, packet.reserved) == (5, 0, 0, 0)


V4, V6 = ("10.0.0.1", "10.0.0.22"), ("2001:db8::1", "2001:db8::22")


def route(addresses: tuple[str, str], **said: Any) -> Route:
    source, destination = map(gid_of, addresses)
    return ethernet_route(
        source=source,
        destination=destination,
        source_mac=mac_of(source),
        destination_mac=mac_of(destination),
        source_port=0xD234,
        **said,
    )


ROUTES: dict[str, tuple[Route, int]] = {
    "rocev2-ipv4": (route(V4, traffic_class=0x6A, hop_limit=9), LinkType.ETHERNET),
    "rocev2-ipv6": (route(V6, traffic_class=0x6A, flow_label=0xABCDE), LinkType.ETHERNET),
    "rocev2-vlan": (route(V4, vlan=77, priority=3), LinkType.ETHERNET),
    "rocev1": (route(V4, version=1), LinkType.ETHERNET),
    "rocev1-vlan": (route(V6, version=1, vlan=5, traffic_class=8), LinkType.ETHERNET),
    "ib-local": (ib_route(source=1, destination=2, slid=3, dlid=4, sl=5), LinkType.INFINIBAND),
    "ib-global": (
        ib_route(source=1 << 99, destination=2, slid=3, dlid=4, is_global=True, traffic_class=9),
        LinkType.INFINIBAND,
    ),
}

any_route = pytest.mark.parametrize("name", ROUTES)


def whole(name: str, payload: bytes = b"payload") -> tuple[bytes, Packet]:
    """The transport bytes of a packet, and the packet as `ibwire_layers` builds it."""
    transport = TransportPacket(FORMS[OpCode.RC_SEND_ONLY], 7, payload)
    transport.dest_qp, transport.mig_req, transport.pkey = 0x1234, 1, 0xFFFF
    data = encode(transport)
    pad = -len(payload) & 3
    bth = h.BTH(OpCode.RC_SEND_ONLY, mig_req=1, pad_count=pad, dest_qp=0x1234, psn=7)
    path = with_lengths(ROUTES[name][0], len(data))
    return data, Packet(path, bth, (), payload)


@any_route
@pytest.mark.parametrize("size", [0, 1, 2, 3, 4, 4096])
def test_a_path_builds_the_frame_that_the_layouts_build(name: str, size: int) -> None:
    data, packet = whole(name, bytes(size))
    path = Path(ROUTES[name][0])

    assert path.frame(data) == packet.build()
    assert path.frame(data) == packet.build()  # from what it remembers


@any_route
def test_arrival_has_the_fields_of_the_layouts(name: str) -> None:
    _, packet = whole(name)
    frame = packet.build()
    arrivals = Arrivals(ROUTES[name][1])

    for _ in range(2):  # read, then remembered
        arrival = arrivals.read(frame)

        assert arrival is not None
        assert frame[arrival.size : arrival.size + 12] == packet.bth.pack()
        assert frame[arrival.end - 4 : arrival.end] == packet.computed_icrc()
        assert icrc_fits(frame, arrival)


@each_case(
    ("name", "source", "destination", "grh"),
    [
        ("rocev2-ipv4", gid_of(V4[0]), gid_of(V4[1]), "0" * 40 + "456a"),
        ("rocev2-ipv6", gid_of(V6[0]), gid_of(V6[1]), "66aabcde"),
        ("rocev1", gid_of(V4[0]), gid_of(V4[1]), "60000000"),
        ("ib-global", 1 << 99, 2, "60900000"),
        ("ib-local", 3, 4, ""),
    ],
)
def test_ends_and_route_header_of_an_arrival(
    name: str, source: int, destination: int, grh: str
) -> None:
    """IPv4: the header takes the last 20 of the 40 bytes. Without a GRH: LIDs, and no bytes."""
    arrival = Arrivals(ROUTES[name][1]).read(whole(name)[1].build())

    assert arrival is not None
    assert (arrival.source, arrival.destination) == (source, destination)
    assert arrival.grh.hex().startswith(grh)
    assert len(arrival.grh) == (40 if grh else 0)


@any_route
@given(data=st.data())
def test_a_changed_bit_that_the_icrc_covers_is_found(name: str, data: st.DataObject) -> None:
    """From the first covered header to the end of the ICRC, with the masked bits left alone."""
    frame = bytearray(whole(name)[1].build())
    arrivals = Arrivals(ROUTES[name][1])
    good = arrivals.read(bytes(frame))
    assert good is not None
    position = data.draw(st.integers(good.size, good.end - 1))
    frame[position] ^= 1 << data.draw(st.integers(0, 7))

    arrival = arrivals.read(bytes(frame))

    fits = arrival is not None and icrc_fits(bytes(frame), arrival)
    assert fits == (position == good.size + 4)  # FECN, BECN and six reserved bits are not covered


@given(number=st.integers(0, 0xFFFF), later=st.integers(0, 0xFFFF), bit=st.integers(0, 54 * 8 - 1))
def test_numbered_headers_are_read_as_new_ones(number: int, later: int, bit: int) -> None:
    """Of a sender that counts IPv4 identifications, after two frames and with any wrong bit."""
    data, packet = whole("rocev2-ipv4")
    assert isinstance(packet.route, RoCEv2Route)
    path = Path(packet.route, counts_identification=True)
    frames = [path.frame(data, each) for each in (number, number ^ 1, later)]
    wrong = bytearray(frames[2])
    wrong[bit >> 3] ^= 1 << (bit & 7)
    arrivals = Arrivals()
    for frame in frames[:2]:
        arrivals.read(frame)

    for frame in (frames[2], bytes(wrong)):
        found, new = arrivals.read(frame), Arrivals().read(frame)
        assert (found is None) is (new is None)
        if found is not None and new is not None:
            assert replace(found, route=new.route) == new  # the route is that of an earlier frame


@pytest.mark.parametrize(
    "bits",
    [
        pytest.param({"ecn": 3}, id="ECN mark"),
        pytest.param({"dscp": 0}, id="DSCP"),
        pytest.param({"ttl": 1}, id="hop limit"),
    ],
)
def test_what_a_router_may_change_leaves_the_icrc_right(bits: dict[str, int]) -> None:
    data, packet = whole("rocev2-ipv4")
    icrc = packet.computed_icrc()
    before = packet.route
    assert isinstance(before, RoCEv2Route)
    changed = with_lengths(replace(before, ip=replace(before.ip, **bits)), len(data))

    frame = replace(packet, route=changed, icrc=icrc).build()

    arrival = Arrivals().read(frame)
    assert arrival is not None
    assert icrc_fits(frame, arrival)


@pytest.mark.parametrize(
    "said",
    [
        pytest.param({"checksum": 0x1234}, id="IP header checksum"),
        pytest.param({"total_length": 2000}, id="IP length beyond the frame"),
        pytest.param({"mf": 1}, id="fragment"),
        pytest.param({"version": 7}, id="IP version"),
    ],
)
def test_frame_with_a_wrong_ip_header_is_dropped(said: dict[str, int]) -> None:
    packet = whole("rocev2-ipv4")[1]
    assert isinstance(packet.route, RoCEv2Route)
    route = replace(packet.route, ip=replace(packet.route.ip, **said))

    assert Arrivals().read(replace(packet, route=route).build()) is None


def test_an_identification_counts_and_stays_within_a_right_checksum() -> None:
    """As rxe does: captures rc-pingpong."""
    data, _ = whole("rocev2-ipv4")
    path = Path(ROUTES["rocev2-ipv4"][0], counts_identification=True)
    arrivals = Arrivals()

    for number in range(300):
        frame = path.frame(data)
        packet = Packet.parse(frame)
        assert isinstance(packet.route, RoCEv2Route)
        assert getattr(packet.route.ip, "id") == number  # noqa: B009
        assert packet.icrc == packet.computed_icrc()
        arrival = arrivals.read(frame)
        assert arrival is not None
        assert icrc_fits(frame, arrival)


CAPTURES = sorted((FilePath(__file__).parents[2] / "captures").glob("*.pcap*"))


@each_case("capture", sampled(CAPTURES, 4), ids=lambda path: path.stem)
def test_wire_captures_read_as_the_layouts_read_them(capture: FilePath) -> None:
    """Every frame of a capture: the same headers, payload and verdict on the ICRC."""
    arrivals = Arrivals()
    seen = 0
    with open_capture(capture) as reader:
        for record in reader.records():
            try:
                packet = Packet.parse(record.data, record.link_type)
            except DecodeError:
                continue
            arrival = arrivals.read(record.data)
            if arrival is None:  # one frame with a wrong UDP checksum, which the kernel dropped
                assert isinstance(packet.route, RoCEv2Route)
                assert packet.route.udp.checksum == 0x1234
                continue
            right = packet.icrc == packet.computed_icrc()
            assert icrc_fits(record.data, arrival) == right
            read = decode(record.data, arrival.size, arrival.end - 4)
            seen += 1
            if packet.bth.tver:
                assert read is None
                continue
            assert read is not None
            known = expected_numbers(packet.bth, packet.extensions, packet.payload)
            assert numbers_of(read) == known
    assert seen


@given(packets(), st.sampled_from((0, 1, 2, 3)), st.booleans(), st.binary(max_size=42))
def test_an_unbuilt_frame_is_the_same_as_its_bytes(
    given_packet: tuple[h.BTH, tuple[Header, ...], bytes], ecn: int, counts: bool, trailer: bytes
) -> None:
    bth, extensions, payload = given_packet
    packet = TransportPacket(FORMS[bth.opcode], bth.psn, payload)
    for name, value in expected_numbers(bth, extensions, payload).items():
        setattr(packet, name, value)
    packet.trailer = trailer
    said = route(V4, traffic_class=26 << 2 | ecn)
    path = Path(said, source_port=0xC123, counts_identification=counts)
    path.frame(b"\0" * 12)  # counts as the first one

    size = packet.send_by(path)

    frame = packet.build()
    assert frame == packet.build()
    assert size == packet.size == len(frame)
    assert frame.endswith(trailer)
    assert frame == Packet.parse(frame).repaired().build()
    assert int.from_bytes(frame[18:20]) == counts
    assert packet.flow_key == flow_key(frame)
    assert flow_key(headers_of(packet.flow_key)) == packet.flow_key
    marked = mark_ce(frame)
    assert packet.mark() is (marked is not None)
    assert packet.build() == (marked or frame)
    assert packet.flow_key == flow_key(packet.build())
    assert not packet.mark()


@pytest.mark.parametrize("said", [{"vlan": 5}, {"version": 1}], ids=["vlan", "version 1"])
def test_only_plain_ipv4_is_sent_unbuilt(said: dict[str, int]) -> None:
    assert Path(route(V4)).flow_key
    assert not Path(route(V4, **said)).flow_key
    assert not Path(route(V6)).flow_key
