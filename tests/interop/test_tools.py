"""The tools of infiniband-diags, 48 runs, on a ring that the real opensm manages.

Expected is what the topology says: 12 hosts and 6 switches of 8 ports, in all 18 links.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from interop.test_fabric import LIMIT, PATH, Fabric

NEEDED = ("opensm", "ibnetdiscover", "saquery", "cc")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        any(shutil.which(name, path=PATH) is None for name in NEEDED),
        reason=f"needs {', '.join(NEEDED)}: apt install opensm infiniband-diags gcc",
    ),
]
HERE, FIRST, FAR = "node-1-0", "node-0-0", "node-4-0"


class Ring:
    """A running ring, with the variables by which a program runs on one of its hosts."""

    def __init__(self, fabric: Fabric) -> None:
        self.environment = dict(
            line.split("=", 1) for line in fabric.on(HERE, "env").splitlines() if "=" in line
        )
        rows = [json.loads(line) for line in fabric.run("show", "--json").splitlines()]
        self.lids = {row["node"]: row["lid"] for row in rows}
        self.guids = {}
        for name in (FIRST, HERE, FAR):
            text = fabric.on(name, "ibstat", "-p")
            self.guids[name] = text.split()[0]

    def run(self, command: str) -> str:
        names = {name.replace("-", "_"): lid for name, lid in self.lids.items()}
        words = command.format(**names, first=self.guids[FIRST], far=self.guids[FAR]).split()
        done = subprocess.run(
            [shutil.which(words[0], path=PATH) or words[0], *words[1:]],
            env={**self.environment, "PATH": PATH},
            capture_output=True,
            text=True,
            timeout=LIMIT,
            check=False,
        )
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
        return done.stdout


@pytest.fixture(scope="module")
def ring() -> Iterator[Ring]:
    with tempfile.TemporaryDirectory() as directory:
        place = Path(directory) / "r"
        fabric = Fabric("ring6", place)
        manager = fabric.start(FIRST, "opensm", "-t", "20000", "-f", str(place / "log"))
        try:
            end = time.monotonic() + LIMIT
            while set(re.findall("init|armed", shown := fabric.run("show"))) or (
                "active" not in shown
            ):
                assert time.monotonic() < end, shown
                time.sleep(0.2)
            yield Ring(fabric)
        finally:
            manager.terminate()
            manager.wait(LIMIT)
            fabric.close()


RUNS = [
    ("ibstat", r"State: Active", 1),
    ("ibstat -l", r"^ibwire0$", 1),
    ("ibstat -p", r"^0x[0-9a-f]{16}$", 1),
    ("ibstat ibwire0 1", r"Rate: 100", 1),
    ("ibstatus", r"state:\s+4: ACTIVE", 1),
    ("ibaddr", r"GID fe80::", 1),
    ("ibaddr {node_4_0}", r"LID start 0x[0-9a-f]+ end", 1),
    ("sminfo", r"sm lid {node_0_0} sm guid {first}, .* state 3 SMINFO_MASTER", 1),
    ("ibnetdiscover", r"^Switch\s+8 ", 6),
    ("ibnetdiscover -p", r"^CA\s+\d+\s+1 0x[0-9a-f]{16} 4x EDR", 12),
    ("ibnetdiscover -l", r"^(Ca|Switch)\s+:", 18),
    ("iblinkinfo", r"Active/\s*LinkUp", 36),
    ("iblinkinfo -l", r"Active/\s*LinkUp", 36),
    ("ibhosts", r"^Ca\s+: ", 12),
    ("ibswitches", r"^Switch\s+: ", 6),
    ("ibnodes", r"^(Ca|Switch)\s+: ", 18),
    ("ibrouters", r"^Rt", 0),
    ("dump_fts", r"^Unicast lids", 6),
    ("dump_lfts", r"^Unicast lids", 6),
    ("dump_mfts", r"^Multicast mlids", 6),
    ("ibportstate {sw0} 7 query", r"^LinkState:\.+Active", 1),
    ("ibroute {sw0}", r"valid lids dumped", 1),
    ("ibroute -M {sw0}", r"valid mlids dumped", 1),
    ("ibtracert {node_0_0} {node_4_0}", r"^\[\d+\] -> ca port", 1),
    ("ibtracert {node_4_0} {node_0_0}", r"^\[\d+\] -> ca port", 1),
    ("smpdump -D 0,1 0x11", r"^0101 02", 1),
    ("ibidsverify", r"", 0),
    ("perfquery", r"^PortXmitData:", 1),
    ("perfquery -x", r"^PortUnicastXmitPkts:", 1),
    ("perfquery {sw0} 1", r"^PortXmitData:", 1),
    ("perfquery -a {sw0}", r"^PortXmitData:", 1),
    ("ibqueryerrors --data --counters", r"PortXmitData ==", 36),
    ("ibportstate -D 0 1", r"^LinkState:\.+Active", 1),
    ("ibportstate {sw0} 1 query", r"^LinkSpeedExtActive:\.+25.78125 Gbps", 2),
    ("smpdump -D 0 0x11", r"^0101 01", 1),
    ("smpquery -D portinfo 0 1", r"^LinkState:\.+Active", 1),
    ("smpquery -D switchinfo 0,1", r"^LinearFdbCap:\.+49152", 1),
    ("smpquery -D nodeinfo 0,1", r"^NodeType:\.+Switch", 1),
    ("smpquery -D nodedesc 0", r"^Node Description:\.+node-1-0", 1),
    ("smpquery -D pkeys 0", r"0xffff 0x0000", 1),
    ("smpquery -D sl2vl 0", r"^ports: in", 1),
    ("smpquery -D vlarb 0,1 1", r"Low priority VL Arbitration Table", 1),
    ("smpquery -D guidinfo 0", r"0x[0-9a-f]{16}", 1),
    ("saquery NR", r"NodeRecord dump", 18),
    ("saquery CPI", r"SA ClassPortInfo", 1),
    ("saquery -g", r"MCMemberRecord group dump", 1),
    ("saquery -s", r"^IsSM ports\nPortInfoRecord dump", 1),
    ("saquery --slid {node_0_0} --dlid {node_4_0} PR", r"PathRecord dump", 1),
]
"""A command, a pattern, and how many lines or places match at least; 0 for no pattern."""


def test_there_are_as_many_runs_as_in_the_reference() -> None:
    assert len(RUNS) == 48


@pytest.mark.parametrize(("command", "pattern", "count"), RUNS)
def test_a_tool_ends_well_and_shows_the_fabric(
    ring: Ring, command: str, pattern: str, count: int
) -> None:
    shown = ring.run(command)

    pattern = pattern.replace("{node_0_0}", str(ring.lids[FIRST])).replace(
        "{first}", hex(int(ring.guids[FIRST], 16))
    )
    if count:
        assert len(re.findall(pattern, shown, re.M)) >= count, shown[:3000]
