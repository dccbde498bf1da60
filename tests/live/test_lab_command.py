"""`ibwire lab`, as its users type it. Live tests: each runs a few processes."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from ibwire.base.errors import LinkError
from ibwire.lab.veth import VARIABLE, Lab

IBWIRE = [sys.executable, "-m", "ibwire", "lab"]
PATIENCE = 20
PIPED = {"capture_output": True, "text": True, "timeout": PATIENCE, "check": False}
UNSHARE = shutil.which("unshare")
CAP_NET_RAW = 1 << 13  # linux/capability.h


@pytest.fixture(scope="module")
def allowed():
    """This machine lets labs be made."""
    try:
        Lab.create().down()
    except LinkError as error:
        pytest.skip(f"no lab: {error}")


@pytest.fixture
def environment(allowed, monkeypatch):
    """Sockets of labs are in a place of the test's own, where they leave nothing.

    `tmp_path` may be too long a name for a socket.
    """
    with TemporaryDirectory() as place:
        monkeypatch.setenv("XDG_RUNTIME_DIR", place)
        monkeypatch.delenv(VARIABLE, raising=False)
        yield {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        for name in ("lab", "other"):
            left = Lab.find(name)
            if left is not None:
                left.down()
        assert list(Path(place).rglob("*")) == []


def lab(environment, *arguments, before=()):
    return subprocess.run(
        [*before, *IBWIRE, *arguments],
        env=environment,
        **PIPED,
    )


def test_run_builds_a_lab_for_one_command_and_takes_it_down(environment):
    done = lab(environment, "run", "--mtu", "1500", "--", "ip", "-br", "addr", "show", "veth-a")

    assert done.returncode == 0
    assert done.stdout.split()[:4] == ["veth-a@if2", "UP", "10.0.0.1/24", "fd00::a00:1/64"]
    assert Lab.find() is None


def test_run_gives_back_the_exit_status(environment):
    assert lab(environment, "run", "sh", "-c", "exit 7").returncode == 7
    assert lab(environment, "run", "sh", "-c", "kill -9 $$").returncode == 128 + signal.SIGKILL


def test_command_that_does_not_exist_is_named(environment):
    done = lab(environment, "run", "no-such-command")

    assert done.returncode == 1
    assert done.stderr == "error: no-such-command: cannot be started: No such file or directory\n"


def test_lab_stays_up_between_commands(environment):
    up = lab(environment, "up", "--mtu", "4200")
    again = lab(environment, "up")
    seen = lab(environment, "run", "--side", "b", "ip", "link", "show", "veth-b")
    shell = subprocess.run(
        [*IBWIRE, "shell"],
        env={**environment, "SHELL": "/bin/sh"},
        input="ip -br link show veth-a\nexit 3\n",
        **PIPED,
    )
    down = lab(environment, "down")
    after = lab(environment, "down")

    assert up.stdout.splitlines() == [
        "a: veth-a 10.0.0.1 fd00::a00:1 mtu 4200",
        "b: veth-b 10.0.0.2 fd00::a00:2 mtu 4200",
    ]
    assert (again.returncode, again.stderr) == (1, "error: lab: is up already\n")
    assert " mtu 4200 " in seen.stdout
    assert (shell.returncode, shell.stdout.split()[0]) == (3, "veth-a@if2")
    assert (down.returncode, down.stderr) == (0, "")
    assert (after.returncode, after.stderr) == (0, "note: no lab is up: nothing to remove\n")


def test_one_of_several_concurrent_lab_up_succeeds(environment):
    started = [
        subprocess.Popen([*IBWIRE, "up"], env=environment, stderr=subprocess.PIPE, text=True)
        for _ in range(5)
    ]
    said = sorted(process.communicate(timeout=PATIENCE)[1] for process in started)

    assert said == ["", *["error: lab: is up already\n"] * 4]


def test_two_labs_do_not_meet(environment):
    lab(environment, "up")
    lab(environment, "up", "--name", "other", "--mtu", "1500")

    seen = lab(environment, "run", "--name", "other", "ip", "link", "show", "veth-a")
    default = lab(environment, "run", "ip", "link", "show", "veth-a")

    assert " mtu 1500 " in seen.stdout
    assert " mtu 9000 " in default.stdout


def test_inner_run_reaches_the_other_side_of_the_same_lab(environment):
    inner = f"{shlex.join(IBWIRE)} run --side b ip -br link show"

    done = lab(environment, "run", "--", "sh", "-c", f"ip -br link show; {inner}")

    assert [line.split()[0] for line in done.stdout.splitlines()] == [
        "lo",
        "veth-a@if2",
        "lo",
        "veth-b@if2",
    ]


def test_terminated_run_takes_its_command_and_its_lab_with_it(environment):
    running = subprocess.Popen(
        [*IBWIRE, "run", "--", "sh", "-c", "echo $$; exec sleep 100"],
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert running.stdout.readline()

    running.terminate()
    running.communicate(timeout=PATIENCE)

    assert running.returncode == 128 + signal.SIGTERM


def test_killed_run_takes_its_command_and_its_lab_with_it(environment):
    running = subprocess.Popen(
        [*IBWIRE, "run", "--", "sh", "-c", "echo $$; exec sleep 100"],
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert running.stdout.readline()

    running.kill()
    running.communicate(timeout=PATIENCE)  # until the command has closed its output too
    sockets = Path(environment["XDG_RUNTIME_DIR"])
    end = time.monotonic() + PATIENCE
    while any(sockets.rglob("*")) and time.monotonic() < end:
        time.sleep(0.01)

    assert Lab.find() is None


def test_unknown_name_and_impossible_options_are_explained(environment):
    missing = lab(environment, "run", "--name", "nobody", "true")
    name = lab(environment, "up", "--name", "../x")
    mtu = lab(environment, "up", "--mtu", "100")

    assert (missing.returncode, missing.stderr.count("nobody")) == (1, 2)
    assert "invalid name" in name.stderr
    assert mtu.returncode == 2


@pytest.mark.skipif(UNSHARE is None, reason="unshare (util-linux) not installed")
def test_lab_works_without_root_and_capabilities(environment):
    """Such a user is made here, by a user namespace in which this one is number 1000."""
    other = [UNSHARE, "--user", "--map-user=1000", "--map-group=1000"]
    try:
        subprocess.run([*other, "true"], capture_output=True, timeout=PATIENCE, check=True)
    except subprocess.CalledProcessError as error:
        pytest.skip(f"no user namespace: {error.stderr.decode()}")

    outside = subprocess.run([*other, "grep", "CapEff", "/proc/self/status"], **PIPED)
    inside = lab(environment, "run", "grep", "CapEff", "/proc/self/status", before=other)

    assert int(outside.stdout.split()[1], 16) == 0
    assert inside.returncode == 0, inside.stderr
    assert int(inside.stdout.split()[1], 16) & CAP_NET_RAW
