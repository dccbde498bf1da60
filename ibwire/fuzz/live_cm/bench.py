"""The connection manager of a device on a real link under attack, by what listens there.

No agent takes part: whoever listens to a service decides about requests as it likes, and
what the manager says is heard here and answered by nobody. Every case speaks as another
CA, so that nothing that is left of one is met by the next.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass

from ibwire.closing import Closing
from ibwire.cm import Endpoints
from ibwire.cm.messages import Message, Received, decode
from ibwire.cm.node import ca_guid
from ibwire.drill.live import ETHERNET_SIZE, MANAGEMENT_QPN, SLACK, SOURCE_PORT
from ibwire.errors import LinkError
from ibwire.fuzz.case import CaseError, RunsAway
from ibwire.fuzz.cm.binding import ManagerBinding
from ibwire.fuzz.cm.emulation import EXCHANGES
from ibwire.fuzz.emulation import MAXIMUM_ANSWERS
from ibwire.fuzz.live.bench import RATE
from ibwire.fuzz.live.liveness import host_fault, mac_of_host
from ibwire.fuzz.live.restart import Restart
from ibwire.fuzz.live.wire import BTH, Pacer, check_addressee, transport
from ibwire.node import OPEN, Frame, Grant, Node
from ibwire.programs.endpoint import Endpoint
from ibwire.rc.device import gid_of
from ibwire.rc.path import V4_MAPPED, Path, address_of, ethernet_route, is_v4
from ibwire.units import S, Time
from ibwire_layers import headers as h
from ibwire_layers.errors import DecodeError
from ibwire_layers.mad import GSI_QKEY, MAD, MAD_SIZE
from ibwire_layers.outer import IPv4
from ibwire_layers.packet import CrcStatus, Packet, RoCEv2Route

CLIENT_PORT = 40_000
"""Where a client of the service claims to be; nobody connects to it."""

IDENTITIES = (1 << 32) // EXCHANGES
"""Cases with communication IDs of their own."""


@dataclass(frozen=True, slots=True)
class Identity:
    """Who speaks in a case."""

    own_id: int
    """Communication ID of exchange 0; the others count from here."""
    transaction: int
    guid: int


@dataclass(frozen=True, slots=True)
class Heard:
    """A message of the device for a case."""

    frame: Frame
    """With the headers that all answers get."""
    received: Received | None
    """`None` for what is no message of communication management."""


class Ears:
    """A node, but what a peer sends to QP1 is heard and not handed on."""

    def __init__(self, node: Node, peer: int) -> None:
        self.heard: deque[Frame] = deque()
        self.leaving: deque[Frame] = deque()
        self._node = node
        self._peer = peer

    def receive(self, frame: Frame, now: Time, port: int = 0) -> None:
        """Hear a frame, or hand it on."""
        if not self._is_from_manager(frame):
            self._node.receive(frame, now, port)
        elif len(self.heard) <= MAXIMUM_ANSWERS:
            self.heard.append(frame)

    def poll_transmit(self, now: Time, port: int = 0, grant: Grant = OPEN) -> Frame | None:
        """What a case sends, then what the node does."""
        if self.leaving:
            return self.leaving.popleft()
        return self._node.poll_transmit(now, port, grant)

    def poll_timeout(self) -> Time | None:
        """That of the node."""
        return self._node.poll_timeout()

    def handle_timeout(self, now: Time) -> None:
        """The node's."""
        self._node.handle_timeout(now)

    def _is_from_manager(self, frame: Frame) -> bool:
        try:
            packet = Packet.parse(frame, strict=False)
        except DecodeError:
            return False
        route = packet.route
        if not isinstance(route, RoCEv2Route) or not isinstance(route.ip, IPv4):
            return False
        is_whole = len(transport(frame) or b"") >= MAD_START
        source = route.ip.src | V4_MAPPED
        return is_whole and source == self._peer and packet.bth.dest_qp == MANAGEMENT_QPN


class ManagerBench(Closing):
    """Where cases against the connection manager of a device on a link are carried out.

    peer: the IPv4 address of the device. service: the port to which a program listens there
    (RDMA-CM, port space TCP). tolerance: how late an answer may be. rate: packets a second at
    most. restart: brings a dead device back. Raises `LinkError` when there is no way to the peer.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        peer: str,
        service: int,
        *,
        tolerance: Time = SLACK,
        rate: int = RATE,
        restart: Restart | None = None,
    ) -> None:
        self.endpoint = endpoint
        self.peer = peer
        self.service = service
        self.tolerance = tolerance
        self.lost = ""
        """Why the device is given up; empty as long as it is there."""
        self.dead = ""
        """What the last finding is about, if it is a death: nobody is to die of it again."""
        self.obeys = False
        """Whether who listens there does what the private data of a request wishes for."""
        self.restart = restart
        self.usual: Message | None = None
        """What it said to a right request at the beginning."""
        self.answers_strangers = False
        """Whether it then confirmed the end of a connection that there was not."""
        self._pacer = Pacer(rate)
        self._parting = ExitStack()
        self._gid = gid_of(peer)
        if not is_v4(self._gid) or endpoint.device.vlan is not None:
            raise LinkError(endpoint.port.name, "a live device is fuzzed over IPv4 without a VLAN")
        device = endpoint.device
        self._own = device.gids[endpoint.gid_towards(self._gid)]
        self.address = address_of(self._own)
        self._learn(device.neighbours[self._gid])
        self._guid = ca_guid(device.mac)
        random = endpoint.random
        self._first = self._next = random.randrange(IDENTITIES)
        self._run = random.getrandbits(32) << 32
        self.ears = Ears(endpoint.live.node, self._gid)
        endpoint.live.node = self.ears

    def _learn(self, mac: bytes) -> None:
        """What depends on the MAC address of the device."""
        own_mac = self.endpoint.device.mac
        self.macs = mac, own_mac
        """Of the device and of ours."""
        ends = Endpoints(self._own, CLIENT_PORT, self._gid, self.service)
        self.service_id = ends.service_id
        self.binding = ManagerBinding(self.address, self.peer, (own_mac, mac), ends.private_data())
        self.path = Path(
            ethernet_route(
                source=self._gid,
                destination=self._own,
                source_mac=mac,
                destination_mac=own_mac,
                source_port=SOURCE_PORT,
            )
        )
        """The headers that all answers get, whatever a device puts there."""

    def find_again(self) -> None:
        """Ask who has the device's address, after a restart; raises `LinkError` if nobody has."""
        self._learn(mac_of_host(self.endpoint, self._gid, self.address))

    @property
    def largest(self) -> int:
        """Bytes of an IP packet that the interface carries."""
        return self.endpoint.port.mtu

    def host_answers(self) -> bool:
        """Whether the peer's host still says where it is."""
        return not host_fault(self.endpoint, self._gid, self.address)

    def part_by(self, leave: Callable[[], None]) -> None:
        """From now on `leave` ends what the duel that begins leaves behind."""
        self._parting.callback(leave)

    def leave(self) -> None:
        """End what the last duel has left behind."""
        self._parting.close()

    def give_up(self) -> None:
        """Leave what there is at a device that does not hear any more."""
        self._parting.pop_all()

    def close(self) -> None:
        """End the last duel as far as the device is there."""
        if self.dead or self.lost:
            self.give_up()
        with suppress(LinkError):
            self.leave()

    def begin(self) -> LiveManager:
        """The manager for somebody whom it has never heard of."""
        number = self._next % IDENTITIES
        self._next += 1
        own_id = number * EXCHANGES
        identity = Identity(own_id, self._run | own_id, self._guid ^ number << 8)
        self.ears.heard.clear()
        return LiveManager(self, identity)

    def is_late(self, message: Received, identity: Identity) -> bool:
        """Whether a message belongs to somebody who has spoken before."""
        remote = getattr(message.message, "remote_comm_id", None)
        numbers = [] if remote is None else [remote // EXCHANGES]
        if message.transaction_id >> 32 == self._run >> 32:
            numbers.append((message.transaction_id & 0xFFFFFFFF) // EXCHANGES)
        now = identity.own_id // EXCHANGES
        before = (self._next - 1 - self._first) % IDENTITIES
        return now not in numbers and any(
            (number - self._first) % IDENTITIES < before for number in numbers
        )

    def send(self, frame: Frame) -> None:
        """Send a frame to the device, not faster than it may be.

        Raises `CaseError` for one that is too long, or not from us to it.
        """
        endpoint, mtu = self.endpoint, self.endpoint.port.mtu
        if len(frame) > mtu + ETHERNET_SIZE:
            raise CaseError(f"{len(frame) - ETHERNET_SIZE} bytes: the interface's MTU is {mtu}")
        check_addressee(frame, mac=self.macs[0], own_mac=self.macs[1], address=self.peer)
        pause = self._pacer.pause(endpoint.live.now)
        self.ears.leaving.append(frame)
        endpoint.run(seconds=pause / S)


class LiveManager:
    """The manager as it meets somebody new."""

    def __init__(self, bench: ManagerBench, identity: Identity) -> None:
        self.identity = identity
        self._bench = bench

    def send(self, frame: Frame) -> None:
        """Send it a frame."""
        self._bench.send(frame)

    def hear(self, count: int | None, tolerance: Time | None = None) -> list[Heard]:
        """What it says within the tolerance; no longer than until so many messages have come."""
        bench = self._bench
        queue, live = bench.ears.heard, bench.endpoint.live
        until = live.now + (bench.tolerance if tolerance is None else tolerance)
        found: list[Heard] = []
        while True:
            while queue:
                heard = self._understand(queue.popleft())
                if heard is not None:
                    found.append(heard)
            if len(found) > MAXIMUM_ANSWERS:
                raise RunsAway(f"more than {MAXIMUM_ANSWERS} packets without a pause")
            left = until - live.now
            if left <= 0 or (count is not None and len(found) >= count):
                return found
            bench.endpoint.run(stop=lambda: bool(queue), seconds=left / S)

    def _understand(self, frame: Frame) -> Heard | None:
        """A frame that is for this case; who spoke before may still be answered."""
        whole = transport(frame)
        assert whole is not None  # the ears let nothing shorter through
        usual = self._bench.path.frame(whole)
        if Packet.parse(frame, strict=False).icrc_status() is not CrcStatus.GOOD:
            return Heard(usual[:-1] + bytes([usual[-1] ^ 0xFF]), None)
        received = decode(whole[MAD_START:])
        if received is not None and self._bench.is_late(received, self.identity):
            return None
        return Heard(usual, received)


def is_other_management(heard: Heard) -> bool:
    """Whether a datagram is in order, but no message of communication management.

    A MAD of another method may be answered with a status (IBA 13.4.7), which is nobody's
    affair here.
    """
    whole = heard.frame[BTH : -h.ICRC_SIZE]
    if heard.received is not None or len(whole) != MAD_START + MAD_SIZE:
        return False
    deth = h.DETH.unpack(whole, h.BTH.SIZE)
    common = MAD.unpack(whole, MAD_START)
    return deth.qkey == GSI_QKEY and bool(common.method & RESPONSE)


RESPONSE = 0x80
"""Bit of a method (IBA 13.4.5)."""

MAD_START = h.BTH.SIZE + h.DETH.SIZE
"""From the BTH on."""
