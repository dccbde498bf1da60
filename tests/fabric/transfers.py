"""Transfers between the hosts of a network, with real queue pairs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ibwire.base.units import MS, Time
from ibwire.fabric import Simulator
from ibwire.fabric.lossless import LosslessNetwork, SwitchSettings
from ibwire.fabric.topology import Topology
from ibwire.rc.attributes import AddressVector, QPType
from ibwire.rc.connect import ALL_ACCESS, bring_up
from ibwire.rc.cq import CompletionQueue
from ibwire.rc.device import Device
from ibwire.rc.memory import MemoryRegion
from ibwire.rc.profile import SPEC, Profile
from ibwire.rc.qp import QPInit, QueuePair
from ibwire.rc.work import SGE, SendWR, WCStatus, WROpcode

MTU = 1024
PRIORITY = 3


@dataclass
class Transfer:
    """A WRITE of random bytes from one host to another."""

    qp: QueuePair
    peer: QueuePair
    completions: CompletionQueue
    source: MemoryRegion
    target: MemoryRegion
    status: WCStatus | None = None
    end: Time = 0

    @property
    def arrived(self) -> bool:
        """Whether the memory of the target has the bytes of the source."""
        return bytes(self.source.buffer) == bytes(self.target.buffer)


class Transfers:
    """A network of devices; `add` and then `run`."""

    def __init__(
        self,
        topology: Topology,
        settings: SwitchSettings,
        *,
        seed: int = 1,
        profile: Profile = SPEC,
        rate_control: Callable[[], Any] | None = None,
        notification: Callable[[], Any] | None = None,
    ) -> None:
        self.simulator = Simulator(seed)
        self.devices = {
            host: Device(
                host,
                f"10.0.0.{number + 1}",
                profile=profile,
                rate_control=rate_control,
                notification=notification() if notification is not None else None,
            )
            for number, host in enumerate(topology.hosts)
        }
        devices: dict[str, Any] = {
            name: (device, device.mac) for name, device in self.devices.items()
        }
        self.network = LosslessNetwork(self.simulator, topology, devices, settings)
        self.transfers: list[Transfer] = []

    def add(self, source: str, target: str, packets: int, *, timeout: int = 10) -> Transfer:
        """Post a WRITE of so many packets."""
        data = self.simulator.random(f"{source}{target}").randbytes(packets * MTU)
        ends, regions = [], []
        for name, content in ((source, bytearray(data)), (target, bytearray(len(data)))):
            device = self.devices[name]
            pd = device.alloc_pd()
            regions.append(pd.register(content, int(ALL_ACCESS)))
            cq = device.create_cq(4)
            ends.append(device.create_qp(QPInit(QPType.RC, pd, cq, cq)))
        qp, peer = ends
        for one, other in ((qp, peer), (peer, qp)):
            address = AddressVector(
                dgid=other.device.gids[0], sl=PRIORITY, traffic_class=26 << 2 | 2
            )
            bring_up(one, address, dest_qp_num=other.number, path_mtu=3, timeout=timeout)
        local, remote = regions
        qp.post_send(
            SendWR(
                WROpcode.RDMA_WRITE,
                [SGE(local.iova, packets * MTU, local.lkey)],
                remote_addr=remote.iova,
                rkey=remote.rkey,
            )
        )
        assert qp.send_cq is not None
        transfer = Transfer(qp, peer, qp.send_cq, local, remote)
        self.transfers.append(transfer)
        return transfer

    def run(self, until: Time = 50 * MS) -> Time:
        """Run until everything has completed; when that was."""
        left = list(self.transfers)

        def ended() -> bool:
            for transfer in left[:]:
                for wc in transfer.completions.poll(4):
                    transfer.status, transfer.end = wc.status, self.simulator.now
                    left.remove(transfer)
            return not left

        self.simulator.run(until=until, stop=ended)
        assert not left, f"{len(left)} transfers have not ended"
        return max(transfer.end for transfer in self.transfers)

    @property
    def largest_queue(self) -> int:
        """Bytes of the longest queue of any switch."""
        return max(
            max(port.largest_queue)
            for switch in self.network.switches.values()
            for port in switch.counters
        )

    @property
    def retransmitted(self) -> int:
        """Packets that were sent again."""
        return sum(transfer.qp.counters.retransmitted for transfer in self.transfers)
