"""What holds for any bytes and any values: nothing raises, and what was read is built again."""

from __future__ import annotations

from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st
from scapy.layers.inet import IP, UDP
from scapy.layers.inet6 import IPv6
from scapy.layers.l2 import Ether
from scapy.packet import Packet, fuzz

from each_case import each_case
from examples import few
from ibwire_layers import opcodes
from ibwire_layers.mad import MAD_SIZE
from ibwire_layers.management import LAYOUTS
from ibwire_layers.scapy import BTH, DETH, ERF, GRH, LRH, PFC, RWH, FlowControl, IPoIB, Pause, mad
from ibwire_layers.scapy.transport import EXTENSIONS

LAYERS: list[type[Packet]] = [
    BTH, ERF, GRH, LRH, PFC, RWH, FlowControl, IPoIB, Pause,
    *EXTENSIONS.values(),
    *mad.LAYERS.values(),
]  # fmt: skip

# Other opcodes are other MAC control frames.
OPCODES: dict[Any, Any] = {Pause: {"opcode": 0x0001}, PFC: {"opcode": 0x0101}}

ADDRESSES: dict[str, Any] = {"src": "00:00:00:00:00:01", "dst": "00:00:00:00:00:02"}


def assert_rebuilt(layer: type[Packet], data: bytes) -> None:
    assert bytes(layer(data)) == data
    packet = layer(data)
    packet.clear_cache()
    assert bytes(packet) == data


def bth(opcode: int, pad_count: int, dest_qp: int = 0x11) -> bytes:
    return bytes([opcode, pad_count << 4, 255, 255, 0, *dest_qp.to_bytes(3), 0, 0, 0, 0])


# A random BTH has a known opcode one time in three; these have one always.
transport = st.builds(
    lambda opcode, pad_count, rest: bth(opcode, pad_count) + rest,
    st.sampled_from(sorted(opcodes.INFO)),
    st.integers(0, 3),
    st.binary(max_size=80),
)


@given(st.binary(max_size=120) | transport)
def test_any_bytes_after_udp_are_rebuilt(data: bytes) -> None:
    for lower in (IP(src="192.0.2.1", dst="192.0.2.2"), IPv6(src="2001:db8::1", dst="2001:db8::2")):
        frame = bytes(Ether(**ADDRESSES) / lower / UDP(sport=49152, dport=4791) / data)
        assert_rebuilt(Ether, frame)


@given(transport, st.integers(0, 65535), st.integers(0, 65535), st.binary(max_size=20))
def test_wrong_lengths_do_not_move_bytes(
    data: bytes, ip_length: int, udp_length: int, behind: bytes
) -> None:
    ip = IP(src="192.0.2.1", dst="192.0.2.2", len=ip_length % 200)
    frame = bytes(Ether(**ADDRESSES) / ip / UDP(dport=4791, len=max(udp_length % 200, 8)) / data)

    packet = Ether(frame + behind)

    assert sorted(bytes(packet)) == sorted(frame + behind)


@given(st.integers(0, 65535), transport, st.binary(max_size=20))
def test_any_rocev1_frame_is_rebuilt(pay_len: int, data: bytes, behind: bytes) -> None:
    grh = GRH(sgid=1, dgid=2, pay_len=pay_len % 120)
    assert_rebuilt(Ether, bytes(Ether(**ADDRESSES) / grh / (data + behind)))


@given(st.integers(0, 3), st.integers(0, 60), st.integers(0, 150), transport | st.binary())
def test_any_native_packet_is_rebuilt(lnh: int, pkt_len: int, pay_len: int, data: bytes) -> None:
    assert_rebuilt(LRH, bytes(LRH(lnh=lnh, pkt_len=pkt_len, vcrc=b"")) + data)
    if lnh == 3:
        grh = bytes(GRH(sgid=1, dgid=2, pay_len=pay_len))
        assert_rebuilt(LRH, bytes(LRH(lnh=lnh, pkt_len=pkt_len, vcrc=b"")) + grh + data)


@given(st.data(), st.sampled_from(sorted(LAYOUTS)), st.binary(min_size=256, max_size=256))
def test_any_mad_is_rebuilt(data: st.DataObject, mgmt_class: int, content: bytes) -> None:
    attributes = sorted(LAYOUTS[mgmt_class].attributes) or [0]
    attribute = data.draw(st.sampled_from(attributes))
    changed = bytearray(content)
    changed[1] = mgmt_class
    changed[16:18] = attribute.to_bytes(2)
    header = bth(opcodes.OpCode.UD_SEND_ONLY, 0, dest_qp=1)
    frame = bytes(Ether(**ADDRESSES) / GRH(sgid=1, dgid=2, pay_len=12 + 8 + MAD_SIZE + 4))

    packet = Ether(frame + header + bytes(8) + bytes(changed) + b"\x12\x34\x56\x78")

    assert isinstance(packet[DETH].payload, mad.Common)
    assert packet[BTH].icrc == 0x12345678
    assert_rebuilt(Ether, frame + header + bytes(8) + bytes(changed) + b"\x12\x34\x56\x78")


@each_case("layer", LAYERS, ids=lambda layer: layer.__name__)
@example(data=bytes(8) + b"\x02" + bytes(7))  # an ERF record that ends before its padding
@example(data=bytes(8) + b"\x95" + bytes(7))  # and one before its extension headers
@settings(max_examples=few(100))
@given(data=st.binary(min_size=1, max_size=300))
def test_any_bytes_in_any_layer_are_rebuilt(layer: type[Packet], data: bytes) -> None:
    assert_rebuilt(layer, data)


@each_case("layer", LAYERS, ids=lambda layer: layer.__name__)
def test_fuzzed_layer_builds_and_is_read_as_what_it_is(layer: type[Packet]) -> None:
    for _ in range(20):
        built = bytes(fuzz(layer(**OPCODES.get(layer, {}))))
        assert isinstance(layer(built), type(layer()))
        assert bytes(layer(built)) == built


@each_case("layer", LAYERS, ids=lambda layer: layer.__name__)
def test_layer_with_any_values_is_shown(layer: type[Packet]) -> None:
    whole = layer(bytes(layer()))

    for packet in (layer(), whole, fuzz(layer())):
        assert packet.summary()
        assert layer.__name__ in packet.show(dump=True)  # type: ignore[operator]
        assert layer.__name__ in repr(packet)
        assert packet.command().startswith(layer.__name__)


@each_case("layer", LAYERS, ids=lambda layer: layer.__name__)
def test_layer_has_the_schemas_fields_in_order(layer: type[Packet]) -> None:
    names = [field.name.rstrip("_") for field in layer.fields_desc]
    described = [f.name for f in layer.HEADER.FIELDS if f.name != "private_data"]

    assert names[: len(described)] == described


@given(st.data())
def test_header_reads_as_its_schema_does(data: st.DataObject) -> None:
    layer = data.draw(st.sampled_from(list(EXTENSIONS.values())))
    content = data.draw(st.binary(min_size=layer.HEADER.SIZE, max_size=layer.HEADER.SIZE))

    header = layer.HEADER.unpack(content)
    packet = layer(content)

    assert {f.name: getattr(packet, f.name) for f, _ in header.items()} == {
        f.name: value for f, value in header.items()
    }


@given(st.binary(max_size=64), st.sampled_from(sorted(opcodes.INFO)), st.booleans())
def test_built_packet_verifies_and_reads_back(payload: bytes, opcode: int, v6: bool) -> None:
    ip = IPv6(src="2001:db8::1", dst="2001:db8::2") if v6 else IP(src="192.0.2.1", dst="192.0.2.2")
    packet = Ether(**ADDRESSES) / ip / UDP() / BTH(opcode=opcode, dest_qp=0x11)
    for header in opcodes.INFO[opcode].headers:
        packet = packet / EXTENSIONS[header]()

    found = Ether(bytes(packet / payload))

    assert found[BTH].icrc_ok() is True
    assert found[BTH].pad_count == -len(payload) % 4
    last = found[EXTENSIONS[header]] if opcodes.INFO[opcode].headers else found[BTH]
    assert last.payload.do_build() == payload
