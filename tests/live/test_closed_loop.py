"""`ibwire inject` that waits for responses, and an emulated responder on the other side.

Live tests: they take real time, a second or two each.
"""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from live.sides import PATIENCE, start

ANSWERER = "tests/live/answerer.py"
MESSAGES = 500


@pytest.fixture
def inject(lab, started):
    def inject(*arguments, side="a"):
        there = {"a": "10.0.0.2", "b": "10.0.0.1"}[side]
        command = [sys.executable, "-m", "ibwire", "inject", "--dev", f"veth-{side}"]
        process = subprocess.Popen(
            lab.command(side, [*command, "--json", "--dst", there, *map(str, arguments)]),
            env=lab.environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        return process

    return inject


@pytest.fixture
def answerer(lab, started, request):
    def answerer(**wanted):
        path = request.config.rootpath / ANSWERER
        process = start(lab, started, "b", str(path), json.dumps(wanted))
        return process, json.loads(process.stdout.readline())

    return answerer


def result(process):
    """Its output, exit status, and messages."""
    output, complaint = process.communicate(timeout=PATIENCE)
    return json.loads(output), process.returncode, complaint


def received(process):
    """What came, and how many frames were lost on purpose."""
    output, _ = process.communicate("over\n", timeout=PATIENCE)
    told = json.loads(output)
    return told["order"], told["faults"]


def test_despite_loss_in_both_directions_all_messages_arrive_once_and_in_order(
    inject, answerer, tmp_path
):
    faults = tmp_path / "faults.toml"
    faults.write_text("seed = 3\n[[in]]\nloss = 0.02\n[[out]]\nloss = 0.02\n")
    peer, _ = answerer(qpns=[17, 18], psn=0xFFFFF0, faults=str(faults))

    report, status, _ = result(
        inject(
            "--verb",
            "send",
            "--qpn",
            "0x11,0x12",
            "--psn",
            "0xfffff0",
            "--size",
            2500,
            "--payload",
            "counter",
            "--count",
            2 * 3 * MESSAGES,
            "--window",
            64,
            "--on-nak",
            "goback",
        )
    )

    order, lost = received(peer)
    # Three packets a message, and the first eight bytes number them for each queue pair.
    expected = [["SUCCESS", 2500, 3 * number] for number in range(MESSAGES)]
    assert order == {"17": expected, "18": expected}
    assert lost > 20
    assert status == 0
    pairs = report["responses"]["queue_pairs"]
    assert [pair["acknowledged"] for pair in pairs] == [3 * MESSAGES] * 2
    assert [pair["missing"] for pair in pairs] == [0, 0]
    assert all(pair["naks"]["PSN_SEQUENCE_ERROR"] and pair["retransmitted"] for pair in pairs)
    assert report["accepted"] == sum(pair["sent"] + pair["retransmitted"] for pair in pairs)


def test_listening_only_reports_unacknowledged_packets(inject, answerer, tmp_path):
    faults = tmp_path / "faults.toml"
    faults.write_text("[[in]]\ndrop = { nth = 301 }\n")
    peer, _ = answerer(qpns=[17], psn=0, faults=str(faults))

    report, status, _ = result(
        inject("--verb", "send", "--qpn", 17, "--count", 1000, "--rate", "5kpps", "--listen")
    )

    (pair,) = report["responses"]["queue_pairs"]
    assert status == 0
    assert (pair["sent"], pair["acknowledged"], pair["missing"]) == (1000, 300, 700)
    assert pair["highest_psn"] == 299
    assert pair["naks"] == {"PSN_SEQUENCE_ERROR": 1}
    assert len(received(peer)[0]["17"]) == 300


def test_a_window_that_never_opens_is_an_error(inject):
    report, status, complaint = result(
        inject("--qpn", 17, "--count", 1000, "--window", 10, "--stall-timeout", "500ms")
    )

    assert status == 1
    assert "QP 0x11: no acknowledgement of PSN 0 for 0.5 s; received no NAK" in complaint
    assert (report["sent"], report["ended"]) == (10, "error")


def test_a_cnp_slows_the_sender(inject):
    slowed = inject(
        "--qpn",
        17,
        "--rate",
        "10kpps",
        "--time",
        "3s",
        "--on-cnp",
        "half",
        "--recovery",
        "100s",
    )
    slowed.stderr.readline()  # it prints its plan first
    result(inject("--verb", "cnp", "--qpn", 17, "--count", 1, side="b"))

    report, status, _ = result(slowed)
    (pair,) = report["responses"]["queue_pairs"]

    assert status == 0
    assert pair["cnps"] == 1
    assert 15_000 < pair["sent"] < 28_000
