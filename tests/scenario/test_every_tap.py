"""Captures at every port of a network: tshark reads each frame, `ibwire check` finds nothing."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from ibwire.cli import main
from ibwire.scenario import Scenario, read_scenario, shipped

NETWORKS = shipped()
SWITCHED = sorted(name for name, each in NETWORKS.items() if each.fabric is not None)

TOPOLOGIES = {
    "star": "hosts = 4",
    "back-to-back": "",
    "dumbbell": "left = 2\nright = 2",
    "parking-lot": "switches = 3",
    "leaf-spine": "leaves = 2\nspines = 2\nhosts = 2",
    "fat-tree": "k = 2",
    "rail-optimised": "servers = 2\nrails = 2\nspines = 1",
}

WAYS = {
    "stored": "",
    "cut-through": 'cut_through = true\nlatency = "300ns"',
    "flowlets": 'routing = "flowlet"\nclass.other.ecn = { min = "20 kB" }',
    "remarked": "class.roce.remark = { dscp = 12 }",
}


def everything(kind: str, counts: str, switch: str) -> str:
    """Everybody sends to everybody over RC, and some over TCP, with little buffer."""
    return f"""
[topology]
kind = "{kind}"
{counts}
[switch]
buffer = "500 kB"
{switch}
[cc]
[[flow]]
from = "*"
to = "*"
size = "20 kB"
[[flow]]
transport = "tcp"
ecn = true
from = "*[01]"
to = "*[01]"
size = "30 kB"
"""


def capture_everywhere(scenario: Scenario, argument: str, folder: Path) -> Path:
    """A capture with an interface for each host and for each port of a switch."""
    path = folder / "all.pcapng"
    topology = scenario.fabric.topology
    taps = [each for name in (*topology.hosts, *topology.switches) for each in ("--tap", name)]
    result = CliRunner().invoke(main, ["run", argument, "-o", str(path), *taps])
    assert result.exit_code == 0, result.output
    return path


def assert_sound(path: Path) -> None:
    malformed = "_ws.malformed || ip.checksum.status == 0"
    command = ["tshark", "-r", path, "-o", "ip.check_checksum:TRUE", "-Y", malformed]
    found = subprocess.run(command, capture_output=True, text=True, check=True)
    assert found.stdout == ""
    checked = CliRunner().invoke(main, ["check", str(path)])
    assert checked.exit_code == 0, checked.output


pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("tshark") is None, reason="tshark not installed"),
]


@pytest.mark.parametrize("name", SWITCHED)
def test_shipped_scenario_at_every_port(name: str, tmp_path: Path) -> None:
    assert_sound(capture_everywhere(NETWORKS[name], name, tmp_path))


@pytest.mark.parametrize(("kind", "counts"), TOPOLOGIES.items(), ids=list(TOPOLOGIES))
@pytest.mark.parametrize("way", WAYS)
def test_topology_at_every_port(kind: str, counts: str, way: str, tmp_path: Path) -> None:
    path = tmp_path / "x.toml"
    path.write_text(everything(kind, counts, "" if kind == "back-to-back" else WAYS[way]))
    scenario: Any = read_scenario(path.read_bytes(), str(path))

    assert_sound(capture_everywhere(scenario, str(path), tmp_path))
