"""The subnet manager of ibwire, judged by osmtest, infiniband-diags, ibutils and opensm."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from ibwire.fabric.infiniband.routing import Engine
from ibwire.fabric.infiniband.shipped import find_topology, topology_path
from ibwire.link.ibsim_client import IbsimClient
from ibwire.sm.configuration import Settings
from interop.test_fabric import LIMIT, PATH, Fabric, hosts, place, until

NEEDED = ("opensm", "osmtest", "ibdiagnet", "ibdmchk", "saquery", "cc")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        any(shutil.which(name, path=PATH) is None for name in NEEDED),
        reason=f"needs {', '.join(NEEDED)}: apt install opensm infiniband-diags ibutils gcc",
    ),
]
__all__ = ["place"]
FIRST, *_, LAST = hosts("ring6")
NEAR, FAR, *_ = hosts("star2")
NO_LOOPS, LOOPS = "no credit loops found", "credit loops in routing"


@pytest.fixture
def ring(place: Path) -> Iterator[Fabric]:
    fabric = Fabric("ring6", place, "--sm", "own", "--routing", "updn", "--poll", "1")
    until(lambda: is_up(fabric))
    yield fabric
    fabric.close()


def is_up(fabric: Fabric) -> bool:
    return fabric.states() == {"active"}


def master(fabric: Fabric) -> str:
    """What sminfo says of the master, asked from a host that has no manager."""
    return fabric.on("node-2-0", "sminfo", status=None)


def test_osmtest_passes_all_validations(ring: Fabric, tmp_path: Path) -> None:
    found = str(tmp_path / "osmtest.dat")

    assert "PASS" in ring.on(LAST, "osmtest", "-f", "c", "-i", found)
    everything = ring.on(LAST, "osmtest", "-f", "a", "-i", found)

    assert "All Validations" in everything
    assert "PASS" in everything


def test_osmtest_passes_its_multicast_flow(ring: Fabric) -> None:
    """Mode 2, which asks for groups that must not be, and leaves some bits of a JoinState only."""
    text = ring.on(LAST, "osmtest", "-t", "20000", "-f", "m", "-M", "2")

    assert 'TEST "Multicast" PASS' in text


@pytest.mark.parametrize("options", [(), ("--lanes", "4"), ("--lanes", "4", "--lmc", "2")])
def test_osmtest_passes_its_qos_flow(options: tuple[str, ...], place: Path, tmp_path: Path) -> None:
    """It asks for the tables of all ports, also of those that are down."""
    fabric = Fabric("ring6", place, "--sm", "own", *options)
    try:
        until(lambda: is_up(fabric))
        found = str(tmp_path / "osmtest.dat")
        fabric.on(LAST, "osmtest", "-f", "c", "-i", found)

        # It writes qos.txt into the current folder.
        asked = f"cd {tmp_path} && osmtest -t 20000 -f q -i {found}"
        text = fabric.on(LAST, "sh", "-c", asked)

        assert 'TEST "QoS: VLArb and SLtoVL" PASS' in text
    finally:
        fabric.close()


@pytest.mark.parametrize("lmc", [0, 2])
def test_saquery_lists_as_many_tables_and_paths_as_with_opensm(
    lmc: int, place: Path, tmp_path: Path
) -> None:
    kinds = "SL2VL", "VLAR", "PKTR", "PIR", "LR", "PR"
    counts = []
    for own in (True, False):
        options = ("--sm", "own", "--lmc", str(lmc)) if own else ()
        fabric = Fabric("star2", place.with_name("own" if own else "opensm"), *options)
        opensm = None
        try:
            if not own:
                opensm = fabric.start(NEAR, "opensm", "-l", str(lmc), "-f", str(tmp_path / "log"))
            until(lambda: is_up(fabric))  # noqa: B023
            asked = "; ".join(
                f"saquery -t 20000 --smkey 1 {kind} | grep -c 'Record dump'" for kind in kinds
            )
            counts.append(fabric.on(NEAR, "sh", "-c", f"PATH=$PATH:/usr/sbin; {asked}"))
        finally:
            if opensm is not None:
                opensm.terminate()
                opensm.wait(20)
            fabric.close()

    assert counts[0].split() == counts[1].split()


def test_ibportstate_shows_the_port_at_the_other_end(place: Path, tmp_path: Path) -> None:
    """By an SMP whose path begins by LID and goes on by ports."""
    file = tmp_path / "uneven.toml"
    file.write_text(
        f'topology = "star2"\n[[link]]\nbetween = ["sw0[2]", "{FAR}[1]"]\nrate = "1xSDR"\n'
    )
    fabric = Fabric(str(file), place, "--sm", "own")
    try:
        until(lambda: is_up(fabric))
        lid = fabric.on(NEAR, "saquery", "-L", "sw0").split()[-1]

        text = fabric.on(NEAR, "ibportstate", lid, "2", "query")

        _, _, peer = text.partition("Peer PortInfo:")
        assert re.search(r"LinkWidthActive:\.+1X$", peer, re.MULTILINE)
        assert re.search(r"LinkSpeedActive:\.+2.5 Gbps$", peer, re.MULTILINE)
    finally:
        fabric.close()


def test_saquery_lists_every_record(ring: Fabric) -> None:
    expected = {
        "NR": ("NodeRecord", 18),
        "PIR": ("PortInfoRecord", 12 + 6 * 9),
        "LR": ("LinkRecord", 36),
        "PR": ("PathRecord", 18 * 18),
        "LFTR": ("LFT Record", 6),
        "SWIR": ("SwitchInfoRecord", 6),
        "GIR": ("GUIDInfo Record", 18),
        "SMIR": ("SMInfoRecord", 1),
    }

    asked = "; ".join(f"saquery -t 20000 --smkey 1 {name}" for name in expected)
    text = ring.on(LAST, "sh", "-c", f"PATH=$PATH:/usr/sbin; {asked}")

    for kind, count in expected.values():
        assert text.count(f"{kind} dump") == count, kind


@pytest.mark.parametrize(
    ("topology", "engine", "verdict"),
    [
        ("ring6", "minhop", LOOPS),
        ("ring6", "updn", NO_LOOPS),
        ("torus:size=3x3", "updn", NO_LOOPS),
        ("fattree:ports=4,levels=3", "ftree", NO_LOOPS),
        ("mesh:size=3x3", "dor", NO_LOOPS),
    ],
)
def test_ibdmchk_on_credit_loops(
    topology: str, engine: str, verdict: str, place: Path, tmp_path: Path
) -> None:
    fabric = Fabric(topology, place, "--sm", "own", "--routing", engine)
    try:
        until(lambda: is_up(fabric))
        host = next(
            node.name for node in find_topology(topology).nodes.values() if not node.is_switch
        )
        # Its timeout cannot be set, so on a busy machine it may miss a response: then once more.
        for _ in range(3):
            report = fabric.on(host, "ibdiagnet", "-o", str(tmp_path))
            line = r"^ +(\S.*?(?:Check|Report)) +(\d+) +\d+ *$"
            stages = re.findall(line, report, re.MULTILINE)
            if {errors for _, errors in stages} == {"0"}:
                break
        assert len(stages) == 6
        assert {errors for _, errors in stages} == {"0"}
        nodes = find_topology(topology).nodes.values()
        adapters = sum(not node.is_switch for node in nodes)
        assert f"{len(nodes)} nodes ({len(nodes) - adapters} Switches & {adapters} CA-s)" in report
        assert f"PKey:0x7fff Hosts:{adapters} full:{adapters} limited:0" in report
        name = tmp_path / "ibdiagnet"
        judged = ["ibdmchk", "-s", f"{name}.lst", "-f", f"{name}.fdbs", "-m", f"{name}.mcfdbs"]
        # It may end by a signal after its verdict.
        text = fabric.on(host, *judged, status=None)
        assert verdict in text
    finally:
        fabric.close()


def test_a_higher_opensm_takes_over_and_its_end_is_noticed(ring: Fabric, tmp_path: Path) -> None:
    assert "priority 0 state 3 SMINFO_MASTER" in master(ring)

    opensm = ring.start(LAST, "opensm", "-p", "10", "-f", str(tmp_path / "log"))
    try:
        until(lambda: "priority 10 state 3" in master(ring))
        until(lambda: is_up(ring))
    finally:
        opensm.terminate()
        opensm.wait(20)

    until(lambda: "priority 0 state 3" in master(ring), seconds=120)


def test_opensm_hands_over_to_a_higher_manager_of_ibwire(place: Path, tmp_path: Path) -> None:
    fabric = Fabric("ring6", place)
    opensm = fabric.start(FIRST, "opensm", "-p", "3", "-f", str(tmp_path / "log"))
    try:
        until(lambda: is_up(fabric))
        fabric.run("manage", LAST, "--priority", "9")
        until(lambda: "priority 9 state 3" in master(fabric))
        until(lambda: "Entering STANDBY" in (tmp_path / "log").read_text())
    finally:
        opensm.terminate()
        opensm.wait(20)
        fabric.close()


@pytest.mark.skipif(
    shutil.which("ibsim-run", path=PATH) is None, reason="needs ibsim: apt install ibsim-utils"
)
@pytest.mark.parametrize("topology", ["ring6", "fattree32"])
def test_the_real_ibsim_comes_up(topology: str, tmp_path: Path) -> None:
    """Judged by infiniband-diags over Debian's own libumad2sim."""
    name = f"ibwire-{os.getpid()}-{topology}"
    environment = {**os.environ, "IBSIM_SOCKNAME": name, "PATH": PATH}
    first, *_, last = hosts(topology)
    net = str(topology_path(topology))
    with (
        (tmp_path / "ibsim").open("w") as printed,
        subprocess.Popen(
            ["ibsim", "-s", net],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=printed,
        ) as ibsim,
    ):
        assert ibsim.stdin is not None
        try:
            until(lambda: "sim>" in (tmp_path / "ibsim").read_text())
            client = IbsimClient(first, Settings(engine=Engine.UPDN), name)
            try:
                client.run(lambda: client.manager.is_up)
                _judge_ibsim(client, environment | {"SIM_HOST": last}, tmp_path)
            finally:
                client.close()
        finally:
            ibsim.stdin.close()
            ibsim.terminate()


def under_ibsim(script: str, environment: dict[str, str], folder: Path) -> str:
    """What the commands of a shell script print that use Debian's libumad2sim."""
    return subprocess.run(
        ["ibsim-run", "sh", "-c", script],
        env=environment,
        cwd=folder,
        stdout=subprocess.PIPE,
        text=True,
        timeout=LIMIT,
        check=False,
    ).stdout


def _judge_ibsim(client: IbsimClient, environment: dict[str, str], folder: Path) -> None:
    subnet = client.manager.view.subnet
    lids = [port.lid for port in client.manager.view.end_ports() if not port.node.is_switch]
    # Tools ask the manager while it runs in this process.
    done = threading.Event()
    thread = threading.Thread(target=lambda: client.run(done.is_set))
    thread.start()
    try:
        pairs = [f"{a} {b}\n" for a in lids for b in lids if a != b]
        (folder / "pairs").write_text("".join(pairs))
        # Two at a time: ibsim takes ten programs.
        traces = "xargs -P 2 -n 2 ibtracert <pairs || echo failed"
        text = under_ibsim(f"iblinkinfo; sminfo; {traces}", environment, folder)
    finally:
        done.set()
        thread.join()
    assert "SMINFO_MASTER" in text
    links = sum(1 for _ in subnet.links())
    # iblinkinfo lists each link at both of its ends.
    assert text.count("Active") == 2 * links
    assert text.count("To ca") == len(pairs)
    assert "failed" not in text


@pytest.mark.skipif(
    shutil.which("ibsim-run", path=PATH) is None, reason="needs ibsim: apt install ibsim-utils"
)
def test_opensm_under_ibsim_run_brings_the_fabric_up(place: Path, tmp_path: Path) -> None:
    name = f"ibwire-{os.getpid()}-served"
    fabric = Fabric("ring6", place, "--ibsim", name)
    environment = {
        **os.environ,
        "IBSIM_SOCKNAME": name,
        "SIM_HOST": FIRST,
        "PATH": PATH,
        "OSM_TMP_DIR": str(tmp_path),
        "OSM_CACHE_DIR": str(tmp_path),
    }
    log = tmp_path / "log"
    try:
        script = f"opensm -o -f {log}; ibstat; iblinkinfo"
        text = under_ibsim(script, environment, tmp_path)
        assert "SUBNET UP" in log.read_text()
        assert "Number of ports: 1" in text
        assert text.count("Active") == 36 + 1
        assert is_up(fabric)
    finally:
        fabric.close()


TOOLS = """\
ibstat
ibstat -p
ibaddr
ibaddr 2
ibaddr 99
ibhosts
ibswitches
ibnodes
ibrouters
ibnetdiscover
ibnetdiscover -p
ibnetdiscover -g
ibnetdiscover -l
iblinkinfo
iblinkinfo -l
iblinkinfo -S 0x2c90000100000
iblinkinfo -S 0x1
ibidsverify
smpquery nodeinfo 2
smpquery nodeinfo 99
smpquery nodedesc 2
smpquery portinfo 2 1
smpquery portinfo 2 99
smpquery switchinfo 2
smpquery switchinfo 1
smpquery pkeys 1
smpquery pkeys 2 1
smpquery sl2vl 2
smpquery vlarb 2 1
smpquery guidinfo 1
smpquery nodeinfo 1
smpquery -D nodeinfo 0,1
smpquery -D nodeinfo 0,2
smpquery -G nodeinfo 0x2c90300200061
smpdump 1 0x15
smpdump -D 0,1 0x11
perfquery 1 1
perfquery -x 1 1
perfquery -a 2
perfquery -R 1 1
ibroute 2
ibroute 1
ibroute -M 2
ibtracert 1 2
ibtracert 1 99
dump_fts
ibportstate 2 5 query
ibportstate -D 0,1 1 query"""


@pytest.mark.skipif(
    shutil.which("ibsim-run", path=PATH) is None, reason="needs ibsim: apt install ibsim-utils"
)
def test_tools_end_as_on_the_real_ibsim(place: Path, tmp_path: Path) -> None:
    """48 runs, each with the exit status that it has on ibsim, after a sweep of opensm.

    Not among them are `smpquery mepi`, an attribute of a vendor that only ibsim has, and
    `ibportstate 2 1`, as ibsim does not know routes with a part by LID.
    """
    name = f"ibwire-{os.getpid()}-tools"
    environment = {**os.environ, "SIM_HOST": FIRST, "PATH": PATH}
    environment |= {"OSM_TMP_DIR": str(tmp_path), "OSM_CACHE_DIR": str(tmp_path)}
    script = f"opensm -o -f {tmp_path}/log >opensm\n"
    for tool in TOOLS.splitlines():
        script += f"timeout 60 {tool} >/dev/null 2>&1; echo {tool}: $?\n"

    def statuses(server: str) -> list[str]:
        return under_ibsim(script, environment | {"IBSIM_SOCKNAME": server}, tmp_path).splitlines()

    printed = tmp_path / "ibsim"
    with (
        printed.open("w") as output,
        subprocess.Popen(
            ["ibsim", "-s", str(topology_path("ring6"))],
            env=environment | {"IBSIM_SOCKNAME": f"{name}-real"},
            stdin=subprocess.PIPE,
            stdout=output,
        ) as ibsim,
    ):
        assert ibsim.stdin is not None
        until(lambda: "sim>" in printed.read_text())
        expected = statuses(f"{name}-real")
        ibsim.stdin.close()
        ibsim.terminate()
    fabric = Fabric("ring6", place, "--ibsim", name)
    try:
        found = statuses(name)
    finally:
        fabric.close()

    assert len(expected) == 48
    assert found == expected
