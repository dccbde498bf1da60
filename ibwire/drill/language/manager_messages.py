"""Messages of connection management in a script: `CM_REQ`, `CM_REP reason=...`, both ways.

Fields that a script does not set have the values of the current exchange, whose
numbers are symbols (`manager.Exchange`): in messages of the peer, and as the expected
values of messages of the device. Otherwise they are as the RDMA-CM of Linux sends them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from ibwire.cm.messages import LINUX, Message, Received, decode, encode, padded, reply, request
from ibwire.cm.rdma_cm import Endpoints
from ibwire.rc.unreliable import QP1
from ibwire_layers import cm
from ibwire_layers import headers as h
from ibwire_layers.headers import IPCM
from ibwire_layers.mad import GSI_QKEY, MAD
from ibwire_layers.packet import Packet
from ibwire_layers.schema import Field, Header

Symbols = Mapping[str, int]

PREFIX = "CM_"

PORT, PEER_PORT = 7174, 49152
"""Ports of the listener (that of rping) and of the active side (lowest dynamic, RFC 6335)."""


@dataclass(frozen=True, slots=True)
class Form:
    """A message: what is right in it, by the symbols of the exchange."""

    kind: type[Message]
    inbound: Mapping[str, str]
    """Fields of the peer's message."""
    outbound: Mapping[str, str]
    """Fields of the device's message."""
    transaction: str = ""
    """Of an answer; empty for a message that begins something, which may have any."""

    @property
    def name(self) -> str:
        """As scripts have it."""
        return PREFIX + self.kind.__name__

    @property
    def headers(self) -> tuple[type[Header], ...]:
        """The headers whose fields a script may name: those of the message first."""
        return (self.kind, MAD, h.DETH)

    @property
    def room(self) -> int:
        """Bytes of private data that an application has."""
        return self.kind.FIELDS[-1].size // 8 - self.first

    @property
    def first(self) -> int:
        """Bytes of private data before the application's: requests have the IP addresses there."""
        return IPCM.SIZE if self.kind in (cm.REQ, cm.SIDR_REQ) else 0


def build(
    form: Form,
    given: Mapping[str, Mapping[str, int]],
    data: bytes,
    sym: Symbols,
    *,
    is_whole: bool = False,
) -> bytes:
    """The MAD that a peer sends. given: numbers by the key of a header and the field's name.

    A number for a field of bytes is the first eight of them. Private data without room make the
    MAD longer. is_whole: they take the place of the IP addresses, too.
    """
    right: dict[str, Any] = {name: sym[symbol] for name, symbol in form.inbound.items()}
    ends = endpoints(sym["peer_gid"], sym["gid"])
    data = ends.private_data(data) if form.first and not is_whole else data
    size = form.first + form.room
    right["private_data"] = padded(form.kind, data[:size])
    message: Message
    if form.kind is cm.REQ:
        message = request(
            service_id=sym["service"],
            source=ends.source,
            destination=ends.destination,
            qpn=sym["peer_qpn"],
            starting_psn=sym["sq_psn"],
            mtu=sym["mtu"],
            flow_label=ends.flow_label,
            pkey=sym["pkey"],
        )
    elif form.kind is cm.REP:
        message = reply(qpn=sym["peer_qpn"], starting_psn=sym["sq_psn"])
    elif form.kind is cm.REJ:
        message = cm.REJ(reason=cm.RejectReason.CONSUMER_DEFINED)
    elif form.kind is cm.MRA:
        message = cm.MRA(service_timeout=LINUX.service_timeout)
    else:
        message = form.kind()
    numbers = given.get(form.kind.KEY, {})
    octets = {entry.name: entry.size // 8 for entry in form.kind.FIELDS if entry.is_octets}
    said = {
        name: _octets(value, octets[name]) if name in octets else value
        for name, value in numbers.items()
    }
    message = replace(message, **{**right, **said})
    mad = encode(message, sym[form.transaction or "peer_transaction"])
    common = replace(MAD.unpack(mad), **given.get(MAD.KEY, {}))
    return common.pack() + mad[MAD.SIZE :] + data[size:]


def _octets(number: int, size: int) -> bytes:
    return (number & (1 << 64) - 1).to_bytes(8).ljust(size, b"\0")


def endpoints(source: int, destination: int) -> Endpoints:
    """Which side asks for the connection."""
    return Endpoints(source, PEER_PORT, destination, PORT)


def is_management(packet: Packet) -> bool:
    """Whether a packet goes from one connection manager to another."""
    deth = packet.extension(h.DETH)
    return deth is not None and packet.bth.dest_qp == QP1


def received(packet: Packet) -> Received | None:
    """The message in a packet, `None` for one that has none."""
    return decode(packet.payload) if is_management(packet) else None


def header_of(packet: Packet, part: str) -> Header | None:
    """The common header of the MAD in a packet, or the message."""
    found = received(packet)
    if found is None:
        return None
    return MAD.unpack(packet.payload) if part == MAD.KEY else found.message


def is_message(form: Form, packet: Packet) -> bool:
    """Whether a packet has a message of this form."""
    found = received(packet)
    return found is not None and isinstance(found.message, form.kind)


def differences(
    form: Form, packet: Packet, named: frozenset[str], data: bytes | None, sym: Symbols
) -> list[str]:
    """The wrong fields of a message of this form, except those named in a script.

    data: what the application's private data must be, `None` for whatever it likes.
    """
    found = received(packet)
    assert found is not None
    message = found.message
    wrong = [
        _wrong(name, getattr(message, name), sym[symbol])
        for name, symbol in form.outbound.items()
        if name not in named and getattr(message, name) != sym[symbol]
    ]
    transaction = sym[form.transaction] if form.transaction else found.transaction_id
    if "transaction_id" not in named and found.transaction_id != transaction:
        wrong.append(_wrong("transaction_id", found.transaction_id, transaction))
    deth = packet.extension(h.DETH)
    assert deth is not None
    if "src_qp" not in named and deth.src_qp != QP1:
        wrong.append(_wrong("src_qp", deth.src_qp, QP1))
    if "qkey" not in named and deth.qkey != GSI_QKEY:
        wrong.append(_wrong("qkey", deth.qkey, GSI_QKEY))
    if data is not None:
        private = message.private_data[form.first :]
        if private != data.ljust(len(private), b"\0"):
            wrong.append(f"private data {private[: max(len(data), 8)].hex()}, not {data.hex()}")
    return wrong


def describe(packet: Packet) -> str:
    """A packet to QP1 as a line of text: the message and its main fields."""
    found = received(packet)
    if found is None:
        return f"a datagram of {len(packet.payload)} bytes for QP{packet.bth.dest_qp}"
    message = found.message
    words = [PREFIX + type(message).__name__]
    for entry in type(message).FIELDS:
        if entry.name in _SHOWN:
            value = getattr(message, entry.name)
            names = {number: name for name, number in names_of(entry).items()}
            words.append(f"{entry.name}={names.get(value, _hex(value))}")
    return " ".join(words)


def names_of(entry: Field) -> Mapping[str, int]:
    """The names that a field's numbers have."""
    return {} if entry.names is None else {each.name: each.value for each in entry.names}


def _wrong(name: str, actual: int, expected: int) -> str:
    return f"{name} {_hex(actual)}, not {_hex(expected)}"


def _hex(value: int) -> str:
    return hex(value) if value >= 1 << 16 else str(value)


_SHOWN = frozenset({
    "local_comm_id", "remote_comm_id", "local_qpn", "starting_psn", "remote_qpn",
    "reason", "message_rejected", "message_mraed", "service_timeout",
})  # fmt: skip

_SAID = {"local_comm_id": "peer_cm_id", "remote_comm_id": "cm_id"}
_HEARD = {"local_comm_id": "cm_id", "remote_comm_id": "peer_cm_id"}
_ASKS = {"transaction": "transaction"}

_FORMS = (
    Form(
        cm.REQ,
        {"local_comm_id": "peer_cm_id", "local_ca_guid": "peer_guid"},
        {
            "service_id": "service",
            "local_ca_guid": "guid",
            "local_qpn": "qpn",
            "starting_psn": "rq_psn",
            "primary_local_gid": "gid",
            "primary_remote_gid": "peer_gid",
        },
    ),
    Form(
        cm.MRA,
        {**_SAID, "message_mraed": "to_device"},
        {**_HEARD, "message_mraed": "from_device"},
        **_ASKS,
    ),
    Form(cm.REJ, {**_SAID, "message_rejected": "to_device"}, _HEARD, **_ASKS),
    Form(
        cm.REP,
        {**_SAID, "local_ca_guid": "peer_guid"},
        {
            "remote_comm_id": "peer_cm_id",
            "local_ca_guid": "guid",
            "local_qpn": "qpn",
            "starting_psn": "rq_psn",
        },
        **_ASKS,
    ),
    Form(cm.RTU, _SAID, _HEARD, **_ASKS),
    Form(cm.DREQ, {**_SAID, "remote_qpn": "qpn"}, {**_HEARD, "remote_qpn": "peer_qpn"}),
    Form(cm.DREP, _SAID, _HEARD, "dreq_transaction"),
    Form(
        cm.SIDR_REQ,
        {"request_id": "peer_cm_id", "service_id": "service", "pkey": "pkey"},
        {"service_id": "service", "pkey": "pkey"},
    ),
    Form(
        cm.SIDR_REP,
        {"request_id": "cm_id", "service_id": "service", "qpn": "peer_qpn"},
        {"request_id": "peer_cm_id", "service_id": "service"},
        **_ASKS,
    ),
    Form(
        cm.LAP,
        {**_SAID, "remote_qpn": "qpn", "alternate_local_gid": "peer_gid"},
        {**_HEARD, "remote_qpn": "peer_qpn"},
    ),
    Form(cm.APR, _SAID, _HEARD),
)
FORMS: Mapping[str, Form] = {form.name: form for form in _FORMS}
"""Messages by their names (IBA 12.6; reference/cm#messages)."""
