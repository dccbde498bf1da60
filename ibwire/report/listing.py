"""One line per packet: time, addresses, operation, main header fields."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from ibwire.dissect.columns import Columns
from ibwire.dissect.fields import FIELDS
from ibwire.dissect.lines import Cells, Piece, assemble, cells_of, words
from ibwire_layers import opcodes, syndrome
from ibwire_layers.mad import Method, MgmtClass
from ibwire_layers.walk import Protocol

Rows = npt.NDArray[np.int64]


class Listing:
    """Makes the lines of a capture, chunk by chunk; times count from its first packet."""

    _number = "%6d  "
    _digits = 9

    def __init__(self) -> None:
        self._start: np.uint64 | None = None
        self._width = 0

    def lines(self, columns: Columns, rows: Rows) -> list[str]:
        """One line for each of the given rows."""
        if self._start is None and columns.rows:
            self._start = columns["frame.time_ns"][0]
        return assemble([*self._pieces(columns, rows)], rows)

    def _pieces(self, columns: Columns, rows: Rows) -> Iterator[Piece]:
        yield from self._head(columns, rows)
        yield from _transport(columns)
        yield from others(columns)
        yield Piece("  len=%d", (cells(columns, "frame.len"),))
        yield from verdicts(columns)

    def _head(self, columns: Columns, rows: Rows) -> Iterator[Piece]:
        """Number, time, addresses, padded to the widest addresses so far."""
        time = columns["frame.time_ns"]
        since = (time - (self._start if self._start is not None else time[:1])).astype(np.int64)
        earlier, span = since < 0, np.abs(since)
        yield Piece(self._number, (cells(columns, "frame.number"),))
        yield Piece("-", (), earlier)  # captures are not always in time order
        fraction = span % 1_000_000_000 // 10 ** (9 - self._digits)
        yield Piece(
            f"%d.%0{self._digits}d  ",
            ((span // 1_000_000_000, np.ndarray.tolist), (fraction, np.ndarray.tolist)),
        )
        text = np.full(columns.rows, "", object)
        for source, target, valid in _addresses(columns):
            chosen = rows[valid[rows]]
            prefix = "lid " if source == "lrh.slid" else ""
            pairs = zip(
                _texts(columns, source, chosen), _texts(columns, target, chosen), strict=True
            )
            ends = [f"{prefix}{first} > {prefix}{second}" for first, second in pairs]
            text[chosen] = ends
            if source != "eth.src":  # the few frames without a network layer may stick out
                self._width = max(self._width, *map(len, ends), 0)
        yield Piece(f"%-{self._width}s  ", ((text, np.ndarray.tolist),))


def _addresses(columns: Columns) -> Iterator[tuple[str, str, npt.NDArray[np.bool_]]]:
    """Source and destination fields with the rows that show them: the highest layer present."""
    free = np.ones(columns.rows, np.bool_)
    for source, target in (
        ("ip.src", "ip.dst"),
        ("ipv6.src", "ipv6.dst"),
        ("grh.sgid", "grh.dgid"),
        ("lrh.slid", "lrh.dlid"),
        ("eth.src", "eth.dst"),
    ):
        valid = columns.valid(source) & free
        free &= ~valid
        if valid.any():
            yield source, target, valid


def _texts(columns: Columns, name: str, rows: Rows) -> Iterable[Any]:
    return cells_of(FIELDS[name])(columns[name][rows])


def cells(columns: Columns, name: str) -> tuple[npt.NDArray[Any], Cells]:
    """The values of a field, and how they are printed."""
    return columns[name], cells_of(FIELDS[name])


CRC_BAD = FIELDS["icrc.status"].type.words.index("bad")
"""Value of the fields `icrc.status`, `vcrc.status` and `lpcrc.status`."""

_NAMES = tuple(opcodes.name_of(code).ljust(27) for code in range(256))

# How the fields of a header are printed; the first field shows whether it is present.
_DETAILS: tuple[tuple[str, tuple[str, ...]], ...] = (
    (" ee=%d", ("rdeth.eecnxt",)),
    (" src_qp=0x%06x qkey=0x%08x", ("deth.srcqp", "deth.q_key")),
    (" srq=%d", ("xrceth.xrcsrq",)),
    (" sel=%d plt=%d", ("feth.sel", "feth.plt")),
    (" va=0x%x rkey=0x%x dmalen=%d", ("reth.va", "reth.r_key", "reth.dmalen")),
    (" va=0x%x rkey=0x%x", ("atomiceth.va", "atomiceth.r_key")),
    (" swap=%d compare=%d", ("atomiceth.swapdt", "atomiceth.cmpdt")),
    (" %s msn=%d", ("aeth.syndrome", "aeth.msn")),
    (" orig=%d", ("atomicacketh.origremdt",)),
    (" imm=0x%08x", ("immdt",)),
    (" invalidate=0x%x", ("ieth",)),
)

_FLAGS = (
    ("bth.se", " SE"),
    ("bth.a", " A"),
    ("bth.fecn", " FECN"),
    ("bth.becn", " BECN"),
)

_SYNDROMES = words(tuple(syndrome.describe(value) for value in range(256)))


def _transport(columns: Columns) -> Iterator[Piece]:
    """The BTH and the following headers."""
    bth = columns.valid("bth.opcode")
    if not bth.any():
        return
    yield Piece(
        "%s qp=0x%06x psn=%-8d",
        (
            (columns["bth.opcode"], words(_NAMES)),
            *(cells(columns, name) for name in ("bth.destqp", "bth.psn")),
        ),
        bth,
    )
    yield from details(columns)


def details(columns: Columns) -> Iterator[Piece]:
    """What follows the PSN: extension headers, payload, flags, what a MAD is, VLAN."""
    bth = columns.valid("bth.opcode")
    if not bth.any():
        return
    for text, names in _DETAILS:
        present = columns.valid(names[0])
        if present.any():
            values = (
                (columns[name], _SYNDROMES if name == "aeth.syndrome" else np.ndarray.tolist)
                for name in names
            )
            yield Piece(text, tuple(values), present)
    size = columns["payload.len"]
    yield Piece(
        " payload=%d", ((size, np.ndarray.tolist),), columns.valid("payload.len") & (size > 0)
    )
    for name, text in _FLAGS:
        yield Piece(text, (), bth & (columns[name] == 1))
    for name in ("ip.dsfield.ecn", "ipv6.tclass.ecn"):
        yield Piece(" CE", (), bth & columns.valid(name) & (columns[name] == 3))
    yield from _management(columns)
    yield Piece(" vlan=%d", (cells(columns, "vlan.id"),), bth & columns.valid("vlan.id"))


def _management(columns: Columns) -> Iterator[Piece]:
    """Description of a MAD."""
    present = columns.valid("mad.mgmtclass")
    if present.any():
        rows = np.flatnonzero(present)
        text = np.full(columns.rows, "", object)
        parts = (columns[f"mad.{name}"][rows] for name in ("mgmtclass", "method", "attributeid"))
        text[rows] = [
            _mad_name(*key) for key in zip(*(part.tolist() for part in parts), strict=True)
        ]
        yield Piece(" %s", ((text, np.ndarray.tolist),), present)


def _mad_name(mgmt_class: int, method: int, attribute: int) -> str:
    # Classes of attributes and records take long to import, and most captures have none.
    from ibwire_layers.management import LAYOUTS

    layout = LAYOUTS.get(mgmt_class)
    parts = layout.attributes.get(attribute) if layout else None
    what = parts[-1].__name__ if parts else f"attribute 0x{attribute:04x}"
    if mgmt_class == MgmtClass.COMM_MGT:
        return f"CM {what}"
    known_class = mgmt_class in MgmtClass.__members__.values()
    known_method = method in Method.__members__.values()
    group = MgmtClass(mgmt_class).name if known_class else f"class 0x{mgmt_class:02x}"
    action = Method(method).name if known_method else f"method 0x{method:02x}"
    return f"{group} {action} {what}"


def others(columns: Columns) -> Iterator[Piece]:
    """Frames without a BTH: kind, and duration of pauses."""
    protocol = columns["frame.protocol"]
    plain = ~columns.valid("bth.opcode")
    if not plain.any():
        return
    names = words(tuple(member.name.replace("_", " ") for member in Protocol))
    yield Piece("%s", ((protocol, names),), plain)
    udp = plain & (protocol == Protocol.UDP) & columns.valid("udp.srcport")
    if udp.any():
        yield Piece(" %d > %d", tuple(cells(columns, f"udp.{n}port") for n in ("src", "dst")), udp)
    pause = columns.valid("macc.pause_time")
    if pause.any():
        yield Piece(" time=%d", (cells(columns, "macc.pause_time"),), pause)
    pfc = columns.valid("macc.pfc.time")
    if pfc.any():
        text = np.full(columns.rows, "", object)
        for row in np.flatnonzero(pfc).tolist():
            enabled = zip(
                columns["macc.pfc.classes"][row], columns["macc.pfc.time"][row], strict=True
            )
            text[row] = " ".join(
                f"class{number}={time or 'resume'}"
                for number, (on, time) in enumerate(enabled)
                if on
            )
        yield Piece(" %s", ((text, np.ndarray.tolist),), pfc)
    fcp = columns.valid("infiniband_link.op")
    if fcp.any():
        names_of = ("op", "vl", "fctbs", "fccl")
        values = tuple(cells(columns, f"infiniband_link.{name}") for name in names_of)
        yield Piece(" op=%d vl=%d fctbs=%d fccl=%d", values, fcp)


def verdicts(columns: Columns, *, faults_only: bool = False) -> Iterator[Piece]:
    """CRC verdicts, and the fault of a packet that could not be read to its end.

    faults_only: without the verdicts on CRCs that are right, cut off or absent.
    """
    for name, label in (
        ("icrc.status", "icrc"),
        ("vcrc.status", "vcrc"),
        ("lpcrc.status", "lpcrc"),
        ("fault", "fault"),
    ):
        valid = columns.valid(name)
        if faults_only and name != "fault":
            valid = valid & (columns[name] == CRC_BAD)
        if valid.any():
            yield Piece(f" {label}=%s", (cells(columns, name),), valid)
