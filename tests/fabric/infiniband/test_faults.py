"""What goes wrong in an InfiniBand fabric: symbol errors, links that fail, P_Keys, old packets."""

from __future__ import annotations

from fabric.infiniband.test_network import assert_nothing_lost, fabric_of, hosts_of, port_at
from ibwire.base.units import MS, US
from ibwire.fabric.infiniband.counters import DISCARDS, RCV_ERRORS
from ibwire.fabric.infiniband.generated import generate
from ibwire.fabric.infiniband.multicast import Group, multicast_tables
from ibwire.fabric.infiniband.network import set_limits
from ibwire.fabric.infiniband.routing import bring_up
from ibwire.fabric.infiniband.settings import FabricSettings
from ibwire.fabric.infiniband.subnet import Port
from ibwire.fabric.infiniband.tap import tap
from ibwire.rc.attributes import AddressVector, QPType
from ibwire.rc.work import SGE, SendWR, WCStatus, WROpcode
from ibwire.scenario.infiniband import QKEY, FabricTraffic, Operation
from ibwire_layers import crc


def test_damaged_packets_are_counted_and_sent_again() -> None:
    traffic = fabric_of("star:hosts=2")
    a, b = hosts_of(traffic.subnet)
    errors = traffic.fabric.damage(a, 3e-6)
    transfer = traffic.add(a, b, 1 << 18, timeout=5)

    traffic.run(100 * MS)

    switch = port_at(a).counters
    assert errors.frames > 0
    assert switch.symbol_error_counter == errors.frames
    assert transfer.arrived
    assert transfer.qp.counters.retransmitted > 0


def test_a_packet_that_is_found_damaged_on_its_way_out_ends_with_ebp() -> None:
    """The switch counts a VCRC that is wrong, the adapter behind it a bad end; that has the
    inverted VCRC."""
    traffic = fabric_of("star:hosts=2")
    a, b = hosts_of(traffic.subnet)

    def damage(frame: bytes, now: int) -> tuple[tuple[int, bytes], ...]:
        if len(frame) == 4122 and not ended:
            ended.append(b"")
            return ((0, frame[:100] + bytes((frame[100] ^ 1,)) + frame[101:]),)
        return ((0, frame),)

    ended: list[bytes] = []
    frames: list[bytes] = []
    traffic.fabric.line(a).stage = damage
    traffic.fabric.link(port_at(a)).verifies = True
    tap(traffic.fabric, port_at(b), lambda frame, now: frames.append(frame), arriving=False)
    transfer = traffic.add(a, b, 50_000, timeout=5)

    traffic.run(100 * MS)

    bad = [frame for frame in frames if len(frame) > 6 and frame[-2:] != crc.vcrc(frame[:-2])]
    assert transfer.arrived
    assert port_at(a).counters.port_rcv_errors == 1
    assert b.counters.port_rcv_remote_physical_errors == len(bad) == 1
    assert bad[0][-2:] == bytes(byte ^ 0xFF for byte in crc.vcrc(bad[0][:-2]))
    assert b.counters.port_rcv_errors == 0


def test_a_link_fails_and_comes_back() -> None:
    traffic = fabric_of("star:hosts=2")
    a, b = hosts_of(traffic.subnet)
    switch = port_at(b).counters
    transfer = traffic.add(a, b, 1 << 18, timeout=5)
    traffic.simulator.run(5 * US)

    traffic.fabric.fail(b)
    traffic.simulator.run(50 * US)
    discarded = switch.port_xmit_discards
    traffic.fabric.restore(b)
    traffic.run(100 * MS)

    assert discarded > 0
    assert b.counters.link_downed_counter == switch.link_downed_counter == 1
    assert transfer.arrived
    assert max(buffer.held for link in traffic.fabric.links() for buffer in link.buffers) <= 65


def test_a_switch_enforces_partitions() -> None:
    """The port towards b has only partition 0x7001, in which a is not."""
    traffic = fabric_of("star:hosts=2")
    a, b = hosts_of(traffic.subnet)
    port = port_at(b)
    port.enforces_pkeys_outbound = 1
    port.pkeys[:] = bytes.fromhex("f001")
    traffic.fabric.read_tables()
    transfer = traffic.add(a, b, 1000, timeout=1, retry_cnt=1)

    traffic.run(100 * MS)

    assert transfer.status is WCStatus.RETRY_EXC_ERR
    assert port.counters.port_xmit_constraint_errors == 2
    assert b.counters.port_rcv_pkts == 0


def test_two_limited_members_do_not_reach_each_other() -> None:
    port = generate("star:hosts=2").nodes["sw0"].ports[1]
    port.pkeys[:] = bytes.fromhex("7001")

    assert [port.accepts_pkey(0x7001), port.accepts_pkey(0xF001)] == [False, True]


def test_a_packet_for_an_unknown_lid_is_a_relay_error() -> None:
    traffic = fabric_of("star:hosts=2")
    a, b = hosts_of(traffic.subnet)
    port_at(a).node.lft[b.lid] = 0xFF
    traffic.add(a, b, 1000, timeout=1, retry_cnt=1)

    traffic.run(100 * MS)

    assert port_at(a).counters.port_rcv_switch_relay_errors == 2
    assert reasons(port_at(a)) == {"port_dlid_mapping_errors": 2}


def test_a_packet_that_would_leave_where_it_came_or_on_no_lane_is_a_relay_error() -> None:
    traffic = fabric_of("star:hosts=3", lanes=2)
    a, b, c = hosts_of(traffic.subnet)
    port_at(a).node.lft[b.lid] = port_at(a).number
    port_at(c).sl2vl[port_at(a).number] = bytes.fromhex("0f") + bytes(7)  # SL 1 on VL15
    traffic.fabric.read_tables()
    traffic.add(a, b, 1000, timeout=1, retry_cnt=1)
    traffic.add(a, c, 1000, timeout=1, retry_cnt=2, sl=1)

    traffic.run(100 * MS)

    assert port_at(a).counters.port_rcv_switch_relay_errors == 5
    assert reasons(port_at(a)) == {"port_looping_errors": 2, "port_vl_mapping_errors": 3}


def reasons(port: Port) -> dict[str, int]:
    """Why packets were dropped at a port, by the names of PortRcvErrorDetails and
    PortXmitDiscardDetails."""
    counts = {name: getattr(port.counters, name) for name in (*RCV_ERRORS, *DISCARDS)}
    return {name: count for name, count in counts.items() if count}


def test_a_packet_larger_than_the_mtu_of_the_next_link_is_discarded() -> None:
    traffic = fabric_of("star:hosts=2")
    a, b = hosts_of(traffic.subnet)
    port_at(b).neighbor_mtu = 3  # 1024 bytes
    traffic.fabric.read_tables()
    traffic.add(a, b, 4096, mtu=4096, timeout=1, retry_cnt=0)

    traffic.run(100 * MS)

    assert port_at(b).counters.port_xmit_discards == 1
    assert reasons(port_at(b)) == {"port_neighbor_mtu_discards": 1}


def test_unreliable_services_arrive_too() -> None:
    traffic = fabric_of("ring:switches=3,hosts=1")
    a, b, c = hosts_of(traffic.subnet)
    uc = traffic.add(a, b, 10_000, qp_type=QPType.UC)
    ud = traffic.add(b, c, 2000, qp_type=QPType.UD, operation=Operation.SEND)

    traffic.run(1 * MS)
    traffic.simulator.run(traffic.simulator.now + 20 * US)

    assert uc.arrived
    assert ud.status is WCStatus.SUCCESS
    assert hosts_of(traffic.subnet)[2].counters.port_rcv_pkts == 1
    assert ud.peer.recv_cq is not None
    # The message comes after 40 bytes for a GRH.
    (completion,) = ud.peer.recv_cq.poll(1)
    assert (completion.status, completion.byte_len) == (WCStatus.SUCCESS, 2040)
    assert bytes(ud.received.buffer)[40:] == bytes(ud.sent.buffer)


def test_a_multicast_packet_reaches_each_member_once() -> None:
    """h0 sends to a group of h1 and h2, on a ring of three switches."""
    subnet = generate("ring:switches=3,hosts=1")
    bring_up(subnet)
    set_limits(subnet)
    hosts = hosts_of(subnet)
    group = Group(members=hosts[1:], senders=hosts[:1])
    for node, table in multicast_tables(subnet, {0xC005: group}).items():
        node.mft.update(table)
    traffic = FabricTraffic(subnet)
    transfers = [
        traffic.add(hosts[0], host, 200, message=100, qp_type=QPType.UD, operation=Operation.SEND)
        for host in hosts[1:]
    ]
    gid = 0xFF12 << 112 | 0xC005
    for transfer in transfers:
        device = traffic.devices[transfer.destination]
        device.multicast[gid] = [transfer.peer]
    traffic.run(1 * MS)
    before = [host.counters.port_multicast_rcv_pkts for host in hosts]
    sender, memory = transfers[0].qp, transfers[0].sent
    sender.post_send(
        SendWR(
            WROpcode.SEND,
            [SGE(memory.iova, 60, memory.lkey)],
            ah=AddressVector(dgid=gid, dlid=0xC005, is_global=True),
            remote_qpn=0xFFFFFF,
            remote_qkey=QKEY,
        )
    )
    traffic.simulator.run(traffic.simulator.now + 100 * US)

    assert before == [0, 0, 0]
    assert [host.counters.port_multicast_rcv_pkts for host in hosts] == [0, 1, 1]
    assert hosts[0].counters.port_multicast_xmit_pkts == 1
    for host in hosts[1:]:
        assert traffic.devices[host].counters["unknown_qp"] == 0
    assert_nothing_lost(traffic)


def test_an_incast_is_lossless() -> None:
    """Three hosts to one, through buffers of two packets: the sum is the rate of the link."""
    traffic = fabric_of("star:hosts=4", settings=FabricSettings(buffer=132))
    first, *others = hosts_of(traffic.subnet)
    transfers = [traffic.add(host, first, 1 << 17) for host in others]

    traffic.run(10 * MS)

    assert all(transfer.arrived for transfer in transfers)
    end = max(transfer.end or 0 for transfer in transfers)
    assert 3 * (1 << 20) / (end / 1000) > 95
    assert_nothing_lost(traffic)
