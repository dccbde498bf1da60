"""MADs in a subnet: ways, illegal requests, keys, traps."""

from __future__ import annotations

import pytest

from ibwire.base.units import NS, S
from ibwire.fabric.infiniband.generated import generate
from ibwire.fabric.infiniband.netfile import parse_topology
from ibwire.fabric.infiniband.routing import bring_up
from ibwire.fabric.infiniband.speeds import Speed, Width
from ibwire.fabric.infiniband.subnet import Port, Subnet, rate_name
from ibwire.sm.asking import Ask, packed
from ibwire.sm.control import Control, route
from ibwire.sm.link_times import LinkTimes
from ibwire.sm.mads import Datagram
from ibwire.sm.management import Management
from ibwire_layers.attributes import (
    PortInfo,
    PortPhysicalState,
    PortState,
    SMAttribute,
    SwitchInfo,
)
from ibwire_layers.mad import MAD, Method, MgmtClass, Notice
from ibwire_layers.performance import PerfAttribute, PortCountersExtended

LINE = """\
switchguid=0x100
Switch 4 "sw0"
[1] "a"[1]
[2] "sw1"[2]

switchguid=0x180
Switch 4 "sw1"
[1] "b"[1]

caguid=0x200
Ca 1 "a"

caguid=0x300
Ca 1 "b"
"""


class Fabric:
    """Two switches and two hosts; `ask` sends from host a and returns the answer."""

    def __init__(self) -> None:
        self.subnet: Subnet = parse_topology(LINE)
        self.management = Management(self.subnet)
        self.received: list[Datagram] = []
        self.now = 0
        self.a = self.subnet.nodes["a"].ports[1]
        self.b = self.subnet.nodes["b"].ports[1]
        self.management.programs[self.a] = self

    def deliver(self, datagram: Datagram, now: int) -> bool:
        self.received.append(datagram)
        return True

    def ask(
        self,
        attribute: int,
        path: tuple[int, ...] = (),
        *,
        method: Method = Method.GET,
        modifier: int = 0,
        data: bytes = b"",
        mkey: int = 0,
    ) -> bytes | None:
        header = MAD(
            mgmt_class=MgmtClass.SUBN_DIRECTED_ROUTE,
            class_version=1,
            method=method,
            transaction_id=7,
            attribute_id=attribute,
            attribute_modifier=modifier,
        ).pack()
        mad = bytearray(header.ljust(256, b"\0"))
        mad[7] = len(path)
        mad[24:32] = mkey.to_bytes(8, "big")
        mad[32:36] = b"\xff" * 4
        mad[64 : 64 + len(data)] = data
        mad[129 : 129 + len(path)] = bytes(path)
        self.received.clear()
        self.management.send(Datagram(mad, 0xFFFF, 0xFFFF, 0, 0), self.a)
        self.management.run(self.now)
        return bytes(self.received[0].mad) if self.received else None

    def set_port(self, path: tuple[int, ...], number: int = 0, **changes: int) -> int:
        """The status of a Set of PortInfo in which only these fields are not 0."""
        answer = self.ask(
            SMAttribute.PORT_INFO,
            path,
            method=Method.SET,
            modifier=number,
            data=PortInfo(**changes).pack(),
        )
        assert answer is not None
        return int.from_bytes(answer[4:6], "big") & 0x7FFF


@pytest.fixture
def fabric() -> Fabric:
    return Fabric()


def status(answer: bytes | None) -> int:
    assert answer is not None
    return int.from_bytes(answer[4:6], "big") & 0x7FFF


@pytest.mark.parametrize(
    ("path", "guid"), [((), 0x200), ((1,), 0x100), ((1, 2), 0x180), ((1, 2, 1), 0x300)]
)
def test_a_directed_route_reaches_each_node(
    fabric: Fabric, path: tuple[int, ...], guid: int
) -> None:
    answer = fabric.ask(SMAttribute.NODE_INFO, path)

    assert answer is not None
    assert int.from_bytes(answer[64 + 12 : 64 + 20], "big") == guid
    assert answer[4] & 0x80


@pytest.mark.parametrize("path", [(1, 3), (1, 9), (2,), (1, 2, 1, 1), (1, 1, 1)])
def test_a_path_that_does_not_exist_has_no_answer(fabric: Fabric, path: tuple[int, ...]) -> None:
    assert fabric.ask(SMAttribute.NODE_INFO, path) is None


def test_the_host_that_sends_forwards_nothing_that_comes_back_to_it(fabric: Fabric) -> None:
    changes = PortInfo(port_state=PortState.ARMED).pack()

    path = (1, 1, 1)  # to the switch, back, and to the switch once more
    fabric.ask(SMAttribute.PORT_INFO, path, method=Method.SET, modifier=2, data=changes)

    assert fabric.subnet.nodes["sw0"].ports[2].state == PortState.INIT
    assert fabric.a.counters.port_xmit_pkts == 1


def test_unknown_attributes_and_methods_are_answered(fabric: Fabric) -> None:
    assert status(fabric.ask(0x7777, (1,))) == 0x000C
    assert status(fabric.ask(SMAttribute.SWITCH_INFO, ())) == 0x000C
    assert status(fabric.ask(SMAttribute.PORT_INFO, (1,), modifier=5)) == 0x001C
    assert status(fabric.ask(SMAttribute.P_KEY_TABLE, (1,), modifier=9 << 16)) == 0x001C


def test_a_link_goes_from_initialize_over_armed_to_active(fabric: Fabric) -> None:
    port = fabric.subnet.nodes["sw0"].ports[2]
    assert port.state == PortState.INIT

    assert fabric.set_port((1,), 2, port_state=PortState.ACTIVE) == 0x001C
    assert port.state == PortState.INIT
    assert fabric.set_port((1,), 2, port_state=PortState.ARMED) == 0
    assert fabric.set_port((1,), 2, port_state=PortState.ACTIVE) == 0
    assert port.state == PortState.ACTIVE
    assert fabric.set_port((1,), 2, port_state=PortState.INIT) == 0x001C
    assert fabric.set_port((1,), 2, port_state=PortState.DOWN) == 0
    assert (port.state, port.peer.state) == (PortState.INIT, PortState.INIT)


def test_data_makes_an_armed_port_active(fabric: Fabric) -> None:
    """IBA 7.2.7. Subnet management packets do not, and what is Armed sends no data."""
    bring_up(fabric.subnet)
    arriving = fabric.subnet.nodes["sw0"].ports[1]
    arriving.state = PortState.ARMED
    assert fabric.ask(SMAttribute.NODE_INFO, (1,)) is not None
    assert arriving.state == PortState.ARMED
    header = MAD(mgmt_class=MgmtClass.PERF, class_version=1, method=1, attribute_id=0x12).pack()

    def ask() -> None:
        mad = bytearray(header.ljust(256, b"\0"))
        fabric.management.send(Datagram(mad, fabric.a.lid, fabric.b.lid, 1, 1), fabric.a)
        fabric.management.run(0)

    fabric.a.state = PortState.ARMED
    ask()
    assert (fabric.received[1:], arriving.state) == ([], PortState.ARMED)
    fabric.a.state = PortState.ACTIVE
    ask()
    assert (len(fabric.received[1:]), arriving.state) == (1, PortState.ACTIVE)


@pytest.mark.parametrize(
    "changes",
    [
        {"operational_vls": 5},
        {"neighbor_mtu": 6},
        {"link_width_enabled": 8},
        {"link_speed_ext_enabled": 8},
        {"port_physical_state": 5},
    ],
)
def test_an_illegal_set_changes_nothing(fabric: Fabric, changes: dict[str, int]) -> None:
    port = fabric.subnet.nodes["sw0"].ports[2]
    before = bytes(port.info)

    assert fabric.set_port((1,), 2, **changes, hoq_life=3) == 0x001C
    assert bytes(port.info) == before


def test_all_speeds_and_widths_are_those_that_are_supported(fabric: Fabric) -> None:
    assert fabric.set_port((1,), 2, link_width_enabled=0xFF, link_speed_enabled=15) == 0

    info = PortInfo.unpack(fabric.subnet.nodes["sw0"].ports[2].info)
    assert info.link_width_enabled == info.link_width_supported
    assert info.link_speed_enabled == info.link_speed_supported


@pytest.mark.parametrize(
    ("enabled", "rate"),
    [
        ({"link_width_enabled": 1}, "1xEDR"),
        ({"link_width_enabled": 16}, "2xEDR"),
        ({"link_speed_ext_enabled": 1}, "4xFDR"),
        ({"link_width_enabled": 3, "link_speed_ext_enabled": 3}, "4xEDR"),
    ],
)
def test_a_link_trains_with_the_best_that_both_ports_have_enabled(
    fabric: Fabric, enabled: dict[str, int], rate: str
) -> None:
    """As after `ibportstate width 1` and `reset`; until then nothing changes (IBA 14.2.5.6)."""
    ports = (fabric.subnet.nodes["sw0"].ports[2], fabric.subnet.nodes["sw1"].ports[2])
    assert fabric.set_port((1,), 2, **enabled) == 0
    assert {rate_name(port) for port in ports} == {"4xEDR"}

    assert fabric.set_port((1,), 2, port_physical_state=PortPhysicalState.POLLING) == 0

    assert {rate_name(port) for port in ports} == {rate}
    assert {port.state for port in ports} == {PortState.INIT}


def test_a_speed_without_the_extended_ones_is_one_up_to_qdr() -> None:
    """Ports of an SDR and a QDR cable keep their limits when the links are changed."""
    subnet = parse_topology(
        'Switch 2 "a"\n[1] "b"[1] # 4xQDR\n[2] "c"[1] # 8xSDR\n\nSwitch 1 "b"\n\nSwitch 1 "c"\n'
    )
    slow, fast = subnet.nodes["c"].ports[1], subnet.nodes["b"].ports[1]
    for port in (slow, fast):
        subnet.disconnect(port)

    subnet.reconnect(slow, fast)

    assert rate_name(slow) == rate_name(fast) == "4xSDR"


def test_fdr10_is_told_by_nodes_of_mellanox_and_can_be_switched_off() -> None:
    """The places are those of libibmad's fields.c: bits 56, 88 and 120 of MlnxExtPortInfo."""
    fabric = Fabric()
    near, far = (fabric.subnet.nodes[name].ports[2] for name in ("sw0", "sw1"))
    fabric.subnet.disconnect(near)
    fabric.subnet.connect(near, far, Width.X4, Speed.FDR10)

    def ask(data: bytes = b"") -> tuple[int, list[int]]:
        method = Method.SET if data else Method.GET
        answer = fabric.ask(0xFF90, (1,), method=method, modifier=2, data=data)
        assert answer is not None
        return status(answer), [answer[64 + bit // 8] for bit in (56, 88, 120)]

    assert ask()[0] == 0x000C
    near.node.vendor_id = 0x2C9
    assert ask() == (0, [1, 1, 1])
    assert rate_name(near) == "4xFDR10"

    assert ask(bytes(12)) == (0, [1, 0, 1])
    fabric.subnet.retrain(near)
    assert ask() == (0, [1, 0, 0])
    assert rate_name(near) == rate_name(far) == "4xQDR"
    assert ask(bytes(11) + b"\2")[0] == 0x001C


def test_ports_that_have_no_speed_in_common_stay_down(fabric: Fabric) -> None:
    near, far = (fabric.subnet.nodes[name].ports[2] for name in ("sw0", "sw1"))
    near.speed_ext_enabled, near.speed_enabled, far.speed_enabled = 0, 1, 6

    fabric.subnet.retrain(near)
    assert (near.state, near.physical_state) == (PortState.DOWN, PortPhysicalState.POLLING)

    far.speed_enabled = 3
    fabric.subnet.retrain(near)
    assert rate_name(near) == rate_name(far) == "4xSDR"


def test_a_link_is_down_until_both_of_its_ports_are_enabled(fabric: Fabric) -> None:
    near, far = (fabric.subnet.nodes[name].ports[2] for name in ("sw0", "sw1"))
    fabric.subnet.disable(near)
    fabric.subnet.disable(far)

    fabric.subnet.enable(near)
    assert (near.state, near.physical_state) == (PortState.DOWN, PortPhysicalState.POLLING)
    assert (far.state, far.physical_state) == (PortState.DOWN, PortPhysicalState.DISABLED)

    fabric.subnet.retrain(far)  # PortState Down alone enables nothing
    assert far.physical_state == PortPhysicalState.DISABLED
    fabric.subnet.enable(far)
    assert near.state == far.state == PortState.INIT


def test_a_port_without_a_cable_is_enabled_again(fabric: Fabric) -> None:
    port = fabric.subnet.nodes["sw0"].ports[2]
    fabric.subnet.disconnect(port)
    fabric.set_port((1,), 2, port_physical_state=PortPhysicalState.DISABLED)
    assert port.physical_state == PortPhysicalState.DISABLED

    fabric.set_port((1,), 2, port_physical_state=PortPhysicalState.POLLING)

    assert port.physical_state == PortPhysicalState.POLLING


def test_an_adapter_is_set_by_its_own_port_only(fabric: Fabric) -> None:
    assert fabric.set_port((1, 2, 1), 0, lid=9, master_sm_lid=1) == 0
    assert fabric.b.lid == 9
    assert fabric.set_port((1, 2, 1), 1, lid=8) == 0


def test_a_change_bit_is_cleared_by_writing_one(fabric: Fabric) -> None:
    switch = fabric.subnet.nodes["sw0"]
    assert switch.port_state_change == 1

    fabric.ask(SMAttribute.SWITCH_INFO, (1,), method=Method.SET, data=SwitchInfo().pack())
    assert switch.port_state_change == 1
    data = SwitchInfo(port_state_change=1, linear_fdb_top=40).pack()
    fabric.ask(SMAttribute.SWITCH_INFO, (1,), method=Method.SET, data=data)
    assert (switch.port_state_change, switch.linear_fdb_top) == (0, 40)


@pytest.mark.parametrize(
    ("bits", "get", "set_"), [(0, True, False), (1, True, False), (2, False, False)]
)
def test_an_m_key_protects(fabric: Fabric, bits: int, get: bool, set_: bool) -> None:
    fabric.b.mkey = 0x1234
    fabric.b.mkey_protect_bits = bits
    path = (1, 2, 1)

    assert (fabric.ask(SMAttribute.NODE_INFO, path) is not None) is get
    data = PortInfo(lid=5).pack()
    assert fabric.ask(SMAttribute.PORT_INFO, path, method=Method.SET, data=data) is None
    assert fabric.b.mkey_violations == (1 if get else 2)
    answer = fabric.ask(SMAttribute.PORT_INFO, path, mkey=0x1234)
    assert status(answer) == 0


@pytest.mark.parametrize(("bits", "seen"), [(0, 0x1234), (1, 0)])
def test_who_has_not_the_m_key_is_not_told_it(fabric: Fabric, bits: int, seen: int) -> None:
    """IBA 14.2.4: from M_KeyProtectBits 1 on."""
    fabric.b.mkey = 0x1234
    fabric.b.mkey_protect_bits = bits

    answers = [fabric.ask(SMAttribute.PORT_INFO, (1, 2, 1), mkey=key) for key in (0, 0x1234)]

    keys = [PortInfo.unpack(answer[64:128]).mkey for answer in answers if answer is not None]
    assert keys == [seen, 0x1234]


def test_mads_beyond_a_number_wait_for_the_next_call(fabric: Fabric) -> None:
    management, now = fabric.management, 0
    for _ in range(3):
        mad = packed(Ask((1,), SMAttribute.NODE_INFO), tid=1)
        management.send(Datagram(mad, 0xFFFF, 0xFFFF, 0, 0), fabric.a)
    delivered = []
    while management.is_busy:
        management.run(now, 2)
        delivered.append(management.delivered)

    assert delivered == [2, 4, 6]  # three questions and their answers


def up(fabric: Fabric) -> None:
    """What a subnet manager does: LIDs, tables, all links Active."""
    for number, name in enumerate(("a", "b", "sw0", "sw1"), 1):
        node = fabric.subnet.nodes[name]
        port = node.ports[0] if node.is_switch else node.ports[1]
        port.lid, port.master_sm_lid = number, 1
        for each in node.external_ports():
            if each.peer is not None:
                each.state = PortState.ACTIVE
    for name, table in {"sw0": (255, 1, 2, 0, 2), "sw1": (255, 2, 1, 2, 0)}.items():
        node = fabric.subnet.nodes[name]
        node.lft = bytearray(table)
        node.linear_fdb_top = 4
        node.port_state_change = 0


def by_lid(
    fabric: Fabric,
    lid: int,
    attribute: int,
    mgmt_class: MgmtClass,
    *,
    qkey: int = 0,
    method: Method = Method.GET,
    data: bytes = bytes((0, 1)),
) -> bytes | None:
    header = MAD(
        mgmt_class=mgmt_class,
        class_version=1,
        method=method,
        transaction_id=7,
        attribute_id=attribute,
    ).pack()
    mad = bytearray(header.ljust(256, b"\0"))
    mad[64 : 64 + len(data)] = data
    fabric.received.clear()
    fabric.management.send(Datagram(mad, fabric.a.lid, lid, 1, 1, qkey=qkey), fabric.a)
    fabric.management.run(0)
    return bytes(fabric.received[0].mad) if fabric.received else None


@pytest.mark.parametrize(("lid", "name"), [(1, "a"), (2, "b"), (3, "sw0"), (4, "sw1")])
def test_a_mad_follows_its_lid(fabric: Fabric, lid: int, name: str) -> None:
    up(fabric)

    answer = by_lid(fabric, lid, SMAttribute.NODE_DESCRIPTION, MgmtClass.SUBN_LID_ROUTED)

    assert answer is not None
    assert answer[64:].rstrip(b"\0").decode() == name


def test_counters_are_of_the_packets_that_passed(fabric: Fabric) -> None:
    up(fabric)
    by_lid(fabric, 2, SMAttribute.NODE_DESCRIPTION, MgmtClass.SUBN_LID_ROUTED)
    answer = by_lid(fabric, 2, PerfAttribute.PORT_COUNTERS_EXTENDED, MgmtClass.PERF)

    counters = PortCountersExtended.unpack(answer, 64)
    # Two requests have come and one answer has gone when it counts; 288 bytes each.
    assert (counters.port_rcv_pkts, counters.port_rcv_data) == (2, 144)
    assert (counters.port_xmit_pkts, counters.port_xmit_data) == (1, 72)


@pytest.mark.parametrize(
    ("attribute", "values"),
    [
        # Their places in libibmad's fields.c, such as IB_PC_RCV_LOOPING_ERR_F at bit 112.
        (PerfAttribute.PORT_RCV_ERROR_DETAILS, [1, 2, 3, 4, 5, 6]),
        (PerfAttribute.PORT_XMIT_DISCARD_DETAILS, [7, 8, 9, 0xFFFF]),
    ],
)
def test_the_agent_tells_why_packets_were_dropped(
    fabric: Fabric, attribute: PerfAttribute, values: list[int]
) -> None:
    up(fabric)
    counters = fabric.b.counters
    counters.port_local_physical_errors = 1
    counters.port_malformed_packet_errors = 2
    counters.port_buffer_overrun_errors = 3
    counters.port_dlid_mapping_errors = 4
    counters.port_vl_mapping_errors = 5
    counters.port_looping_errors = 6
    counters.port_inactive_discards = 7
    counters.port_neighbor_mtu_discards = 8
    counters.port_sw_lifetime_limit_discards = 9
    counters.port_sw_hoq_lifetime_limit_discards = 1 << 20

    answer = by_lid(fabric, 2, attribute, MgmtClass.PERF)
    assert answer is not None
    assert answer[64:68] == bytes.fromhex("00010000")
    found = [int.from_bytes(answer[at : at + 2], "big") for at in range(68, 192, 2)]
    assert found == values + [0] * (62 - len(values))

    # Set with the second bit of CounterSelect: that counter alone is 0 then.
    cleared = by_lid(
        fabric, 2, attribute, MgmtClass.PERF, method=Method.SET, data=bytes.fromhex("00010002")
    )
    assert cleared is not None
    values[1] = 0
    found = [int.from_bytes(cleared[at : at + 2], "big") for at in range(68, 192, 2)]
    assert found == values + [0] * (62 - len(values))


def test_a_loop_of_tables_ends(fabric: Fabric) -> None:
    up(fabric)
    fabric.subnet.nodes["sw1"].lft[2] = 2

    assert by_lid(fabric, 2, SMAttribute.NODE_INFO, MgmtClass.SUBN_LID_ROUTED) is None
    assert route(fabric.a, fabric.b)[-1]["problem"] == "the route is a loop"


def test_a_route_of_many_hops_is_no_loop() -> None:
    subnet = generate("mesh:size=70,hosts=1")
    bring_up(subnet)

    rows = route(subnet.nodes["node-0-0"].ports[1], subnet.nodes["node-69-0"].ports[1])

    assert len(rows) == 72
    assert rows[-1] == {"node": "node-69-0", "in": 1, "out": None}


def test_routes_begin_and_end_at_switches_too(fabric: Fabric) -> None:
    up(fabric)
    ports = {"a": fabric.a, "b": fabric.b}
    ports |= {name: fabric.subnet.nodes[name].ports[0] for name in ("sw0", "sw1")}

    def hops(source: str, destination: str) -> list[tuple[object, ...]]:
        return [tuple(row.values()) for row in route(ports[source], ports[destination])]

    assert hops("a", "a") == [("a", None, None)]
    assert hops("a", "sw0") == [("a", None, 1), ("sw0", 1, None)]
    assert hops("sw0", "b") == [("sw0", None, 2), ("sw1", 2, 1), ("b", 1, None)]
    assert hops("sw1", "sw0") == [("sw1", None, 2), ("sw0", 2, None)]
    assert hops("sw1", "sw1") == [("sw1", None, None)]
    fabric.subnet.nodes["sw0"].lft[2] = 1
    assert hops("a", "b")[-1] == ("a", 1, None, "this is not b")
    fabric.subnet.nodes["sw0"].lft[2] = 0
    assert hops("a", "b")[-1] == ("sw0", 1, None, "this is not b")
    fabric.subnet.nodes["sw0"].lft[2] = 255
    assert hops("a", "b")[-1] == ("sw0", 1, None, "no route to LID 2")


def test_data_do_not_pass_a_link_that_is_armed(fabric: Fabric) -> None:
    up(fabric)
    fabric.subnet.nodes["sw0"].ports[2].state = PortState.ARMED

    assert by_lid(fabric, 2, PerfAttribute.PORT_COUNTERS, MgmtClass.PERF) is None
    assert by_lid(fabric, 2, SMAttribute.NODE_INFO, MgmtClass.SUBN_LID_ROUTED) is not None


def test_a_packet_of_another_partition_makes_a_port_send_a_trap(fabric: Fabric) -> None:
    """Trap 257: LIDs, P_Key, SL and queue pair of the sender, queue pair of the receiver."""
    up(fabric)
    fabric.b.master_sm_lid = fabric.a.lid
    fabric.a.pkeys, fabric.b.pkeys = bytearray(b"\x80\x10"), bytearray(b"\x7f\xff")

    for _ in range(2):
        assert by_lid(fabric, 2, PerfAttribute.PORT_COUNTERS, MgmtClass.PERF) is None
    fabric.management.handle_timeout(0)

    (trap,) = (Notice.unpack(each.mad, 64) for each in fabric.received)
    assert (trap.type, trap.producer_type, trap.trap_number) == (2, 1, 257)
    assert trap.issuer_lid == fabric.b.lid
    lids = fabric.a.lid.to_bytes(2, "big") + fabric.b.lid.to_bytes(2, "big")
    numbers = bytes.fromhex("00008010 00000001 00000001")
    assert trap.data_details == (bytes(2) + lids + numbers).ljust(54, b"\0")


def test_a_packet_with_a_wrong_q_key_makes_a_port_send_a_trap(fabric: Fabric) -> None:
    """Trap 258 has the details of trap 257, with the Q_Key (opensm ib_types.h)."""
    up(fabric)
    fabric.b.master_sm_lid = fabric.a.lid
    management = fabric.management
    before = management.delivered, management.lost

    assert by_lid(fabric, 2, PerfAttribute.PORT_COUNTERS, MgmtClass.PERF, qkey=0x1234) is None
    assert (management.delivered, management.lost) == (before[0], before[1] + 1)
    management.handle_timeout(0)

    (trap,) = (Notice.unpack(each.mad, 64) for each in fabric.received)
    assert (trap.type, trap.producer_type, trap.trap_number) == (2, 1, 258)
    lids = fabric.a.lid.to_bytes(2, "big") + fabric.b.lid.to_bytes(2, "big")
    numbers = bytes.fromhex("00001234 00000001 00000001")
    assert trap.data_details == (bytes(2) + lids + numbers).ljust(54, b"\0")
    assert fabric.b.qkey_violations == 1
    # The bit stands for the key of the sender's queue pair (IBA 10.2.5).
    answer = by_lid(fabric, 2, PerfAttribute.PORT_COUNTERS, MgmtClass.PERF, qkey=0x80010000)
    assert answer is not None


@pytest.mark.parametrize("is_inbound", [True, False])
def test_a_switch_that_drops_a_packet_by_its_p_key_sends_a_trap(
    is_inbound: bool, fabric: Fabric
) -> None:
    """Trap 259 with DataValid, LIDs, P_Key, SL and queue pairs, no GIDs, and the switch's port."""
    up(fabric)
    switch = fabric.subnet.nodes["sw0"]
    port = switch.ports[1 if is_inbound else 2]
    port.pkeys = bytearray(b"\x80\x10")
    if is_inbound:
        port.enforces_pkeys_inbound = 1
    else:
        port.enforces_pkeys_outbound = 1
    switch.ports[0].master_sm_lid = fabric.a.lid

    assert by_lid(fabric, 2, PerfAttribute.PORT_COUNTERS, MgmtClass.PERF) is None
    fabric.management.handle_timeout(0)

    (trap,) = (Notice.unpack(each.mad, 64) for each in fabric.received)
    assert (trap.type, trap.producer_type, trap.trap_number) == (2, 2, 259)
    assert trap.issuer_lid == switch.ports[0].lid
    lids = fabric.a.lid.to_bytes(2, "big") + fabric.b.lid.to_bytes(2, "big")
    expected = bytes.fromhex("fc00") + lids + bytes.fromhex("ffff 00000001 00000001") + bytes(32)
    expected += switch.ports[0].lid.to_bytes(2, "big") + bytes((port.number,))
    assert trap.data_details == expected.ljust(54, b"\0")


@pytest.mark.parametrize("is_repressed", [True, False])
def test_different_security_traps_of_a_port_keep_the_distance_of_subnet_timeout(
    is_repressed: bool, fabric: Fabric
) -> None:
    """4.096 us times 2^18, 1.07 s, from one to the next."""
    up(fabric)
    fabric.b.master_sm_lid, fabric.b.subnet_timeout = fabric.a.lid, 18
    management = fabric.management
    tenths = []
    for tenth in range(30):
        by_lid(fabric, 2, PerfAttribute.PORT_COUNTERS, MgmtClass.PERF, qkey=1 + tenth % 2)
        management.handle_timeout(tenth * S // 10)
        for trap in list(fabric.received):
            assert Notice.unpack(trap.mad, 64).trap_number == 258
            tenths.append(tenth)
            repress = bytearray(trap.mad)
            repress[3] = Method.TRAP_REPRESS
            if is_repressed:
                management.send(Datagram(repress, fabric.a.lid, fabric.b.lid, 0, 0), fabric.a)
                management.run(tenth * S // 10)

    assert tenths == [0, 11, 22]


def test_a_trap_about_an_m_key_says_who_asked_and_how(fabric: Fabric) -> None:
    """By directed route with DrSLID, hop count and return path (Linux qib_mad.c, qib_bad_mkey), by
    LID without them."""
    up(fabric)
    fabric.b.master_sm_lid, fabric.b.mkey, fabric.b.mkey_protect_bits = fabric.a.lid, 5, 2
    management, lid = fabric.management, fabric.a.lid.to_bytes(2, "big").hex()
    details = []

    def read_trap(now: int) -> None:
        management.handle_timeout(now)
        (trap,) = fabric.received
        details.append(Notice.unpack(trap.mad, 64).data_details.hex())

    assert fabric.ask(SMAttribute.NODE_INFO, (1, 2, 1), modifier=7, mkey=6) is None
    read_trap(0)
    by_lid(fabric, fabric.b.lid, SMAttribute.NODE_INFO, MgmtClass.SUBN_LID_ROUTED)
    read_trap(100 * S)

    # Ports by which the request came into sw0, sw1 and b; the last has no room.
    asked = "01 00 0011 00000007 0000000000000006"
    path = f"0000 ffff ffff {asked} 00 83 00 01 02".replace(" ", "")
    assert details[0] == path.ljust(108, "0")
    plain = f"0000 {lid} 0000 01 00 0011 00000000 0000000000000000".replace(" ", "")
    assert details[1] == plain.ljust(108, "0")


def test_a_trap_is_repeated_until_it_is_repressed(fabric: Fabric) -> None:
    up(fabric)
    fabric.subnet.disconnect(fabric.b)
    management = fabric.management
    for second in range(0, 20, 5):
        management.handle_timeout(second * S)
    traps = [Notice.unpack(each.mad, 64) for each in fabric.received]
    assert [(trap.trap_number, trap.issuer_lid) for trap in traps] == [(128, 4)] * 4
    assert traps[0].data_details[:2] == bytes((0, 4))

    answer = bytearray(fabric.received[0].mad)
    answer[3] = Method.TRAP_REPRESS
    management.send(Datagram(answer, 1, 4, 0, 0), fabric.a)
    management.run(20 * S)

    assert management.poll_timeout() is None


def test_a_failed_link_comes_back(fabric: Fabric) -> None:
    up(fabric)
    control = Control(fabric.management, lambda host: {})

    assert control({"command": "fail", "node": "sw0", "port": 2}) == {"link": "sw0[2] - sw1[2]"}
    assert route(fabric.a, fabric.b)[-1] == {
        "node": "sw0",
        "in": 1,
        "out": 2,
        "problem": "the link is down",
    }
    control({"command": "restore", "node": "sw1", "port": 2})
    assert fabric.subnet.nodes["sw0"].ports[2].state == PortState.INIT


def test_a_port_stands_for_its_lids(fabric: Fabric) -> None:
    port: Port = fabric.a
    port.lid, port.lmc = 8, 2

    assert [lid for lid in range(16) if port.has_lid(lid)] == [8, 9, 10, 11]


def test_the_lease_of_an_m_key_ends_without_it(fabric: Fabric) -> None:
    """IBA 14.2.4: a wrong key starts it, the right one stops it; ProtectBits then fall to 0."""
    fabric.b.mkey, fabric.b.mkey_protect_bits, fabric.b.mkey_lease_period = 0x1234, 2, 5
    path = (1, 2, 1)

    def get(at: float, mkey: int = 0) -> bytes | None:
        fabric.now = round(at * S)
        return fabric.ask(SMAttribute.PORT_INFO, path, mkey=mkey)

    found = [get(0), get(4), get(4.5, 0x1234), get(6), get(10.9)]

    assert [each is not None for each in found] == [False, False, True, False, False]
    assert fabric.b.mkey_protect_bits == 2
    shown = get(11)
    assert shown is not None
    assert PortInfo.unpack(shown[64:]).mkey == 0x1234
    assert fabric.b.mkey_protect_bits == 0


def test_switches_and_agents_drop_data_of_another_partition(fabric: Fabric) -> None:
    """IBA 10.9.3: the lower 15 bits are equal, and one of both is a full member."""
    up(fabric)

    def ask() -> bytes | None:
        return by_lid(fabric, 2, PerfAttribute.PORT_COUNTERS, MgmtClass.PERF)

    to_a, to_b = fabric.subnet.nodes["sw0"].ports[1], fabric.subnet.nodes["sw1"].ports[1]
    limited, other = bytearray(b"\x7f\xff"), bytearray(b"\x80\x10")

    assert ask() is not None
    fabric.b.pkeys = limited
    assert ask() is not None
    fabric.a.pkeys = limited
    assert ask() is None
    assert fabric.b.pkey_violations == 1
    fabric.a.pkeys = other
    assert ask() is None
    assert fabric.b.pkey_violations == 2
    to_b.enforces_pkeys_outbound = 1
    assert ask() is None
    assert to_b.counters.port_xmit_constraint_errors == 1
    to_a.enforces_pkeys_inbound = 1
    assert ask() is None
    assert to_a.counters.port_rcv_constraint_errors == 1
    assert fabric.b.pkey_violations == 2
    for port in (fabric.b, to_a, to_b):
        port.pkeys = other
    assert ask() is not None
    # Subnet management is in no partition.
    fabric.b.pkeys = limited
    assert by_lid(fabric, 2, SMAttribute.NODE_INFO, MgmtClass.SUBN_LID_ROUTED) is not None


def test_at_the_real_rate_a_mad_takes_the_time_of_links_switches_and_agents(
    fabric: Fabric,
) -> None:
    """292 bytes with VCRC and delimiters at 100 Gb/s, 10 ns of cable, 130 ns in a switch, 10 us in
    an agent; two packets of one moment follow each other on the first link."""
    fabric.management.times = LinkTimes()
    packet = 292 * 8 * S // 100_000_000_000
    there = 10_000 + 130_000 + packet

    assert fabric.ask(SMAttribute.NODE_INFO, (1,)) is None
    first = fabric.management.poll_timeout()
    assert fabric.ask(SMAttribute.NODE_INFO, (1,)) is None
    assert first is not None
    assert first == pytest.approx(there + 10_000_000, abs=1000)
    fabric.management.run(first)
    second = fabric.management.poll_timeout()
    assert second is not None
    assert second == pytest.approx(first + packet, abs=1000)
    fabric.management.run(second)
    assert fabric.management.poll_timeout() == pytest.approx(first + packet + 10_000, abs=1000)
    fabric.management.run(first + S)
    assert len(fabric.received) == 2
    assert fabric.management.poll_timeout() is None


def test_a_mad_on_its_way_is_lost_with_its_link(fabric: Fabric) -> None:
    """With real rates: the link goes down after the packet was sent, and is up when it is due."""
    management = fabric.management
    management.times = LinkTimes()
    assert fabric.ask(SMAttribute.NODE_INFO, (1, 2)) is None
    link = fabric.subnet.nodes["sw0"].ports[2]
    far = link.peer
    assert far is not None

    fabric.subnet.disconnect(link)
    fabric.subnet.reconnect(link, far)
    management.run(S)

    assert not fabric.received
    assert (management.delivered, management.lost) == (0, 1)
    assert fabric.ask(SMAttribute.NODE_INFO, (1, 2)) is None
    management.run(S)
    management.run(2 * S)
    assert fabric.received


@pytest.mark.parametrize(
    ("after", "switch", "number", "arrives"),
    [
        (20 * NS, "sw0", 1, False),
        (40 * NS, "sw0", 1, True),
        (40 * NS, "sw0", 2, False),
        (180 * NS, "sw0", 2, False),
        (210 * NS, "sw0", 2, True),
        (210 * NS, "sw1", 1, False),
    ],
)
def test_a_mad_is_lost_only_with_links_that_it_has_not_passed(
    fabric: Fabric, after: int, switch: str, number: int, *, arrives: bool
) -> None:
    """With real rates, of a test as above: each link takes 23 and 10 ns, each switch 130 ns. The
    link is back before the response comes."""
    management, times = fabric.management, LinkTimes()
    management.times, times.clock = times, lambda: after
    assert fabric.ask(SMAttribute.NODE_INFO, (1, 2, 1)) is None
    link = fabric.subnet.nodes[switch].ports[number]
    far = link.peer
    assert far is not None

    fabric.subnet.disconnect(link)
    fabric.subnet.reconnect(link, far)
    management.run(S)
    management.run(2 * S)

    assert bool(fabric.received) == arrives
    assert management.lost == (not arrives)


def test_damaged_mads_are_lost_and_counted_by_the_port_that_receives_them(fabric: Fabric) -> None:
    """At one bit error in the 8 * 290 of a packet, 1 - 1/e of them are damaged; both ways count."""
    first = fabric.subnet.nodes["sw0"].ports[2]
    far = first.peer
    assert far is not None
    for port in (first, far):
        fabric.management.damage(port, 1 / (8 * 290))

    answered = sum(fabric.ask(SMAttribute.NODE_INFO, (1, 2)) is not None for _ in range(2000))

    there, back = far.counters, first.counters
    assert there.port_rcv_pkts == 2000
    assert there.symbol_error_counter == there.port_rcv_errors
    assert there.symbol_error_counter == pytest.approx(2000 * 0.632, rel=0.05)
    assert back.port_rcv_pkts == 2000 - there.symbol_error_counter
    assert back.symbol_error_counter == pytest.approx(back.port_rcv_pkts * 0.632, rel=0.1)
    assert answered == back.port_rcv_pkts - back.symbol_error_counter
    for port in (first, far):
        fabric.management.damage(port, 0)
    assert all(fabric.ask(SMAttribute.NODE_INFO, (1, 2)) for _ in range(100))


def test_a_link_whose_damaged_mads_exceed_the_threshold_is_reported(fabric: Fabric) -> None:
    """Trap 129 with LID and port for the third of three in a row, with a threshold of 2; a good one
    takes one off (docs/reference/infiniband.md#traps)."""
    up(fabric)
    link, switch = fabric.subnet.nodes["sw0"].ports[2], fabric.subnet.nodes["sw1"]
    switch.ports[0].master_sm_lid = fabric.a.lid
    switch.ports[2].local_phy_errors = 2
    numbers = []

    for rate in (0.999, 0.999, 1e-9, 0.999, 0.999):
        fabric.management.damage(link, rate)
        fabric.ask(SMAttribute.NODE_INFO, (1, 2))
        fabric.received.clear()
        fabric.management.handle_timeout(0)
        numbers.append([Notice.unpack(each.mad, 64) for each in fabric.received])

    assert [len(each) for each in numbers] == [0, 0, 0, 0, 1]
    (trap,) = numbers[-1]
    assert (trap.type, trap.producer_type, trap.trap_number) == (1, 2, 129)
    lid = switch.ports[0].lid.to_bytes(2, "big")
    assert trap.data_details == (bytes(2) + lid + bytes((2,))).ljust(54, b"\0")
    assert switch.ports[2].counters.local_link_integrity_errors == 1
