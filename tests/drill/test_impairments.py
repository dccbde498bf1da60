"""Lines that damage what comes after them: what each does, from when on, and what is no rule."""

from __future__ import annotations

from pathlib import Path

import pytest

from drill.test_docs import BLOCKS
from each_case import each_case
from ibwire.base.errors import ScriptError
from ibwire.capture import open_capture
from ibwire.drill import Verdict, parse, report, run
from ibwire.drill.files import write_capture

WRITE = "+1us < WRITE_ONLY psn{} ack len=8\n"
"""Draws an acknowledgement in the same moment."""


def drill(text: str, profile: str = "spec") -> Verdict:
    script = parse(text.encode(), "s.drill", profile)
    (case,) = script.cases
    return run(script, case, profile)


def test_example_of_the_documentation_passes() -> None:
    (text,) = (block for block in BLOCKS if "impair > drop" in block)

    verdict = drill(text)

    assert verdict.passed, report(verdict)


def write(*numbers: int) -> str:
    return "".join(WRITE.format(f"+{number}") for number in numbers)


PASSING = {
    "what it receives is lost": "impair < drop\n" + write(0) + "+1s silence",
    "what it sends is lost": "impair > drop\n" + write(0) + "+1s silence",
    "the other direction is not": "impair < drop opcode=SEND_ONLY\n" + write(0) + "> ACK psn",
    "from the line on": write(0) + "> ACK psn\nimpair > drop nth=1\n" + write(1, 2) + "> ACK psn+2",
    "by a short name": "impair > drop opcode=ACK\n" + write(0) + "+1s silence",
    "by several names": "impair < drop opcode={SEND_ONLY, WRITE_ONLY}\n" + write(0) + "+1s silence",
    "by a number": "impair < drop opcode=0x0A\n" + write(0) + "+1s silence",
    "by the operation": "impair < drop opcode=WRITE\n" + write(0) + "+1s silence",
    "by what kind of packet it is": "impair > drop opcode=response\n" + write(0) + "+1s silence",
    "by several places": "impair > drop nth={1, 3}\n"
    + write(0)
    + "+1us silence\n"
    + write(1)
    + "> ACK psn+1\n"
    + write(2)
    + "+1s silence",
    "every second": "impair > drop every=2\n" + write(0) + "> ACK psn\n" + write(1) + "+1s silence",
    "by the distance from the first": "impair > drop psn=1\n"
    + write(0)
    + "> ACK psn\n"
    + write(1)
    + "+1s silence",
    "by the number in the header": "impair > drop absolute_psn=rq_psn+1\n"
    + write(0)
    + "> ACK psn\n"
    + write(1)
    + "+1s silence",
    "by the symbol of its direction": "impair < drop absolute_psn=psn\n" + write(0) + "+1s silence",
    "by the syndrome": "impair > drop syndrome=NAK\n+1us < SEND_MIDDLE psn len=256\n+1s silence\n"
    "event QP_REQ_ERR",
    "by the time": write(0)
    + "> ACK psn\n+1s impair > drop after=10us before=20us\n"
    + write(1)
    + "> ACK psn+1\n+14us < WRITE_ONLY psn+2 ack len=8\n+1us silence\n+10us < WRITE_ONLY psn+3 ack "
    "len=8\n> ACK psn+3",
    "late for the device": "impair < delay=5us\n" + write(0) + "+5us > ACK psn",
    "late for its peer": "impair > delay time=5us\n" + write(0) + "+5us > ACK psn",
    "by the time of a code": "impair > delay=ack_timeout(1)\n" + write(0) + "+8.192us > ACK psn",
    "two rules, one after the other": "impair > delay=5us\nimpair > delay=2us\n"
    + write(0)
    + "+7us > ACK psn",
    "twice": "impair > duplicate copies=2 delay=1us\n"
    + write(0)
    + "> ACK psn\n+1us > ACK psn\n+1us > ACK psn",
    "overtaken": "impair > reorder nth=1\n"
    + write(0)
    + "+1us silence\n"
    + write(1)
    + "> ACK psn+1\n> ACK psn",
    "overtaken by nobody": "impair > reorder nth=1 max_delay=10us\n"
    + write(0)
    + "+9us silence\n+2us > ACK psn",
    "held when the rule ends": "impair > reorder nth=1\n" + write(0) + "+1us silence\n"
    "impair > nothing\n> ACK psn",
    "damaged": "impair < corrupt bits=3 where=payload\n" + write(0) + "+1s silence",
    "another number": "impair > rewrite bth.psn=5\n" + write(0) + "> ACK 5",
    "another number that the ICRC does not know of": "impair < rewrite bth.psn=5 repair=nothing\n"
    + write(0)
    + "+1s silence",
    "in bursts": "impair > drop burst.count=2 burst.first=2\n"
    + write(0)
    + "> ACK psn\n"
    + write(1)
    + "+1us silence\n"
    + write(2)
    + "+1us silence\n"
    + write(3)
    + "> ACK psn+3",
    "by chance": 'impair > drop probability="1.0"\n' + write(0) + "+1s silence",
    "by chance, shortly": "impair > drop=1\n" + write(0) + "+1s silence",
    "no more": "impair > drop\n"
    + write(0)
    + "+1us silence\nimpair > nothing\n"
    + write(1)
    + "> ACK psn+1",
    "messages of connection management": "impair < drop nth=1\n< CM_REQ\n+1us < CM_REQ\n> CM_REJ",
    "in a loop": "for i in 1..2 {\nimpair > drop nth=$i\n}\n"
    + write(0)
    + "+1us silence\n"
    + write(1)
    + "> ACK psn+1\n"
    + write(2)
    + "+1s silence",
}


@each_case("text", PASSING.values(), ids=PASSING)
def test_passes(text: str) -> None:
    verdict = drill(text)

    assert verdict.passed, report(verdict)


def test_what_comes_in_spite_of_a_rule_is_a_failure() -> None:
    failure = drill("impair > drop nth=2\n" + write(0)).failure

    assert failure is not None
    assert failure.got == "ACKNOWLEDGE psn (100) ACK credits=0 msn=1 at 1.000 us"


def test_packet_that_is_late_stays_late_when_the_rule_has_ended() -> None:
    text = "impair > delay=5us\n" + write(0) + "silence\nimpair > nothing\n+5us > ACK psn"

    assert drill(text).passed


def test_time_line_shows_what_was_lost_and_by_which_line() -> None:
    verdict = drill("impair < drop\nimpair > drop nth=1\n" + write(0))

    assert [(each.line, each.text.split(" va=")[0]) for each in verdict.entries] == [
        (1, "impair < drop"),
        (2, "impair > drop nth=1"),
        (3, "WRITE_ONLY psn (100)"),
        (1, "WRITE_ONLY psn (100)"),
    ]
    assert verdict.entries[-1].text.endswith("(drop)")


def test_time_line_is_in_the_order_of_time_also_for_what_is_lost_while_a_verb_waits() -> None:
    text = "qp timeout=10 retry_cnt=1\nimpair > drop\npost_send SEND len=8 wr_id=1\n"

    verdict = drill(text + "+1ms..40ms poll send wr_id=1 status=RETRY_EXC_ERR")

    times = [each.time for each in verdict.entries]
    assert verdict.passed
    assert [each.line for each in verdict.entries] == [2, 3, 2, 2, 4]
    assert times == sorted(times)


def test_capture_of_a_run_is_that_of_the_peer(tmp_path: Path) -> None:
    verdict = drill(
        "impair > drop nth=1\n" + write(0) + "+1us silence\n" + write(1) + "> ACK psn+1"
    )

    with open_capture(str(write_capture(verdict, tmp_path, set()))) as reader:
        packets = list(reader.records())

    assert len(packets) == 3  # two requests, one answer


def test_frames_under_way_are_bounded() -> None:
    rules = "impair < duplicate copies=1000\n" * 3

    failure = drill(rules + "+1us < WRITE_ONLY psn len=8\n").failure

    assert failure is not None
    assert failure.got == "more than 20000 packets under way"


ERRORS = {
    "impair": "1:7: expected '<' or '>', found the end of the line",
    "impair drop": "1:8: expected '<' or '>', found drop",
    "impair >": "1:9: expected an action such as drop or delay, found the end of the line",
    "impair > lose": "1:10: lose is not an impairment; did you mean loss?",
    "impair > dorp": "1:10: dorp is not an impairment; did you mean drop?",
    "impair > x": "1:10: x is not an impairment; expected corrupt, delay, drop, duplicate, loss, "
    "mark_ecn, nothing, reorder, rewrite",
    "impair > drop nht=1": "1:15: nht is not an option of drop; did you mean nth?",
    "impair > drop x=1": "1:15: x is not an option of drop; expected absolute_psn, after, before, "
    "burst.count, burst.first, burst.period, connection, ",
    "impair > drop burst.cuont=1": "1:15: cuont is not an option of burst; did you mean count?",
    "impair > drop burst.x=1": "1:15: x is not an option of burst; expected count, first, period",
    "impair > drop probability=0.5": "1:27: 0.5 is not a whole number: a time has a unit, a "
    'probability quotes, "0.5"',
    "impair > drop 3": "1:15: expected a condition such as nth, found 3",
    "impair > drop nth": "1:18: expected '=', found the end of the line",
    "impair > drop nth=1 nth=2": "1:21: nth is given twice",
    "impair > drop often=3": "1:15: often is not an option of drop; did you mean ",
    "impair > drop nth=0": "1:19: ",
    "impair > drop nth=1..3": "1:19: nth takes numbers, no range",
    "impair > drop nth=*": "1:19: expected a number for nth",
    "impair > drop opcode=SEND_LATE": "1:22: ",
    "impair > drop opcode={SEND_LAST": "1:32: expected '}', found the end of the line",
    "impair > drop probability=2": "1:27: ",
    'impair > drop probability="x"': "1:27: 'x' is not a probability",
    "impair > drop after=5": "1:21: after is less than a nanosecond: is its unit missing?",
    "impair > delay": "1:10: time or jitter is missing",
    "impair > delay={1us, 2us}": "1:16: delay is one time",
    "impair > delay=5": "1:16: delay is less than a nanosecond: is its unit missing?",
    "impair > corrupt where=head": "1:24: ",
    "impair > rewrite": "1:10: expected a table of fields",
    "impair > rewrite bth.pns=5": "1:26: ",
    "impair > drop burst.first=2": "1:10: count is missing",
    "impair > cnp": "1:10: only `ibwire tap` can reply to frames",
    "impair > nothing nth=1": "1:18: nothing has no conditions",
    "+1us..2us impair > drop": "1:11: this happens at one time: a range is for what is expected",
    "on rxe {\nimpair > lose\n}": "2:10: lose is not an impairment; ",
}


@each_case("text", ERRORS)
def test_an_error_has_its_position_and_the_expected_token(text: str) -> None:
    with pytest.raises(ScriptError) as caught:
        parse(text.encode(), "s.drill")

    assert str(caught.value).startswith(f"s.drill:{ERRORS[text]}")


def test_a_number_that_only_the_connection_tells_is_looked_at_then() -> None:
    with pytest.raises(ScriptError) as caught:
        drill("impair > drop dest_qp=qpn+0x1000000\n")

    assert str(caught.value).startswith("s.drill:1:23: ")


def test_rules_without_end_are_refused() -> None:
    with pytest.raises(ScriptError) as caught:
        drill("for i in 1..65 {\nimpair > drop\n}\n")

    assert str(caught.value) == "s.drill:2:10: more than 64 rules"
