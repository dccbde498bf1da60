"""Runs the networks of other simulators with real packets, and compares every figure.

PYTHONPATH=tests python tests/bench/fabric_truth.py [FOLDER or FILE]... [--seeds N]

FOLDER: of files like those in tests/truth/data, which are the default. One row a figure: expected,
got, tolerance. The exit status is 1 if a row is out of its tolerance, or if a set has a key that a
run here cannot follow. Files of other kinds are named and left out.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import click

from truth.compare import Part, Row, UnknownKind, parts_of
from truth.sets import DATA


@click.command()
@click.argument("places", nargs=-1, type=click.Path(exists=True, path_type=Path))
@click.option("--seeds", type=click.IntRange(1, 1000), help="Runs of each random set.")
def main(places: tuple[Path, ...], seeds: int | None) -> None:
    """Compare runs here with the files in PLACES."""
    files = [
        path
        for place in places or (DATA,)
        for path in (sorted(place.glob("*.json")) if place.is_dir() else [place])
    ]
    if not files:
        raise click.UsageError("no .json file there")
    failed = rows = left_out = 0
    for path in files:
        print(f"{path.name}")
        try:
            parts = parts_of(json.loads(path.read_text()))
        except UnknownKind as error:
            left_out += 1
            print(f"  left out, and not compared: {error}")
            continue
        except Exception as error:  # A bad file can fail anywhere; the others still run.
            failed += 1
            print(f"  MISS cannot be compared: {reason(error)}")
            continue
        for part in parts:
            for key in part.unknown:
                failed += 1
                print(f"  MISS {label(part)}no run here has {key}")
            try:
                for row in part.rows(seeds):
                    rows += 1
                    failed += not row.passed
                    show(row, part)
            except Exception as error:  # As above; the other sets still run.
                failed += 1
                print(f"  MISS {label(part)}cannot be compared: {reason(error)}", flush=True)
        unused = sorted({key for part in parts for key in part.unused})
        if unused:
            print(f"  not compared: {', '.join(unused)}")
    print(f"{rows} rows, {failed} missed, {left_out} files left out")
    sys.exit(failed > 0)


def show(row: Row, part: Part) -> None:
    """Print a row."""
    verdict = "ok  " if row.passed else "MISS"
    name = label(part) + row.name
    print(
        f"  {verdict} {name:<50} {row.expected:>14,.2f} {row.got:>14,.2f} +-{row.tolerance:,.2f}",
        flush=True,
    )


def label(part: Part) -> str:
    """What stands before the lines of a set; a file that is one table has no such name."""
    return f"{part.name}: " if part.name else ""


def reason(error: Exception) -> str:
    """What is wrong with a file or a set."""
    if isinstance(error, KeyError):
        return f"the key {error} is missing"
    return f"{type(error).__name__}: {error}"


main()
