"""The readers of foreign bytes as functions of bytes, for coverage-guided fuzzing and the suite.

A target returns normally whatever the bytes are: it catches the errors that its reader is
documented to raise, and any other exception is a bug. Where a law holds for what was read, the
target asserts it.
"""

from __future__ import annotations

import io
import random
import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from ibwire.base.errors import CaptureError, ExpressionError, ScriptError
from ibwire.capture import open_capture
from ibwire.cm import ConnectionManager, identifiers
from ibwire.connections import Analysis
from ibwire.dissect import FIELDS, read
from ibwire.dissect.filters import parse_filter
from ibwire.drill.language.parser import parse as parse_script
from ibwire.peer.single import Peer
from ibwire.rc.attributes import AddressVector
from ibwire.rc.device import gid_of
from ibwire.rc.work import WROpcode
from ibwire.scenario.model import read_scenario
from ibwire.traffic.injection_file import read_injection
from ibwire_layers.errors import DecodeError
from ibwire_layers.opcodes import OpCode
from ibwire_layers.outer import LinkType
from ibwire_layers.packet import Packet

ROOT = Path(__file__).parents[2]
CAPTURES = ROOT / "captures"


@dataclass(frozen=True)
class Target:
    """One reader."""

    run: Callable[[bytes], None]
    seeds: Callable[[], Iterator[bytes]]
    """Right inputs, from which mutation starts."""


def capture(data: bytes) -> None:
    """pcap and pcapng of any compression: all columns, all connections."""
    analysis = Analysis()
    with suppress(CaptureError):
        for columns in read(io.BytesIO(data)):
            for name in FIELDS:
                assert len(columns[name]) == columns.rows
            analysis.take(columns)
    analysis.finish()


def packet(data: bytes) -> None:
    """One frame of the link type in the first byte: what is parsed is rebuilt to the byte."""
    if not data:
        return
    link_types = list(LinkType)
    link_type, frame = link_types[data[0] % len(link_types)], data[1:]
    with suppress(DecodeError):
        assert Packet.parse(frame, link_type, strict=False).build() == frame


def expression(data: bytes) -> None:
    """A filter, applied to a shipped capture."""
    with suppress(ExpressionError):
        condition = parse_filter(data.decode("utf-8", "surrogateescape"))
        for columns in read(CAPTURES / "rcx-all-ops.pcap"):
            assert len(condition.select(columns.column, columns.rows)) == columns.rows


def scenario(data: bytes) -> None:
    """A scenario, read and not run."""
    with suppress(ScriptError):
        read_scenario(data, "scenario.toml")


def script(data: bytes) -> None:
    """A drill script."""
    with suppress(ScriptError):
        parse_script(data, "script.drill")


def injection(data: bytes) -> None:
    """The streams of `ibwire inject`."""
    with suppress(ScriptError):
        read_injection(data, "streams.toml", {}, lambda values: values)


def manager(data: bytes) -> None:
    """Management datagrams to a connection manager that listens and connects."""
    own, peer = gid_of("10.0.0.1"), gid_of("10.0.0.2")
    made = ConnectionManager([own], 0xA11CE, identifiers(random.Random(1)))
    made.listen(SERVICE)
    now = 0
    for mad in pieces(data):
        made.handle_mad(mad, AddressVector(dgid=peer), now)
        while made.poll_transmit(now) is not None:
            pass
        now += 1_000_000
    assert len(list(made.connections)) <= len(data)


def device(data: bytes) -> None:
    """Frames to an emulated device that has sent a WRITE and a READ: it never raises."""
    end = Peer(size=4096)
    end.request(WROpcode.RDMA_WRITE, 3000)
    end.request(WROpcode.RDMA_READ, 3000)
    end.post_recv(256)
    for frame in pieces(data):
        end.receive(frame)


SERVICE = 0x1061C06
"""The service ID of TCP port 7174 in the RDMA port space."""


def pieces(data: bytes) -> Iterator[bytes]:
    """The byte strings of an input: each behind its length, two bytes."""
    while len(data) >= 2:
        length = int.from_bytes(data[:2], "big")
        yield data[2 : 2 + length]
        data = data[2 + length :]


def joined(parts: Iterator[bytes]) -> bytes:
    """The inverse of `pieces`."""
    return b"".join(len(part).to_bytes(2, "big") + part for part in parts)


def _captures() -> Iterator[bytes]:
    for path in sorted(CAPTURES.glob("*.pcap*")):
        if path.stat().st_size < 5000:
            yield path.read_bytes()


def _frames(name: str) -> Iterator[bytes]:
    with open_capture(CAPTURES / name) as opened:
        for record in opened.records():
            yield bytes(record.data)


def _packets() -> Iterator[bytes]:
    ethernet = list(LinkType).index(LinkType.ETHERNET)
    for name in ("rcx-all-ops.pcap", "rcx-ipv6.pcap", "vlan-rc-pingpong.pcap"):
        for frame in _frames(name):
            with suppress(DecodeError):  # a frame of TCP or ARP
                Packet.parse(frame)
                yield bytes([ethernet]) + frame


def _files(*patterns: str) -> Callable[[], Iterator[bytes]]:
    def found() -> Iterator[bytes]:
        for pattern in patterns:
            for path in sorted(ROOT.glob(pattern)):
                yield path.read_bytes()

    return found


def _expressions() -> Iterator[bytes]:
    for text in (
        "bth",
        "bth.opcode in {CNP, RC_SEND_ONLY} and not bth.a == 1",
        "aeth.syndrome.opcode in {1, 3} or ip.dsfield.ecn == 3 or icrc.status == bad",
        "ip.src == 10.77.0.0/24 and reth.va >= 0x1000 and frame.number < 100",
        "(eth.src == 02:00:0a:4d:00:01 or ipv6.dst == fe80::1) and payload.len in {0..7, 4096}",
    ):
        yield text.encode()


def _streams() -> Iterator[bytes]:
    """The TOML examples of docs/inject.md."""
    text = (ROOT / "docs" / "inject.md").read_text(encoding="utf-8")
    for block in re.findall(r"^```toml\n(.*?)^```", text, re.MULTILINE | re.DOTALL):
        yield block.encode()


def _datagrams() -> Iterator[bytes]:
    mads = [
        Packet.parse(frame, strict=False).payload
        for frame in _frames("cm-rping.pcap")
        if frame[36:38] == (4791).to_bytes(2, "big")
    ]
    yield joined(mad for mad in mads if len(mad) == 256)


def _exchanges() -> Iterator[bytes]:
    end = Peer(size=4096)
    yield joined(
        end.packet(opcode, payload=b"x" * 8 if "SEND" in opcode.name else b"").build()
        for opcode in (OpCode.RC_SEND_ONLY, OpCode.RC_RDMA_READ_REQUEST, OpCode.RC_ACKNOWLEDGE)
    )


TARGETS = {
    "capture": Target(capture, _captures),
    "packet": Target(packet, _packets),
    "filter": Target(expression, _expressions),
    "scenario": Target(scenario, _files("ibwire/scenarios/*.toml")),
    "drill": Target(script, _files("tests/conformance/*/*.drill")),
    "inject": Target(injection, _streams),
    "cm": Target(manager, _datagrams),
    "device": Target(device, _exchanges),
}
