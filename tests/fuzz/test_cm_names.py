"""Names and rules of what a connection manager does otherwise: true for the planted fault.

docs/reference/cm.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from ibwire.base.units import S
from ibwire.fuzz.case import Case, Command, Connection, Mad, Packet, Step, Value, Wait
from ibwire.fuzz.judge.naming import Name
from ibwire.fuzz.targets.emulated_manager import managed_emulation
from ibwire.fuzz.targets.emulator import EmulatorTestbed
from ibwire.fuzz.vocabulary.cm.names import manager_name
from ibwire.fuzz.vocabulary.vocabularies import CONNECTION_MANAGER
from ibwire.rc.profile import SPEC
from ibwire_layers.opcodes import OpCode
from mutants.engine import copied
from mutants.table import FIRMWARE, FUZZED, read_mutants

MUTANTS = FUZZED | read_mutants(FIRMWARE)


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


ACCEPTED = [said("REQ"), Command("accept", 0)]
DATA = Packet(int(OpCode.RC_SEND_ONLY))

CASES: Sequence[tuple[str, Sequence[Step], str, str, str]] = (
    (
        "psns-of-connection-exchanged",
        [*ACCEPTED, DATA],
        "REP_SENT",
        "SEND_ONLY in REP_SENT: NAK PSN_SEQUENCE_ERROR instead of RNR NAK",
        "request",
    ),
    (
        "backlog-lost-by-rej",
        [said("REQ"), said("REJ")],
        "REQ_RCVD",
        "REJ in REQ_RCVD: event",
        "states",
    ),
    (
        "rej-after-rep-ends-at-once",
        [*ACCEPTED, said("REJ")],
        "REP_SENT",
        "REJ in REP_SENT: event",
        "states",
    ),
    (
        "stale-without-guid",
        [*ACCEPTED, said("REQ", req__local_ca_guid=("own.guid", 1))],
        "REP_SENT",
        "REQ with req.local_ca_guid: REP instead of silence",
        "resending",
    ),
    (
        "retries-shared-after-mra",
        [*ACCEPTED, Wait(5 * S), said("RTU"), Command("disconnect", 0), Wait(150 * S)],
        "DREQ_SENT",
        "wait in DREQ_SENT: silence instead of DREQ",
        "resending",
    ),
    (  # it is the REP that differs from the rest of the exchange
        "dreq-with-a-wrong-remote-id",
        [Command("connect", 0), said("REP", rep__local_comm_id=1), said("DREQ")],
        "REP_RCVD",
        "DREQ with other IDs than before: silence instead of DREP",
        "unknown-connection",
    ),
)


@pytest.mark.parametrize(
    ("fault", "steps", "state", "text", "rule"),
    [pytest.param(*each, id=each[0]) for each in CASES],
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
