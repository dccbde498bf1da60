"""A pace is phases; few keys say most of them."""

from typing import Any

import pytest

from each_case import each_case
from ibwire.base.errors import EncodeError
from ibwire.base.units import MS, S
from ibwire.traffic.pace import Pace, Phase, Rate, Unit, make_pace, parse_rate

KPPS = Rate(1000.0, Unit.PACKETS)


@each_case(
    ("text", "rate"),
    [
        ("200kpps", Rate(200e3, Unit.PACKETS)),
        ("1.5 Mpps", Rate(1.5e6, Unit.PACKETS)),
        ("7pps", Rate(7, Unit.PACKETS)),
        ("5Gbps", Rate(5e9, Unit.BITS)),
        ("max", None),
    ],
)
def test_a_rate_counts_packets_or_bits(text: str, rate: Rate | None) -> None:
    assert parse_rate(text) == rate


@each_case("text", ["", "5", "5G", "0pps", "-1kpps", "2Tpps", 5, None, True])
def test_what_is_no_rate_is_refused(text: object) -> None:
    with pytest.raises(EncodeError, match="rate"):
        parse_rate(text)


def phases(**values: Any) -> tuple[tuple[Phase, ...], bool]:
    pace = make_pace({"rate": KPPS, **values})
    assert isinstance(pace, Pace)
    return pace.phases, pace.repeat


def test_a_steady_rate_is_one_phase_that_goes_on() -> None:
    assert phases() == ((Phase(S, 1000.0),), False)


def test_a_burst_comes_as_often_as_the_rate_has_it() -> None:
    assert phases(burst=32) == ((Phase(32 * MS, burst=32),), True)


def test_on_and_off_are_two_phases_that_repeat() -> None:
    assert phases(on=MS, off=9 * MS) == ((Phase(MS, 1000.0), Phase(9 * MS)), True)


def test_a_ramp_ends_at_its_rate() -> None:
    end = Rate(5000.0, Unit.PACKETS)

    assert phases(ramp_to=end, ramp_time=S) == ((Phase(S, 1000.0, 5000.0),), False)


def test_without_a_rate_there_is_no_pace() -> None:
    assert make_pace({}) is None
    assert make_pace({"rate": None}) is None


@each_case(
    ("values", "field"),
    [
        ({"rate": None, "burst": 5}, "burst"),
        ({"burst": 0}, "burst"),
        ({"burst": 5, "rate": Rate(1e9, Unit.BITS)}, "burst"),
        ({"on": MS}, "on"),
        ({"off": MS}, "off"),
        ({"on": MS, "off": 0}, "off"),
        ({"ramp_to": KPPS}, "ramp_time"),
        ({"ramp_to": None, "ramp_time": S}, "ramp_to"),
        ({"ramp_time": S}, "ramp_time"),
        ({"ramp_to": Rate(1e9, Unit.BITS), "ramp_time": S}, "ramp_to"),
        ({"burst": 5, "on": MS, "off": MS}, "on"),
    ],
    ids=str,
)
def test_a_pace_that_makes_no_sense_names_the_key(values: dict[str, Any], field: str) -> None:
    with pytest.raises(EncodeError) as caught:
        make_pace({"rate": KPPS, **values})

    assert caught.value.field == field
