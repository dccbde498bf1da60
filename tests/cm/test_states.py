"""Every state with every input, against a table that is typed here a second time.

A manager is brought into each state by messages and commands, hears each input, and its
state, what it sends and what it tells are looked at.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import count, product
from typing import Any

import pytest

from each_case import each_case
from examples import sampled
from ibwire.base.errors import VerbsError
from ibwire.base.units import US
from ibwire.cm import (
    Connection,
    ConnectionManager,
    Endpoints,
    State,
    Timing,
    reply,
    request,
    resolve_reply,
    resolve_request,
)
from ibwire.cm.messages import Message, decode, encode
from ibwire.cm.states import TRANSITIONS, WAITS, Input, Wait
from ibwire.rc.attributes import AddressVector
from ibwire.rc.device import gid_of
from ibwire_layers import cm

OWN, PEER = gid_of("10.0.0.1"), gid_of("10.0.0.2")
WAY = AddressVector(dgid=PEER)
PEER_ID, PEER_GUID, PEER_QPN = 0xB0B, 0xBEEF, 0x77
SERVICE = 0x1061C06

# reference/cm#states, Linux core/cm.c (cm_*_handler, ib_send_cm_*, cm_process_send_error); the
# docstring of states.py says where we differ. A line is: state, input, new state, message
# sent, event. What is not listed changes nothing and sends nothing; a command raises EINVAL.
ACTIVE = """
REQ_SENT      MRA_REQ     MRA_REQ_RCVD  -     -
REQ_SENT      REP         REP_RCVD      -     CONNECT_RESPONSE
REQ_SENT      REJ         IDLE          -     REJECTED
REQ_SENT      REJECT      IDLE          REJ   -
REQ_SENT      TIMEOUT     REQ_SENT      REQ   -
REQ_SENT      EXPIRED     IDLE          REJ   UNREACHABLE
MRA_REQ_RCVD  REP         REP_RCVD      -     CONNECT_RESPONSE
MRA_REQ_RCVD  REJ         IDLE          -     REJECTED
MRA_REQ_RCVD  REJECT      IDLE          REJ   -
MRA_REQ_RCVD  TIMEOUT     REQ_SENT      REQ   -
MRA_REQ_RCVD  EXPIRED     IDLE          REJ   UNREACHABLE
REP_RCVD      READY       ESTABLISHED   RTU   ESTABLISHED
REP_RCVD      DELAY       MRA_REP_SENT  MRA   -
REP_RCVD      REP         MRA_REP_SENT  MRA   -
REP_RCVD      REJ         TIMEWAIT      -     REJECTED
REP_RCVD      REJECT      TIMEWAIT      REJ   -
MRA_REP_SENT  READY       ESTABLISHED   RTU   ESTABLISHED
MRA_REP_SENT  REP         MRA_REP_SENT  MRA   -
MRA_REP_SENT  REJ         TIMEWAIT      -     REJECTED
MRA_REP_SENT  REJECT      TIMEWAIT      REJ   -
ESTABLISHED   REP         ESTABLISHED   RTU   -
ESTABLISHED   DISCONNECT  DREQ_SENT     DREQ  -
ESTABLISHED   DREQ        TIMEWAIT      DREP  DISCONNECTED
ESTABLISHED   REJ         TIMEWAIT      -     REJECTED
DREQ_SENT     DREP        TIMEWAIT      -     DISCONNECTED
DREQ_SENT     DREQ        TIMEWAIT      DREP  DISCONNECTED
DREQ_SENT     REJ         TIMEWAIT      -     DISCONNECTED
DREQ_SENT     TIMEOUT     DREQ_SENT     DREQ  -
DREQ_SENT     EXPIRED     TIMEWAIT      -     DISCONNECTED
TIMEWAIT      DREQ        TIMEWAIT      DREP  -
TIMEWAIT      REP         TIMEWAIT      REJ   -
TIMEWAIT      EXPIRED     IDLE          -     TIMEWAIT_EXIT
"""

PASSIVE = """
REQ_RCVD      REQ         MRA_REQ_SENT  MRA   -
REQ_RCVD      DELAY       MRA_REQ_SENT  MRA   -
REQ_RCVD      ACCEPT      REP_SENT      REP   -
REQ_RCVD      REJECT      ANSWERED      REJ   -
REQ_RCVD      REJ_TIMEOUT TIMEWAIT      -     REJECTED
MRA_REQ_SENT  REQ         MRA_REQ_SENT  MRA   -
MRA_REQ_SENT  ACCEPT      REP_SENT      REP   -
MRA_REQ_SENT  REJECT      ANSWERED      REJ   -
MRA_REQ_SENT  REJ         TIMEWAIT      -     REJECTED
MRA_REQ_SENT  REJ_TIMEOUT TIMEWAIT      -     REJECTED
REQ_RCVD      REJ         TIMEWAIT      -     REJECTED
REP_SENT      REQ         REP_SENT      REP   -
REP_SENT      RTU         ESTABLISHED   -     ESTABLISHED
REP_SENT      COMM_EST    ESTABLISHED   -     ESTABLISHED
REP_SENT      MRA_REP     MRA_REP_RCVD  -     -
REP_SENT      DREQ        TIMEWAIT      DREP  DISCONNECTED
REP_SENT      REJ         TIMEWAIT      -     REJECTED
REP_SENT      REJ_TIMEOUT TIMEWAIT      -     REJECTED
REP_SENT      REJECT      TIMEWAIT      REJ   -
REP_SENT      TIMEOUT     REP_SENT      REP   -
REP_SENT      EXPIRED     TIMEWAIT      REJ   UNREACHABLE
MRA_REP_RCVD  RTU         ESTABLISHED   -     ESTABLISHED
MRA_REP_RCVD  COMM_EST    ESTABLISHED   -     ESTABLISHED
MRA_REP_RCVD  DREQ        TIMEWAIT      DREP  DISCONNECTED
MRA_REP_RCVD  REJ         TIMEWAIT      -     REJECTED
MRA_REP_RCVD  REJ_TIMEOUT TIMEWAIT      -     REJECTED
MRA_REP_RCVD  REJECT      TIMEWAIT      REJ   -
MRA_REP_RCVD  TIMEOUT     REP_SENT      REP   -
MRA_REP_RCVD  EXPIRED     TIMEWAIT      REJ   UNREACHABLE
ESTABLISHED   DISCONNECT  DREQ_SENT     DREQ  -
ESTABLISHED   DREQ        TIMEWAIT      DREP  DISCONNECTED
ESTABLISHED   REJ         TIMEWAIT      -     REJECTED
ESTABLISHED   REJ_TIMEOUT TIMEWAIT      -     REJECTED
DREQ_SENT     DREP        TIMEWAIT      -     DISCONNECTED
DREQ_SENT     DREQ        TIMEWAIT      DREP  DISCONNECTED
DREQ_SENT     REJ         TIMEWAIT      -     DISCONNECTED
DREQ_SENT     REJ_TIMEOUT TIMEWAIT      -     DISCONNECTED
DREQ_SENT     TIMEOUT     DREQ_SENT     DREQ  -
DREQ_SENT     EXPIRED     TIMEWAIT      -     DISCONNECTED
TIMEWAIT      DREQ        TIMEWAIT      DREP  -
TIMEWAIT      REQ         TIMEWAIT      REJ   -
TIMEWAIT      RTU         TIMEWAIT      REJ   -
TIMEWAIT      EXPIRED     IDLE          -     TIMEWAIT_EXIT
ANSWERED      REQ         ANSWERED      REJ   -
ANSWERED      EXPIRED     IDLE          -     -
"""

DATAGRAM_ACTIVE = """
SIDR_REQ_SENT  SIDR_REP  IDLE           -         RESOLVED
SIDR_REQ_SENT  REJECT    IDLE           -         -
SIDR_REQ_SENT  TIMEOUT   SIDR_REQ_SENT  SIDR_REQ  -
SIDR_REQ_SENT  EXPIRED   IDLE           -         UNREACHABLE
"""

DATAGRAM_PASSIVE = """
SIDR_REQ_RCVD  ACCEPT    ANSWERED  SIDR_REP  -
SIDR_REQ_RCVD  REJECT    ANSWERED  SIDR_REP  -
ANSWERED       SIDR_REQ  ANSWERED  SIDR_REP  -
ANSWERED       EXPIRED   IDLE      -         -
"""

WAYS_IN = {
    ("active", "REQ_SENT"): "CONNECT",
    ("active", "MRA_REQ_RCVD"): "CONNECT MRA_REQ",
    ("active", "REP_RCVD"): "CONNECT REP",
    ("active", "MRA_REP_SENT"): "CONNECT REP DELAY",
    ("active", "ESTABLISHED"): "CONNECT REP READY",
    ("active", "DREQ_SENT"): "CONNECT REP READY DISCONNECT",
    ("active", "TIMEWAIT"): "CONNECT REP READY DISCONNECT DREP",
    ("passive", "REQ_RCVD"): "REQ",
    ("passive", "MRA_REQ_SENT"): "REQ DELAY",
    ("passive", "REP_SENT"): "REQ ACCEPT",
    ("passive", "MRA_REP_RCVD"): "REQ ACCEPT MRA_REP",
    ("passive", "ESTABLISHED"): "REQ ACCEPT RTU",
    ("passive", "DREQ_SENT"): "REQ ACCEPT RTU DISCONNECT",
    ("passive", "TIMEWAIT"): "REQ ACCEPT RTU DREQ",
    ("passive", "ANSWERED"): "REQ REJECT",
    ("datagram active", "SIDR_REQ_SENT"): "RESOLVE",
    ("datagram passive", "SIDR_REQ_RCVD"): "SIDR_REQ",
    ("datagram passive", "ANSWERED"): "SIDR_REQ ACCEPT",
}

TABLES = {
    "active": ACTIVE,
    "passive": PASSIVE,
    "datagram active": DATAGRAM_ACTIVE,
    "datagram passive": DATAGRAM_PASSIVE,
}

Row = tuple[str, str, str]

EXPECTED: dict[tuple[str, str, str], Row] = {}
for _side, _text in TABLES.items():
    for _line in _text.strip().splitlines():
        _state, _input, *_rest = _line.split()
        EXPECTED[_side, _state, _input] = (_rest[0], _rest[1], _rest[2])

INPUTS = [each.name for each in Input if each.name not in ("CONNECT", "RESOLVE")] + ["REJ_TIMEOUT"]
COMMANDS = {"ACCEPT", "REJECT", "DELAY", "READY", "DISCONNECT"}


class Bench:
    """A manager of one connection, and a peer that says whatever is asked of it."""

    def __init__(self, side: str, retries: int) -> None:
        self.side = side
        timing = Timing(max_cm_retries=retries)
        self.manager = ConnectionManager([OWN], 0xA11CE, ((n, n << 8) for n in count(0x51)), timing)
        self.manager.listen(SERVICE)
        self.now = 0
        self.connection: Connection | None = None
        ends = [(OWN, PEER), (PEER, OWN)]["passive" in side]
        self.req = request(
            service_id=SERVICE,
            source=ends[0],
            destination=ends[1],
            qpn=0x11,
            starting_psn=1,
            timing=timing,
        )
        self.sidr = resolve_request(Endpoints(ends[0], 9, ends[1], 7174))

    def hear(self, message: Message) -> None:
        self.manager.handle_mad(encode(message, 0x7A), WAY, self.now)

    def do(self, name: str) -> None:
        manager, now = self.manager, self.now
        connection = self.connection
        own_id = connection.local_id if connection else 0
        remote = connection.remote_id if connection and connection.remote_id else PEER_ID
        before_rep = connection is not None and not connection.remote_id
        if name == "CONNECT":
            manager.connect(self.req, now)
        elif name == "RESOLVE":
            manager.resolve(self.sidr, WAY, now)
        elif name in COMMANDS:
            assert connection is not None
            datagram = "datagram" in self.side
            answer = resolve_reply(3) if datagram else reply(qpn=0x22, starting_psn=2)
            commands: dict[str, Callable[[], None]] = {
                "ACCEPT": lambda: manager.accept(connection, answer, now),
                "REJECT": lambda: manager.reject(connection, now),
                "DELAY": lambda: manager.delay(connection, now),
                "READY": lambda: manager.ready(connection, now),
                "DISCONNECT": lambda: manager.disconnect(connection, now),
            }
            commands[name]()
        elif name == "COMM_EST":
            manager.handle_established(0x22, now)
        elif name in ("TIMEOUT", "EXPIRED"):
            target = connection.deadline if connection else None
            while target is not None and (due := manager.poll_timeout()) is not None:
                if due > target:
                    break
                self.now = due
                manager.handle_timeout(due)
        else:
            local_qpn = (connection.local_qpn if connection else None) or 0
            ids: dict[str, Any] = {"local_comm_id": remote, "remote_comm_id": own_id}
            about = cm.MessageRejected.REQ if before_rep else cm.MessageRejected.OTHER
            guid = PEER_GUID.to_bytes(8).ljust(72, b"\0")
            messages: dict[str, Message] = {
                "REQ": _changed(self.req, local_comm_id=PEER_ID, local_ca_guid=PEER_GUID),
                "REP": _changed(
                    reply(qpn=PEER_QPN, starting_psn=5), local_ca_guid=PEER_GUID, **ids
                ),
                "RTU": cm.RTU(**ids),
                "MRA_REQ": cm.MRA(message_mraed=0, service_timeout=22, **ids),
                "MRA_REP": cm.MRA(message_mraed=1, service_timeout=22, **ids),
                "REJ": cm.REJ(message_rejected=about, reason=28, **ids),
                "REJ_TIMEOUT": cm.REJ(local_comm_id=remote, reason=4, message_rejected=2, ari=guid),
                "DREQ": cm.DREQ(remote_qpn=local_qpn, **ids),
                "DREP": cm.DREP(**ids),
                "SIDR_REQ": _changed(self.sidr, request_id=PEER_ID),
                "SIDR_REP": cm.SIDR_REP(request_id=own_id, qpn=9),
            }
            self.hear(messages[name])
        if self.connection is None:
            self.connection = next(iter(manager.connections), None)

    def output(self) -> tuple[str, str]:
        """Messages that wait to be sent, and events, by name."""
        sent, told = [], []
        while (out := self.manager.poll_transmit(self.now)) is not None:
            received = decode(out[0])
            assert received is not None
            assert out[1].dgid == PEER
            sent.append(type(received.message).__name__)
        while (event := self.manager.poll_event()) is not None:
            told.append(event.kind.name)
        return " ".join(sent) or "-", " ".join(told) or "-"


def _changed(message: Message, **fields: Any) -> Message:
    return replace(message, **fields)


def bench(side: str, state: str, retries: int) -> Bench:
    made = Bench(side, retries)
    for step in WAYS_IN[side, state].split():
        made.do(step)
    made.output()
    assert made.connection is not None
    assert made.connection.state.name == state
    return made


STRAYS = {"REP": "REJ", "RTU": "REJ", "DREQ": "DREP"}
"""What is said to messages about no connection: an active side before the REP does not know the
peer's ID, and datagrams have none."""

BEGINNINGS = {"REQ": "passive", "SIDR_REQ": "datagram passive"}
"""Messages that on any other side would begin another connection."""

CASES = [
    (*way, what) for way, what in product(WAYS_IN, INPUTS) if BEGINNINGS.get(what, way[0]) == way[0]
]


@each_case(("side", "state", "what"), sampled(CASES, 3, are_tuples=True))
def test_input_does_what_the_table_says(side: str, state: str, what: str) -> None:
    made = bench(side, state, retries=0 if what == "EXPIRED" else 3)
    connection = made.connection
    assert connection is not None
    entry = what
    if what == "TIMEOUT" and WAITS.get(connection.state) is Wait.LINGER:
        entry = "EXPIRED"
    if what == "REJ_TIMEOUT" and side == "active" and connection.remote_id:
        entry = "REJ"  # it names the sender's ID, which is known from the REP on
    unchanged = (state, "-", "-")
    if what in STRAYS and ("datagram" in side or (what != "REP" and not connection.remote_id)):
        unchanged = (state, STRAYS[what], "-")
    expected = EXPECTED.get((side, state, entry), unchanged)

    if what in COMMANDS and (side, state, what) not in EXPECTED:
        with pytest.raises(VerbsError):
            made.do(what)
    else:
        made.do(what)

    assert (connection.state.name, *made.output()) == expected


def test_every_line_is_in_the_table_of_the_program() -> None:
    listed = {
        (state, "REJ" if what == "REJ_TIMEOUT" else what): row[0]
        for (_, state, what), row in EXPECTED.items()
    }
    listed |= {("IDLE", what): "" for what in ("CONNECT", "RESOLVE", "REQ", "SIDR_REQ")}

    present = {(state.name, what.name) for state, moves in TRANSITIONS.items() for what in moves}

    assert present == set(listed)


def test_nothing_waits_for_ever_for_a_peer() -> None:
    """Each state either waits for our own application, or ends by a timer, or is the aim."""
    own = {
        State.REQ_RCVD,
        State.MRA_REQ_SENT,
        State.REP_RCVD,
        State.MRA_REP_SENT,
        State.SIDR_REQ_RCVD,
    }

    assert set(State) == own | set(WAITS) | {State.IDLE, State.ESTABLISHED}
    for state, wait in WAITS.items():
        assert Input.EXPIRED in TRANSITIONS[state]
        assert (Input.TIMEOUT in TRANSITIONS[state]) == (wait is not Wait.LINGER)


def test_request_waits_as_long_as_the_peer_says_it_needs() -> None:
    """2 x 2^18 + 2^20 units of 4.096 us (Linux `ib_send_cm_req`), and 15 repetitions."""
    made = bench("active", "REQ_SENT", retries=15)
    times = []
    while made.connection is not None and made.connection.state is State.REQ_SENT:
        made.do("TIMEOUT")
        times.append(made.now)

    first = (2 * 2**18 + 2**20) * 4096 * US // 1000
    assert times == [first * n for n in range(1, 17)]


def test_mra_postpones_the_repetition_once() -> None:
    """By 2^22 units of service and 2^19 of way (Linux `cm_mra_handler`); a second MRA adds none."""
    made = bench("active", "MRA_REQ_RCVD", retries=3)
    made.now = 5 * US
    made.do("MRA_REQ")
    made.do("TIMEOUT")

    assert made.now == (2**22 + 2**19) * 4096 * US // 1000
    assert made.output() == ("REQ", "-")


def test_peer_can_not_ask_for_more_than_a_minute_or_so() -> None:
    """The code of an MRA goes to 31, which is 2.4 hours."""
    made = bench("active", "REQ_SENT", retries=3)
    made.hear(
        cm.MRA(local_comm_id=PEER_ID, remote_comm_id=0x51, message_mraed=0, service_timeout=31)
    )
    made.do("TIMEOUT")

    assert made.now == (2**24 + 2**19) * 4096 * US // 1000
