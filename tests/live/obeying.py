"""An application on a device of ours that does what `listener.py` does on a real one."""

from __future__ import annotations

from contextlib import suppress
from itertools import count

from ibwire.base.errors import VerbsError
from ibwire.base.units import Time
from ibwire.cm import ConnectionManager, endpoints_of, reply, request
from ibwire.cm.connection import Connection, Event
from ibwire.cm.rdma_cm import Endpoints
from ibwire.cm.states import EventKind
from ibwire.fuzz.targets.link import listener
from ibwire_layers import cm
from ibwire_layers.headers import IPCM

OWN_PORT = 50_000
"""From which it calls."""


class Obeying:
    """Accepts every request, and connects back when asked to, unless a wish says otherwise.

    obeys: whether it looks at wishes; else it accepts every request and never connects. A wish to
    wait is never decided.
    """

    def __init__(self, manager: ConnectionManager, *, obeys: bool = True) -> None:
        self._manager = manager
        self._obeys = obeys
        self._numbers = count(0x500)
        self._wishes: dict[int, int] = {}
        """Of connections, by their ID."""

    def handle(self, event: Event, now: Time) -> None:
        """React to an event."""
        with suppress(VerbsError):  # the peer has given up already
            self._handle(event.kind, event.connection, now)

    def _handle(self, kind: EventKind, connection: Connection, now: Time) -> None:
        manager = self._manager
        if kind is EventKind.CONNECT_REQUEST:
            self._be_asked(connection, now)
        elif kind is EventKind.RESOLVE_REQUEST:
            manager.reject(connection, now)
        elif kind is EventKind.CONNECT_RESPONSE:
            wish = self._wishes.get(connection.local_id)
            if wish == listener.REFUSE:
                manager.reject(connection, now)
            elif wish != listener.WAIT:
                manager.ready(connection, now)
        elif kind is EventKind.ESTABLISHED:
            if self._wishes.get(connection.local_id) == listener.LEAVE:
                manager.disconnect(connection, now)
        elif kind is EventKind.TIMEWAIT_EXIT:
            self._wishes.pop(connection.local_id, None)

    def _be_asked(self, connection: Connection, now: Time) -> None:
        asked = connection.request
        data = asked.private_data[IPCM.SIZE :] if self._obeys else b"\0"
        wish = self._wishes[connection.local_id] = data[0] % 4
        if data.startswith(listener.CALL):
            self._manager.reject(connection, now)
            self._call(connection, data[: listener.CALL_SIZE], now)
        elif wish == listener.REFUSE:
            self._manager.reject(connection, now)
        elif wish != listener.WAIT:
            number = next(self._numbers)
            answer = reply(qpn=number, starting_psn=7 * number)
            self._manager.accept(connection, answer, now)

    def _call(self, connection: Connection, data: bytes, now: Time) -> None:
        """Ask a peer for a connection, at the port from which it requested that."""
        assert isinstance(connection.request, cm.REQ)
        found = endpoints_of(connection.request)
        if found is None:
            return
        asking = found[0]
        ends = Endpoints(asking.destination, OWN_PORT, asking.source, asking.source_port)
        number = next(self._numbers)
        wanted = request(
            service_id=ends.service_id,
            source=ends.source,
            destination=ends.destination,
            qpn=number,
            starting_psn=7 * number,
            private_data=ends.private_data(data),
        )
        called = self._manager.connect(wanted, now)
        self._wishes[called.local_id] = data[len(listener.CALL)] % 4
