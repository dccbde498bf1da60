"""`ibwire fabric ping`: IP over InfiniBand, from joining the group to echo replies."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from ibwire.capture.reader import open_capture
from ibwire.cli import main
from ibwire_layers.outer import ERF

BROADCAST_MLID = 0xC000


def ping(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["fabric", "ping", *arguments])


def test_a_host_answers_after_the_time_of_cables_switch_and_packet() -> None:
    """Each way 2 cables of 10 ns, 130 ns in the switch, and 124 bytes at 100 Gb/s: LRH 8, BTH 12,
    DETH 8, IPoIB 4, IP 20, ICMP 8 and 56 of data, ICRC 4, VCRC 2, delimiters 2."""
    result = ping("star2", "node-0", "node-1", "--count", "2")

    lines = result.stdout.splitlines()
    assert result.exit_code == 0
    assert lines[0] == "node-0[1] 10.0.0.1 to node-1[1] 10.0.0.2"
    assert lines[2] == "seq 2: 56 bytes in 319.84 ns"
    assert lines[3] == "2 of 2 answered"


def test_the_capture_has_the_group_the_path_and_the_echoes(tmp_path: Path) -> None:
    file = tmp_path / "p.pcapng"

    result = ping("star2", "node-0", "node-1", "--count", "3", "--capture", str(file))

    assert result.exit_code == 0
    with open_capture(file) as capture:
        frames = [bytes(record.data)[ERF.SIZE :] for record in capture.records()]
    whole = [frame for frame in frames if len(frame) > 8]
    groups = [frame for frame in whole if int.from_bytes(frame[2:4], "big") == BROADCAST_MLID]
    assert groups
    assert all(frame[68:70] == b"\x08\x06" for frame in groups)  # LRH, GRH, BTH, DETH, then ARP
    echoes = [frame[52] for frame in whole if frame[0] >> 4 == 0 and frame[28:30] == b"\x08\x00"]
    assert sorted(echoes) == sorted([8, 0] * 3 * 2)  # each is seen at both hosts


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("node-0", "node-0"), "would ping itself"),
        (
            ("node-0", "node-9"),
            "'node-9' is not the name of a node of this fabric; did you mean node-",
        ),
        (("node-0", "sw0"), "'sw0' is not an adapter with a link"),
        (("sw0[1]", "node-0"), "'sw0[1]' is not an adapter with a link"),
    ],
)
def test_hosts_that_cannot_be_are_refused(arguments: tuple[str, ...], message: str) -> None:
    result = ping("star2", *arguments)

    assert result.exit_code == 2
    assert message in result.output
