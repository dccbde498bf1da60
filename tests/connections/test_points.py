"""Captures with several interfaces: each packet counts at the first that has it."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from connections.handshake_frames import chunks
from connections.talk import Talk
from ibwire.capture import PcapngWriter, PcapWriter, open_capture
from ibwire.cli.check import command as check
from ibwire.cli.explain import command as explain
from ibwire.cli.flows import command as flows
from ibwire.cli.run import command as run
from ibwire.connections import packets
from ibwire.connections.points import RECENT, Points
from ibwire_layers import headers as h
from ibwire_layers.opcodes import OpCode
from ibwire_layers.outer import LinkType

Sighting = tuple[int, int, bytes]
"""Time in ns, interface, frame."""

SPINE = """
[topology]
kind = "leaf-spine"
leaves = 2
spines = {spines}
hosts = 2

[switch]
routing = "{mode}"

[[wire]]
between = ["h0", "leaf0"]

[[wire.faults.h0]]
drop = {{ nth = 20 }}

[[flow]]
from = "h0"
to = "h3"
size = "200 kB"
"""


def written(sightings: list[Sighting], *, by_time: bool = True) -> io.BytesIO:
    stream = io.BytesIO()
    writer = PcapngWriter(stream, LinkType.ETHERNET)
    for number in range(max(interface for _, interface, _ in sightings)):
        writer.add_interface(LinkType.ETHERNET, f"eth{number}")
    for ns, interface, data in sorted(sightings, key=lambda each: each[0] if by_time else 0):
        writer.write(data, ns, interface=interface)
    writer.flush()
    stream.seek(0)
    return stream


def counted(sightings: list[Sighting], rows: int = 1 << 20) -> list[int]:
    """Frames that count, from 0, in the order of their times."""
    points, found = Points(), []
    for columns in chunks(written(sightings), rows):
        first = columns.frames.batch.first_number - 1
        found += (packets.known(points.take(columns)) + first).tolist()
    return found


def conversation(requests: int) -> list[tuple[int, bytes]]:
    """Requests 10 us apart without IP identifications, of which each tenth is retransmitted."""
    talk = Talk(counts_ids=False)
    for psn in range(requests):
        talk.put(0, OpCode.RC_SEND_ONLY, psn, 64)
        if psn % 10 == 9:
            talk.put(0, OpCode.RC_SEND_ONLY, psn, 64)
    return talk.frames


@pytest.mark.parametrize("rows", [1 << 20, 7])
def test_each_packet_counts_at_the_first_of_three_interfaces(rows: int) -> None:
    frames = conversation(40)
    seen = [(ns + 1000 * each, each, data) for ns, data in frames for each in range(3)]

    assert counted(seen, rows) == [3 * each for each in range(len(frames))]


def test_what_is_lost_between_two_interfaces_counts_each_time_it_was_sent() -> None:
    frames = conversation(40)
    lost = [at for at, (_, data) in enumerate(frames[:-1]) if data == frames[at + 1][1]]
    seen = [(ns, 0, data) for ns, data in frames]
    seen += [(ns + 1000, 1, data) for at, (ns, data) in enumerate(frames) if at not in lost]

    assert len(lost) == 4
    assert len(counted(seen)) == len(frames)


def test_a_retransmission_on_a_parallel_path_is_no_copy() -> None:
    frames = conversation(40)
    seen = [(ns, at % 2, data) for at, (ns, data) in enumerate(frames)]

    assert len(counted(seen)) == len(frames)


def test_paths_that_part_and_meet_again_are_one() -> None:
    """Leaf, one of two spines, leaf: each packet has three sightings."""
    frames = conversation(40)
    seen = []
    for at, (ns, data) in enumerate(frames):
        seen += [(ns + 1000 * hop, place, data) for hop, place in enumerate((0, 1 + at % 2, 3))]

    assert counted(seen) == [3 * each for each in range(len(frames))]


def test_a_packet_that_the_network_duplicates_counts_twice() -> None:
    frames = conversation(9)
    seen = [(ns + 1000 * each, each, data) for ns, data in frames for each in range(2)]
    ns, data = frames[4]
    seen.append((ns + 2000, 1, data))

    assert counted(seen) == [0, 2, 4, 6, 8, 10, 11, 13, 15, 17]


def test_the_same_bytes_long_after_are_another_packet(monkeypatch: pytest.MonkeyPatch) -> None:
    """As of a queue pair that was made again: the connection begins anew with its first PSN."""
    monkeypatch.setattr("ibwire.connections.points.RECENT", RECENT >> 6)
    talk = Talk(counts_ids=False)
    for _ in range(2):
        for psn in range(RECENT >> 6):
            talk.put(0, OpCode.RC_SEND_ONLY, psn, 4)
    seen = [(ns + 1000 * each, each, data) for ns, data in talk.frames for each in range(2)]

    assert counted(seen, 16) == [2 * each for each in range(len(talk.frames))]


def nameless(sightings: list[Sighting]) -> bool:
    """Whether the same frames from one interface are taken for those of several points."""
    points = Points()
    alone = [(ns, 0, data) for ns, _, data in sightings]
    for columns in chunks(written(alone), 1 << 20):
        assert points.take(columns) is columns
    return points.is_unnamed


def test_copies_without_an_interface_are_noticed_and_a_connection_without_is_not() -> None:
    frames = conversation(60)
    twice = [(ns + 15_000 * each, each, data) for ns, data in frames for each in range(2)]

    assert nameless(twice)
    assert not nameless(twice[::2])
    assert not nameless(twice[: 2 * 8])


def test_a_sender_without_answers_is_no_capture_of_several_points() -> None:
    """It retransmits everything eight times, with the same bytes."""
    frames = [data for _, data in conversation(50)]
    again = [(1000 * number, 0, data) for number, data in enumerate(frames * 8)]

    assert not nameless(again)


def test_interfaces_one_after_the_other_are_said_to_need_sorting(tmp_path: Path) -> None:
    """As Wireshark's mergecap -a writes them: all packets of one point, then all of the other."""
    apart = [(ns, each, data) for each in range(2) for ns, data in conversation(200)]
    file = tmp_path / "s.pcapng"
    said = []
    for by_time in (False, True):
        file.write_bytes(written(apart, by_time=by_time).getvalue())
        said.append(CliRunner().invoke(flows, [str(file)]).stderr)

    assert "sort the frames: reordercap CAPTURE SORTED" in said[0]
    assert "times go back" not in said[1]


def test_a_pcap_of_several_points_is_said_to_be_one(tmp_path: Path) -> None:
    scenario, named, other = (tmp_path / name for name in ("s.toml", "s.pcapng", "s.pcap"))
    scenario.write_text(SPINE.format(spines=1, mode="ecmp"))
    taps = [part for tap in ("h0", "h3", "spine0") for part in ("--tap", tap)]
    CliRunner().invoke(run, [str(scenario), "-o", str(named), *taps])
    with open_capture(named) as capture, other.open("wb") as stream:
        writer = PcapWriter(stream, LinkType.ETHERNET)
        for record in capture.records():
            writer.write(record.data, record.time_ns)
        writer.flush()

    texts = {
        path: [CliRunner().invoke(each, [str(path)]) for each in (flows, check, explain)]
        for path in (named, other)
    }

    for found in texts[other]:
        assert "nearly every packet is there several times" in found.stderr
    for found in texts[named]:
        assert "several times" not in found.stderr
    assert '"This point" is where the capture was taken' in texts[other][2].stdout
    assert '"This point" is the first of the interfaces' in " ".join(texts[named][2].stdout.split())


def test_a_mark_that_is_made_between_two_interfaces_is_counted(tmp_path: Path) -> None:
    sent, marked = Talk(counts_ids=False), Talk(counts_ids=False)
    for psn in range(9):
        sent.put(0, OpCode.RC_SEND_ONLY, psn, 64, ecn=2)
        marked.put(0, OpCode.RC_SEND_ONLY, psn, 64, ecn=3 if psn in (2, 5) else 2)
        for talk in (sent, marked):
            talk.put(1, OpCode.RC_ACKNOWLEDGE, psn, 0, h.AETH(syndrome=0x1F, msn=psn + 1))
    seen = [(ns, 0, data) for ns, data in sent.frames]
    seen += [(ns + 1000, 1, data) for ns, data in marked.frames]
    path = tmp_path / "marked.pcapng"
    path.write_bytes(written(seen).getvalue())

    there, _ = told(path)

    assert (there["packets"], there["ecn_ce"]) == (9, 2)


def told(path: Path) -> list[dict[str, Any]]:
    result = CliRunner().invoke(flows, [str(path), "--json"])
    assert result.exit_code == 0, result.output
    return [json.loads(line) for line in result.stdout.splitlines()]


@pytest.mark.parametrize(("spines", "mode"), [(1, "ecmp"), (2, "spray")])
def test_taps_along_the_path_tell_what_those_at_the_senders_tell(
    tmp_path: Path, spines: int, mode: str
) -> None:
    scenario = tmp_path / "spine.toml"
    scenario.write_text(SPINE.format(spines=spines, mode=mode))
    switches = ["leaf0", *(f"spine{each}" for each in range(spines)), "leaf1"]
    each_of = {"h0": ["h0"], "h3": ["h3"], "all": ["h0", "h3", *switches]}
    for name, taps in each_of.items():
        options = [each for tap in taps for each in ("--tap", tap)]
        path = tmp_path / f"{name}.pcapng"
        ran = CliRunner().invoke(run, [str(scenario), "-o", str(path), *options])
        assert ran.exit_code == 0, ran.output

    (there, _), (_, back) = told(tmp_path / "h0.pcapng"), told(tmp_path / "h3.pcapng")
    everywhere = told(tmp_path / "all.pcapng")

    for alone, both in zip((there, back), everywhere, strict=True):
        for name in ("packets", "bytes", "retransmitted_packets", "naks", "timeouts"):
            assert both[name] == alone[name], name
    checked = CliRunner().invoke(check, [str(tmp_path / "all.pcapng")])
    assert "0 errors, 0 warnings" in checked.output, checked.output
