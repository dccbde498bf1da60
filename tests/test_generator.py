"""The makers of benchmark captures, checked with `struct` and `zlib` alone."""

from __future__ import annotations

import hashlib
import importlib.util
import io
import shutil
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

PACKETS = 2000


def _module(name: str) -> ModuleType:
    path = Path(__file__).parent / "bench" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(f"ibwire_bench_{name}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def generator() -> ModuleType:
    return _module("generate")


def _made(generator: ModuleType, seed: int = 1, snaplen: int = 65535) -> tuple[bytes, set[int]]:
    out = io.BytesIO()
    planted = generator.generate(out, PACKETS, seed, snaplen)
    return out.getvalue(), set(planted)


def _records(capture: bytes) -> Iterator[tuple[int, int, int, bytes]]:
    """Seconds, microseconds, original length and captured bytes of each record."""
    at = 24
    while at < len(capture):
        seconds, micros, captured, original = struct.unpack_from("<IIII", capture, at)
        yield seconds, micros, original, capture[at + 16 : at + 16 + captured]
        at += 16 + captured


def _ip(frame: bytes) -> bytearray | None:
    """A copy from the IP header on, `None` unless RoCEv2 follows."""
    at = 18 if frame[12:14] == b"\x81\x00" else 14
    ip = bytearray(frame[at:])
    protocol = {b"\x08\x00": 9, b"\x86\xdd": 6}.get(frame[at - 2 : at])
    return ip if protocol is not None and ip[protocol] == 17 else None


def _has_good_icrc(ip: bytearray) -> bool:
    if ip[0] >> 4 == 4:
        bth = 28
        masked = (1, 8, 10, 11, 26, 27, 32)
    else:
        bth = 48
        masked = (1, 2, 3, 7, 46, 47, 52)
        ip[0] |= 0x0F
    assert ip[bth - 6 : bth - 4] == (4791).to_bytes(2)
    for offset in masked:
        ip[offset] = 0xFF
    return zlib.crc32(b"\xff" * 8 + ip[:-4]).to_bytes(4, "little") == ip[-4:]


def test_same_seed_gives_the_same_bytes(generator: ModuleType) -> None:
    first, again, other = (
        hashlib.sha256(_made(generator, seed)[0]).hexdigest() for seed in (1, 1, 2)
    )

    assert first == again
    assert first != other


def test_icrcs_are_wrong_exactly_where_planted(generator: ModuleType) -> None:
    capture, planted = _made(generator)

    wrong = set()
    for number, (_, _, _, frame) in enumerate(_records(capture)):
        ip = _ip(frame)
        if ip is not None and not _has_good_icrc(ip):
            wrong.add(number)

    assert wrong == planted
    assert len(wrong) == 99


def test_capture_holds_what_it_is_said_to_hold(generator: ModuleType) -> None:
    capture, _ = _made(generator)

    records = list(_records(capture))
    packets = [ip for *_, frame in records if (ip := _ip(frame)) is not None]
    bths = [ip[28:40] if ip[0] >> 4 == 4 else ip[48:60] for ip in packets]
    times = [(seconds, micros) for seconds, micros, _, _ in records]
    assert len(records) == PACKETS
    assert len(packets) == PACKETS - PACKETS // 200
    assert len({bytes(bth[5:8]) for bth in bths}) == 128
    # Parts of a WRITE, READ and its response, ACK, both atomics, UD, CNP.
    assert {6, 7, 8, 12, 14, 17, 18, 19, 20, 100, 129} <= {bth[0] for bth in bths}
    assert {ip[0] >> 4 for ip in packets} == {4, 6}
    assert any(frame[12:14] == b"\x81\x00" for *_, frame in records)
    assert all(original == len(frame) >= 60 for *_, original, frame in records)
    assert times == sorted(times)


def test_snap_length_cuts_what_is_captured_and_nothing_else(generator: ModuleType) -> None:
    whole, cut = (list(_records(_made(generator, snaplen=n)[0])) for n in (65535, 128))

    assert [(*record[:3], record[3][:128]) for record in whole] == cut


MERGED = ("drop-one-middle.a", "corrupt-both-3pc.a", "read-bw-ipv6")
"""Real captures: with a NAK, with wrong ICRCs, over IPv6."""


def test_real_captures_come_again_with_other_addresses(tmp_path: Path) -> None:
    """All else stays, and as many ICRCs are right as before."""
    captures = Path(__file__).parents[1] / "captures"
    for name in MERGED:
        shutil.copy(captures / f"{name}.pcap", tmp_path)
    # The other end of the same wire has the same packets once more.
    shutil.copy(captures / "corrupt-both-3pc.b.pcap", tmp_path)
    files = [list(_records((captures / f"{name}.pcap").read_bytes())) for name in MERGED]
    originals = sorted(frame for file in files for *_, frame in file)
    out = tmp_path / "merged"

    assert _module("merged").generate(out, 2 * len(originals), tmp_path) == 2 * len(originals)

    records = list(_records(out.read_bytes()))
    rounds = records[: len(originals)], records[len(originals) :]
    assert sorted(frame for *_, frame in rounds[0]) == originals
    times = [(seconds, nanos) for seconds, nanos, *_ in records]
    assert times == sorted(times)
    wrong = 0
    for (*_, first), (*_, again) in zip(*rounds, strict=True):
        one, other = _ip(first), _ip(again)
        if one is None or other is None or one[_udp(one) + 2 :][:2] != (4791).to_bytes(2):
            assert first == again
            continue
        assert _addresses(one) != _addresses(other)
        assert one[_udp(one) : -4] == other[_udp(other) : -4]
        if one[0] >> 4 == 4:
            assert sum(struct.unpack(">10H", other[:20])) % 0xFFFF == 0
        is_good = _has_good_icrc(one)
        assert _has_good_icrc(other) is is_good
        wrong += not is_good
    assert wrong > 0


def _udp(ip: bytearray) -> int:
    return 20 if ip[0] >> 4 == 4 else 40


def _addresses(ip: bytearray) -> bytes:
    return bytes(ip[12:20] if ip[0] >> 4 == 4 else ip[8:40])
