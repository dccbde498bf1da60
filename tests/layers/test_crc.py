"""Check values and packets worked by hand (reference/wire-formats#icrc-examples)."""

from __future__ import annotations

import random
import zlib

import pytest

from each_case import each_case
from ibwire_layers import crc
from vectors import Vector, load

DIGITS = b"123456789"

ONES = 8 * "ff"

# Bytes with the variant fields already set to ones, and the ICRC as sent. The first eight bytes
# are the ones that replace the LRH, or the LRH itself.
WORKED = {
    "RoCEv2 over IPv4: CNP of a ConnectX-4 Lx": (
        ONES + "45ff003c718c4000ff11ffff0a0011010a001201000012b70028ffff"
        "8100ffffff00011800000000" + 16 * "00",
        "82fd002a",
    ),
    "RoCEv2 over IPv6: UC SEND ONLY, 2 pad bytes": (
        ONES + "6fffffff002c11ff20220000000000000000000000001023202300000000000000000000"
        "00001024c00012b7002cffff2460ffffff0000d300cf17104630818be28935d90e9a9550"
        "5401be885e500000",
        "3e5b743b",
    ),
    "RoCEv1: RC ACK": (
        ONES + "6fffffff00141bff00000000000000000000ffff0f00000200000000000000000000ffff0f000002"
        "1140ffffff00010900a788c000000005",
        "25f0c038",
    ),
    "native, local: RC ACK": ("f0020004000700011140ffffff87040800d40a551f000001", "a8035550"),
}

# The four as they were on the wire, where the variant fields are not all ones.
LOCAL_ACK = bytes.fromhex("00020004000700011140ffff0087040800d40a551f000001a8035550")


@pytest.mark.parametrize("name", WORKED)
def test_icrc_of_masked_bytes(name: str) -> None:
    masked, sent = (bytes.fromhex(text) for text in WORKED[name])

    assert crc.icrc(masked, (), seed=0) == sent
    assert zlib.crc32(masked).to_bytes(4, "little") == sent


@pytest.mark.parametrize("name", [name for name in WORKED if not name.startswith("native")])
def test_seed_is_the_crc_of_eight_ff_bytes(name: str) -> None:
    masked, sent = (bytes.fromhex(text) for text in WORKED[name])

    assert crc.icrc(masked[8:], ()) == sent


def test_masks_cover_the_variant_fields() -> None:
    packet = LOCAL_ACK[:-4]

    assert crc.icrc(packet, ((0, crc.LRH_MASK), (8, crc.BTH_MASK)), seed=0) == LOCAL_ACK[-4:]


@pytest.mark.parametrize(
    ("name", "masks", "start"),
    [
        ("RoCEv2 over IPv4: CNP of a ConnectX-4 Lx", ((0, "ip4"), (20, "udp"), (28, "bth")), 8),
        ("RoCEv2 over IPv6: UC SEND ONLY, 2 pad bytes", ((0, "ip6"), (40, "udp"), (48, "bth")), 8),
        ("RoCEv1: RC ACK", ((0, "grh"), (40, "bth")), 8),
        ("native, local: RC ACK", ((0, "lrh"), (8, "bth")), 0),
    ],
)
def test_masks_set_to_ones_what_the_worked_bytes_have_as_ones(
    name: str, masks: tuple[tuple[int, str], ...], start: int
) -> None:
    """The CRC is that of ones in the variant bits, for any value of these."""
    table = {
        "ip4": crc.IPV4_MASK,
        "ip6": crc.IPV6_MASK,
        "udp": crc.UDP_MASK,
        "bth": crc.BTH_MASK,
        "grh": crc.GRH_MASK,
        "lrh": crc.LRH_MASK,
    }
    masked, sent = (bytes.fromhex(text) for text in WORKED[name])
    wire = bytearray(masked[start:])
    chosen = tuple((at, table[kind]) for at, kind in masks)
    for at, mask in chosen:
        for offset, ones in mask:
            assert wire[at + offset] & ones == ones
            wire[at + offset] ^= ones & 0xA5

    assert crc.icrc(bytes(wire), chosen, crc.ICRC_SEED if start else 0) == sent


def test_icrc_leaves_its_argument_alone() -> None:
    packet = bytearray(32)

    crc.icrc(packet, ((0, crc.IPV4_MASK),))

    assert packet == bytearray(32)


def test_check_values_of_both_generators() -> None:
    assert crc.icrc(DIGITS, (), seed=0) == (0xCBF43926).to_bytes(4, "little")
    assert crc.vcrc(DIGITS) == (0x0A3D).to_bytes(2, "little")
    assert crc.lpcrc(DIGITS) == (0x0A3D).to_bytes(2, "little")


def test_vcrc_of_a_captured_acknowledgement() -> None:
    assert crc.vcrc(LOCAL_ACK) == bytes.fromhex("3081")


@pytest.mark.parametrize(("packet", "sent"), [("01233456", "d19f"), ("1000007f", "30dc")])
def test_lpcrc_of_flow_control_packets(packet: str, sent: str) -> None:
    assert crc.lpcrc(bytes.fromhex(packet)).hex() == sent


@each_case("vector", [v for v in load() if v.vcrc_verifies is not None], ids=str)
def test_vcrc_of_golden_frames(vector: Vector) -> None:
    frame = vector.frame
    expected = vector.expected["vcrc_computed_wire_bytes"]

    assert crc.vcrc(frame[:-2]).hex() == expected


@each_case("size", [*range(104, 112), 256, 1050, 4130])
def test_vcrc_of_long_packets_is_the_remainder_of_a_division(size: int) -> None:
    """Bit by bit, with the generator x^16 + x^12 + x^3 + x + 1 of the specification (IBA 7.8.2)."""
    packet = random.Random(size).randbytes(size)
    register = 0xFFFF
    for byte in packet:
        for bit in range(8):
            top = register >> 15 ^ byte >> bit & 1
            register = (register << 1 & 0xFFFF) ^ (0x100B if top else 0)
    # The highest power of x is sent first, which is the lowest bit of a byte.
    expected = int(f"{register ^ 0xFFFF:016b}"[::-1], 2)

    assert crc.vcrc(packet) == expected.to_bytes(2, "little")
