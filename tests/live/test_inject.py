"""`ibwire inject` on a veth pair: the bytes of a capture, the report, the end of a storm.

Live tests: they take real time, a second or two each.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from ibwire.capture import open_capture
from ibwire.traffic.pause import control_frame
from live.sides import PATIENCE, start

INJECT = (sys.executable, "-m", "ibwire", "inject")

LISTEN = """
import select, socket, sys
kind = int(sys.argv[1], 16)
with socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(kind)) as heard:
    heard.setsockopt(socket.SOL_SOCKET, 33, 1 << 25)  # SO_RCVBUFFORCE
    heard.bind(("veth-b", kind))
    print("ready", flush=True)
    while True:
        ready, _, _ = select.select([heard, sys.stdin], [], [])
        if heard in ready:
            frame = heard.recv(1 << 16)
            if kind != 0x800 or frame[36:38] == b"\\x12\\xb7":
                print(frame.hex(), flush=True)
        else:
            break
"""


class Heard:
    """What arrives at side b of an EtherType."""

    def __init__(self, lab, started, kind):
        self.process = start(lab, started, "b", "-c", LISTEN, kind)
        assert self.process.stdout.readline() == "ready\n"

    def one(self):
        """The next frame, which is waited for."""
        return bytes.fromhex(self.process.stdout.readline())

    def rest(self):
        """Everything that has come since."""
        output, _ = self.process.communicate("over\n", timeout=PATIENCE)
        return [bytes.fromhex(line) for line in output.split()]


@pytest.fixture
def listener(lab, started):
    return lambda kind: Heard(lab, started, kind)


def inject(lab, started, *arguments):
    process = subprocess.Popen(
        lab.command("a", [*INJECT, *map(str, arguments)]),
        env=lab.environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    started.append(process)
    return process


def ended(process):
    """Its standard output and standard error; the exit status stays in the process."""
    return process.communicate(timeout=PATIENCE)


def run(lab, side, *command):
    """What a command prints."""
    return subprocess.run(
        lab.command(side, list(command)),
        env=lab.environment(),
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=True,
    ).stdout.strip()


def test_the_same_bytes_leave_as_are_written(lab, started, listener, tmp_path):
    path = tmp_path / "out.pcap"
    form = ["--dst", "10.0.0.2", "--qpn", "0x11*2,0x12", "--size", "2500", "--psn", "0xfffff0"]
    form += ["--ce", "10%", "--ack-every", "3", "--payload", "random", "--count", "500"]
    heard = listener("800")

    sent = inject(lab, started, "--dev", "veth-a", *form, "--rate", "20kpps", "--json")
    report = json.loads(ended(sent)[0])
    written = inject(lab, started, "--dst-mac", "02:00:0a:00:00:02", "--src", "10.0.0.1",
                     "-o", path, *form)  # fmt: skip
    ended(written)

    with open_capture(path) as capture:
        frames = [record.data for record in capture.records()]
    assert (sent.returncode, written.returncode) == (0, 0)
    assert (report["sent"], report["accepted"], report["lost"]) == (500, 500, 0)
    assert [each[12:] for each in heard.rest()] == [each[12:] for each in frames]


def test_without_a_word_about_them_addresses_are_those_of_the_link(lab, started, listener):
    macs = {
        side: run(lab, side, "ip", "-br", "link", "show", f"veth-{side}").split()[2]
        for side in "ab"
    }
    heard = listener("800")

    ended(
        inject(lab, started, "--dev", "veth-a", "--dst", "10.0.0.2", "--qpn", "1", "--count", "1")
    )

    (frame,) = heard.rest()
    assert frame[:6].hex(":") == macs["b"]
    assert frame[6:12].hex(":") == macs["a"]
    assert frame[26:34].hex() == "0a000001" + "0a000002"


def test_a_rate_that_cannot_be_held_is_an_error(lab, started):
    process = inject(
        lab,
        started,
        "--dev",
        "veth-a",
        "--dst",
        "10.0.0.2",
        "--qpn",
        "1",
        "--time",
        "300ms",
        "--rate",
        "100Mpps",
    )
    output, complaint = ended(process)

    assert process.returncode == 1
    assert "the rate was not reached" in complaint
    assert "requested 100 Mpps" in output


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_storm_ends_with_a_resume_however_it_ends(lab, started, listener, number):
    heard = listener("8808")
    process = inject(lab, started, "pfc", "--dev", "veth-a", "--prio", "3", "--time", "1000s",
                     "--refresh", "10ms")  # fmt: skip
    frames = [heard.one(), heard.one(), heard.one()]
    process.send_signal(number)
    process.wait(PATIENCE)
    while frames[-1] != control_frame({3: 0}, frames[0][6:12]):
        frames.append(heard.one())

    frames += heard.rest()
    resume = control_frame({3: 0}, frames[0][6:12])
    assert len(frames) > 2
    assert frames[-1] == resume
    assert resume not in frames[:-1]
    assert process.returncode == (-9 if number == signal.SIGKILL else 128 + number)


def test_a_storm_that_is_over_ends_with_one_resume(lab, started, listener):
    heard = listener("8808")

    ended(inject(lab, started, "pfc", "--dev", "veth-a", "--prio", "3", "--time", "50ms",
                 "--refresh", "10ms"))  # fmt: skip

    frames = heard.rest()
    resume = control_frame({3: 0}, frames[0][6:12])
    assert len(frames) == 6
    assert [number for number, each in enumerate(frames) if each == resume] == [5]


def test_an_interface_with_the_default_route_is_refused(lab, started):
    run(lab, "a", "ip", "route", "add", "default", "via", "10.0.0.2")
    try:
        process = inject(
            lab, started, "--dev", "veth-a", "--dst", "10.0.0.2", "--qpn", "1", "--count", "1"
        )
        _, complaint = ended(process)
    finally:
        run(lab, "a", "ip", "route", "del", "default")

    assert process.returncode == 1
    assert "default route" in complaint


def test_replay_reaches_the_new_address(lab, started, listener):
    capture = Path(__file__).parents[2] / "captures" / "rcx-all-ops.pcap"
    heard = listener("800")

    process = inject(
        lab,
        started,
        "replay",
        capture,
        "--dev",
        "veth-a",
        "--where",
        "ip.src == 10.77.0.1",
        "--address",
        "10.77.0.1=10.0.0.1",
        "--address",
        "10.77.0.2=10.0.0.2",
        "--rate",
        "1kpps",
    )
    ended(process)

    assert process.returncode == 0
    assert len(heard.rest()) == 25
