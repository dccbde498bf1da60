"""Automatic path migration: reference/transport#migration."""

from __future__ import annotations

import errno
from typing import Any

import pytest

from ibwire.base.errors import VerbsError
from ibwire.base.node import Frame
from ibwire.base.units import GBPS, MS, US, Time
from ibwire.fabric.sim import Simulator
from ibwire.rc.attributes import AddressVector, EventType, MigState, QPAttr, QPAttrMask
from ibwire.rc.connect import ALL_ACCESS, connect
from ibwire.rc.device import Device, gid_of
from ibwire.rc.profile import RXE, SPEC, Profile
from ibwire.rc.work import SGE, SendWR, WCStatus, WROpcode
from ibwire.testing import Peer, create_queue_pair, events_of, statuses
from ibwire_layers.opcodes import OpCode
from ibwire_layers.packet import Packet

R = OpCode
S = WCStatus


# One queue pair whose peer is the test.

OWN, PEER = "10.0.0.2", "10.0.0.1"
ALTERNATE, PEER_ALTERNATE = "10.9.0.22", "10.9.0.1"


def ipv4(address: str) -> int:
    return gid_of(address) & 0xFFFFFFFF


def migrating(state: MigState = MigState.REARM, **given: Any) -> Peer:
    """With an alternate path, from REARM on."""
    lone = Peer(mtu=256, address=[OWN, ALTERNATE], **given)
    lone.qp.modify(
        QPAttr(
            alt_ah_attr=AddressVector(dgid=gid_of(PEER_ALTERNATE), sgid_index=1),
            path_mig_state=MigState.REARM,
        ),
        QPAttrMask.ALT_PATH | QPAttrMask.PATH_MIG_STATE,
    )
    lone.qp.sends.credits.limited = False
    if state is MigState.ARMED:
        lone.receive_packet(R.RC_RDMA_WRITE_ONLY, 99, mig_req=0)
    assert lone.qp.query().path_mig_state is state
    return lone


def destination(packet: Packet) -> int:
    return int(packet.route.ip.dst)


@pytest.mark.parametrize("state", [MigState.REARM, MigState.ARMED], ids=lambda s: s.name)
def test_the_bit_is_0_until_it_has_migrated(state: MigState) -> None:
    lone = migrating(state)

    (packet,) = lone.request(WROpcode.RDMA_WRITE, 8)

    assert packet.bth.mig_req == 0


def test_rearm_becomes_armed_by_a_packet_whose_bit_is_0() -> None:
    lone = migrating()
    lone.receive_packet(R.RC_RDMA_WRITE_ONLY, 100, mig_req=1)
    assert lone.qp.query().path_mig_state is MigState.REARM

    lone.receive_packet(R.RC_RDMA_WRITE_ONLY, 101, mig_req=0)

    assert lone.qp.query().path_mig_state is MigState.ARMED


def test_a_packet_over_the_alternate_path_migrates_an_armed_queue_pair() -> None:
    lone = migrating(MigState.ARMED)
    over: dict[str, Any] = {"ip.src": ipv4(PEER_ALTERNATE), "ip.dst": ipv4(ALTERNATE)}
    assert lone.receive_packet(R.RC_RDMA_WRITE_ONLY, 100, ack_req=1, mig_req=0, **over) == []

    (ack,) = lone.receive_packet(R.RC_RDMA_WRITE_ONLY, 100, ack_req=1, mig_req=1, **over)

    assert lone.poll_events() == [EventType.PATH_MIG]
    assert lone.qp.query().path_mig_state is MigState.MIGRATED
    assert destination(ack) == ipv4(PEER_ALTERNATE)
    assert ack.bth.mig_req == 1
    before: dict[str, Any] = {"ip.src": ipv4(PEER), "ip.dst": ipv4(OWN)}
    assert lone.receive_packet(R.RC_RDMA_WRITE_ONLY, 101, ack_req=1, **before) == []


def test_exhausted_retries_migrate_an_armed_queue_pair_and_reset_the_count() -> None:
    lone = migrating(MigState.ARMED, retry_cnt=1, timeout=1)
    lone.request(WROpcode.RDMA_WRITE, 8)

    heard = lone.wait(1 * MS)

    old, new = ipv4(PEER), ipv4(PEER_ALTERNATE)
    assert [destination(p) for p in heard] == [old, new, new]
    assert lone.poll_events() == [EventType.PATH_MIG]
    assert [status for _, status in statuses(lone.poll_send_cq())] == [WCStatus.RETRY_EXC_ERR]


def test_an_application_may_migrate_an_armed_queue_pair() -> None:
    lone = migrating(MigState.ARMED)

    lone.qp.modify(QPAttr(path_mig_state=MigState.MIGRATED), QPAttrMask.PATH_MIG_STATE)

    (packet,) = lone.request(WROpcode.RDMA_WRITE, 8)
    assert destination(packet) == ipv4(PEER_ALTERNATE)
    assert packet.bth.mig_req == 1
    assert lone.poll_events() == [EventType.PATH_MIG]


@pytest.mark.parametrize(
    ("before", "wanted"),
    [
        (MigState.REARM, MigState.MIGRATED),
        (MigState.REARM, MigState.ARMED),
        (MigState.ARMED, MigState.REARM),
        (MigState.ARMED, MigState.ARMED),
    ],
    ids=lambda s: s.name,
)
def test_migration_states_that_a_modify_cannot_set(before: MigState, wanted: MigState) -> None:
    lone = migrating(before)

    with pytest.raises(VerbsError):
        lone.qp.modify(QPAttr(path_mig_state=wanted), QPAttrMask.PATH_MIG_STATE)


def test_rearm_needs_an_alternate_path() -> None:
    with pytest.raises(VerbsError):
        Peer(mtu=256).qp.modify(QPAttr(path_mig_state=MigState.REARM), QPAttrMask.PATH_MIG_STATE)


@pytest.mark.parametrize("profile", [SPEC, RXE], ids=lambda p: p.name)
def test_closing_gives_everything_back(profile: Profile) -> None:
    lone = Peer(mtu=256, profile=profile)
    lone.post_recv(256)
    lone.request(WROpcode.RDMA_WRITE, 8)
    lone.qp.close()

    assert lone.receive_packet(R.RC_RDMA_WRITE_ONLY, 100, ack_req=1) == []
    assert lone.wait(1000 * MS) == []
    with pytest.raises(VerbsError):
        lone.qp.post_send(SendWR(WROpcode.SEND, [SGE(0, 0, 0)]))
    lone.mr.deregister()
    lone.pd.close()
    lone.send_cq.close()
    lone.recv_cq.close()


# Of two.


class Migrating:
    """Two ends with two addresses each: 10.0.0.x is the path, 10.0.1.x the alternate one."""

    def __init__(self, **attr: Any) -> None:
        self.sim = Simulator()
        self.devices = [
            Device("a", ["10.0.0.1", "10.0.1.1"]),
            Device("b", ["10.0.0.2", "10.0.1.2"]),
        ]
        self.regions = []
        self.qps = []
        for device in self.devices:
            pd = device.alloc_pd()
            self.regions.append(pd.register(4096, int(ALL_ACCESS)))
            self.qps.append(create_queue_pair(device, pd=pd))
        self.a, self.b = self.qps
        connect(self.a, self.b, timeout=8, retry_cnt=1, **attr)
        self.packets: list[Packet] = []
        self.broken = False
        """Whether nothing gets through on the first path."""
        self.sim.connect(
            *self.devices,
            rate_bps=100 * GBPS,
            delay=1 * US,
            a_to_b=self._stage,
            b_to_a=self._stage,
        )

    def _stage(self, frame: Frame, now: Time) -> list[tuple[Time, Frame]]:
        packet = Packet.parse(frame)
        self.packets.append(packet)
        return [] if self.broken and packet.route.ip.dst >> 8 == 0x0A0000 else [(0, frame)]

    def rearm(self) -> None:
        """Give both ends the alternate path."""
        for qp, peer in ((self.a, "10.0.1.2"), (self.b, "10.0.1.1")):
            attr = QPAttr(
                alt_ah_attr=AddressVector(dgid=gid_of(peer), sgid_index=1),
                path_mig_state=MigState.REARM,
            )
            qp.modify(attr, QPAttrMask.ALT_PATH | QPAttrMask.PATH_MIG_STATE)

    def write(self) -> tuple[list[tuple[str, int]], list[WCStatus]]:
        """WRITE from a to b; source address and MigReq of each packet, and how it ended."""
        self.packets.clear()
        here, there = self.regions
        sges = [SGE(here.iova, 8, here.lkey)]
        self.a.post_send(SendWR(WROpcode.RDMA_WRITE, sges, remote_addr=there.iova, rkey=there.rkey))
        self.sim.run()
        assert self.a.send_cq is not None
        seen = [
            (".".join(map(str, p.route.ip.src.to_bytes(4)[2:])), p.bth.mig_req)
            for p in self.packets
        ]
        return seen, [wc.status for wc in self.a.send_cq.poll(9)]

    @property
    def states(self) -> list[MigState]:
        return [qp.query().path_mig_state for qp in self.qps]

    @property
    def events(self) -> list[list[EventType]]:
        return [events_of(device) for device in self.devices]


def test_without_an_alternate_path_mig_req_is_1() -> None:
    pair = Migrating()

    assert pair.write() == ([("0.1", 1), ("0.2", 1)], [S.SUCCESS])
    assert pair.states == [MigState.MIGRATED] * 2


def test_both_ends_are_armed_when_each_has_seen_mig_req_0() -> None:
    pair = Migrating()
    pair.rearm()
    assert pair.states == [MigState.REARM] * 2

    assert pair.write() == ([("0.1", 0), ("0.2", 0)], [S.SUCCESS])
    assert pair.states == [MigState.ARMED] * 2
    assert pair.events == [[], []]


def test_end_stays_in_rearm_while_the_peer_has_no_alternate_path() -> None:
    pair = Migrating()
    attr = QPAttr(
        alt_ah_attr=AddressVector(dgid=gid_of("10.0.1.2"), sgid_index=1),
        path_mig_state=MigState.REARM,
    )
    pair.a.modify(attr, QPAttrMask.ALT_PATH | QPAttrMask.PATH_MIG_STATE)

    assert pair.write() == ([("0.1", 0), ("0.2", 1)], [S.SUCCESS])
    assert pair.states == [MigState.REARM, MigState.MIGRATED]


def test_asked_to_migrate_one_end_takes_the_other_along() -> None:
    pair = Migrating()
    pair.rearm()
    pair.write()
    pair.a.modify(QPAttr(path_mig_state=MigState.MIGRATED), QPAttrMask.PATH_MIG_STATE)

    assert pair.write() == ([("1.1", 1), ("1.2", 1)], [S.SUCCESS])
    assert pair.states == [MigState.MIGRATED] * 2
    assert pair.events == [[EventType.PATH_MIG], [EventType.PATH_MIG]]


def test_exhausted_retries_migrate_and_reset_the_count() -> None:
    """retry_cnt 1: twice on the first path, then on the other (reference/transport#retry-count)."""
    pair = Migrating()
    pair.rearm()
    pair.write()
    pair.broken = True

    assert pair.write() == ([("0.1", 0), ("0.1", 0), ("1.1", 1), ("1.2", 1)], [S.SUCCESS])
    assert pair.states == [MigState.MIGRATED] * 2
    assert pair.events == [[EventType.PATH_MIG], [EventType.PATH_MIG]]
    assert pair.write() == ([("1.1", 1), ("1.2", 1)], [S.SUCCESS])


def test_exhausted_retries_are_fatal_while_not_armed() -> None:
    pair = Migrating()
    pair.rearm()
    pair.broken = True

    assert pair.write() == ([("0.1", 0), ("0.1", 0)], [S.RETRY_EXC_ERR])


@pytest.mark.parametrize("wanted", [MigState.ARMED, 3])
def test_migration_state_that_cannot_be_asked_for_is_einval(wanted: int) -> None:
    pair = Migrating()
    pair.rearm()
    with pytest.raises(VerbsError) as caught:
        pair.a.modify(QPAttr(path_mig_state=wanted), QPAttrMask.PATH_MIG_STATE)

    assert caught.value.errno == errno.EINVAL
    assert pair.states == [MigState.REARM] * 2
