"""The states of a connection and the table of its moves.

        active                                    passive

        IDLE                                      IDLE
         | CONNECT: sends REQ                      | REQ arrives
        REQ_SENT <--> MRA_REQ_RCVD                REQ_RCVD --> MRA_REQ_SENT
         | REP arrives                             | ACCEPT: sends REP
        REP_RCVD --> MRA_REP_SENT                 REP_SENT <--> MRA_REP_RCVD
         | READY: sends RTU                        | RTU arrives, or the first data
         +--------------> ESTABLISHED <------------+
                           | DISCONNECT: sends DREQ; or DREQ arrives: sends DREP
                          DREQ_SENT --> TIMEWAIT --> IDLE

The active side sends the REQ, the passive side has the listener. A message that needs an
answer (REQ, REP, DREQ, SIDR_REQ) is retransmitted after each timeout, up to the retries of the
REQ; then the wait has EXPIRED. A side that needs more time to decide sends an MRA, and the
peer waits for that time once before it retransmits; then the MRA is sent again.

An RTU is not answered. Its loss does no harm: the REP is retransmitted and answered with
another RTU, and the first data (COMM_EST) replaces it. A side that gives up sends a REJ, so
that the other side stops too. If the REJ is lost as well, a failure of the data or a DREQ ends
the other side.

TIMEWAIT lasts as long as packets of the connection may still be in the network. ANSWERED is
TIMEWAIT after a refused REQ or an answered SIDR_REQ: the answer may be lost, and a
retransmitted request gets the same answer.

Deliberately absent: DREQ_RCVD, because a DREQ is answered at once; alternate paths (LAP,
APR), which Linux ignores over RoCE as well; peer to peer connections. Inputs that are
not in the table are ignored.

Source: reference/cm#states; Linux `core/cm.c`, which has these states except ANSWERED.
Two differences make both sides end: Linux sends nothing when a REQ or REP has expired, and
removes a refused REQ at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum, auto
from typing import NamedTuple


class State(IntEnum):
    """State of a connection, or of the resolution of a service ID."""

    IDLE = auto()
    """Not started, or ended."""
    REQ_SENT = auto()
    REQ_RCVD = auto()
    MRA_REQ_SENT = auto()
    MRA_REQ_RCVD = auto()
    REP_SENT = auto()
    REP_RCVD = auto()
    MRA_REP_SENT = auto()
    MRA_REP_RCVD = auto()
    ESTABLISHED = auto()
    DREQ_SENT = auto()
    TIMEWAIT = auto()
    ANSWERED = auto()
    SIDR_REQ_SENT = auto()
    SIDR_REQ_RCVD = auto()


class Input(IntEnum):
    """Inputs of a connection: commands of the application, messages, timers."""

    CONNECT = auto()
    RESOLVE = auto()
    ACCEPT = auto()
    REJECT = auto()
    DELAY = auto()
    """The application needs more time."""
    READY = auto()
    """The active side's queue pair can receive."""
    DISCONNECT = auto()
    COMM_EST = auto()
    """The first data has arrived (`ib_cm_notify`)."""
    REQ = auto()
    MRA_REQ = auto()
    """An MRA about a REQ."""
    MRA_REP = auto()
    REP = auto()
    RTU = auto()
    REJ = auto()
    DREQ = auto()
    DREP = auto()
    SIDR_REQ = auto()
    SIDR_REP = auto()
    TIMEOUT = auto()
    """No answer in time."""
    EXPIRED = auto()
    """No answer to the last retransmission; or the end of TIMEWAIT or ANSWERED."""


class Send(IntEnum):
    """Message that a move sends."""

    REQ = auto()
    REP = auto()
    RTU = auto()
    MRA = auto()
    DREQ = auto()
    DREP = auto()
    """With the transaction ID of the received DREQ."""
    REJ = auto()
    """With the application's reason."""
    REJ_TIMEOUT = auto()
    REJ_STALE = auto()
    SIDR_REQ = auto()
    SIDR_REP = auto()
    RETRANSMIT = auto()
    """The last message again, byte for byte."""


class EventKind(IntEnum):
    """Events for the application, named as in `rdma_cm_event_type` where possible.

    For datagrams CONNECT_REQUEST and its result are RESOLVE_REQUEST and RESOLVED.
    """

    CONNECT_REQUEST = auto()
    """A REQ has arrived: accept, reject or delay it."""
    CONNECT_RESPONSE = auto()
    """The REP has arrived: bring the queue pair up and call `ready`, or reject."""
    ESTABLISHED = auto()
    REJECTED = auto()
    """The peer has sent a REJ."""
    UNREACHABLE = auto()
    """No answer to REQ, REP or SIDR_REQ."""
    DISCONNECTED = auto()
    """The queue pair must not be used any more, nor closed before TIMEWAIT_EXIT."""
    TIMEWAIT_EXIT = auto()
    """No packet of the connection is in the network any more."""
    RESOLVE_REQUEST = auto()
    """A SIDR_REQ has arrived: accept or reject it."""
    RESOLVED = auto()
    """A SIDR_REP has arrived, with any status."""


class Move(NamedTuple):
    """The next state, the message and the event of an input."""

    state: State
    send: Send | None = None
    event: EventKind | None = None


class Wait(IntEnum):
    """The timer that ends a state."""

    ANSWER = auto()
    """Waits for the answer of the peer; the message can be retransmitted."""
    SERVICE = auto()
    """The peer has requested more time; the message can be retransmitted afterwards."""
    LINGER = auto()
    """Packets of the connection may be in the network."""


WAITS: Mapping[State, Wait] = {
    State.REQ_SENT: Wait.ANSWER,
    State.REP_SENT: Wait.ANSWER,
    State.DREQ_SENT: Wait.ANSWER,
    State.SIDR_REQ_SENT: Wait.ANSWER,
    State.MRA_REQ_RCVD: Wait.SERVICE,
    State.MRA_REP_RCVD: Wait.SERVICE,
    State.TIMEWAIT: Wait.LINGER,
    State.ANSWERED: Wait.LINGER,
}
"""The states with a timer. The others wait for the application or for a message."""

_S, _I = State, Input
_REJECTED, _UNREACHABLE = EventKind.REJECTED, EventKind.UNREACHABLE
_ESTABLISHED, _DISCONNECTED = EventKind.ESTABLISHED, EventKind.DISCONNECTED

_ASKING: Mapping[Input, Move] = {
    _I.REP: Move(_S.REP_RCVD, event=EventKind.CONNECT_RESPONSE),
    _I.REJ: Move(_S.IDLE, event=_REJECTED),
    _I.REJECT: Move(_S.IDLE, Send.REJ),
    _I.TIMEOUT: Move(_S.REQ_SENT, Send.RETRANSMIT),
    _I.EXPIRED: Move(_S.IDLE, Send.REJ_TIMEOUT, _UNREACHABLE),
}
_DECIDING: Mapping[Input, Move] = {
    _I.ACCEPT: Move(_S.REP_SENT, Send.REP),
    _I.REJECT: Move(_S.ANSWERED, Send.REJ),
    _I.REJ: Move(_S.TIMEWAIT, event=_REJECTED),
}
_ANSWERED_REP: Mapping[Input, Move] = {
    _I.READY: Move(_S.ESTABLISHED, Send.RTU, _ESTABLISHED),
    _I.REJECT: Move(_S.TIMEWAIT, Send.REJ),
    _I.REJ: Move(_S.TIMEWAIT, event=_REJECTED),
}
_OFFERING: Mapping[Input, Move] = {
    _I.RTU: Move(_S.ESTABLISHED, event=_ESTABLISHED),
    _I.COMM_EST: Move(_S.ESTABLISHED, event=_ESTABLISHED),
    _I.DREQ: Move(_S.TIMEWAIT, Send.DREP, _DISCONNECTED),
    _I.REJ: Move(_S.TIMEWAIT, event=_REJECTED),
    _I.REJECT: Move(_S.TIMEWAIT, Send.REJ),
    _I.TIMEOUT: Move(_S.REP_SENT, Send.RETRANSMIT),
    _I.EXPIRED: Move(_S.TIMEWAIT, Send.REJ_TIMEOUT, _UNREACHABLE),
}

TRANSITIONS: Mapping[State, Mapping[Input, Move]] = {
    _S.IDLE: {
        _I.CONNECT: Move(_S.REQ_SENT, Send.REQ),
        _I.RESOLVE: Move(_S.SIDR_REQ_SENT, Send.SIDR_REQ),
        _I.REQ: Move(_S.REQ_RCVD, event=EventKind.CONNECT_REQUEST),
        _I.SIDR_REQ: Move(_S.SIDR_REQ_RCVD, event=EventKind.RESOLVE_REQUEST),
    },
    _S.REQ_SENT: {**_ASKING, _I.MRA_REQ: Move(_S.MRA_REQ_RCVD)},
    _S.MRA_REQ_RCVD: _ASKING,
    _S.REQ_RCVD: {
        **_DECIDING,
        _I.DELAY: Move(_S.MRA_REQ_SENT, Send.MRA),
        # An MRA is sent for a repeated REQ only, as by the RDMA-CM of Linux.
        _I.REQ: Move(_S.MRA_REQ_SENT, Send.MRA),
    },
    _S.MRA_REQ_SENT: {**_DECIDING, _I.REQ: Move(_S.MRA_REQ_SENT, Send.RETRANSMIT)},
    _S.REP_RCVD: {
        **_ANSWERED_REP,
        _I.DELAY: Move(_S.MRA_REP_SENT, Send.MRA),
        _I.REP: Move(_S.MRA_REP_SENT, Send.MRA),
    },
    _S.MRA_REP_SENT: {**_ANSWERED_REP, _I.REP: Move(_S.MRA_REP_SENT, Send.RETRANSMIT)},
    _S.REP_SENT: {
        **_OFFERING,
        _I.REQ: Move(_S.REP_SENT, Send.RETRANSMIT),
        _I.MRA_REP: Move(_S.MRA_REP_RCVD),
    },
    _S.MRA_REP_RCVD: _OFFERING,
    _S.ESTABLISHED: {
        _I.REP: Move(_S.ESTABLISHED, Send.RETRANSMIT),
        _I.DISCONNECT: Move(_S.DREQ_SENT, Send.DREQ),
        _I.DREQ: Move(_S.TIMEWAIT, Send.DREP, _DISCONNECTED),
        _I.REJ: Move(_S.TIMEWAIT, event=_REJECTED),
    },
    _S.DREQ_SENT: {
        _I.DREP: Move(_S.TIMEWAIT, event=_DISCONNECTED),
        _I.DREQ: Move(_S.TIMEWAIT, Send.DREP, _DISCONNECTED),
        _I.REJ: Move(_S.TIMEWAIT, event=_DISCONNECTED),
        _I.TIMEOUT: Move(_S.DREQ_SENT, Send.RETRANSMIT),
        _I.EXPIRED: Move(_S.TIMEWAIT, event=_DISCONNECTED),
    },
    _S.TIMEWAIT: {
        _I.DREQ: Move(_S.TIMEWAIT, Send.DREP),
        _I.REQ: Move(_S.TIMEWAIT, Send.REJ_STALE),
        # The peer still has the connection: it has not received the REJ.
        _I.REP: Move(_S.TIMEWAIT, Send.REJ_STALE),
        _I.RTU: Move(_S.TIMEWAIT, Send.REJ_STALE),
        _I.EXPIRED: Move(_S.IDLE, event=EventKind.TIMEWAIT_EXIT),
    },
    _S.ANSWERED: {
        _I.REQ: Move(_S.ANSWERED, Send.RETRANSMIT),
        _I.SIDR_REQ: Move(_S.ANSWERED, Send.RETRANSMIT),
        _I.EXPIRED: Move(_S.IDLE),
    },
    _S.SIDR_REQ_SENT: {
        _I.SIDR_REP: Move(_S.IDLE, event=EventKind.RESOLVED),
        _I.REJECT: Move(_S.IDLE),
        _I.TIMEOUT: Move(_S.SIDR_REQ_SENT, Send.RETRANSMIT),
        _I.EXPIRED: Move(_S.IDLE, event=_UNREACHABLE),
    },
    _S.SIDR_REQ_RCVD: {
        _I.ACCEPT: Move(_S.ANSWERED, Send.SIDR_REP),
        _I.REJECT: Move(_S.ANSWERED, Send.SIDR_REP),
    },
}
"""What each input does in each state."""

ACTIVE_INPUTS = frozenset({_I.REP, _I.MRA_REQ, _I.REJ, _I.DREQ, _I.DREP, _I.SIDR_REP})
"""Messages that mean something to the side that asks."""

PASSIVE_INPUTS = frozenset({_I.REQ, _I.RTU, _I.MRA_REP, _I.REJ, _I.DREQ, _I.DREP, _I.SIDR_REQ})
"""Messages for the side that listens; without this distinction a peer could make us
retransmit our REP by sending a REP itself.
"""
