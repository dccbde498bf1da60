"""Management datagrams: one layer for each header of `management.LAYOUTS`.

A MAD is a chain: common header, headers of the class, attribute. Bytes
between them are `MADData`, bytes after them `Raw`. Private data of CM messages is
the payload of the message: `MAD()/REQ()/IPCM()/b"hello"`. The common header fills
the MAD up to 256 bytes. No field of a lower layer follows from an upper one:
management class and attribute ID are the caller's.

Every layer is an attribute of this module, named after its header.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

from scapy.config import conf
from scapy.fields import XStrLenField
from scapy.packet import Packet

from ibwire_layers import headers, mad, management
from ibwire_layers.cm import CMAttribute
from ibwire_layers.derive import scapy_fields
from ibwire_layers.mad import MAD_SIZE, Method, MgmtClass
from ibwire_layers.scapy.fields import PadField
from ibwire_layers.scapy.layer import Layer, underlayers
from ibwire_layers.schema import Header

_PRIVATE_DATA = "private_data"


class Part(Layer):
    """A header of a MAD."""

    @classmethod
    def own_size(cls) -> int:
        """Bytes without private data, which is the payload."""
        return cls.HEADER.SIZE - _private_size(cls.HEADER)

    def guess_payload_class(self, payload: bytes) -> type[Packet]:
        """The result of `management.read_mad` at the end of this layer."""
        following = _following(self)
        if following is None:
            return super().guess_payload_class(payload)
        distance, header = following
        return MADData if distance else LAYERS[header]


class MADData(Part):
    """Bytes between an attribute and the next part, or before the attribute.

    `data=None` is zeros up to the next boundary of the class's layout.
    """

    name = "MADData"
    fields_desc: ClassVar[list[Any]] = [
        XStrLenField("data", None, length_from=lambda pkt: _gap(pkt))  # type: ignore[arg-type]
    ]

    def post_build(self, pkt: bytes, pay: bytes) -> bytes:
        """Fill up to the boundary."""
        common = next((layer for layer in underlayers(self) if isinstance(layer, Common)), None)
        if self.getfieldval("data") is None and common is not None:
            layout = management.LAYOUTS.get(common.mgmt_class, management.UNKNOWN_CLASS)
            start = sum(len(layer.self_build()) for layer in _parts_below(self))
            ends = (layout.data_offset, layout.data_offset + layout.data_size, MAD_SIZE)
            pkt = bytes(next((end - start for end in ends if end > start), 0))
        return pkt + pay


class Common(Part):
    """The first 24 bytes of a MAD; `pad` is what building adds, and empty when read."""

    def post_build(self, pkt: bytes, pay: bytes) -> bytes:
        """Fill up the MAD."""
        pad: bytes | None = self.getfieldval("pad")
        return (pkt + pay).ljust(MAD_SIZE, b"\0") if pad is None else pkt + pay + pad

    def extract_padding(self, s: bytes) -> tuple[bytes, bytes | None]:
        """A parsed MAD keeps its length."""
        self.fields["pad"] = b""
        return s, None

    def hashret(self) -> bytes:
        """The transaction."""
        transaction: int = self.transaction_id
        return transaction.to_bytes(8)

    def answers(self, other: Packet) -> int:
        """Whether it is the response to `other`, or the next message of its CM dialogue."""
        if not isinstance(other, Common) or (self.mgmt_class, self.transaction_id) != (
            other.mgmt_class,
            other.transaction_id,
        ):
            return 0
        if self.mgmt_class == MgmtClass.COMM_MGT and self.method == other.method == Method.SEND:
            return int(self.attribute_id in _CM_ANSWERS.get(other.attribute_id, ()))
        return int(self.method == _RESPONSES.get(other.method))

    def mysummary(self) -> Any:
        """Class, method, attribute."""
        text = "MAD %mgmt_class% %method% attribute=%attribute_id% tid=%transaction_id%"
        return self.with_enclosing(self.sprintf(text))


_RESPONSES = {
    Method.GET: Method.GET_RESP,
    Method.SET: Method.GET_RESP,
    Method.TRAP: Method.TRAP_REPRESS,
    Method.REPORT: Method.REPORT_RESP,
    Method.GET_TABLE: Method.GET_TABLE_RESP,
    Method.GET_TRACE_TABLE: Method.GET_TABLE_RESP,
    Method.GET_MULTI: Method.GET_MULTI_RESP,
    Method.DELETE: Method.DELETE_RESP,
}

_CM_ANSWERS = {
    CMAttribute.REQ: (CMAttribute.MRA, CMAttribute.REJ, CMAttribute.REP),
    CMAttribute.REP: (CMAttribute.MRA, CMAttribute.REJ, CMAttribute.RTU),
    CMAttribute.DREQ: (CMAttribute.DREP,),
    CMAttribute.LAP: (CMAttribute.MRA, CMAttribute.APR),
    CMAttribute.SIDR_REQ: (CMAttribute.SIDR_REP,),
}


def layer_of(payload: bytes) -> type[Packet]:
    """The layer of a whole MAD, `Raw` for other bytes."""
    if len(payload) != MAD_SIZE:
        return conf.raw_layer
    return LAYERS[management.LAYOUTS.get(payload[1], management.UNKNOWN_CLASS).common]


def _private_size(header: type[Header]) -> int:
    """Bytes of private data, which is the payload and not a field."""
    return sum(field.size // 8 for field in header.FIELDS if field.name == _PRIVATE_DATA)


def _parts_below(packet: Packet) -> list[Part]:
    """The parts of the MAD before this one, the last first."""
    below: list[Part] = []
    for layer in underlayers(packet):
        if not isinstance(layer, Part):
            break
        below.append(layer)
    return below


def _size(part: Part) -> int:
    """Bytes of a part; 0 for data that is being parsed."""
    if isinstance(part, MADData):
        return len(part.getfieldval("data") or b"")
    return part.own_size()


def _following(layer: Part) -> tuple[int, type[Header]] | None:
    """The next known part, and its distance from the end of `layer`."""
    below = _parts_below(layer)
    common = below[-1] if below else layer
    if not isinstance(common, Common) or len(common.original) < MAD_SIZE:
        return None
    start = sum(_size(part) for part in below)
    end = start + _size(layer)
    for _, offset, part in management.read_mad(common.original):
        if offset > start and offset >= end:
            return offset - end, type(part)
    return None


def _gap(data: Packet) -> int:
    """Bytes of a `MADData` that is being read."""
    following = _following(data) if isinstance(data, MADData) else None
    return following[0] if following else len(data.original)


def _headers() -> Iterator[type[Header]]:
    for layout in (*management.LAYOUTS.values(), management.UNKNOWN_CLASS):
        yield from (layout.common, *layout.headers, *layout.trailer)
        for parts in layout.attributes.values():
            yield from parts
    yield headers.IPCM


def _layer(header: type[Header]) -> type[Part]:
    fields = scapy_fields(header)
    is_common = issubclass(header, mad.MAD | mad.DirectedRouteMAD)
    if is_common:
        fields.append(PadField("pad", None))
    content = {
        "__doc__": header.__doc__,
        "__module__": __name__,
        "name": header.__name__,
        "HEADER": header,
        "fields_desc": fields[:-1] if _private_size(header) else fields,
    }
    base = Common if is_common else Part
    layer: type[Part] = type(Part)(header.__name__, (base,), content)  # type: ignore[misc]
    return layer


LAYERS: dict[type[Header], type[Part]] = {
    header: _layer(header) for header in dict.fromkeys(_headers())
}
"""Every header of a MAD -> its layer."""

_BY_NAME = {header.__name__: layer for header, layer in LAYERS.items()}


def __getattr__(name: str) -> type[Part]:
    """The layers, by the names of their headers."""
    try:
        return _BY_NAME[name]
    except KeyError:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}") from None
