"""Rules from TOML: what they make, and where the errors point."""

import tomllib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from each_case import each_case
from ibwire.base.errors import EncodeError
from ibwire.base.quantities import parse_duration, parse_rate
from ibwire.base.units import GBPS, MS, NS, US, S
from ibwire.impair import PlanError, build_pipe
from ibwire.impair.plan import _ACTIONS
from ibwire_layers import OpCode, Packet
from ibwire_layers.headers import BTH
from ibwire_layers.packet import CrcStatus
from strategies import ROUTE4

FRAMES = [
    Packet(ROUTE4, BTH(opcode=OpCode.RC_SEND_ONLY, dest_qp=9, psn=100 + n), (), bytes([n] * 64))
    .repaired()
    .build()
    for n in range(8)
]


def pipe_of(text: str, **options: Any) -> Any:
    return build_pipe(tomllib.loads(text)["faults"], **options)


def psns(pipe: Any, frames: Any = FRAMES) -> Any:
    """Relative PSNs of what comes out, in the order in which it leaves the pipe."""
    out = [entry for now, frame in enumerate(frames) for entry in pipe(frame, now)]
    return [Packet.parse(frame).bth.psn - 100 for _, frame in out]


# What rules do.


def test_no_rules_are_the_identity() -> None:
    assert psns(build_pipe([])) == list(range(8))


@each_case(
    ("rule", "expected"),
    [
        ("{ drop = { psn = 2, nth = 1 } }", [0, 1, 3, 4, 5, 6, 7]),
        ("{ drop = { psn = [2, 5] } }", [0, 1, 3, 4, 6, 7]),
        ("{ drop = { connection = 1, absolute_psn = 103 } }", [0, 1, 2, 4, 5, 6, 7]),
        ("{ drop = { connection = 2 } }", [0, 1, 2, 3, 4, 5, 6, 7]),
        ("{ drop = {} }", []),
        ("{ drop = 1 }", []),
        ("{ loss = 0.0 }", [0, 1, 2, 3, 4, 5, 6, 7]),
        ("{ loss = { probability = 1, every = 4 } }", [0, 1, 2, 4, 5, 6]),
        ("{ drop = { burst = { count = 2, first = 2, period = 4 } } }", [0, 3, 4, 7]),
        ("{ drop = { every = 2, burst = { count = 1, first = 3 } } }", [0, 1, 2, 3, 4, 6, 7]),
        ("{ drop = { after = '2 ps', before = '5ps' } }", [0, 1, 5, 6, 7]),
        ("{ duplicate = { psn = 1 } }", [0, 1, 1, 2, 3, 4, 5, 6, 7]),
        ("{ duplicate = { psn = 1, copies = 3 } }", [0, 1, 1, 1, 1, 2, 3, 4, 5, 6, 7]),
        ("{ reorder = { psn = 1, by = 3 } }", [0, 2, 3, 4, 1, 5, 6, 7]),
        ("{ drop = { opcode = 'RC_SEND_ONLY', min_size = 500 } }", [0, 1, 2, 3, 4, 5, 6, 7]),
        ("{ drop = { opcode = 'request', max_size = 500 } }", []),
    ],
)
def test_rule_does_what_it_says(rule: str, expected: Any) -> None:
    assert psns(pipe_of(f"faults = [{rule}]")) == expected


def test_delay_may_be_a_time_or_a_table() -> None:
    assert pipe_of("faults = [{ delay = '5us' }]")(FRAMES[0], 0) == [(5 * US, FRAMES[0])]
    slow = pipe_of("faults = [{ delay = { time = '1.5 ms', nth = 2 } }]")
    assert [slow(frame, 0)[0][0] for frame in FRAMES[:3]] == [0, 1_500 * US, 0]


def test_jitter_may_stand_alone() -> None:
    pipe = pipe_of("faults = [{ delay = { jitter = '1us' } }]")

    delays = [pipe(FRAMES[0], 0)[0][0] for _ in range(100)]

    assert 0 <= min(delays) < max(delays) <= 1 * US


def test_duplicate_may_be_late() -> None:
    pipe = pipe_of("faults = [{ duplicate = { delay = '3us' } }]")

    assert pipe(FRAMES[0], 0) == [(0, FRAMES[0]), (3 * US, FRAMES[0])]


def test_corrupt_packets_have_a_bad_icrc() -> None:
    pipe = pipe_of("faults = [{ corrupt = { nth = 2, bits = 3, where = 'payload' } }]")

    out = [Packet.parse(pipe(frame, 0)[0][1]).icrc_status() for frame in FRAMES[:3]]

    assert out == [CrcStatus.GOOD, CrcStatus.BAD, CrcStatus.GOOD]


def test_mark_ecn_takes_a_probability_or_a_table() -> None:
    for rule in ("{ mark_ecn = { force = true } }", "{ mark_ecn = { force = true, every = 1 } }"):
        ((_, frame),) = pipe_of(f"faults = [{rule}]")(FRAMES[0], 0)
        assert Packet.parse(frame).route.ip.ecn == 3
    ((_, frame),) = pipe_of("faults = [{ mark_ecn = 1.0 }]")(FRAMES[0], 0)
    assert Packet.parse(frame).route.ip.ecn == 0


@pytest.mark.parametrize("key", ["bth.dest_qp", "'bth.dest_qp'"])
def test_rewrite_takes_dotted_keys_with_and_without_quotes(key: str) -> None:
    pipe = pipe_of(f"faults = [{{ rewrite = {{ set = {{ {key} = 7 }}, repair = 'icrc' }} }}]")

    parsed = Packet.parse(pipe(FRAMES[0], 0)[0][1])

    assert parsed.bth.dest_qp == 7
    assert parsed.icrc_status() is CrcStatus.GOOD


def test_rules_apply_in_their_order() -> None:
    text = "faults = [{ drop = { nth = 1 } }, { drop = { nth = 1 } }, { duplicate = { nth = 1 } }]"

    assert psns(pipe_of(text)) == [2, 2, 3, 4, 5, 6, 7]


def test_loss_comes_as_often_as_it_says() -> None:
    """5 standard deviations of 10,000 draws at 0.01 are 50."""
    pipe = pipe_of("faults = [{ loss = 0.01 }]", seed=1)

    assert abs(sum(not pipe(b"", 0) for _ in range(10_000)) - 100) < 50


def test_randomness_depends_on_seed_and_name_and_place_only() -> None:
    def run(rules: Any, seed: int = 1, name: str = "a") -> list[int]:
        pipe = build_pipe(rules, seed=seed, name=name)
        return [len(pipe(b"", 0)) for _ in range(64)]

    half = {"loss": 0.5}
    assert run([half]) == run([half])
    assert run([half]) == run([half, {"delay": "1us"}])
    assert run([half]) != run([half], seed=2)
    assert run([half]) != run([half], name="b")
    assert run([half]) != run([{"delay": "1us"}, half])


# Errors.


@each_case(
    ("rules", "path"),
    [
        (5, "faults"),
        ("drop", "faults"),
        ({"drop": 0.1}, "faults"),
        ([5], "faults[0]"),
        ([{}], "faults[0]"),
        ([{"loss": 0.1, "delay": "1us"}], "faults[0].delay"),
        ([{"loss": 0.1}, {"lose": 0.1}], "faults[1].lose"),
        ([{"loss": 1.5}], "faults[0].loss"),
        ([{"loss": True}], "faults[0].loss"),
        ([{"loss": "1%"}], "faults[0].loss"),
        ([{"loss": None}], "faults[0].loss"),
        ([{"loss": [0.1]}], "faults[0].loss"),
        ([{"loss": {"probability": -1}}], "faults[0].loss.probability"),
        ([{"drop": {"psnn": 2}}], "faults[0].drop.psnn"),
        ([{"drop": {"psn": 1 << 24}}], "faults[0].drop.psn"),
        ([{"drop": {"psn": "2"}}], "faults[0].drop.psn"),
        ([{"drop": {"opcode": "SEND_ONLY"}}], "faults[0].drop.opcode"),
        ([{"drop": {"syndrome": "nak"}}], "faults[0].drop.syndrome"),
        ([{"drop": {"nth": 0}}], "faults[0].drop.nth"),
        ([{"drop": {"after": 5}}], "faults[0].drop.after"),
        ([{"drop": {"after": "2us", "before": "1us"}}], "faults[0].drop.before"),
        ([{"drop": {"burst": 3}}], "faults[0].drop.burst"),
        ([{"drop": {"burst": {"first": 3}}}], "faults[0].drop.burst"),
        ([{"drop": {"burst": {"count": 0}}}], "faults[0].drop.burst.count"),
        ([{"drop": {"burst": {"count": 1, "every": 2}}}], "faults[0].drop.burst.every"),
        ([{"drop": {"by": 3}}], "faults[0].drop.by"),
        ([{"corrupt": {"bits": 0}}], "faults[0].corrupt.bits"),
        ([{"corrupt": {"bits": 1.0}}], "faults[0].corrupt.bits"),
        ([{"corrupt": {"where": "ethernet"}}], "faults[0].corrupt.where"),
        ([{"corrupt": {"where": ["icrc"]}}], "faults[0].corrupt.where"),
        ([{"duplicate": {"copies": 0}}], "faults[0].duplicate.copies"),
        ([{"duplicate": {"delay": "soon"}}], "faults[0].duplicate.delay"),
        ([{"reorder": {"by": 0}}], "faults[0].reorder.by"),
        ([{"reorder": {"max_delay": 7}}], "faults[0].reorder.max_delay"),
        ([{"delay": 5}], "faults[0].delay"),
        ([{"delay": "5"}], "faults[0].delay"),
        ([{"delay": {"nth": 5}}], "faults[0].delay"),
        ([{"delay": {"time": "1us", "jitter": "-1us"}}], "faults[0].delay.jitter"),
        ([{"mark_ecn": {"force": 1}}], "faults[0].mark_ecn.force"),
        ([{"rewrite": 5}], "faults[0].rewrite"),
        ([{"rewrite": {}}], "faults[0].rewrite.set"),
        ([{"rewrite": {"set": {}}}], "faults[0].rewrite.set"),
        ([{"rewrite": {"set": {"bth": {}}}}], "faults[0].rewrite.set"),
        ([{"rewrite": {"set": {"bth": {"psn": 1 << 24}}}}], "faults[0].rewrite.set.bth.psn"),
        ([{"rewrite": {"set": {"bth": 5}}}], "faults[0].rewrite.set.bth"),
        ([{"rewrite": {"set": {"bth": {"psn": 1}}, "repair": 1}}], "faults[0].rewrite.repair"),
    ],
)
def test_error_names_the_path_of_the_key(rules: Any, path: str) -> None:
    with pytest.raises(PlanError) as caught:
        build_pipe(rules)

    assert str(caught.value).startswith(f"{path}: ")
    assert str(caught.value) == f"{path}: {caught.value.reason}"


def test_path_of_an_error_can_be_walked_in_the_document() -> None:
    document: Any = {
        "wire": [{"faults": [{"drop": {"nth": 1}}, {"drop": {"burst": {"count": "x"}}}]}]
    }

    with pytest.raises(PlanError) as caught:
        build_pipe(document["wire"][0]["faults"], path=("wire", 0, "faults"))

    found: Any = document
    for key in caught.value.key_path:
        found = found[key]
    assert found == "x"
    assert str(caught.value).startswith("wire[0].faults[1].drop.burst.count: 'x' is not")


@each_case(
    ("rule", "at_key"),
    [
        ({"lose": 1}, True),
        ({"loss": 0.1, "drop": 1}, True),
        ({"drop": {"nht": 1}}, True),
        ({"drop": {"burst": {"count": 1, "last": 2}}}, True),
        ({}, False),
        ({"loss": 1.5}, False),
        ({"drop": {"nth": 0}}, False),
    ],
)
def test_error_says_whether_key_or_value_is_wrong(rule: Any, at_key: bool) -> None:
    with pytest.raises(PlanError) as caught:
        build_pipe([rule])

    assert caught.value.at_key is at_key


def test_unknown_key_is_answered_with_the_known_ones() -> None:
    with pytest.raises(PlanError, match=r"expected by, max_delay, opcode, .*probability"):
        build_pipe([{"reorder": {"buy": 3}}])
    with pytest.raises(PlanError, match="drop, loss, corrupt"):
        build_pipe([{"drip": 1}])


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                [
                    "psn",
                    "nth",
                    "burst",
                    "count",
                    "set",
                    "bth",
                    "time",
                    "by",
                    "bits",
                    "probability",
                    "x",
                ]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=8,
)


@given(st.lists(st.dictionaries(st.sampled_from([*_ACTIONS, "x"]), values, max_size=2), max_size=3))
def test_any_rules_make_a_pipe_or_a_plan_error(rules: Any) -> None:
    try:
        pipe = build_pipe(rules)
    except PlanError:
        return
    assert len(pipe.stages) == len(rules)


# Quantities.


@each_case(
    ("text", "expected"),
    [
        ("0s", 0),
        ("7ps", 7),
        ("4.096us", 4_096 * NS),
        ("1.5 ms", 1_500 * US),
        (" 20 ns ", 20 * NS),
        ("0.001ns", 1),
        ("3 µs", 3 * US),
        ("10ms", 10 * MS),
        ("2 s", 2 * S),
    ],
)
def test_durations(text: str, expected: Any) -> None:
    assert parse_duration(text) == expected


@each_case(
    ("text", "expected"),
    [
        ("100G", 100 * GBPS),
        ("25Gbps", 25 * GBPS),
        ("2.5 Gb/s", 2_500_000_000),
        ("10 Mbit/s", 10_000_000),
        ("1.6Tbps", 1_600 * GBPS),
        ("56k", 56_000),
    ],
)
def test_rates(text: str, expected: Any) -> None:
    assert parse_rate(text) == expected


@each_case(
    "wrong",
    [
        "",
        "5",
        "us",
        "-1us",
        "1e3us",
        "5 US",
        "0.1ps",
        "1..5us",
        "5us5us",
        "٣us",
        5,
        5.0,
        None,
        True,
    ],
)
def test_what_is_no_duration_is_refused(wrong: Any) -> None:
    with pytest.raises(EncodeError, match="duration"):
        parse_duration(wrong)


@each_case("wrong", ["", "100", "100GB/s", "0G", "-1G", "100 GHz", "9" * 99 + "G", 1])
def test_what_is_no_rate_is_refused(wrong: int | str) -> None:
    with pytest.raises(EncodeError, match="rate"):
        parse_rate(wrong)


@given(st.integers(0, 10**12))
def test_whole_picoseconds_are_read_back(time: int) -> None:
    assert parse_duration(f"{time}ps") == time
    assert parse_duration(f"{time // 1000}.{time % 1000:03} ns") == time
