"""Filters for connections: `ibwire flows --where`, in the language of `ibwire.dissect.where`.

    status >= unresolved and ip.dst in 10.1.0.0/16

The fields are those of `Connection.to_json` that are numbers and words, of one direction; the
addresses have the names that they have in packets. Statuses are ordered by severity. A
connection is selected when one of its directions is.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from typing import Any

import numpy as np

from ibwire.connections.connection import Connection
from ibwire.connections.pairing import PAIRINGS
from ibwire.connections.status import Status
from ibwire.dissect import where
from ibwire.dissect.column import Column, FieldType, Kind
from ibwire_layers.opcodes import Service

_NUMBERS = (
    "connection",
    "src_qpn",
    "dst_qpn",
    "path_mtu",
    "packets",
    "bytes",
    "payload_bytes",
    "messages",
    "open_messages",
    "message_bytes",
    "goodput_bps",
    "retransmitted_packets",
    "lost_packets",
    "duplicate_packets",
    "repeated_packets",
    "reordered_packets",
    "naks",
    "rnr_naks",
    "timeouts",
    "implied_naks",
    "restarts",
    "ecn_ce",
    "cnps",
    "icrc_bad",
    "max_outstanding_psns",
    "latency_ns.min",
    "latency_ns.p50",
    "latency_ns.p99",
    "latency_ns.max",
)

_WORDS = {
    "transport": tuple(service.name for service in Service),
    "pairing": tuple(PAIRINGS),
}

_ADDRESSES = {"ip.src": "src", "ip.dst": "dst", "ipv6.src": "src", "ipv6.dst": "dst"}

FIELDS: Mapping[str, FieldType] = {
    "status": FieldType(
        Kind.UINT,
        constants={str(status): status.severity for status in Status},
        has_only_names=True,
    ),
    "status_detail": FieldType(Kind.STRING),
    **{name: FieldType(Kind.TEXT, words=words) for name, words in _WORDS.items()},
    "ip.src": FieldType(Kind.IPV4),
    "ip.dst": FieldType(Kind.IPV4),
    "ipv6.src": FieldType(Kind.IPV6),
    "ipv6.dst": FieldType(Kind.IPV6),
    **{name: FieldType(Kind.UINT) for name in _NUMBERS},
}
"""The fields of a connection."""


class ConnectionFilter:
    """Selects connections by an expression; raises `ExpressionError` for a wrong one."""

    def __init__(self, text: str) -> None:
        self._expression = where.parse(text, FIELDS.get, FIELDS)

    def selects(self, connection: Connection) -> bool:
        """Whether a direction of the connection matches."""
        seen = [
            direction
            for direction, counts in enumerate(connection.directions)
            if counts.packets or counts.naks or counts.cnps
        ]
        # One that was only asked for has no packets.
        rows = [connection.to_json(direction) for direction in seen or [0]]
        mask = self._expression.select(lambda name: _column(name, rows), len(rows))
        return bool(mask.any())


def _column(name: str, rows: list[dict[str, Any]]) -> Column:
    """A field of some directions."""
    kind = FIELDS[name].kind
    if name in _ADDRESSES:
        return _addresses([row[_ADDRESSES[name]] for row in rows], kind)
    values = [_value(name, row) for row in rows]
    valid = np.array([value is not None for value in values], np.bool_)
    if kind is Kind.STRING:
        return Column(np.array(values, object), valid)
    if kind is Kind.TEXT:
        words = FIELDS[name].words
        places = [words.index(value) if value else 0 for value in values]
        return Column(np.array(places, np.uint8), valid)
    return Column(np.array([value or 0 for value in values], np.uint64), valid)


def _value(name: str, row: dict[str, Any]) -> Any:
    if name == "status":
        return Status(row[name]).severity
    value: Any = row
    for part in name.split("."):
        value = None if value is None else value[part]
    return sum(value.values()) if name == "naks" else value


def _addresses(texts: list[str], kind: Kind) -> Column:
    """The addresses of one version of IP; others are not valid."""
    version = 4 if kind is Kind.IPV4 else 6
    packed = [_packed(text) for text in texts]
    valid = np.array([len(each) == (4 if version == 4 else 16) for each in packed], np.bool_)
    if version == 4:
        numbers = [int.from_bytes(each[:4]) for each in packed]
        return Column(np.array(numbers, np.uint32), valid)
    joined = b"".join(each.ljust(16, b"\0") for each in packed)
    return Column(np.frombuffer(joined, np.uint8).reshape(-1, 16), valid)


def _packed(text: str) -> bytes:
    """The bytes of an IP address; none for a LID."""
    try:
        return ipaddress.ip_address(text).packed
    except ValueError:
        return b""
