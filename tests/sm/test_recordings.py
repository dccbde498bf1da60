"""What opensm and the tools asked a fabric of ibsim, asked again here: the answers agree.

The recordings are of ibsim 0.10 with opensm 3.3.23 and infiniband-diags 44. Compared is what a
node must answer in the same way: not GUIDs that were generated, capabilities or vendor numbers.
"""

from __future__ import annotations

import gzip
import json
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ibwire.fabric.infiniband import read_topology
from ibwire.fabric.infiniband.shipped import topology_path
from ibwire.fabric.infiniband.subnet import Port
from ibwire.sm.mads import Datagram
from ibwire.sm.management import Management
from ibwire_layers.attributes import (
    LinearForwardingTable,
    NodeInfo,
    PKeyTable,
    PortInfo,
    SMAttribute,
    SwitchInfo,
)

DATA = Path(__file__).parent / "data"
SMP = (0x01, 0x81)
RESPONSE = 0x80


class Listener:
    """The program at a port: keeps what comes for it."""

    def __init__(self) -> None:
        self.received: list[Datagram] = []

    def deliver(self, datagram: Datagram, now: int) -> bool:
        self.received.append(datagram)
        return True


def records(name: str, end: float) -> Iterator[dict[str, Any]]:
    """Datagrams of a recording up to the first change of its topology, at `end` seconds."""
    with gzip.open(DATA / f"{name}.jsonl.gz", "rt") as lines:
        for line in lines:
            record = json.loads(line)
            if record["t"] < end:
                record["mad"] = bytes.fromhex(record["mad"]).ljust(256, b"\0")
                yield record


def number(mad: bytes, start: int, end: int) -> int:
    return int.from_bytes(mad[start:end], "big")


def fields(names: str) -> Callable[[Any], dict[str, int]]:
    return lambda header: {name: getattr(header, name) for name in names.split()}


PORT_STATE = (
    "lid master_sm_lid lmc port_state port_physical_state link_width_active link_speed_active "
    "link_speed_ext_active local_port_num"
)
COMPARED: dict[int, tuple[Any, Callable[[Any], Any]]] = {
    SMAttribute.NODE_INFO: (
        NodeInfo,
        fields("node_type num_ports node_guid port_guid system_image_guid local_port_num"),
    ),
    SMAttribute.SWITCH_INFO: (SwitchInfo, fields("linear_fdb_top port_state_change")),
    SMAttribute.PORT_INFO: (
        PortInfo,
        fields(PORT_STATE),
    ),
    SMAttribute.LINEAR_FORWARDING_TABLE: (LinearForwardingTable, fields("port")),
    SMAttribute.P_KEY_TABLE: (PKeyTable, lambda table: table.pkey[0]),
}


@pytest.mark.parametrize(("name", "end", "least"), [("star2", 9.0, 200), ("ring6", 5.0, 1400)])
def test_answers_are_those_of_the_recording(name: str, end: float, least: int) -> None:
    subnet = read_topology(topology_path(name))
    management = Management(subnet)
    listeners: dict[Port, Listener] = {}
    recorded = list(records(name, end))
    answers = {
        (record["client"], number(record["mad"], 12, 16), record["mad"][1]): record["mad"]
        for record in recorded
        if record["dir"] == "<" and record["mad"][3] & RESPONSE and not record.get("status")
    }
    compared: Counter[int] = Counter()
    for record in recorded:
        mad = record["mad"]
        if record["dir"] != ">" or mad[1] not in SMP or mad[3] not in (1, 2):
            continue
        attribute = number(mad, 16, 18)
        if attribute == SMAttribute.SM_INFO:
            continue
        port = subnet.nodes[record["host"]].ports[1]
        listener = listeners.setdefault(port, Listener())
        management.programs[port] = listener
        listener.received.clear()
        slid = 0xFFFF if mad[1] == 0x81 else port.lid
        management.send(Datagram(bytearray(mad), slid, record["dlid"], 0, 0), port)
        management.run(0)
        expected = answers[record["client"], number(mad, 12, 16), mad[1]]
        (answer,) = listener.received
        found = bytes(answer.mad)
        assert found[1:4] == expected[1:4], record["n"]
        assert number(found, 4, 6) == number(expected, 4, 6), record["n"]
        assert found[7] == expected[7]
        if mad[1] == 0x81:
            hops = found[7]
            assert found[193 : 193 + hops] == expected[193 : 193 + hops], record["n"]
        if attribute in COMPARED:
            header, view = COMPARED[attribute]
            there, here = header.unpack(expected, 64), header.unpack(found, 64)
            assert view(here) == view(there), (record["n"], number(mad, 20, 24))
        compared[attribute] += 1

    assert compared.total() > least
    assert set(COMPARED) <= set(compared)
