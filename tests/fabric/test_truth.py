"""Networks of switches against the numbers of ns-3 HPCC: reference/fabric#shared-buffer.

`python tests/bench/fabric_truth.py` compares random sets as well, with all their seeds.
"""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from ibwire.base.units import US
from ibwire.fabric.switch.routing import Strategy
from ibwire.rc.profile import CONNECTX_AR
from truth.compare import UnknownKind, exact_rows, rows_of, stat_rows
from truth.network import MODES, PRIORITY, Run
from truth.paths import transfer_times
from truth.sets import DATA


def exact_sets() -> Any:
    for path in sorted(DATA.glob("*.json")):
        document = json.loads(path.read_text())
        for number, each in enumerate(document.get("sets", ())):
            config = each.get("setup", {}).get("config", {})
            if "flows" in each and config.get("cc", 1) in MODES:
                name = f"{path.stem} {each.get('name', number)}"
                # The first incast is for the quick suite; others take seconds.
                marks = () if name == "pfc_incast 0" else (pytest.mark.slow,)
                yield pytest.param(each, id=name, marks=marks)


@pytest.mark.parametrize("found", list(exact_sets()))
def test_run_agrees_with_the_other_simulator(found: Mapping[str, Any]) -> None:
    rows = list(exact_rows(found))

    assert [row for row in rows if not row.passed] == []
    assert len(rows) > 5


def test_incast_has_the_same_pauses_one_by_one() -> None:
    found = json.loads((DATA / "pfc_incast.json").read_text())["sets"][0]
    run = Run(found["setup"])

    run.run()

    (switch,) = run.network.switches.values()
    for port, there in zip(switch.counters, found["ports"], strict=True):
        assert port.pauses_sent[PRIORITY] == there["pause"]
        assert port.resumes_sent[PRIORITY] == there["resume"]
    assert switch.counters[-1].largest_queue[PRIORITY] == found["ports"][-1]["maxq"]


@pytest.mark.slow
def test_random_marks_give_the_same_means() -> None:
    found = json.loads((DATA / "dcqcn_red.json").read_text())["sets"][0]

    assert [row for row in stat_rows(found, seeds=6) if not row.passed] == []


def test_headroom_equals_the_table_of_the_vendor() -> None:
    rows = list(rows_of(json.loads((DATA / "headroom_sonic.json").read_text())))

    assert [row for row in rows if not row.passed] == []
    assert len(rows) == 15


def test_file_of_another_kind_is_refused() -> None:
    with pytest.raises(UnknownKind, match="no set"):
        list(rows_of({"cases": []}))


def permutation() -> list[str]:
    """16 transfers of 2 MB, each host sends one and receives one."""
    matrix: list[str] = json.loads((DATA / "htsim_roce_routing.json").read_text())["matrix"]
    return matrix


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["ecmp_host", "ecmp_ar"])
def test_one_path_for_each_flow_or_flowlet_takes_as_long_as_in_htsim(strategy: str) -> None:
    document = json.loads((DATA / "htsim_roce_routing.json").read_text())
    document["runs"] = [each for each in document["runs"] if each["strategy"] == strategy]

    rows = list(rows_of(document))

    assert [row for row in rows if not row.passed] == []
    assert len(rows) == 3


@pytest.mark.slow
def test_spraying_without_go_back_n_is_near_ideal() -> None:
    """htsim with its own transport and 128 paths: 194 us (reference/transport#early-packets)."""
    times, retransmitted = transfer_times(permutation(), Strategy.SPRAY, profile=CONNECTX_AR)

    assert retransmitted == 0
    assert times[-1] < 194 * US * 1.1


@pytest.mark.slow
def test_file_that_cannot_be_compared_is_a_miss_and_the_next_one_runs(tmp_path: Path) -> None:
    here = Path(__file__).parents[1]
    command = [sys.executable, str(here / "bench/fabric_truth.py"), str(tmp_path)]

    def script() -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, "PYTHONPATH": str(here)}
        return subprocess.run(command, capture_output=True, text=True, env=environment, check=False)

    empty = script()
    (tmp_path / "a.json").write_text("[]")
    (tmp_path / "b.json").write_text('{"params": {}, "rows": []}')
    (tmp_path / "c.json").write_text((DATA / "headroom_sonic.json").read_text())
    result = script()

    assert (empty.returncode, result.returncode) == (2, 1)
    assert "no .json file there" in empty.stderr
    assert "b.json\n  MISS cannot be compared: the key 'cell' is missing\n" in result.stdout
    assert "c.json\n  ok" in result.stdout
    assert "2 out of their tolerance" in result.stdout
