"""Hostile peers: nothing raises, nothing grows without bound, no other connection is affected."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from each_case import each_case
from examples import scaled
from ibwire.base.errors import EncodeError, VerbsError
from ibwire.base.units import S
from ibwire.cm import (
    Connection,
    ConnectionManager,
    EventKind,
    State,
    identifiers,
    reply,
    request,
    resolve_reply,
)
from ibwire.cm.messages import Message, Received, decode, encode
from ibwire.cm.timers import Timers
from ibwire.rc.attributes import AddressVector
from ibwire.rc.device import gid_of
from ibwire_layers import cm
from ibwire_layers.cm import RejectReason
from ibwire_layers.mad import MAD

OWN, PEER, STRANGER = gid_of("10.0.0.1"), gid_of("10.0.0.2"), gid_of("10.0.0.3")
WAY, OTHER_WAY = AddressVector(dgid=PEER), AddressVector(dgid=STRANGER)
SERVICE = 0x1061C06


def manager() -> ConnectionManager:
    made = ConnectionManager([OWN], 0xA11CE, identifiers(random.Random(1)))
    made.listen(SERVICE)
    return made


def req(comm_id: int = 0xB0B, qpn: int = 0x77, **fields: Any) -> cm.REQ:
    made = request(service_id=SERVICE, source=PEER, destination=OWN, qpn=qpn, starting_psn=1)
    return replace(made, local_comm_id=comm_id, local_ca_guid=0xBEEF, **fields)


def sent(made: ConnectionManager) -> list[Received]:
    found = [decode(mad) for mad, _ in iter(lambda: made.poll_transmit(0), None)]
    return [each for each in found if each is not None]


def established(made: ConnectionManager) -> Connection:
    made.handle_mad(encode(req(), 7), WAY, 0)
    (connection,) = made.connections
    made.accept(connection, reply(qpn=0x22, starting_psn=2), 0)
    made.handle_mad(encode(ids(connection, cm.RTU()), 7), WAY, 0)
    assert connection.state is State.ESTABLISHED
    sent(made)
    return connection


def settle(made: ConnectionManager, now: int) -> None:
    """Let all timers come; an ESTABLISHED connection has none."""
    made.handle_timeout(now)
    for _ in range(40 * (len(made.connections) + 1)):
        due = made.poll_timeout()
        if due is None:
            return
        made.handle_timeout(max(now, due))
    raise AssertionError("timers without end")


def ids(connection: Connection, message: Message) -> Message:
    return replace(message, local_comm_id=connection.remote_id, remote_comm_id=connection.local_id)


MESSAGES = [
    cm.REQ,
    cm.MRA,
    cm.REJ,
    cm.REP,
    cm.RTU,
    cm.DREQ,
    cm.DREP,
    cm.SIDR_REQ,
    cm.SIDR_REP,
    cm.LAP,
    cm.APR,
]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("base_version", 2),
        ("mgmt_class", 3),
        ("class_version", 1),
        ("method", 0x81),
        ("attribute_id", 0x0F),
        ("attribute_id", 0x1B),
    ],
)
def test_foreign_mad_is_dropped(field: str, value: int) -> None:
    made = manager()
    mad = encode(req(), 7)
    common = replace(MAD.unpack(mad), **{field: value})
    made.handle_mad(common.pack() + mad[MAD.SIZE :], WAY, 0)

    assert made.counters == {"malformed": 1}
    assert len(made.connections) == 0
    assert sent(made) == []


@each_case("size", [0, 1, 23, 24, 255, 257, 4096])
def test_mad_of_another_size_is_dropped(size: int) -> None:
    made = manager()
    made.handle_mad(encode(req(), 7).ljust(4096, b"\0")[:size], WAY, 0)

    assert made.counters == {"malformed": 1}
    assert sent(made) == []


@each_case(
    ("fields", "reason", "ari"),
    [
        ({"service_id": 9}, RejectReason.INVALID_SERVICE_ID, b""),
        ({"transport_service_type": 2}, RejectReason.INVALID_TRANSPORT_TYPE, b""),
        ({"transport_service_type": 3}, RejectReason.INVALID_TRANSPORT_TYPE, b""),
        ({"path_packet_payload_mtu": 0}, RejectReason.INVALID_MTU, b""),
        ({"path_packet_payload_mtu": 6}, RejectReason.INVALID_MTU, b""),
        (
            {"primary_remote_gid": STRANGER},
            RejectReason.INVALID_PRIMARY_GID,
            bytes.fromhex("00000000000000000000ffff0a000001"),
        ),
    ],
)
def test_request_that_can_not_be_is_refused_and_forgotten(
    fields: dict[str, int], reason: RejectReason, ari: bytes
) -> None:
    made = manager()
    made.handle_mad(encode(req(**fields), 7), WAY, 0)

    (answer,) = sent(made)
    rej = answer.message
    assert isinstance(rej, cm.REJ)
    assert answer.transaction_id == 7
    assert (rej.local_comm_id, rej.remote_comm_id, rej.message_rejected) == (0, 0xB0B, 0)
    assert (rej.reason, rej.ari[: rej.reject_info_length]) == (reason, ari)
    assert len(made.connections) == 0


def test_queue_pair_that_is_connected_already_makes_the_old_connection_stale() -> None:
    """Linux `cm_match_req`: REJ 10 to the new one, DREQ over the old one."""
    made = manager()
    old = established(made)
    made.handle_mad(encode(req(comm_id=0xB0C), 8), WAY, 0)

    rej, dreq = (each.message for each in sent(made))
    # The order is free.
    rej, dreq = (rej, dreq) if isinstance(rej, cm.REJ) else (dreq, rej)
    assert isinstance(rej, cm.REJ)
    assert isinstance(dreq, cm.DREQ)
    assert rej.reason == RejectReason.STALE_CONNECTION
    assert dreq.remote_qpn == 0x77
    assert old.state is State.DREQ_SENT


@pytest.mark.parametrize(
    ("comm_id", "answers", "state"),
    [(0xB0B, [], State.ESTABLISHED), (0xB0C, [cm.DREQ, cm.REJ], State.DREQ_SENT)],
    ids=["with its ID", "with another"],
)
def test_reply_for_a_queue_pair_that_is_connected_already(
    comm_id: int, answers: list[type], state: State
) -> None:
    """Linux `cm_rep_handler`: an ID that it knows is looked at before a stale queue pair."""
    made = manager()
    old = established(made)
    new = made.connect(
        request(service_id=1, source=OWN, destination=PEER, qpn=5, starting_psn=0), 0
    )
    sent(made)
    rep = cm.REP(local_comm_id=comm_id, remote_comm_id=new.local_id, local_qpn=0x77)
    made.handle_mad(encode(replace(rep, local_ca_guid=0xBEEF), 8), WAY, 0)

    assert sorted((type(each.message) for each in sent(made)), key=str) == answers
    assert old.state is state


@pytest.mark.parametrize(
    "message",
    [cm.DREQ(remote_qpn=0x22), cm.REJ(reason=28, message_rejected=2), cm.DREP(), cm.RTU()],
    ids=lambda m: type(m).__name__,
)
def test_stranger_who_knows_the_ids_changes_nothing(message: Message) -> None:
    made = manager()
    connection = established(made)
    made.handle_mad(encode(ids(connection, message), 9), OTHER_WAY, 0)

    assert connection.state is State.ESTABLISHED


def test_dreq_for_another_queue_pair_changes_nothing() -> None:
    made = manager()
    connection = established(made)
    made.handle_mad(encode(ids(connection, cm.DREQ(remote_qpn=0x23)), 9), WAY, 0)

    assert connection.state is State.ESTABLISHED
    assert sent(made) == []


def test_flood_of_requests_stops_at_the_backlog() -> None:
    made = manager()
    for n in range(1000):
        made.handle_mad(encode(req(comm_id=n + 1, qpn=n + 2), n), WAY, 0)

    assert len(made.connections) == 128
    assert made.counters["backlog_full"] == 1000 - 128
    assert sent(made) == []


def test_flood_of_requests_that_are_all_accepted_stops_at_the_limit() -> None:
    made = manager()
    made.LIMIT_CONNECTIONS = 50
    for n in range(200):
        made.handle_mad(encode(req(comm_id=n + 1, qpn=n + 2), n), WAY, 0)
        while (event := made.poll_event()) is not None:
            made.accept(event.connection, reply(qpn=n, starting_psn=0), 0)

    assert len(made.connections) == 50
    with pytest.raises(VerbsError):
        made.connect(request(service_id=1, source=OWN, destination=PEER, qpn=5, starting_psn=0), 0)
    settle(made, 0)
    assert len(made.connections) == 0  # each has waited, repeated, given up and lingered
    assert made.poll_timeout() is None


def test_answers_that_nobody_fetches_are_bounded() -> None:
    made = manager()
    for n in range(2 * made.LIMIT_MESSAGES):
        made.handle_mad(encode(cm.DREQ(local_comm_id=n, remote_comm_id=n), n), WAY, 0)

    assert len(sent(made)) == made.LIMIT_MESSAGES


def test_events_that_nobody_takes_are_bounded() -> None:
    made = manager()
    for n in range(1, 3 * made.LIMIT_EVENTS):
        made.handle_mad(encode(req(comm_id=n, qpn=n), n), WAY, n * 100 * S)
        rej = cm.REJ(
            local_comm_id=n, reason=4, message_rejected=2, ari=(0xBEEF).to_bytes(8).ljust(72, b"\0")
        )
        made.handle_mad(encode(rej, n), WAY, n * 100 * S)
        made.handle_timeout(n * 100 * S + 50 * S)

    events = list(iter(made.poll_event, None))
    # The last request that was let in brings its own further two.
    assert made.LIMIT_EVENTS <= len(events) <= made.LIMIT_EVENTS + 2
    assert len(made.connections) == 0


def test_duplicates_do_not_keep_a_question_alive_nor_fill_the_timers() -> None:
    made = manager()
    made.handle_mad(encode(req(), 7), WAY, 0)
    (connection,) = made.connections
    made.accept(connection, reply(qpn=0x22, starting_psn=2), 0)
    due = made.poll_timeout()
    for n in range(5000):
        made.handle_mad(encode(req(), 7), WAY, n)
        sent(made)

    assert made.poll_timeout() == due


def test_timers_that_are_moved_do_not_pile_up() -> None:
    made = manager()
    connection = established(made)
    timers = Timers()
    for n in range(1000):
        timers.set(connection, 1000 - n, connections=1)

    assert len(timers) <= 2 + timers.LIMIT_STALE
    assert list(timers.take_due(1000)) == [connection]
    assert timers.next_timeout() is None


def test_ids_and_queue_pairs_can_be_used_again_when_the_connection_is_over() -> None:
    made = manager()
    connection = established(made)
    made.handle_mad(encode(ids(connection, cm.DREQ(remote_qpn=0x22)), 9), WAY, 0)
    assert connection.state is State.TIMEWAIT
    sent(made)

    made.handle_mad(encode(req(comm_id=0xB0C), 10), WAY, 0)  # the queue pair, at once
    settle(made, 0)
    made.handle_mad(encode(req(qpn=0x78), 11), WAY, 0)  # the ID, after TIMEWAIT

    assert sent(made) == []
    states = [each.state for each in made.connections]
    assert states == [State.REQ_RCVD, State.REQ_RCVD]


def test_request_id_can_be_used_again_when_its_answer_is_forgotten() -> None:
    made = manager()
    asked = encode(cm.SIDR_REQ(request_id=5, service_id=SERVICE), 7)
    for _ in range(2):
        made.handle_mad(asked, WAY, 0)
        (connection,) = made.connections
        made.accept(connection, resolve_reply(3), 0)
        settle(made, 0)

    told = [event.kind for event in iter(made.poll_event, None)]
    assert told == [EventKind.RESOLVE_REQUEST] * 2


def test_answer_with_the_id_of_another_connection_is_ignored() -> None:
    made = manager()
    established(made)
    asked = made.connect(
        request(service_id=1, source=OWN, destination=PEER, qpn=0x11, starting_psn=0), 0
    )
    answer = replace(
        reply(qpn=0x99, starting_psn=0),
        local_ca_guid=0xBEEF,
        local_comm_id=0xB0B,
        remote_comm_id=asked.local_id,
    )
    made.handle_mad(encode(answer, 7), WAY, 0)

    assert asked.state is State.REQ_SENT
    assert asked.reply is None


@pytest.mark.parametrize(("is_delayed", "names_itself"), [(False, False), (True, True)])
def test_rejection_names_an_id_only_if_the_peer_has_seen_it(
    is_delayed: bool, names_itself: bool
) -> None:
    """Linux `cm_format_rej`: 0 in REQ_RCVD, our ID after an MRA."""
    made = manager()
    made.handle_mad(encode(req(), 7), WAY, 0)
    (connection,) = made.connections
    if is_delayed:
        made.delay(connection, 0)
    made.reject(connection, 0, private_data=b"no")

    rej = sent(made)[-1].message
    assert isinstance(rej, cm.REJ)
    assert rej.local_comm_id == (connection.local_id if names_itself else 0)
    assert (rej.remote_comm_id, rej.message_rejected, rej.reason) == (0xB0B, 0, 28)
    assert rej.private_data.rstrip(b"\0") == b"no"


def test_giving_up_names_the_peer_that_has_no_answer_yet() -> None:
    """Linux `cm_destroy_id` in REQ_SENT: reason 4 with our GUID, by which the peer finds it."""
    made = manager()
    asked = made.connect(
        request(service_id=1, source=OWN, destination=PEER, qpn=0x11, starting_psn=0), 0
    )
    made.reject(asked, 0)

    rej = sent(made)[-1].message
    assert isinstance(rej, cm.REJ)
    assert (rej.reason, rej.reject_info_length, rej.remote_comm_id) == (4, 8, 0)
    assert int.from_bytes(rej.ari[:8]) == 0xA11CE
    assert rej.local_comm_id == asked.local_id


def test_private_data_that_does_not_fit_is_refused_and_nothing_happens() -> None:
    made = manager()
    connection = established(made)
    with pytest.raises(EncodeError):
        made.disconnect(connection, 0, bytes(221))

    assert connection.state is State.ESTABLISHED
    with pytest.raises(EncodeError):
        request(
            service_id=1,
            source=OWN,
            destination=PEER,
            qpn=1,
            starting_psn=0,
            private_data=bytes(93),
        )


def test_request_that_can_not_be_packed_leaves_nothing() -> None:
    made = manager()
    bad = request(service_id=1, source=OWN, destination=PEER, qpn=1 << 24, starting_psn=0)
    with pytest.raises(EncodeError):
        made.connect(bad, 0)

    assert len(made.connections) == 0
    assert made.poll_timeout() is None


@st.composite
def any_message(draw: st.DrawFn, known: list[int]) -> bytes:
    """A message of any kind with random fields, but IDs that may mean something."""
    kind: Any = draw(st.sampled_from(MESSAGES))
    body = bytearray(draw(st.binary(min_size=232, max_size=232)))
    message = kind.unpack(bytes(body))
    fields: dict[str, Any] = {}
    for field in kind.FIELDS:
        if field.name in ("local_comm_id", "remote_comm_id", "request_id"):
            fields[field.name] = draw(st.sampled_from([*known, 0xB0B, 0xB0C, 0]))
        elif field.name == "service_id":
            fields[field.name] = draw(st.sampled_from([SERVICE, 1]))
        elif field.name in ("remote_qpn", "local_qpn"):
            fields[field.name] = draw(st.sampled_from([0x22, 0x77, 1]))
        elif field.name in ("local_ca_guid",):
            fields[field.name] = draw(st.sampled_from([0xBEEF, 1]))
        elif field.name == "primary_remote_gid":
            fields[field.name] = draw(st.sampled_from([OWN, 1]))
    return encode(replace(message, **fields), draw(st.integers(0, 3)))


@given(st.data())
@settings(max_examples=scaled(150))
def test_whatever_comes_nothing_raises_and_all_ends(data: st.DataObject) -> None:
    made = manager()
    asked = made.connect(
        request(service_id=1, source=OWN, destination=PEER, qpn=0x11, starting_psn=0), 0
    )
    now = 0
    for _ in range(data.draw(st.integers(1, 25))):
        known = [each.local_id for each in made.connections] or [asked.local_id]
        made.handle_mad(
            data.draw(any_message(known)), data.draw(st.sampled_from([WAY, OTHER_WAY])), now
        )
        now += data.draw(st.sampled_from([0, 1, 5 * S, 100 * S]))
        made.handle_timeout(now)
        while (event := made.poll_event()) is not None:
            try:
                if event.kind is EventKind.CONNECT_REQUEST:
                    made.accept(event.connection, reply(qpn=0x22, starting_psn=0), now)
                    event.connection.queue_pair_attributes()
                elif event.kind is EventKind.RESOLVE_REQUEST:
                    made.reject(event.connection, now)
                elif event.kind is EventKind.CONNECT_RESPONSE:
                    event.connection.queue_pair_attributes()
                    made.ready(event.connection, now)
            except VerbsError:
                assert event.connection.state in (State.TIMEWAIT, State.IDLE)
    for connection in list(made.connections):
        if connection.state is State.ESTABLISHED:
            made.disconnect(connection, now)
    settle(made, now)

    assert len(made.connections) == 0
    assert made.poll_timeout() is None
