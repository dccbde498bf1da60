"""Subnet administration: records over the wire, memberships, services, subscriptions."""

from __future__ import annotations

from typing import Any

import pytest

from each_case import each_case
from ibwire.base.units import S
from ibwire.fabric.infiniband.subnet import Port, rate_name
from ibwire.sm import administration, path_records
from ibwire.sm.configuration import Partition, Settings, read_partition, with_default
from ibwire.sm.groups import BROADCAST
from ibwire.sm.mads import Datagram
from ibwire.sm.path_records import gid_of
from ibwire_layers.attributes import SMInfo, SMState
from ibwire_layers.mad import MAD, SA, Notice, Trap
from ibwire_layers.records import (
    InformInfo,
    LinkRecord,
    MCMemberRecord,
    PathRecord,
    ServiceRecord,
)
from sm.managed import Managed, Program

GET, SET, GET_TABLE, DELETE, REPORT = 1, 2, 0x12, 0x15, 6
NODE, PORT_INFO, LINK, SERVICE, PATH, MEMBER = 0x11, 0x12, 0x20, 0x31, 0x35, 0x38
CREATE = 0b1_0011_0000_1100_0111 | 1 << 6  # MGID, PortGID, Q_Key, TClass, P_Key, SL, label, state
SUBSCRIBE = InformInfo(
    lid_range_begin=0xFFFF, is_generic=1, subscribe=1, type=3, trap_number=0xFFFF, producer_type=4
)
"""To every notice of subnet managers."""


class Client:
    """A program on the last adapter of a fabric that is up."""

    def __init__(self, topology: str = "ring6", **settings: Any) -> None:
        self.fabric = Managed(topology)
        self.manager = self.fabric.start(Settings(**settings))
        self.fabric.run(1)
        self.port = self.fabric.adapters[-1]
        self.program: Program = self.fabric.program(self.port)
        self.gid = 0xFE80 << 112 | self.port.guid
        self.tid = 0

    def ask(
        self, attribute: int, record: bytes = b"", mask: int = 0, method: int = GET, key: int = 0
    ) -> tuple[int, bytes]:
        """Status and data of an answer, whole also where it needs several packets."""
        self.tid += 1
        header = MAD(
            mgmt_class=3,
            class_version=2,
            method=method,
            transaction_id=self.tid,
            attribute_id=attribute,
        ).pack()
        sa = SA(sm_key=key, component_mask=mask).pack()
        mad = bytearray((header + bytes(12) + sa + record).ljust(256, b"\0"))
        answer = self.program.ask(mad)
        status = int.from_bytes(answer[4:6], "big")
        if status or answer[3] != 0x92:
            return status, answer[56:]
        parts: list[bytes] = []
        while True:
            number, length = (int.from_bytes(answer[at : at + 4], "big") for at in (28, 32))
            assert number == len(parts) + 1
            is_last = answer[26] & 4
            parts.append(answer[56 : 36 + length] if is_last else answer[56:])
            if is_last:
                if number == 1:
                    assert length <= 220
                return status, b"".join(parts)
            ack = bytearray(answer)
            ack[3], ack[25] = method, 2
            ack[32:36] = (number + 1).to_bytes(4, "big")
            answer = self.program.ask(ack)

    def join_broadcast(self) -> Datagram:
        """A request to join the broadcast group."""
        record = MCMemberRecord(mgid=BROADCAST, port_gid=self.gid, join_state=1, pkey=0xFFFF)
        header = MAD(
            mgmt_class=3, class_version=2, method=SET, transaction_id=99, attribute_id=MEMBER
        ).pack()
        mad = header + bytes(12) + SA(component_mask=0x10083).pack() + record.pack()
        return Datagram(
            bytearray(mad.ljust(256, b"\0")), self.port.lid, self.port.master_sm_lid, 1, 1
        )


def test_tables_are_whole() -> None:
    client = Client()

    status, data = client.ask(NODE, method=GET_TABLE)

    assert status == 0
    assert len(data) == 18 * 112  # 12 hosts and 6 switches; 108 bytes in steps of 8
    lids = {int.from_bytes(data[start : start + 2], "big") for start in range(0, len(data), 112)}
    assert lids == set(range(1, 19))


def test_an_answer_of_too_many_records_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(administration, "MAXIMUM_RECORDS", 18)
    client = Client()

    assert client.ask(NODE, method=GET_TABLE)[0] == 0  # 12 hosts and 6 switches
    monkeypatch.setattr(administration, "MAXIMUM_RECORDS", 17)
    assert client.ask(NODE, method=GET_TABLE)[0] == 0x0100
    assert client.ask(PATH, method=GET_TABLE)[0] == 0x0100


@pytest.mark.parametrize(
    ("name", "bound"), [("MAXIMUM_ANSWERS", 3), ("MAXIMUM_ANSWER_BYTES", 3 * 18 * 112 + 300)]
)
def test_answers_that_nobody_acknowledges_are_bounded(
    monkeypatch: pytest.MonkeyPatch, name: str, bound: int
) -> None:
    monkeypatch.setattr(administration, name, bound)
    client = Client()
    statuses = []
    for tid in range(1, 6):
        header = MAD(
            mgmt_class=3, class_version=2, method=GET_TABLE, transaction_id=tid, attribute_id=NODE
        ).pack()
        answer = client.program.ask(bytearray(header.ljust(256, b"\0")))
        statuses.append(int.from_bytes(answer[4:6], "big"))

    assert statuses == [0, 0, 0, 0x0100, 0x0100]
    client.fabric.run(60)
    assert client.ask(NODE, method=GET_TABLE)[0] == 0, "they are given up"


def test_links_are_listed_in_both_directions() -> None:
    client = Client()

    _, data = client.ask(LINK, method=GET_TABLE)

    records = [LinkRecord.unpack(data, start) for start in range(0, len(data), 8)]
    assert len(records) == 2 * 18
    switch, host = client.fabric.subnet.nodes["sw0"].ports[0].lid, client.fabric.adapters[0].lid
    assert any(
        (each.from_lid, each.from_port, each.to_port, each.to_lid) == (host, 1, 1, switch)
        for each in records
    )


def test_components_select() -> None:
    client = Client()
    lid = client.port.lid.to_bytes(2, "big")

    status, data = client.ask(NODE, lid, mask=1)
    assert (status, data[:2]) == (0, lid)
    assert data[44:108].rstrip(b"\0") == b"node-5-1"
    assert client.ask(NODE, b"\0\xee", mask=1)[0] == 0x0300
    assert client.ask(NODE)[0] == 0x0400
    assert client.ask(0x99)[0] == 0x000C
    assert client.ask(NODE, method=3)[0] == 0x0008


def test_a_path_has_the_least_mtu_and_rate_on_its_way() -> None:
    client = Client("star:hosts=3,rate=4xHDR")
    a, b = client.fabric.adapters[:2]
    request = PathRecord(sgid=0xFE80 << 112 | a.guid, dgid=0xFE80 << 112 | b.guid)

    status, data = client.ask(PATH, request.pack(), mask=0b1100)

    path = PathRecord.unpack(data)
    assert status == 0
    assert (path.slid, path.dlid, path.pkey) == (a.lid, b.lid, 0xFFFF)
    assert (path.mtu, path.rate, path.packet_life_time) == (5, 17, 18)  # 4096 bytes, 200 Gb/s
    assert (path.mtu_selector, path.rate_selector, path.reversible) == (2, 2, 1)
    assert client.ask(PATH, request.pack(), mask=0b0100)[0] == 0x0600
    more = request.altered(mtu_selector=0, mtu=5)
    assert client.ask(PATH, more.pack(), mask=0b1100 | 3 << 16)[0] == 0x0300


def test_a_path_to_a_switch_has_the_mtu_and_the_rate_of_its_port_0() -> None:
    """2048 bytes and 10 Gb/s by its PortInfo, in both directions: opensm answers 0x84 and 0x83."""
    client = Client("star:hosts=3,rate=4xHDR")
    switch = client.fabric.subnet.nodes["sw0"].ports[0]
    lids = client.port.lid, switch.lid

    for slid, dlid in (lids, lids[::-1]):
        request = PathRecord(slid=slid, dlid=dlid).pack()
        status, data = client.ask(PATH, request, mask=0b110000)
        path = PathRecord.unpack(data)
        assert (status, path.mtu, path.rate) == (0, 4, 3)


@pytest.mark.parametrize(("rate", "code"), [("4xQDR", 7), ("4xFDR", 12), ("12xEDR", 18)])
def test_the_rate_of_a_path_is_that_of_its_links(rate: str, code: int) -> None:
    client = Client(f"star:hosts=2,rate={rate}")  # 32, 54.5 and 300 Gb/s of data
    a, b = client.fabric.adapters
    request = PathRecord(sgid=0xFE80 << 112 | a.guid, dgid=0xFE80 << 112 | b.guid)

    assert PathRecord.unpack(client.ask(PATH, request.pack(), mask=0b1100)[1]).rate == code
    assert rate_name(a) == rate


def test_the_rate_of_equal_links_is_worked_out_once() -> None:
    """All other requests wait while all paths of a fabric are found."""
    client = Client("ring:switches=20,hosts=1")  # five links and more between most
    path_records._code_of.cache_clear()

    _, data = client.ask(PATH, method=GET_TABLE)

    assert len(data) == 40 * 40 * 64
    assert path_records._code_of.cache_info().misses == 2  # links, and port 0 of switches


def test_ports_with_several_lids_have_several_paths() -> None:
    client = Client("star:hosts=2", lmc=1)
    a, b = client.fabric.adapters
    request = PathRecord(sgid=0xFE80 << 112 | a.guid, dgid=0xFE80 << 112 | b.guid)

    _, data = client.ask(PATH, request.pack(), mask=0b1100, method=GET_TABLE)

    found = [PathRecord.unpack(data[start : start + 64]) for start in range(0, len(data), 64)]
    assert [(each.slid - a.lid, each.dlid - b.lid, each.preference) for each in found] == [
        (0, 0, 0),
        (1, 1, 0),
        (0, 1, 2),
        (1, 0, 2),
    ]  # order and Preference of opensm 3.3.23
    request = request.altered(numb_path=3)
    _, data = client.ask(PATH, request.pack(), mask=0b1100 | 1 << 12, method=GET_TABLE)
    assert len(data) == 3 * 64


@pytest.mark.parametrize(
    ("attribute", "size"),
    [(NODE, 112), (PORT_INFO, 80), (0x13, 16), (0x30, 72), (0x33, 72), (0x36, 72), (LINK, 8)],
)
def test_any_lid_of_a_port_finds_its_records(attribute: int, size: int) -> None:
    """The records have the first of them, as with opensm."""
    client = Client("star2", lmc=2)
    lid = (client.port.lid + 3).to_bytes(2, "big")

    status, data = client.ask(attribute, lid, mask=1, method=GET_TABLE)
    if attribute == 0x33:
        status, data = client.ask(attribute, lid, mask=1, method=GET_TABLE, key=1)

    assert status == 0
    lids = {int.from_bytes(data[at : at + 2], "big") for at in range(0, len(data), size)}
    assert lids == {client.port.lid}


def test_links_are_found_by_any_lid_of_their_second_port() -> None:
    client = Client("star2", lmc=2)
    wanted = LinkRecord(from_lid=0, from_port=0, to_port=0, to_lid=client.port.lid + 1)

    _, data = client.ask(LINK, wanted.pack(), mask=0b1000, method=GET_TABLE)

    assert [LinkRecord.unpack(data).to_lid] == [client.port.lid]


@pytest.mark.parametrize("lanes", [0, 4])
def test_tables_of_all_ports_have_records(lanes: int) -> None:
    """As many as with opensm on this fabric; those that nobody wrote are read from the ports."""
    client = Client("ring6", lanes=lanes)
    switch = client.fabric.subnet.nodes["sw0"]
    down = next(port for port in switch.external_ports() if port.peer is None)
    down.sl2vl[3], down.arbitration[2] = bytes(range(8)), bytes(range(64))
    lid = switch.ports[0].lid.to_bytes(2, "big")

    _, mappings = client.ask(0x13, method=GET_TABLE)
    _, arbitration = client.ask(0x36, method=GET_TABLE)

    assert len(mappings) == 498 * 16
    assert len(arbitration) == 264 * 72
    _, data = client.ask(0x13, lid + bytes((3, down.number)), mask=0b111)
    assert data[8:16] == bytes(range(8))
    _, data = client.ask(0x36, lid + bytes((down.number, 2)), mask=0b111)
    assert data[8:72] == bytes(range(64))


def test_a_request_for_tables_that_are_not_read_waits_for_the_end_of_a_sweep() -> None:
    client = Client("ring6")
    header = MAD(mgmt_class=3, class_version=2, method=GET, transaction_id=77, attribute_id=0x13)
    lid = client.fabric.subnet.nodes["sw0"].ports[0].lid
    mad = header.pack() + bytes(12) + SA(component_mask=0b111).pack() + lid.to_bytes(2, "big")
    request = Datagram(
        bytearray(mad.ljust(256, b"\0")), client.port.lid, client.port.master_sm_lid, 1, 1
    )
    client.manager._change(client.fabric.now)
    client.manager.handle_timeout(client.fabric.now + S)
    assert client.manager.is_asking
    client.program.received.clear()

    for _ in range(2):  # an impatient client
        assert client.manager.deliver(request, client.fabric.now)
    client.fabric.run(1)

    (answer,) = client.program.received
    assert answer.mad[24 + 32 + 8 :][:8].hex() == "0123456701234567"


def test_a_request_for_too_many_tables_reads_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(administration, "MAXIMUM_RECORDS", 497)
    monkeypatch.setattr(administration, "_ENOUGH", 498)
    client = Client("ring6")
    sent = client.manager._info().act_count

    assert client.ask(0x13, method=GET_TABLE)[0] == 0x0100
    assert client.manager._info().act_count == sent


def test_only_who_has_the_key_sees_partitions_and_members() -> None:
    client = Client()

    assert client.ask(0x33, method=GET_TABLE)[0] == 0x0200
    # Two blocks of 12 adapters, 6 ports 0 and the 24 ports of switches that have links: as opensm.
    assert len(client.ask(0x33, method=GET_TABLE, key=1)[1]) == 84 * 72


def test_records_of_tables_have_the_port_of_an_adapter() -> None:
    """As with opensm, which does not look at the port in a request with the LID of one."""
    client = Client("star2", lanes=2)
    lid = client.port.lid.to_bytes(2, "big")

    # LID, then the block and the port, or the port and the block.
    for number in (0, 1):
        status, data = client.ask(0x33, lid + bytes((0, 0, number)), mask=0b111, key=1)
        assert (status, data[4]) == (0, 1)
        status, data = client.ask(0x36, lid + bytes((number, 1)), mask=0b111)
        assert (status, data[2]) == (0, 1)
    switch = client.fabric.subnet.nodes["sw0"].ports[0].lid.to_bytes(2, "big")
    assert client.ask(0x36, switch + bytes((9, 1)), mask=0b111)[0] == 0x0300
    assert client.ask(0x13, lid + bytes((0, 0)), mask=0b111)[0] == 0


def test_a_partition_with_ipoib_has_a_broadcast_group() -> None:
    """Its fields are those that opensm 3.3.23 has for `storage=0x10, ipoib` (saquery MCMR)."""
    partitions = with_default([read_partition("storage=0x10,ipoib:ALL"), read_partition("a=2:ALL")])
    client = Client("star2", partitions=partitions)

    _, data = client.ask(MEMBER, method=GET_TABLE)
    records = [MCMemberRecord.unpack(data[at : at + 56]) for at in range(0, len(data), 56)]

    mgids = [0xFF12_401B_FFFF << 80 | 0xFFFF_FFFF, 0xFF12_401B_8010 << 80 | 0xFFFF_FFFF]
    assert [each.mgid for each in records] == mgids
    assert records[1] == MCMemberRecord(
        mgid=mgids[1], qkey=0xB1B, mlid=0xC001, mtu_selector=2, mtu=4, pkey=0x8010, rate_selector=2,
        rate=3, packet_life_time_selector=2, packet_life_time=18, scope=2,
    )  # fmt: skip


def test_only_members_of_a_partition_join_its_broadcast_group() -> None:
    client = Client("star2")
    name = f"0x{client.port.guid:x}"
    partitions = with_default([read_partition(f"storage=0x10,ipoib:{name}")])
    client = Client("star2", partitions=partitions)
    mgid = 0xFF12_401B_8010 << 80 | 0xFFFF_FFFF
    other = 0xFE80 << 112 | client.fabric.adapters[0].guid

    for gid, status in ((client.gid, 0), (other, 0x0200)):
        join = MCMemberRecord(mgid=mgid, port_gid=gid, join_state=1, pkey=0x8010)
        assert client.ask(MEMBER, join.pack(), mask=0x10083, method=SET)[0] == status


def test_who_gives_the_key_sees_members_and_no_group_without() -> None:
    """As with opensm 3.3.23: `saquery --smkey 1 MCMR` lists members, `saquery MCMR` groups."""
    client = Client("star2")

    assert len(client.ask(MEMBER, method=GET_TABLE)[1]) == 56
    assert client.ask(MEMBER, method=GET_TABLE, key=1)[1] == b""


def test_joining_the_broadcast_group_makes_a_tree() -> None:
    client = Client()
    join = MCMemberRecord(mgid=BROADCAST, port_gid=client.gid, join_state=1, pkey=0xFFFF)

    status, data = client.ask(MEMBER, join.pack(), mask=0x10083, method=SET)
    client.fabric.run(0.1)

    record = MCMemberRecord.unpack(data)
    assert (status, record.mlid, record.mtu, record.rate) == (0, 0xC000, 4, 3)
    assert record.qkey == 0xB1B
    assert client.port.peer is not None
    block = client.port.peer.node.mft[0, 0]
    assert int.from_bytes(block[:2], "big") == 1 << client.port.peer.number
    status, _ = client.ask(MEMBER, join.pack(), mask=0x10083, method=DELETE)
    client.fabric.run(0.1)
    assert status == 0
    assert not any(client.port.peer.node.mft[0, 0])


@pytest.mark.parametrize("attribute", [0x16, 0x12], ids=["sweep", "light sweep"])
def test_a_join_during_a_sweep_is_written_after_it(attribute: int) -> None:
    """The request comes between a Get of P_KeyTable or SwitchInfo and its answer."""
    client = Client()
    client.fabric.run(1)
    management = client.fabric.management
    send = management.send
    is_joined = False

    def join_meanwhile(datagram: Datagram, port: Port) -> None:
        nonlocal is_joined
        send(datagram, port)
        if not is_joined and datagram.mad[1] == 0x81 and datagram.mad[17] == attribute:
            is_joined = True
            send(client.join_broadcast(), client.port)

    management.send = join_meanwhile  # type: ignore[method-assign]
    if attribute == 0x16:
        client.manager._change(client.fabric.now)
    client.fabric.run(11)

    assert is_joined
    assert client.port.peer is not None
    block = client.port.peer.node.mft.get((0, 0), bytes(64))
    assert int.from_bytes(block[:2], "big") == 1 << client.port.peer.number


@each_case("attribute", [0x11, 0x12, 0x16, 0x19])
def test_paths_are_known_during_a_sweep(attribute: int) -> None:
    """The request comes behind a SMP of the manager in a sweep for a link that has failed."""
    client = Client()
    near, far = client.fabric.adapters[1], client.fabric.adapters[3]
    program = client.fabric.program(near)  # beside the manager
    management = client.fabric.management
    send = management.send
    header = MAD(mgmt_class=3, class_version=2, method=GET, attribute_id=PATH).pack()
    record = PathRecord(slid=near.lid, dlid=far.lid).pack()
    request = header + bytes(12) + SA(component_mask=0b110000).pack() + record
    asked = 0

    def ask_meanwhile(datagram: Datagram, port: Port) -> None:
        nonlocal asked
        send(datagram, port)
        if not asked and datagram.mad[1] == 0x81 and datagram.mad[16:18] == bytes([0, attribute]):
            asked = 1
            mad = bytearray(request.ljust(256, b"\0"))
            send(Datagram(mad, near.lid, near.master_sm_lid, 1, 1), near)

    management.send = ask_meanwhile  # type: ignore[method-assign]
    sw0 = client.fabric.subnet.nodes["sw0"]
    client.fabric.subnet.disconnect(sw0.ports[7])
    client.fabric.run(3)

    answers = [each.mad for each in program.received if each.mad[17] == PATH]
    assert asked
    assert [bytes(mad[3:6]) for mad in answers] == [b"\x81\0\0"]


def test_a_multicast_table_that_was_lost_is_written_by_the_next_sweep() -> None:
    client = Client()
    management = client.fabric.management
    send = management.send

    def without_tables(datagram: Datagram, port: Port) -> None:
        if datagram.mad[17] != 0x1B:
            send(datagram, port)

    management.send = without_tables  # type: ignore[method-assign]
    send(client.join_broadcast(), client.port)
    client.fabric.run(3)
    assert client.port.peer is not None
    mft = client.port.peer.node.mft
    assert not mft

    management.send = send  # type: ignore[method-assign]
    client.manager._change(client.fabric.now)
    client.fabric.run(1)

    assert int.from_bytes(mft[0, 0][:2], "big") == 1 << client.port.peer.number


def test_a_group_ends_with_its_last_full_member() -> None:
    client = Client()
    mgid = 0xFF12_401B << 96 | 5
    group = MCMemberRecord(mgid=mgid, port_gid=client.gid, join_state=1, pkey=0xFFFF)

    assert client.ask(MEMBER, group.pack(), mask=0x10083, method=SET)[0] == 0x0600
    status, data = client.ask(MEMBER, group.pack(), mask=0x130C7 | 1 << 13, method=SET)
    assert (status, MCMemberRecord.unpack(data).mlid) == (0, 0xC001)
    too_large = group.altered(mtu_selector=2, mtu=1)
    mask = 0x10083 | 3 << 4
    assert client.ask(MEMBER, too_large.pack(), mask=mask, method=SET)[0] == 0x0200
    assert client.ask(MEMBER, group.pack(), mask=0x10003, method=DELETE)[0] == 0
    assert client.ask(MEMBER, group.pack(), mask=1)[0] == 0x0300


def test_a_group_is_for_ports_of_its_partition() -> None:
    """Others may not create it, join it, or find it (opensm osm_sa_mcmember_record.c, ERR 1B14)."""
    blue = Partition("blue", 0x10, full=("node-0-0",), limited=("node-1-0",))
    client = Client(partitions=with_default((blue,)))
    full, limited, outside = (client.fabric.adapters[index] for index in (0, 2, -1))
    mgid = 0xFF12_401B << 96 | 5

    def join(port: Port, mask: int) -> int:
        client.port = port
        client.program = client.fabric.program(port)
        gid = 0xFE80 << 112 | port.guid
        record = MCMemberRecord(mgid=mgid, port_gid=gid, join_state=1, pkey=0x8010)
        return client.ask(MEMBER, record.pack(), mask=mask, method=SET)[0]

    assert join(outside, CREATE) == 0x0200
    assert join(full, CREATE) == 0
    assert join(outside, 0x10003) == 0x0200
    assert client.ask(MEMBER, MCMemberRecord(mgid=mgid).pack(), mask=1)[0] == 0x0300
    assert join(limited, 0x10003) == 0
    assert client.ask(MEMBER, MCMemberRecord(mgid=mgid).pack(), mask=1)[0] == 0


@pytest.mark.parametrize(
    ("mgid", "status"),
    [
        (0xFF12_A01C << 96 | 5, 0),
        (0xFF15_A01B << 96 | 5, 0),
        (0xFF12_A01B << 96 | 5, 0x0200),
        (0xEF12_A01C << 96 | 5, 0x0200),
        (0xFF22_A01C << 96 | 5, 0x0200),
    ],
)
def test_mgids_that_nobody_may_ask_for_are_refused(mgid: int, status: int) -> None:
    """The five that osmtest's multicast flow tries (o15-0.1.6)."""
    client = Client()
    group = MCMemberRecord(mgid=mgid, port_gid=client.gid, join_state=1, pkey=0xFFFF)

    assert client.ask(MEMBER, group.pack(), mask=CREATE, method=SET)[0] == status


def test_a_member_leaves_with_bits_that_it_has() -> None:
    """Bits that it has not are refused, and change nothing (o15-0.1.14)."""
    client = Client()
    join = MCMemberRecord(mgid=BROADCAST, port_gid=client.gid, join_state=3, pkey=0xFFFF)
    client.ask(MEMBER, join.pack(), mask=0x10083, method=SET)

    def leave(bits: int) -> int:
        record = join.altered(join_state=bits).pack()
        return client.ask(MEMBER, record, mask=0x10003, method=DELETE)[0]

    assert leave(6) == leave(4) == leave(0) == 0x0200
    assert leave(1) == 0
    assert leave(1) == 0x0200
    assert leave(2) == 0


def test_a_group_ends_when_all_its_members_vanish_at_once() -> None:
    client = Client()
    mgid = 0xFF12_401B << 96 | 5
    group = MCMemberRecord(mgid=mgid, port_gid=client.gid, join_state=1, pkey=0xFFFF)
    sender = client.fabric.adapters[-2]
    sends = group.altered(port_gid=0xFE80 << 112 | sender.guid, join_state=4)
    assert client.ask(MEMBER, group.pack(), mask=CREATE, method=SET)[0] == 0
    assert client.ask(MEMBER, sends.pack(), mask=0x10003, method=SET)[0] == 0
    client.fabric.run(1)

    client.fabric.subnet.disconnect(client.port)
    client.fabric.subnet.disconnect(sender)
    client.fabric.run(1)

    assert client.manager.is_up
    client.program = client.fabric.program(client.fabric.adapters[1])
    assert client.ask(MEMBER, group.pack(), mask=1)[0] == 0x0300


def test_services_end_with_their_lease() -> None:
    client = Client()
    service = ServiceRecord(
        service_id=7, service_gid=client.gid, service_lease=5, service_name=b"x".ljust(64, b"\0")
    )

    assert client.ask(SERVICE, service.pack(), mask=0x57, method=SET)[0] == 0
    status, data = client.ask(SERVICE, service.pack(), mask=1)
    assert (status, ServiceRecord.unpack(data).service_name[:2]) == (0, b"x\0")
    client.fabric.run(6)
    assert client.ask(SERVICE, service.pack(), mask=1)[0] == 0x0300
    assert client.ask(SERVICE, service.pack(), mask=1, method=DELETE)[0] == 0x0300


def test_a_service_with_a_key_is_changed_with_that_key_only() -> None:
    client = Client()
    service = ServiceRecord(service_id=7, service_gid=client.gid, service_key=9)
    assert client.ask(SERVICE, service.pack(), mask=0x23, method=SET)[0] == 0

    other = service.altered(service_key=8)

    assert client.ask(SERVICE, other.pack(), mask=0x23, method=SET)[0] == 0x0700
    assert ServiceRecord.unpack(client.ask(SERVICE, service.pack(), mask=1)[1]).service_key == 0


@pytest.mark.parametrize("mask", [0, 0x20], ids=["all", "those with the key"])
def test_services_are_deleted_with_their_key_only(mask: int) -> None:
    client = Client()
    gid = 0xFE80 << 112 | client.fabric.adapters[0].guid
    for number, key in ((1, 9), (2, 8)):
        service = ServiceRecord(service_id=number, service_gid=gid, service_key=key)
        assert client.ask(SERVICE, service.pack(), mask=0x23, method=SET)[0] == 0

    none = ServiceRecord(service_key=7).pack()
    some = ServiceRecord(service_key=8).pack()

    assert client.ask(SERVICE, bytes(176), mask=mask, method=DELETE)[0] == 0x0700
    assert client.ask(SERVICE, none, mask=mask, method=DELETE)[0] == 0x0700
    assert len(client.ask(SERVICE, method=GET_TABLE)[1]) == 2 * 176
    assert client.ask(SERVICE, some, mask=mask, method=DELETE)[0] == 0
    left = ServiceRecord.unpack(client.ask(SERVICE, method=GET_TABLE)[1])
    assert left.service_id == 1
    assert client.ask(SERVICE, some, mask=mask, method=DELETE)[0] == 0x0700


def test_services_without_a_key_are_deleted_beside_others() -> None:
    client = Client()
    gid = 0xFE80 << 112 | client.fabric.adapters[0].guid
    for number, key in ((1, 9), (2, 0)):
        service = ServiceRecord(service_id=number, service_gid=gid, service_key=key)
        assert client.ask(SERVICE, service.pack(), mask=0x23, method=SET)[0] == 0

    assert client.ask(SERVICE, bytes(176), method=DELETE)[0] == 0
    assert ServiceRecord.unpack(client.ask(SERVICE, method=GET_TABLE)[1]).service_id == 1


def test_a_port_deletes_its_own_services_without_their_keys() -> None:
    """As osmtest does, by name."""
    client = Client()
    service = ServiceRecord(service_id=1, service_gid=client.gid, service_key=9)
    assert client.ask(SERVICE, service.pack(), mask=0x23, method=SET)[0] == 0

    assert client.ask(SERVICE, service.altered(service_key=8).pack(), 0x21, DELETE)[0] == 0x0700
    assert client.ask(SERVICE, service.altered(service_key=0).pack(), 1, DELETE)[0] == 0
    assert client.ask(SERVICE, method=GET_TABLE)[1] == b""


def test_traps_are_reported_to_who_has_subscribed() -> None:
    client = Client()
    wanted = SUBSCRIBE.altered(type=0xFFFF, trap_number=128, producer_type=0xFFFFFF)
    assert client.ask(3, wanted.altered(subscribe=0).pack(), method=SET)[0] == 0x0200
    assert client.ask(3, wanted.pack(), method=SET)[0] == 0
    client.program.received.clear()

    client.fabric.subnet.disconnect(client.fabric.subnet.nodes["sw0"].ports[7])
    client.fabric.run(3)

    reports = [each.mad for each in client.program.received if each.mad[3] == REPORT]
    assert {Notice.unpack(bytes(mad[56:])).trap_number for mad in reports} == {
        Trap.LINK_STATE_CHANGE
    }
    assert client.ask(3, wanted.altered(subscribe=0).pack(), method=SET)[0] == 0


SWITCH, MANAGER, OTHER = "switch", "manager", "other"


@pytest.mark.parametrize(
    ("gid", "lids", "traps"),
    [
        (None, (0xFFFF, 0), {128, 64, 65}),
        (SWITCH, (0xFFFF, 0), {128}),
        (MANAGER, (0xFFFF, 0), {64, 65}),
        (OTHER, (0xFFFF, 0), set()),
        (SWITCH, (0, 0), {128}),
        (None, (SWITCH, SWITCH), {128}),
        (None, (MANAGER, MANAGER), {64, 65}),
        (None, (SWITCH, 0), set()),
    ],
)
def test_a_subscription_is_for_notices_of_a_gid_or_of_a_range_of_lids(
    gid: str | None, lids: tuple[str | int, str | int], traps: set[int]
) -> None:
    """The GID is that of the port that sends the notice, and goes before LIDs (IBA 13.4.8.3).

    Each case as with opensm 3.3.23, and so is IssuerGID of the reports.
    """
    client = Client()
    gone = client.fabric.adapters[2]
    peer = gone.peer
    assert peer is not None
    ports = {SWITCH: peer.management, MANAGER: client.fabric.adapters[0], OTHER: gone}
    begin, end = (each if isinstance(each, int) else ports[each].lid for each in lids)
    wanted = SUBSCRIBE.altered(
        gid=0 if gid is None else gid_of(ports[gid]), lid_range_begin=begin, lid_range_end=end,
        type=0xFFFF, producer_type=0xFFFFFF,
    )  # fmt: skip
    assert client.ask(3, wanted.pack(), method=SET)[0] == 0
    client.program.received.clear()

    client.fabric.subnet.disconnect(gone)
    client.fabric.run(3)
    client.fabric.subnet.reconnect(gone, peer)
    client.fabric.run(3)

    found = [bytes(each.mad[56:136]) for each in client.program.received if each.mad[3] == REPORT]
    issuers = {
        (Notice.unpack(each).trap_number, int.from_bytes(each[64:80], "big")) for each in found
    }
    switch, manager = gid_of(ports[SWITCH]), gid_of(ports[MANAGER])
    assert issuers == {(trap, switch if trap == 128 else manager) for trap in traps}


def test_a_subscription_for_a_gid_that_is_not_there_is_refused() -> None:
    """As by opensm 3.3.23, whose answer has Subscribe 0."""
    client = Client()

    status, data = client.ask(3, SUBSCRIBE.altered(gid=client.gid + 99).pack(), method=SET)

    assert (status, InformInfo.unpack(data).subscribe) == (0x0200, 0)
    assert client.ask(0xF3, method=GET_TABLE)[1] == b""


def test_ports_that_come_and_go_are_reported_to_who_has_subscribed() -> None:
    """Traps 64 and 65 of the manager, once for each port (IBA 13.4.8, 14.2.5.1)."""
    client = Client()
    assert client.ask(3, SUBSCRIBE.pack(), method=SET)[0] == 0
    gone = client.fabric.adapters[2]
    peer = gone.peer
    assert peer is not None

    def reports() -> list[tuple[int, int]]:
        found = [each.mad for each in client.program.received if each.mad[3] == REPORT]
        notices = {bytes(mad[8:16]): Notice.unpack(bytes(mad[56:])) for mad in found}.values()
        return [
            (each.trap_number, int.from_bytes(each.data_details[6:22], "big")) for each in notices
        ]

    client.program.received.clear()
    client.fabric.subnet.disconnect(gone)
    client.fabric.run(3)
    assert reports() == [(Trap.GID_OUT_OF_SERVICE, 0xFE80 << 112 | gone.guid)]

    client.program.received.clear()
    client.fabric.subnet.reconnect(gone, peer)
    client.fabric.run(3)
    assert reports() == [(Trap.GID_IN_SERVICE, 0xFE80 << 112 | gone.guid)]


def test_the_record_of_a_standby_is_what_it_says_of_itself() -> None:
    client = Client(priority=9)
    standby = client.fabric.adapters[4]
    client.fabric.start(Settings(priority=3), host=4)
    client.fabric.run(30)

    size = 4 + 28  # SMInfoRecord: a LID and SMInfo, in steps of 8 bytes
    data = client.ask(0x18, method=GET_TABLE)[1]
    found = {
        int.from_bytes(data[at : at + 2], "big"): SMInfo.unpack(data, at + 4)
        for at in range(0, len(data), -(-size // 8) * 8)
    }

    assert {lid: info.priority for lid, info in found.items()} == {
        client.fabric.adapters[0].lid: 9,
        standby.lid: 3,
    }
    assert found[standby.lid].sm_state == SMState.STANDBY
    assert all(info.act_count > 0 for info in found.values())


@each_case("attribute", [0x11, 0x12, 0x14, 0x15, 0x17, 0x18, 0x30, 0x35, 0x38, 0xF3])
def test_any_mask_is_answered(attribute: int) -> None:
    client = Client("star2")

    for mask in (0, 1, 0xFF, (1 << 64) - 1):
        assert client.ask(attribute, b"\xff" * 200, mask=mask)[0] in (0, 0x300, 0x400, 0x600)
