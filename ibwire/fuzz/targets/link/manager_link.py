"""The connection manager of a device on a real link, attacked through a listening program.

No agent takes part: the program that listens decides about requests, and the messages of the
manager are received here without a response. Every case acts as another CA, so that a case is
not affected by connections left from earlier ones. The program may also ask for connections
itself, when a request asks for that.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from itertools import islice
from typing import Any

from ibwire.base.errors import LinkError, PeerError
from ibwire.base.node import OPEN, Frame, Grant, Node
from ibwire.base.units import S, Time
from ibwire.cm import Endpoints
from ibwire.cm.messages import Message, Received, decode
from ibwire.cm.node import ca_guid
from ibwire.drill.targets.live import MANAGEMENT_QPN
from ibwire.fuzz.case import RunsAway
from ibwire.fuzz.targets.emulated_device import MAXIMUM_ANSWERS
from ibwire.fuzz.targets.emulated_manager import EXCHANGES
from ibwire.fuzz.targets.link.device_link import DeviceLink, damaged
from ibwire.fuzz.targets.link.frames import BTH, behind_ip, transport
from ibwire.fuzz.targets.link.listener import CALL, CALL_SIZE
from ibwire.fuzz.vocabulary.binding import Binding
from ibwire.programs.endpoint import Endpoint
from ibwire.rc.path import V4_MAPPED
from ibwire_layers import cm
from ibwire_layers import headers as h
from ibwire_layers.errors import DecodeError
from ibwire_layers.headers import IPCM
from ibwire_layers.mad import GSI_QKEY, MAD, MAD_SIZE
from ibwire_layers.outer import IPv4
from ibwire_layers.packet import CrcStatus, Packet, RoCEv2Route

CLIENT_PORT = 40_000
"""The port of the fuzzer as a client of the service, to which the listener connects back."""

IDENTITIES = (1 << 32) // EXCHANGES
"""Number of cases that have their own communication IDs."""

MAXIMUM_CALLERS = 4096
"""IDs and transactions that are kept, of connections that the device has asked for."""


@dataclass(frozen=True, slots=True)
class Identity:
    """The CA of a case."""

    own_id: int
    """Communication ID of exchange 0; the others count from here."""
    transaction: int
    guid: int


@dataclass(frozen=True, slots=True)
class ManagerAnswer:
    """A message of the device for a case."""

    frame: Frame
    """With the headers that all answers get."""
    received: Received | None
    """`None` if it is not a message of communication management."""


class ManagerTap:
    """A node, except that what a peer sends to QP1 is kept and not handed on."""

    def __init__(self, node: Node, peer: int) -> None:
        self.received: deque[Frame] = deque()
        self.leaving: deque[Frame] = deque()
        self._node = node
        self._peer = peer

    def receive(self, frame: Frame, now: Time, port: int = 0) -> None:
        """Handle a frame, or pass it on."""
        if not self._is_from_manager(frame):
            self._node.receive(frame, now, port)
        elif len(self.received) <= MAXIMUM_ANSWERS:
            self.received.append(frame)

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
        if not isinstance(route, RoCEv2Route):
            return False
        is_whole = len(transport(frame) or b"") >= MAD_START
        source = route.ip.src | (V4_MAPPED if isinstance(route.ip, IPv4) else 0)
        return is_whole and source == self._peer and packet.bth.dest_qp == MANAGEMENT_QPN


class ManagerLink(DeviceLink):
    """Where cases against the connection manager of a device on a link are carried out.

    service: the port to which a program listens there (RDMA-CM, port space TCP). options:
    those of `DeviceLink`.
    """

    def __init__(self, endpoint: Endpoint, peer: str, service: int, **options: Any) -> None:
        self.service = service
        super().__init__(endpoint, peer, **options)
        self.dead = ""
        """Why the manager is dead, if the last finding is about that."""
        self.obeys = False
        """Whether the listener does what the private data of a request wish for."""
        self.usual: Message | None = None
        """Its answer to a right request at the beginning."""
        self.calls = False
        """Whether the listener asks for connections itself on request."""
        self.answers_strangers = False
        """Whether it then answered a DREQ for a connection that does not exist."""
        self._parting = ExitStack()
        self._guid = ca_guid(endpoint.device.mac)
        random = endpoint.random
        self._first = self._next = random.randrange(IDENTITIES)
        self._run = random.getrandbits(32) << 32
        self._callers: dict[tuple[str, int], int] = {}
        """IDs and transactions of the device's own requests, and the CAs that they went to."""
        self.tap = endpoint.live.node = ManagerTap(endpoint.live.node, self._gid)
        self._leaving = self.tap.leaving

    def _learn(self, mac: bytes) -> None:
        super()._learn(mac)
        ends = Endpoints(self._own, CLIENT_PORT, self._gid, self.service)
        self.service_id = ends.service_id
        self.own_service_id = Endpoints(self._gid, self.service, self._own, CLIENT_PORT).service_id
        """The service that the device asks for when it connects back."""
        macs = self.macs[1], mac
        self.binding = Binding(self.address, self.peer, macs, ends.private_data())

    def find_again(self) -> None:
        """Resolve the device's MAC address after a restart; raises `LinkError` if none answers."""
        self._learn(self.host.mac())

    def part_by(self, leave: Callable[[], None]) -> None:
        """Let `leave` end the exchanges that the new comparison leaves open."""
        self._parting.callback(leave)

    def leave(self) -> None:
        """End the exchanges that the last comparison left open."""
        self._parting.close()

    def give_up(self) -> None:
        """Leave everything at a device that does not answer any more."""
        self._parting.pop_all()

    def close(self) -> None:
        """End the last comparison, if the device is there."""
        if self.dead or self.lost:
            self.give_up()
        with suppress(LinkError):
            self.leave()

    def begin(self) -> ManagerSession:
        """The manager as a new CA meets it."""
        self.tap.received.clear()
        return self.aside()

    def aside(self) -> ManagerSession:
        """The same for another CA while a comparison is under way."""
        number = self._next % IDENTITIES
        self._next += 1
        own_id = number * EXCHANGES
        identity = Identity(own_id, self._run | own_id, self._guid ^ number << 8)
        return ManagerSession(self, identity)

    def is_for(self, identity: Identity, message: Received) -> bool | None:
        """Whether a message is for this CA; `None` if it is for none that was used."""
        said = message.message
        if isinstance(said, cm.REQ | cm.SIDR_REQ):
            return self._is_call(identity, message)
        remote = getattr(said, "remote_comm_id", getattr(said, "request_id", None))
        numbers = [] if remote is None else [remote // EXCHANGES]
        known = _names(message)
        numbers += [self._callers[name] for name in known if name in self._callers]
        if message.transaction_id >> 32 == self._run >> 32:
            numbers.append((message.transaction_id & 0xFFFFFFFF) // EXCHANGES)
        if identity.own_id // EXCHANGES in numbers:
            return True
        spoken = (self._next - self._first) % IDENTITIES
        is_known = any((number - self._first) % IDENTITIES < spoken for number in numbers)
        return False if is_known else None

    def _is_call(self, identity: Identity, message: Received) -> bool:
        """Whether a request is one that this CA has made the device send.

        Others are its applications' own affair.
        """
        request = message.message
        called = called_by(request) if isinstance(request, cm.REQ) else None
        if called is None or called // EXCHANGES != identity.own_id // EXCHANGES:
            return False
        for name in _names(message):
            self._callers[name] = called // EXCHANGES
        while len(self._callers) > MAXIMUM_CALLERS:
            del self._callers[next(iter(self._callers))]
        return True


class ManagerSession:
    """The manager as one CA meets it."""

    def __init__(self, link: ManagerLink, identity: Identity) -> None:
        self.identity = identity
        self._link = link

    def send(self, frame: Frame) -> None:
        """Send it a frame."""
        self._link.send(frame)

    def receive(
        self,
        is_last: Callable[[ManagerAnswer], bool] = lambda answer: False,
        tolerance: Time | None = None,
    ) -> list[ManagerAnswer]:
        """What it sends within the tolerance, or until the last message has come."""
        link = self._link
        queue, live = link.tap.received, link.endpoint.live
        until = live.now + (link.tolerance if tolerance is None else tolerance)
        found: list[ManagerAnswer] = []
        while True:
            while queue:
                answer = self._understand(queue.popleft())
                if answer is not None:
                    found.append(answer)
            if len(found) > MAXIMUM_ANSWERS:
                raise RunsAway(FLOOD)
            left = until - live.now
            if left <= 0 or any(is_last(answer) for answer in found):
                return found
            link.endpoint.run(stop=lambda: bool(queue), seconds=left / S)

    def is_answered(self, tolerance: Time) -> bool:
        """Whether an answer comes within so much time; all messages are kept.

        Raises `PeerError` for a device that does not stop talking.
        """
        queue, live = self._link.tap.received, self._link.endpoint.live
        until, looked_at = live.now + tolerance, 0

        def has_come() -> bool:
            return len(queue) > looked_at

        while not any(self._is_mine(frame) for frame in islice(queue, looked_at, None)):
            left, looked_at = until - live.now, len(queue)
            if looked_at > MAXIMUM_ANSWERS:
                raise PeerError(FLOOD)
            if left <= 0:
                return False
            self._link.endpoint.run(stop=has_come, seconds=left / S)
        return True

    def _is_mine(self, frame: Frame) -> bool:
        answer = self._understand(frame)
        received = None if answer is None else answer.received
        return received is not None and bool(self._link.is_for(self.identity, received))

    def _understand(self, frame: Frame) -> ManagerAnswer | None:
        """A frame for this CA; `None` for one that is for an earlier CA."""
        whole = transport(frame)
        assert whole is not None  # the tap let nothing shorter through
        usual = self._link.path.frame(whole)
        if Packet.parse(frame, strict=False).icrc_status() is not CrcStatus.GOOD:
            return ManagerAnswer(damaged(usual), None)
        received = decode(whole[MAD_START:])
        if received is not None and self._link.is_for(self.identity, received) is False:
            return None
        return ManagerAnswer(usual, received)


def is_other_management(answer: ManagerAnswer) -> bool:
    """Whether a datagram is valid, but not a message of communication management.

    A MAD with another method may get a status as its response (IBA 13.4.7), which is not
    compared.
    """
    whole = answer.frame[BTH : -h.ICRC_SIZE]
    if answer.received is not None or len(whole) != MAD_START + MAD_SIZE:
        return False
    deth = h.DETH.unpack(whole, h.BTH.SIZE)
    common = MAD.unpack(whole, MAD_START)
    return deth.qkey == GSI_QKEY and bool(common.method & RESPONSE)


def call(own_id: int, wish: int) -> bytes:
    """Private data that make the listener ask for a connection, with an ID of ours."""
    return CALL + bytes([wish]) + own_id.to_bytes(CALL_SIZE - len(CALL) - 1)


def _names(message: Received) -> Sequence[tuple[str, int]]:
    """What identifies a message: the sender's ID and the transaction."""
    own_id = getattr(message.message, "local_comm_id", 0)
    return ("id", own_id), ("transaction", message.transaction_id)


def called_by(request: cm.REQ) -> int | None:
    """The ID of ours in a request of the device; `None` if it sent it by itself."""
    data = request.private_data[IPCM.SIZE :]
    return int.from_bytes(data[len(CALL) + 1 : CALL_SIZE]) if data.startswith(CALL) else None


def mad_of(frame: Frame) -> bytes:
    """The MAD in a frame of `Path`, without a tag."""
    return behind_ip(frame)[MAD_START:]


FLOOD = f"more than {MAXIMUM_ANSWERS} packets without a pause"

RESPONSE = 0x80
"""Bit of a method (IBA 13.4.5)."""


MAD_START = h.BTH.SIZE + h.DETH.SIZE
"""From the BTH on."""
