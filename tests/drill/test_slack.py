"""What a target that may be late changes: the emulator with the slack of a link.

A WRITE is not answered, so it is sent again after 67.1 ms (4.096 us * 2 ** 14, IBA 9.7.6.1.3).
"""

from __future__ import annotations

import pytest

from each_case import each_case
from ibwire.base.errors import PeerError
from ibwire.base.units import MS, Time
from ibwire.drill import Verdict, parse
from ibwire.drill.application import Application
from ibwire.drill.language.expressions import Scope
from ibwire.drill.runner import asked_for, carry_out
from ibwire.drill.targets.emulated import Emulated
from ibwire.drill.targets.queue_pair import DeviceQueuePair

SENT = "qp timeout=14\npost_send RDMA_WRITE len=8\n> WRITE_ONLY psn\n"
ONCE = SENT.replace("timeout=14", "timeout=14 retry_cnt=0")
AGAIN = "> WRITE_ONLY psn\n"
DONE = "< ACK psn\npoll send\n"


def drill(text: str, slack: Time, device: type[Emulated] = Emulated) -> Verdict:
    script = parse(text.encode(), "s.drill")
    (case,) = script.cases
    steps, scope = list(case.steps), Scope("s.drill", {})
    _, given = asked_for(steps, scope)
    target = device("spec", given)
    target.slack = slack
    verdict = Verdict("s.drill", "", "", "", "spec")
    carry_out(script, steps, target, verdict, Application(target, scope), scope)
    return verdict


NEEDS_SLACK = {
    "an answer at once": SENT + "+50ms silence\n" + AGAIN + DONE,
    "an answer at a time": SENT + "+50ms " + AGAIN + DONE,
    "the beginning of a range": SENT + "+80ms..90ms " + AGAIN + DONE,
    "the end of a range": SENT + "+10ms..50ms " + AGAIN + DONE,
    "any order": SENT + "+50ms silence\nunordered {\n" + AGAIN + "}\n" + DONE,
    "a completion": ONCE + "+50ms silence\npoll send status=RETRY_EXC_ERR\nevent nothing",
    "a state": ONCE + "+50ms silence\nstate ERR\npoll send status=*",
}

FAILS_WITH_SLACK = {
    "silence lasts so long at least": SENT + "+50ms silence\n+1us silence\n" + DONE,
    "and at the end": SENT + "+50ms silence",
    "a completion that must not come": ONCE
    + "+50ms silence\npoll send nothing\nmodify state=RESET",
}


@each_case("text", NEEDS_SLACK.values(), ids=NEEDS_SLACK)
def test_what_is_expected_may_be_late(text: str) -> None:
    assert drill(text, 20 * MS).failure is None
    assert drill(text, 0).failure is not None
    assert drill(text, 10 * MS).failure is not None


@pytest.mark.parametrize("text", FAILS_WITH_SLACK.values(), ids=FAILS_WITH_SLACK)
def test_what_must_not_come_may_be_late_too(text: str) -> None:
    assert drill(text, 20 * MS).failure is not None
    assert drill(text, 10 * MS).failure is None


def test_a_tolerance_counts_if_it_is_larger() -> None:
    text = "tolerance 30ms\n" + SENT + "+40ms " + AGAIN + DONE

    assert drill(text, 20 * MS).failure is None


def test_an_optional_packet_is_waited_for() -> None:
    text = SENT + "+50ms silence\n>? WRITE_ONLY psn\n" + DONE

    assert drill(text, 20 * MS).failure is None


def test_a_device_that_is_lost_fails_where_it_was_and_ends_the_run() -> None:
    class Lost(Emulated):
        def queue_pair(self, name: str) -> DeviceQueuePair:
            raise PeerError("10.0.0.1 has closed its connection")

    script = parse(b"// Rule.\npost_recv wr_id=1\n", "s.drill")
    target, scope = Lost("spec", {}), Scope("s.drill", {})
    verdict = Verdict("s.drill", "", "", "", "spec")

    with pytest.raises(PeerError):
        carry_out(
            script,
            script.cases[0].steps,
            target=target,
            verdict=verdict,
            application=Application(target, scope),
            scope=scope,
        )

    assert verdict.failure is not None
    assert (verdict.failure.line.number, verdict.failure.expected, verdict.failure.got) == (
        2,
        "a device that is there",
        "10.0.0.1 has closed its connection",
    )
