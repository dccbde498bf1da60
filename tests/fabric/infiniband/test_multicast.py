"""Multicast trees: every member receives one copy, and no other port does."""

from __future__ import annotations

import random

import pytest

from ibwire.fabric.infiniband.generated import generate
from ibwire.fabric.infiniband.multicast import FIRST_MLID, Group, MulticastTables, multicast_tables
from ibwire.fabric.infiniband.subnet import Node, Port


def mask(tables: MulticastTables, node: Node, mlid: int) -> int:
    """The output ports of a switch, as bits (IBA 14.2.5.11)."""
    block, row = divmod(mlid - 0xC000, 32)
    found = 0
    for position in range(16):
        part = tables[node].get((block, position), bytes(64))
        found |= int.from_bytes(part[2 * row : 2 * row + 2], "big") << 16 * position
    return found


def send(tables: MulticastTables, start: Port, mlid: int) -> list[Port]:
    """Where the copies of a packet arrive."""
    arrived: list[Port] = []
    waiting = [start.peer]
    for _ in range(10_000):
        if not waiting:
            return arrived
        came = waiting.pop()
        assert came is not None
        if not came.node.is_switch:
            arrived.append(came)
            continue
        ports = mask(tables, came.node, mlid)
        for port in came.node.ports:
            if ports >> port.number & 1 and port is not came:
                if port.number == 0:
                    arrived.append(port)
                else:
                    waiting.append(port.peer)
    raise AssertionError("a loop")


@pytest.mark.parametrize("topology", ["ring", "torus", "fattree:ports=36,leaves=4", "dragonfly"])
def test_each_member_receives_one_copy(topology: str) -> None:
    subnet = generate(topology)
    ends = subnet.host_ports()
    choose = random.Random(5)
    groups = {
        FIRST_MLID + number: Group(choose.sample(ends, 6), choose.sample(ends, 2))
        for number in (0, 1, 40)
    }
    switch = next(node for node in subnet.nodes.values() if node.is_switch)
    groups[FIRST_MLID].members.append(switch.ports[0])

    tables = multicast_tables(subnet, groups)

    for mlid, group in groups.items():
        for start in group.members + group.senders:
            if start.number == 0:
                continue
            arrived = send(tables, start, mlid)
            assert len(arrived) == len(set(arrived))
            assert set(arrived) == set(group.members) - {start}


def test_a_group_without_members_has_no_entries() -> None:
    subnet = generate("ring")

    tables = multicast_tables(subnet, {FIRST_MLID: Group()})

    assert not any(tables.values())
