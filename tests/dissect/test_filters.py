"""Wireshark's words in filters select the packets that they select in Wireshark."""

import shutil
import subprocess
from pathlib import Path

import pytest

from each_case import each_case
from ibwire.base.errors import ExpressionError
from ibwire.dissect import read
from ibwire.dissect.filters import parse_filter

CAPTURES = Path(__file__).parents[2] / "captures"

COUNTS = {
    "ip.addr == 10.77.0.1": 574,
    "ip.addr != 10.77.0.1": 0,
    "not ip.addr == 10.77.0.1": 0,
    "udp.port in {4791}": 560,
    "udp.port == 4791 && ip.addr == 10.77.0.2": 560,
    "udp.port != 4791": 0,
    "eth.addr == 52:54:00:77:00:01": 574,
    "infiniband": 560,
    "tcp": 14,
    "tcp || arp": 14,
    "frame && !tcp": 560,
    "frame.time_relative < 0.15": 5,
    "frame.time_relative >= 0.3 && infiniband": 168,
    "frame.time_epoch > 1795220446.3": 356,
    "frame.time_relative == 0.318254": 0,
    "frame.time_relative ge 0.3 and infiniband": 168,
    "frame.time_relative gt 0.3 and frame.time_relative lt 0.2": 0,
    "infiniband.aeth.syndrome.opcode eq 3": 8,
    "ip.addr": 574,
    "ipv6.addr": 0,
}
"""Packets of `chaos.a.pcap` that tshark 4.0 selects with the same filter."""


def count(text: str, name: str = "chaos.a.pcap") -> int:
    expression = parse_filter(text)
    return sum(
        int(expression.select(columns.column, columns.rows).sum())
        for columns in read(CAPTURES / name)
    )


@each_case("text", COUNTS)
def test_filter_selects_as_many_packets_as_in_tshark(text: str) -> None:
    assert count(text) == COUNTS[text]


def test_kinds_of_acknowledgements_have_names() -> None:
    """tshark 4.0: 8 packets of `chaos.a.pcap` have the kind 3."""
    assert count("aeth.syndrome.opcode == NAK") == 8
    with pytest.raises(ExpressionError, match="a number or ACK or RNR_NAK or NAK, not 'NACK'"):
        parse_filter("aeth.syndrome.opcode == NACK")


@pytest.mark.slow
@pytest.mark.parametrize("text", COUNTS)
def test_counts_are_those_of_the_installed_tshark(text: str) -> None:
    tshark = shutil.which("tshark")
    if tshark is None:
        pytest.skip("tshark not installed")
    done = subprocess.run(
        [tshark, "-r", str(CAPTURES / "chaos.a.pcap"), "-Y", text],
        capture_output=True,
        check=True,
    )

    assert len(done.stdout.splitlines()) == COUNTS[text]


@each_case(
    ("text", "selected"),
    [
        ("bth.opcode_name contains READ", 227),  # tshark: infiniband.bth.opcode in {12..16}
        ("bth.opcode_name contains read", 0),
        ("bth.opcode_name matches '^rc_rdma_r'", 227),
        ("bth.opcode_name ~ '^READ'", 0),
        ("not bth.opcode_name contains READ", 574 - 227),
        ("frame.time_relative > -0.5", 574),
        ("frame.time_relative <= -0.5", 0),
        ("frame.time_relative in {0..0.002146, 9..10}", 2),  # tshark: the second is at 0.002146
    ],
)
def test_text_and_seconds_in_filters(text: str, selected: int) -> None:
    assert count(text) == selected


@each_case(
    ("text", "reason"),
    [
        ("bth.psn contains 1", "bth.psn is no text"),
        ("ip.addr matches 10", "ip.src is no text"),
        ("frame.comment matches '('", "is no regular expression"),
        ("frame.comment contains", "expected a text for frame.comment, found the end"),
        ("frame.comment contains ''", "expected a text"),
        ("tcp == 1", "tcp takes no value: it stands alone"),
        ("frame contains de:ad", "frame takes no value: it stands alone"),
        ("frame.time_relative < soon", "takes seconds such as 0.25"),
        ("frame.time_relative < 0.0000000001", "takes seconds such as 0.25"),
        ("ip.adr == 10.0.0.1", "did you mean"),
    ],
)
def test_wrong_use_of_the_words_is_a_sentence(text: str, reason: str) -> None:
    with pytest.raises(ExpressionError) as raised:
        parse_filter(text)

    assert reason in str(raised.value)


def test_comments_are_searched(tmp_path: Path) -> None:
    from ibwire.capture.writer import CaptureWriter

    path = tmp_path / "c.pcapng"
    with CaptureWriter(str(path)) as writer:
        for comment in ("lost here", "NAK", None):
            writer.write(bytes(60), 0, comments=[comment] if comment else [])

    found = {}
    for text in ("frame.comment contains lost", "frame.comment matches nak", "frame.comment"):
        expression = parse_filter(text)
        (columns,) = read(path)
        found[text] = expression.select(columns.column, columns.rows).tolist()
    assert list(found.values()) == [
        [True, False, False],
        [False, True, False],
        [True, True, False],
    ]
