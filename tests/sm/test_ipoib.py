"""IP over InfiniBand: hosts join the broadcast group at the subnet manager, and send to it."""

from __future__ import annotations

from ibwire.base.units import MS
from ibwire.fabric.infiniband.network import set_limits
from ibwire.fabric.infiniband.subnet import Port
from ibwire.rc.attributes import AddressVector, QPCap, QPType
from ibwire.rc.connect import ALL_ACCESS, bring_up
from ibwire.rc.qp import QPInit, QueuePair
from ibwire.rc.work import SGE, RecvWR, SendWR, WROpcode
from ibwire.scenario.infiniband import FabricTraffic
from ibwire.sm.groups import BROADCAST
from ibwire_layers.headers import IPoIB
from ibwire_layers.outer import EtherType
from ibwire_layers.records import MCMemberRecord
from sm.managed import Managed
from sm.test_administration import MEMBER, SET, Client

GRH = 40
"""Bytes before a datagram in the memory of its receiver (IBA 11.4.1.2)."""


class Host:
    """A host's IPoIB interface: a UD queue pair with memory for one datagram."""

    def __init__(self, traffic: FabricTraffic, port: Port, group: MCMemberRecord) -> None:
        self.device = traffic.devices[port]
        domain = self.device.alloc_pd()
        self.memory = domain.register(bytearray(GRH + 256), int(ALL_ACCESS))
        queue = self.device.create_cq(8)
        init = QPInit(QPType.UD, domain, queue, queue, cap=QPCap(4, 4))
        self.qp: QueuePair = self.device.create_qp(init)
        self.address = AddressVector(dgid=group.mgid, dlid=group.mlid, is_global=True, sl=group.sl)
        bring_up(self.qp, self.address, dest_qp_num=0, path_mtu=group.mtu, qkey=group.qkey)
        self.qkey = group.qkey
        self.qp.post_recv(RecvWR([SGE(self.memory.iova, GRH + 256, self.memory.lkey)]))
        self.device.multicast[group.mgid] = [self.qp]

    def send(self, data: bytes) -> None:
        self.memory.buffer[: len(data)] = data
        sge = [SGE(self.memory.iova, len(data), self.memory.lkey)]
        self.qp.post_send(
            SendWR(WROpcode.SEND, sge, ah=self.address, remote_qpn=0xFFFFFF, remote_qkey=self.qkey)
        )

    @property
    def received(self) -> bytes:
        return bytes(self.memory.buffer[GRH:])


def test_an_arp_request_reaches_the_hosts_that_have_joined() -> None:
    """LIDs, tables, MLID and Q_Key are those that the subnet manager has given."""
    client = Client("ring:switches=4,hosts=1")
    fabric: Managed = client.fabric
    joined = fabric.adapters[:3]
    groups = []
    for port in joined:
        client.program = fabric.program(port)
        asked = MCMemberRecord(
            mgid=BROADCAST, port_gid=0xFE80 << 112 | port.guid, join_state=1, pkey=0xFFFF
        )
        status, data = client.ask(MEMBER, asked.pack(), mask=0x10083, method=SET)
        assert status == 0
        groups.append(MCMemberRecord.unpack(data))
    fabric.run(1)
    set_limits(fabric.subnet)
    traffic = FabricTraffic(fabric.subnet)
    hosts = [Host(traffic, port, group) for port, group in zip(joined, groups, strict=True)]
    # An ARP request of RFC 4391, 9.1: hardware type 32, addresses of 20 and 4 bytes.
    arp = bytes.fromhex("0020 0800 14 04 0001") + bytes(48)
    packet = IPoIB(ether_type=EtherType.ARP).pack() + arp

    hosts[0].send(packet)
    traffic.simulator.run(1 * MS)

    assert [host.received[: len(packet)] == packet for host in hosts] == [False, True, True]
    received = [port.counters.port_multicast_rcv_pkts for port in fabric.adapters]
    assert received == [0, 1, 1, 0]
