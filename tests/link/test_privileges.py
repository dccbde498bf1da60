"""Root gives up its capabilities, in processes of their own: nothing gives them back."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from ibwire.link.privileges import CAP_NET_BIND_SERVICE, effective_capabilities

SYS_ADMIN, DAC_OVERRIDE = 21, 1

is_root = pytest.mark.skipif(
    not effective_capabilities() >> DAC_OVERRIDE & 1, reason="this process has no CAP_DAC_OVERRIDE"
)


def run(script: str, *arguments: object) -> str:
    """The output of a program that may call `drop_capabilities` and `caps`."""
    head = (
        "import os, socket, subprocess, sys, threading\n"
        "from ibwire.link.privileges import *\n"
        "from ibwire.link.privileges import effective_capabilities as caps\n"
    )
    command = [sys.executable, "-c", head + script, *map(str, arguments)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout.strip()


@is_root
def test_nothing_is_left_but_low_ports() -> None:
    assert run("drop_capabilities(); print(caps())") == str(1 << CAP_NET_BIND_SERVICE)
    assert run("drop_capabilities(()); print(caps())") == "0"


@is_root
def test_a_program_that_is_started_gets_none_back() -> None:
    """Root gets all by execve, and setuid programs do, without PR_SET_NO_NEW_PRIVS."""
    show = "subprocess.check_output(['grep', 'Cap', '/proc/self/status'], text=True)"
    script = f"drop_capabilities(()); print({show})"

    assert {line.split()[1] for line in run(script).splitlines()} == {"0" * 16}


@is_root
def test_a_packet_socket_works_on_and_no_other_can_be_opened() -> None:
    script = """
held = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
held.bind(("lo", 0))
drop_capabilities()
held.send(bytes(60))
try:
    socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
except PermissionError:
    print("refused")
"""
    assert run(script) == "refused"


@is_root
def test_files_of_others_are_closed_to_it_and_open_ones_are_not(tmp_path: Path) -> None:
    script = """
place = sys.argv[1]
os.chown(place, 12345, 12345)
os.chmod(place, 0o755)
held = open(place + "/before", "w")
drop_capabilities()
held.write("x")
held.close()
try:
    open(place + "/after", "w")
except PermissionError:
    print("refused")
"""
    assert run(script, tmp_path) == "refused"
    assert (tmp_path / "before").read_text() == "x"


@is_root
def test_threads_that_are_started_later_have_none_either() -> None:
    script = """
drop_capabilities(())
def show():
    print(caps(f"self/task/{threading.get_native_id()}"))
thread = threading.Thread(target=show)
thread.start()
thread.join()
"""
    assert run(script) == "0"


def test_without_capabilities_nothing_happens() -> None:
    assert run("drop_capabilities(()); drop_capabilities(); print(caps())") == "0"
