"""Recordings as seeds: what the captures in captures/ have, as steps that fit every connection."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from ibwire.base.errors import CaptureError
from ibwire.cli.fuzz import command
from ibwire.fuzz.campaign import Campaign
from ibwire.fuzz.case import Packet, Post, Role, step_text
from ibwire.fuzz.targets.emulated_device import SIZE, Emulation
from ibwire.fuzz.targets.emulator import EmulatorTestbed
from ibwire.fuzz.vocabulary.queue_pair.recorded_traffic import read_seeds, seeded
from ibwire.rc.work import WROpcode

A, B = "10.77.0.1", "10.77.0.2"
"""In the captures A asks and B answers."""


def test_requests_become_messages(captures: Path) -> None:
    """rcx-all-ops: every opcode of an RC connection, in this order (captures/README.md)."""
    seeds = read_seeds(str(captures / "rcx-all-ops.pcap"), B)

    texts = [[step_text(packet) for packet in message] for message in seeds.messages]
    assert (seeds.mtu, seeds.posts) == (1024, [])
    assert texts[0] == ["SEND_ONLY expected len=100"]
    assert texts[1] == ["SEND_ONLY_WITH_IMMEDIATE expected immdt.imm_data=0xc0de0001"]
    assert texts[3] == [
        "WRITE_FIRST expected bth.ack_req=0 reth.va=va reth.dma_len=5000 len=1024",
        *["WRITE_MIDDLE expected bth.ack_req=0 len=1024"] * 3,
        "WRITE_LAST expected len=904",
    ]
    assert texts[5] == ["READ_REQUEST expected reth.va=va reth.dma_len=8192"]


def test_the_same_recording_has_the_posts_of_the_other_side(captures: Path) -> None:
    seeds = read_seeds(str(captures / "rcx-all-ops.pcap"), A)

    assert seeds.messages == []
    assert seeds.posts[:4] == [
        Post(int(WROpcode.SEND), 100),
        Post(int(WROpcode.SEND_WITH_IMM), 0),
        Post(int(WROpcode.SEND), 64),
        Post(int(WROpcode.RDMA_WRITE), 5000),
    ]


def test_a_message_with_a_gap_is_whole_and_what_came_early_is_there_too(captures: Path) -> None:
    """PSN 103 of a WRITE that is 100 to 109 is lost; 103 to 109 come again; then a SEND."""
    first, *early, last = read_seeds(str(captures / "drop-one-middle.b.pcap"), B).messages

    assert [step_text(packet).split()[0] for packet in first] == [
        "WRITE_FIRST",
        *["WRITE_MIDDLE"] * 6,
        "WRITE_LAST",
    ]
    assert first[0].fields["reth.dma_len"] == 7 * 1024 + 784
    assert [packet.psn for (packet,) in early] == [("expected", i) for i in range(1, 7)]
    assert [step_text(packet) for packet in last] == ["SEND_ONLY expected len=10"]


def test_what_was_asked_again_counts_from_what_is_expected(captures: Path) -> None:
    """drop-read-response: after half of it is lost, the rest of a READ is requested again."""
    (first,), (again,) = read_seeds(str(captures / "drop-read-response.a.pcap"), B).messages

    assert first.psn == ("expected", 0)
    assert again.opcode == first.opcode
    assert -8 <= again.psn[1] < 0


@pytest.mark.parametrize("name", ["rc-pingpong.pcap", "rcx-all-ops.pcap", "chaos.b.pcap"])
def test_every_place_and_length_fits_the_memory_of_a_case(captures: Path, name: str) -> None:
    for message in read_seeds(str(captures / name), B).messages:
        for packet in message:
            assert packet.length <= 4096
            place, length = packet.fields.get("reth.va"), packet.fields.get("reth.dma_len", 0)
            if isinstance(place, tuple):
                assert isinstance(length, int)
                assert 0 <= place[1] <= SIZE - length


@pytest.mark.slow
def test_recorded_traffic_is_right_and_the_operators_are_between(captures: Path) -> None:
    """Nothing is found in the reference itself; a known deviation of rxe is."""
    seeds = read_seeds(str(captures / "rc-pingpong.pcap"), B)

    assert list(Campaign(EmulatorTestbed(Emulation), seeded(seeds, 1, Role.BOTH)).run(700)) == []
    rxe = Campaign(
        EmulatorTestbed(lambda connection: Emulation(connection, "rxe")),
        seeded(seeds, 1, Role.BOTH),
        minimises=False,
    )
    about = "the payload of SENDs is not checked against position and path MTU"
    assert any(finding.about == about for finding in rxe.run(2000))


def test_cases_hold_what_was_recorded(captures: Path) -> None:
    """0xC0DE0001 is the immediate data of the recorded SEND."""
    seeds = read_seeds(str(captures / "rcx-all-ops.pcap"), B)
    make, reference = (
        seeded(seeds, 1, Role.RESPONDER),
        Emulation(seeded(seeds, 1, Role.BOTH)(0).connection),
    )
    steps = [make(number).next(reference) for number in range(300)]

    assert any(
        isinstance(step, Packet) and step.fields.get("immdt.imm_data") == 0xC0DE0001
        for step in steps
    )


def test_recording_without_requests_gives_no_seeds(captures: Path) -> None:
    assert read_seeds(str(captures / "drop-read-response.a.pcap"), A).roles(Role.RESPONDER) == ()


def test_a_capture_that_cannot_be_read_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(CaptureError, match=r"nowhere\.pcap: cannot be opened"):
        read_seeds(str(tmp_path / "nowhere.pcap"), A)


def test_command_begins_with_a_recording_and_resumes(captures: Path, tmp_path: Path) -> None:
    def fuzz(*arguments: object) -> int:
        return CliRunner().invoke(command, list(map(str, arguments))).exit_code

    capture, out = captures / "rc-pingpong.pcap", tmp_path / "out"
    seed = ("--seed-capture", capture, "--device", B, "--budget", "200")

    assert fuzz(*seed, "-o", out) == 0
    assert fuzz("--resume", out, "--budget", "200") == 0
    index = json.loads((out / "run.json").read_text())
    assert (index["packets"], index["capture"], index["device"]) == (400, str(capture), B)
    assert fuzz("--seed-capture", capture) == 2
    assert fuzz(*seed, "--role", "cm") == 2
    assert fuzz("--seed-capture", "nowhere.pcap", "--device", B) == 3
    only_reads = captures / "drop-read-response.a.pcap"
    assert fuzz("--seed-capture", only_reads, "--device", B, "--role", "requester") == 3
