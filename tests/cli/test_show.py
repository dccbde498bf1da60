"""`ibwire show`: one packet as a tree, as Construct and as Scapy read it."""

from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from examples import usual
from ibwire.cli import main


def show(*arguments: object) -> Any:
    result = CliRunner().invoke(main, ["show", *map(str, arguments)])
    assert result.exit_code == 0, result.output
    return result.stdout


def row(text: str, label: Any) -> Any:
    """The columns of a field: place, width, then the rest."""
    (line,) = (line for line in text.splitlines() if f" {label} " in line and ":" in line[:9])
    return line.split()


# The values of these packets are tshark's.


@pytest.mark.parametrize(
    ("label", "columns"),
    [
        ("OpCode", ["42:7", "8", "00000110", "OpCode", "0x06", "RC_RDMA_WRITE_FIRST"]),
        ("DestQP", ["47:7", "24", "000066", "DestQP", "0x000066"]),
        ("PSN", ["51:7", "24", "001003", "PSN", "4099"]),
        ("BECN", ["46:6", "1", ".0......", "BECN", "0"]),
        ("DMALen", ["66:7", "32", "00001388", "DMALen", "5000"]),
        ("ECN", ["15:1", "2", "......00", "ECN", "0", "not", "ECN-capable"]),
    ],
)
def test_every_field_has_place_width_bits_value_and_meaning(
    captures: Path, label: str, columns: list[str]
) -> None:
    text = show(captures / "rcx-all-ops.pcap", 16)

    assert row(text, label)[: len(columns)] == columns


def test_headers_name_their_bytes_and_their_section(captures: Path) -> None:
    text = show(captures / "rcx-all-ops.pcap", 16)

    assert "packet 16: 1795220249.187545000 s, 1098 bytes" in text
    assert "Base Transport Header, bytes 42-53  [IBA 9.2]" in text
    assert "RDMA Extended Transport Header, bytes 54-69  [IBA 9.3]" in text
    assert "payload, bytes 70-1093" in text
    assert "ICRC, bytes 1094-1097  [IBA 7.8.1]\n  3a517a5d good" in text


def test_a_bad_icrc_is_shown_with_the_right_one(captures: Path) -> None:
    """The capture's description: one frame was sent with a wrong ICRC."""
    found = CliRunner().invoke(
        main,
        [
            "dissect",
            "--where",
            "icrc.status == bad",
            "--fields",
            "frame.number",
            str(captures / "probe-odd-frames.pcap"),
        ],
    )
    number = found.stdout.split()[1]

    text = show(captures / "probe-odd-frames.pcap", number)

    assert " bad\n  should be " in text


def test_a_connection_request_is_taken_apart_to_its_addresses(captures: Path) -> None:
    text = show(captures / "cm-rping.pcap", 1)

    assert row(text, "MgmtClass")[-2:] == ["0x07", "COMM_MGT"]
    assert row(text, "AttributeID")[-1] == "0x0010"
    assert row(text, "LocalCommID")[-1] == "0xd934c02e"
    assert row(text, "LocalQPN")[-1] == "0x000092"
    assert row(text, "StartingPSN")[-1] == str(0xFC17B7)
    assert row(text, "ServiceID")[-1] == "0x0000000001061c06"  # RDMA_PS_TCP, port 7174
    assert row(text, "SourceIP")[-1] == "::a4d:1"  # 10.77.0.1
    assert row(text, "DestinationIP")[-1] == "::a4d:2"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("view", "parts"),
    [
        ("--construct", ["bth.opcode = 0x06", "reth.va", "0x0a4d0001"]),
        ("--scapy", ["###[ BTH ]###", "psn       = 4099", "dma_len   = 5000"]),
    ],
)
def test_other_views(captures: Path, view: str, parts: list[str]) -> None:
    text = show(captures / "rcx-all-ops.pcap", 16, view)

    assert all(part in text for part in parts)


@pytest.mark.parametrize("number", ["0", "65", "-1", "x"])
def test_a_number_out_of_range_is_wrong_usage(captures: Path, number: str) -> None:
    path = str(captures / "rcx-all-ops.pcap")
    result = CliRunner().invoke(main, ["show", "--", path, number])

    assert result.exit_code == 2
    assert result.stdout == ""


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ("show 14 chaos.b.pcap", "'chaos.b.pcap' is not a number; the capture comes first"),
        ("show chaos.b.pcap x", "'x' is not a number; the capture comes first"),
        ("run one-lost-packet --seed x", "'x' is not a number"),
    ],
)
def test_a_number_that_is_none_is_called_so(arguments: str, reason: str) -> None:
    result = CliRunner().invoke(main, arguments.split())

    assert result.exit_code == 2
    assert reason in result.stderr


def test_every_packet_of_a_capture_in_every_view(captures: Path) -> None:
    """No packet of the oddest capture is too odd to be shown."""
    path = captures / "probe-odd-frames.pcap"
    for number in range(1, 205, usual(17, quick=51)):
        for view in ([], ["--construct"], ["--scapy"]):
            assert show(path, number, *view)
