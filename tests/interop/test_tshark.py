"""Every field that both have has the same value in tshark, in every packet."""

import shutil
import struct
import subprocess
from collections.abc import Callable
from decimal import Decimal
from ipaddress import IPv4Address, IPv6Address
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from click.testing import CliRunner

from capture.handmade import pcap_header, pcap_record
from ibwire.cli import main
from ibwire.dissect import FIELDS, read
from ibwire.dissect.column import Kind
from ibwire_layers.errors import Fault
from ibwire_layers.walk import Protocol
from vectors import ETHERNET, INFINIBAND, LINK_PACKET, RAW_IP, load

TSHARK = shutil.which("tshark")
CAPTURES = Path(__file__).parents[2] / "captures"

pytestmark = [
    pytest.mark.slow,  # and run by `make interop`
    pytest.mark.skipif(TSHARK is None, reason="tshark not installed"),
]

SHARED = [spec for spec in FIELDS.values() if spec.wireshark]

GUESSING = ("rpcordma", "smb_direct", "nvme-rdma", "iser")
"""Dissectors that guess by content and would claim the payload of a SEND."""

BARE = ("immdt", "ieth")
"""What tshark prints as hexadecimal digits without a prefix."""

LINKTYPE_ERF = 197
ERF_SIZE = 16
ERF_INFINIBAND, ERF_INFINIBAND_LINK = 21, 25


class Disagreement(NamedTuple):
    """One field of one packet that the two read differently."""

    field: str
    ours: Any
    theirs: Any
    row: dict[str, Any]
    """The fields that ibwire shows of the packet."""

    @property
    def unread(self) -> bool:
        """Whether tshark shows nothing at all."""
        return self.theirs is None

    def __str__(self) -> str:
        opcode = self.row["bth.opcode"]
        where = f"packet {self.row['frame.number']}, opcode {opcode and hex(opcode)}"
        return f"{where}: {self.field} is {self.ours!r}, for tshark {self.theirs!r}"


AFTER_BTH = (
    "rdeth.",
    "deth.",
    "xrceth.",
    "reth.",
    "atomiceth.",
    "aeth.",
    "atomicacketh.",
    "immdt",
    "ieth",
    "icrc",
)
INSIDE_IB = ("ip.", "udp.", "rwh.")

# Why tshark 4.0 is not followed: (reason, whether that explains a disagreement).
KNOWN: tuple[tuple[str, Callable[[Disagreement], bool]], ...] = (
    (
        "a pcap has no interfaces; ibwire counts its packets to interface 0",
        lambda d: d.field == "frame.interface" and d.ours == 0 and d.unread,
    ),
    (
        "tshark shows the lengths of what is inside an ERF record",
        lambda d: d.field in ("frame.len", "frame.cap_len") and d.ours == d.theirs + ERF_SIZE,
    ),
    (
        "tshark's IPv6 sets ip.version as well",
        lambda d: d.field == "ip.version" and d.row["ipv6.version"] == d.theirs == 6,
    ),
    (
        "tshark shows address and key of an AtomicETH under the names of the RETH",
        lambda d: (
            d.field in ("reth.va", "reth.r_key")
            and d.row["bth.opcode"] in (0x13, 0x14)
            and d.theirs == d.row[d.field.replace("reth", "atomiceth")]
        ),
    ),
    (
        "tshark reads the extended headers of RD 8 bytes too late",
        lambda d: d.row["bth.opcode"] in range(0x40, 0x60) and d.field.startswith(AFTER_BTH),
    ),
    (
        "tshark knows no opcode of XRC",
        lambda d: (
            d.row["bth.opcode"] in range(0xA0, 0xC0) and d.field.startswith(AFTER_BTH) and d.unread
        ),
    ),
    (
        "tshark knows neither FLUSH, ATOMIC WRITE nor CNP, and finds no ICRC after the unknown",
        lambda d: (
            (d.row["bth.opcode"] in (0x1C, 0x1D, 0x81) or d.row["fault"] == Fault.OPCODE)
            and d.field.startswith(("reth.", "icrc"))
            and d.unread
        ),
    ),
    (
        "tshark forgets the CRCs after MADs of subnet administration and performance",
        lambda d: (
            d.field in ("icrc", "vcrc") and d.row["mad.mgmtclass"] in (0x03, 0x04) and d.unread
        ),
    ),
    (
        "tshark takes everything from QP 0 for a MAD and gives up when it is too short for one",
        lambda d: (
            d.field == "icrc"
            and d.row["deth.srcqp"] == 0
            and d.row["mad.mgmtclass"] is None
            and d.unread
        ),
    ),
    (
        "tshark believes the UDP length where it contradicts the IP length",
        lambda d: d.field == "icrc" and d.row["fault"] == Fault.UDP_LENGTH,
    ),
    (
        "tshark reads the datagram inside IPoIB and raw packets, which ibwire leaves alone",
        lambda d: (
            d.row["frame.protocol"] in (Protocol.IB, Protocol.IB_RAW)
            and d.field.startswith(INSIDE_IB)
            and d.ours is None
        ),
    ),
)


def by_tshark(path: Path, ports: set[int]) -> list[dict[str, str]]:
    """For each packet the text of each shared field; the innermost where a header repeats.

    ports: UDP source ports of RoCEv2. By itself tshark asks the lower of both ports
    first, whichever that is.
    """
    command = [str(TSHARK), "-n", "-r", str(path), "-T", "fields", "-E", "occurrence=l"]
    for port in sorted({4791, *ports}):
        command += ["-d", f"udp.port=={port},infiniband"]
    for name in GUESSING:
        command += ["--disable-protocol", name]
    for spec in SHARED:
        command += ["-e", str(spec.wireshark)]
    run = subprocess.run(command, capture_output=True, text=True, check=True)
    names = [spec.name for spec in SHARED]
    return [dict(zip(names, line.split("\t"), strict=True)) for line in run.stdout.splitlines()]


def by_ibwire(path: Path) -> list[dict[str, Any]]:
    """For each packet every field as a plain value, `None` where it has none."""
    rows: list[dict[str, Any]] = []
    for columns in read(path):
        chunk: list[dict[str, Any]] = [{} for _ in range(columns.rows)]
        for name, spec in FIELDS.items():
            values = columns[name].tolist()
            if spec.type.kind is Kind.IPV6:
                values = map(bytes, values)
            for row, value, has in zip(chunk, values, columns.valid(name), strict=True):
                row[name] = value if has else None
        rows += chunk
    return rows


def value_of(spec: Any, text: str) -> Any:
    """What tshark prints, as ibwire holds it."""
    if not text:
        return None
    match spec.type.kind:
        case Kind.IPV4:
            return int(IPv4Address(text))
        case Kind.IPV6:
            return IPv6Address(text).packed
        case Kind.MAC:
            return int(text.replace(":", ""), 16)
        case Kind.STRING:
            return text
        case Kind.SECONDS:
            return int(Decimal(text) * 10**9)
    if spec.name in BARE:
        return int(text, 16)
    if text in ("True", "False"):
        return int(text == "True")
    return int(text, 0)


def disagreements(path: Path) -> list[Disagreement]:
    """Every field of every packet that the two read differently."""
    ours = by_ibwire(path)
    ports = {row["udp.srcport"] for row in ours if row["frame.protocol"] == Protocol.ROCEV2}
    theirs = by_tshark(path, ports)
    assert len(ours) == len(theirs)
    found = []
    for row, texts in zip(ours, theirs, strict=True):
        for spec in SHARED:
            value = value_of(spec, texts[spec.name])
            if row[spec.name] != value:
                found.append(Disagreement(spec.name, row[spec.name], value, row))
    return found


def unexplained(path: Path) -> list[str]:
    return [str(d) for d in disagreements(path) if not any(known(d) for _, known in KNOWN)]


def erf(frame: bytes, kind: int) -> bytes:
    """The frame as an ERF record; tshark gives up on link packets of less than 40 bytes."""
    frame = frame.ljust(64, b"\0") if kind == ERF_INFINIBAND_LINK else frame
    return struct.pack(">QBBHHH", 0, kind, 4, ERF_SIZE + len(frame), 0, len(frame)) + frame


@pytest.mark.parametrize("path", sorted(CAPTURES.glob("*.pcap*")), ids=lambda path: path.name)
def test_shipped_captures(path: Path) -> None:
    assert unexplained(path) == []


@pytest.mark.parametrize(
    ("link_type", "written_as", "kind"),
    [
        (ETHERNET, ETHERNET, None),
        (RAW_IP, RAW_IP, None),
        # tshark 4.0 opens no LINKTYPE_INFINIBAND.
        (INFINIBAND, LINKTYPE_ERF, ERF_INFINIBAND),
        (LINK_PACKET, LINKTYPE_ERF, ERF_INFINIBAND_LINK),
    ],
    ids=["ethernet", "raw-ip", "infiniband", "infiniband-link"],
)
def test_golden_frames(tmp_path: Path, link_type: int, written_as: Any, kind: Any) -> None:
    frames = [vector.frame for vector in load() if vector.link_type == link_type]
    if kind is not None:
        frames = [erf(frame, kind) for frame in frames]
    path = tmp_path / "golden.pcap"
    path.write_bytes(pcap_header(link_type=written_as) + b"".join(map(pcap_record, frames)))

    assert frames
    assert unexplained(path) == []


def test_captures_of_an_infiniband_fabric(tmp_path: Path) -> None:
    """Packets and flow-control packets of a link between an adapter and a switch."""
    path = tmp_path / "link.pcapng"
    arguments = f"fabric traffic star2 --size 20K --lanes 2 --capture {path} --tap sw0[1]"

    result = CliRunner().invoke(main, arguments.split())

    assert result.exit_code == 0
    assert unexplained(path) == []
    # 5 packets and an ACK each way; a limit of each lane each way at the beginning.
    protocols = [row["frame.protocol"] for row in by_ibwire(path)]
    assert protocols.count(Protocol.IB) == 12
    assert protocols.count(Protocol.IB_LINK) >= 4


def test_nothing_is_excused_that_tshark_reads_right() -> None:
    """What is known against tshark covers no ordinary packet."""
    row = dict.fromkeys(FIELDS) | {"bth.opcode": 0x0A, "frame.protocol": Protocol.ROCEV2}
    wrong = [Disagreement(spec.name, 1, 2, row) for spec in SHARED]

    assert [d.field for d in wrong if any(known(d) for _, known in KNOWN)] == []
