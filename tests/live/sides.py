"""Processes on the two sides of a lab, and an exchange of messages between them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from ibwire.lab.veth import INTERFACES

PEER = Path(__file__).parent / "peer.py"
PATIENCE = 20
"""Seconds that anything may take here."""

UNPRIVILEGED = """
import ctypes, runpy, sys
class Header(ctypes.Structure): _fields_ = [('v', ctypes.c_uint32), ('p', ctypes.c_int)]
# capset(2) with _LINUX_CAPABILITY_VERSION_3 and no capability at all.
assert not ctypes.CDLL(None).capset(ctypes.byref(Header(0x20080522, 0)), (ctypes.c_uint32 * 6)())
sys.argv = sys.argv[1:]
sys.path[0] = sys.argv[0].rpartition("/")[0]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def start(lab, started, side, *arguments):
    process = subprocess.Popen(
        lab.command(side, [sys.executable, *arguments]),
        env=lab.environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    started.append(process)
    return process


def peer(lab, started, side, role, prefix=(), **wanted):
    """Start one of the two processes; returns it, and its first output."""
    wanted = {"role": role, "device": INTERFACES[side], "mtu": 1024, **wanted}
    process = start(lab, started, side, *prefix, str(PEER), json.dumps(wanted))
    return process, json.loads(process.stdout.readline())


def result(process, said=""):
    output, _ = process.communicate(said, timeout=PATIENCE)
    return json.loads(output)


def exchange(lab, started, a, b, *, sides="ab", prefix=(), **both):
    """WRITE, SEND and READ between two ends; checks that every byte arrives."""
    a, b = {**both, **a, "peer": b["address"]}, {**both, **b, "peer": a["address"]}
    responder, facts = peer(lab, started, sides[1], "respond", prefix, **b)
    memory = {"rkey": facts["rkey"], "iova": facts["iova"]}
    requester, _ = peer(lab, started, sides[0], "request", prefix, **a, **memory)
    asked, answered = result(requester), result(responder, "over")
    assert asked["statuses"] == ["SUCCESS"] * 3
    assert answered["statuses"] == ["SUCCESS"]
    assert (asked["read"], answered["sent"], answered["written"]) == (True, True, True)
    assert asked["counters"] == answered["counters"] == {}


def inside(lab, script, side="a"):
    """Run Python inside; what it prints."""
    done = subprocess.run(
        lab.command(side, [sys.executable, "-c", script]),
        env=lab.environment(),
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def result_line(process):
    output, _ = process.communicate(timeout=PATIENCE)
    return output.strip()
