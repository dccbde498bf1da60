"""Headroom of a lossless port against the table of the vendor: reference/fabric#headroom."""

import pytest

from ibwire.base.units import GBPS
from ibwire.fabric.switch.headroom import headroom

XOFF = {
    5: {10: 29_696, 25: 29_696, 40: 29_696, 50: 29_696, 100: 30_720},
    40: {10: 29_696, 25: 31_744, 40: 32_768, 50: 33_792, 100: 38_912},
    300: {10: 36_864, 25: 48_128, 40: 59_392, 50: 66_560, 100: 104_448},
}
"""Bytes by metres and Gb/s: sonic-net/sonic-buildimage,
device/mellanox/x86_64-mlnx_msn2700-r0/ACS-MSN2700/pg_profile_lookup.ini, which has xon = 19,456."""


@pytest.mark.parametrize("metres", XOFF)
def test_headroom_of_each_cable_is_that_of_the_vendor(metres: int) -> None:
    found = {rate: headroom(rate * GBPS, metres) for rate in XOFF[metres]}

    assert {rate: each.xoff for rate, each in found.items()} == XOFF[metres]
    assert {each.xon for each in found.values()} == {19_456}
