"""The agent of `ibwire drill` on an emulated device, in place of a host with an RDMA device.

It is the same agent: `ibwire.verbs` has the names of pyverbs. The device keeps running while
the agent waits for requests, and its connection manager is the emulated one, too.
"""

from __future__ import annotations

import errno
import select
import socket
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from ibwire.base.errors import EncodeError, LinkError, PeerError, VerbsError
from ibwire.base.units import Time
from ibwire.cm.connection import Connection, Event
from ibwire.cm.states import EventKind
from ibwire.drill.agent import agent_server
from ibwire.drill.language.vocabulary import MANAGER_VERBS
from ibwire.drill.targets.manager import Manager
from ibwire.drill.targets.queue_pair import UP
from ibwire.programs.cm import leave
from ibwire.programs.endpoint import Endpoint
from ibwire.programs.live_network import LiveNetwork
from ibwire.rc.attributes import QPAttr, QPState
from ibwire.rc.connect import move
from ibwire.rc.device import gid_of
from ibwire.verbs import install_as_pyverbs, use
from ibwire.verbs.device import Context

if TYPE_CHECKING:
    from ibwire.drill.agent.agent import Agent, Answer

DEFAULT_PKEY = 0xFFFF

USUAL_MTU = 1024

EVENTS = {
    "CONNECT_REQUEST": 4,
    "CONNECT_RESPONSE": 5,
    "UNREACHABLE": 7,
    "REJECTED": 8,
    "ESTABLISHED": 9,
    "DISCONNECTED": 10,
    "TIMEWAIT_EXIT": 15,
}
"""rdma_cm_event_type (rdma_cma.h)."""

MOST_EVENTS = 4096
"""Unread events that are kept."""

_DEPTHS = ("initiator_depth", "responder_resources")
"""Limits that rdma_connect and rdma_accept check (librdmacm `ucma_valid_param`)."""


def serve_device(
    endpoint: Endpoint,
    addresses: Sequence[str],
    port: int,
    token: str,
    *,
    report: Callable[[Sequence[socket.socket]], None] = lambda listening: None,
) -> None:
    """Serve programs with the device of an endpoint until a signal: `Interrupted`.

    token: what they must show. addresses: local ones to listen at. report: called with the
    listening sockets. Raises `LinkError` when it cannot listen there.
    """
    install_as_pyverbs()
    # The module imports pyverbs, which exists only from here on.
    from ibwire.drill.agent import agent

    with use(LiveNetwork(endpoint, glance=0)) as network:
        managers: list[OwnManager] = []
        memory = agent.Memory()

        def make_manager(qp: Any) -> OwnManager:
            # Events of two programs could not be distinguished.
            if managers:
                raise agent.Unable("another program has the connection manager")
            managers.append(OwnManager(endpoint, qp, managers.clear))
            return managers[0]

        def make_agent() -> Agent:
            context = Context(name=endpoint.device.name)

            def has_event() -> bool:
                network.deliver_events()
                return bool(context._events)

            find = partial(_way_to, endpoint)
            return agent.Agent(context, has_event, make_manager, find, memory)

        try:
            listening = agent_server.listen(addresses, port)
        except agent_server.ListenError as error:
            raise LinkError(error.where, error.reason) from None
        server = agent_server.Server(listening, make_agent, token)
        report(listening)
        agent_server.serve(server, partial(_wait, endpoint=endpoint))


class OwnManager:
    """The connection manager of the device, for the queue pair of the agent.

    done: is called when it is closed.
    """

    def __init__(
        self, endpoint: Endpoint, qp: Any, done: Callable[[], None] = lambda: None
    ) -> None:
        self._endpoint = endpoint
        self._done = done
        self.device = endpoint.device
        self._qp = self.device.qps[qp.qp_num]
        self.symbols = {
            "qpn": qp.qp_num,
            "pkey": DEFAULT_PKEY,
            "rq_psn": endpoint.psn(),
            "mtu": USUAL_MTU,
        }
        self._manager = Manager(self, endpoint.managed, datagrams=False)
        self._former = set(endpoint.manager.connections)

    @property
    def now(self) -> Time:
        """The time of the link."""
        return self._endpoint.live.now

    @property
    def state(self) -> QPState:
        """The state of the queue pair."""
        return self._qp.state

    def symbols_of(self, owner: str) -> Mapping[str, int]:
        """Values of the symbols of a script; there is one queue pair."""
        return self.symbols

    def state_of(self, owner: str) -> QPState:
        """The state of the queue pair."""
        return self.state

    def choose(self, connection: Connection, owner: str | None) -> str:
        """Take every connection for the queue pair."""
        return ""

    def join(self, connection: Connection, state: QPState, owner: str = "") -> None:
        """Bring the queue pair to a state with the attributes of a connection."""
        address, attributes = connection.queue_pair_attributes()
        attr = QPAttr(ah_attr=address, min_rnr_timer=12, **attributes)
        for after in UP[UP.index(self.state) + 1 : UP.index(state) + 1]:
            move(self._qp, after, attr)

    def handle(self) -> None:
        """React to an event of the manager as the application does.

        Requests for datagrams are refused, as by rdma_cm where a program listens for connections
        (Linux `cma_ib_check_req_qp_type`). With too many unread events it gets no more: then the
        manager refuses requests, once it has too many itself.
        """
        events = self._manager.events[""]
        if len(events) >= MOST_EVENTS:
            return
        self._manager.settle()
        for event in list(events):
            if isinstance(event, Event) and event.kind is EventKind.RESOLVE_REQUEST:
                events.remove(event)
                self._endpoint.manager.reject(event.connection, self.now)

    def fileno(self) -> int:
        """It has none: see `_wait`."""
        return -1

    def cm_events(self) -> list[Answer]:
        """Events since the last call."""
        self.handle()
        queue = self._manager.events[""]
        events = list(queue)
        queue.clear()
        return [
            {"event": EVENTS[event.kind.name], "status": event.reason}
            for event in events
            if isinstance(event, Event) and event.connection not in self._former
        ]

    def close(self) -> None:
        """End all connections and the listener."""
        manager = self._endpoint.manager
        for listener in list(manager.listeners.values()):
            manager.unlisten(listener)
        for connection in list(manager.connections):
            leave(self._endpoint, connection)
        self._done()

    def __getattr__(self, verb: str) -> Callable[..., None]:
        if verb not in MANAGER_VERBS:
            raise AttributeError(verb)

        def do(gid: str = "", **given: Any) -> None:
            most = self.device.limits.max_qp_rd_atom
            for name in _DEPTHS:
                if given.get(name, 0) > most:
                    raise OSError(errno.EINVAL, f"{name} is {given[name]}, at most {most}")
            try:
                if verb == "connect":
                    own = self.device.gids[_way_to(self._endpoint, gid)]
                    self.symbols |= {"gid": own, "peer_gid": gid_of(gid)}
                self._manager.do(verb, given)
            except VerbsError as error:
                raise OSError(error.errno, error.reason) from None
            except EncodeError as error:
                raise OSError(errno.EINVAL, str(error)) from None

        return do


def _way_to(endpoint: Endpoint, gid: str) -> int:
    """Number of the own GID from which a peer is reached; raises `OSError` if it is not."""
    try:
        return endpoint.gid_towards(gid_of(gid))
    except (LinkError, PeerError) as error:
        raise OSError(errno.EHOSTUNREACH, str(error)) from None


def _wait(server: agent_server.Server, seconds: float | None, endpoint: Endpoint) -> None:
    """Run the device until the server has something to do; its managers have no descriptors."""
    poll = select.poll()
    poll.register(server, select.POLLIN)

    def is_asked() -> bool:
        for manager in server.managers:
            manager.handle()
        return bool(poll.poll(0))

    endpoint.run(stop=is_asked, seconds=seconds, watch=[server.fileno()])
