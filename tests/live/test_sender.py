"""Frames of ibwire on a veth pair, as the other side receives them.

Live tests: they take real time, some seconds in all.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import pytest

from ibwire.lab.veth import Lab
from live.sides import PATIENCE, UNPRIVILEGED, inside, start

INJECTOR = str(Path(__file__).parent / "injector.py")
ROCEV2_V4 = "0800"
EXPERIMENT = "88b5"

SET_GRO = """
import ctypes, fcntl, socket, struct
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
    value = (ctypes.c_uint32 * 2)(0x2C, {on})  # ETHTOOL_SGRO
    fcntl.ioctl(asking, 0x8946, struct.pack("@16sP16x", b"veth-b", ctypes.addressof(value)))
"""

LOOK_AROUND = """
import subprocess, sys
from ibwire.base.errors import LinkError
from ibwire.traffic.safety import injectable_interface
def look():
    try:
        print(injectable_interface("veth-a").name)
    except LinkError as error:
        print(error)
look()
for each in {commands}:
    done = subprocess.run(["ip", *each.split()], capture_output=True, text=True)
    if done.returncode:
        sys.exit(print("no", each, done.stderr))
look()
print(injectable_interface("veth-a", allow_default_route=True).name)
"""


@pytest.fixture
def receiver(lab, started):
    """Records what arrives at side b; called, it returns the frames."""
    processes = []

    def begin(**wanted):
        process = start(lab, started, "b", INJECTOR, "receive", json.dumps(wanted))
        assert json.loads(process.stdout.readline()) == {"ready": True}
        processes.append(process)

        def end():
            return json.loads(process.communicate("over\n", timeout=PATIENCE)[0])

        return end

    return begin


def sender(lab, started, **wanted):
    """Starts sending on side a."""
    return start(lab, started, "a", INJECTOR, "send", json.dumps(wanted))


def running(process):
    said = json.loads(process.stdout.readline())
    assert said == {"running": True}, said


def report(process):
    output, _ = process.communicate(timeout=PATIENCE)
    return json.loads(output.splitlines()[-1])


def test_every_frame_arrives_in_order_and_byte_for_byte(lab, started, receiver):
    end = receiver(only=EXPERIMENT)

    said = report(sender(lab, started, source="random", count=3000, longest=9014))
    seen = end()

    assert (said["ended"], said["error"]) == ("count", None)
    assert said["accepted"] == seen["count"] == 3000
    assert said["digest"] == seen["digest"]
    assert said["lost"] == 0
    # The kernel may have sent frames meanwhile.
    assert 3000 <= said["device"] <= 3010


@pytest.mark.parametrize(
    ("mtu", "size"), [(256, 519), (1024, 2055), (1024, 1024)], ids=["short", "long", "equal"]
)
def test_live_frames_are_those_that_would_have_been_built(lab, started, receiver, mtu, size):
    """The PSN passes its end on the way."""
    inside(lab, SET_GRO.format(on=1), "b")
    end = receiver(only=ROCEV2_V4)

    process = sender(lab, started, source="cycle", back_end="live", count=3000, mtu=mtu, size=size)
    said = report(process)
    seen = end()
    inside(lab, SET_GRO.format(on=0), "b")

    if "CAP_BPF" in str(said["error"]) or "has no live frames" in str(said["error"]):
        pytest.skip(said["error"])
    assert said["error"] is None
    assert said["accepted"] == seen["count"] == 3000
    assert said["digest"] == seen["digest"]
    assert said["lost"] == 0


def test_live_frames_without_a_polling_receiver_are_reported_lost(lab, started):
    process = sender(lab, started, source="cycle", back_end="live", count=1000, mtu=256)
    said = report(process)

    if "CAP_BPF" in str(said["error"]) or "has no live frames" in str(said["error"]):
        pytest.skip(said["error"])
    assert said["accepted"] == 1000
    assert f"{said['lost']} of 1000 frames built in the kernel were not sent" in said["error"]


def test_live_frames_end_at_a_signal_and_are_counted(lab, started):
    inside(lab, SET_GRO.format(on=1), "b")
    process = sender(
        lab, started, source="cycle", back_end="live", count=10**9, mtu=256, seconds=PATIENCE
    )
    running(process)
    time.sleep(0.5)
    process.send_signal(signal.SIGINT)
    said = report(process)
    inside(lab, SET_GRO.format(on=0), "b")

    if "CAP_BPF" in str(said["error"]) or "has no live frames" in str(said["error"]):
        pytest.skip(said["error"])
    assert (said["ended"], said["signal"]) == ("signal", signal.SIGINT)
    assert said["accepted"] > 0
    assert abs(said["device"] - said["accepted"]) <= 10


@pytest.mark.parametrize(
    ("wanted", "reason"),
    [
        ({"source": "numbered"}, "needs the capability CAP_NET_RAW"),
        ({"source": "cycle", "back_end": "live", "mtu": 256}, "needs CAP_BPF and CAP_NET_ADMIN"),
    ],
)
def test_missing_privilege_is_reported(lab, started, wanted, reason):
    wanted = json.dumps({"count": 1, **wanted})
    said = report(start(lab, started, "a", "-c", UNPRIVILEGED, INJECTOR, "send", wanted))

    assert reason in said["error"]


def test_live_frames_longer_than_a_page_are_refused(lab, started):
    said = report(sender(lab, started, source="cycle", back_end="live", count=10, mtu=4096))

    assert "live frames have 3400 at most" in said["error"]


def test_frame_that_does_not_fit_the_mtu_ends_the_run(lab, started):
    said = report(sender(lab, started, source="random", count=3000, longest=20_000))

    assert said["ended"] == "error"
    assert "does not fit its MTU of 9000, which allows 9014" in said["error"]
    assert f"; {said['accepted']} frames were sent before" in said["error"]


def test_link_that_goes_down_ends_the_run_with_counts(lab, started):
    process = sender(lab, started, source="numbered", rate="1kpps", seconds=10)
    running(process)

    inside(lab, "import subprocess; subprocess.run('ip link set veth-a down'.split())")
    said = report(process)
    inside(lab, "import subprocess; subprocess.run('ip link set veth-a up'.split())")

    assert said["ended"] == "error"
    assert "has gone down" in said["error"]
    assert f"; {said['accepted']} frames" in said["error"]


def test_interface_that_is_down_is_refused(lab, started):
    inside(lab, "import subprocess; subprocess.run('ip link set veth-a down'.split())")
    said = report(sender(lab, started, source="numbered", count=1))
    inside(lab, "import subprocess; subprocess.run('ip link set veth-a up'.split())")

    assert said["error"] == "veth-a: is down: ip link set veth-a up"


@contextmanager
def slow(lab, shape):
    """Side a sends no faster than a token bucket filter lets it."""
    if shutil.which("tc") is None:
        pytest.skip("tc not installed")
    script = "import subprocess; print(subprocess.run('tc qdisc {}'.split()).returncode)"
    if inside(lab, script.format(f"add dev veth-a root tbf {shape}")) != "0":
        pytest.skip("the kernel has no token bucket filter (sch_tbf)")
    try:
        yield
    finally:
        inside(lab, script.format("del dev veth-a root"))


def test_queue_that_is_full_is_waited_for_and_loses_nothing(lab, started, receiver):
    end = receiver(only=EXPERIMENT)

    with slow(lab, "rate 80mbit burst 20kb limit 30kb"):
        said = report(sender(lab, started, source="random", count=1000, longest=1514))
        time.sleep(0.5)  # what the queue still holds, on a busy machine
    seen = end()

    assert said["error"] is None
    assert said["waits"].keys() <= {"queue full", "buffer full"}
    assert sum(said["waits"].values()) > 0
    assert said["digest"] == seen["digest"]


def test_queue_that_stays_full_ends_the_run(lab, started):
    with slow(lab, "rate 8bit burst 2kb limit 3kb"):
        said = report(sender(lab, started, source="numbered", seconds=PATIENCE))

    assert said["ended"] == "error"
    assert (
        f"accepts no more frames: queue full for 2 s after {said['accepted']} frames"
        in (said["error"])
    )


def test_rate_is_held(lab, started, receiver):
    end = receiver(only=EXPERIMENT)

    said = report(sender(lab, started, source="numbered", rate="2kpps", count=2000))

    assert end()["numbers"] == list(range(2000))
    assert said["held"]


def test_rate_beyond_reach_is_not_held(lab, started):
    said = report(sender(lab, started, source="numbered", rate="1Gpps", seconds=0.3))

    assert not said["held"]


# The end.


def test_final_frame_leaves_when_the_time_is_over(lab, started, receiver):
    end = receiver(only=EXPERIMENT)

    said = report(
        sender(lab, started, source="numbered", rate="1kpps", seconds=0.2, count=500, final=True)
    )
    seen = end()

    assert (said["ended"], said["final"]) == ("time", 1)
    assert (seen["count"], seen["ends"]) == (said["accepted"] + 1, [-1])


def test_final_frame_stays_when_all_packets_have_left(lab, started, receiver):
    end = receiver(only=EXPERIMENT)

    said = report(sender(lab, started, source="numbered", count=500, final=True))
    seen = end()

    assert (said["ended"], said["accepted"], said["final"]) == ("count", 500, 0)
    assert (seen["count"], seen["ends"]) == (500, [])


def test_final_frame_leaves_when_the_source_fails(lab, started, receiver):
    end = receiver(only=EXPERIMENT)

    process = sender(lab, started, source="numbered", count=500, final=True, fails_after=100)
    said = report(process)
    seen = end()

    assert said["error"] == "frame: 100 is not one that can be built"
    assert (seen["count"], seen["ends"]) == (101, [-1])


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_final_frame_leaves_at_a_signal(lab, started, receiver, number):
    end = receiver(only=EXPERIMENT)
    process = sender(lab, started, source="numbered", rate="1kpps", seconds=PATIENCE, final=True)
    running(process)
    time.sleep(0.5)  # the run listens to signals once its watchdog has begun

    process.send_signal(number)
    said = report(process)
    seen = end()

    assert (said["ended"], said["signal"]) == ("signal", number)
    assert seen["ends"] == [-1]
    assert seen["count"] == said["accepted"] + 1


def test_final_frame_leaves_when_all_processes_of_the_terminal_are_killed(lab, started, receiver):
    end = receiver(only=EXPERIMENT)
    wanted = json.dumps({"source": "numbered", "rate": "1kpps", "seconds": PATIENCE, "final": True})
    process = subprocess.Popen(
        lab.command("a", [sys.executable, INJECTOR, "send", wanted]),
        env=lab.environment(),
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    started.append(process)
    running(process)
    time.sleep(0.5)

    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    time.sleep(0.5)  # the watchdog acts
    seen = end()

    assert seen["ends"] == [-1]
    assert seen["count"] > 1


# Where test traffic may go.


@pytest.mark.parametrize(
    ("commands", "where"),
    [
        (["route add default via 10.0.0.2"], "it"),
        (["-6 route add default via fd00::a00:2"], "it"),
        (["route add default nexthop via 10.0.0.2 nexthop via 10.0.0.3"], "it"),
        (
            [
                "link add link veth-a name upper type macvlan",
                "addr add 10.1.0.1/24 dev upper",
                "link set upper up",
                "route add default via 10.1.0.2",
            ],
            "upper, which is built on it",
        ),
        (
            [
                "link add bridge0 type bridge",
                "link set veth-a master bridge0",
                "addr add 10.2.0.1/24 dev bridge0",
                "link set bridge0 up",
                "route add default via 10.2.0.2",
            ],
            "bridge0, which is built on it",
        ),
    ],
    ids=["v4", "v6", "two ways", "macvlan", "bridge"],
)
def test_interface_below_the_default_route_is_refused_unless_allowed(lab, commands, where):
    with Lab.create() as own:
        said = inside(own, LOOK_AROUND.format(commands=commands)).splitlines()

    if any(line.startswith("no ") for line in said):
        pytest.skip(said[-1])
    refusal = (
        f"veth-a: refused: the default route of this machine uses {where}; test traffic "
        "there can cut off the machine and reaches foreign hosts (--default-route-too allows it)"
    )
    assert said == ["veth-a", refusal, "veth-a"]


def test_default_route_on_another_interface_is_allowed(lab):
    commands = [
        "link add other type veth peer name far",
        "link set other up",
        "link set far up",
        "addr add 10.3.0.1/24 dev other",
        "route add default via 10.3.0.2",
    ]
    with Lab.create() as own:
        said = inside(own, LOOK_AROUND.format(commands=commands)).splitlines()

    assert said == ["veth-a"] * 3
