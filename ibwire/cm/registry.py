"""The connections of a manager by all their identifiers.

A peer is identified by its GID and the GUID of its CA; communication IDs and queue pair
numbers are valid only together with these. A message from another GID than that of the peer
belongs to no connection, unless the manager does not look at it: `SenderGID`.

Source: reference/cm#peer; the tables of Linux `core/cm.c`, which does not look at the GID.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeVar

from ibwire.cm.connection import Connection
from ibwire.rc.attributes import AddressVector
from ibwire.rc.profile import SenderGID
from ibwire_layers import cm

Addressed = cm.MRA | cm.REP | cm.RTU | cm.REJ | cm.DREQ | cm.DREP
"""Messages that name a connection by its IDs at both ends."""


class Registry:
    """Connections by local ID, remote ID and queue pair."""

    __slots__ = (
        "_by_id",
        "_by_local_qp",
        "_by_remote_id",
        "_by_remote_qp",
        "_by_request",
        "_sender_gid",
    )

    def __init__(self, sender_gid: SenderGID = SenderGID.ALWAYS) -> None:
        self._sender_gid = sender_gid
        self._by_id: dict[int, Connection] = {}
        self._by_remote_id: dict[_Remote, Connection] = {}
        self._by_remote_qp: dict[_Remote, Connection] = {}
        """While the queue pairs are in use: not in TIMEWAIT."""
        self._by_request: dict[tuple[int, int], Connection] = {}
        """Received requests to resolve a service ID, by GID and request ID."""
        self._by_local_qp: dict[int, Connection] = {}

    def __len__(self) -> int:
        return len(self._by_id)

    def __iter__(self) -> Iterator[Connection]:
        return iter(self._by_id.values())

    def __contains__(self, local_id: object) -> bool:
        return local_id in self._by_id

    def add(self, connection: Connection) -> None:
        """Add a connection under its local ID, and a received SIDR_REQ under its request ID."""
        self._by_id[connection.local_id] = connection
        if not connection.is_active and isinstance(connection.request, cm.SIDR_REQ):
            self._by_request[connection.peer.dgid, connection.remote_id] = connection

    def add_remote(self, connection: Connection) -> None:
        """Add the peer's ID and queue pair of a connection."""
        gid, guid = self._gid(connection.peer), connection.remote_guid or 0
        self._by_remote_id.setdefault((gid, guid, connection.remote_id), connection)
        if connection.remote_qpn is not None:
            self._by_remote_qp.setdefault((gid, guid, connection.remote_qpn), connection)

    def add_local_qp(self, connection: Connection) -> None:
        """Add the local queue pair of a connection."""
        if connection.local_qpn is not None:
            self._by_local_qp[connection.local_qpn] = connection

    def release_queue_pairs(self, connection: Connection) -> None:
        """Remove the queue pairs of a connection, which another one may use."""
        if connection.remote_qpn is not None:
            key = self._gid(connection.peer), connection.remote_guid or 0, connection.remote_qpn
            _remove(self._by_remote_qp, key, connection)
        if connection.local_qpn is not None:
            _remove(self._by_local_qp, connection.local_qpn, connection)

    def remove(self, connection: Connection) -> None:
        """Remove a connection."""
        self.release_queue_pairs(connection)
        gid, number = self._gid(connection.peer), connection.remote_id
        _remove(self._by_id, connection.local_id, connection)
        _remove(self._by_remote_id, (gid, connection.remote_guid or 0, number), connection)
        _remove(self._by_request, (connection.peer.dgid, number), connection)

    def _gid(self, peer: AddressVector) -> int:
        """The GID of a peer as far as it counts."""
        return 0 if self._sender_gid is SenderGID.NEVER else peer.dgid

    def local_queue_pair(self, qpn: int) -> Connection | None:
        """The connection of a local queue pair."""
        return self._by_local_qp.get(qpn)

    def duplicate(self, message: cm.REQ | cm.SIDR_REQ, source: AddressVector) -> Connection | None:
        """The connection of a repeated request."""
        if isinstance(message, cm.SIDR_REQ):
            return self._by_request.get((source.dgid, message.request_id))
        key = self._gid(source), message.local_ca_guid, message.local_comm_id
        return self._by_remote_id.get(key)

    def stale(self, guid: int, qpn: int, source: AddressVector) -> Connection | None:
        """The connection that still has this queue pair of the peer."""
        return self._by_remote_qp.get((self._gid(source), guid, qpn))

    def has_remote(self, answer: cm.REP, source: AddressVector) -> bool:
        """Whether a connection has the peer's ID of a REP."""
        key = self._gid(source), answer.local_ca_guid, answer.local_comm_id
        return key in self._by_remote_id

    def with_local_id(self, local_id: int, source: AddressVector) -> Connection | None:
        """The connection with a local ID, if the sender is its peer."""
        connection = self._by_id.get(local_id)
        if self._sender_gid is not SenderGID.ALWAYS:
            return connection
        if connection is None or connection.peer.dgid != source.dgid:
            return None
        return connection

    def with_ids_of(self, message: Addressed, source: AddressVector) -> Connection | None:
        """The connection with both IDs of a message."""
        if isinstance(message, cm.REJ) and message.reason == cm.RejectReason.TIMEOUT:
            # The sender has received no answer and does not know the local ID: it gives its GUID.
            guid = int.from_bytes(message.ari[:8])
            return self._by_remote_id.get((self._gid(source), guid, message.local_comm_id))
        connection = self.with_local_id(message.remote_comm_id, source)
        if connection is None or not isinstance(connection.request, cm.REQ):
            return None
        if _is_before_rep(message):
            return None if connection.has_remote_id else connection
        if connection.has_remote_id and connection.remote_id == message.local_comm_id:
            return connection
        return None


_Remote = tuple[int, int, int]
"""GID and CA GUID of a peer, and a communication ID or queue pair number."""

K = TypeVar("K")


def _remove(table: dict[K, Connection], key: K, connection: Connection) -> None:
    if table.get(key) is connection:
        del table[key]


def _is_before_rep(message: Addressed) -> bool:
    if isinstance(message, cm.MRA):
        return message.message_mraed == cm.MessageMRAed.REQ
    return isinstance(message, cm.REJ) and message.message_rejected == cm.MessageRejected.REQ
