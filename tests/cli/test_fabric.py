"""`ibwire fabric`: what it shows of a running fabric.

Real programs on it: tests/interop/test_fabric.py.
"""

from __future__ import annotations

import json
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from ibwire.base.interrupt import Terminated
from ibwire.cli import main
from ibwire.dissect import read
from ibwire.fabric.infiniband import Subnet, read_topology
from ibwire.fabric.infiniband.shipped import topology_path
from ibwire.fabric.infiniband.subnet import Port
from ibwire.link import umad_client
from ibwire.link.umad_client import fabric_folder
from ibwire.link.umad_server import UmadServer
from ibwire.sm.control import Control
from ibwire.sm.management import Management


@pytest.fixture
def place(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Where fabrics have their folders; a short name, as that of a socket has at most 107 bytes."""
    with tempfile.TemporaryDirectory() as directory:
        monkeypatch.setenv("XDG_RUNTIME_DIR", directory)
        yield directory


@pytest.fixture
def subnet(place: str) -> Iterator[Subnet]:
    """The subnet of a running fabric."""
    subnet = read_topology(topology_path("star2"))
    folder = fabric_folder("fabric")
    folder.mkdir()
    management = Management(subnet)
    server = UmadServer(management, folder)
    server.control = Control(management, server.environment)
    thread = threading.Thread(target=server.run)
    thread.start()
    yield subnet
    server.stop()
    thread.join()
    server.close()


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["fabric", *arguments])


def with_tables(subnet: Subnet) -> None:
    switch = subnet.nodes["sw0"]
    switch.lft, switch.linear_fdb_top = bytearray((255, 1, 2)), 2
    for lid, name in enumerate(("node-0", "node-1"), 1):
        subnet.nodes[name].ports[1].lid = lid


def test_show_lists_the_ports(subnet: Subnet) -> None:
    lines = [line.split() for line in run("show").output.splitlines()]

    assert lines[0] == ["node", "port", "lid", "state", "link", "peer"]
    assert ["node-0", "1", "0", "init", "4xEDR", "sw0[1]"] in lines


@pytest.mark.parametrize("command", ["show", "counters", "route"])
def test_rows_go_to_files(subnet: Subnet, tmp_path: Path, command: str) -> None:
    with_tables(subnet)
    ends = ["node-0", "node-1"] if command == "route" else []
    for ending in ("json", "csv", "txt"):
        path = tmp_path / f"out.{ending}"
        assert run(command, *ends, "-o", str(path)).exit_code == 0
        assert path.read_text()

    printed = run(command, *ends, "--json").output
    assert printed == (tmp_path / "out.json").read_text()
    assert all("node" in json.loads(line) for line in printed.splitlines())


def test_a_route_that_ends_too_early_says_why(subnet: Subnet) -> None:
    result = run("route", "node-0", "node-1")
    assert result.exit_code == 1
    assert "no subnet manager has been here" in result.output
    with_tables(subnet)
    assert run("route", "node-0", "node-1").exit_code == 0
    subnet.nodes["sw0"].lft[2] = 255
    result = run("route", "node-0", "node-1")
    assert result.exit_code == 1
    assert "no route to LID 2" in result.output


IDLE_FIRST = """Ca 1 "idle"

Switch 8 "sw0"
[1] "a"[2]
[2] "b"[1]

Ca 2 "a"

Ca 1 "b"
"""
"""The first host has no link, and the second one has it at port 2."""


def test_the_subnet_manager_runs_where_there_is_a_link(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "idle.net").write_text(IDLE_FIRST)
    seen: list[Port] = []
    monkeypatch.setattr(UmadServer, "run", lambda self: seen.extend(self.management.managers))

    result = run("run", str(tmp_path / "idle.net"), "--sm", "own")
    asked = run("run", str(tmp_path / "idle.net"), "--sm", "own", "--sm-host", "idle")

    assert "the subnet manager runs on a\n" in result.output
    assert [(port.node.name, port.number) for port in seen] == [("a", 2)]
    assert asked.exit_code == 2
    assert "one with a link" in asked.output


@pytest.mark.skipif(shutil.which("cc") is None, reason="needs cc: apt install gcc")
@pytest.mark.parametrize("content", ["#!/no/such/interpreter\n", "no program\n"])
def test_a_program_that_cannot_run_is_a_sentence(
    subnet: Subnet, tmp_path: Path, content: str
) -> None:
    program = tmp_path / "program"
    program.write_text(content)
    program.chmod(0o755)

    result = run("exec", "node-0", str(program))

    assert result.exit_code == 1
    assert re.search(r"program: (No such file|Exec format)", result.output)


def test_links_fail_and_come_back(subnet: Subnet) -> None:
    assert run("fail", "sw0[1]").output == "sw0[1] - node-0[1] is down\n"
    assert ["node-0", "1", "0", "down", "4xEDR"] in [
        line.split() for line in run("show").output.splitlines()
    ]
    assert "a port with a link" in run("fail", "sw0[1]").output
    assert run("fail", "node-0[1]", "--restore").output == "sw0[1] - node-0[1] is up\n"
    assert "one that was failed" in run("fail", "node-0[1]", "--restore").output


def test_a_link_fails_for_some_time(subnet: Subnet) -> None:
    port = subnet.nodes["sw0"].ports[1]

    result = run("fail", "sw0[1]", "--for", "1ms")

    assert result.output == "sw0[1] - node-0[1] is down\nsw0[1] - node-0[1] is up\n"
    assert port.is_up
    assert port.counters.link_downed_counter == 1


def test_a_link_has_bit_errors_until_it_is_restored(subnet: Subnet) -> None:
    said = run("fail", "sw0[1]", "--errors", "1e-3").output
    assert said == "sw0[1] - node-0[1] has bit errors at a rate of 0.001\n"
    assert subnet.nodes["sw0"].ports[1].is_up
    assert run("fail", "node-0[1]", "--restore").output == "node-0[1] - sw0[1] is up\n"
    assert "one that was failed" in run("fail", "node-0[1]", "--restore").output


def test_mads_are_captured_until_stop(subnet: Subnet, tmp_path: Path) -> None:
    file = tmp_path / "c.pcapng"
    started = run("capture", str(file), "--tap", "sw0[1]", "--tap", "sw0[2]")
    assert run("manage", "node-0").exit_code == 0
    for _ in range(3000):
        if "init" not in run("show").output:
            break
        time.sleep(0.01)

    stopped = run("capture", "--stop")

    assert started.output == f"fabric: what these ports send and receive goes to {file}\n"
    (columns,) = list(read(str(file)))
    assert int(stopped.output.split()[0]) == len(columns["bth.opcode"]) > 20
    assert (columns["bth.opcode"] == 0x64).all()
    assert columns.valid("mad.method").all()
    assert run("capture", "--stop").exit_code == 1


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("capture",), "give a FILE"),
        (("capture", "c.pcapng", "--stop"), "give a FILE"),
        (("capture", "c.pcapng", "--tap", "sw0"), "is not NODE[PORT]"),
        (("capture", "c.pcapng", "--tap", "sw9[1]"), "the name of a node"),
        (("capture", "no/c.pcapng"), "no/c.pcapng"),
        (("capture", "--stop"), "capture: none is running"),
        (("fail", "sw0"), "is not NODE[PORT]"),
        (("fail", "sw0[1]", "--restore", "--for", "1s"), "--restore does not go with --for"),
        (("fail", "sw0[1]", "--for", "nan"), "nan"),
        (("fail", "sw0[1]", "--for", "0s"), "give a time above 0"),
        (("fail", "sw0[1]", "--errors", "1"), "'1' is not a bit error rate: a number above 0 and"),
        (("fail", "sw0[1]", "--errors", "0"), "'0' is not a bit error rate: a number above 0 and"),
        (("fail", "sw0[1]", "--errors", "x"), "'x' is not a bit error rate"),
        (("fail", "sw0[1]", "--errors", "nan"), "'nan' is not a bit error rate"),
        (("fail", "sw0[4]", "--errors", "1e-3"), "a port with a link"),
        (("fail", "sw0[99]"), "1 to 8"),
        (("fail", f"sw0[{'9' * 5000}]"), "is not NODE[PORT]"),
        (("route", "node-0", "nobody"), "the name of a node"),
        (("counters", "nobody"), "the name of a node"),
        (("exec", "nobody", "true"), "the name of a node"),
        (("exec", "sw0", "true"), "a channel adapter"),
        (("run", "star2"), "a fabric 'fabric' is running"),
        (("run", "nosuch.net"), "nosuch.net"),
    ],
)
def test_errors_are_sentences(subnet: Subnet, arguments: tuple[str, ...], words: str) -> None:
    result = run(*arguments)

    assert result.exit_code != 0
    assert words in result.output
    assert "Traceback" not in result.output


def test_without_a_fabric(place: str) -> None:
    result = run("show")

    assert result.exit_code == 1
    assert "no fabric is running" in result.output


def test_run_keeps_the_folder_of_a_fabric_that_does_not_answer(
    place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A busy or stopped process is not a killed one."""
    monkeypatch.setattr(umad_client, "_TIMEOUT", 0.05)
    monkeypatch.setattr(UmadServer, "run", lambda server: None)
    folder = fabric_folder("fabric")
    folder.mkdir()
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(str(folder / "socket"))
        listener.listen(1)

        result = run("run", "star2")

        assert result.exit_code == 1
        assert "a fabric 'fabric' is running and does not answer; give --name" in result.output
        assert (folder / "socket").exists()


def test_run_removes_the_folder_of_a_killed_fabric(
    place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = fabric_folder("fabric")
    folder.mkdir()
    (folder / "left").touch()
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(str(folder / "socket"))  # closed: connections are refused
    monkeypatch.setattr(UmadServer, "run", lambda server: None)

    result = run("run", "star2")

    assert result.exit_code == 0
    assert not folder.exists()


@pytest.mark.parametrize(
    ("interrupt", "status"), [(KeyboardInterrupt(), 130), (Terminated(15), 143)]
)
def test_a_signal_is_how_a_fabric_ends(
    place: str, monkeypatch: pytest.MonkeyPatch, interrupt: BaseException, status: int
) -> None:
    def end(_: UmadServer) -> None:
        raise interrupt

    monkeypatch.setattr(UmadServer, "run", end)

    result = run("run", "star2", "--sm", "own")

    assert result.exit_code == status
    assert result.stderr == ""
    assert not fabric_folder("fabric").exists()


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("--routing", "minhop"),
        ("--root", "sw0"),
        ("--lmc", "2"),
        ("--lanes", "8"),
        ("--priority", "3"),
        ("--mkey", "0x1234"),
        ("--mkey-protect", "2"),
        ("--mkey-lease", "60"),
        ("--partition", "storage=0x10:node-0,node-1=limited"),
        ("--sm-host", "node-0"),
    ],
)
def test_options_of_the_manager_need_one(
    place: str, option: str, value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(UmadServer, "run", lambda server: None)

    result = run("run", "star2", option, value)

    assert result.exit_code == 2
    assert f"{option} needs --sm own" in result.output
    key = ("--mkey", "5") if option in ("--mkey-protect", "--mkey-lease") else ()
    assert run("run", "star2", "--sm", "own", option, value, *key).exit_code == 0


@pytest.mark.parametrize("arguments", [("run", "star2", "--sm", "own"), ("manage", "node-0")])
def test_protect_bits_without_a_key_are_refused(
    place: str, arguments: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """They would protect nothing (IBA 14.2.4)."""
    monkeypatch.setattr(UmadServer, "run", lambda server: None)
    for key in ((), ("--mkey", "0")):
        result = run(*arguments, "--mkey-protect", "2", *key)

        assert result.exit_code == 2
        assert "--mkey-protect needs --mkey" in result.output


def test_an_unknown_topology_that_is_near_a_shipped_one_is_proposed() -> None:
    assert "did you mean fattree32?" in run("run", "fatree32").output


def test_an_unknown_topology_says_what_there_is() -> None:
    result = run("run", "circle")

    assert result.exit_code == 1
    assert "shipped are fattree32, ring6, star2; keys are star, ring, torus" in result.output


def test_a_wrong_value_of_a_key_is_an_error() -> None:
    result = run("run", "ring:switches=none")

    assert result.exit_code == 2
    assert "'none' is not a number from 1 to 100,000" in result.output


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("storage", "NAME=PKEY:HOST"),
        ("storage=0x10", "NAME=PKEY:HOST"),
        ("storage=0x10:", "NAME=PKEY:HOST"),
        ("storage=ten:node-0", "NAME=PKEY:HOST"),
        ("storage=0x8000:node-0", "NAME=PKEY:HOST"),
        ("storage=0x10010:node-0", "NAME=PKEY:HOST"),
        ("storage=0x10:node-0=half", "NAME=PKEY:HOST"),
        ("storage=0x10,ipob:node-0", "NAME=PKEY,ipoib:HOST"),
        ("storage=0x10,:node-0", "NAME=PKEY,ipoib:HOST"),
        ("storage=0x10:node-7", "'node-7' is not a host of this fabric, or ALL"),
    ],
)
def test_a_partition_that_cannot_be_is_refused(
    place: str, given: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(UmadServer, "run", lambda server: None)

    result = run("run", "star2", "--sm", "own", "--partition", given)

    assert result.exit_code == 2
    assert message in result.output


def test_commands_of_a_running_fabric_start_without_the_transport() -> None:
    """`fabric exec` is called for each program; `fabric traffic` is loaded when it is used."""
    script = (
        "import sys; import ibwire.cli.fabric; "
        "print([name for name in sys.modules if name.startswith(('ibwire.rc', 'ibwire.scenario'))])"
    )

    done = subprocess.run([sys.executable, "-P", "-c", script], capture_output=True, check=True)

    assert done.stdout == b"[]\n"


def test_a_mistyped_command_is_answered_with_one_like_it() -> None:
    result = CliRunner().invoke(main, ["fabric", "trafic"])

    assert result.exit_code == 2
    assert "traffic" in result.output
