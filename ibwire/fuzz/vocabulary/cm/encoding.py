"""Messages of connection management as bytes, for the exchange that they belong to.

What a step does not give is right for that exchange: IDs and transaction, queue pairs and
PSNs, the Q_Key of QP1.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ibwire.cm.messages import BASE_VERSION, CLASS_VERSION, LINUX, Message
from ibwire.drill.packets import pattern
from ibwire.fuzz.case import MRA_TIMEOUT, CaseError, Mad, Value
from ibwire.fuzz.vocabulary.queue_pair.encoding import Symbols, number_of, rewritten
from ibwire.rc.unreliable import QP1
from ibwire_layers import cm
from ibwire_layers import headers as h
from ibwire_layers.mad import GSI_QKEY, MAD, Method, MgmtClass
from ibwire_layers.psn import MASK
from ibwire_layers.schema import Header


def encode_message(packet: Mad, psn: int, symbols: Symbols, ends: bytes = b"") -> bytes:
    """The bytes from the BTH to the padding. ends: how private data of requests begins."""
    number, places = _USUAL[packet.message]
    pad = packet.pad or 0  # every MAD is a multiple of 4
    number |= packet.opcode << _OPCODE | (pad & 3) << _PAD | (psn + packet.psn[1] & MASK) << _PSN
    for symbol, mask, shift in places:
        number |= (symbols[symbol] & mask) << shift
    whole = number.to_bytes(_SIZE)
    if packet.fields:
        whole = _changed(whole, packet, symbols)
    data = pattern(packet.at, packet.length) if packet.length else b""
    if ends and packet.message in _REQUESTS and "private_data" not in _named(packet):
        data = ends + data[len(ends) :]
    if data:
        room = FORMS[packet.message].private
        whole = whole[:-room] + data.ljust(room, b"\0")
    if pad or packet.more:
        whole += bytes(pad + packet.more)
    return whole if packet.cut is None else whole[: packet.cut]


def usual_value(message: str, name: str) -> Value:
    """What a field of a message is when a step does not give it."""
    part, _, key = name.partition(".")
    form = FORMS[message]
    kind = next(kind for kind in (*_COMMON, form.kind) if PARTS[kind] == part)
    symbol = "transaction" if key == "transaction_id" else form.symbols.get(key)
    if symbol is not None and kind in (MAD, form.kind):
        return symbol, 0
    mask, shift = _place(kind, key)
    return _USUAL[message][0] >> shift & mask


def _named(packet: Mad) -> set[str]:
    """The fields that a step gives, without their headers."""
    return {name.partition(".")[2] for name in packet.fields}


def _changed(whole: bytes, packet: Mad, symbols: Symbols) -> bytes:
    """A message with the fields that a step gives."""
    kinds = *_COMMON, FORMS[packet.message].kind
    given: dict[str, dict[str, int]] = {PARTS[kind]: {} for kind in kinds}
    for name, value in packet.fields.items():
        part, _, key = name.partition(".")
        if part in given:
            given[part][key] = number_of(value, symbols)
        elif part not in _OUTER:
            raise CaseError(f"a {packet.message} has no {name}")
    changed, begin = b"", 0
    for kind in kinds:
        header = whole[begin : begin + kind.SIZE]
        fields = given[PARTS[kind]]
        changed += rewritten(header, kind, fields) if fields else header
        begin += kind.SIZE
    return changed


@dataclass(frozen=True, slots=True)
class Form:
    """How a message is made when a step gives no fields."""

    kind: type[Message]
    attribute: cm.CMAttribute
    symbols: Mapping[str, str]
    """Fields whose values depend on the exchange."""
    values: dict[str, int]

    @property
    def private(self) -> int:
        """Bytes of private data."""
        return self.kind.FIELDS[-1].size // 8


_IDS = {"local_comm_id": "own.id", "remote_comm_id": "id"}
_A = cm.CMAttribute
FORMS: Mapping[str, Form] = {
    "REQ": Form(
        cm.REQ,
        _A.REQ,
        {
            "local_comm_id": "own.id",
            "service_id": "service",
            "local_ca_guid": "own.guid",
            "local_qpn": "own.qpn",
            "starting_psn": "own.psn",
            "primary_local_gid": "own.gid",
            "primary_remote_gid": "gid",
        },
        {
            "responder_resources": 1,
            "initiator_depth": 1,
            "remote_cm_response_timeout": LINUX.response_timeout,
            "local_cm_response_timeout": LINUX.response_timeout,
            "retry_count": 7,
            "rnr_retry_count": 7,
            "max_cm_retries": 3,
            "path_packet_payload_mtu": 1,
            "primary_local_lid": 0xFFFF,
            "primary_remote_lid": 0xFFFF,
            "primary_hop_limit": 64,
            "primary_local_ack_timeout": 19,
        },
    ),
    "MRA": Form(
        cm.MRA, _A.MRA, {**_IDS, "message_mraed": "answered"}, {"service_timeout": MRA_TIMEOUT}
    ),
    "REJ": Form(
        cm.REJ,
        _A.REJ,
        {**_IDS, "message_rejected": "answered"},
        {"reason": cm.RejectReason.CONSUMER_DEFINED},
    ),
    "REP": Form(
        cm.REP,
        _A.REP,
        {
            **_IDS,
            "local_qpn": "own.qpn",
            "starting_psn": "own.psn",
            "local_ca_guid": "own.guid",
        },
        {
            "responder_resources": 1,
            "initiator_depth": 1,
            "target_ack_delay": LINUX.ca_ack_delay,
            "rnr_retry_count": 7,
        },
    ),
    "RTU": Form(cm.RTU, _A.RTU, _IDS, {}),
    "DREQ": Form(cm.DREQ, _A.DREQ, {**_IDS, "remote_qpn": "qpn"}, {}),
    "DREP": Form(cm.DREP, _A.DREP, _IDS, {}),
    "SIDR_REQ": Form(
        cm.SIDR_REQ,
        _A.SIDR_REQ,
        {"request_id": "own.id", "service_id": "service"},
        {"pkey": 0xFFFF},
    ),
    "SIDR_REP": Form(
        cm.SIDR_REP,
        _A.SIDR_REP,
        {"request_id": "id", "service_id": "service", "qpn": "own.qpn"},
        {},
    ),
    "LAP": Form(
        cm.LAP,
        _A.LAP,
        {**_IDS, "remote_qpn": "qpn", "alternate_local_gid": "own.gid"},
        {"alternate_local_ack_timeout": 19},
    ),
    "APR": Form(cm.APR, _A.APR, _IDS, {}),
}
"""Messages as the RDMA-CM of Linux 6.1 sends them, with fewer retries
(reference/cm#linux-values)."""

BEFORE_MAD = h.BTH.SIZE + h.DETH.SIZE
"""Bytes from the BTH on."""

_REQUESTS = ("REQ", "SIDR_REQ")
_OUTER = ("eth", "ip", "udp")
"""Headers before the BTH, which belong to the frame."""


_COMMON: tuple[type[Header], ...] = (h.BTH, h.DETH, MAD)
"""The headers at the beginning of every message."""

_SIZE = sum(kind.SIZE for kind in _COMMON) + cm.REQ.SIZE
"""Bytes of every message from the BTH on."""

_KINDS = (*_COMMON, *(form.kind for form in FORMS.values()))
PARTS = {kind: kind.KEY.rpartition(".")[2] for kind in _KINDS}
"""How the names of their fields begin."""


def _place(kind: type[Header], name: str) -> tuple[int, int]:
    """Bits of a field, and how far it is from the end of a message."""
    begin = (
        sum(each.SIZE for each in _COMMON[: _COMMON.index(kind)])
        if kind in _COMMON
        else (_SIZE - kind.SIZE)
    )
    entry = next(entry for entry in kind.FIELDS if entry.name == name)
    return (1 << entry.size) - 1, 8 * (_SIZE - begin) - entry.offset - entry.size


_OPCODE, _PAD, _PSN = (_place(h.BTH, name)[1] for name in ("opcode", "pad_count", "psn"))


def _prepared(form: Form) -> tuple[int, tuple[tuple[str, int, int], ...]]:
    """A message as one number, with zeros at its symbols; their bits and positions."""
    headers = (
        _zeros(h.BTH, mig_req=1, pkey=0xFFFF, dest_qp=QP1),
        _zeros(h.DETH, qkey=GSI_QKEY, src_qp=QP1),
        _zeros(
            MAD,
            base_version=BASE_VERSION,
            mgmt_class=MgmtClass.COMM_MGT,
            class_version=CLASS_VERSION,
            method=Method.SEND,
            attribute_id=form.attribute,
        ),
        _zeros(form.kind, **form.values),
    )
    symbols = [("transaction", *_place(MAD, "transaction_id"))]
    symbols += [(symbol, *_place(form.kind, name)) for name, symbol in form.symbols.items()]
    return int.from_bytes(b"".join(each.pack() for each in headers)), tuple(symbols)


def _zeros(kind: type[Header], **values: int) -> Header:
    """A header with zeros where every packet has its own numbers."""
    own = {entry.name: 0 for entry in kind.FIELDS if entry.default is None}
    return kind(**own | values)


_USUAL = {name: _prepared(form) for name, form in FORMS.items()}
