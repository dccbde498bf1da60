"""The generator of benchmark captures, checked with `struct` and `zlib` alone."""

from __future__ import annotations

import hashlib
import importlib.util
import io
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

PACKETS = 2000


@pytest.fixture(scope="module")
def generator() -> ModuleType:
    path = Path(__file__).parent / "bench" / "generate.py"
    spec = importlib.util.spec_from_file_location("ibwire_bench_generate", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


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
