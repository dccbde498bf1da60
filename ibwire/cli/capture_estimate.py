"""How large a capture of many made packets will be, and how long writing it takes.

Found out by writing the first packets to a temporary file.
"""

from __future__ import annotations

import os
import shutil
import stat
import time as clock
from collections.abc import Callable, Iterator
from itertools import islice

import click

from ibwire.base.errors import OutputError
from ibwire.base.output import STANDARD_OUTPUT, temporary_directory
from ibwire.base.units import NS, Time
from ibwire.capture.index import Record
from ibwire.capture.writer import write_capture

SAMPLE = 4096
"""Packets that are written to find out; so many are written at once."""

FEW = 100_000
"""Packets up to which nothing is estimated."""

ANNOUNCED_SECONDS, ANNOUNCED_BYTES = 10, 1 << 30
"""From either on an estimate is printed before the command starts."""


def announce(
    path: str,
    records: Callable[[], Iterator[Record]],
    *,
    count: int | None,
    time: Time | None,
) -> None:
    """Print how large and how long it will be, if that is much.

    records: makes the packets, from the first one, at each call. count, time: their limits.
    Raises `OutputError` for a capture that does not fit on the disk.
    """
    if count is not None and count <= FEW:
        return
    ending = "".join(_suffixes(path))
    with temporary_directory() as place:
        file = os.path.join(place, f"sample{ending}")
        begun = clock.monotonic()
        sample = list(islice(records(), SAMPLE))
        if len(sample) < SAMPLE:
            return
        write_capture(file, sample)
        seconds = clock.monotonic() - begun
        size = os.stat(file).st_size
    total = _total(sample, count, time)
    factor = total / len(sample)
    seconds, size = seconds * factor, int(size * factor)
    text = f"some {total:,} packets, {_amount(size)}, {_span(seconds)}"
    free = _free(path)
    if free is not None and size > free:
        raise OutputError(path, f"would not fit on the disk: {text}; {_amount(free)} are free")
    if seconds >= ANNOUNCED_SECONDS or size >= ANNOUNCED_BYTES:
        click.echo(f"{path}: {text}", err=True)


def _total(sample: list[Record], count: int | None, time: Time | None) -> int:
    """How many packets there will be."""
    totals = [] if count is None else [count]
    span = sample[-1].time_ns - sample[0].time_ns
    if time is not None and span:
        totals.append(max(time // NS * (len(sample) - 1) // span, len(sample)))
    return min(totals, default=len(sample))


def _suffixes(path: str) -> list[str]:
    """The endings of a file that say its format; pcapng for standard output."""
    if path == STANDARD_OUTPUT:
        return [".pcapng"]
    parts = os.path.basename(path).split(".")
    return [f".{part}" for part in parts[-2:] if part in _FORMATS] or [".pcapng"]


def _free(path: str) -> int | None:
    """Bytes that a file may grow to; `None` where that is not known."""
    if path == STANDARD_OUTPUT:
        return None
    try:
        before = os.stat(path)
    except OSError:
        before = None
    if before is not None and not stat.S_ISREG(before.st_mode):
        return None
    try:
        free = shutil.disk_usage(os.path.dirname(os.path.realpath(path))).free
    except OSError:  # the error of writing will say why
        return None
    return free + (0 if before is None else before.st_blocks * _BLOCK)


def _amount(size: int) -> str:
    for factor, unit in ((1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB")):
        if size >= factor:
            return f"{size / factor:,.1f} {unit}"
    return f"{size:,} bytes"


def _span(seconds: float) -> str:
    for factor, unit in ((86_400, "days"), (3600, "hours"), (60, "minutes")):
        if seconds >= 2 * factor:
            return f"{seconds / factor:,.0f} {unit}"
    return f"{seconds:.0f} seconds"


_FORMATS = frozenset(("pcap", "pcapng", "cap", "gz", "xz", "zst"))
_BLOCK = 512
"""Bytes of a block of stat(2)."""
