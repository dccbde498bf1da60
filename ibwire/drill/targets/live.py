"""A device on a real link as the target of a script: ibwire sends and records packets, and
keeps no transport state.

Packets of the device for the connection of the script are recorded and get no response. An
`Endpoint` handles everything else: ARP, neighbour discovery, and connection management unless
the script is about it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace

from ibwire.base.errors import DecodeError, LinkError, PeerError, ScriptError, VerbsError
from ibwire.base.node import OPEN, Frame, Grant, Node
from ibwire.base.units import MS, US, S, Time, ack_timeout
from ibwire.cm.node import ca_guid
from ibwire.drill.application import Application
from ibwire.drill.language.expressions import Expression, Scope
from ibwire.drill.language.impairments import Impaired
from ibwire.drill.language.literals import Literal
from ibwire.drill.language.steps import (
    Case,
    Impair,
    Inject,
    Script,
    Step,
    Verb,
    is_about_management,
)
from ibwire.drill.packets import Wire, build
from ibwire.drill.runner import asked_for, carry_out
from ibwire.drill.targets.emulated import DEFAULTS, MAXIMUM_FRAMES
from ibwire.drill.targets.manager import Exchange, ids_of, message_in, offered
from ibwire.drill.targets.restart import Restart, bring_back, reach_at_start
from ibwire.drill.targets.target import Damage, TooBusy, Unable
from ibwire.drill.targets.ways import Connected, Way
from ibwire.drill.verdict import Verdict
from ibwire.peer import create_queue_pair
from ibwire.programs.endpoint import Endpoint
from ibwire.rc.device import gid_of
from ibwire.rc.path import V4_MAPPED, ethernet_route
from ibwire_layers import headers as h
from ibwire_layers.outer import EtherType, IPProto, IPv4
from ibwire_layers.packet import Packet, RoCEv2Route

SLACK: Time = 20 * MS
"""How late a device may be: a round trip between two busy machines."""

LIMIT: Time = 10 * S
"""The longest case that is run."""

STEP: Time = 2 * MS
"""Time between two polls of a device's application."""

MANAGEMENT_QPN = 1

ETHERNET_SIZE = 14

SOURCE_PORT = 0xC000
"""The lowest that rdma-core gives to a flow (`ibv_flow_label_to_udp_sport`)."""


class Line:
    """The device as a node: frames for it go into `leaving`, frames of it come from `arrived`."""

    def __init__(self) -> None:
        self.mac: bytes | None = None
        """MAC address of the device, when nothing may be sent to another."""
        self.arrived: deque[Frame] = deque()
        self.leaving: deque[Frame] = deque()

    def receive(self, frame: Frame, now: Time, port: int = 0) -> None:
        """Send a frame; raises `Unable` for one to another MAC address."""
        if self.mac is not None and not frame.startswith(self.mac):
            raise Unable(f"needs a frame to {frame[:6].hex(':')}: only the peer is sent to")
        self.leaving.append(frame)

    def poll_transmit(self, now: Time, port: int = 0, grant: Grant = OPEN) -> Frame | None:
        """The next frame that has arrived."""
        return self.arrived.popleft() if self.arrived else None

    def poll_timeout(self) -> Time | None:
        """`None`: the device has its own clock."""
        return None

    def handle_timeout(self, now: Time) -> None:
        """Do nothing: no timeout is ever due."""


class Diverted:
    """A node whose packets to queue pairs of one peer are diverted to a script.

    The node still receives packets to QP1 while no script is about connection management,
    packets of other senders, and packets of connections of former cases.
    """

    def __init__(self, node: Node, mac: bytes, peer: int) -> None:
        self.node = node
        self.mac = mac
        """Our MAC address; frames to another one are not diverted."""
        self.outbound: deque[tuple[Time, Frame]] = deque()
        self.line = Line()
        self.way = Impaired(self.line)
        """To the peer and back, through the impairment rules."""
        self.leaving = self.line.leaving
        self.former: set[int] = set()
        """Our QPNs of former connections."""
        self.former_ids: set[int] = set()
        """Communication IDs of former exchanges."""
        self.is_managed = False
        """Whether messages of connection management are diverted too."""
        self.is_flooded = False
        self._peer = peer

    def forget(self, qpn: int, ids: Iterable[int] = ()) -> None:
        """End the connection with this QPN of ours, and its rules."""
        self.former.add(qpn)
        self.former_ids.update(ids)
        self.is_managed = False
        for frames in (self.outbound, self.line.arrived, self.leaving):
            frames.clear()
        self.way = Impaired(self.line)
        self.is_flooded = False

    def receive(self, frame: Frame, now: Time, port: int = 0) -> None:
        """Divert a frame, or pass it to the node."""
        if self._is_for_script(frame):
            self.line.arrived.append(frame)
            self._collect(now)
        else:
            self.node.receive(frame, now, port)

    def poll_transmit(self, now: Time, port: int = 0, grant: Grant = OPEN) -> Frame | None:
        """Frames of the script first, then those of the node."""
        if self.leaving:
            return self.leaving.popleft()
        return self.node.poll_transmit(now, port, grant)

    def poll_timeout(self) -> Time | None:
        """The next timeout of the node or of a delayed frame."""
        due = (self.node.poll_timeout(), self.way.poll_timeout())
        return min((time for time in due if time is not None), default=None)

    def handle_timeout(self, now: Time) -> None:
        """Handle the timeouts of the node and of delayed frames."""
        self.way.handle_timeout(now)
        self._collect(now)
        self.node.handle_timeout(now)

    def _collect(self, now: Time) -> None:
        while (frame := self.way.poll_transmit(now)) is not None:
            if len(self.outbound) < MAXIMUM_FRAMES:
                self.outbound.append((now, frame))
            else:
                self.is_flooded = True

    def _is_for_script(self, frame: Frame) -> bool:
        if frame[:6] != self.mac:
            return False
        try:
            packet = Packet.parse(frame, strict=False)
        except DecodeError:
            return _is_datagram(frame, self._peer)
        route = packet.route
        if not isinstance(route, RoCEv2Route):
            return False
        source = route.ip.src | (V4_MAPPED if isinstance(route.ip, IPv4) else 0)
        qpn = packet.bth.dest_qp
        if source != self._peer:
            return False
        return self._is_managed_here(frame) if qpn == MANAGEMENT_QPN else qpn not in self.former

    def _is_managed_here(self, frame: Frame) -> bool:
        if not self.is_managed:
            return False
        found = message_in(frame)
        return found is None or not ids_of(found.message) & self.former_ids


def _is_datagram(frame: Frame, source: int) -> bool:
    """Whether a frame is a UDP packet of an address, perhaps damaged; ports deliver only RoCEv2."""
    at = 12
    while frame[at : at + 2] == _VLAN:
        at += 4
    kind, ip = frame[at : at + 2], frame[at + 2 :]
    address = source.to_bytes(16)
    if kind == _IPV4:
        return ip[9:10] == _UDP and ip[12:16] == address[12:]
    return kind == _IPV6 and ip[6:7] == _UDP and ip[8:24] == address


class LiveDevice:
    """A device with one connection, as a target whose time is that of the clock."""

    is_recorded = False

    def __init__(
        self,
        endpoint: Endpoint,
        diverted: Diverted,
        connected: Connected,
        wire: Wire,
        exchange: Exchange | None,
        *,
        slack: Time,
        end: Time,
    ) -> None:
        self.slack = slack
        self.end = end
        self.wire = wire
        self.wires: Mapping[str, Wire] = {}
        self.now: Time = 0
        self.outbound: deque[tuple[Time, Frame]] = deque()
        self._endpoint = endpoint
        self._diverted = diverted
        self._connected = connected
        self._exchange = exchange
        self._begin = endpoint.live.now
        self._frames = 0
        self._is_under_way = False
        """Whether a packet was sent after the last one of the device."""

    def manager_owner(self, frame: Frame) -> str:
        """The first queue pair: there is one."""
        return ""

    @property
    def symbols(self) -> dict[str, int]:
        """Values of the symbols of a script."""
        wire, verbs = self.wire, self._connected.verbs
        return {
            "rq_psn": wire.rq_psn,
            "sq_psn": wire.sq_psn,
            "qpn": wire.qpn,
            "peer_qpn": wire.peer_qpn,
            "mtu": wire.mtu,
            "pkey": wire.pkey,
            **({} if self._exchange is None else self._exchange.symbols),
            **(self._connected.memory if verbs is None else verbs.symbols),
        }

    def inject(
        self, literal: Literal, scope: Scope, owner: str = ""
    ) -> tuple[Time, Frame, list[str]]:
        """Send a packet, at the next `settle`."""
        for place, (token, _) in literal.fields.items():
            if place.part == "eth":
                raise Unable(f"needs {token.text}: only the peer is sent to")
        has_key = h.RETH in literal.headers or h.AtomicETH in literal.headers
        if has_key and "rkey" not in self.symbols:
            raise Unable("needs memory of the device, whose address and R_Key are not known")
        frame = build(literal, self.wire, scope)
        mtu = self._endpoint.port.mtu
        if len(frame) > mtu + ETHERNET_SIZE:
            raise Unable(f"needs an MTU of {len(frame) - ETHERNET_SIZE}: the interface has {mtu}")
        self._note(frame, from_device=False)
        self._diverted.way.receive(frame, self._endpoint.live.now)
        self._is_under_way = True
        return self.now, frame, []

    def settle(self) -> None:
        """Send the injected packets, and read those of the device."""
        self._endpoint.run(seconds=0)
        self._collect()

    def deliver(self) -> None:
        """Let the injected packets arrive before the agent gets a command over TCP."""
        self.settle()
        if self._is_under_way:
            before = len(self.outbound)
            until = self.now + _round_trip(self.slack)
            self.advance(until, lambda: len(self.outbound) > before)
            self._is_under_way = False

    def advance(self, until: Time, stop: Callable[[], bool]) -> None:
        """Let time pass."""
        self.settle()
        while not stop() and self.now < until:
            span = min(until - self.now, STEP)
            self._endpoint.run(stop=self._has_come, seconds=span / S)
            self._collect()

    def impair(self, step: Impair, scope: Scope) -> None:
        """Begin a rule, or end all rules."""
        self._diverted.way.impair(step, scope, self._endpoint.live.now)

    def poll_damage(self) -> Damage | None:
        """The next frame that a rule has acted on."""
        damage = self._diverted.way.damage
        if not damage:
            return None
        found = damage.popleft()
        return replace(found, time=found.time - self._begin)

    def _note(self, frame: Frame, *, from_device: bool) -> None:
        """Take over the identifiers of a message of connection management."""
        if self._exchange is not None:
            message = self._exchange.note(frame, from_device=from_device)
            self.wire = offered(self.wire, message, from_device=from_device)
            if message is not None and not from_device:
                self._diverted.former_ids -= ids_of(message)

    def _has_come(self) -> bool:
        return bool(self._diverted.outbound)

    def _collect(self) -> None:
        diverted = self._diverted
        self.now = self._endpoint.live.now - self._begin
        while diverted.outbound:
            time, frame = diverted.outbound.popleft()
            self._frames += 1
            self._note(frame, from_device=True)
            self.outbound.append((time - self._begin, frame))
            self._is_under_way = False
        if diverted.is_flooded or self._frames > MAXIMUM_FRAMES:
            raise TooBusy(f"more than {MAXIMUM_FRAMES} packets")


class Bench:
    """Runs scripts against a device on a link.

    peer: the IP address of the device. slack: how late it may be. limit: time of a case; a
    longer one is skipped. restart: restarts a device that is dead; then the case that could
    not be connected is tried once more.
    Raises `LinkError` when the peer cannot be reached.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        peer: str,
        way: Way,
        *,
        slack: Time = SLACK,
        limit: Time = LIMIT,
        restart: Restart | None = None,
    ) -> None:
        self.lost = ""
        """Why the device is given up; empty while it responds."""
        self.deaths = 0
        """How often the device died after a case and was restarted."""
        self._last = ""
        """The last case that was run."""
        self._has_begun = False
        """Whether the case under way was connected."""
        self._endpoint = endpoint
        self._peer = gid_of(peer)
        self._way = way
        self._slack = slack
        self._limit = limit
        self._restart = restart
        self._gid = endpoint.device.gids[reach_at_start(restart, endpoint, self._peer)]
        self._diverted = Diverted(endpoint.live.node, endpoint.device.mac, self._peer)
        endpoint.live.node = self._diverted

    def run(self, script: Script, case: Case, profile: str) -> Verdict:
        """Run a case on a new connection, or skip it where the device lacks something.

        `lost` is set when the device does not respond any more. Raises `ScriptError` for a number
        that does not fit its field, and `Interrupted`.
        """
        verdict = Verdict(script.path, case.name, script.rule, script.section, profile)
        if self.lost:
            return self._not_run(verdict)
        try:
            try:
                self._attempt(script, case, verdict)
            except (LinkError, PeerError) as error:
                self._revive(error)
                if not self._has_begun:
                    self._attempt(script, case, verdict)
                elif verdict.failure is None:
                    verdict.skipped = f"the device died: {error}"
        except (LinkError, PeerError) as error:
            self.lost = self._with_last(error)
            if verdict.failure is None:
                self._not_run(verdict)
        return verdict

    def _attempt(self, script: Script, case: Case, verdict: Verdict) -> None:
        self._has_begun = False
        try:
            self._carry_out(script, case, verdict)
        except (Unable, VerbsError) as unable:
            verdict.skipped = str(unable)

    def _revive(self, error: LinkError | PeerError) -> None:
        """Restart the device; raises the error if nothing can, `PeerError` if it is not back."""
        if self._restart is None:
            raise error
        endpoint = self._endpoint
        endpoint.tell(f"the device is dead: {self._with_last(error)}; {self._restart}")
        bring_back(self._restart, endpoint, self._reach)
        self.deaths += bool(self._last)

    def _reach(self) -> None:
        """Make a connection and end it; raises `LinkError` or `PeerError` if there can be none."""
        device = self._endpoint.device
        qp = create_queue_pair(device, cq=device.create_cq(1))
        try:
            # A device without such a connection is there all the same.
            with suppress(Unable, VerbsError), self._way.connect(self._endpoint, qp, {}):
                pass
            # After that the kernel has the MAC address that the device has now.
            self._endpoint.gid_towards(self._peer)
        finally:
            self._diverted.forget(qp.number)
            qp.close()

    def _with_last(self, error: LinkError | PeerError) -> str:
        return f"{error}; the last case was {self._last}" if self._last else str(error)

    def _not_run(self, verdict: Verdict) -> Verdict:
        verdict.skipped = f"not run: {self.lost}"
        verdict.is_lost = True
        return verdict

    def _carry_out(self, script: Script, case: Case, verdict: Verdict) -> None:
        endpoint, diverted = self._endpoint, self._diverted
        if script.virtual:
            raise Unable(f"needs virtual time: {script.virtual}")
        scope = Scope(script.path, {})
        steps = list(case.steps)
        _, given = asked_for(steps, scope)
        needed = time_of(steps, scope)
        if needed > self._limit:
            raise Unable(f"takes {needed / S:g} s, and the limit is {self._limit / S:g} s")
        _check_timeout(steps, given, self._slack)
        if not self._way.has_verbs:
            _check_verbs(steps)
        exchange = self._exchange(given) if is_about_management(steps) else None
        device = endpoint.device
        # It only reserves the QPN: its packets are diverted.
        qp = create_queue_pair(device, cq=device.create_cq(1))
        own_qpn = qp.number
        try:
            with self._way.connect(endpoint, qp, given) as connected:
                application = None
                own_qpn = qp.number if connected.peer_qpn is None else connected.peer_qpn
                diverted.former.discard(own_qpn)
                wire = self._wire(own_qpn, connected)
                diverted.line.mac = device.neighbours[self._peer]
                diverted.is_managed = exchange is not None
                target = LiveDevice(
                    endpoint,
                    diverted,
                    connected,
                    wire,
                    exchange,
                    slack=self._slack,
                    end=needed + self._limit,
                )
                if connected.verbs is not None:
                    application = Application(connected.verbs, scope, connected.verbs.manager)
                self._last, self._has_begun = verdict.name, True
                carry_out(script, steps, target, verdict, application, scope)
        finally:
            diverted.forget(own_qpn, () if exchange is None else exchange.ids)
            qp.close()

    def _exchange(self, given: Mapping[str, int]) -> Exchange:
        """The first exchange of a case, with random identifiers, new to the device.

        Raises `Unable` for a number that the device's connection manager draws.
        """
        if "rq_psn" in given:
            raise Unable("needs rq_psn: the device's connection manager draws its first PSN")
        endpoint = self._endpoint
        return Exchange(
            gid=self._peer,
            peer_gid=self._gid,
            guid=0,
            peer_guid=ca_guid(endpoint.device.mac),
            peer_cm_id=endpoint.random.randrange(1, 1 << 32),
            transaction=endpoint.random.getrandbits(63),
        )

    def _wire(self, own_qpn: int, connected: Connected) -> Wire:
        device = self._endpoint.device
        route = ethernet_route(
            source=self._gid,
            destination=self._peer,
            source_mac=device.mac,
            destination_mac=device.neighbours[self._peer],
            source_port=SOURCE_PORT,
            vlan=device.vlan,
        )
        memory = connected.memory
        return Wire(
            route,
            qpn=connected.qpn,
            peer_qpn=own_qpn,
            pkey=connected.pkey,
            mtu=connected.mtu,
            rq_psn=connected.rq_psn,
            sq_psn=connected.sq_psn,
            va=memory.get("va", 0),
            rkey=memory.get("rkey", 0),
        )


def time_of(steps: Sequence[Step], scope: Scope) -> Time:
    """The sum of the longest times of a case; a range without an end counts only its start."""
    return sum(_time(step, scope) for step in steps)


def _time(step: Step, scope: Scope) -> Time:
    when = step.when
    if when.is_range and when.high is None:
        return _value(when.low, scope)
    return _value(when.high if when.is_range else when.low, scope)


def _value(expression: Expression | None, scope: Scope) -> Time:
    try:
        return 0 if expression is None else expression.evaluate(scope)
    except ScriptError:
        return 0  # it depends on packets of the device


def _check_timeout(steps: Sequence[Step], given: Mapping[str, int], slack: Time) -> None:
    """Raise `Unable` when the device gives up before our responses can arrive."""
    timeout = ack_timeout(given.get("timeout", 0))
    tries = given.get("retry_cnt", DEFAULTS["retry_cnt"]) + 1
    round_trip = _round_trip(slack)
    is_answered = any(isinstance(step, Inject) for step in steps)
    if timeout is not None and is_answered and tries * timeout < round_trip:
        reason = f"needs an answer within {tries * timeout / US:g} us"
        raise Unable(f"{reason}: on a link it may take {round_trip / MS:g} ms")


def _round_trip(slack: Time) -> Time:
    """Time of a packet and its response, with a device that is not busy."""
    return slack // 4


_VLAN, _IPV4, _IPV6 = (
    kind.to_bytes(2) for kind in (EtherType.VLAN, EtherType.IPV4, EtherType.IPV6)
)
_UDP = bytes([IPProto.UDP])


def _check_verbs(steps: Sequence[Step]) -> None:
    """Raise `Unable` for the first verb: no agent runs beside the device.

    Also for messages of connection management: the device's program makes the connection.
    """
    if is_about_management(steps):
        raise Unable("needs an agent: the device's program does its own connection management")
    for step in steps:
        if isinstance(step, Verb):
            raise Unable(f"needs {step.token.text} at the device: there is no agent")
