"""Whether a device on a link is alive, in layers: a control connection, a new one, its host.

The control connection is made before the first case, and no case ever uses it. A READ over it
shows whether the device still serves correct peers, and whether its memory still has its
contents. When something is wrong, a new connection and the host show how much is affected.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from enum import StrEnum

from ibwire.base.closing import Closing
from ibwire.base.errors import LinkError, PeerError, VerbsError
from ibwire.drill.packets import pattern
from ibwire.drill.targets.restart import Restart, bring_back
from ibwire.drill.targets.target import Unable
from ibwire.drill.targets.ways import Way
from ibwire.fuzz.targets.link.host import Host
from ibwire.peer import create_queue_pair
from ibwire.programs.endpoint import Endpoint
from ibwire.rc.attributes import MTU_CODES, AddressVector
from ibwire.rc.connect import bring_up
from ibwire.rc.memory import Access
from ibwire.rc.path import address_of, is_v4
from ibwire.rc.work import SGE, SendWR, WCStatus, WROpcode

SECONDS = 2.0
"""Time limit of a READ with all retransmissions: 8 times 67 ms, and a busy machine."""

MTU = 256
"""Path MTU of the control connection: any link has room for it."""

CONTENT = pattern(0, MTU)
"""What its memory holds, and one answer brings."""

IDLE_NS = int(600e9)
"""Nanoseconds without a question, which are fewer than an agent permits."""


class Dead(StrEnum):
    """Which part is dead, in increasing severity."""

    NOTHING = ""
    CONNECTION = "a connection is dead"
    """That of the case alone."""
    MEMORY = "memory of another connection has changed"
    OTHER = "another connection is dead"
    """A new one can be had."""
    NEW = "no new connection can be had"
    """Though the control connection answers."""
    EVERY = "every connection is dead"
    """Though the host answers."""
    HOST = "the host is dead"

    @property
    def is_end(self) -> bool:
        """Whether no case can be carried out any more."""
        return self in (Dead.NEW, Dead.EVERY, Dead.HOST)


@dataclass(frozen=True, slots=True)
class Death:
    """Which part is dead, and how that was noticed."""

    what: Dead
    reason: str

    def __str__(self) -> str:
        return f"{self.what}: {self.reason}"


ALIVE = Death(Dead.NOTHING, "")


class Control(Closing):
    """A connection with the device that is not attacked.

    Raises `LinkError` and `PeerError` when none can be had.
    """

    def __init__(self, endpoint: Endpoint, way: Way, gid: int) -> None:
        self._endpoint = endpoint
        with ExitStack() as stack:
            self._cq = endpoint.device.create_cq(2)
            self._qp = create_queue_pair(endpoint.device, cq=self._cq)
            stack.callback(self._qp.close)
            self._region = self._qp.pd.register(MTU, int(Access.LOCAL_WRITE))
            try:
                given = {"mtu": MTU, "size": MTU, "version": 4 if is_v4(gid) else 6}
                connected = stack.enter_context(way.connect(endpoint, self._qp, given))
                assert connected.verbs is not None
                self._remote = connected.verbs.regions["mr"]
                connected.verbs.write(self._remote.va, CONTENT)
            except (Unable, VerbsError) as error:
                raise PeerError(f"no connection can be had: {error}") from None
            # Only now: over TCP the kernel has found out the MAC address that the device has now.
            address = AddressVector(dgid=gid, sgid_index=endpoint.gid_towards(gid))
            bring_up(
                self._qp,
                address,
                dest_qp_num=connected.qpn,
                sq_psn=connected.rq_psn,
                rq_psn=connected.sq_psn,
                path_mtu=MTU_CODES[MTU],
                max_rd_atomic=1,
                max_dest_rd_atomic=1,
            )
            self.qpn = connected.qpn
            """Of the device's queue pair."""
            self.own_qpn = self._qp.number
            self._death = ALIVE
            self._verbs, self._asked_ns = connected.verbs, endpoint.now_ns
            self._stack = stack.pop_all()

    def examine(self) -> Death:
        """Read its memory; once dead, it stays dead."""
        if not self._death.what:
            self._death = self._read()
        if not self._death.what:
            self._death = self._ask()
        return self._death

    def _ask(self) -> Death:
        """Ask the agent something now and then: it ends sessions that are idle for long."""
        if self._endpoint.now_ns - self._asked_ns < IDLE_NS:
            return ALIVE
        self._asked_ns = self._endpoint.now_ns
        try:
            self._verbs.read(self._remote.va, 1)
        except (PeerError, Unable, VerbsError) as error:
            return Death(Dead.OTHER, f"its agent: {error}")
        return ALIVE

    def _read(self) -> Death:
        region = self._region
        region.write(region.iova, bytes(MTU))
        request = SendWR(
            WROpcode.RDMA_READ,
            [SGE(region.iova, MTU, region.lkey)],
            remote_addr=self._remote.va,
            rkey=self._remote.rkey,
        )
        try:
            self._qp.post_send(request)
            self._endpoint.wait(lambda: len(self._cq) > 0, "completion", seconds=SECONDS)
        except (PeerError, VerbsError) as error:
            return Death(Dead.OTHER, f"a READ over it: {error}")
        (completion,) = self._cq.poll(1)
        if completion.status is not WCStatus.SUCCESS:
            return Death(Dead.OTHER, f"a READ over it: {WCStatus(completion.status).name}")
        if region.read(region.iova, MTU) != CONTENT:
            return Death(Dead.MEMORY, "a READ over it brings other bytes than it was given")
        return ALIVE

    def close(self) -> None:
        """End it."""
        self._stack.close()


class Liveness(Closing):
    """The checks whether a device is alive.

    host: of the device. claimed: called with our queue pair numbers whose packets are for control
    connections. restart: restarts a device.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        way: Way,
        gid: int,
        host: Host,
        claimed: Callable[[int], object],
        restart: Restart | None = None,
    ) -> None:
        self.restart = restart
        self.has_ended = False
        """Whether no case can be carried out any more."""
        self._endpoint = endpoint
        self._way = way
        self._gid = gid
        self._host = host
        self._claimed = claimed
        self._control: Control | None = None

    @property
    def has_begun(self) -> bool:
        """Whether there is a control connection."""
        return self._control is not None

    @property
    def qpn(self) -> int | None:
        """The device's queue pair of the control connection, which is not attacked."""
        return None if self._control is None else self._control.qpn

    def begin(self) -> None:
        """Make the control connection; raises `LinkError` and `PeerError` if it cannot be."""
        self.close()
        control = self._connected()
        death = control.examine()
        if death.what:
            control.close()
            raise PeerError(f"a new connection with {address_of(self._gid)}: {death.reason}")
        self._control = control

    def revive(self) -> None:
        """Have a device brought back; raises `LinkError` and `PeerError` if it is not."""
        endpoint = self._endpoint
        if self.restart is None:
            raise PeerError(f"{address_of(self._gid)}: is dead, and nothing brings it back")
        self.close()
        endpoint.tell(f"the device is {'dead' if self.has_ended else 'tried anew'}; {self.restart}")
        bring_back(self.restart, endpoint, self.begin)
        self.has_ended = False

    def look(self) -> Death:
        """Ask the control connection alone."""
        return ALIVE if self._control is None else self._control.examine()

    def examine(self) -> Death:
        """Find which part is dead; a new control connection replaces one that is dead."""
        death = self.look()
        if death.what is Dead.OTHER:
            fault = self._host.fault()
            if fault:
                return self._end(Dead.HOST, fault)
        before, self._control = self._control, None
        try:
            self.begin()
        except (LinkError, PeerError) as error:
            self._control = before
            return self._end(Dead.EVERY if death.what else Dead.NEW, str(error))
        if before is not None:
            before.close()
        return death

    def close(self) -> None:
        """End the control connection, if there is one."""
        if self._control is not None:
            self._control.close()
            self._control = None

    def _end(self, what: Dead, reason: str) -> Death:
        self.has_ended = True
        return Death(what, reason)

    def _connected(self) -> Control:
        control = Control(self._endpoint, self._way, self._gid)
        self._claimed(control.own_qpn)
        return control
