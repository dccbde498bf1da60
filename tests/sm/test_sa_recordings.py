"""What saquery and osmtest asked opensm, asked the subnet manager here: the records agree.

The recording is of opensm 3.3.23 on four switches in a ring; ports have the LIDs that it gave.
Compared is what does not depend on the fabric below, which was another program, nor on choices: not
capabilities, lifetimes, forwarding tables; opensm lists P_Key tables of more ports.
"""

from __future__ import annotations

import gzip
import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ibwire.sm.configuration import Settings
from ibwire_layers.attributes import GUIDInfo, NodeInfo, PortInfo, PortState, SwitchInfo
from ibwire_layers.records import (
    GUIDInfoRecordID,
    LinkRecord,
    NodeRecordID,
    PathRecord,
    PortInfoRecordID,
    SAAttribute,
    SwitchInfoRecordID,
)
from ibwire_layers.schema import Header
from sm.managed import Managed
from sm.test_administration import Client

FOREIGN = "0000000000000000fe800000000000ff"
"""A PathRecord to a GID of another subnet, which opensm takes for one of its own."""

DATA = Path(__file__).parent / "data"

COMPARED: dict[int, tuple[tuple[type[Header], str], ...]] = {
    SAAttribute.NODE_RECORD: (
        (NodeRecordID, "lid"),
        (NodeInfo, "node_type num_ports node_guid port_guid system_image_guid"),
    ),
    SAAttribute.PORT_INFO_RECORD: (
        (PortInfoRecordID, "endport_lid port_num"),
        (
            PortInfo,
            "gid_prefix lid master_sm_lid lmc port_state port_physical_state link_width_active "
            "link_speed_active link_speed_ext_active neighbor_mtu mtu_cap vl_cap",
        ),
    ),
    SAAttribute.SWITCH_INFO_RECORD: (
        (SwitchInfoRecordID, "lid"),
        (SwitchInfo, "linear_fdb_top life_time_value"),
    ),
    SAAttribute.LINK_RECORD: ((LinkRecord, "from_lid from_port to_port to_lid"),),
    SAAttribute.GUID_INFO_RECORD: ((GUIDInfoRecordID, "lid block_num"), (GUIDInfo, "guid")),
    SAAttribute.PATH_RECORD: (
        (PathRecord, "dgid sgid dlid slid pkey sl mtu_selector mtu rate_selector rate numb_path"),
    ),
}


def fields(attribute: int, record: bytes) -> tuple[Any, ...]:
    """The compared fields of a record.

    Port 0 of a switch, and ports without a link, had other MTUs and rates in the fabric of the
    recording.
    """
    found: list[Any] = []
    at = 0
    for header, names in COMPARED[attribute]:
        unpacked = header.unpack(record, at)
        found += [getattr(unpacked, name) for name in names.split()]
        at += header.SIZE
    if attribute == SAAttribute.PATH_RECORD and not _is_between_adapters(record):
        del found[-6:-1]  # MTU and rate
    elif attribute == SAAttribute.PORT_INFO_RECORD and (
        not PortInfoRecordID.unpack(record).port_num or found[6] == PortState.DOWN
    ):
        del found[-6:]
    return tuple(found)


def _is_between_adapters(record: bytes) -> bool:
    path = PathRecord.unpack(record)
    return all(gid >> 20 & 0xFFF_FFFF_FFFF == _ADAPTERS for gid in (path.dgid, path.sgid))


_ADAPTERS = 0x2C903002
"""The first digits of the GUIDs of adapters."""


def split(data: bytes, size: int) -> Iterator[bytes]:
    """The records of an answer; an answer without any has no size."""
    for at in range(0, len(data) - size + 1 if size else 0, size or 1):
        yield data[at : at + size]


def test_records_are_those_of_the_recording() -> None:
    with gzip.open(DATA / "sa-ring4.jsonl.gz", "rt") as lines:
        recorded = [json.loads(line) for line in lines]
    client = Ring(recorded)
    compared: Counter[int] = Counter()

    for row in recorded:
        attribute, method = row["attribute"], row["method"]
        if attribute not in COMPARED or row["record"].startswith(FOREIGN):
            continue
        asked, mask = bytes.fromhex(row["record"]), int(row["mask"], 16)
        status, data = client.ask(attribute, asked, mask, method, key=int(row["key"], 16))
        expected = bytes.fromhex(row["answer"]).ljust(200, b"\0")[: row["length"]]
        assert status == row["status"], row
        is_table = method == 0x12
        theirs = list(split(expected, row["size"])) if is_table else [expected]
        ours = list(split(data, row["size"])) if is_table else [data]
        assert sorted(fields(attribute, record) for record in ours) == sorted(
            fields(attribute, record) for record in theirs
        ), row
        compared[attribute] += len(theirs)

    assert set(compared) == set(COMPARED)
    assert min(compared.values()) > 3
    assert compared.total() > 350


class Ring(Client):
    """A program on node-2-0, which asked in the recording."""

    def __init__(self, recorded: list[dict[str, Any]]) -> None:
        self.fabric = Managed(str(DATA / "sa-ring4.net"))
        lids = {}
        for row in recorded:
            if row["attribute"] == SAAttribute.NODE_RECORD and row["method"] == 0x12:
                for record in split(bytes.fromhex(row["answer"]), row["size"]):
                    lid, *_, port_guid, _ = fields(SAAttribute.NODE_RECORD, record)
                    lids[port_guid] = lid
        for node in self.fabric.subnet.nodes.values():
            for port in node.ports[:1] if node.is_switch else node.external_ports():
                port.lid = lids[port.guid]
        self.manager = self.fabric.start(Settings())
        self.fabric.run(1)
        self.port = self.fabric.subnet.nodes["node-2-0"].ports[1]
        self.program = self.fabric.program(self.port)
        self.gid = 0xFE80 << 112 | self.port.guid
        self.tid = 0
