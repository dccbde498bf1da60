"""The plots of docs/performance.md are those of the table beside them."""

from __future__ import annotations

import csv
import runpy
from pathlib import Path

ROOT = Path(__file__).parents[1]
TABLE = ROOT / "docs" / "pictures" / "growth.csv"


def test_picture_is_drawn_from_the_table() -> None:
    module = runpy.run_path(str(ROOT / "tests" / "bench" / "growth.py"))

    assert module["picture"](TABLE) == TABLE.with_suffix(".svg").read_text(encoding="utf-8")


def test_each_point_is_a_median_of_at_least_three_rounds() -> None:
    with TABLE.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))

    assert {row["grows"] for row in rows} == {"packets", "connections", "flows", "switches"}
    assert all(int(row["rounds"]) >= 3 for row in rows)
