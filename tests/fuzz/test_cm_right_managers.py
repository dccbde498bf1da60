"""What managers do that are right in another way is no finding, and what is wrong is named truly.

Sources: reference/cm#timeouts, #resending, #reject-reasons, #states, #sidr, #teardown and #peer.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import pytest

from ibwire.base.units import MS, S
from ibwire.fuzz.artefacts import checked_script
from ibwire.fuzz.campaign import Campaign
from ibwire.fuzz.case import Case, Command, Connection, Mad, Step, Value, Wait
from ibwire.fuzz.judge.findings import Finding
from ibwire.fuzz.recording import record
from ibwire.fuzz.targets.emulated_manager import BACKLOG, MAXIMUM_CONNECTIONS, managed_emulation
from ibwire.fuzz.targets.emulator import Emulator, EmulatorTestbed, target
from ibwire.fuzz.vocabulary.vocabularies import CONNECTION_MANAGER
from ibwire.rc.profile import SPEC
from mutants.engine import copied
from mutants.table import Mutant, Patch


def said(message: str, exchange: int = 0, **fields: Value) -> Mad:
    """A message with other fields."""
    given = {name.replace("__", "."): value for name, value in fields.items()}
    return Mad(message=message, exchange=exchange, fields=given)


@cache
def device_of(patch: Patch) -> Any:
    """A manager with a change."""
    return copied(Mutant("changed", (patch,)))[managed_emulation.__module__]


def bed(patch: Patch) -> EmulatorTestbed:
    """What carries cases out on it."""
    return EmulatorTestbed(device_of(patch).managed_emulation, CONNECTION_MANAGER)


_DUE = "        due = now + time\n"


def ticking(tick: int) -> Patch:
    """A manager whose timers expire at ticks of its clock."""
    return Patch("cm/manager.py", _DUE, f"        due = -(-(now + time) // {tick}) * {tick}\n")


REQUESTED: Sequence[Step] = [said("REQ"), Command("accept")]
ESTABLISHED: Sequence[Step] = [*REQUESTED, said("RTU")]
ASKED: Sequence[Step] = [Command("connect")]
ENDS: Sequence[Step] = [*ESTABLISHED, Command("disconnect")]
RESOLVES: Sequence[Step] = [Command("resolve")]
TIMED: Sequence[Sequence[Step]] = [
    [*REQUESTED, Wait(200 * S)],
    [*ASKED, Wait(200 * S)],
    [*ENDS, Wait(200 * S)],
    [*RESOLVES, Wait(200 * S)],
    [*ASKED, Wait(6442450945 * 1000), Wait(20 * S), said("REP"), Command("ready"), Wait(S)],
    [*ENDS, Wait(4294967296 * 1000), said("DREP"), Wait(4 * MS), Wait(20 * S)],
    [*ASKED, Command("connect", 1), Wait(MS), Command("connect", 2), Wait(200 * S)],
    [*ESTABLISHED, said("DREQ"), Wait(30 * S), said("REQ"), Wait(S)],
    [said("REQ", req__local_cm_response_timeout=0), Command("accept"), Wait(S)],
]
"""Cases in which timers expire, also at the end of a wait."""


@pytest.mark.parametrize("steps", TIMED)
@pytest.mark.parametrize("tick", [4 * MS, 10 * MS])
def test_timers_may_expire_at_ticks_of_a_clock(tick: int, steps: Sequence[Step]) -> None:
    assert bed(ticking(tick)).replay(Case(steps=tuple(steps)), SPEC) is None


LATER = f"        due = now + time + {11 * MS}\n"
EARLY = f"        due = now + time - {MS}\n"


@pytest.mark.parametrize("steps", TIMED[:4])
@pytest.mark.parametrize("due", [LATER, EARLY, f"        due = now + time + {7 * S}\n"])
def test_more_than_a_tick_is_too_late_and_any_time_before_too_early(
    due: str, steps: Sequence[Step]
) -> None:
    assert bed(Patch("cm/manager.py", _DUE, due)).replay(Case(steps=tuple(steps)), SPEC)


@pytest.mark.parametrize("steps", TIMED[:4])
def test_a_tick_hides_no_retransmission_that_never_comes(steps: Sequence[Step]) -> None:
    never = Patch(
        "cm/manager.py",
        "        due = now + time\n",
        "        due = now + time * 1000 * 1000\n",
    )

    assert bed(never).replay(Case(steps=tuple(steps)), SPEC) is not None


def test_an_answer_that_is_kept_until_a_tick_may_be_there_for_a_message_that_was_held() -> None:
    """The REP is for an unused ID, or for a refused request that a device has not forgotten."""
    kept = Wait(8589934593 * 1000)
    steps = [said("REQ"), Command("reject"), kept, held(said("REP")), said("REQ", 1)]

    assert bed(ticking(4 * MS)).replay(Case(steps=tuple(steps)), SPEC) is None


def test_an_answer_that_is_kept_until_a_tick_may_take_the_room_of_a_connection() -> None:
    others = [Command("connect", each) for each in range(2, MAXIMUM_CONNECTIONS + 1)]
    kept = Wait(8589934593 * 1000)
    steps = [said("REQ"), Command("reject"), kept, *others, said("REQ", 40)]
    without = [*kept_by_nobody(steps), said("REQ", 40)]

    assert bed(ticking(4 * MS)).replay(Case(steps=tuple(steps)), SPEC) is None
    assert bed(_SILENT).replay(Case(steps=tuple(without)), SPEC) is not None


_SILENT = Patch(
    "cm/states.py",
    "        _I.REQ: Move(_S.REQ_RCVD, event=EventKind.CONNECT_REQUEST),\n",
    "        _I.REQ: Move(_S.REQ_RCVD),\n",
)


def kept_by_nobody(steps: Sequence[Step]) -> Sequence[Step]:
    """The connections of a case without the request that is refused first."""
    return [each for each in steps if isinstance(each, Command) and each.what == "connect"]


def held(message: Mad) -> Mad:
    """A message that arrives together with the next one."""
    message.held = True
    return message


# Room.

_ROOM = "        if self._has_room(listener):\n            connection = self._begin(request, "


def refusing(reason: str) -> Patch:
    """A manager that refuses the REQ that it has no room for."""
    return Patch(
        "cm/manager.py",
        _ROOM,
        "        if not self._has_room(listener):\n"
        "            if isinstance(request, cm.REQ):\n"
        f"                refused = refusal(request, cm.RejectReason.{reason})\n"
        "                self._put(encode(refused, received.transaction_id), source)\n"
        "        else:\n            connection = self._begin(request, ",
    )


FULL: Sequence[Step] = [said("REQ", each) for each in range(BACKLOG + 1)]
FULL_AT_ONCE: Sequence[Step] = [
    *FULL[:BACKLOG],
    held(said("REQ", BACKLOG)),
    said("APR", BACKLOG),
    said("DREQ"),
]
CONNECTIONS: Sequence[Step] = [
    *[Command("connect", each) for each in range(MAXIMUM_CONNECTIONS)],
    said("REQ", MAXIMUM_CONNECTIONS),
]


@pytest.mark.parametrize("steps", [FULL, FULL_AT_ONCE, CONNECTIONS])
def test_a_request_without_room_is_refused_or_dropped(steps: Sequence[Step]) -> None:
    case = Case(steps=tuple(steps))

    assert bed(refusing("NO_RESOURCES")).replay(case, SPEC) is None
    assert bed(refusing("NO_QP")).replay(case, SPEC) is not None


@pytest.mark.parametrize(
    ("steps", "text"),
    [
        (FULL, "REQ beyond the backlog: REJ NO_QP instead of silence"),
        (
            CONNECTIONS,
            "REQ beyond the connections that there is room for: REJ NO_QP instead of silence",
        ),
    ],
)
def test_a_request_without_room_is_named_by_that(steps: Sequence[Step], text: str) -> None:
    assert found(refusing("NO_QP"), steps).bucket == text


def test_there_is_a_reason_why_a_case_of_all_connections_is_no_script() -> None:
    """A script has no limit of connections: the emulator does something else in it."""
    finding = found(refusing("NO_QP"), CONNECTIONS)

    text, reason = checked_script(finding, target("emu"))

    assert not text
    assert "room for 16 connections" in reason


def found(patch: Patch, steps: Sequence[Step], *, minimises: bool = False) -> Finding:
    """What a run finds that has one case."""
    campaign = Campaign(bed(patch), lambda number: _Fixed(steps), minimises=minimises)
    for _ in campaign.run(sum(isinstance(each, Mad) for each in steps) + 1):
        pass
    (finding,) = campaign.report.findings
    return finding


class _Fixed:
    """A case of given steps."""

    connection = Connection()

    def __init__(self, steps: Sequence[Step]) -> None:
        self._steps = list(steps)

    def next(self, reference: Any) -> Step | None:
        step = self._steps.pop(0) if self._steps else None
        if isinstance(step, Mad):
            reference.application.exchange = step.exchange
        return step


# Service ID resolution.

_SIDR_KEPT = "_I.ACCEPT: Move(_S.ANSWERED, Send.SIDR_REP)"
RESOLVED: Sequence[Step] = [said("SIDR_REQ"), Command("accept")]


@pytest.mark.parametrize(
    "steps",
    [
        [*RESOLVED, said("SIDR_REQ")],
        [*RESOLVED, said("SIDR_REQ", sidr_req__service_id=("service", 1))],
        [
            step
            for each in range(MAXIMUM_CONNECTIONS + 1)
            for step in (said("SIDR_REQ", each), Command("accept", each))
        ],
    ],
)
def test_the_answer_to_a_resolution_need_not_be_kept(steps: Sequence[Step]) -> None:
    patch = Patch("cm/states.py", _SIDR_KEPT, _SIDR_KEPT.replace("ANSWERED", "IDLE"))

    assert bed(patch).replay(Case(steps=tuple(steps)), SPEC) is None


def test_a_kept_answer_to_a_resolution_is_sent_again() -> None:
    patch = Patch("cm/states.py", "        _I.SIDR_REQ: Move(_S.ANSWERED, Send.RETRANSMIT),\n", "")

    assert bed(patch).replay(Case(steps=(*RESOLVED, said("SIDR_REQ"))), SPEC) is not None


# LAP and REQ.

_UNSUPPORTED = '                self.counters["unsupported"] += 1\n'


def answering_lap(status: int, remote: str = "message.local_comm_id") -> Patch:
    """A manager that answers a LAP of an unknown connection."""
    return Patch(
        "cm/manager.py",
        _UNSUPPORTED,
        f"{_UNSUPPORTED}"
        "                if isinstance(message, cm.LAP) and "
        "message.remote_comm_id not in self.connections:\n"
        "                    self._put(encode(cm.APR(local_comm_id=message.remote_comm_id, "
        f"remote_comm_id={remote}, ap_status={status}), received.transaction_id), source)\n",
    )


def test_a_lap_of_an_unknown_connection_may_be_answered_with_that() -> None:
    case = Case(steps=(said("LAP"), said("LAP", 1), *ESTABLISHED, said("DREQ")))

    assert bed(answering_lap(1)).replay(case, SPEC) is None
    assert bed(answering_lap(2)).replay(case, SPEC) is not None
    assert bed(answering_lap(1, "7")).replay(case, SPEC) is not None


_GIDS = "    if request.primary_remote_gid not in gids:\n"


def refusing_rates(rates: str, reason: str, name: str = "primary") -> Patch:
    """A manager that refuses packet rates."""
    return Patch(
        "cm/answers.py",
        _GIDS,
        f"    if request.{name}_packet_rate {rates}:\n"
        f"        return refusal(request, cm.RejectReason.{reason})\n{_GIDS}",
    )


@pytest.mark.parametrize("rate", [1, 23, 63])
def test_a_reserved_packet_rate_may_be_refused_with_its_reason(rate: int) -> None:
    alone: Sequence[Step] = [said("REQ", req__primary_packet_rate=rate)]
    case = Case(steps=(*alone, Command("accept")))
    at_once = Case(steps=(held(said("REQ", 0, req__primary_packet_rate=rate)), said("REQ", 1)))
    right = refusing_rates(f"== {rate}", "INVALID_PRIMARY_PACKET_RATE")
    wrong = refusing_rates(f"== {rate}", "INVALID_PRIMARY_SL")

    assert bed(right).replay(case, SPEC) is None
    assert bed(right).replay(at_once, SPEC) is None
    assert bed(wrong).replay(case, SPEC) is not None
    text = f"REQ with primary_packet_rate {rate}: REJ INVALID_PRIMARY_SL, and it does not report"
    assert found(wrong, alone).bucket == f"{text} CONNECT_REQUEST"


@pytest.mark.parametrize("rate", [0, 2, 22])
def test_another_packet_rate_may_not_be_refused(rate: int) -> None:
    patch = refusing_rates(f"== {rate}", "INVALID_PRIMARY_PACKET_RATE")
    case = Case(steps=(said("REQ", req__primary_packet_rate=rate),))

    assert bed(patch).replay(case, SPEC) is not None


def test_an_event_that_is_not_reported_is_expected() -> None:
    patch = refusing_rates("== 2", "INVALID_PRIMARY_SL")
    case = Case(steps=(said("REQ", req__primary_packet_rate=2),))

    device = {CONNECTION_MANAGER.name: device_of(patch).managed_emulation}
    recording = record(case, Emulator("changed", device, lambda text: True))

    assert recording.expected == ["connection manager: CONNECT_REQUEST"]
    assert recording.got == ["REJ INVALID_PRIMARY_SL"]


# Names.


def test_a_missing_answer_to_a_message_that_was_held_is_named_by_that_message() -> None:
    silent = Patch(
        "cm/manager.py",
        "        if isinstance(message, cm.DREQ):\n            # The",
        "        if isinstance(message, cm.DREQ) and message.local_comm_id & 1:\n"
        "            pass\n"
        "        elif isinstance(message, cm.DREQ):\n            # The",
    )
    steps = [held(said("DREQ", 1)), said("REQ", 2)]

    finding = found(silent, steps)

    assert finding.bucket == "DREQ without a connection: silence instead of DREP"
    assert "#teardown" in finding.rule


_BOTH_IDS = "connection.has_remote_id and connection.remote_id == message.local_comm_id:\n"
_ANY_ID_OF_DREP = _BOTH_IDS.replace(
    "connection.remote_id ==", "(isinstance(message, cm.DREP) or connection.remote_id =="
).replace(":\n", "):\n")


@pytest.mark.parametrize(
    ("steps", "text"),
    [
        (
            [
                Command("connect"),
                said("REP", rep__local_comm_id=0xFFFFFFFF),
                Command("ready"),
                Command("disconnect"),
                said("DREP"),
            ],
            "DREP with another communication ID of its sender than in the REP: "
            "it reports DISCONNECTED instead of nothing",
        ),
        (
            [*ENDS, said("DREP", drep__local_comm_id=("own.id", 1))],
            "DREP with local_comm_id own.id+1 in DREQ_SENT: "
            "it reports DISCONNECTED instead of nothing",
        ),
    ],
)
def test_a_drep_with_another_id_is_named_by_that(steps: Sequence[Step], text: str) -> None:
    finding = found(Patch("cm/registry.py", _BOTH_IDS, _ANY_ID_OF_DREP), steps)

    assert finding.bucket == text
    assert finding.rule.endswith("cm.md#teardown, docs/reference/cm.md#peer")


def test_a_connection_that_is_over_at_once_is_named_by_its_state() -> None:
    patch = Patch(
        "cm/states.py",
        "_I.EXPIRED: Move(_S.TIMEWAIT, event=_DISCONNECTED)",
        "_I.EXPIRED: Move(_S.IDLE, event=_DISCONNECTED)",
    )
    steps = [
        said("REQ", req__max_cm_retries=0),
        Command("accept"),
        said("RTU"),
        Command("disconnect"),
        Wait(4294967296 * 1000),
    ]

    finding = found(patch, steps)

    assert finding.bucket == "a wait in DREQ_SENT: no connection instead of TIMEWAIT"
