"""What of a device and its reference is said to differ."""

from __future__ import annotations

import pytest

from ibwire.fuzz.judge.comparison import first_bytes


@pytest.mark.parametrize("places", [[0], [99], [7, 8, 60], [49, 50], [0, 99], range(100)])
def test_the_first_byte_that_differs_is_found(places: list[int]) -> None:
    expected, got = bytearray(range(100)), bytearray(range(100))
    for place in places:
        got[place] ^= 0x80

    first = places[0]
    assert first_bytes(expected, got) == (
        [first, bytes(expected[first : first + 8])],
        [first, bytes(got[first : first + 8])],
    )
