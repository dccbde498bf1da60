"""Base classes of the layers: fields from the schema, short data as `Raw`, trailers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

from scapy.config import conf
from scapy.layers.inet import UDP
from scapy.packet import Packet, Padding

from ibwire_layers.schema import Header


class Layer(Packet):
    """A Scapy layer whose `fields_desc` comes from a described header."""

    HEADER: ClassVar[type[Header]] = Header

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        # Scapy looks for this hook in the class itself, never in its bases.
        cls.dispatch_hook = classmethod(_whole_or_raw)  # type: ignore[attr-defined]

    @classmethod
    def own_size(cls) -> int:
        """Bytes of the layer's fields."""
        return cls.HEADER.SIZE

    @classmethod
    def layer_for(cls, data: bytes) -> type[Packet]:
        """The layer that reads `data`, which holds at least the header."""
        return cls

    def with_enclosing(self, text: str) -> tuple[str, list[type[Packet]]]:
        """The `mysummary` result that also includes the layers around."""
        return text, [type(layer) for layer in underlayers(self) if isinstance(layer, Layer | UDP)]


def _whole_or_raw(
    cls: type[Layer], _pkt: bytes | None = None, *args: Any, **kwargs: Any
) -> type[Packet]:
    """`Raw` for bytes that end inside the header: Scapy's fields would raise."""
    if not _pkt:
        return cls
    return conf.raw_layer if len(_pkt) < cls.own_size() else cls.layer_for(bytes(_pkt))


class Trailed(Layer):
    """A layer with fields after its payload, which `extract_padding` separates."""

    def do_dissect_payload(self, s: bytes) -> None:
        """As Scapy does, but without `Padding` inside.

        Scapy builds all padding at the very end of a packet. Padding that an
        inner layer found, such as IP that is shorter than its frame, would then
        come after our trailer; so what contains it is kept as `Raw`.
        """
        super().do_dissect_payload(s)
        if isinstance(self.lastlayer(), Padding):
            layer: Packet = self
            while isinstance(layer.payload, Layer):
                layer = layer.payload
            rest = layer.payload.original
            layer.remove_payload()
            layer.add_payload(conf.raw_layer(rest, _internal=1, _underlayer=layer))


def underlayers(packet: Packet) -> Iterator[Packet]:
    """The layers that enclose `packet`, the nearest first."""
    layer = packet.underlayer
    while layer is not None:
        yield layer
        layer = layer.underlayer


def put(data: bytes, header: type[Header], name: str, value: int) -> bytes:
    """`data`, which starts with `header`, with one of its numbers replaced."""
    field = next(entry for entry in header.FIELDS if entry.name == name)
    shift = 8 * header.SIZE - field.offset - field.size
    mask = (1 << field.size) - 1 << shift
    number = int.from_bytes(data[: header.SIZE]) & ~mask | value << shift & mask
    return number.to_bytes(header.SIZE) + data[header.SIZE :]
