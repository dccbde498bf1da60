"""The states of a connection that is made, kept and ended, and what moves it from one to the next.

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

The active side asks, the passive side listens. A message that needs an answer (REQ, REP,
DREQ, SIDR_REQ) is sent again whenever its time is over, as often as the REQ allows; then
the wait has EXPIRED. Whoever needs longer to decide sends an MRA, and the peer waits
that long once; then it asks again, and may be told again.

An RTU is not answered. Its loss does no harm: the REP comes again and gets it again, and
the first data that arrives (COMM_EST) stands for it. A side that gives up says so with a
REJ, so that the other does not stay behind; that one can be lost too, and then the
failure of the data, or a DREQ, shows the rest.

TIMEWAIT lasts as long as packets of the connection may still be on their way. ANSWERED
is TIMEWAIT for who has refused a REQ or served a SIDR_REQ: its answer may be lost, and
the question that comes again gets the same answer.

Deliberately absent: DREQ_RCVD, because a DREQ is answered at once; alternate paths (LAP,
APR), which Linux ignores over RoCE as well; peer to peer connections. Inputs that are
not in the table are ignored.

Source: reference/cm#states; Linux `core/cm.c`, whose states these are, but for ANSWERED.
Where it differs, to end both sides rather than one: Linux is silent when a REQ or REP
has expired and forgets a refused REQ at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum, auto
from typing import NamedTuple


class State(IntEnum):
    """Where a connection, or the resolution of a service ID, stands."""

    IDLE = auto()
    """Not begun, or over."""
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
    """What a connection hears: commands of the application, messages, the clock."""

    CONNECT = auto()
    RESOLVE = auto()
    ACCEPT = auto()
    REJECT = auto()
    DELAY = auto()
    """The application needs longer."""
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
    """No answer to the last repetition either; or the time in TIMEWAIT or ANSWERED is over."""


class Send(IntEnum):
    """What a move sends."""

    REQ = auto()
    REP = auto()
    RTU = auto()
    MRA = auto()
    DREQ = auto()
    DREP = auto()
    """With the transaction of the DREQ that has come."""
    REJ = auto()
    """With the application's reason."""
    REJ_TIMEOUT = auto()
    REJ_STALE = auto()
    SIDR_REQ = auto()
    SIDR_REP = auto()
    AGAIN = auto()
    """The last message once more, byte for byte."""


class EventKind(IntEnum):
    """What the application is told; the names are those of `rdma_cm_event_type`, where it has them.

    A datagram's CONNECT_REQUEST and its end are RESOLVE_REQUEST and RESOLVED here.
    """

    CONNECT_REQUEST = auto()
    """A REQ has come: accept, reject or delay it."""
    CONNECT_RESPONSE = auto()
    """The REP has come: bring the queue pair up and say `ready`, or reject."""
    ESTABLISHED = auto()
    REJECTED = auto()
    """The peer has sent a REJ."""
    UNREACHABLE = auto()
    """No answer to REQ, REP or SIDR_REQ."""
    DISCONNECTED = auto()
    """The queue pair must not be used any more, and not be closed before TIMEWAIT_EXIT."""
    TIMEWAIT_EXIT = auto()
    """Nothing of the connection is under way any more."""
    RESOLVE_REQUEST = auto()
    """A SIDR_REQ has come: accept or reject it."""
    RESOLVED = auto()
    """A SIDR_REP has come, whatever its status."""


class Move(NamedTuple):
    """What an input does."""

    state: State
    send: Send | None = None
    tell: EventKind | None = None


class Wait(IntEnum):
    """What ends a state by itself."""

    ANSWER = auto()
    """The answer of the peer is due; the question can be repeated."""
    SERVICE = auto()
    """The peer has asked for more time; the question can be repeated afterwards."""
    LINGER = auto()
    """Packets of the connection may be under way."""


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
"""The states that a timer ends. The others wait for the application, or for good."""

_S, _I = State, Input
_REJECTED, _UNREACHABLE = EventKind.REJECTED, EventKind.UNREACHABLE
_ESTABLISHED, _DISCONNECTED = EventKind.ESTABLISHED, EventKind.DISCONNECTED

_ASKING: Mapping[Input, Move] = {
    _I.REP: Move(_S.REP_RCVD, tell=EventKind.CONNECT_RESPONSE),
    _I.REJ: Move(_S.IDLE, tell=_REJECTED),
    _I.REJECT: Move(_S.IDLE, Send.REJ),
    _I.TIMEOUT: Move(_S.REQ_SENT, Send.AGAIN),
    _I.EXPIRED: Move(_S.IDLE, Send.REJ_TIMEOUT, _UNREACHABLE),
}
_DECIDING: Mapping[Input, Move] = {
    _I.ACCEPT: Move(_S.REP_SENT, Send.REP),
    _I.REJECT: Move(_S.ANSWERED, Send.REJ),
    _I.REJ: Move(_S.TIMEWAIT, tell=_REJECTED),
}
_ANSWERED_REP: Mapping[Input, Move] = {
    _I.READY: Move(_S.ESTABLISHED, Send.RTU, _ESTABLISHED),
    _I.REJECT: Move(_S.TIMEWAIT, Send.REJ),
    _I.REJ: Move(_S.TIMEWAIT, tell=_REJECTED),
}
_OFFERING: Mapping[Input, Move] = {
    _I.RTU: Move(_S.ESTABLISHED, tell=_ESTABLISHED),
    _I.COMM_EST: Move(_S.ESTABLISHED, tell=_ESTABLISHED),
    _I.DREQ: Move(_S.TIMEWAIT, Send.DREP, _DISCONNECTED),
    _I.REJ: Move(_S.TIMEWAIT, tell=_REJECTED),
    _I.REJECT: Move(_S.TIMEWAIT, Send.REJ),
    _I.TIMEOUT: Move(_S.REP_SENT, Send.AGAIN),
    _I.EXPIRED: Move(_S.TIMEWAIT, Send.REJ_TIMEOUT, _UNREACHABLE),
}

TRANSITIONS: Mapping[State, Mapping[Input, Move]] = {
    _S.IDLE: {
        _I.CONNECT: Move(_S.REQ_SENT, Send.REQ),
        _I.RESOLVE: Move(_S.SIDR_REQ_SENT, Send.SIDR_REQ),
        _I.REQ: Move(_S.REQ_RCVD, tell=EventKind.CONNECT_REQUEST),
        _I.SIDR_REQ: Move(_S.SIDR_REQ_RCVD, tell=EventKind.RESOLVE_REQUEST),
    },
    _S.REQ_SENT: {**_ASKING, _I.MRA_REQ: Move(_S.MRA_REQ_RCVD)},
    _S.MRA_REQ_RCVD: _ASKING,
    _S.REQ_RCVD: {
        **_DECIDING,
        _I.DELAY: Move(_S.MRA_REQ_SENT, Send.MRA),
        # Only who is asked twice says that it needs time, as the RDMA-CM of Linux does.
        _I.REQ: Move(_S.MRA_REQ_SENT, Send.MRA),
    },
    _S.MRA_REQ_SENT: {**_DECIDING, _I.REQ: Move(_S.MRA_REQ_SENT, Send.AGAIN)},
    _S.REP_RCVD: {
        **_ANSWERED_REP,
        _I.DELAY: Move(_S.MRA_REP_SENT, Send.MRA),
        _I.REP: Move(_S.MRA_REP_SENT, Send.MRA),
    },
    _S.MRA_REP_SENT: {**_ANSWERED_REP, _I.REP: Move(_S.MRA_REP_SENT, Send.AGAIN)},
    _S.REP_SENT: {
        **_OFFERING,
        _I.REQ: Move(_S.REP_SENT, Send.AGAIN),
        _I.MRA_REP: Move(_S.MRA_REP_RCVD),
    },
    _S.MRA_REP_RCVD: _OFFERING,
    _S.ESTABLISHED: {
        _I.REP: Move(_S.ESTABLISHED, Send.AGAIN),
        _I.DISCONNECT: Move(_S.DREQ_SENT, Send.DREQ),
        _I.DREQ: Move(_S.TIMEWAIT, Send.DREP, _DISCONNECTED),
        _I.REJ: Move(_S.TIMEWAIT, tell=_REJECTED),
    },
    _S.DREQ_SENT: {
        _I.DREP: Move(_S.TIMEWAIT, tell=_DISCONNECTED),
        _I.DREQ: Move(_S.TIMEWAIT, Send.DREP, _DISCONNECTED),
        _I.REJ: Move(_S.TIMEWAIT, tell=_DISCONNECTED),
        _I.TIMEOUT: Move(_S.DREQ_SENT, Send.AGAIN),
        _I.EXPIRED: Move(_S.TIMEWAIT, tell=_DISCONNECTED),
    },
    _S.TIMEWAIT: {
        _I.DREQ: Move(_S.TIMEWAIT, Send.DREP),
        _I.REQ: Move(_S.TIMEWAIT, Send.REJ_STALE),
        # The peer believes that there is a connection: it has not heard that there is none.
        _I.REP: Move(_S.TIMEWAIT, Send.REJ_STALE),
        _I.RTU: Move(_S.TIMEWAIT, Send.REJ_STALE),
        _I.EXPIRED: Move(_S.IDLE, tell=EventKind.TIMEWAIT_EXIT),
    },
    _S.ANSWERED: {
        _I.REQ: Move(_S.ANSWERED, Send.AGAIN),
        _I.SIDR_REQ: Move(_S.ANSWERED, Send.AGAIN),
        _I.EXPIRED: Move(_S.IDLE),
    },
    _S.SIDR_REQ_SENT: {
        _I.SIDR_REP: Move(_S.IDLE, tell=EventKind.RESOLVED),
        _I.REJECT: Move(_S.IDLE),
        _I.TIMEOUT: Move(_S.SIDR_REQ_SENT, Send.AGAIN),
        _I.EXPIRED: Move(_S.IDLE, tell=_UNREACHABLE),
    },
    _S.SIDR_REQ_RCVD: {
        _I.ACCEPT: Move(_S.ANSWERED, Send.SIDR_REP),
        _I.REJECT: Move(_S.ANSWERED, Send.SIDR_REP),
    },
}
"""What each input does in each state."""

ACTIVE_HEARS = frozenset({_I.REP, _I.MRA_REQ, _I.REJ, _I.DREQ, _I.DREP, _I.SIDR_REP})
"""Messages that mean something to the side that asks."""

PASSIVE_HEARS = frozenset({_I.REQ, _I.RTU, _I.MRA_REP, _I.REJ, _I.DREQ, _I.DREP, _I.SIDR_REQ})
"""Messages that mean something to the side that listens; without the distinction a peer
could have a REP of ours sent again by a REP of its own."""
