"""Names and rules of what a connection manager does otherwise: true for the planted fault.

docs/reference/cm.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from fuzz.scripted import Scripted
from ibwire.base.units import S
from ibwire.cm.states import State
from ibwire.fuzz.campaign import Campaign
from ibwire.fuzz.case import Case, Command, Connection, Mad, Packet, Step, Value, Wait, step_text
from ibwire.fuzz.judge.comparison import Difference, Kind
from ibwire.fuzz.judge.findings import Finding
from ibwire.fuzz.judge.naming import Name
from ibwire.fuzz.recording import record
from ibwire.fuzz.targets.emulated_manager import (
    BEFORE_TABLES,
    EVENT,
    managed_emulation,
    number_of_bytes,
)
from ibwire.fuzz.targets.emulator import Emulator, EmulatorTestbed
from ibwire.fuzz.vocabulary.cm.names import manager_name
from ibwire.fuzz.vocabulary.cm.tables import (
    difference_text,
    states_in,
    tables_text,
    unequal_parts,
)
from ibwire.fuzz.vocabulary.cm.timing import Retransmission
from ibwire.fuzz.vocabulary.vocabularies import CONNECTION_MANAGER
from ibwire.rc.attributes import EventType
from ibwire.rc.profile import SPEC
from ibwire_layers.cm import CMAttribute
from ibwire_layers.opcodes import OpCode
from mutants.engine import copied
from mutants.table import FIRMWARE, FUZZED, INTERACTIONS, Mutant, Patch, read_mutants

_OTHER_TIMEOUT = Patch(
    "cm/connection.py",
    "duration(request.local_cm_response_timeout)",
    "duration(request.remote_cm_response_timeout)",
)
_SHORTER_MRA = Patch(
    "cm/manager.py",
    "time += duration(received.message.service_timeout)",
    "time += duration(received.message.service_timeout & 15)",
)
_LESS_RETRIES = Patch(
    "cm/connection.py",
    "        retries=request.max_cm_retries,",
    "        retries=request.max_cm_retries & 7,",
)
_ONE_RETRY_LESS = Patch(
    "cm/manager.py",
    "                connection.retries_left = connection.timeouts.retries\n",
    "                connection.retries_left = max(connection.timeouts.retries - 1, 0)\n",
)
_ANY_QUEUE_PAIR = Patch(
    "cm/manager.py",
    "elif not isinstance(message, cm.DREQ) or message.remote_qpn == connection.local_qpn:",
    "else:",
)
_ANY_GUID = Patch(
    "cm/registry.py",
    "return self._by_remote_id.get((self._gid(source), guid, message.local_comm_id))",
    "return next((c for k, c in self._by_remote_id.items()"
    " if (k[0], k[2]) == (self._gid(source), message.local_comm_id)), None)",
)
_SILENT = Patch("cm/states.py", "        _I.REQ: Move(_S.ANSWERED, Send.RETRANSMIT),\n", "")
_EXCHANGED = Patch(
    "cm/answers.py",
    "local_comm_id=message.remote_comm_id,\n        remote_comm_id=message.local_comm_id,\n"
    "        message_rejected=cm.MessageRejected.REP if",
    "local_comm_id=message.local_comm_id,\n        remote_comm_id=message.remote_comm_id,\n"
    "        message_rejected=cm.MessageRejected.REP if",
)
_DREQ_LATE = Patch(
    "cm/manager.py",
    "            time = timeouts.response\n",
    "            time = timeouts.response * (1 + (connection.state is State.DREQ_SENT))\n",
)
_MTU_0 = Patch(
    "cm/answers.py",
    "    if request.path_packet_payload_mtu not in MTU_BYTES:",
    "    if request.path_packet_payload_mtu > 5:",
)
_SHORT_TIMEWAIT = Patch(
    "cm/connection.py",
    "        linger=duration(request.primary_local_ack_timeout),",
    "        linger=duration(request.primary_local_ack_timeout) // 2,",
)
_NO_EE_CONTEXT = Patch(
    "cm/connection.py",
    "    return answer.local_eecn if is_xrc(request) else answer.local_qpn\n",
    "    return answer.local_qpn\n",
)
_ANY_CLASS_VERSION = Patch(
    "cm/messages.py",
    "    if data[:4] != _KIND:",
    "    if data[:2] + data[3:4] != _KIND[:2] + _KIND[3:4]:",
)
_SECONDS_LATER = Patch(
    "cm/connection.py",
    "response=repetition if is_active else duration(request.local_cm_response_timeout),",
    "response=repetition if is_active else duration(request.local_cm_response_timeout) + 2 * life,",
)
_NO_DREQ_AGAIN = Patch(
    "cm/states.py",
    "        _I.TIMEOUT: Move(_S.DREQ_SENT, Send.RETRANSMIT),\n",
    "        _I.TIMEOUT: Move(_S.DREQ_SENT),\n",
)
_ABOUT_OTHER = Patch(
    "cm/manager.py",
    "about = _ABOUT.get(type(message), cm.MessageRejected.OTHER)",
    "about = cm.MessageRejected.OTHER",
)
_MRA_OF_REQ = Patch(
    "cm/answers.py",
    "cm.MessageMRAed.REP if is_active else cm.MessageMRAed.REQ",
    "cm.MessageMRAed.REQ",
)
_PASSIVE_LIVES = Patch(
    "cm/manager.py",
    "if Input.DISCONNECT in TRANSITIONS[connection.state]:",
    "if Input.DISCONNECT in TRANSITIONS[connection.state] and connection.is_active:",
)
_OWN_QPN = Patch(
    "cm/answers.py",
    "remote_qpn=connection.remote_qpn or 0,",
    "remote_qpn=connection.local_qpn or 0,",
)
_GUID_BIT = Patch(
    "cm/manager.py",
    "                local_ca_guid=self.guid,\n",
    "                local_ca_guid=self.guid ^ 1 << 57,\n",
)
_DATA_AFTER_MRA_IGNORED = Patch(
    "cm/manager.py",
    "if connection is not None and not connection.is_active:",
    "if connection is not None and connection.state is State.REP_SENT:",
)
_OWN_RNR_RETRY = Patch("cm/connection.py", "other.rnr_retry_count", "own.rnr_retry_count")
_DATA_CUT = Patch(
    "cm/answers.py",
    "private_data=padded(cm.REJ, private_data)",
    "private_data=padded(cm.REJ, private_data[:100])",
)
_DATA_CUT_ON_RECEPTION = Patch(
    "cm/manager.py",
    "            Event(kind=kind, connection=connection, private_data=data,",
    "            Event(kind=kind, connection=connection, private_data=data[:100],",
)
_REJ_IGNORED = Patch(
    "cm/states.py",
    "        _I.REJ: Move(_S.TIMEWAIT, event=_REJECTED),\n    },\n    _S.DREQ_SENT",
    "    },\n    _S.DREQ_SENT",
)
_DATA_LOST = Patch(
    "cm/manager.py",
    "data = message.private_data if message is not None else",
    "data = message.private_data if message is not None and not isinstance(message, cm.DREQ) else",
)
_ARI_UNTRIMMED = Patch("cm/manager.py", "message.ari[: message.reject_info_length]", "message.ari")
MUTANTS = (
    FUZZED
    | read_mutants(FIRMWARE)
    | read_mutants(INTERACTIONS)
    | {
        "other-timeout": Mutant("other-timeout", (_OTHER_TIMEOUT,)),
        "shorter-mra": Mutant("shorter-mra", (_SHORTER_MRA,)),
        "less-retries": Mutant("less-retries", (_LESS_RETRIES,)),
        "one-less-and-dreq-late": Mutant("two faults", (_ONE_RETRY_LESS, _DREQ_LATE)),
        "any-queue-pair": Mutant("any-queue-pair", (_ANY_QUEUE_PAIR,)),
        "any-guid": Mutant("any-guid", (_ANY_GUID,)),
        "refused-req-silent": Mutant("refused-req-silent", (_SILENT,)),
        "ids-exchanged": Mutant("ids-exchanged", (_EXCHANGED,)),
        "no-ee-context": Mutant("no-ee-context", (_NO_EE_CONTEXT,)),
        "mtu-0": Mutant("mtu-0", (_MTU_0,)),
        "short-timewait": Mutant("short-timewait", (_SHORT_TIMEWAIT,)),
        "any-class-version": Mutant("any-class-version", (_ANY_CLASS_VERSION,)),
        "one-retry-less": Mutant("one-retry-less", (_ONE_RETRY_LESS,)),
        "seconds-later": Mutant("seconds-later", (_SECONDS_LATER,)),
        "stale-about-other": Mutant("stale-about-other", (_ABOUT_OTHER,)),
        "mra-names-req": Mutant("mra-names-req", (_MRA_OF_REQ,)),
        "stale-passive-lives": Mutant("stale-passive-lives", (_PASSIVE_LIVES,)),
        "dreq-own-qpn": Mutant("dreq-own-qpn", (_OWN_QPN,)),
        "rnr-retry-own": Mutant("rnr-retry-own", (_OWN_RNR_RETRY,)),
        "rej-data-cut": Mutant("rej-data-cut", (_DATA_CUT,)),
        "rej-data-cut-on-reception": Mutant("cut-on-reception", (_DATA_CUT_ON_RECEPTION,)),
        "rep-guid-bit": Mutant("rep-guid-bit", (_GUID_BIT,)),
        "established-rej-ignored": Mutant("established-rej-ignored", (_REJ_IGNORED,)),
        "dreq-private-data-lost": Mutant("dreq-private-data-lost", (_DATA_LOST,)),
        "event-ari-untrimmed": Mutant("event-ari-untrimmed", (_ARI_UNTRIMMED,)),
        "no-dreq-again": Mutant("no-dreq-again", (_NO_DREQ_AGAIN,)),
        "data-after-mra-ignored": Mutant("data-after-mra-ignored", (_DATA_AFTER_MRA_IGNORED,)),
    }
)


_UNTOLD = Patch(
    "fuzz/targets/emulated_manager.py",
    "if (qp.state, service := _service_of(connection)) in _ATTRIBUTES_OF",
    "if False",
)
_EXCHANGED_PSNS = MUTANTS["psns-of-connection-exchanged"].patches
MUTANTS["psns-exchanged-untold"] = Mutant("psns-exchanged-untold", (*_EXCHANGED_PSNS, _UNTOLD))


def said(message: str, exchange: int = 0, **fields: Value) -> Mad:
    given = {name.replace("__", "."): value for name, value in fields.items()}
    return Mad(message=message, exchange=exchange, fields=given)


def named(fault: str, steps: Sequence[Step], state: str) -> Name:
    """The name of what a case shows in its last step on a manager with a planted fault."""
    device: Any = copied(MUTANTS[fault])[managed_emulation.__module__].managed_emulation
    difference = EmulatorTestbed(device, CONNECTION_MANAGER).replay(
        Case(Connection(), tuple(steps)), SPEC
    )
    assert difference is not None
    assert difference.step == len(steps) - 1
    return manager_name(difference, steps, state)


ACCEPTED: list[Step] = [said("REQ"), Command("accept", 0)]
ACTIVE: list[Step] = [Command("connect", 0), said("REP"), Command("ready", 0)]
DATA = Packet(int(OpCode.RC_SEND_ONLY))

XRC: dict[str, Value] = {"req__transport_service_type": 3, "req__extended_transport_type": 1}

CASES: Sequence[tuple[str, Sequence[Step], str, str, str]] = (
    (
        "no-ee-context",
        [said("REQ", **XRC), Command("accept", 0), said("DREQ")],
        "REP_SENT",
        "DREQ in REP_SENT of an XRC connection: silence instead of DREP",
        "request",
    ),
    (
        "mtu-0",
        [said("REQ", req__path_packet_payload_mtu=0)],
        "NONE",
        "REQ with path_packet_payload_mtu 0: it reports CONNECT_REQUEST instead of REJ INVALID_MTU",
        "request",
    ),
    (
        "short-timewait",
        [*ACCEPTED, said("RTU"), said("DREQ"), Wait(2 * S)],
        "TIMEWAIT",
        "a wait in TIMEWAIT: it reports TIMEWAIT_EXIT too early",
        "timeouts",
    ),
    (
        "any-class-version",
        [said("REQ"), replace(said("REQ", mad__class_version=255), why="MAD header")],
        "REQ_RCVD",
        "a datagram with class_version 255 is taken",
        "mad",
    ),
    (
        "queue-pair-of-another-connection-taken",
        [Command("connect", 5), said("REP", 5, rep__local_qpn=("own.qpn", 1)), said("REQ", 6)],
        "NONE",
        "REQ without a connection: it reports CONNECT_REQUEST instead of REJ STALE_CONNECTION",
        "teardown",
    ),
    (
        "queue-pair-of-another-connection-taken",
        [*ACCEPTED, said("REQ", 2, req__local_qpn=("own.qpn", -2))],
        "NONE",
        "REQ of a queue pair that another connection has (stale): "
        "it reports CONNECT_REQUEST instead of REJ STALE_CONNECTION",
        "teardown",
    ),
    (
        "psns-of-connection-exchanged",
        ACCEPTED,
        "REQ_RCVD",
        "accept in REQ_RCVD: the queue pair gets another rq_psn (2048 instead of 4114)",
        "request",
    ),
    (
        "psns-exchanged-untold",
        [*ACCEPTED, DATA],
        "REP_SENT",
        "SEND_ONLY in REP_SENT: NAK PSN_SEQUENCE_ERROR instead of RNR NAK",
        "request",
    ),
    (
        "backlog-lost-by-rej",
        [said("REQ"), said("REJ")],
        "REQ_RCVD",
        "REJ in REQ_RCVD: another number of requests that wait for a decision (1 instead of 0)",
        "states",
    ),
    (
        "rej-after-rep-ends-at-once",
        [*ACCEPTED, said("REJ")],
        "REP_SENT",
        "REJ in REP_SENT: no connection instead of TIMEWAIT",
        "states",
    ),
    (
        "stale-without-guid",
        [*ACCEPTED, said("REQ", req__local_ca_guid=("own.guid", 1))],
        "REP_SENT",
        "REQ of another CA in REP_SENT: REP, and it does not report CONNECT_REQUEST",
        "resending",
    ),
    (
        "retries-shared-after-mra",
        [*ACCEPTED, Wait(5 * S), said("RTU"), Command("disconnect", 0), Wait(150 * S)],
        "DREQ_SENT",
        "a wait in DREQ_SENT: it retransmits the DREQ too few times",
        "resending",
    ),
    (
        "any-guid",
        [said("REQ"), said("REJ", rej__reason=4)],
        "REQ_RCVD",
        "REJ for a timeout without a CA GUID in REQ_RCVD: it reports REJECTED instead of nothing",
        "reject-reasons",
    ),
    (
        "any-guid",
        [said("REQ"), said("REJ", rej__reason=4, rej__ari=("own.guid", 1))],
        "REQ_RCVD",
        "REJ for a timeout with another CA GUID in REQ_RCVD: "
        "it reports REJECTED instead of nothing",
        "reject-reasons",
    ),
    (
        "ids-exchanged",
        [said("REP")],
        "NONE",
        "REP without a connection: "
        "another cm.rej.local_comm_id and cm.rej.remote_comm_id in the REJ",
        "reject-reasons",
    ),
    (
        "stale-about-other",
        [*ACTIVE, said("DREQ"), said("REP")],
        "TIMEWAIT",
        "a repeated REP in TIMEWAIT: another cm.rej.message_rejected in the REJ",
        "reject-reasons",
    ),
    (
        "mra-names-req",
        [Command("connect", 0), said("REP"), said("REP")],
        "REP_RCVD",
        "a repeated REP in REP_RCVD: another cm.mra.message_mraed in the MRA",
        "handshake",
    ),
    (
        "stale-passive-lives",
        [*ACCEPTED, said("RTU"), said("REQ", 2, req__local_qpn=("own.qpn", -2))],
        "NONE",
        "REQ of a queue pair that another connection has (stale): a DREQ is missing",
        "teardown",
    ),
    (
        "dreq-own-qpn",
        [*ACTIVE, Command("disconnect", 0)],
        "ESTABLISHED",
        "disconnect: another cm.dreq.remote_qpn in the DREQ",
        "teardown",
    ),
    (
        "rep-guid-bit",
        ACCEPTED,
        "REQ_RCVD",
        "accept: another cm.rep.local_ca_guid in the REP",
        "peer",
    ),
    (
        "rej-data-cut",
        [said("REQ"), Command("reject", 0)],
        "REQ_RCVD",
        "reject: another cm.rej.private_data in the REJ",
        "messages",
    ),
    (
        "rej-data-cut-on-reception",
        [said("REQ"), said("REJ", rej__private_data=1 << 63)],
        "REQ_RCVD",
        "REJ in REQ_RCVD: it reports REJECTED with other private data",
        "messages",
    ),
    (
        "rnr-retry-own",
        [said("REQ", req__rnr_retry_count=3), Command("accept", 0), said("RTU")],
        "REP_SENT",
        "RTU in REP_SENT: the queue pair gets another rnr_retry (7 instead of 3)",
        "request",
    ),
    (
        "established-rej-ignored",
        [*ACCEPTED, said("RTU"), said("REJ")],
        "ESTABLISHED",
        "REJ in ESTABLISHED: it reports nothing instead of REJECTED",
        "states",
    ),
    (
        "dreq-private-data-lost",
        [*ACTIVE, said("DREQ", dreq__private_data=1)],
        "ESTABLISHED",
        "DREQ in ESTABLISHED: it reports DISCONNECTED without the private data",
        "messages",
    ),
    (
        "event-ari-untrimmed",
        [said("REQ"), said("REJ", rej__ari=("own.guid", 0))],
        "REQ_RCVD",
        "REJ in REQ_RCVD: it reports REJECTED with additional information instead of none",
        "messages",
    ),
    (  # it is the REP that differs from the rest of the exchange
        "dreq-with-a-wrong-remote-id",
        [Command("connect", 0), said("REP", rep__local_comm_id=1), said("DREQ")],
        "REP_RCVD",
        "DREQ with another communication ID of its sender than in the REP: silence instead of DREP",
        "unknown-connection",
    ),
)


@pytest.mark.parametrize(
    ("fault", "steps", "state", "text", "rule"),
    [pytest.param(*each, id=each[3]) for each in CASES],
)
def test_a_finding_names_what_a_manager_breaks(
    fault: str, steps: Sequence[Step], state: str, text: str, rule: str
) -> None:
    name = named(fault, steps, state)

    assert name.text == text
    assert name.rule.endswith(f"#{rule}")


def test_a_field_that_is_treated_otherwise_has_one_cause_in_all_states() -> None:
    other = said("REQ", req__local_ca_guid=("own.guid", 1))
    waiting = named("stale-without-guid", [said("REQ"), other], "REQ_RCVD")
    answered = named("stale-without-guid", [*ACCEPTED, other], "REP_SENT")

    assert waiting.causes == answered.causes != ()
    assert waiting.rule == answered.rule == "IBA 12.9; docs/reference/cm.md#resending"


OTHER_QPN = "DREQ with another QPN in TIMEWAIT"


@pytest.mark.parametrize(
    ("dreq", "text"),
    [
        ([*ACCEPTED, said("DREQ", dreq__remote_qpn=("qpn", 1))], OTHER_QPN),
        ([*ACCEPTED, said("RTU", mad__attribute_id=0x15)], OTHER_QPN),
        ([*ACCEPTED, said("MRA", mad__attribute_id=0x15)], OTHER_QPN),
        (
            [said("REQ"), said("REJ"), said("DREQ")],
            "DREQ for a connection without a queue pair",
        ),
    ],
    ids=["another", "of an RTU", "of an MRA", "no queue pair"],
)
def test_a_dreq_for_another_queue_pair_is_named_by_that_in_every_state(
    dreq: Sequence[Step], text: str
) -> None:
    """`cm_dreq_handler` of Linux compares the QPN before the state."""
    name = named("any-queue-pair", dreq, "TIMEWAIT")

    assert name.text == f"{text}: DREP instead of silence"
    assert name.group == "DREQ with dreq.remote_qpn: DREP instead of silence"
    assert name.rule.endswith("docs/reference/cm.md#teardown")


@pytest.mark.parametrize(
    "request_again",
    [
        said("REQ", 3),
        said("REQ", 3, req__local_qpn=("own.qpn", -1)),
        said("REQ", 4, req__local_comm_id=("own.id", -1)),
    ],
    ids=["same", "another queue pair", "of another exchange"],
)
def test_a_request_with_the_id_of_an_earlier_one_is_a_repeated_one(request_again: Mad) -> None:
    steps = [said("REQ", 3), Command("reject", 3), request_again]

    name = named("refused-req-silent", steps, "ANSWERED")

    assert name.text.startswith("a repeated REQ")
    assert name.rule == "IBA 12.9; docs/reference/cm.md#resending"
    assert "a repeated REQ: silence instead of REJ CONSUMER_DEFINED" in name.causes


def test_a_repeated_request_that_finds_a_stale_connection_has_the_rule_of_that() -> None:
    steps = [said("REQ"), said("REJ"), said("REQ")]

    name = named("timewait-forgets-the-connection", steps, "TIMEWAIT")

    assert name.text.startswith("a repeated REQ in TIMEWAIT")
    assert name.rule == "IBA 12.9; docs/reference/cm.md#teardown"


def test_a_message_is_named_by_its_attribute_id_on_the_wire() -> None:
    as_mra = said("REJ", mad__attribute_id=CMAttribute.MRA)
    steps = [*ACCEPTED, as_mra]
    difference = Difference(2, Kind.EVENT, [1, 1, 3, 0, 9], [1, 1, 3, 0, 6])

    name = manager_name(difference, steps, "REP_SENT")

    assert name == manager_name(difference, [*ACCEPTED, said("MRA")], "REP_SENT")
    assert name.text == "MRA in REP_SENT: state REP_SENT instead of MRA_REP_RCVD"


@pytest.mark.parametrize(
    ("difference", "text"),
    [
        (
            Difference(0, Kind.COMPLETION, [(EVENT, 3, 7, 0, 0, 0)], []),
            "it reports nothing instead of ESTABLISHED",
        ),
        (
            Difference(0, Kind.COMPLETION, [(EVENT, 3, 7, 0, 0, 0)], [(EVENT, 3, 8, 0, 0, 0)]),
            "it reports ESTABLISHED with another ID",
        ),
        (
            Difference(
                0,
                Kind.COMPLETION,
                [(EVENT, 7, 1, 0, 0, 0), (EVENT, 7, 2, 0, 0, 0)],
                [(EVENT, 7, 2, 0, 0, 0), (EVENT, 7, 1, 0, 0, 0)],
            ),
            "it reports TIMEWAIT_EXIT for the connections in another order",
        ),
        (
            Difference(0, Kind.TIME, [5], [4], frames=[b""]),
            "it sends a frame that is no packet too early",
        ),
        (
            Difference(0, Kind.EVENT, [1, 1, 3, 0, 9], [1, 1, 3, -1, 9]),
            "another number of requests that wait for a decision (nobody listens instead of 0)",
        ),
        (
            Difference(0, Kind.EVENT, [1, 1, 3, 0, 9, 6], [1, 1, 3, 0, 9]),
            "state MRA_REP_RCVD instead of MRA_REP_RCVD, REP_SENT",
        ),
    ],
)
def test_a_difference_that_no_message_shows_is_told_in_words(
    difference: Difference, text: str
) -> None:
    assert difference_text(difference) == text


SHOWN: Sequence[tuple[Patch, Sequence[Step], str, str]] = (
    (  # GID ::ffff:10.0.0.2: from its last byte on, and behind it nothing
        Patch("cm/answers.py", "gids[0].to_bytes(16)", "(gids[0] + 1).to_bytes(16)"),
        [said("REQ", req__primary_remote_gid=0)],
        "REJ INVALID_PRIMARY_GID cm.rej.ari from byte 15: 02 00 00 00 00 00 00 00",
        "REJ INVALID_PRIMARY_GID cm.rej.ari from byte 15: 03 00 00 00 00 00 00 00",
    ),
    (
        Patch(
            "cm/answers.py",
            "cm.MessageRejected.REP if is_rep else cm.MessageRejected.OTHER",
            "cm.MessageRejected.REQ",
        ),
        [said("REP")],
        "REJ INVALID_COMM_ID cm.rej.message_rejected=REP",
        "REJ INVALID_COMM_ID cm.rej.message_rejected=REQ",
    ),
    (  # the low 16 bits of 0x01064853 alone
        Patch(
            "cm/manager.py",
            "service_id=request.service_id)\n        else:",
            "service_id=request.service_id & 0xFFFF)\n        else:",
        ),
        [said("SIDR_REQ"), Command("accept", 0)],
        "SIDR_REP VALID cm.sidr_rep.service_id=0x1064853",
        "SIDR_REP VALID cm.sidr_rep.service_id=0x4853",
    ),
)


@pytest.mark.parametrize(
    ("patch", "steps", "expected", "got"), SHOWN, ids=["bytes", "message", "one base"]
)
def test_a_wrong_field_is_shown_where_it_differs(
    patch: Patch, steps: Sequence[Step], expected: str, got: str
) -> None:
    device: Any = copied(Mutant("changed", (patch,)))[managed_emulation.__module__]
    case = Case(Connection(), tuple(steps))
    opens = {CONNECTION_MANAGER.name: device.managed_emulation}

    recording = record(case, Emulator("changed", opens, lambda text: False))

    assert recording.expected == [expected]
    assert recording.got == [got]


@pytest.mark.parametrize(
    ("expected", "got", "texts"),
    [
        (b"", b"\1" + bytes(75), ("none", "76 bytes 01 00 00 00 00 00 00 00...")),
        (b"\0\1", b"\0\2", ("2 bytes, from byte 1: 01", "2 bytes, from byte 1: 02")),
    ],
)
def test_events_that_read_alike_show_the_parts_that_differ(
    expected: bytes, got: bytes, texts: tuple[str, str]
) -> None:
    events = [(EVENT, 4, 7, 8, number_of_bytes(each), 0) for each in (expected, got)]

    shown = unequal_parts(*events)

    assert shown == tuple(f", private data: {each}" for each in texts)


def test_what_a_rej_leaves_out_by_default_is_in_its_line() -> None:
    """The additional information has bytes, and the length that goes with it is 0."""
    text = step_text(said("REJ", rej__ari=("own.guid", 0)))

    assert text == "REJ #0 rej.ari=own.guid rej.reject_info_length=0"


def test_data_of_an_event_are_one_cause_in_all_states() -> None:
    dreq = said("DREQ", dreq__private_data=1)
    early = named("dreq-private-data-lost", [*ACCEPTED, dreq], "REP_SENT")
    late = named("dreq-private-data-lost", [*ACTIVE, dreq], "ESTABLISHED")

    assert "private data of DISCONNECTED" in set(early.causes) & set(late.causes)


def test_a_wait_names_the_state_of_the_connection_that_is_in_another_one_after_it() -> None:
    """Whichever exchange was chosen last, whose state is that of `manager_name`."""
    ready, timewait = State.ESTABLISHED.value, State.TIMEWAIT.value
    difference = Difference(
        0, Kind.EVENT, [2, 0, 2, 2, ready, timewait], [2, 0, 2, 2, ready, ready]
    )
    states: dict[object, str] = {7: "ESTABLISHED", 8: "DREQ_SENT"}

    name = manager_name(difference, [Wait(S)], "ESTABLISHED", states)

    assert name.text == (
        "a wait in DREQ_SENT: state ESTABLISHED, ESTABLISHED instead of ESTABLISHED, TIMEWAIT"
    )


def accepted(exchange: int, **fields: Value) -> list[Step]:
    return [said("REQ", exchange, **fields), Command("accept", exchange)]


def test_a_message_at_another_time_has_one_cause_whatever_else_is_sent() -> None:
    """12.7: the time that is given in the REQ. Two connections send their REPs in another order."""
    soon = accepted(2, req__local_cm_response_timeout=5)
    found = [
        named("other-timeout", [*accepted(4068, req__local_cm_response_timeout=0), LONG], "A"),
        named(
            "other-timeout", [*accepted(1, req__remote_cm_response_timeout=31), Wait(30 * S)], "B"
        ),
        named("other-timeout", [*accepted(1), *soon, LONG], "REP_SENT"),
    ]

    assert [each.text for each in found] == [
        "a wait in A: it retransmits the REP too late",
        "a wait in B: a REP is missing",
        "a wait in REP_SENT: it retransmits the REP too late",
    ]
    assert len({each.group for each in found}) == 1


def test_another_time_after_an_mra_is_another_cause_for_each_message() -> None:
    mra = said("MRA", 1)
    of_reply = named("shorter-mra", [*accepted(1), mra, LONG], "MRA_REP_RCVD")
    of_request = named("shorter-mra", [Command("connect", 1), mra, LONG], "MRA_REQ_RCVD")
    other = named("other-timeout", [*accepted(1, req__local_cm_response_timeout=0), LONG], "A")

    assert " the REP too early after an MRA" in of_reply.text
    assert " the REQ too early" in of_request.text
    assert len({of_reply.group, of_request.group, other.group}) == 3


def outcome(fault: str, steps: Sequence[Step]) -> tuple[Sequence[str], Sequence[str]]:
    """What a report says of the last step."""
    device: Any = copied(MUTANTS[fault])[managed_emulation.__module__].managed_emulation
    target = Emulator(fault, {CONNECTION_MANAGER.name: device}, lambda text: True)
    recording = record(Case(Connection(), tuple(steps)), target)
    return recording.expected, recording.got


def test_what_an_application_sees_of_a_request_that_is_not_refused_is_said() -> None:
    assert outcome("mtu-0", [said("REQ", req__path_packet_payload_mtu=0)]) == (
        ["REJ INVALID_MTU"],
        ["connection manager: CONNECT_REQUEST"],
    )


def test_the_time_that_an_end_of_timewait_is_due_is_said() -> None:
    steps = [*ACCEPTED, said("RTU"), said("DREQ"), Wait(S // 2), Wait(S)]

    assert outcome("short-timewait", steps) == (
        ["connection manager: TIMEWAIT_EXIT not before 1.647483648 s"],
        ["connection manager: TIMEWAIT_EXIT before 1 s"],
    )


def test_a_lower_number_of_retransmissions_is_said() -> None:
    name = named("less-retries", [Command("connect", 26), Wait(200 * S)], "REQ_SENT")

    assert name.text == "a wait in REQ_SENT: it retransmits the REQ too few times"


@pytest.mark.parametrize("minimises", [False, True])
def test_the_state_is_that_of_the_exchange_whose_message_differs(minimises: bool) -> None:
    """The REP of exchange 2 is on time; that of the REQ of exchange 1 comes before it."""
    steps = [Command("connect", 1), said("MRA", 1), *accepted(2), Wait(30 * S)]

    finding = run("shorter-mra", steps, minimises=minimises)

    assert finding.bucket.startswith("a wait in MRA_REQ_RCVD: it retransmits the REQ too early")
    assert (accepted(2)[0] in finding.case.steps) != minimises


def test_one_retry_less_of_two_messages_is_shown_with_one_of_them() -> None:
    steps = [Command("resolve", 23), Command("connect", 26), Wait(200 * S)]

    finding = run("one-retry-less", steps)

    message, state = finding.bucket.split()[-4], finding.bucket.split()[3]
    assert finding.bucket == f"a wait in {state} it retransmits the {message} too few times"
    assert state == f"{message}_SENT:"
    assert list(finding.case.steps) in (steps[::2], steps[1:])


def run(fault: str, steps: Sequence[Step], *, minimises: bool = True) -> Finding:
    """The finding of a run of one case in a manager with a planted fault."""
    device: Any = copied(MUTANTS[fault])[managed_emulation.__module__].managed_emulation
    testbed = EmulatorTestbed(device, CONNECTION_MANAGER)
    testbed.witnesses = []
    campaign = Campaign(testbed, lambda number: Scripted(*steps), minimises=minimises)
    return next(iter(campaign.run(100)))


ENDED = [Command("connect", 0), said("REP"), Command("ready", 0), Command("disconnect", 0)]


def test_one_retry_less_is_one_cause_for_all_messages() -> None:
    mra = said("MRA", 1)
    of_reply = named("one-retry-less", [*accepted(1), LONG], "REP_SENT")
    after_mra = named("one-retry-less", [*accepted(1), mra, Wait(10_000 * S)], "MRA_REP_RCVD")
    of_end = named("one-retry-less", [*ENDED, Wait(200 * S)], "DREQ_SENT")
    later = [*ENDED, Wait(95 * S), Wait(200 * S)]

    assert of_reply.causes == after_mra.causes == of_end.causes != ()
    assert named("one-retry-less", later, "DREQ_SENT").text.endswith(": a DREQ is missing")


def test_another_time_beside_one_retry_less_is_a_cause_of_its_own() -> None:
    """The times of the messages that are sent tell it from a lower number."""
    of_reply = named("one-less-and-dreq-late", [*accepted(1), LONG], "REP_SENT")
    of_end = named("one-less-and-dreq-late", [*ENDED, Wait(200 * S)], "DREQ_SENT")

    assert of_reply.text.endswith("it retransmits the REP too few times")
    assert of_end.text.endswith("it retransmits the DREQ too late")
    assert not {of_end.group, *of_end.wider} & {of_reply.group, *of_reply.causes}


def ended(exchange: int, **fields: Value) -> list[Step]:
    return [*accepted(exchange, **fields), said("RTU", exchange), Command("disconnect", exchange)]


def test_what_comes_behind_the_end_of_a_wait_is_too_late_and_not_missing() -> None:
    """Code 20 is 4.29 s, twice the packet life time of code 18 is 2.15 s. One timer, one cause."""
    of_reply = run("seconds-later", [*accepted(1), Wait(5 * S)])
    of_end = run("seconds-later", [*ended(1), Wait(5 * S)])
    given_up = run("seconds-later", [*ended(1, req__max_cm_retries=0), Wait(5 * S)])
    longer = run("seconds-later", [*accepted(1, req__primary_local_ack_timeout=20), Wait(5 * S)])

    late = "(at 6.44 s instead of 4.29 s)"
    assert of_reply.bucket == f"a wait in REP_SENT: it retransmits the REP too late {late}"
    assert of_end.bucket == f"a wait in DREQ_SENT: it retransmits the DREQ too late {late}"
    assert given_up.bucket == "a wait in DREQ_SENT: it reports DISCONNECTED too late"
    assert set.intersection(*(set(each.causes) for each in (of_reply, of_end, given_up, longer)))


def test_what_never_comes_is_missing() -> None:
    finding = run("no-dreq-again", [*ended(1), Wait(5 * S)])

    assert finding.bucket == "a wait in DREQ_SENT: a DREQ is missing"


def test_a_lower_number_is_seen_in_a_longer_wait_and_has_one_cause() -> None:
    """15 retries are 7 with three bits: the last of 7 DREQs is due after 45.1 s."""
    some = run("less-retries", [*ENDED, Wait(30 * S), Wait(30 * S)])
    all_of_them = run("less-retries", [Command("connect", 26), Wait(200 * S)])

    assert some.bucket == "a wait in DREQ_SENT: it retransmits the DREQ too few times"
    assert set(some.causes) & set(all_of_them.causes)


def test_a_message_of_one_connection_in_place_of_another_has_the_rule_of_times() -> None:
    """That the IDs of the two differ says nothing of the transaction."""
    steps = [Command("resolve", 4), Command("resolve", 7), Wait(5 * S)]
    comparison = EmulatorTestbed(managed_emulation, CONNECTION_MANAGER).comparison(
        Connection(), SPEC
    )
    assert comparison.carry_out(Case(Connection(), tuple(steps))) is None
    first, second = comparison.expected

    name = manager_name(Difference(2, Kind.ANSWER, [first, second], [second]), steps, "NONE")

    assert name.rule.startswith("IBA 12.7, 12.9; docs/reference/cm.md#timeouts")


LONG = Wait(88_719_500_000_000)


def test_an_earlier_wait_makes_no_number_of_retransmissions_uncertain() -> None:
    waited = named("one-retry-less", [Wait(100 * S), *ENDED, Wait(200 * S)], "DREQ_SENT")

    assert waited.text.endswith("it retransmits the DREQ too few times")


def test_a_retransmission_too_late_does_not_include_one_too_early() -> None:
    late = Retransmission(("REQ",), "too late or too few times")

    assert late.includes(Retransmission(("REQ",), "too late"))
    assert not late.includes(Retransmission(("REQ",), "too early"))


def test_events_of_the_device_stand_before_the_tables_of_its_manager() -> None:
    tables = [BEFORE_TABLES, 1, 1, 3, 0, int(State.REP_SENT)]
    raised = [int(EventType.COMM_EST), *tables]

    assert tables_text(tables, raised) == (["events: none"], ["events: COMM_EST"])
    assert states_in(raised) == ["REP_SENT"]


def test_a_case_of_data_that_establish_a_connection_is_a_finding() -> None:
    """The last packet has no bytes, which says nothing about connection management."""
    steps = [said("REQ"), Command("accept"), said("MRA"), Packet(int(OpCode.RC_SEND_ONLY))]

    finding = run("data-after-mra-ignored", steps)

    assert finding.bucket == "SEND_ONLY in MRA_REP_RCVD: it reports nothing instead of ESTABLISHED"
