"""The performance management agent of a node: its counters (IBA 16.1)."""

from __future__ import annotations

from typing import Any

from ibwire.fabric.infiniband.counters import DISCARDS, RCV_ERRORS, Counters
from ibwire.fabric.infiniband.subnet import Node, Port
from ibwire.sm.mads import METHOD, Datagram, attribute_of
from ibwire_layers.mad import ClassPortInfo, Method, Status
from ibwire_layers.performance import PerfAttribute, PortCounters, PortCountersExtended
from ibwire_layers.schema import Field

DATA = 64
"""Offset of the attribute in a MAD of this class."""
DATA_SIZE = 192
ALL_PORTS = 0xFF

CAPABILITIES = 1 << 8 | 1 << 9 | 1 << 12
"""CapabilityMask: all ports at once, extended counters with unicast and multicast, XmitWait."""
CAPABILITIES2 = 1 << 1
"""CapabilityMask2: further extended counters."""
RESPONSE_TIME = 18

_UNKNOWN = int(Status.METHOD_ATTRIBUTE_NOT_SUPPORTED)
_INVALID = int(Status.INVALID_ATTRIBUTE_VALUE)

_SELECTED = (
    "symbol_error_counter",
    "link_error_recovery_counter",
    "link_downed_counter",
    "port_rcv_errors",
    "port_rcv_remote_physical_errors",
    "port_rcv_switch_relay_errors",
    "port_xmit_discards",
    "port_xmit_constraint_errors",
    "port_rcv_constraint_errors",
    "local_link_integrity_errors",
    "excessive_buffer_overrun_errors",
    "vl15_dropped",
    "port_xmit_data",
    "port_rcv_data",
    "port_xmit_pkts",
    "port_rcv_pkts",
)
"""Counters by the bit of CounterSelect in PortCounters (IBA 16.1.3.5)."""
_SELECTED_EXTENDED = (
    "port_xmit_data",
    "port_rcv_data",
    "port_xmit_pkts",
    "port_rcv_pkts",
    "port_unicast_xmit_pkts",
    "port_unicast_rcv_pkts",
    "port_multicast_xmit_pkts",
    "port_multicast_rcv_pkts",
)
"""The same in PortCountersExtended."""


class PMA:
    """The agents of all nodes."""

    def answer(self, node: Node, arrived: int, datagram: Datagram) -> Datagram:
        """The response to a Get or Set."""
        mad = datagram.mad
        method, attribute = mad[METHOD], attribute_of(mad)
        if method not in (Method.GET, Method.SET):
            return datagram.answer(status=int(Status.METHOD_NOT_SUPPORTED))
        if attribute == PerfAttribute.CLASS_PORT_INFO:
            if method == Method.SET:
                return datagram.answer()
            info = ClassPortInfo(
                capability_mask=CAPABILITIES,
                capability_mask2=CAPABILITIES2,
                resp_time_value=RESPONSE_TIME,
            )
            return _answer(datagram, info.pack())
        if (details := _DETAILS.get(attribute)) is not None:
            return self._details(node, datagram, details)
        header = _COUNTERS.get(attribute)
        if header is None:
            return datagram.answer(status=_UNKNOWN)
        ports = self._ports(node, mad[DATA + 1])
        if not ports:
            return datagram.answer(status=_INVALID)
        if method == Method.SET:
            written = header.unpack(bytes(mad[DATA:]))
            for port in ports:
                _write(port.counters, written)
        return _answer(datagram, self._read(header, ports, mad))

    def _details(self, node: Node, datagram: Datagram, names: tuple[str, ...]) -> Datagram:
        """The response to a Get or Set of why packets were dropped: a counter of 16 bits each."""
        mad = datagram.mad
        ports = self._ports(node, mad[DATA + 1])
        if not ports:
            return datagram.answer(status=_INVALID)
        select = mad[DATA + 2] << 8 | mad[DATA + 3]
        values = []
        for place, name in enumerate(names):
            at = DATA + 4 + 2 * place
            if mad[METHOD] == Method.SET and select >> place & 1:
                for port in ports:
                    setattr(port.counters, name, mad[at] << 8 | mad[at + 1])
            values.append(min(sum(getattr(port.counters, name) for port in ports), 0xFFFF))
        head = bytes(mad[DATA : DATA + 4])
        return _answer(datagram, head + b"".join(each.to_bytes(2, "big") for each in values))

    def _ports(self, node: Node, number: int) -> list[Port]:
        if number == ALL_PORTS:
            return node.external_ports()
        first = 0 if node.is_switch else 1
        return [node.ports[number]] if first <= number <= node.num_ports else []

    def _read(self, header: Any, ports: list[Port], mad: bytearray) -> bytes:
        asked = header.unpack(bytes(mad[DATA:]))
        changes = {"port_select": asked.port_select, "counter_select": asked.counter_select}
        for field in header.FIELDS:
            if field.name not in ("reserved", "port_select", "counter_select", "counter_select2"):
                value = sum(_value(port.counters, field) for port in ports)
                changes[field.name] = min(value, (1 << field.width) - 1)
        packed: bytes = asked.altered(**changes).pack()
        return packed


def _answer(datagram: Datagram, data: bytes) -> Datagram:
    return datagram.answer(data=data.ljust(DATA_SIZE, b"\0"), at=DATA)


def _value(counters: Counters, field: Field) -> int:
    if field.name == "port_unicast_xmit_pkts":
        return counters.port_xmit_pkts - counters.port_multicast_xmit_pkts
    if field.name == "port_unicast_rcv_pkts":
        return counters.port_rcv_pkts - counters.port_multicast_rcv_pkts
    value: int = getattr(counters, field.name, 0)
    return value


def _write(counters: Counters, written: PortCounters | PortCountersExtended) -> None:
    """Set the counters whose bit is set in CounterSelect."""
    names = list(_SELECTED if isinstance(written, PortCounters) else _SELECTED_EXTENDED)
    chosen = [name for bit, name in enumerate(names) if written.counter_select >> bit & 1]
    if isinstance(written, PortCounters):
        if written.counter_select2 & 1:
            chosen.append("port_xmit_wait")
    else:
        further = [field.name for field in PortCountersExtended.FIELDS][12:]
        chosen += [name for bit, name in enumerate(further) if written.counter_select2 >> bit & 1]
    for name in chosen:
        if hasattr(counters, name):
            setattr(counters, name, getattr(written, name))


_DETAILS: dict[int, tuple[str, ...]] = {
    PerfAttribute.PORT_RCV_ERROR_DETAILS: RCV_ERRORS,
    PerfAttribute.PORT_XMIT_DISCARD_DETAILS: DISCARDS,
}

_COUNTERS: dict[int, type[PortCounters] | type[PortCountersExtended]] = {
    PerfAttribute.PORT_COUNTERS: PortCounters,
    PerfAttribute.PORT_COUNTERS_EXTENDED: PortCountersExtended,
}
