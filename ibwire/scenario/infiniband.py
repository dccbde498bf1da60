"""Transfers between the hosts of an InfiniBand fabric in virtual time.

`FabricTraffic` gives each adapter port of a subnet a device with the LID that the subnet manager
has given it, connects queue pairs, and runs until every transfer has ended, or none can go on.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from ibwire.base.errors import EncodeError
from ibwire.base.units import US, Time
from ibwire.fabric.infiniband.network import PacketFabric
from ibwire.fabric.infiniband.settings import FabricSettings
from ibwire.fabric.infiniband.subnet import Port, Subnet
from ibwire.fabric.infiniband.waiting import Wait, deadlock
from ibwire.fabric.sim import Outcome, Simulator
from ibwire.rc.attributes import MTU_CODES, AddressVector, QPCap, QPType
from ibwire.rc.connect import ALL_ACCESS, bring_up
from ibwire.rc.cq import CompletionChannel, CompletionQueue
from ibwire.rc.device import Device
from ibwire.rc.memory import MemoryRegion
from ibwire.rc.profile import SPEC, Profile
from ibwire.rc.qp import QPInit, QueuePair
from ibwire.rc.work import SGE, RecvWR, SendWR, WCStatus, WROpcode
from ibwire.sm.configuration import Settings
from ibwire.sm.control import start_manager
from ibwire.sm.manager import SubnetManager
from ibwire.sm.packets import PacketManagement

GRH_SIZE = 40
"""Bytes before a datagram in the memory of its receiver."""
QKEY = 0x11111111
"""Q_Key of the datagram queue pairs."""
LARGEST = 1 << 26
"""Bytes of a transfer."""
MOST_MESSAGES = 4096
"""Messages of a transfer: all of them are posted at its beginning."""
CHECK: Time = 20 * US
"""Between two looks for a deadlock."""


class Operation(StrEnum):
    """What a transfer does with each message."""

    WRITE = "write"
    READ = "read"
    SEND = "send"


_OPCODES = {
    Operation.WRITE: WROpcode.RDMA_WRITE,
    Operation.READ: WROpcode.RDMA_READ,
    Operation.SEND: WROpcode.SEND,
}


@dataclass(slots=True)
class Transfer:
    """A number of bytes between two ports, as messages of one size.

    The source posts the work requests. The bytes go to the destination; those of a READ go from
    there to the source.
    """

    source: Port
    destination: Port
    operation: Operation
    size: int
    message: int
    qp: QueuePair
    peer: QueuePair
    completions: CompletionQueue
    sent: MemoryRegion
    """The bytes of a message where they come from."""
    received: MemoryRegion
    left: int
    """Messages without completion."""
    status: WCStatus | None = None
    """The first that is not success, or success once all messages have ended."""
    begin: Time = 0
    end: Time | None = None

    @property
    def arrived(self) -> bool:
        """Whether the bytes that were received are those that were sent."""
        return bytes(self.sent.buffer) == bytes(self.received.buffer)[-self.message :]


class FabricTraffic:
    """Transfers over the fabric of a subnet, which has LIDs and tables.

    settings: of links and switches. seed: of the bytes that are sent. profile: of all devices.
    """

    def __init__(
        self,
        subnet: Subnet,
        settings: FabricSettings | None = None,
        *,
        seed: int = 0,
        profile: Profile = SPEC,
    ) -> None:
        self.subnet = subnet
        self.simulator = Simulator(seed)
        self.devices: dict[Port, Device] = {}
        for node in subnet.nodes.values():
            if not node.is_switch:
                for port in node.external_ports():
                    if port.lid:
                        self.devices[port] = _device(port, profile)
        self.fabric = PacketFabric(self.simulator, subnet, self.devices, settings)
        for key, adapter in self.fabric.adapters.items():
            if (device := self.devices.get(subnet.port(*key))) is not None:
                device.on_bad_key = adapter.bad_key
        self.management: PacketManagement | None = None
        """What carries MADs beside the data, once a subnet manager has been started."""
        self._profile = profile
        self.transfers: list[Transfer] = []
        self.deadlock: list[Wait] = []
        """The queues that wait for each other in a circle, the first time that some do."""
        self.has_stopped = False
        """Whether nothing moves any more: queues wait for ever, as the packets in them do not get
        too old, or packets may not leave and no timer runs."""
        self._channel = CompletionChannel()
        self._by_queue: dict[int, Transfer] = {}
        self._left = 0
        self._is_looking = False
        self._moved = (-1, 0)
        """Packets that all ports have sent and received, and since when so many."""
        self._longest_silence = CHECK + self._longest_quiet_link()

    def manage(self, port: Port, settings: Settings, limit: Time | None = None) -> SubnetManager:
        """Let a subnet manager on a port of an adapter bring the fabric up, and keep it up.

        Its SMPs go over the links on VL15. Runs until it is done, or up to a time, and gives each
        adapter port that then has a LID a device.
        """
        management = self.management = PacketManagement(self.fabric)
        manager = start_manager(management, port, settings)
        self.simulator.run(limit, stop=lambda: manager.is_up)
        for key, adapter in self.fabric.adapters.items():
            end = self.subnet.port(*key)
            if end.lid:
                device = adapter.device = self.devices[end] = _device(end, self._profile)
                device.on_bad_key = adapter.bad_key
        return manager

    def add(
        self,
        source: Port,
        destination: Port,
        size: int,
        *,
        message: int | None = None,
        operation: Operation = Operation.WRITE,
        qp_type: QPType = QPType.RC,
        mtu: int | None = None,
        sl: int = 0,
        timeout: int = 14,
        retry_cnt: int = 7,
    ) -> Transfer:
        """Post the messages of a transfer at its source, which with READ receives the bytes.

        message: bytes of each; `size` by default. mtu: of the path, bytes; by default the smaller
        NeighborMTU of both ports. timeout, retry_cnt: as in `QPAttr`. Raises `EncodeError` for
        what cannot be.
        """
        message = message_size(size, message)
        self._check(source, destination)
        count = size // message
        data = self.simulator.random(f"{len(self.transfers)}").randbytes(message)
        near, far = self.devices[source], self.devices[destination]
        if operation is Operation.READ:
            here, there = bytearray(message), bytearray(data)
        else:
            here, there = bytearray(data), bytearray(message)
        if qp_type is QPType.UD:
            there = bytearray(GRH_SIZE + message)
        mine, qp, queue = _end(near, here, qp_type, count, self._channel)
        theirs, peer, _ = _end(far, there, qp_type, count, None)
        code = MTU_CODES[mtu] if mtu else min(source.neighbor_mtu, destination.neighbor_mtu)
        for own, other in ((qp, peer), (peer, qp)):
            bring_up(
                own,
                _address(other.device, sl),
                dest_qp_num=other.number,
                path_mtu=code,
                timeout=timeout,
                retry_cnt=retry_cnt,
                qkey=QKEY,
            )
        sent, received = (theirs, mine) if operation is Operation.READ else (mine, theirs)
        transfer = Transfer(
            source, destination, operation, size, message, qp, peer, queue, sent, received, count
        )
        transfer.begin = self.simulator.now
        _post(transfer, mine, theirs, count, sl)
        queue.arm()
        self._by_queue[id(queue)] = transfer
        self.transfers.append(transfer)
        self._left += 1
        self.simulator.kick(self.fabric.adapters[source.node.name, source.number])
        return transfer

    def run(self, until: Time | None = None) -> Outcome:
        """Run until all transfers have ended, to a time, or until nothing moves any more.

        In a deadlock `deadlock` says which queues wait for each other. It does not end a run in
        which switches discard packets that are too old. The last packets of a transfer may still
        be on their way.
        """
        self.has_stopped = False
        self._moved = (-1, 0)
        if not self._is_looking:
            self._is_looking = True
            self.fabric.timetable.add(self.simulator.now + CHECK, self._look)
        events = self._channel.events
        if self._has_ended():
            return Outcome.STOPPED
        return self.simulator.run(until, stop=self._has_ended, stop_if=events)

    def waiting_ports(self) -> list[Port]:
        """The ports at which packets wait that may not leave now, adapters first."""
        fabric = self.fabric
        found = [
            adapter.link.port
            for adapter in fabric.adapters.values()
            if adapter.link.wait_since is not None
        ]
        for switch in fabric.switches.values():
            found += [
                switch.links[number].port
                for number, output in switch.ports.items()
                if output.waiting
            ]
        return found

    def _look(self) -> None:
        """Look whether the fabric stands still."""
        circle = deadlock(self.fabric)
        self.deadlock = self.deadlock or circle
        self.has_stopped = self._is_silent() or (
            bool(circle)
            and not any(
                self.fabric.switches[wait.queue.node].discards(wait.queue.port) for wait in circle
            )
        )
        self._is_looking = not self.has_stopped
        if self.has_stopped:  # which a run looks at when a queue has an event
            self._channel.events += [each.completions for each in self.transfers[:1]]
        else:
            self.fabric.timetable.add(self.simulator.now + CHECK, self._look)

    def _is_silent(self) -> bool:
        """Whether no packet has moved for long, and none will: no timer runs."""
        now = self.simulator.now
        packets = sum(
            link.counters.port_xmit_pkts + link.counters.port_rcv_pkts
            for link in self.fabric.links()
        )
        if packets != self._moved[0]:
            self._moved = (packets, now)
        if now - self._moved[1] < self._longest_silence:
            return False
        return (
            self.fabric.timetable.poll_timeout() is None
            and (self.management is None or self.management.is_idle)
            and all(device.poll_timeout() is None for device in self.devices.values())
            and not any(
                output.waiting and switch.discards(number)
                for switch in self.fabric.switches.values()
                for number, output in switch.ports.items()
            )
        )

    def _longest_quiet_link(self) -> Time:
        """After this time nothing is on its way, not even a limit that was damaged nine times."""
        settings = self.fabric.settings
        period = max((link.period for link in self.fabric.links()), default=0)
        return settings.delay + settings.latency + 10 * period

    def _has_ended(self) -> bool:
        events = self._channel.events
        while events:
            queue = events.popleft()
            self._complete(self._by_queue[id(queue)])
            queue.arm()
        return not self._left or self.has_stopped

    def _complete(self, transfer: Transfer) -> None:
        for completion in transfer.completions.poll(transfer.left):
            transfer.left -= 1
            if completion.status is not WCStatus.SUCCESS and transfer.status is None:
                transfer.status = completion.status
        if not transfer.left and transfer.end is None:
            transfer.status = transfer.status or WCStatus.SUCCESS
            transfer.end = self.simulator.now
            self._left -= 1

    def _check(self, source: Port, destination: Port) -> None:
        for name, port in (("source", source), ("destination", destination)):
            if port not in self.devices:
                shown = f"{port.node.name}[{port.number}]"
                raise EncodeError(name, shown, "a port of an adapter that has a LID")
        if (source.node.name, source.number) not in self.fabric.adapters:
            raise EncodeError("source", source.node.name, "a port with a link")


def message_size(size: int, message: int | None = None) -> int:
    """Bytes of each message of a transfer; raises `EncodeError` if it cannot have such messages."""
    message = size if message is None else message
    if message < 1 or size < 1 or size % message:
        raise EncodeError("message", message, f"a divisor of the size {size}")
    if size // message > MOST_MESSAGES:
        raise EncodeError(
            "message", message, f"{size / MOST_MESSAGES:.0f} bytes or more: at most "
            f"{MOST_MESSAGES} messages of a transfer",
        )  # fmt: skip
    return message


def _post(
    transfer: Transfer, mine: MemoryRegion, theirs: MemoryRegion, count: int, sl: int
) -> None:
    """Post all messages of a transfer, and what receives them."""
    message, qp, peer = transfer.message, transfer.qp, transfer.peer
    if transfer.operation is Operation.SEND:
        for _ in range(count):
            peer.post_recv(RecvWR([SGE(theirs.iova, theirs.length, theirs.lkey)]))
    where: dict[str, Any] = {"remote_addr": theirs.iova, "rkey": theirs.rkey}
    if qp.qp_type is QPType.UD:
        address = _address(peer.device, sl)
        where = {"ah": address, "remote_qpn": peer.number, "remote_qkey": QKEY}
    sge = [SGE(mine.iova, message, mine.lkey)]
    for number in range(count):
        qp.post_send(SendWR(_OPCODES[transfer.operation], sge, wr_id=number, **where))


def _device(port: Port, profile: Profile) -> Device:
    address = (0xFE80 << 112 | port.guid).to_bytes(16)
    text = ":".join(address[at : at + 2].hex() for at in range(0, 16, 2))
    device = Device(
        f"{port.node.name}[{port.number}]", text, link="ib", lid=port.lid, profile=profile
    )
    device.pkeys = [port.pkey_at(index) for index in range(len(port.pkeys) // 2)]
    return device


def _end(
    device: Device,
    memory: bytearray,
    qp_type: QPType,
    messages: int,
    channel: CompletionChannel | None,
) -> tuple[MemoryRegion, QueuePair, CompletionQueue]:
    domain = device.alloc_pd()
    region = domain.register(memory, int(ALL_ACCESS))
    queue = device.create_cq(2 * messages + 1, channel)
    init = QPInit(qp_type, domain, queue, queue, cap=QPCap(messages, messages))
    return region, device.create_qp(init), queue


def _address(device: Device, sl: int) -> AddressVector:
    return AddressVector(dgid=device.gids[0], dlid=device.lid, is_global=False, sl=sl)
