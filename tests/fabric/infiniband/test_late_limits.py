"""What a switch looks at no earlier than somebody needs it: limits that have come, and room that
has become free.

No time and no limit on a link may show that. Times at 4xEDR: 80 ps a byte; a flow-control packet
has 6 bytes, and every packet 2 more for its delimiters.
"""

from __future__ import annotations

from fabric.infiniband.test_laws import check
from fabric.infiniband.test_network import fabric_of, hosts_of, port_at
from ibwire.base.node import Frame
from ibwire.base.units import MS, NS, US, Time
from ibwire.fabric.infiniband import states
from ibwire.fabric.infiniband.credits import read_flow_control
from ibwire.fabric.infiniband.generated import generate
from ibwire.fabric.infiniband.multicast import Group, multicast_tables
from ibwire.fabric.infiniband.network import set_limits
from ibwire.fabric.infiniband.routing import bring_up
from ibwire.fabric.infiniband.settings import FabricSettings
from ibwire.fabric.infiniband.subnet import Port
from ibwire.fabric.infiniband.tap import tap
from ibwire.rc.attributes import AddressVector, QPType
from ibwire.rc.work import SGE, SendWR, WROpcode
from ibwire.scenario.infiniband import QKEY, FabricTraffic, Operation
from ibwire_layers.attributes import PortState

BYTE: Time = 80
SEND_ONLY = 8 + 12 + 8 + 4096 + 4 + 2
"""Bytes of a datagram of 4096 bytes from the LRH to the VCRC: BTH, DETH, ICRC."""
Frames = list[tuple[Time, Frame]]


def leaving(traffic: FabricTraffic, port: Port) -> Frames:
    """What leaves a port from now on, with times."""
    found: Frames = []
    tap(traffic.fabric, port, lambda frame, now: found.append((now, frame)), arriving=False)
    return found


def send(traffic: FabricTraffic, source: Port, destination: Port, count: int = 1) -> None:
    """Send datagrams of 4096 bytes, which nobody acknowledges."""
    traffic.add(
        source,
        destination,
        count * 4096,
        message=4096,
        operation=Operation.SEND,
        qp_type=QPType.UD,
    )


def data_of(frames: Frames) -> Frames:
    return [(now, frame) for now, frame in frames if len(frame) > 6]


def limits_of(frames: Frames) -> list[tuple[Time, int]]:
    """When each flow-control packet begins to leave, and its FCCL."""
    found = []
    for now, frame in frames:
        if len(frame) == 6:
            read = read_flow_control(frame)
            assert read is not None
            found.append((now, read[3]))
    return found


def test_a_limit_counts_that_was_on_its_way_before_anybody_waited_for_it() -> None:
    """On cables of 1 us the second datagram reaches the switch while the limit that the first one
    has freed is already under way: it leaves at the moment at which that arrives."""
    settings = FabricSettings(buffer=66, delay=1 * US, update_symbols=0)
    traffic = fabric_of("star:hosts=3", settings=settings)
    a, b, c = hosts_of(traffic.subnet)
    to_b, from_b = leaving(traffic, port_at(b)), leaving(traffic, b)
    traffic.simulator.run(5 * US)
    send(traffic, a, b)
    traffic.simulator.run(traffic.simulator.now + 1600 * NS)
    send(traffic, c, b)
    traffic.simulator.run(traffic.simulator.now + 10 * US)

    (first, _), (second, _) = data_of(to_b)
    freed = first + (SEND_ONLY + 2) * BYTE + 1 * US
    assert [now for now, _ in limits_of(from_b)][1] == freed
    assert second == freed + (6 + 2) * BYTE + 1 * US
    assert freed < first + 1600 * NS < second, "it has not waited when the limit left"


def test_a_limit_that_is_lost_on_the_way_does_not_count() -> None:
    """The link of a sender without credits loses its signal while the limit is on its cable of 1
    us. When the signal is back the limit is sent again, and the next packet leaves as it arrives.
    """
    settings = FabricSettings(buffer=66, delay=1 * US, update_symbols=0)
    traffic = fabric_of("star:hosts=2", settings=settings)
    a, b = hosts_of(traffic.subnet)
    from_a, to_a = leaving(traffic, a), leaving(traffic, port_at(a))
    traffic.simulator.run(5 * US)
    send(traffic, a, b, count=2)
    traffic.simulator.run(7_200 * NS)
    assert len(limits_of(to_a)) == 2, "it has left"
    assert len(data_of(from_a)) == 1

    traffic.fabric.interrupt(a, 5 * US)
    traffic.simulator.run(20 * US)

    back = 7_200 * NS + 5 * US
    assert limits_of(to_a)[2:3] == [(back, limits_of(to_a)[1][1])]
    assert data_of(from_a)[1][0] == back + (6 + 2) * BYTE + 1 * US


def test_the_last_of_two_packets_frees_room_for_a_limit() -> None:
    """Two ports send from one buffer, and only both together free as much as makes a limit. The
    first is to a slow link, so its end is the later one."""
    subnet = generate("star:hosts=3")
    _, b, _ = hosts_of(subnet)
    for port in (b, port_at(b)):
        port.width = 1  # 1x
    bring_up(subnet)
    set_limits(subnet)
    settings = FabricSettings(buffer=256, update_step=100, update_symbols=0)
    traffic = FabricTraffic(subnet, settings)
    a, b, c = hosts_of(subnet)
    to_b, to_a = leaving(traffic, port_at(b)), leaving(traffic, port_at(a))
    send(traffic, a, b)
    send(traffic, a, c)
    traffic.simulator.run(10 * US)

    ((begin, _),) = data_of(to_b)
    assert limits_of(to_a)[1:] == [(begin + (SEND_ONLY + 2) * 4 * BYTE, 256 + 2 * 65)]


def test_a_limit_that_is_sent_again_has_the_room_that_has_become_free() -> None:
    """One small packet makes no new limit. The one that is sent each 20.97152 us has its block."""
    traffic = fabric_of("star:hosts=2")
    a, b = hosts_of(traffic.subnet)
    to_a = leaving(traffic, port_at(a))
    traffic.add(a, b, 16, operation=Operation.SEND, qp_type=QPType.UD)
    traffic.simulator.run(30 * US)

    assert limits_of(to_a) == [(0, 256), (20_971_520, 257)]


def test_counts_that_come_after_a_packet_do_not_count_it_twice() -> None:
    """Data in both directions, in small packets: flow-control packets arrive after packets that
    the switch takes later still."""
    for size in (10, 16, 66, 132):
        check(
            generate("star:hosts=3"),
            [(source, 1 - source % 2, 10_000, Operation.WRITE, 0) for source in (0, 1, 2)],
            size,
            1,
            mtu=256,
        )


def test_the_last_copy_of_a_multicast_packet_frees_its_room() -> None:
    """It leaves by a slow port and a fast one."""
    subnet = generate("star:hosts=3")
    a, b, _ = hosts_of(subnet)
    for port in (b, port_at(b)):
        port.width = 1  # 1x
    bring_up(subnet)
    set_limits(subnet)
    group = Group(members=hosts_of(subnet)[1:], senders=[a])
    for node, table in multicast_tables(subnet, {0xC005: group}).items():
        node.mft.update(table)
    traffic = FabricTraffic(subnet, FabricSettings(update_symbols=0))
    to_b, to_a = leaving(traffic, port_at(b)), leaving(traffic, port_at(a))
    transfer = traffic.add(a, b, 4096, operation=Operation.SEND, qp_type=QPType.UD)
    traffic.simulator.run(10 * US)
    del to_b[:], to_a[:]

    transfer.qp.post_send(
        SendWR(
            WROpcode.SEND,
            [SGE(transfer.sent.iova, 4096, transfer.sent.lkey)],
            ah=AddressVector(dgid=0xFF12 << 112 | 0xC005, dlid=0xC005, is_global=True),
            remote_qpn=0xFFFFFF,
            remote_qkey=QKEY,
        )
    )
    traffic.simulator.run(20 * US)

    ((begin, frame),) = to_b
    assert limits_of(to_a) == [
        (begin + (len(frame) + 2) * 4 * BYTE, 256 + 65 + len(frame) // 64 + 1)
    ]


def test_packets_of_a_lane_that_is_no_more_still_leave() -> None:
    """Three of the four lanes of a port are taken away while packets wait on the last one."""
    traffic = fabric_of("star:hosts=3", lanes=4)
    a, b, c = hosts_of(traffic.subnet)
    for host in (a, b):
        traffic.add(host, c, 100_000, sl=3)
    traffic.simulator.run(3 * US)
    output = traffic.fabric.switches["sw0"].ports[port_at(c).number]
    before = output.lanes[3].count
    to_c = leaving(traffic, port_at(c))

    port_at(c).operational_vls = 1
    output.link.read_tables()
    traffic.simulator.run(4 * US)

    lanes = [frame[0] >> 4 for _, frame in data_of(to_c)]
    assert set(lanes) == {0, 3}, "those that come now are on lane 0"
    assert output.lanes[3].count == before - lanes.count(3)


def test_what_arrives_at_a_switch_is_recorded_when_it_does() -> None:
    """A packet of data with its LRH, 9 bytes with the delimiter, although the switch takes it when
    it may leave; a flow-control packet with all of its 8 bytes."""
    traffic = fabric_of("star:hosts=2")
    a, b = hosts_of(traffic.subnet)
    left = leaving(traffic, a)
    arrived: Frames = []
    here = traffic.fabric.link(port_at(a))
    own = leaving(traffic, port_at(a))
    tap(traffic.fabric, port_at(a), lambda frame, now: arrived.append((now, frame)))
    traffic.add(a, b, 50_000)
    traffic.add(b, a, 50_000)
    traffic.run(1 * MS)

    assert here.pipe == 130 * NS - 9 * BYTE
    assert len(data_of(left)) > 13
    there = sorted(
        (now + (9 if len(frame) > 6 else 8) * BYTE + 10 * NS, frame) for now, frame in left
    )
    departed = {(now, frame) for now, frame in own}
    assert sorted(each for each in arrived if each not in departed)[: len(there) - 2] == there[:-2]


def test_taps_do_not_change_what_is_on_the_links() -> None:
    """Whether packets that arrive are recorded or not, those that leave do so at the same times."""

    def run(*, arriving: bool) -> tuple[Frames, Time | None]:
        traffic = fabric_of("ring:switches=4,hosts=1", settings=FabricSettings(buffer=80))
        hosts = hosts_of(traffic.subnet)
        found = leaving(traffic, port_at(hosts[0]))
        if arriving:
            for ends in traffic.subnet.links():
                for port in ends:
                    tap(traffic.fabric, port, lambda frame, now: None)
        for source in hosts[1:]:
            transfer = traffic.add(source, hosts[0], 50_000)
        traffic.run(1 * MS)
        return found, transfer.end

    with_taps, without = run(arriving=True), run(arriving=False)
    assert with_taps == without
    assert len(without[0]) > 30


def test_states_are_those_of_the_attribute() -> None:
    for name in ("DOWN", "INIT", "ARMED", "ACTIVE", "ACTIVE_DEFER"):
        assert getattr(states, name) == PortState[name]
