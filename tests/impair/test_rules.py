"""Rules that are looked up: the same comes out as if each had been asked."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ibwire.base.node import Frame, Pipe
from ibwire.base.units import MS, Time
from ibwire.impair import Match, build_pipe
from ibwire.impair.columns import WINDOW
from ibwire.impair.match import Sightings
from ibwire.impair.rules import Rules
from ibwire.impair.stages import Loss
from ibwire_layers import OpCode, Packet
from ibwire_layers.headers import AETH, BTH, CNPReserved
from strategies import ROUTE4, ROUTE6, ethernet

ACK = OpCode.RC_ACKNOWLEDGE
EXTENSIONS: dict[int, Any] = {ACK: (AETH(syndrome=0x1F),), OpCode.CNP: (CNPReserved(),)}


def frame_of(
    opcode: int = OpCode.RC_SEND_ONLY,
    qp: int = 0x11,
    psn: int = 0,
    size: int = 8,
    route: Any = ROUTE4,
) -> Any:
    bth = BTH(opcode=opcode, dest_qp=qp, psn=psn & 0xFFFFFF)
    payload = b"" if opcode in EXTENSIONS else bytes(size)
    return Packet(route, bth, EXTENSIONS.get(opcode, ()), payload).repaired().build()


def asked_one_by_one(rules: Any) -> Pipe:
    """The plain pipe of the same stages, whose sightings see every frame first."""

    def note(frame: Frame, now: Time) -> Any:
        packet = Packet.parse(frame) if frame[12:14] != b"\x08\x06" else None
        if packet is not None:
            rules.sightings.note(packet.bth.dest_qp, packet.bth.opcode, packet.bth.psn)
        return ((0, frame),)

    return Pipe(note, *rules.stages)


frames = st.lists(
    st.builds(
        frame_of,
        opcode=st.sampled_from([OpCode.RC_SEND_ONLY, OpCode.UC_SEND_ONLY, ACK, OpCode.CNP]),
        qp=st.sampled_from([1, 0x11, 0x12, 0x13]),
        psn=st.integers(-3, 5),
        size=st.sampled_from([0, 4, 100]),
        route=st.sampled_from([ROUTE4, ROUTE6]),
    )
    | st.just(ethernet(bytes(46), 0x0806)),
    max_size=40,
)

numbers = st.lists(st.integers(0, 5), min_size=1, max_size=3)
conditions = st.fixed_dictionaries(
    {},
    optional={
        "opcode": st.sampled_from(["request", "response", "RC_SEND_ONLY", "CNP"]),
        "connection": st.integers(1, 3),
        "dest_qp": st.sampled_from([0x11, 0x12]),
        "psn": numbers,
        "absolute_psn": numbers,
        "syndrome": st.just("ACK"),
        "min_size": st.just(70),
        "after": st.just("3ps"),
        "nth": st.integers(1, 3),
        "every": st.integers(1, 3),
        "probability": st.just(0.5),
        "burst": st.just({"count": 1, "first": 2, "period": 2}),
    },
)
actions = st.sampled_from(
    [
        ("drop", {}),
        ("duplicate", {}),
        ("duplicate", {"copies": 2, "delay": "2ps"}),
        ("reorder", {"by": 2}),
        ("delay", {"time": "1ps"}),
        ("mark_ecn", {"force": True}),
        ("corrupt", {}),
        ("rewrite", {"set": {"bth.dest_qp": 0x13}}),
        ("rewrite", {"set": {"bth.psn": 3}}),
    ]
)
rules = st.lists(
    st.builds(lambda action, where: {action[0]: action[1] | where}, actions, conditions), max_size=5
)


@given(rules, frames)
def test_looking_rules_up_changes_nothing(written: Any, traffic: Any) -> None:
    looked_up = build_pipe(written, seed=5)
    asked = build_pipe(written, seed=5)
    one_by_one = asked_one_by_one(asked)

    for now, frame in enumerate(traffic):
        assert looked_up(frame, now) == one_by_one(frame, now)
    assert [each.hits for each in looked_up.stages] == [each.hits for each in asked.stages]  # type: ignore[attr-defined]


def test_a_queue_pair_that_a_rule_has_written_is_not_counted_as_a_connection() -> None:
    """Queue pair 1 is that of the connection manager; 0x11 is the first connection."""
    pipe = build_pipe(
        [{"drop": {"connection": 1}}, {"rewrite": {"set": {"bth.dest_qp": 0x13}}}], seed=1
    )

    passed = [pipe(frame_of(qp=qp), now) for now, qp in enumerate([1, 0x11])]

    assert [len(each) for each in passed] == [1, 0]


def concerned(pipe: Any, traffic: Any) -> Any:
    data = np.frombuffer(b"".join(traffic) + bytes(WINDOW), np.uint8)
    lengths = np.array([len(each) for each in traffic], np.int64)
    return pipe.concerned(data, np.cumsum(lengths) - lengths, lengths)


@given(rules, frames, frames)
def test_frames_that_concern_no_rule_pass_untouched(
    written: Any, before: Any, traffic: Any
) -> None:
    """But for while a rule holds a frame."""
    pipe = build_pipe(written, seed=5)
    sifted = build_pipe(written, seed=5)
    traffic = traffic * 3  # enough to be read at once

    for now, frame in enumerate(before):
        assert pipe(frame, now) == sifted(frame, now)
    rows = concerned(sifted, traffic) if traffic else ()
    for row, frame in enumerate(traffic):
        expected = pipe(frame, 100 + row)
        if row in rows or sifted.holding:
            assert sifted(frame, 100 + row) == expected
        else:
            assert expected == [(0, frame)]
            assert not pipe.met


def test_few_frames_concern_a_plan_of_a_hundred_rules() -> None:
    written = [{"drop": {"connection": 1 + n % 4, "psn": 1000 + n}} for n in range(100)]
    pipe = build_pipe(written)
    traffic = [frame_of(qp=0x20 + n % 4, psn=n // 4) for n in range(4096)]

    rows = concerned(pipe, traffic)

    # PSN 1000 + n to connection 1 + n % 4, one round of four packets a PSN.
    assert list(rows) == [(1000 + n) * 4 + n % 4 for n in range(24)]


def test_rules_count_from_the_same_first_packet() -> None:
    """Also when a rule before has taken the first packet away."""
    pipe = build_pipe([{"drop": {"psn": 0}}, {"drop": {"psn": 3}}])

    passed = [n for n in range(6) if pipe(frame_of(psn=70 + n), n)]

    assert passed == [1, 2, 4, 5]


def test_cnp_begins_no_sequence() -> None:
    """Its PSN is 0 whatever the connection's is."""
    pipe = build_pipe([{"drop": {"psn": 1}}])

    pipe(frame_of(OpCode.CNP), 0)
    passed = [n for n in range(3) if pipe(frame_of(psn=500 + n), n)]

    assert passed == [0, 2]


def test_what_rules_did_is_told_for_the_last_frame() -> None:
    pipe = build_pipe([{"mark_ecn": {"force": True, "psn": 1}}, {"drop": {"psn": [1, 2]}}])

    told = []
    for n in range(4):
        pipe(frame_of(psn=n), n)
        told.append(list(pipe.met))

    assert told == [[], [0, 1], [1], []]


def test_rule_that_holds_a_frame_sees_all_others() -> None:
    """Also those that concern no rule: a held frame waits for any two to pass."""
    pipe = build_pipe([{"reorder": {"dest_qp": 0x11, "psn": 0, "by": 2}}])
    traffic = [frame_of(), frame_of(qp=0x12), ethernet(bytes(46), 0x0806), frame_of(psn=1)]

    passed = [out for now, frame in enumerate(traffic) for _, out in pipe(frame, now)]

    assert passed == [traffic[n] for n in (1, 2, 0, 3)]


def test_held_frame_is_released_when_its_time_is_over() -> None:
    pipe = build_pipe([{"reorder": {"psn": 0, "by": 5, "max_delay": "1ms"}}, {"duplicate": {}}])
    held = frame_of()

    assert pipe(held, 0) == []
    assert pipe.holding
    assert pipe.poll_timeout() == MS
    assert pipe.release(MS) == []
    assert pipe.release(MS + 1) == [(0, held), (0, held)]
    assert not pipe.holding
    assert pipe.poll_timeout() is None


def test_held_frame_is_released_at_the_end_whatever_the_time_is() -> None:
    pipe = build_pipe([{"reorder": {"psn": 0, "by": 5}}])
    pipe(frame_of(), 0)

    assert pipe.release(1, all_of_them=True) == [(0, frame_of())]


def test_table_is_begun_anew_when_it_is_full(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Rules, "LIMIT", 8)
    pipe = build_pipe([{"drop": {"psn": 1}}])

    passed = [
        (qp, psn) for psn in range(3) for qp in range(2, 50) if pipe(frame_of(qp=qp, psn=psn), 0)
    ]

    assert passed == [(qp, psn) for psn in (0, 2) for qp in range(2, 50)]


@pytest.mark.parametrize("qp", [0, 1])
def test_management_queue_pairs_are_no_connections(qp: int) -> None:
    sightings = Sightings()
    rules = Rules(Loss(Match(connection=1, sightings=sightings)), sightings=sightings)

    assert rules(frame_of(qp=qp), 0)
    assert not rules(frame_of(qp=5), 0)
