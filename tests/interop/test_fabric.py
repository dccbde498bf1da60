"""Real programs on an emulated fabric: opensm, osmtest and the tools of infiniband-diags.

They need Debian's packages opensm and infiniband-diags, and a C compiler.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path

import pytest

from ibwire.fabric.infiniband.netfile import parse_topology
from ibwire.fabric.infiniband.shipped import find_topology, topology_names
from ibwire.link import umad_client

PATH = f"{os.environ['PATH']}:/usr/sbin:/sbin"
NEEDED = ("opensm", "osmtest", "ibnetdiscover", "saquery", "cc")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        any(shutil.which(name, path=PATH) is None for name in NEEDED),
        reason=f"needs {', '.join(NEEDED)}: apt install opensm infiniband-diags gcc",
    ),
]
LIMIT = 300.0
"""Seconds for anything: what takes one here takes many on a busy machine."""

TIMEOUT = ("-t", "20000")
"""Milliseconds for a response, of all these programs: with their 0.2 to 1 s a slow response is an
error."""

IBWIRE = [sys.executable, "-P", "-m", "ibwire"]


class Fabric:
    """A running fabric."""

    def __init__(self, topology: str, place: Path, *options: str) -> None:
        place.mkdir(mode=0o700)
        self.folder = place / f"ibwire-{os.geteuid()}" / "fabric-fabric"
        self.environment = {**os.environ, "XDG_RUNTIME_DIR": str(place)}
        self.process = subprocess.Popen(
            [*IBWIRE, "fabric", "run", topology, *options],
            env=self.environment,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        self.greeting = self.process.stdout.readline()

    def run(self, *arguments: str, status: int | None = 0, timeout: float = LIMIT) -> str:
        done = subprocess.run(
            [*IBWIRE, "fabric", *arguments],
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )
        assert status in (done.returncode, None), done.stdout + done.stderr
        return done.stdout

    def on(self, host: str, *arguments: str, status: int | None = 0, timeout: float = LIMIT) -> str:
        """What a program prints on a host, in the environment of `fabric exec`."""
        done = subprocess.run(
            arguments,
            env={**umad_client.environment(self.folder, host), "PATH": PATH},
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )
        assert status in (done.returncode, None), done.stdout + done.stderr
        return done.stdout

    def start(self, host: str, *arguments: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            arguments,
            env={**umad_client.environment(self.folder, host), "PATH": PATH},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    def states(self) -> set[str]:
        """The states of the ports, as `fabric show` has them."""
        rows = umad_client.ask(self.folder, {"command": "show"})["rows"]
        return {row["state"] for row in rows}

    def close(self) -> None:
        self.process.terminate()
        self.process.communicate(timeout=LIMIT)


@pytest.fixture
def place() -> Iterator[Path]:
    """A directory with a short name: that of a socket has at most 107 bytes."""
    with tempfile.TemporaryDirectory() as directory:
        yield Path(directory) / "r"


def hosts(topology: str) -> list[str]:
    subnet = find_topology(topology)
    return [node.name for node in subnet.nodes.values() if not node.is_switch]


@pytest.fixture
def ring(place: Path) -> Iterator[Fabric]:
    fabric = Fabric("ring6", place)
    yield fabric
    fabric.close()


@pytest.fixture
def star(place: Path) -> Iterator[Fabric]:
    fabric = Fabric("star2", place)
    yield fabric
    fabric.close()


@pytest.mark.parametrize(
    ("topology", "engine"),
    [
        *product(topology_names(), ("minhop", "updn", "dor", "lash")),
        *product(("ring6",), ("dnup", "sssp", "dfsssp")),
        ("fattree32", "ftree"),
        ("fattree:ports=4,levels=3", "ftree"),
    ],
)
def test_opensm_brings_the_subnet_up(topology: str, engine: str, place: Path) -> None:
    fabric = Fabric(topology, place)
    try:
        first, *_, last = hosts(topology)
        log = place / "log"
        fabric.on(first, "opensm", *TIMEOUT, "-o", "-R", engine, "-f", str(log))
        text = log.read_text()
        assert "SUBNET UP" in text
        assert " ERR " not in text
        found = parse_topology(fabric.on(last, "ibnetdiscover", *TIMEOUT))
        subnet = find_topology(topology)
        guids = {
            frozenset(((a.node.guid, a.number), (b.node.guid, b.number))) for a, b in subnet.links()
        }
        assert guids == {
            frozenset(((a.node.guid, a.number), (b.node.guid, b.number))) for a, b in found.links()
        }
        assert "Init" not in fabric.on(first, "iblinkinfo", *TIMEOUT)
        asked = {"command": "route", "source": first, "destination": last}
        assert "problem" not in umad_client.ask(fabric.folder, asked)["rows"][-1]
    finally:
        fabric.close()


def test_osmtest_passes_all_validations(ring: Fabric, tmp_path: Path) -> None:
    first, *_, last = hosts("ring6")
    manager = ring.start(first, "opensm", "-s", "0")
    try:
        wait_for(ring, last)
        found = str(tmp_path / "osmtest.dat")
        assert "PASS" in ring.on(last, "osmtest", *TIMEOUT, "-f", "c", "-i", found)
        # It asks a dozen times what nobody answers, so this is the time it takes.
        everything = ring.on(last, "osmtest", "-t", "2000", "-f", "a", "-i", found)
        assert "All Validations" in everything
        assert "PASS" in everything
    finally:
        manager.terminate()
        manager.wait(LIMIT)


def test_tools_see_the_whole_fabric(ring: Fabric) -> None:
    first, *_, last = hosts("ring6")
    manager = ring.start(first, "opensm", "-s", "0")
    try:
        wait_for(ring, last)
        found = ring.run("exec", last, "--", "saquery", *TIMEOUT)
        assert found.count("NodeRecord dump") == 18
        paths = ring.on(last, "saquery", *TIMEOUT, "-p")
        assert paths.count("PathRecord dump") == 18 * 18
        assert "SMINFO_MASTER" in ring.on(last, "sminfo", *TIMEOUT)
        assert len(ring.on(last, "ibhosts", *TIMEOUT).splitlines()) == 12
        # A shell script that goes through the files.
        ports = ring.on(last, "ibstatus")
        assert ports.count("Infiniband device 'ibwire0' port") == 1
        assert re.search(r"state:\s+4: ACTIVE", ports)
        assert re.search(r"rate:\s+100 Gb/sec \(4X EDR\)", ports)
        assert ring.on(last, "ls", "/sys/class/infiniband") == "ibwire0\n"
        listed = "ls -l /sys/class/infiniband/ibwire0 2>&1"
        assert "No such file" not in ring.on(last, "sh", "-c", listed)
        found = ring.on(last, "find", "/sys/class/infiniband", "-name", "rate")
        assert found == "/sys/class/infiniband/ibwire0/ports/1/rate\n"
        before = ring.run("counters", last, "--json")
        data = ring.on(last, "perfquery", *TIMEOUT, "-x")
        assert '"port_xmit_pkts"' in before
        assert "PortXmitData" in data
        server = ring.start(last, "ibping", "-S")
        try:
            lid = ring.on(last, "ibaddr", *TIMEOUT).split("start ")[1].split()[0]
            until(lambda: ", 0% packet loss" in ring.on(first, "ibping", "-c", "1", lid))
        finally:
            server.terminate()
            server.wait(LIMIT)
    finally:
        manager.terminate()
        manager.wait(LIMIT)


def test_perfquery_shows_the_words_that_are_in_the_capture(ring: Fabric, tmp_path: Path) -> None:
    """XmitData of a port is the sum of PktLen of the packets that it has sent."""
    first, *_, last = hosts("ring6")
    file = tmp_path / "c.pcapng"
    ring.run("capture", str(file), "--tap", "sw0[1]")
    ring.on(first, "opensm", *TIMEOUT, "-o", "-f", str(tmp_path / "log"))
    lid = next(line.split()[2] for line in ring.run("show").splitlines() if line.startswith("sw0 "))
    # The question comes from sw5: nothing passes the port of the first host meanwhile.
    text = ring.on(last, "perfquery", *TIMEOUT, "-x", lid, "1")
    ring.run("capture", "--stop")

    counted = {
        name: int(re.search(rf"{name}:\.+(\d+)", text)[1])  # type: ignore[index]
        for name in ("PortXmitData", "PortRcvData", "PortXmitPkts", "PortRcvPkts")
    }
    lines = subprocess.run(
        [*IBWIRE, "dissect", "--fields", "lrh.pktlen", str(file)],
        capture_output=True, text=True, check=True,
    ).stdout.split()  # fmt: skip
    words = [int(each) for each in lines if each.isdecimal()]
    assert counted["PortXmitPkts"] + counted["PortRcvPkts"] == len(words) > 500
    assert counted["PortXmitData"] + counted["PortRcvData"] == sum(words)


def test_a_link_that_fails_is_routed_around(ring: Fabric, tmp_path: Path) -> None:
    found = tmp_path / "route.json"
    first, *_, last = hosts("ring6")
    manager = ring.start(first, "opensm", "-s", "0")
    try:
        wait_for(ring, last)
        before = ring.run("route", first, "node-3-1", "--json").splitlines()
        ring.run("fail", "sw0[8]" if "sw1" in "".join(before) else "sw0[7]")
        rows: list[str] = []

        def arrives() -> bool:
            # Through a file, as the exit status is 1 while the way is broken.
            ring.run("route", first, "node-3-1", "-o", str(found), status=None)
            rows[:] = found.read_text().splitlines()
            return "problem" not in rows[-1]

        until(arrives)
        after = list(rows)
        assert len(after) == len(before)
        assert after != before
    finally:
        manager.terminate()
        manager.wait(LIMIT)


def test_opensm_and_tools_work_with_a_link_that_damages_and_one_that_flaps(ring: Fabric) -> None:
    """What is lost is repeated; ibqueryerrors names the switches at the link with errors."""
    first, *_, last = hosts("ring6")
    manager = ring.start(first, "opensm", "-s", "0")
    try:
        wait_for(ring, last)
        ring.run("fail", "sw0[7]", "--errors", "3e-6")
        found = ""

        def has_errors() -> bool:
            nonlocal found
            assert ring.on(first, "iblinkinfo", "-t", "500").count("Active") == 36
            found = ring.on(last, "ibqueryerrors", "-t", "500", status=None)
            return "SymbolErrorCounter" in found

        until(has_errors)
        named = set(re.findall(r'^Errors for \S+ "(\S+)"', found, re.MULTILINE))
        assert named
        assert named <= {"sw0", "sw5"}
        ring.run("fail", "sw0[7]", "--restore")
        shown = [line.split() for line in ring.run("show").splitlines()]
        lids = {row[0]: row[2] for row in shown}
        # All of them are damaged packets (ibqueryerrors --details prints them by a wrong name).
        for name, number in (("sw0", "7"), ("sw5", "8")):
            port = lids[name], number
            errors = re.search(
                r"PortRcvErrors:\.+(\d+)", ring.on(first, "perfquery", *TIMEOUT, *port)
            )
            reasons = ring.on(first, "perfquery", *TIMEOUT, "-E", *port)
            assert errors
            assert re.search(rf"PortLocalPhysicalErrors:\.+{errors[1]}\n", reasons)
        ring.run("fail", "sw0[8]", "--for", "100ms")
        until(lambda: ring.states() == {"active"})
        assert ring.on(last, "iblinkinfo", *TIMEOUT).count("Active") == 36
        assert "[LinkDownedCounter == 1" in ring.on(last, "ibqueryerrors", *TIMEOUT, status=None)
    finally:
        manager.terminate()
        manager.wait(LIMIT)


WRONG_KEY = """\
import ctypes, struct, sys

umad = ctypes.CDLL("libibumad.so.3")
umad.umad_get_mad.restype = ctypes.c_void_p
umad.umad_init()
port = umad.umad_open_port(None, 0)
agent = umad.umad_register(port, 4, 1, 0, None)
buffer = ctypes.create_string_buffer(umad.umad_size() + 256)
mad = struct.pack(">BBBBHHQHHI", 1, 4, 1, 1, 0, 0, 5, 0x12, 0, 0)
ctypes.memmove(umad.umad_get_mad(buffer), mad, len(mad))
umad.umad_set_addr(buffer, int(sys.argv[1]), 1, 0, 0x1234)
umad.umad_send(port, agent, buffer, 256, 300, 0)
umad.umad_recv(port, buffer, ctypes.byref(ctypes.c_int(256)), 20000)
print(umad.umad_status(buffer))
"""
"""A request for counters to queue pair 1 with a Q_Key that it has not; prints ETIMEDOUT."""


def test_opensm_reads_the_trap_about_a_wrong_q_key(ring: Fabric, tmp_path: Path) -> None:
    first, *_, last = hosts("ring6")
    log = tmp_path / "log"
    manager = ring.start(first, "opensm", "-s", "0", "-d", "2", "-f", str(log))
    try:
        wait_for(ring, last)
        lids = lids_of(ring)
        done = ring.on(last, sys.executable, "-P", "-c", WRONG_KEY, lids[first])
        assert done == "110\n"
        sent = f"from LID1:{lids[last]} QP1:0x1 to LID2:{lids[first]} QP2:0x1"
        until(lambda: f"Bad Q_Key:0x1234 on SL:0 {sent}" in log.read_text())
    finally:
        manager.terminate()
        manager.wait(LIMIT)


def test_opensm_reads_the_trap_about_a_link_that_damages_most_packets(
    ring: Fabric, tmp_path: Path
) -> None:
    """Trap 129 of sw5, at whose port 8 the packets of the first host arrive from port 7 of sw0."""
    first, *_, last = hosts("ring6")
    log = tmp_path / "log"
    manager = ring.start(first, "opensm", "-s", "0", "-d", "2", "-f", str(log))
    try:
        wait_for(ring, last)
        lid = lids_of(ring)["sw5"]
        ring.run("fail", "sw0[7]", "--errors", "1e-3")
        trap = (
            f"num:129 (Local Link integrity threshold reached) Producer:2 (Switch) from LID:{lid} "
        )

        def is_reported() -> bool:
            ring.on(first, "smpquery", "-t", "50", "-D", "nodedesc", "0,1,7", status=None)
            return f"{trap}Port 8" in log.read_text()

        until(is_reported)
    finally:
        manager.terminate()
        manager.wait(LIMIT)


def lids_of(fabric: Fabric) -> dict[str, str]:
    """The LID of each node."""
    rows = umad_client.ask(fabric.folder, {"command": "show"})["rows"]
    return {row["node"]: str(row["lid"]) for row in rows}


SHORT = ("-t", "300")
"""Milliseconds, three times, for what nobody answers."""


def test_the_m_key_of_opensm_keeps_others_out_until_its_lease_ends(
    star: Fabric, tmp_path: Path
) -> None:
    """Reads need the key too with M_KeyProtectBits 2. opensm sweeps when it receives trap 256, and
    its packets have the key; when it is gone, another opensm takes over with a key of its own."""
    first, last = hosts("star2")
    lines = "m_key {}\nm_key_lease_period 2\nm_key_protection_level 2\nsweep_interval 1\n"
    options, log = tmp_path / "options", tmp_path / "log"
    options.write_text(lines.format("0x1234"))
    settings = ("-F", str(options), "-d", "2", "-f", str(log))
    manager = star.start(first, "opensm", *settings)
    try:
        until(lambda: star.states() == {"active"})
        lid = lids_of(star)["sw0"]
        right = star.on(last, "smpquery", *TIMEOUT, "-y", "0x1234", "portinfo", lid)
        assert "ProtectBits:.....................2" in right
        for key in ("0x1235", "0"):
            asked = ("smpquery", *SHORT, "-y", key, "nodeinfo", lid)
            assert "NodeType" not in star.on(last, *asked, status=255)
        until(lambda: 'Reporting Security Notice "Bad M_Key"' in log.read_text())
    finally:
        manager.terminate()
        manager.wait(LIMIT)

    star.on(last, "smpquery", *SHORT, "nodeinfo", lid, status=255)
    until(lambda: "NodeType" in star.on(last, "smpquery", *SHORT, "nodeinfo", lid, status=None))
    options.write_text(lines.format("0x5678"))
    manager = star.start(last, "opensm", *settings)
    try:
        asked = ("smpquery", *SHORT, "-y", "0x5678", "portinfo", lid)
        until(lambda: "ProtectBits:.....................2" in star.on(last, *asked, status=None))
        assert "NodeType" not in star.on(last, "smpquery", *SHORT, "nodeinfo", lid, status=255)
    finally:
        manager.terminate()
        manager.wait(LIMIT)


def test_limited_members_of_opensm_reach_full_ones_only(ring: Fabric, tmp_path: Path) -> None:
    """The switches enforce the partitions, with the tables of the adapters behind their ports."""
    first, second, *_, last = hosts("ring6")
    partitions, log = tmp_path / "partitions", tmp_path / "log"
    partitions.write_text("Default=0x7fff, ipoib : ALL=limited, SELF=full ;\n")
    settings = ("-P", str(partitions), "-s", "0", "-d", "2", "-f", str(log))
    manager = ring.start(first, "opensm", *settings)
    try:
        until(lambda: ring.states() == {"active"})
        lids = lids_of(ring)
        paths = ring.on(second, "saquery", *TIMEOUT, "PR")
        assert paths.count("PathRecord dump") > 1
        assert "PortXmitData" in ring.on(second, "perfquery", *TIMEOUT, lids[first], "1")
        enforced = ring.on(first, "smpquery", *TIMEOUT, "portinfo", lids["sw0"], "1")
        assert "PartEnforceInb:..................1" in enforced
        asked = ("perfquery", *SHORT, lids[last], "1")
        assert "PortXmitData" not in ring.on(second, *asked, status=255)
        sent = f"from LID1:{lids[second]} QP1:0x1 to LID2:{lids[last]} QP2:0x1"
        until(lambda: f"Bad P_Key:0x7fff on SL:0 {sent}" in log.read_text())
    finally:
        manager.terminate()
        manager.wait(LIMIT)


@pytest.mark.skipif(shutil.which("tshark") is None, reason="needs tshark")
def test_tshark_reads_all_that_opensm_and_the_tools_send(ring: Fabric, tmp_path: Path) -> None:
    """No packet is malformed, and none is suspicious, by directed route, by LID and by RMPP."""
    first, *_, last = hosts("ring6")
    file = tmp_path / "c.pcapng"
    ring.run("capture", str(file), "--tap", "all")
    manager = ring.start(first, "opensm", "-s", "0")
    try:
        until(lambda: ring.states() == {"active"})
        for tool in (
            ("saquery", *TIMEOUT, "PR"),
            ("perfquery", *TIMEOUT, "-x"),
            ("iblinkinfo", *TIMEOUT),
            ("ibdiagnet", "-o", str(tmp_path)),
        ):
            ring.on(last, *tool)
        ring.run("fail", "sw0[7]")
        packets = int(ring.run("capture", "--stop").split()[0].replace(",", ""))
    finally:
        manager.terminate()
        manager.wait(LIMIT)

    def listed(*options: str) -> list[str]:
        command = ["tshark", "-r", str(file), "-T", "fields", "-e", "infiniband.mad.mgmtclass"]
        done = subprocess.run([*command, *options], capture_output=True, text=True, check=True)
        return done.stdout.splitlines()

    assert listed("-Y", "_ws.malformed or _ws.expert") == []
    classes = listed()
    assert len(classes) == packets > 1000
    assert {int(each, 0) for each in classes} == {0x01, 0x03, 0x04, 0x81}


def wait_for(fabric: Fabric, host: str) -> None:
    """Wait until the subnet is up, as a person would: by looking."""

    until(lambda: fabric.states() == {"active"})
    assert "MASTER" in fabric.on(host, "sminfo", *TIMEOUT)


def until(condition: Callable[[], bool], seconds: float = LIMIT) -> None:
    """Ask again until it is true; fails after some time."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.1)
