"""Checks of many packets: what they cover, and that they leave no trace."""

from __future__ import annotations

import zlib

import numpy as np
import pytest

from each_case import each_case
from ibwire.capture import RecordBatch
from ibwire.capture.index import PADDING
from ibwire.dissect import icrc
from ibwire.dissect.frames import Frames
from ibwire_layers.outer import LinkType
from ibwire_layers.packet import Route
from strategies import HANDMADE, ROUTE1, ROUTE4, ROUTE6, ROUTE_GLOBAL, ROUTE_LOCAL, erf, packet
from vectors import INFINIBAND, LINK_PACKET, load

VECTORS = load()


def frames_of(datas: list[bytes], link_types: list[int], cut: int = 0) -> Frames:
    """One batch; `cut` bytes of each frame were not captured."""
    whole = np.array([len(data) for data in datas], np.int64)
    held = np.maximum(whole - cut, 0)
    body = b"".join(data[: int(n)] for data, n in zip(datas, held, strict=True))
    n = len(datas)
    batch = RecordBatch(
        data=np.frombuffer(bytearray(body + bytes(PADDING)), np.uint8),
        offsets=np.cumsum(held) - held,
        cap_len=held,
        wire_len=whole,
        time_ns=np.zeros(n, np.int64),
        link_type=np.array(link_types, np.uint16),
        interface=np.zeros(n, np.uint32),
        first_number=1,
    )
    return Frames(batch)


def words(verdicts: np.ndarray[tuple[int], np.dtype[np.uint8]]) -> list[str]:
    return [str(icrc.STATUS_WORDS[verdict]) for verdict in verdicts]


def test_golden_icrcs_are_judged_as_a_separate_program_judges_them() -> None:
    some = [v for v in VECTORS if v.icrc_verifies is not None]
    frames = frames_of([v.frame for v in some], [v.link_type for v in some])

    assert words(icrc.icrc_status(frames)) == ["good" if v.icrc_verifies else "bad" for v in some]


def test_golden_vcrcs_are_judged_as_a_separate_program_judges_them() -> None:
    some = [v for v in VECTORS if v.vcrc_verifies is not None]
    frames = frames_of([v.frame for v in some], [v.link_type for v in some])

    assert {v.link_type for v in some} == {INFINIBAND}
    assert words(icrc.vcrc_status(frames)) == ["good" if v.vcrc_verifies else "bad" for v in some]


def test_one_changed_bit_makes_a_vcrc_or_lpcrc_bad() -> None:
    """VCRC and LPCRC cover everything before them."""
    native = packet(ROUTE_LOCAL)
    flow = next(v.frame for v in VECTORS if v.link_type == LINK_PACKET)
    changed = [native] + [_flipped(native, bit) for bit in range(64, 8 * len(native))]
    links = [flow] + [_flipped(flow, bit) for bit in range(8 * len(flow))]

    vcrc = icrc.vcrc_status(frames_of(changed, [INFINIBAND] * len(changed)))
    lpcrc = icrc.lpcrc_status(frames_of([erf(f, 25) for f in links], [LinkType.ERF] * len(links)))

    assert words(vcrc) == ["good"] + ["bad"] * (len(changed) - 1)
    assert words(lpcrc) == ["good"] + ["bad"] * (len(links) - 1)


# Route, where the coverage starts in the frame, and the bits that may change on the way by byte
# from there (IBA 7.8.1, annex A17.3.3): class of service, flow label, TTL, checksums, BTH byte 4.
COVERAGE: dict[str, tuple[Route, int, dict[int, int]]] = {
    "rocev2": (ROUTE4, 14, {1: 0xFF, 8: 0xFF, 10: 0xFF, 11: 0xFF, 26: 0xFF, 27: 0xFF, 32: 0xFF}),
    "rocev2 ipv6": (
        ROUTE6,
        14,
        {0: 0x0F, 1: 0xFF, 2: 0xFF, 3: 0xFF, 7: 0xFF, 46: 0xFF, 47: 0xFF, 52: 0xFF},
    ),
    "rocev1": (ROUTE1, 14, {0: 0x0F, 1: 0xFF, 2: 0xFF, 3: 0xFF, 7: 0xFF, 44: 0xFF}),
    "ib local": (ROUTE_LOCAL, 0, {0: 0xF0, 12: 0xFF}),
    "ib global": (ROUTE_GLOBAL, 8, {0: 0x0F, 1: 0xFF, 2: 0xFF, 3: 0xFF, 7: 0xFF, 44: 0xFF}),
}

# Bytes of versions, lengths and selectors: with another value there it is another kind of packet.
SELECTING = {
    "rocev2": {0, 2, 3, 6, 7, 9, 22, 23},
    "rocev2 ipv6": {4, 5, 6, 42, 43},
    "rocev1": {4, 5, 6},
    "ib local": {1, 4, 5},
    "ib global": {6},
}


@each_case("kind", COVERAGE)
def test_the_icrc_covers_every_bit_that_may_not_change_and_no_other(kind: str) -> None:
    route, start, mask = COVERAGE[kind]
    data = packet(route)
    native = kind.startswith("ib")
    end = len(data) - (2 if native else 0)
    bits = [
        (byte, bit)
        for byte in range(end - start)
        for bit in range(8)
        if byte not in SELECTING[kind] and not (byte == 0 and not mask.get(0, 0) >> bit & 1)
    ]
    changed = [_flipped(data, 8 * (start + byte) + 7 - bit) for byte, bit in bits]

    frames = frames_of(changed, [INFINIBAND if native else LinkType.ETHERNET] * len(changed))
    verdicts = words(icrc.icrc_status(frames))

    variant = ["good" if mask.get(byte, 0) >> bit & 1 else "bad" for byte, bit in bits]
    assert verdicts == variant


def test_ethernet_and_tags_are_not_covered() -> None:
    data = packet(ROUTE4)
    changed = [_flipped(data, bit) for bit in range(8 * 12)]

    verdicts = icrc.icrc_status(frames_of(changed, [LinkType.ETHERNET] * len(changed)))

    assert set(words(verdicts)) == {"good"}


@each_case("cut", [1, 2, 3, 4, 5, 8])
def test_a_packet_that_was_cut_has_a_truncated_icrc(cut: int) -> None:
    datas = [packet(ROUTE4), packet(ROUTE6), packet(ROUTE1)]

    verdicts = icrc.icrc_status(frames_of(datas, [LinkType.ETHERNET] * 3, cut))

    assert words(verdicts) == ["truncated"] * 3


def test_a_native_packet_whose_vcrc_was_cut_keeps_its_icrc() -> None:
    datas, links = [packet(ROUTE_LOCAL), packet(ROUTE_GLOBAL)], [INFINIBAND] * 2

    frames = frames_of(datas, links, cut=1)

    assert words(icrc.vcrc_status(frames)) == ["truncated"] * 2
    assert words(icrc.icrc_status(frames)) == ["good"] * 2


def test_verdicts_leave_the_capture_as_it_was_and_repeat() -> None:
    frames = frames_of([f.data for f in HANDMADE], [f.link_type for f in HANDMADE])
    before = frames.data.copy()

    first = icrc.icrc_status(frames)
    second = icrc.icrc_status(frames)

    assert np.array_equal(frames.data, before)
    assert np.array_equal(first, second)


def test_zlib_and_isal_give_the_same_verdicts(monkeypatch: pytest.MonkeyPatch) -> None:
    isal = pytest.importorskip("isal.isal_zlib", reason="isal not installed")
    frames = frames_of([f.data for f in HANDMADE], [f.link_type for f in HANDMADE])
    found = []

    for crc32 in (isal.crc32, zlib.crc32):
        monkeypatch.setattr(icrc, "crc32", crc32)
        found.append(words(icrc.icrc_status(frames)))

    assert found[0] == found[1]
    assert {"good", "bad", "absent"} <= set(found[0])


def _flipped(data: bytes, bit: int) -> bytes:
    changed = bytearray(data)
    changed[bit // 8] ^= 0x80 >> bit % 8
    return bytes(changed)
