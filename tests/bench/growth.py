"""How the cost of a packet grows with connections, packets, flows and switches: measure, then draw.

    python tests/bench/growth.py measure docs/pictures/growth.csv [--rounds 3] [--only SUBJECT]
    python tests/bench/growth.py draw docs/pictures/growth.csv docs/pictures/growth.svg

All points take turns in every round. The table has the median CPU time of a frame or packet; the
picture shows it in multiples of the first point of each line, which depend less on the machine.
Subjects: `emulator` (WRITEs of 4 KiB between two devices, MTU 1024, every ICRC made and checked),
`flows` (the command on captures of `generate.py` and of `emulated.py`, less its start) and
`fabric` (8,192 packets over fat trees of `fabric.py`, each frame that a switch sends counts).
"""

from __future__ import annotations

import argparse
import csv
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from html import escape
from math import log10
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import emulated
import emulator
from generate import generate

import fabric  # the module beside this one
from compare import measure
from ibwire.base.compiled import describe_build

COLUMNS = ("subject", "grows", "size", "microseconds", "rounds", "build")
GROWS = ("packets", "connections", "flows", "switches")

FABRIC_PACKETS = 8192
EMULATED_PACKETS = 20_000


@dataclass(frozen=True)
class Point:
    """One measured point of a line."""

    subject: str
    grows: str
    size: int
    cost: Callable[[], float]
    """Microseconds of CPU time of a frame or packet, in one run."""


def points(folder: Path) -> Iterator[Point]:
    """Everything that is measured; captures are made in the folder."""
    for packets in (1_000, 4_000, 16_000, 64_000):
        yield Point("emulator", "packets", packets, partial(_emulator, packets, 1))
    for connections in (1, 10, 100, 1_000, 10_000):
        cost = partial(_emulator, max(8_000, 4 * connections), connections)
        yield Point("emulator", "connections", connections, cost)
    for packets in (10_000, 40_000, 160_000):
        yield Point("flows", "packets", packets, partial(_flows_of, folder, packets))
    for connections in (1, 100, 1_000, 5_000):
        yield Point("flows", "connections", connections, partial(_flows_over, folder, connections))
    for flows in (16, 128, 1_024):
        yield Point("fabric", "flows", flows, partial(_fabric, 4, flows))
    for ports, switches in ((4, 20), (8, 80), (16, 320)):
        yield Point("fabric", "switches", switches, partial(_fabric, ports, 128))


def _emulator(packets: int, connections: int) -> float:
    job = emulator.Job("", size=4096, packets=packets, connections=connections)
    frames, seconds = emulator.transfer(job)
    return seconds / frames * 1e6


def _fabric(ports: int, flows: int) -> float:
    topology = fabric.fat_tree(ports)
    pairs = fabric.permutation(len(topology.hosts), flows)
    found = fabric.emulate(topology, pairs, FABRIC_PACKETS // flows)
    return found.seconds / found.dequeues * 1e6


def _flows_of(folder: Path, packets: int) -> float:
    capture = folder / f"mixed-{packets}.pcap"
    if not capture.exists():
        with capture.open("wb") as out:
            generate(out, packets, seed=1)
    return _flows(folder, capture, packets)


def _flows_over(folder: Path, connections: int) -> float:
    capture = folder / f"emulated-{connections}.pcap"
    if not capture.exists():
        emulated.generate(capture, EMULATED_PACKETS, connections, 0.0)
    return _flows(folder, capture, EMULATED_PACKETS)


def _flows(folder: Path, capture: Path, packets: int) -> float:
    """Microseconds a packet, less those of a capture of one packet, measured just before."""
    single = folder / "one.pcap"
    if not single.exists():
        with single.open("wb") as out:
            generate(out, 1, seed=1)
    command = [sys.executable, "-m", "ibwire", "flows"]
    start, _ = measure([*command, str(single)])
    seconds, _ = measure([*command, str(capture)])
    return (seconds - start) / packets * 1e6


def measure_all(out: Path, rounds: int, only: str | None) -> None:
    """Write the table; with `only`, the rows of the other subjects stay as they are."""
    rows = {} if only is None else _rows_of_others(out, only)
    with tempfile.TemporaryDirectory() as name:
        wanted = [each for each in points(Path(name)) if only in (None, each.subject)]
        costs: list[list[float]] = [[] for _ in wanted]
        for _ in range(rounds):
            for point, found in zip(wanted, costs, strict=True):
                found.append(point.cost())
                print(f"{point.subject}, {point.size:,} {point.grows}: {found[-1]:.2f}", flush=True)
    for point, found in zip(wanted, costs, strict=True):
        cost = f"{statistics.median(found):.2f}"
        row = (point.subject, point.grows, str(point.size), cost, str(rounds), describe_build())
        rows.setdefault(point.subject, []).append(row)
    with out.open("w", newline="", encoding="utf-8") as file:
        table = csv.writer(file, lineterminator="\n")
        table.writerow(COLUMNS)
        for subject in NAMES:
            table.writerows(rows.get(subject, ()))


def _rows_of_others(out: Path, only: str) -> dict[str, list[tuple[str, ...]]]:
    """The rows of a table by subject, without those of one subject; none without a table."""
    rows: dict[str, list[tuple[str, ...]]] = {}
    if out.exists():
        with out.open(newline="", encoding="utf-8") as file:
            for row in list(csv.reader(file))[1:]:
                if row[0] != only:
                    rows.setdefault(row[0], []).append(tuple(row))
    return rows


WIDTH, HEIGHT, MARGIN = 340, 220, 50
COLOURS = {"emulator": "#1f77b4", "flows": "#d6690f", "fabric": "#2a8a3c"}
NAMES = {"emulator": "emulator", "flows": "ibwire flows", "fabric": "network of switches"}

Line = list[tuple[int, float]]


def lines_of(table: Path) -> dict[str, dict[str, Line]]:
    """For each quantity that grows, the lines of its plot by subject."""
    found: dict[str, dict[str, Line]] = {name: {} for name in GROWS}
    with table.open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            line = found[row["grows"]].setdefault(row["subject"], [])
            line.append((int(row["size"]), float(row["microseconds"])))
    return found


def picture(table: Path) -> str:
    """The plots of a table, as SVG."""
    plots = [(grows, lines) for grows, lines in lines_of(table).items() if lines]
    rows = -(-len(plots) // 2)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {2 * WIDTH} {rows * HEIGHT}" '
        f'font-family="sans-serif" font-size="11" role="img">',
        "<title>Cost of a packet as connections, packets, flows and switches grow</title>",
        f'<rect width="{2 * WIDTH}" height="{rows * HEIGHT}" fill="#ffffff"/>',
    ]
    for index, (grows, lines) in enumerate(plots):
        left, top = index % 2 * WIDTH, index // 2 * HEIGHT
        parts.append(f'<g transform="translate({left},{top})">')
        parts += _plot(grows, lines)
        parts.append("</g>")
    return "\n".join([*parts, "</svg>", ""])


def _plot(grows: str, lines: dict[str, Line]) -> Iterator[str]:
    """One plot: sizes on a logarithmic axis, costs in multiples of the first of each line."""
    sizes = sorted({size for line in lines.values() for size, _ in line})
    low, high = log10(sizes[0]), log10(sizes[-1])
    most = max(cost / line[0][1] for line in lines.values() for _, cost in line)
    steps = max(2, int(most) + 1)
    right, bottom = WIDTH - 20, HEIGHT - 40

    def x(size: int) -> float:
        return MARGIN + (log10(size) - low) / (high - low) * (right - MARGIN)

    def y(times: float) -> float:
        return bottom - times / steps * (bottom - 30)

    yield f'<text x="{MARGIN}" y="16" font-weight="bold">cost of a packet by {grows}</text>'
    for times in range(0, steps + 1, -(-steps // 5)):
        at = f"{y(times):.1f}"
        yield f'<path d="M{MARGIN} {at}H{right}" stroke="#dddddd"/>'
        yield f'<text x="{MARGIN - 6}" y="{at}" dy="4" text-anchor="end">{times} ×</text>'
    shown = -100.0
    for size in sizes:
        if x(size) - shown >= 36:
            shown = x(size)
            yield f'<text x="{shown:.1f}" y="{bottom + 16}" text-anchor="middle">{size:,}</text>'
    for number, (subject, line) in enumerate(lines.items()):
        colour = COLOURS[subject]
        places = [(x(size), y(cost / line[0][1]), size, cost) for size, cost in line]
        path = "L".join(f"{a:.1f} {b:.1f}" for a, b, _, _ in places)
        yield f'<path d="M{path}" fill="none" stroke="{colour}" stroke-width="2"/>'
        for a, b, size, cost in places:
            hint = escape(f"{NAMES[subject]}, {size:,} {grows}: {cost:.2f} µs")
            yield f'<circle cx="{a:.1f}" cy="{b:.1f}" r="3" fill="{colour}">'
            yield f"<title>{hint}</title></circle>"
        name_at = MARGIN + 140 * number
        yield f'<text x="{name_at}" y="{bottom + 32}" fill="{colour}">{NAMES[subject]}</text>'


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    actions = parser.add_subparsers(dest="action", required=True)
    measuring = actions.add_parser("measure")
    measuring.add_argument("table", type=Path)
    measuring.add_argument("--rounds", type=int, default=3)
    measuring.add_argument("--only", choices=sorted(NAMES))
    drawing = actions.add_parser("draw")
    drawing.add_argument("table", type=Path)
    drawing.add_argument("picture", type=Path)
    given = parser.parse_args()
    if given.action == "measure":
        measure_all(given.table, given.rounds, given.only)
    else:
        given.picture.write_text(picture(given.table), encoding="utf-8")
