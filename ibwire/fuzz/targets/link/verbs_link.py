"""Queue pairs of a device on a link: each case has a new connection, made by an agent.

What comes from the device for that connection is only recorded. The agent on its host is the
application of the device.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

from ibwire.base.errors import DecodeError, LinkError, PeerError, VerbsError
from ibwire.base.node import Frame
from ibwire.base.units import S, Time
from ibwire.drill.targets.live import Diverted
from ibwire.drill.targets.target import Unable
from ibwire.drill.targets.ways import Connected, Way
from ibwire.fuzz.case import CaseError, Command, Connection, Post, RunsAway
from ibwire.fuzz.judge.exclusions import Exclusions
from ibwire.fuzz.targets.emulated_device import (
    CONTENT,
    INBOX,
    MAXIMUM_ANSWERS,
    REGIONS,
    WINDOW_ACCESS,
    WINDOW_SIZE,
    WINDOW_START,
    Completion,
    Numbers,
    numbers_of,
    send_request,
)
from ibwire.fuzz.targets.link.device_link import DeviceLink, damaged
from ibwire.fuzz.targets.link.frames import transport
from ibwire.fuzz.targets.link.liveness import ALIVE, Liveness
from ibwire.fuzz.vocabulary.binding import Binding
from ibwire.peer import create_queue_pair
from ibwire.programs.endpoint import Endpoint
from ibwire.rc.connect import ALL_ACCESS
from ibwire.rc.work import SGE, RecvWR
from ibwire_layers.packet import CrcStatus, Packet

LONGEST_WAIT: Time = 2 * S
"""In one step of a case."""

DEPTH = 1024
"""Receive requests that a case may have posted and not used."""


class VerbsLink(DeviceLink):
    """The link to a device whose application is driven by `way`.

    options: those of `DeviceLink`. Raises `LinkError` also for a way without an agent.
    """

    def __init__(self, endpoint: Endpoint, peer: str, way: Way, **options: Any) -> None:
        super().__init__(endpoint, peer, **options)
        if not way.has_verbs:
            raise LinkError(endpoint.port.name, "a live device is fuzzed with its agent")
        self.way = way
        self.numbers: Numbers | None = None
        """Those of the last connection."""
        self.exclusions = Exclusions()
        """What it does otherwise and is known for."""
        self.death = ALIVE
        """Which part of the device is dead, until `begin`."""
        self._connection = ExitStack()
        self.inner = endpoint.live.node
        self.diverted = endpoint.live.node = Diverted(self.inner, endpoint.device.mac, self._gid)
        self._leaving = self.diverted.leaving
        claimed = self.diverted.former.add
        self.liveness = Liveness(endpoint, way, self._gid, self.host, claimed, self.restart)

    def _learn(self, mac: bytes) -> None:
        super()._learn(mac)
        self.binding = Binding(self.address, self.peer, (self.macs[1], mac))

    def begin(self, *, anew: bool = False) -> None:
        """Prepare to execute cases, also after a crash.

        anew: on a device that has just been started. Raises `LinkError` and `PeerError`.
        """
        if anew or self.liveness.has_ended:
            self.liveness.revive()
            self._learn(self.endpoint.device.neighbours[self._gid])
        elif not self.liveness.has_begun:
            self._begin_first()
        self.death = ALIVE

    def _begin_first(self) -> None:
        """Make the first control connection; a device that is dead at the start is restarted."""
        try:
            self.liveness.begin()
        except (LinkError, PeerError) as error:
            if self.restart is None:
                raise
            self.liveness.has_ended = True
            self.endpoint.tell(str(error))
            self.begin()

    def connect(self, connection: Connection) -> LinkDevice:
        """A connection for a case; the one before ends.

        Raises `LinkError` and `PeerError` for a device that is not there, `CaseError` for a
        connection that it cannot have.
        """
        if not connection.is_plain:
            kind = "one RC queue pair with a receive queue"
            raise CaseError(f"a case on a link has {kind} and one SGE a request")
        self.disconnect()
        device, stack = self.endpoint.device, self._connection
        # It only holds the number: its packets are diverted.
        qp = create_queue_pair(device, cq=device.create_cq(1))
        stack.callback(qp.close)
        stack.callback(self.diverted.forget, qp.number)
        self.diverted.former.discard(qp.number)
        try:
            connected = stack.enter_context(
                self.way.connect(self.endpoint, qp, self._given(connection))
            )
            target = LinkDevice(self, connected, connection, qp.number)
        except (Unable, VerbsError) as error:
            raise CaseError(str(error)) from None
        self.numbers = target.numbers
        return target

    def disconnect(self) -> None:
        """End the connection, if there is one."""
        self._connection.close()

    def close(self) -> None:
        """End all connections."""
        self.disconnect()
        self.liveness.close()

    def _given(self, connection: Connection) -> dict[str, int]:
        """The attributes of a queue pair in the words of drill."""
        return {
            "version": 4 if self.is_v4 else 6,
            "mtu": connection.mtu,
            "rq_psn": connection.rq_psn,
            "sq_psn": connection.sq_psn,
            "max_rd_atomic": connection.max_rd_atomic,
            "max_dest_rd_atomic": connection.max_dest_rd_atomic,
            "min_rnr_timer": connection.min_rnr_timer,
            "timeout": connection.timeout,
            "retry_cnt": connection.retry_cnt,
            "rnr_retry": connection.rnr_retry,
            "size": REGIONS["mr"][0],
            "max_recv_wr": DEPTH,
            "recv_cqe": 2 * DEPTH,
        }


class LinkDevice:
    """A device with one connection; what it does can be played back."""

    def __init__(
        self, link: VerbsLink, connected: Connected, connection: Connection, peer_qpn: int
    ) -> None:
        assert connected.verbs is not None
        self._link = link
        self._verbs = connected.verbs
        self._connection = connection
        access = connection.access & self._verbs.known_access
        if access != int(ALL_ACCESS) & self._verbs.known_access:
            self._verbs.modify({"access": access}, None)
        self._received = self._posted = 0
        self._events: list[int] = []
        self._is_under_way = False
        """Whether something was sent since something was received."""
        self.numbers = Numbers(
            qpn=connected.qpn,
            peer_qpn=peer_qpn,
            keys=self._register(),
            window=self._bind(),
            address=link.peer,
            peer_address=link.address,
            macs=link.macs,
        )
        self.post_recv(connection.receives)

    def _register(self) -> dict[str, tuple[int, int]]:
        verbs = self._verbs
        found: dict[str, tuple[int, int]] = {}
        start = 0
        for name, (size, access) in REGIONS.items():
            if name not in verbs.regions:
                verbs.register(name, size, access, other_pd=name == "foreign")
            region = verbs.regions[name]
            verbs.write(region.va, CONTENT[start : start + size])
            start += size
            # A device may give no R_Key where the peer has no rights (rxe 6.1: 0).
            found[name] = region.va, region.rkey or region.lkey or 0
        return found

    def _bind(self) -> int | None:
        """The key of a window, `None` if the device has none."""
        verbs = self._verbs
        try:
            start = verbs.regions["mr"].va + WINDOW_START
            verbs.bind("mw", start, WINDOW_SIZE, WINDOW_ACCESS)
        except (Unable, VerbsError):
            return None
        return verbs.regions["mw"].rkey

    # The wire.

    def receive(self, frame: Frame) -> None:
        """Send a frame to the device; raises `CaseError` as `DeviceLink.send` does."""
        self._link.send(frame)
        self._is_under_way = True

    def await_frames(self, count: int | None, late: Time = 0) -> list[Frame]:
        """The frames that arrive within the tolerance, plus this much; ends early when this many
        have arrived.
        """
        arrived = self._link.diverted.outbound
        wanted = MAXIMUM_ANSWERS + 1 if count is None else count
        if len(arrived) < wanted:
            self._live(self._link.tolerance + late + self._link.paused, wanted)
        if len(arrived) > MAXIMUM_ANSWERS:
            raise RunsAway(f"more than {MAXIMUM_ANSWERS} packets without a pause")
        frames = [frame for _, frame in arrived]
        arrived.clear()
        self._is_under_way = False
        return [self._with_usual_headers(frame) for frame in frames]

    def answers(self) -> list[Frame]:
        """What it sends now."""
        return self.await_frames(None)

    def wait(self, time: Time) -> list[tuple[Time, Frame]]:
        """Let time pass: what it sends meanwhile, and when."""
        if time > LONGEST_WAIT:
            raise CaseError(f"a wait of {time / S:g} s: on a link {LONGEST_WAIT / S:g} s at most")
        arrived, start = self._link.diverted.outbound, self._link.endpoint.live.now
        self._live(time)
        found = [(when - start, self._with_usual_headers(frame)) for when, frame in arrived]
        arrived.clear()
        return found

    def _live(self, time: Time, wanted: int = MAXIMUM_ANSWERS) -> None:
        """Let time pass, until this many frames have arrived."""
        arrived = self._link.diverted.outbound
        self._link.endpoint.run(stop=lambda: len(arrived) >= wanted, seconds=time / S)

    def _with_usual_headers(self, frame: Frame) -> Frame:
        """The frame from the BTH on: the headers before it are chosen by the device's host.

        Other than RoCE packets stay unchanged: they are not a correct response.
        """
        found = transport(frame)
        if found is None:
            return frame
        usual = self._link.path.frame(found)
        return usual if _has_right_icrc(frame) else damaged(usual)

    # The application.

    @property
    def memory(self) -> bytearray:
        """All that it has registered."""
        verbs = self._verbs
        found = bytearray()
        for name, (size, _) in REGIONS.items():
            part = verbs.read(verbs.regions[name].va, size)
            if len(part) != size:
                raise PeerError(f"the agent has read {len(part)} bytes, not {size}")
            found += part
        return found

    def command(self, command: Command) -> bool:
        """The agent makes connections without a connection manager."""
        raise CaseError("a case on a link has no commands to a connection manager")

    def reconnect(self, connection: Connection) -> None:
        """Another connection is another target."""
        raise CaseError("a case on a link has one connection")

    def post_recv(self, count: int, pair: int = 0) -> None:
        """Post receive requests as `Emulation.post_recv` does."""
        self._let_arrive()
        room = min(self._connection.room, INBOX)
        slots = INBOX // room if room else 1
        region = self._verbs.regions["inbox"]
        assert region.lkey is not None
        for _ in range(count):
            start = region.va + self._received % slots * room
            sges = [SGE(start, room, region.lkey)] if room else []
            try:
                self._verbs.post_recv(RecvWR(sges, self._received))
            except VerbsError:
                return
            self._received += 1

    def post_send(self, post: Post) -> bool:
        """Post a send request as `Emulation.post_send` does.

        Raises `CaseError` for one that the agent cannot post.
        """
        self._let_arrive()
        region = self._verbs.regions["outbox"]
        assert region.lkey is not None
        try:
            window = self._verbs.regions["mw"].rkey if "mw" in self._verbs.regions else None
            wr = send_request(post, self._posted, region.va, region.lkey, window or 0)
            self._verbs.post_send(wr)
        except VerbsError:
            return False
        except Unable as error:  # an operation that its library does not have
            raise CaseError(str(error)) from None
        self._posted += 1
        return True

    def _let_arrive(self) -> None:
        """Wait until what was sent has arrived: the path to the agent may be faster."""
        if self._is_under_way:
            self._live(self._link.tolerance // 4)
            self._is_under_way = False

    def completions(self) -> list[Completion]:
        """What has completed since the last call."""
        found, self._events = self._collect()
        return found

    def details(self) -> list[Completion]:
        """An agent does not report them."""
        return []

    def events(self) -> list[int]:
        """Asynchronous events up to the last call of `completions`."""
        return self._events

    def _collect(self) -> tuple[list[Completion], list[int]]:
        completions: dict[str, list[Completion]] = {"send": [], "recv": []}
        events: list[int] = []
        while True:
            queues, raised = self._verbs.collect()
            events += map(int, raised)
            for number, (name, found) in enumerate(completions.items()):
                found += [numbers_of(number, wc) for wc in queues[name]]
            if not any(queues.values()):
                return [*completions["send"], *completions["recv"]], events
            if sum(map(len, completions.values())) > 2 * DEPTH:
                raise PeerError("the agent has found more completions than there were requests")


def _has_right_icrc(frame: Frame) -> bool:
    try:
        return Packet.parse(frame, strict=False).icrc_status() is CrcStatus.GOOD
    except DecodeError:
        return False
