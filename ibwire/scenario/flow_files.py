"""Lists of flows and distributions of sizes as other simulators write them.

A flow is some bytes from one host to another at some time; hosts are numbers from 0. Whatever a
file has that is not of its format is a `ScriptError` with its line.
"""

from __future__ import annotations

import heapq
import random
import re
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from importlib.resources.abc import Traversable
from itertools import pairwise
from typing import NamedTuple

from ibwire.base.errors import ScriptError
from ibwire.base.units import US, S, Time

MAXIMUM_SIZE = 1 << 24
"""Bytes of a file."""

MOST_FLOWS = 1 << 16

LARGEST_FLOW = 1 << 40
"""Bytes of one flow."""

LATEST = 100_000 * S
"""Start of a flow."""


class FlowEntry(NamedTuple):
    """One flow of a list."""

    source: int
    target: int
    size: int
    """Bytes."""
    start: Time
    """After the first flow of the list."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """A distribution of sizes: points of the cumulative curve, with straight lines between them.

    points: bytes and share, from (x, 0) to (y, 1), both rising.
    """

    points: tuple[tuple[Fraction, Fraction], ...]

    @property
    def mean(self) -> Fraction:
        """Mean of the sizes before they are rounded down."""
        return sum(
            ((x0 + x1) / 2 * (y1 - y0) for (x0, y0), (x1, y1) in pairwise(self.points)),
            start=Fraction(0),
        )

    def at(self, share: float) -> int:
        """The size below which this share of all sizes is; at least one byte."""
        shares = [y for _, y in self.points]
        upper = min(max(bisect_left(shares, share), 1), len(shares) - 1)
        (x0, y0), (x1, y1) = self.points[upper - 1 : upper + 1]
        return max(1, int(x0 + (x1 - x0) * (Fraction(share) - y0) / (y1 - y0)))


def poisson_flows(
    sizes: Sizes,
    ways: Mapping[int, Sequence[int]],
    *,
    mean_interval: Fraction,
    duration: Time | None,
    most: int,
    draw: random.Random,
) -> list[FlowEntry]:
    """Flows that begin at random, independent of each other, at each source.

    ways: to which targets a source may send, each as likely as another. mean_interval:
    picoseconds between two flows of one source. duration: when the last may begin. most: number of
    flows.
    """
    active = [source for source, targets in ways.items() if targets]
    rate = 1 / float(mean_interval)
    due = [(draw.expovariate(rate), source) for source in active]
    heapq.heapify(due)
    flows: list[FlowEntry] = []
    while due and len(flows) < most:
        start, source = due[0]
        if duration is not None and start > duration:
            break
        heapq.heapreplace(due, (start + draw.expovariate(rate), source))
        size = sizes.at(draw.random())
        flows.append(FlowEntry(source, draw.choice(ways[source]), size, int(start)))
    return flows


def read_sizes(file: Traversable) -> Sizes:
    """A file of lines `bytes percent`, as HPCC's traffic generator has them."""
    points: list[tuple[Fraction, Fraction]] = []
    for number, words in _lines(file):
        if len(words) != 2:
            raise _error(file, number, f"{len(words)} words, expected bytes and a percentage")
        size, percent = (_decimal(file, number, word) for word in words)
        if size > LARGEST_FLOW:
            raise _error(file, number, f"a flow of more than {LARGEST_FLOW:,} bytes")
        if not points and percent:
            raise _error(file, number, f"the first percentage is {words[1]}, expected 0")
        if points and (size < points[-1][0] or percent * Fraction(1, 100) <= points[-1][1]):
            raise _error(file, number, "bytes and percentages must rise from line to line")
        points.append((size, percent * Fraction(1, 100)))
    return _sizes(file, points)


def _sizes(file: Traversable, points: list[tuple[Fraction, Fraction]]) -> Sizes:
    if len(points) < 2 or points[-1][1] != 1:
        last = f"{float(100 * points[-1][1]):g}" if points else "nothing"
        raise _error(file, None, f"ends with {last}, expected a last percentage of 100")
    return Sizes(tuple(points))


def read_flows(file: Traversable, *, unit: Time = US) -> list[FlowEntry]:
    """The flows of a file: htsim's connection matrix (`.cm`), otherwise a flow file of HPCC.

    unit: of start times in a connection matrix.
    """
    is_matrix = file.name.endswith(".cm")
    flows = list(_connection_matrix(file, unit) if is_matrix else _hpcc_flows(file))
    first = min((each.start for each in flows), default=0)
    return [each._replace(start=each.start - first) for each in flows]


def _hpcc_flows(file: Traversable) -> Iterator[FlowEntry]:
    """A line with the number of flows, then `source target priority port bytes seconds`.

    What follows after so many flows is not read: the files of HPCC have remarks there.
    """
    lines = _lines(file)
    number, words = next(lines, (1, [""]))
    if len(words) != 1:
        raise _error(file, number, "the first line of a flow file is the number of flows")
    count = _whole(file, number, words[0], MOST_FLOWS, "flows")
    for found in range(count):
        number, words = next(lines, (0, []))
        if not number:
            raise _error(file, None, f"ends after {found:,} of {count:,} flows")
        if len(words) != 6:
            what = "source target priority port bytes seconds"
            raise _error(file, number, f"{len(words)} words, expected {what}")
        source, target = (_whole(file, number, word, MOST_FLOWS, "host") for word in words[:2])
        size = _whole(file, number, words[4], LARGEST_FLOW, "bytes")
        start = _decimal(file, number, words[5]) * S
        yield _entry(file, number, source, target, size, start)


def _connection_matrix(file: Traversable, unit: Time) -> Iterator[FlowEntry]:
    """Lines `Nodes n` and `Connections n`, then `a->b [id n] start time size bytes`."""
    header: dict[str, int] = {}
    count = 0
    for number, words in _lines(file):
        found = _ARROW.fullmatch(words[0])
        if words[0] in _HEADER and not count:
            if len(words) != 2:
                raise _error(file, number, f"{words[0]} must be followed by one number")
            header[words[0]] = _whole(file, number, words[1], MOST_FLOWS, words[0].lower())
            if words[0] in ("Triggers", "Failures") and header[words[0]]:
                raise _error(file, number, f"{words[0].lower()} are not supported")
        elif found is not None:
            count += 1
            yield _matrix_entry(file, number, found, words[1:], unit, header)
        else:
            raise _error(file, number, f"{words[0]!r} is neither a flow such as 1->0 nor a header")
    expected = header.get("Connections", count)
    if expected != count:
        raise _error(file, None, f"has {count:,} flows, its header says {expected:,}")


def _matrix_entry(
    file: Traversable,
    number: int,
    ends: re.Match[str],
    words: list[str],
    unit: Time,
    header: dict[str, int],
) -> FlowEntry:
    source, target = (_whole(file, number, end, MOST_FLOWS, "host") for end in ends.groups())
    nodes = header.get("Nodes", MOST_FLOWS)
    if max(source, target) >= nodes:
        raise _error(file, number, f"host {max(source, target)} of {nodes} nodes: 0 is the first")
    given: dict[str, str] = {}
    rest = iter(words)
    for word in rest:
        if word not in _MATRIX_WORDS:
            reason = "is not supported" if "trigger" in word or word == "addon" else "is unknown"
            raise _error(file, number, f"{word!r} {reason}")
        value = next(rest, None)
        if value is None:
            raise _error(file, number, f"nothing follows {word!r}")
        given[word] = value
    for word in ("start", "size"):
        if word not in given:
            raise _error(file, number, f"a flow without {word!r}")
    size = _whole(file, number, given["size"], LARGEST_FLOW, "bytes")
    return _entry(file, number, source, target, size, _decimal(file, number, given["start"]) * unit)


def _entry(
    file: Traversable, number: int, source: int, target: int, size: int, start: Fraction
) -> FlowEntry:
    if source == target:
        raise _error(file, number, f"a flow from host {source} to itself")
    if not size:
        raise _error(file, number, "a flow of no bytes")
    if start > LATEST:
        raise _error(file, number, f"a flow that begins after more than {LATEST // S:,} seconds")
    return FlowEntry(source, target, size, int(start))


def _lines(file: Traversable) -> Iterator[tuple[int, list[str]]]:
    """The words of each line that is not empty, with its number."""
    try:
        with file.open("rb") as opened:
            content = opened.read(MAXIMUM_SIZE + 1)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise _error(file, None, reason.lower()) from None
    if len(content) > MAXIMUM_SIZE:
        raise _error(file, None, f"is too long: more than {MAXIMUM_SIZE >> 20} MiB")
    for number, line in enumerate(content.decode("utf-8", "replace").split("\n"), 1):
        words = line[:_LONGEST_LINE].split()
        if words:
            yield number, words


def _whole(file: Traversable, number: int, word: str, most: int, what: str) -> int:
    if not _WHOLE.fullmatch(word) or int(word) > most:
        raise _error(file, number, f"{word[:40]!r} is not a number of {what} up to {most:,}")
    return int(word)


def _decimal(file: Traversable, number: int, word: str) -> Fraction:
    if not _DECIMAL.fullmatch(word):
        raise _error(file, number, f"{word[:40]!r} is not a number such as 2.000015")
    return Fraction(word)


def _error(file: Traversable, line: int | None, reason: str) -> ScriptError:
    return ScriptError(str(file), line, None, reason)


def _table(*points: tuple[int, str]) -> Sizes:
    return Sizes(tuple((Fraction(x), Fraction(y) / 100) for x, y in points))


_HEADER = ("Nodes", "Connections", "Triggers", "Failures")
_MATRIX_WORDS = ("id", "start", "size", "prio")
_LONGEST_LINE = 1000
_ARROW = re.compile(r"([0-9]{1,9})->([0-9]{1,9})")
_WHOLE = re.compile(r"[0-9]{1,15}")
_DECIMAL = re.compile(r"[0-9]{1,15}(?:\.[0-9]{0,15})?(?:[eE][+-]?[0-9]{1,2})?")

PUBLISHED: dict[str, Sizes] = {
    "hadoop": _table(
        *((0, "0"), (100, "1"), (200, "2"), (300, "5"), (350, "15"), (400, "20"), (500, "30")),
        *((600, "40"), (700, "50"), (1000, "60"), (2000, "67"), (7000, "70"), (30_000, "72")),
        *((50_000, "82"), (80_000, "87"), (120_000, "90"), (300_000, "95")),
        *((1_000_000, "97.5"), (2_000_000, "99"), (10_000_000, "100")),
    ),
    "web-search": _table(
        *((0, "0"), (10_000, "15"), (20_000, "20"), (30_000, "30"), (50_000, "40")),
        *((80_000, "53"), (200_000, "60"), (1_000_000, "70"), (2_000_000, "80")),
        *((5_000_000, "90"), (10_000_000, "97"), (30_000_000, "100")),
    ),
    "storage": _table(
        *((0, "0"), (4000, "22.93"), (8000, "69.21"), (16_000, "80.61"), (32_000, "90.47")),
        *((64_000, "93.53"), (128_000, "96.77"), (256_000, "97.53"), (2_000_000, "100")),
    ),
}
"""Distributions of sizes that were published (docs/reference/fabric.md#flow-sizes)."""
