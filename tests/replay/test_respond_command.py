"""`ibwire respond`: what it prints, and how it ends."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from ibwire.capture import PcapWriter, open_capture
from ibwire.cli import main
from ibwire_layers.packet import CrcStatus, Packet
from replay.recording import records_of


def run(*arguments: object) -> Result:
    return CliRunner().invoke(main, ["respond", *map(str, arguments)])


def objects(*arguments: object) -> Any:
    return [json.loads(line) for line in run("--json", *arguments).stdout.splitlines()]


def test_equal_is_exit_status_0(captures: Path) -> None:
    result = run(captures / "rnr-late-recv.pcap")

    assert result.exit_code == 0
    first, *inferred = result.stdout.splitlines()
    assert first == (
        "10.77.0.1 qp 0xac > 10.77.0.2 qp 0x77: 12 requests, 12 responses, 12 of 12 responses equal"
    )
    assert inferred[0].startswith("  inferred: receive queue empty, RNR timer code 18 (9 times")


def test_what_cannot_be_used_is_said(captures: Path, tmp_path: Path) -> None:
    records = records_of(captures / "drop-one-middle.b.pcap")
    with PcapWriter(tmp_path / "cut.pcap") as writer:
        for record in records[12:]:
            size = 128 if record.number == 14 else len(record.data)
            writer.write(record.data[:size], record.time_ns, wire_len=len(record.data))

    result = run(tmp_path / "cut.pcap")

    assert (
        "  left out: request in the middle of a message whose start is not in the capture "
        "(12 times: packets 1, 3, 4, 5, 6, 8, 9, 10, ...)"
    ) in result.stdout
    assert "1 packet is cut by the snap length and left out" in result.stderr


def test_differences_are_exit_status_1(captures: Path) -> None:
    result = run("--profile", "spec", captures / "rnr-multi-packet.pcap")

    assert result.exit_code == 1
    assert "packet 14: packet: recorded RC_ACKNOWLEDGE" in result.stdout


@pytest.mark.parametrize(
    "arguments",
    [
        ("--profile", "none"),
        ("--as", "switch"),
        ("--qpn", "many"),
        ("--qpn", "0x1000000"),
        ("--qpn", "0x999"),
        ("-o", "out.txt"),
        ("--as", "requester", "--requests", "other.pcap"),
    ],
)
def test_wrong_usage_is_exit_status_2(captures: Path, arguments: Any) -> None:
    assert run(captures / "rnr-late-recv.pcap", *arguments).exit_code == 2


def test_unreadable_is_exit_status_3_after_what_was_readable(
    captures: Path, tmp_path: Path
) -> None:
    whole = (captures / "rnr-late-recv.pcap").read_bytes()
    (tmp_path / "cut.pcap").write_bytes(whole[:-10])

    cut = run(tmp_path / "cut.pcap")
    none = run(tmp_path / "none.pcap")

    assert (cut.exit_code, none.exit_code) == (3, 3)
    assert "12 of 12 responses equal" in cut.stdout
    assert "none.pcap" in none.stderr


def test_json_has_one_object_a_connection(captures: Path) -> None:
    first, second = objects(captures / "cm-rping.pcap")

    assert (first["dst_qpn"], second["dst_qpn"]) == (0x5E, 0x92)
    assert first["requests"] == first["responses"] == first["equal"] == 20
    assert second["requests"] == second["responses"] == second["equal"] == 40
    assert first["differences"] == second["differences"] == []
    assert {"what", "count", "packets"} == set(second["inferred"][0])


def test_json_names_packet_field_and_both_values(captures: Path) -> None:
    (connection,) = objects("--profile", "spec", captures / "rnr-multi-packet.pcap")

    assert connection["differences"][0]["packet"] == 14
    assert connection["differences"][0]["field"] == "packet"
    assert "NAK PSN_SEQUENCE_ERROR" in connection["differences"][0]["recorded"]
    assert connection["differences"][0]["emulated"] is None


def test_one_queue_pair(captures: Path) -> None:
    (connection,) = objects("--qpn", "0x92", captures / "cm-rping.pcap")

    assert connection["dst_qpn"] == 0x92


def test_a_requester_can_be_emulated(captures: Path) -> None:
    (connection,) = objects("--as", "requester", captures / "rcx-all-ops.pcap")

    assert connection["as"] == "requester"
    assert connection["equal"] == connection["requests"] == 25


def test_a_capture_without_reliable_connections_is_equal_and_says_so(captures: Path) -> None:
    result = run(captures / "ud-pingpong.pcap")

    assert (result.exit_code, result.stdout) == (0, "")
    assert "no requests of a reliable connection" in result.stderr


@pytest.mark.parametrize("name", ["rcx-all-ops.pcap", "rcx-ipv6.pcap", "vlan-rc-pingpong.pcap"])
def test_the_output_holds_both_sides_with_good_icrcs(
    captures: Path, tmp_path: Path, name: str
) -> None:
    output = tmp_path / "out.pcapng"
    assert run(captures / name, "-o", output).exit_code == 0
    total = sum(c["requests"] + c["responses"] for c in objects(captures / name))

    with open_capture(output) as reader:
        records = list(reader.records())
    packets = [Packet.parse(record.data, record.link_type) for record in records]
    assert len(packets) == total
    assert {packet.icrc_status() for packet in packets} == {CrcStatus.GOOD}


def test_what_was_emulated_replays_equal_again(captures: Path, tmp_path: Path) -> None:
    output = tmp_path / "out.pcapng"
    run(captures / "drop-one-last.b.pcap", "-o", output)
    (connection,) = objects(output)

    assert connection["equal"] == connection["responses"] == 10
    assert connection["differences"] == []


def test_an_output_that_cannot_be_written_is_exit_status_1(captures: Path, tmp_path: Path) -> None:
    result = run(captures / "rcx-all-ops.pcap", "-o", tmp_path / "no" / "out.pcapng")

    assert result.exit_code == 1
