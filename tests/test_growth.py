"""The plots of docs/performance.md are those of the table beside them."""

from __future__ import annotations

import csv
import runpy
from pathlib import Path

import pytest

from ibwire.base.compiled import describe_build

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


def test_measuring_one_subject_keeps_the_rows_of_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = runpy.run_path(str(ROOT / "tests" / "bench" / "growth.py"))
    table = tmp_path / "growth.csv"
    table.write_text(TABLE.read_text(encoding="utf-8"), encoding="utf-8")
    point = module["Point"]("flows", "packets", 7, lambda: 1.5)
    monkeypatch.setitem(module["measure_all"].__globals__, "points", lambda folder: [point])

    module["measure_all"](table, 3, "flows")

    before, after = (path.read_text(encoding="utf-8").splitlines() for path in (TABLE, table))
    assert [row for row in after if not row.startswith("flows")] == [
        row for row in before if not row.startswith("flows")
    ]
    assert [row for row in after if row.startswith("flows")] == [
        f"flows,packets,7,1.50,3,{describe_build()}"
    ]
