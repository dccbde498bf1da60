"""The connection manager of one port.

It has three kinds of method, like a queue pair. Commands come from the application:
`connect`, `listen`, `accept`, `reject`, `delay`, `ready`, `disconnect`, `resolve`; they
fail at once with a `VerbsError` or `EncodeError`, or not at all. `handle_mad`,
`handle_established` and `handle_timeout` take input. `poll_transmit`, `poll_timeout` and
`poll_event` give output: after any command or input the caller drains the first until
`None`, then reads the second, then drains the third.

Everything that a peer can cause it to keep is bounded: connections, requests that wait for
a decision, messages that wait to be sent, events that are not polled. Beyond that a message
is dropped and counted, as if the network had lost it; the peer retransmits it.

`states.py` has the table of moves. This module finds the connection of a message, builds
messages and runs timers.
"""

from __future__ import annotations

import errno
import random
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from ibwire.base.errors import EncodeError, VerbsError
from ibwire.base.units import Time
from ibwire.cm.answers import (
    automatic_refusal,
    disconnect_reply,
    disconnect_request,
    receipt_acknowledgement,
    refusal,
    reject_unknown_connection,
    rejection,
    sidr_rejection,
)
from ibwire.cm.connection import (
    Connection,
    Event,
    Listener,
    queue_pair_of,
    reply_to,
    timeouts_of,
)
from ibwire.cm.messages import (
    LINUX,
    Message,
    Received,
    Timing,
    decode,
    duration,
    encode,
    padded,
)
from ibwire.cm.registry import Registry
from ibwire.cm.states import (
    ACTIVE_INPUTS,
    PASSIVE_INPUTS,
    TRANSITIONS,
    WAITS,
    EventKind,
    Input,
    Move,
    Send,
    State,
    Wait,
)
from ibwire.cm.timers import Timers
from ibwire.rc.attributes import AddressVector
from ibwire.rc.profile import SPEC, MRAFor, Profile, UnknownRefused
from ibwire_layers import cm


def identifiers(source: random.Random) -> Iterator[tuple[int, int]]:
    """Communication and transaction IDs for new connections, drawn from a generator.

    A third party that guesses a communication ID can end a connection: use `SystemRandom`
    on a real network.
    """
    while True:
        yield source.getrandbits(32), source.getrandbits(64)


class ConnectionManager:
    """Connections of a port over RoCE.

    gids: of the port. guid: of the CA. ids: communication and transaction ID of each
    new connection; IDs in use and 0 are skipped. profile: what it does where implementations
    differ.
    """

    LIMIT_CONNECTIONS = 1 << 14
    """Connections, with those in TIMEWAIT."""
    LIMIT_MESSAGES = 4096
    """MADs that wait to be sent."""
    LIMIT_EVENTS = 4096
    """Events that are not polled; with this many, requests are dropped."""

    def __init__(
        self,
        gids: Sequence[int],
        guid: int,
        ids: Iterator[tuple[int, int]],
        timing: Timing = LINUX,
        *,
        profile: Profile = SPEC,
    ) -> None:
        self.gids = gids
        self.guid = guid
        self.timing = timing
        self.counters: Counter[str] = Counter()
        self.listeners: dict[int, Listener] = {}
        """By service ID."""
        self.connections = Registry(profile.sender_gid)
        self._ids = ids
        self._refused = _REFUSED[profile.refuses_unknown]
        self._refuses_mra = profile.refuses_unknown_mra
        refused = _REFUSED[profile.refuses_in_timewait]
        self._refused_in_timewait = [_ANSWERING[each] for each in refused]
        self._acknowledged_duplicates = _DRAWING_MRA[profile.mra_for_duplicate]
        self._repeated_mras = _DRAWING_MRA[profile.repeats_mra]
        self._repeats_rep_after_mra = profile.repeats_rep_after_mra
        self._duplicate_restarts_rep = profile.duplicate_restarts_rep
        self._acknowledged = _DRAWING_MRA[profile.mra_at_once]
        self._rejects_expired_request = profile.rejects_expired_request
        self._keeps_refusal = profile.keeps_refusal
        self._messages: deque[tuple[bytes, AddressVector]] = deque()
        self._events: deque[Event] = deque()
        self._timers = Timers()
        self.expiry: Callable[[Connection, Time, Time], Time] | None = None
        """When a timer expires that is set for a connection, from now and when it is due; by
        default then."""

    # Commands.

    def listen(self, service_id: int, backlog: int = 128) -> Listener:
        """Accept requests for a service at every GID; EADDRINUSE if it has a listener.

        backlog: requests that may wait for a decision; further ones are dropped.
        """
        if service_id in self.listeners:
            raise VerbsError(errno.EADDRINUSE, f"service ID {service_id:#x}")
        listener = self.listeners[service_id] = Listener(service_id, backlog)
        return listener

    def unlisten(self, listener: Listener) -> None:
        """Stop accepting; received requests can still be answered."""
        if self.listeners.get(listener.service_id) is listener:
            del self.listeners[listener.service_id]

    def connect(self, request: cm.REQ, now: Time) -> Connection:
        """Request a connection; EADDRNOTAVAIL unless it is from a local GID."""
        if request.primary_local_gid not in self.gids:
            raise VerbsError(errno.EADDRNOTAVAIL, f"GID {request.primary_local_gid:#x}")
        request = request.altered(local_ca_guid=self.guid)
        peer = AddressVector(
            dgid=request.primary_remote_gid,
            sgid_index=self.gids.index(request.primary_local_gid),
            traffic_class=request.primary_traffic_class,
            hop_limit=request.primary_hop_limit,
            sl=request.primary_sl,
        )
        connection = self._begin(request, peer)
        message = request.altered(local_comm_id=connection.local_id)
        self._start(connection, Input.CONNECT, message, now)
        connection.local_qpn = request.local_qpn
        self.connections.add_local_qp(connection)
        return connection

    def resolve(self, request: cm.SIDR_REQ, peer: AddressVector, now: Time) -> Connection:
        """Request the queue pair of a service ID."""
        connection = self._begin(request, peer)
        message = request.altered(request_id=connection.local_id)
        self._start(connection, Input.RESOLVE, message, now)
        return connection

    def accept(self, connection: Connection, reply: cm.REP | cm.SIDR_REP, now: Time) -> None:
        """Answer a REQ with a REP, or a SIDR_REQ with a SIDR_REP; their IDs are filled in.

        The queue pair number in a REP for XRC is moved to its field.
        """
        request = connection.request
        if isinstance(request, cm.REQ) and isinstance(reply, cm.REP):
            reply = reply_to(request, reply)
            reply = reply.altered(
                local_comm_id=connection.local_id,
                remote_comm_id=connection.remote_id,
                local_ca_guid=self.guid,
            )
        elif isinstance(request, cm.SIDR_REQ) and isinstance(reply, cm.SIDR_REP):
            reply = reply.altered(request_id=connection.remote_id, service_id=request.service_id)
        else:
            raise VerbsError(errno.EINVAL, f"{type(reply).__name__} does not answer this request")
        self._command(connection, Input.ACCEPT, now, reply)
        connection.reply = reply
        if isinstance(reply, cm.REP):
            connection.local_qpn = queue_pair_of(reply, request)
            self.connections.add_local_qp(connection)

    def reject(
        self,
        connection: Connection,
        now: Time,
        reason: int = cm.RejectReason.CONSUMER_DEFINED,
        private_data: bytes = b"",
        ari: bytes = b"",
    ) -> None:
        """Reject a connection at any time before it is established.

        A SIDR_REQ is refused with `SIDRStatus.REJECTED`, and without private data.
        """
        request = connection.request
        message: Message
        if isinstance(request, cm.REQ):
            message = rejection(connection, self.guid, reason, private_data, ari)
        else:
            message = sidr_rejection(request, cm.SIDRStatus.REJECTED)
        self._command(connection, Input.REJECT, now, message)

    def delay(
        self,
        connection: Connection,
        now: Time,
        service_timeout: int | None = None,
        private_data: bytes = b"",
    ) -> None:
        """Request more time to answer a REQ or REP, as a code n: 4.096 us x 2^n.

        Only needed for more time than the peer waits: a repeated message gets an MRA without it.
        """
        code = self.timing.service_timeout if service_timeout is None else service_timeout
        self._command(
            connection, Input.DELAY, now, receipt_acknowledgement(connection, code, private_data)
        )

    def ready(self, connection: Connection, now: Time, private_data: bytes = b"") -> None:
        """Answer a REP with an RTU: the local queue pair is up, the connection is established."""
        message = cm.RTU(
            local_comm_id=connection.local_id,
            remote_comm_id=connection.remote_id,
            private_data=padded(cm.RTU, private_data),
        )
        self._command(connection, Input.READY, now, message)

    def disconnect(self, connection: Connection, now: Time, private_data: bytes = b"") -> None:
        """End an established connection."""
        message = disconnect_request(connection, private_data)
        self._command(connection, Input.DISCONNECT, now, message)

    # Input.

    def handle_mad(self, mad: bytes, source: AddressVector, now: Time) -> None:
        """Process a MAD from QP1; no content of it raises.

        source: address of its sender.
        """
        received = decode(mad)
        if received is None:
            self.counters["malformed"] += 1
            return
        message = received.message
        match message:
            case cm.REQ() | cm.SIDR_REQ():
                self._handle_request(message, received, source, now)
            case cm.SIDR_REP():
                self._handle_resolution(message, source, now)
            case cm.REP():
                self._handle_rep(message, received, source, now)
            case cm.LAP() | cm.APR():
                self.counters["unsupported"] += 1
            case _:
                connection = self.connections.with_ids_of(message, source)
                if connection is None:
                    self._handle_unknown(message, received, source)
                elif not isinstance(message, cm.DREQ) or message.remote_qpn == connection.local_qpn:
                    self._deliver(connection, _input_of(message), now, received)

    def handle_established(self, qpn: int, now: Time) -> None:
        """Process the first data of a local queue pair (COMM_EST), which replaces the RTU."""
        connection = self.connections.local_queue_pair(qpn)
        if connection is not None and not connection.is_active:
            self._move(connection, Input.COMM_EST, now)

    def set_timer(self, connection: Connection, due: Time) -> None:
        """Move the timer of a connection's state."""
        self._timers.set(connection, due, len(self.connections))

    def handle_timeout(self, now: Time) -> None:
        """Handle the timers that are due by `now`."""
        for connection in self._timers.take_due(now):
            if WAITS[connection.state] is Wait.LINGER or not connection.retries_left:
                self._move(connection, Input.EXPIRED, now)
            else:
                connection.retries_left -= 1
                self._move(connection, Input.TIMEOUT, now)

    # Output.

    def poll_transmit(self, now: Time) -> tuple[bytes, AddressVector] | None:
        """The next MAD for QP1 of a peer with its address, or `None`."""
        return self._messages.popleft() if self._messages else None

    @property
    def has_messages(self) -> bool:
        """Whether a MAD waits to be sent."""
        return bool(self._messages)

    def poll_timeout(self) -> Time | None:
        """When to call `handle_timeout` next; may be earlier than needed."""
        return self._timers.next_timeout()

    def poll_event(self) -> Event | None:
        """The next event for the application, or `None`."""
        return self._events.popleft() if self._events else None

    # Received messages.

    def _handle_request(
        self, request: cm.REQ | cm.SIDR_REQ, received: Received, source: AddressVector, now: Time
    ) -> None:
        known = self.connections.duplicate(request, source)
        is_datagram = isinstance(request, cm.SIDR_REQ)
        if known is not None:
            self.counters["duplicates"] += 1
            self._deliver(known, Input.SIDR_REQ if is_datagram else Input.REQ, now, received)
            return
        refused: Message | None = automatic_refusal(request, self.listeners, self.gids)
        if isinstance(request, cm.REQ):
            stale = self.connections.stale(request.local_ca_guid, request.local_qpn, source)
            if stale is not None:
                # The peer does not have the old connection any more (Linux `cm_match_req`).
                self._end(stale, now)
                refused = refusal(request, cm.RejectReason.STALE_CONNECTION)
            elif refused is None:
                own = self.gids.index(request.primary_remote_gid)
                if source.sgid_index != own:
                    source = replace(source, sgid_index=own)
        if refused is not None:
            self._put(encode(refused, received.transaction_id), source)
            return
        listener = self.listeners[request.service_id]
        if self._has_room(listener):
            connection = self._begin(request, source, received)
            connection.listener = listener
            self._move(connection, Input.SIDR_REQ if is_datagram else Input.REQ, now, received)
            self._acknowledge(connection, Input.REQ, now)

    def _has_room(self, listener: Listener) -> bool:
        if listener.waiting >= listener.backlog:
            self.counters["backlog_full"] += 1
        elif len(self.connections) >= self.LIMIT_CONNECTIONS:
            self.counters["connections_full"] += 1
        elif len(self._events) >= self.LIMIT_EVENTS:
            self.counters["events_full"] += 1
        else:
            return True
        return False

    def _handle_rep(
        self, answer: cm.REP, received: Received, source: AddressVector, now: Time
    ) -> None:
        connection = self.connections.with_local_id(answer.remote_comm_id, source)
        if connection is None or not isinstance(connection.request, cm.REQ):
            self._handle_unknown(answer, received, source)
        elif connection.reply is not None:
            self.counters["duplicates"] += 1
            if answer.local_comm_id == connection.remote_id:
                self._deliver(connection, Input.REP, now, received)
        elif connection.is_active and Input.REP in TRANSITIONS[connection.state]:
            qpn = queue_pair_of(answer, connection.request)
            stale = self.connections.stale(answer.local_ca_guid, qpn, source)
            if self.connections.has_remote(answer, source):
                self.counters["ignored"] += 1  # before it may be stale, as Linux `cm_rep_handler`
            elif stale is not None:
                self._reject_unknown(answer, received, source, cm.RejectReason.STALE_CONNECTION)
                self._end(stale, now)
            else:
                connection.reply = answer
                connection.remote_id = answer.local_comm_id
                connection.remote_qpn, connection.remote_guid = qpn, answer.local_ca_guid
                self.connections.add_remote(connection)
                self._move(connection, Input.REP, now, received)
                self._acknowledge(connection, Input.REP, now)

    def _acknowledge(self, connection: Connection, received: Input, now: Time) -> None:
        """Send an MRA for a message that has just arrived, if it draws one at once."""
        if received in self._acknowledged and Input.DELAY in TRANSITIONS[connection.state]:
            self.delay(connection, now)

    def _handle_resolution(self, answer: cm.SIDR_REP, source: AddressVector, now: Time) -> None:
        connection = self.connections.with_local_id(answer.request_id, source)
        if connection is None or connection.state is not State.SIDR_REQ_SENT:
            self.counters["unknown"] += 1
            return
        connection.reply = answer
        self._move(connection, Input.SIDR_REP, now, Received(0, answer))

    def _handle_unknown(self, message: Message, received: Received, source: AddressVector) -> None:
        """Process a message for an unknown connection."""
        if isinstance(message, cm.MRA) and self._refuses_mra:
            self._reject_unknown(message, received, source, cm.RejectReason.INVALID_COMM_ID)
            return
        if isinstance(message, cm.DREQ):
            # The connection has ended; the DREP stops the retransmissions (Linux `cm_issue_drep`).
            self._put(encode(disconnect_reply(message), received.transaction_id), source)
        elif isinstance(message, cm.REP | cm.RTU) and isinstance(message, self._refused):
            self._reject_unknown(message, received, source, cm.RejectReason.INVALID_COMM_ID)
        else:
            self.counters["unknown"] += 1

    def _reject_unknown(
        self,
        message: cm.REP | cm.RTU | cm.MRA,
        received: Received,
        source: AddressVector,
        reason: cm.RejectReason,
    ) -> None:
        """Send a REJ for a connection that is unknown, or that belongs to another peer."""
        self.counters["unknown"] += 1
        self._put(
            encode(reject_unknown_connection(message, reason), received.transaction_id), source
        )

    def _end(self, connection: Connection, now: Time) -> None:
        """End a connection that the peer does not have any more."""
        if Input.DISCONNECT in TRANSITIONS[connection.state]:
            self._move(connection, Input.DISCONNECT, now, outgoing=disconnect_request(connection))

    # Connections.

    def _begin(
        self,
        request: cm.REQ | cm.SIDR_REQ,
        peer: AddressVector,
        received: Received | None = None,
    ) -> Connection:
        """A new connection, for a local request or for a received one."""
        if len(self.connections) >= self.LIMIT_CONNECTIONS:
            raise VerbsError(errno.ENOMEM, f"{self.LIMIT_CONNECTIONS} connections exist already")
        local_id, transaction_id = next(self._ids)
        while not local_id or local_id in self.connections:
            local_id, transaction_id = next(self._ids)
        connection = Connection(
            local_id=local_id,
            transaction_id=transaction_id,
            request_transaction=received.transaction_id if received else transaction_id,
            is_active=received is None,
            request=request,
            peer=peer,
            timeouts=timeouts_of(request, self.timing, is_active=received is None),
        )
        if received is None:
            self.connections.add(connection)
        elif isinstance(request, cm.REQ):
            connection.remote_id = request.local_comm_id
            connection.remote_qpn = request.local_qpn
            connection.remote_guid = request.local_ca_guid
            self.connections.add(connection)
            self.connections.add_remote(connection)
        else:
            connection.remote_id = request.request_id
            self.connections.add(connection)
        return connection

    def _start(
        self, connection: Connection, what: Input, request: cm.REQ | cm.SIDR_REQ, now: Time
    ) -> None:
        """Send the request of a new connection; removes it if the request cannot be encoded."""
        connection.request = request
        try:
            self._command(connection, what, now, request)
        except EncodeError:
            self.connections.remove(connection)
            raise

    def _command(self, connection: Connection, what: Input, now: Time, outgoing: Message) -> None:
        """Execute a command of the application; raises EINVAL if the state does not allow it."""
        if what not in TRANSITIONS[connection.state]:
            raise VerbsError(errno.EINVAL, f"{what.name} is not allowed in {connection.state.name}")
        self._move(connection, what, now, outgoing=outgoing)

    def _deliver(
        self, connection: Connection, what: Input | None, now: Time, received: Received
    ) -> None:
        """Apply a message to its connection, if its side accepts it."""
        if what in (ACTIVE_INPUTS if connection.is_active else PASSIVE_INPUTS) and what is not None:
            self._move(connection, what, now, received)

    def _move(
        self,
        connection: Connection,
        what: Input,
        now: Time,
        received: Received | None = None,
        outgoing: Message | None = None,
    ) -> None:
        """Apply a move of the table. outgoing: the message that the application has built."""
        move = TRANSITIONS[connection.state].get(what)
        if (connection.state, what) == _REQ_AFTER_MRA and self._repeats_rep_after_mra:
            move = Move(connection.state, Send.RETRANSMIT)
        if move is not None and self._ignores(connection, what):
            move = None
        if move is None:
            self.counters["ignored"] += 1
            return
        if move.send is not None and not self._is_silent(connection, move.send):
            self._send(connection, move.send, received, outgoing)
        before, connection.state = connection.state, move.state
        is_refusal = move.state is State.ANSWERED and what is Input.REJECT
        if is_refusal and isinstance(connection.request, cm.REQ) and not self._keeps_refusal:
            connection.state = State.IDLE
        if before is not move.state:
            self._enter(connection, before)
        # Not for a repeated message, with which a peer could keep the connection forever.
        # ANSWERED lasts as long as the request is repeated.
        begins_again = (before, what) == _REQ_AFTER_REP and self._duplicate_restarts_rep
        begins_again |= what is Input.TIMEOUT or before is State.ANSWERED
        if before is not move.state or begins_again:
            self._arm(connection, now, received)
        if move.event is not None:
            self._emit(connection, move.event, received)

    def _ignores(self, connection: Connection, what: Input) -> bool:
        """Whether a message draws nothing that draws an MRA, or a REJ, from other managers."""
        if connection.state is State.TIMEWAIT:
            return what in _ANSWERING.values() and what not in self._refused_in_timewait
        if (connection.state, what) in _LATER_DUPLICATES:
            return what not in self._repeated_mras
        is_duplicate = (connection.state, what) in _UNDECIDED_DUPLICATES
        return is_duplicate and what not in self._acknowledged_duplicates

    def _is_silent(self, connection: Connection, send: Send) -> bool:
        """Whether a message is left out: the REJ for a REQ that was never answered."""
        is_of_request = send is Send.REJ_TIMEOUT and connection.is_active
        return is_of_request and not self._rejects_expired_request

    def _enter(self, connection: Connection, before: State) -> None:
        """Update the listener and the registry for a new state."""
        state, listener = connection.state, connection.listener
        if listener is not None:
            listener.waiting += (state in _UNDECIDED) - (before in _UNDECIDED)
        if state in (State.TIMEWAIT, State.ANSWERED):
            self.connections.release_queue_pairs(connection)
        elif state is State.IDLE:
            self.connections.remove(connection)

    def _arm(self, connection: Connection, now: Time, received: Received | None) -> None:
        """Set the timer of the state that a connection has entered or retransmits in."""
        wait = WAITS.get(connection.state)
        if wait is None:
            connection.deadline = None
            return
        timeouts = connection.timeouts
        time = timeouts.linger
        if wait is Wait.ANSWER:
            time = timeouts.response
        elif wait is Wait.SERVICE:
            assert received is not None
            assert isinstance(received.message, cm.MRA)
            time += duration(received.message.service_timeout)
        elif connection.state is State.ANSWERED:
            time += timeouts.repetition + connection.extra_time
        due = now + time
        if self.expiry is not None:
            due = self.expiry(connection, now, due)
        self.set_timer(connection, due)

    def _send(
        self,
        connection: Connection,
        send: Send,
        received: Received | None,
        outgoing: Message | None,
    ) -> None:
        if send is not Send.RETRANSMIT:
            message = outgoing or self._automatic(connection, send, received)
            if send is Send.DREQ:
                transaction = connection.transaction_id
            elif send is Send.DREP and received is not None:
                transaction = received.transaction_id
            else:
                transaction = connection.request_transaction
            connection.last_sent = encode(message, transaction)
            if isinstance(message, cm.MRA):
                connection.extra_time = duration(message.service_timeout)
            if send in _RETRANSMITTED:
                connection.retries_left = connection.timeouts.retries
        self._put(connection.last_sent, connection.peer)

    def _automatic(self, connection: Connection, send: Send, received: Received | None) -> Message:
        """A message that the manager sends by itself."""
        message = received.message if received is not None else None
        if send is Send.MRA:
            return receipt_acknowledgement(connection, self.timing.service_timeout)
        if send is Send.DREP and isinstance(message, cm.DREQ):
            return disconnect_reply(message)
        if send is Send.REJ_STALE:
            about = _ABOUT.get(type(message), cm.MessageRejected.OTHER)
            stale = cm.RejectReason.STALE_CONNECTION
            return rejection(connection, self.guid, stale, about=about)
        assert send is Send.REJ_TIMEOUT
        return rejection(connection, self.guid, cm.RejectReason.TIMEOUT)

    def _put(self, mad: bytes, to: AddressVector) -> None:
        if len(self._messages) >= self.LIMIT_MESSAGES:
            self.counters["messages_full"] += 1
        else:
            self._messages.append((mad, to))

    def _emit(self, connection: Connection, kind: EventKind, received: Received | None) -> None:
        message = received.message if received is not None else None
        reason, ari = 0, b""
        if isinstance(message, cm.REJ):
            reason, ari = message.reason, message.ari[: message.reject_info_length]
        elif isinstance(message, cm.SIDR_REP):
            reason = message.status
        data = message.private_data if message is not None else b""
        self._events.append(
            Event(kind=kind, connection=connection, private_data=data, reason=reason, ari=ari)
        )


def _input_of(message: Message) -> Input | None:
    """The input of a message for a known connection; `None` for the MRA of a LAP."""
    if isinstance(message, cm.MRA):
        return _MRAED.get(message.message_mraed)
    return _INPUTS.get(type(message))


_MRAED: dict[int, Input] = {cm.MessageMRAed.REQ: Input.MRA_REQ, cm.MessageMRAed.REP: Input.MRA_REP}

_INPUTS: dict[type, Input] = {
    cm.RTU: Input.RTU,
    cm.REJ: Input.REJ,
    cm.DREQ: Input.DREQ,
    cm.DREP: Input.DREP,
}

_ABOUT: dict[type, cm.MessageRejected] = {
    cm.REQ: cm.MessageRejected.REQ,
    cm.REP: cm.MessageRejected.REP,
}
"""Rejected message of a REJ by the type of message."""

_REFUSED: dict[UnknownRefused, tuple[type, ...]] = {
    UnknownRefused.NONE: (),
    UnknownRefused.REP: (cm.REP,),
    UnknownRefused.RTU: (cm.RTU,),
    UnknownRefused.BOTH: (cm.REP, cm.RTU),
}
_ANSWERING: dict[type, Input] = {cm.REP: Input.REP, cm.RTU: Input.RTU}
_DRAWING_MRA: dict[MRAFor, tuple[Input, ...]] = {
    MRAFor.NONE: (),
    MRAFor.REQ: (Input.REQ,),
    MRAFor.REP: (Input.REP,),
    MRAFor.BOTH: (Input.REQ, Input.REP),
}
_UNDECIDED_DUPLICATES = ((State.REQ_RCVD, Input.REQ), (State.REP_RCVD, Input.REP))
"""The first duplicates before the application decides."""

_LATER_DUPLICATES = ((State.MRA_REQ_SENT, Input.REQ), (State.MRA_REP_SENT, Input.REP))
"""Those after an MRA."""

_REQ_AFTER_REP = State.REP_SENT, Input.REQ
"""A duplicate that draws the REP again."""

_REQ_AFTER_MRA = State.MRA_REP_RCVD, Input.REQ
"""A duplicate after the peer has asked for time."""

_RETRANSMITTED = frozenset({Send.REQ, Send.REP, Send.DREQ, Send.SIDR_REQ})
"""Messages that are retransmitted until they are answered."""

_UNDECIDED = frozenset({State.REQ_RCVD, State.MRA_REQ_SENT, State.SIDR_REQ_RCVD})
"""States that wait for a decision of the application."""
