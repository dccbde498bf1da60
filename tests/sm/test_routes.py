"""Where MADs go that have a directed route, and parts by LID at its ends."""

from __future__ import annotations

import pytest

from ibwire.sm.asking import Ask, packed
from ibwire.sm.configuration import Settings
from ibwire.sm.mads import Datagram
from ibwire_layers.attributes import NodeInfo, SMAttribute
from sm.managed import Managed


@pytest.mark.parametrize("first_by_lid", [True, False])
@pytest.mark.parametrize("last_by_lid", [True, False])
def test_a_directed_route_has_parts_by_lid_at_its_ends(
    first_by_lid: bool, last_by_lid: bool
) -> None:
    """IBA 14.2.2.2, as `ibportstate LID PORT` and `smpquery -c` ask for what is behind a port.

    By LID to a switch, from there by its port to the next one, and from there by LID to a host.
    """
    fabric = Managed("ring6")
    fabric.start(Settings())
    fabric.run(1)
    host, far = fabric.adapters[3], fabric.adapters[-1]
    assert host.peer is not None
    first = host.peer.node
    out = next(
        port
        for port in first.external_ports()
        if port.peer is not None and port.peer.node.is_switch
    )
    assert out.peer is not None
    path = [out.number] if first_by_lid else [host.number, out.number]
    mad = smp(path)
    if first_by_lid:
        mad[32:34] = host.lid.to_bytes(2, "big")
    if last_by_lid:
        mad[34:36] = far.lid.to_bytes(2, "big")
    program = fabric.program(host)
    begin = first.ports[0].lid if first_by_lid else 0xFFFF

    fabric.management.send(Datagram(mad, host.lid if first_by_lid else 0xFFFF, begin, 0, 0), host)
    fabric.management.run(fabric.now)

    (answer,) = program.received
    info = NodeInfo.unpack(bytes(answer.mad[64:]))
    expected = far if last_by_lid else out.peer
    assert (info.node_guid, info.local_port_num) == (expected.node.guid, expected.number)
    assert answer.dlid == (host.lid if first_by_lid else 0xFFFF)
    assert answer.slid == (begin if first_by_lid else 0xFFFF)


def test_an_adapter_does_not_send_a_directed_route_on() -> None:
    fabric = Managed("ring6")
    fabric.start(Settings())
    fabric.run(1)
    host, far = fabric.adapters[3], fabric.adapters[-1]
    mad = smp([1])
    mad[32:34] = host.lid.to_bytes(2, "big")
    program = fabric.program(host)

    fabric.management.send(Datagram(mad, host.lid, far.lid, 0, 0), host)
    fabric.management.run(fabric.now)

    assert program.received == []


def smp(path: list[int]) -> bytearray:
    """Get(NodeInfo) by a directed route."""
    return packed(Ask(tuple(path), SMAttribute.NODE_INFO), 5)
