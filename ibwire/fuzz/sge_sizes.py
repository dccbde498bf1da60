"""How the bytes of a work request are divided among its SGEs, and how that is written."""

from __future__ import annotations

from collections.abc import Sequence

SHOWN = 4
"""SGEs of which the sizes are written out."""


def sizes_of_sges(length: int, count: int) -> list[int]:
    """The bytes of each SGE: they differ, and of four or more the second is empty."""
    ends = [max(length * i // count - i * 3 % 7, 0) for i in range(1, count)] + [length]
    if count > 3:
        ends[1] = ends[0]
    sizes, begin = [], 0
    for end in ends:
        sizes.append(max(end - begin, 0))
        begin += sizes[-1]
    return sizes


def sges_text(length: int, count: int) -> str:
    """The SGEs of a work request in a line: `0+0+8`; of many their number."""
    if count > SHOWN:
        return str(count)
    return "+".join(map(str, sizes_of_sges(length, count)))


def sges_in_words(sizes: Sequence[int]) -> str:
    """The SGEs of a work request in a name: `3 SGEs`, or `SGEs of 0, 0 and 8 bytes`."""
    if all(sizes):
        return f"{len(sizes)} SGEs"
    if len(sizes) > SHOWN:
        return f"{len(sizes)} SGEs{one_empty(sizes)}"
    *others, last = map(str, sizes)
    return f"SGEs of {', '.join(others)} and {last} bytes"


def one_empty(sizes: Sequence[int]) -> str:
    """What stands behind several SGEs where some of them have no bytes."""
    count = sizes.count(0)
    return f", {'one' if count == 1 else 'some'} of 0 bytes" if count else ""
