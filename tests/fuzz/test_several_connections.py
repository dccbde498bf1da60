"""A finding that takes several connections says so, and blames the reset of the queue pair."""

from __future__ import annotations

from fuzz.test_names_and_rules import named as named_alone
from ibwire.fuzz.case import Case, Connect, Connection, Packet, Step
from ibwire.fuzz.judge.naming import Name
from ibwire.fuzz.judge.needs import with_needs
from ibwire.fuzz.judge.packet_faults import with_own_faults
from ibwire.rc.profile import SPEC
from ibwire_layers.opcodes import OpCode
from mutants.table import Patch

RESET_KEEPS_THE_NAK = Patch(
    "rc/responder.py",
    "        self._nak_sent = False\n        self._message: Operation | None = None",
    '        self._nak_sent = getattr(self, "_nak_sent", False)\n'
    "        self._message: Operation | None = None",
)
RESET_KEEPS_RESPONSES = Patch(
    "rc/responder.py",
    "        self.resources.clear()\n        self.replies.clear()",
    "        self.replies.clear()",
)
SEND = Packet(int(OpCode.RC_SEND_ONLY))
WRITE = Packet(int(OpCode.RC_RDMA_WRITE_ONLY))
AHEAD = ("expected", 1)
NO_RECEIVES = Connection(receives=0)
NO_NAK = "nothing instead of NAK PSN_SEQUENCE_ERROR"


def named(patch: Patch, *steps: Step, connection: Connection) -> Name:
    """The name of a minimised case."""
    return with_needs(
        named_alone(patch, *steps, connection=connection), Case(connection, tuple(steps))
    )


def test_what_was_refused_on_another_connection_does_not_matter_on_this_one() -> None:
    steps = (SEND, Connect(NO_RECEIVES), SEND.altered(psn=AHEAD))
    name = named(RESET_KEEPS_THE_NAK, *steps, connection=NO_RECEIVES)
    case = with_own_faults(Case(NO_RECEIVES, steps), SPEC)

    assert name.text == (
        "SEND_ONLY (a request behind a gap) after another connection "
        f"with SEND_ONLY (no receive request): {NO_NAK}"
    )
    assert name.rule.endswith("#qp-reset")
    assert isinstance(case.steps[-1], Packet)
    assert case.steps[-1].why == "a request behind a gap"


def test_what_is_left_of_another_connection_has_one_cause() -> None:
    ahead = WRITE.altered(psn=AHEAD)
    usual = Connection()
    one = named(
        *(RESET_KEEPS_THE_NAK, SEND, Connect(NO_RECEIVES), SEND.altered(psn=AHEAD)),
        connection=NO_RECEIVES,
    )
    other = named(RESET_KEEPS_THE_NAK, ahead, Connect(usual), ahead, connection=usual)

    assert other.text == (
        "WRITE_ONLY (a request behind a gap) after another connection "
        f"with WRITE_ONLY (a request behind a gap): {NO_NAK}"
    )
    assert set(one.causes) & set(other.causes)


def test_a_long_case_says_that_it_takes_several_connections() -> None:
    usual = Connection(max_dest_rd_atomic=16)
    read = Packet(int(OpCode.RC_RDMA_READ_REQUEST))
    add = Packet(int(OpCode.RC_FETCH_ADD))
    steps = (read.altered(held=True), Connect(usual), *[add] * 16)
    again = add.altered(psn=("expected", -16))
    name = named(RESET_KEEPS_RESPONSES, *steps, again, connection=usual)

    assert " after another connection with READ_REQUEST: " in name.text
    assert name.rule.endswith("#qp-reset")
