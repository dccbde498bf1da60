"""Tables of ports of which a subnet manager has records: SL to VL, VL arbitration, P_Keys.

A manager that does not write them need not know them. They are many: a switch of 36 ports has 1,369
SL to VL tables. So they are read when somebody asks for their records, and kept from then on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from ibwire.fabric.infiniband.subnet import Node, Port
from ibwire.sm.asking import Ask
from ibwire.sm.configuration import pkey_ask, pkey_blocks_of, store_pkeys
from ibwire.sm.discovery import Steps, View, end_ports_of
from ibwire_layers.attributes import SLtoVLMappingTable, SMAttribute
from ibwire_layers.records import SAAttribute

ARBITRATION_PARTS = 1, 2, 3, 4
"""Low priority, and high: each has two parts (IBA 14.2.5.9)."""
_BLOCK = 64


@dataclass(slots=True, frozen=True)
class Table:
    """A table, or a block of one.

    attribute: of subnet management. place: the input port, the part, or the block.
    """

    port: Port
    attribute: SMAttribute
    place: int


def unread_tables(nodes: Iterable[Node], attribute: int) -> Iterator[Table]:
    """The tables of nodes that are not known yet; attribute: of the records that they are for."""
    find = _UNREAD.get(attribute)
    if find is not None:
        for node in nodes:
            for port in node.ports if node.is_switch else end_ports_of(node):
                yield from find(port)


def read_tables(view: View, tables: list[Table]) -> Steps:
    """Read tables. One that cannot be read counts as zeros, as in opensm."""
    answers = yield [_ask(view, table) for table in tables]
    for table, answer in zip(tables, answers, strict=True):
        port, data = table.port, answer or bytes(_BLOCK)
        if table.attribute == SMAttribute.SL_TO_VL_MAPPING_TABLE:
            port.sl2vl[table.place] = data[: SLtoVLMappingTable.SIZE]
        elif table.attribute == SMAttribute.VL_ARBITRATION_TABLE:
            port.arbitration[table.place] = data
        else:
            store_pkeys(port, table.place, data)


def _ask(view: View, table: Table) -> Ask:
    port, place = table.port, table.place
    number = port.number if port.node.is_switch else 0
    if table.attribute == SMAttribute.P_KEY_TABLE:
        return pkey_ask(view, port, place)
    is_mapping = table.attribute == SMAttribute.SL_TO_VL_MAPPING_TABLE
    modifier = place << (8 if is_mapping else 16) | number
    return Ask(view.path(port), table.attribute, modifier)


def _mappings(port: Port) -> Iterator[Table]:
    for came in range(len(port.node.ports)) if port.node.is_switch else (0,):
        if came not in port.sl2vl:
            yield Table(port, SMAttribute.SL_TO_VL_MAPPING_TABLE, came)


def _arbitration(port: Port) -> Iterator[Table]:
    for part in ARBITRATION_PARTS:
        if part not in port.arbitration:
            yield Table(port, SMAttribute.VL_ARBITRATION_TABLE, part)


def _pkeys(port: Port) -> Iterator[Table]:
    """Of ports with a link, and those that have LIDs, as in opensm."""
    if port.is_up or port.management is port:
        for block in range(pkey_blocks_of(port)):
            if len(port.pkeys) <= block * _BLOCK:
                yield Table(port, SMAttribute.P_KEY_TABLE, block)


_UNREAD: dict[int, Callable[[Port], Iterator[Table]]] = {
    SAAttribute.SL_TO_VL_MAPPING_TABLE_RECORD: _mappings,
    SAAttribute.VL_ARBITRATION_TABLE_RECORD: _arbitration,
    SAAttribute.P_KEY_TABLE_RECORD: _pkeys,
}
"""By attribute of the record, what finds the tables of a port that are not known."""
