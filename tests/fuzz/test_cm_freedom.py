"""What the specification leaves to a connection manager is no finding, and what is near it is one.

Sources: reference/cm#states, #handshake, #reject-reasons, #timeouts, #transaction, #resending,
#teardown, #unknown-connection and #peer.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from examples import sampled
from ibwire.base.units import S
from ibwire.fuzz.campaign import Campaign
from ibwire.fuzz.case import Case, Command, Connection, Mad, Role, Step, Value, Wait
from ibwire.fuzz.targets.emulated_manager import managed_emulation
from ibwire.fuzz.targets.emulator import EmulatorTestbed
from ibwire.fuzz.vocabulary.vocabularies import CONNECTION_MANAGER
from ibwire.rc.profile import SPEC
from ibwire_layers.cm import CMAttribute
from mutants.engine import copied
from mutants.table import Mutant, Patch

PACKETS = 3000

_UNSUPPORTED = (
    '            case cm.LAP() | cm.APR():\n                self.counters["unsupported"] += 1\n'
)
_ANSWERED_LAP = (
    "            case cm.LAP():\n"
    "                known = self.connections.with_local_id(message.remote_comm_id, source)\n"
    "                if known is not None and known.state is State.ESTABLISHED and (\n"
    "                    known.remote_id == message.local_comm_id\n"
    "                ):\n"
    "                    self._put(encode(cm.APR(local_comm_id=known.local_id,"
    " remote_comm_id={remote}, ap_status=2, additional_info=bytes(72),"
    " private_data=bytes(148)), received.transaction_id), source)\n"
    "            case cm.APR():\n"
    '                self.counters["unsupported"] += 1\n'
)
_LINGER = "        linger=duration(request.primary_local_ack_timeout),\n"
_SERVICE = "            time += duration(received.message.service_timeout)\n"
_EXPIRED = "    _I.EXPIRED: Move(_S.IDLE, Send.REJ_TIMEOUT, _UNREACHABLE),\n"
_OWN_GID = "        if connection is None or connection.peer.dgid != source.dgid:\n"
_DREQ_TRANSACTION = "                transaction = connection.transaction_id\n"
_NEW_REQUEST = "        _I.REQ: Move(_S.REQ_RCVD, event=EventKind.CONNECT_REQUEST),\n"
_UNKNOWN = "        if isinstance(message, cm.MRA) and self._refuses_mra:\n"
_NO_REPLY = (
    "        _I.REP: Move(_S.TIMEWAIT, Send.REJ_STALE),\n"
    "        _I.RTU: Move(_S.TIMEWAIT, Send.REJ_STALE),\n"
)
_KEPT = "            time += timeouts.repetition + connection.extra_time\n"
_MRA_OF_REP = "        _I.MRA_REP: Move(_S.MRA_REP_RCVD),\n"
_SERVICE_FIRST = (
    "    if request.service_id not in services:\n"
    "        return refusal(request, cm.RejectReason.INVALID_SERVICE_ID)\n"
    "    service = request.transport_service_type\n"
)
_SERVED = "        served = min(own.responder_resources, other.initiator_depth)\n"
_OWN_RESOURCES = "        served = own.responder_resources\n"
_DEPTH = "        depth = min(own.initiator_depth, other.responder_resources)\n"
_SUGGESTED = "        gid = gids[0].to_bytes(16)\n"
_OTHER_MTU = "        return refusal(request, cm.RejectReason.INVALID_MTU)\n"
_GID_FIRST = (
    "    service = request.transport_service_type\n"
    "    if request.primary_remote_gid not in gids:\n"
    "        return refusal(request, cm.RejectReason.INVALID_PRIMARY_GID, gids[0].to_bytes(16))\n"
    "    if service in (cm.TransportType.RC, cm.TransportType.UC) and "
    "request.service_id not in services:\n"
    "        return refusal(request, cm.RejectReason.INVALID_SERVICE_ID)\n"
)

RIGHT = {
    "LAP not supported": Patch(
        "cm/manager.py", _UNSUPPORTED, _ANSWERED_LAP.format(remote="known.remote_id")
    ),
    "MRA at once": Patch(
        "cm/states.py",
        _NEW_REQUEST,
        "        _I.REQ: Move(_S.MRA_REQ_SENT, Send.MRA, EventKind.CONNECT_REQUEST),\n",
    ),
    "another order of checks": Patch("cm/answers.py", _SERVICE_FIRST, _GID_FIRST),
    "later": Patch("cm/connection.py", _LINGER, _LINGER.replace("),\n", ") * 3 // 2,\n")),
    "a second later after an MRA": Patch(
        "cm/manager.py", _SERVICE, _SERVICE + "            time += 1_000_000_000_000\n"
    ),
    "own transaction of a DREQ": Patch(
        "cm/manager.py", _DREQ_TRANSACTION, _DREQ_TRANSACTION.replace("_id\n", "_id ^ 0x5A5A\n")
    ),
    "own time of an MRA": Patch(
        "cm/manager.py",
        "            return receipt_acknowledgement(connection, self.timing.service_timeout)\n",
        "            return receipt_acknowledgement(connection, 20)\n",
    ),
    "no REJ for an expired REQ": Patch(
        "cm/states.py", _EXPIRED, _EXPIRED.replace("Send.REJ_TIMEOUT", "None")
    ),
    "no refusal kept": Patch(
        "cm/states.py",
        "    _I.REJECT: Move(_S.ANSWERED, Send.REJ),\n",
        "    _I.REJECT: Move(_S.IDLE, Send.REJ),\n",
    ),
    "MRA of an unknown connection refused": Patch(
        "cm/manager.py", _UNKNOWN, _UNKNOWN.replace(" and self._refuses_mra", "")
    ),
    "no MRA for a duplicate": Patch(
        "cm/states.py",
        "        _I.REQ: Move(_S.MRA_REQ_SENT, Send.MRA),\n",
        "        _I.REQ: Move(_S.REQ_RCVD),\n",
    ),
    "MRA of a REQ once": Patch(
        "cm/states.py", ", _I.REQ: Move(_S.MRA_REQ_SENT, Send.RETRANSMIT)},", "},"
    ),
    "MRA of a REP once": Patch(
        "cm/states.py", ", _I.REP: Move(_S.MRA_REP_SENT, Send.RETRANSMIT)},", "},"
    ),
    "a duplicate REQ restarts the REP": Patch(
        "cm/manager.py",
        "if before is not move.state or begins_again:",
        "if before is not move.state or begins_again or before is State.REP_SENT:",
    ),
    "REP again after an MRA": Patch(
        "cm/states.py",
        "    _S.MRA_REP_RCVD: _OFFERING,\n",
        "    _S.MRA_REP_RCVD: {**_OFFERING, _I.REQ: Move(_S.MRA_REP_RCVD, Send.RETRANSMIT)},\n",
    ),
    "silent in TIMEWAIT": Patch("cm/states.py", _NO_REPLY, ""),
    "refusal kept for a shorter time": Patch("cm/manager.py", _KEPT, "            time += 0\n"),
    "refusal kept for a moment": Patch("cm/manager.py", _KEPT, "            time = 1\n"),
    "no GID of messages": Patch("cm/registry.py", _OWN_GID, "        if connection is None:\n"),
    "serves more READs than its peer has": Patch("cm/connection.py", _SERVED, _OWN_RESOURCES),
    "has fewer READs than its peer serves": Patch(
        "cm/connection.py", _DEPTH, "        depth = 0\n"
    ),
    "has as many READs as its peer serves": Patch(
        "cm/connection.py", _DEPTH, "        depth = other.responder_resources\n"
    ),
    "no suggested GID": Patch("cm/answers.py", _SUGGESTED, '        gid = b""\n'),
    "a suggested MTU": Patch(
        "cm/answers.py", _OTHER_MTU, _OTHER_MTU.replace("_MTU)", "_MTU, bytes([5]))")
    ),
}
"""Devices that do what the specification leaves open."""

CHOICES = {
    "MRA at once",
    "no REJ for an expired REQ",
    "no refusal kept",
    "no GID of messages",
    "MRA of an unknown connection refused",
    "no MRA for a duplicate",
    "MRA of a REQ once",
    "MRA of a REP once",
    "a duplicate REQ restarts the REP",
    "REP again after an MRA",
    "silent in TIMEWAIT",
}
"""Those that are listed as choices."""


def run(patch: Patch, packets: int = PACKETS) -> Campaign:
    """A run against a manager with a change."""
    campaign = Campaign(bed(patch), CONNECTION_MANAGER.generators(31, Role.CM, ()), minimises=False)
    for _ in campaign.run(packets):
        pass
    return campaign


def bed(patch: Patch) -> EmulatorTestbed:
    device: Any = copied(Mutant("changed", (patch,)))[managed_emulation.__module__]
    return EmulatorTestbed(device.managed_emulation, CONNECTION_MANAGER)


@pytest.mark.parametrize("name", sampled(RIGHT, 4))
def test_what_is_left_to_a_manager_is_no_finding(name: str) -> None:
    report = run(RIGHT[name]).report

    assert [each.bucket for each in report.findings] == []
    assert len(report.choices) == (name in CHOICES)


FOUND = {
    "MRA of an unknown connection refused for a timeout": (
        Patch(
            "cm/manager.py",
            _UNKNOWN,
            _UNKNOWN.replace(" and self._refuses_mra", "") + "            self._reject_unknown("
            "message, received, source, cm.RejectReason.TIMEOUT)\n"
            "            return\n        if False:\n",
        ),
        "MRA without a connection: REJ TIMEOUT instead of silence",
    ),
    "MRA of the REP ignored": (
        Patch("cm/states.py", _MRA_OF_REP, ""),
        "a wait in MRA_REP_RCVD: it retransmits the REP too early after an MRA",
    ),
    "no REP for a duplicate": (
        Patch(
            "cm/states.py",
            "        _I.REQ: Move(_S.REP_SENT, Send.RETRANSMIT),\n",
            "        _I.REQ: Move(_S.REP_SENT),\n",
        ),
        "a repeated REQ in REP_SENT",
    ),
    "refusal kept and not sent again": (
        Patch("cm/states.py", "        _I.REQ: Move(_S.ANSWERED, Send.RETRANSMIT),\n", ""),
        "a repeated REQ in ANSWERED: silence instead of REJ CONSUMER_DEFINED",
    ),
    "another REJ in TIMEWAIT": (
        Patch("cm/states.py", _NO_REPLY, _NO_REPLY.replace("REJ_STALE", "REJ_TIMEOUT")),
        "cm.rej.reason and cm.rej.ari in the REJ",
    ),
}
"""Faults near them, with what the first finding is called."""


@pytest.mark.parametrize("name", sampled(FOUND, 3))
def test_what_is_near_a_choice_is_found(name: str) -> None:
    patch, text = FOUND[name]

    first, *_ = run(patch, 2 * PACKETS).report.findings

    assert text in first.bucket


def said(message: str, exchange: int = 0, **fields: Value) -> Mad:
    given = {name.replace("__", "."): value for name, value in fields.items()}
    return Mad(message=message, exchange=exchange, fields=given)


ACCEPTED: list[Step] = [said("REQ"), Command("accept")]
ESTABLISHED = [*ACCEPTED, said("RTU")]
ACTIVE = [Command("connect"), said("REP"), Command("ready")]

WRONG: Sequence[tuple[str, Patch, Sequence[Step]]] = (
    (
        "an APR with another ID",
        Patch("cm/manager.py", _UNSUPPORTED, _ANSWERED_LAP.format(remote="known.local_id")),
        [*ESTABLISHED, said("LAP")],
    ),
    (
        "an APR without a connection",
        Patch(
            "cm/manager.py",
            _UNSUPPORTED,
            _ANSWERED_LAP.format(remote="known.remote_id").replace("ESTABLISHED", "REP_SENT"),
        ),
        [*ACCEPTED, said("LAP")],
    ),
    (
        "another reason than the one there is",
        Patch("cm/answers.py", "cm.RejectReason.INVALID_SERVICE_ID", "cm.RejectReason.INVALID_MTU"),
        [said("REQ", req__service_id=0)],
    ),
    (
        "fewer READs served than its peer has",
        Patch("cm/connection.py", _SERVED, "        served = 0\n"),
        ACCEPTED,
    ),
    (
        "more READs than its peer serves",
        Patch("cm/connection.py", _DEPTH, "        depth = own.initiator_depth\n"),
        [said("REQ", req__responder_resources=0), Command("accept"), said("RTU")],
    ),
    (
        "its own RNR retry count",
        Patch("cm/connection.py", "other.rnr_retry_count", "own.rnr_retry_count"),
        [Command("connect"), said("REP", rep__rnr_retry_count=6), Command("ready")],
    ),
    (
        "a suggested GID that is none of its own",
        Patch("cm/answers.py", _SUGGESTED, _SUGGESTED.replace("gids[0]", "(gids[0] + 1)")),
        [said("REQ", req__primary_remote_gid=("gid", 1))],
    ),
    (
        "more than a suggested GID",
        Patch("cm/answers.py", _SUGGESTED, _SUGGESTED.replace("(16)", "(16) + bytes(1)")),
        [said("REQ", req__primary_remote_gid=("gid", 1))],
    ),
    (
        "a suggested MTU that no queue pair has",
        Patch("cm/answers.py", _OTHER_MTU, _OTHER_MTU.replace("_MTU)", "_MTU, bytes([6]))")),
        [said("REQ", req__path_packet_payload_mtu=0)],
    ),
    (
        "a suggestion for a service that is not there",
        Patch(
            "cm/answers.py",
            "cm.RejectReason.INVALID_SERVICE_ID)\n",
            "cm.RejectReason.INVALID_SERVICE_ID, bytes(8))\n",
        ),
        [said("REQ", req__service_id=0)],
    ),
    (
        "no DREQ for a stale connection",
        Patch(
            "cm/manager.py",
            "                self._end(stale, now)\n                refused",
            "                refused",
        ),
        [*ESTABLISHED, said("REQ", 2, req__local_qpn=("own.qpn", -2), req__service_id=0)],
    ),
    (
        "TIMEWAIT half as long",
        Patch("cm/connection.py", _LINGER, _LINGER.replace("),\n", ") // 2,\n")),
        [*ESTABLISHED, said("DREQ"), Wait(3 * S // 2)],
    ),
    (
        "TIMEWAIT without end",
        Patch("cm/connection.py", _LINGER, _LINGER.replace("),\n", ") * 100,\n")),
        [*ESTABLISHED, said("DREQ"), Wait(30 * S)],
    ),
    (
        "half as long after an MRA",
        Patch("cm/manager.py", _SERVICE, _SERVICE.replace(")\n", ") // 2\n")),
        [*ACCEPTED, said("MRA"), Wait(8 * S)],
    ),
    (
        "for ever after an MRA",
        Patch("cm/manager.py", _SERVICE, _SERVICE + "            time *= 100\n"),
        [*ACCEPTED, said("MRA"), Wait(300 * S)],
    ),
    (
        "the transaction of a DREP",
        Patch(
            "cm/manager.py",
            "                transaction = received.transaction_id\n",
            "                transaction = received.transaction_id ^ 1\n",
        ),
        [*ACTIVE, said("DREQ")],
    ),
    (
        "an MRA about another message",
        Patch("cm/answers.py", "cm.MessageMRAed.REP if is_active else cm.MessageMRAed.REQ", "2"),
        [said("REQ"), said("REQ")],
    ),
    (
        "no REJ for an expired REP",
        Patch(
            "cm/states.py",
            "    _I.EXPIRED: Move(_S.TIMEWAIT, Send.REJ_TIMEOUT, _UNREACHABLE),\n",
            "    _I.EXPIRED: Move(_S.TIMEWAIT, None, _UNREACHABLE),\n",
        ),
        [*ACCEPTED, Wait(20 * S)],
    ),
)


@pytest.mark.parametrize(
    ("patch", "steps"),
    [pytest.param(*each[1:], id=each[0]) for each in WRONG],
)
def test_what_is_not_left_to_it_differs(patch: Patch, steps: Sequence[Step]) -> None:
    case = Case(Connection(), tuple(steps))

    difference = bed(patch).replay(case, SPEC)

    assert difference is not None
    assert difference.step == len(steps) - 1


def test_attributes_of_queue_pairs_that_a_device_does_not_tell_are_not_compared() -> None:
    own = Patch("cm/connection.py", "other.rnr_retry_count", "own.rnr_retry_count")
    device: Any = copied(Mutant("changed", (own,)))[managed_emulation.__module__]
    device._ATTRIBUTES_OF = {}
    steps = [Command("connect"), said("REP", rep__rnr_retry_count=6), Command("ready")]
    testbed = EmulatorTestbed(device.managed_emulation, CONNECTION_MANAGER)

    assert testbed.replay(Case(steps=tuple(steps)), SPEC) is None


def test_a_request_of_another_class_version_may_be_refused_for_that() -> None:
    reader = "    if data[:4] != _KIND:\n"
    version = "data[:2] + data[3:4] == _KIND[:2] + _KIND[3:4]"
    patches = (
        Patch("cm/messages.py", reader, f"    if not ({version}):\n"),
        Patch(
            "cm/manager.py",
            "        message = received.message\n        match message:\n",
            "        message = received.message\n"
            "        if mad[2] != 2:\n"
            "            if isinstance(message, cm.REQ):\n"
            "                refused = refusal(message, cm.RejectReason.{reason})\n"
            "                self._put(encode(refused, received.transaction_id), source)\n"
            "            return\n"
            "        match message:\n",
        ),
    )
    case = Case(steps=(said("REQ", mad__class_version=1),))

    def found(reason: str) -> bool:
        made = tuple(
            Patch(each.module, each.old, each.new.replace("{reason}", reason)) for each in patches
        )
        device: Any = copied(Mutant("changed", made))[managed_emulation.__module__]
        testbed = EmulatorTestbed(device.managed_emulation, CONNECTION_MANAGER)
        return testbed.replay(case, SPEC) is not None

    assert not found("INVALID_CLASS_VERSION")
    assert found("INVALID_MTU")


XRC: dict[str, Value] = {"req__transport_service_type": 3, "req__extended_transport_type": 1}


def test_the_queue_pair_of_an_xrc_connection_is_that_of_its_reply() -> None:
    """A DREQ names it: one for another queue pair is dropped, the right one ends the connection."""
    steps = [said("REQ", **XRC), Command("accept"), said("RTU"), said("DREQ")]
    right = Patch("cm/states.py", _MRA_OF_REP, _MRA_OF_REP)
    wrong = Patch(
        "cm/connection.py",
        "    return answer.local_eecn if is_xrc(request) else answer.local_qpn\n",
        "    return answer.local_qpn\n",
    )

    assert bed(right).replay(Case(steps=tuple(steps)), SPEC) is None
    difference = bed(wrong).replay(Case(steps=tuple(steps)), SPEC)
    assert difference is not None
    assert difference.expected
    assert not difference.got


@pytest.mark.parametrize("reason", ["NO_QP", "INVALID_PRIMARY_SL"])
def test_a_request_that_has_the_bytes_of_another_message_may_be_refused_for_anything(
    reason: str,
) -> None:
    patch = Patch(
        "cm/answers.py", "cm.RejectReason.INVALID_SERVICE_ID", f"cm.RejectReason.{reason}"
    )
    as_request = said("REP", mad__attribute_id=int(CMAttribute.REQ))

    assert bed(patch).replay(Case(steps=(as_request,)), SPEC) is None
    assert bed(patch).replay(Case(steps=(said("REQ", req__service_id=0),)), SPEC) is not None


def test_the_kept_answer_to_a_refused_request_may_last_longer() -> None:
    """ANSWERED is a state of this emulator."""
    steps = [said("REQ"), Command("reject"), Wait(10 * S), said("REQ")]

    difference = bed(RIGHT["later"]).replay(Case(steps=tuple(steps)), SPEC)

    assert difference is None


def test_a_state_that_no_application_knows_is_no_difference() -> None:
    patch = Patch("cm/states.py", "        _I.MRA_REP: Move(_S.MRA_REP_RCVD),\n", "")
    steps = [*ACCEPTED, said("MRA")]

    assert bed(patch).replay(Case(steps=tuple(steps)), SPEC) is None
    assert bed(patch).replay(Case(steps=(*steps, Wait(5 * S))), SPEC) is not None
