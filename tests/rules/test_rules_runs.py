"""Regular packets are checked, recorded and plotted as arrays: the results are the same."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from connections.talk import Talk
from emulated_traffic import Acts, Stamped, Work, feed, pcap, run
from examples import scaled
from ibwire.capture import open_capture
from ibwire.connections import analysis, steady, untracked
from ibwire.connections.analysis import Analysis
from ibwire.diagnosis.record import Record, Recorder
from ibwire.dissect import Columns
from ibwire.rc.profile import PROFILES
from ibwire.rc.work import WROpcode
from ibwire.report.html import Closer
from ibwire.report.page_survey import Survey
from ibwire.rules.conformance import Conformance
from ibwire.rules.findings import SPEC
from ibwire_layers.opcodes import OpCode

OPCODES = (
    WROpcode.SEND,
    WROpcode.RDMA_WRITE,
    WROpcode.RDMA_READ,
    WROpcode.ATOMIC_FETCH_AND_ADD,
    WROpcode.ATOMIC_CMP_AND_SWP,
    WROpcode.RDMA_WRITE_WITH_IMM,
)
WORK = st.lists(
    st.builds(Work, st.sampled_from(OPCODES), st.sampled_from((0, 10, 256, 1000, 3000))),
    min_size=40,
    max_size=150,
)
ACTS = st.dictionaries(
    st.tuples(st.sampled_from("ab"), st.integers(1, 400)),
    st.tuples(st.sampled_from(("loss", "dup", "late")), st.sampled_from((1000, 5000, 20000))),
    max_size=6,
)


def checked(frames: list[Stamped]) -> list[dict[str, object]]:
    """What is found in a capture; habits are errors."""
    return [finding.to_json() for finding in read_into(Conformance(SPEC), frames)]


def recorded(frames: list[Stamped]) -> list[Record]:
    """What is recorded of the only connection of a capture."""
    recorder = Recorder({1})
    return recorder.records(feed(Analysis(recorder), frames).finish().connections)


def read_into(taker: Any, frames: list[Stamped]) -> Any:
    """Give a capture to what takes its columns, and let that finish."""
    with open_capture(pcap(frames)) as capture:
        for batch in capture.batches():
            taker.take(Columns(batch))
    return taker.finish()


def page(frames: list[Stamped]) -> dict[str, Any]:
    """The data of the page of a capture."""
    content: dict[str, Any] = read_into(
        Closer(read_into(Survey("capture"), frames), most=3), frames
    )
    return content


def told(record: Record) -> list[Any]:
    """The parts of a record, without the order in which its counts were begun."""
    latencies = [getattr(part, "latency", None) for part in record.line]
    return [
        record.events,
        [
            (part.first, part.last, part.packets, part.messages, part.bytes, part.events)
            for part in record.line
        ],
        [getattr(part, "requests", None) for part in record.line],
        [each and (each.count, each.percentile(50), each.high) for each in latencies],
        [(each.clues, each.recovered, each.until) for each in record.incidents()],
    ]


def counting(took: list[int]) -> Callable[..., int]:
    """The array path, which notes how many packets it takes each time."""
    advance = steady.advance

    def count(*given: Any) -> int:
        took.append(advance(*given))
        return took[-1]

    return count


def one_by_one(*_: object) -> int:
    """An array path that takes nothing."""
    return 0


def assert_the_same_as_one_by_one(frames: list[Stamped]) -> int:
    """Check, record and plot a capture both ways; returns how many packets arrays took."""
    took: list[int] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(steady, "advance", counting(took))
        findings, records, content = checked(frames), recorded(frames), page(frames)
        patch.setattr(steady, "advance", one_by_one)
        patch.setattr(untracked, "MOST", 0)
        assert findings == checked(frames)
        assert list(map(told, records)) == list(map(told, recorded(frames)))
        assert content == page(frames)
    return sum(took)


@pytest.mark.slow
@settings(max_examples=scaled(50))
@given(
    work=WORK,
    acts=ACTS,
    profile=st.sampled_from(sorted(PROFILES)),
    depth=st.sampled_from((1, 16, 60)),
    least=st.sampled_from((1, 7, 48)),
    window=st.sampled_from((8, 30, 1024)),
)
def test_arrays_and_single_packets_break_the_same_rules(
    work: list[Work], acts: Acts, profile: str, depth: int, least: int, window: int
) -> None:
    traffic = run(work, acts, profile=PROFILES[profile], depth=depth)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(steady, "LEAST", least)
        patch.setattr(analysis, "WINDOW", window)
        for side in "ab":
            assert_the_same_as_one_by_one(traffic.frames(side))


@pytest.mark.parametrize("profile", ["rxe", "spec"])
def test_steady_traffic_is_checked_as_arrays(profile: str) -> None:
    work = [Work(opcode, size) for size in (10, 300) for opcode in OPCODES] * 15
    frames = run(work, {("a", 30): ("loss", 0)}, profile=PROFILES[profile]).frames("b")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(steady, "LEAST", 8)
        took = assert_the_same_as_one_by_one(frames)

    assert took > 2 * len(frames)  # four times, and more than half of them each time


def messages_counted(talk: Talk) -> None:
    """An MSN that counts one message less than the 251 that were sent."""
    talk.ask(OpCode.RC_SEND_ONLY, 250, 64, ack_req=1)
    talk.answer(250, 250)


def psn_behind(talk: Talk) -> None:
    """An ACK of an older PSN, sent later, as its IP identification shows."""
    talk.answer(240, 250)


def atomic_answered_by_ack(talk: Talk) -> None:
    """An ACK is the first response to an atomic."""
    talk.ask(OpCode.RC_FETCH_ADD, 250)
    talk.answer(250, 251)


def changed_when_retransmitted(talk: Talk) -> None:
    """A SEND comes again with another length."""
    talk.ask(OpCode.RC_SEND_ONLY, 250, 64)
    talk.ask(OpCode.RC_SEND_ONLY, 251, 64)
    talk.answer(250, 250, 0x60)
    talk.ask(OpCode.RC_SEND_ONLY, 250, 60)
    talk.ask(OpCode.RC_SEND_ONLY, 251, 64, ack_req=1)
    talk.answer(251, 252)


@pytest.mark.parametrize(
    ("breaks", "rule"),
    [
        (messages_counted, "psn_acks.msn"),
        (psn_behind, "psn_acks.stale"),
        (atomic_answered_by_ack, "psn_acks.kind"),
        (changed_when_retransmitted, "repeat.same"),
    ],
)
def test_a_rule_broken_after_a_run_is_found(breaks: Callable[[Talk], None], rule: str) -> None:
    talk = Talk()
    for psn in range(250):
        talk.ask(OpCode.RC_SEND_ONLY, psn, 64, ack_req=1)
        talk.answer(psn, psn + 1)
    breaks(talk)

    assert [each["rule"] for each in checked(talk.frames)] == [rule]
    assert assert_the_same_as_one_by_one(talk.frames) > 0
