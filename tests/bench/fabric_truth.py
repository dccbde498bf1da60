"""Runs the networks of other simulators with real packets, and compares every figure.

PYTHONPATH=tests python tests/bench/fabric_truth.py [FOLDER or FILE]... [--seeds N]

FOLDER: of files like those in tests/truth/data, which are the default. One row a figure: expected,
got, tolerance. The exit status is 1 if a row is out of its tolerance.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import click

from truth.compare import UnknownKind, rows_of
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
    failed = rows = 0
    for path in files:
        print(f"{path.name}")
        try:
            for row in rows_of(json.loads(path.read_text()), seeds=seeds):
                rows += 1
                failed += not row.passed
                verdict = "ok  " if row.passed else "MISS"
                print(
                    f"  {verdict} {row.name:<50} {row.expected:>14,.2f} {row.got:>14,.2f} "
                    f"+-{row.tolerance:,.2f}",
                    flush=True,
                )
        except UnknownKind as error:
            print(f"  left out: {error}")
        except KeyError as error:
            failed += 1
            print(f"  MISS cannot be compared: the key {error} is missing")
        except Exception as error:  # A bad value can fail anywhere; the other files still run.
            failed += 1
            print(f"  MISS cannot be compared: {type(error).__name__}: {error}")
    print(f"{rows} rows, {failed} out of their tolerance")
    sys.exit(failed > 0)


main()
