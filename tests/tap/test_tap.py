"""Plans between two sides, and what they do from capture to capture."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result
from hypothesis import given
from hypothesis import strategies as st

from each_case import each_case
from ibwire.base.errors import ScriptError
from ibwire.capture import PcapngWriter, PcapWriter, Record, open_capture
from ibwire.cli import main
from ibwire.cli.run import command as run
from ibwire.cli.tap import command as tap
from ibwire.impair.columns import WINDOW
from ibwire.tap.bridge import Arrived
from ibwire.tap.captures import FileTap
from ibwire.tap.live import LiveTap
from ibwire.tap.plan import Direction, Event, header_of, load_plan, read_plan, shipped
from ibwire_layers import OpCode, Packet
from ibwire_layers.headers import AETH, BTH
from ibwire_layers.outer import EtherType, IPv4
from strategies import ROUTE4, damaged, packet, random_frames, vlan

Invoke = Callable[..., Result]


def request(psn: int, qp: int = 0x11) -> bytes:
    """From 10.0.0.1 to 10.0.0.2, as all routes of `strategies`."""
    bth = BTH(opcode=OpCode.RC_SEND_ONLY, dest_qp=qp, psn=psn)
    return Packet(ROUTE4, bth, (), bytes(16)).repaired().build()


def response(psn: int, qp: int = 0x22) -> bytes:
    """The other way, with the MAC addresses the other way too."""
    ip, eth = ROUTE4.ip, ROUTE4.eth
    assert isinstance(ip, IPv4)
    assert eth is not None
    route = replace(
        ROUTE4, ip=replace(ip, src=ip.dst, dst=ip.src), eth=replace(eth, src=eth.dst, dst=eth.src)
    )
    bth = BTH(opcode=OpCode.RC_ACKNOWLEDGE, dest_qp=qp, psn=psn)
    return Packet(route, bth, (AETH(),)).repaired().build()


def written(path: Path, frames: Sequence[bytes], step_ns: int = 1000) -> str:
    with PcapWriter(path) as writer:
        for number, frame in enumerate(frames):
            writer.write(frame, 10**18 + number * step_ns)
    return str(path)


def records(path: Path) -> list[Record]:
    with open_capture(path) as capture:
        return list(capture.records())


@pytest.fixture
def tapped(tmp_path: Path) -> Callable[..., tuple[list[Record], list[str]]]:
    """Runs a plan over frames or a capture: the records that come out, and the events."""

    def tapped(
        plan: str, source: Sequence[bytes] | Path, *arguments: str, suffix: str = ".pcap"
    ) -> tuple[list[Record], list[str]]:
        capture = source if isinstance(source, Path) else tmp_path / "in.pcap"
        if not isinstance(source, Path):
            written(capture, source)
        file, out = tmp_path / "plan.toml", tmp_path / f"out{suffix}"
        file.write_text(plan)
        done = CliRunner().invoke(
            tap, [str(capture), "-o", str(out), "--plan", str(file), *arguments]
        )
        assert done.exit_code == 0, done.output
        return records(out), done.stdout.splitlines()

    return tapped


Tapped = Callable[..., tuple[list[Record], list[str]]]


# Plans.


@each_case(
    ("text", "where"),
    [
        ("[[from.c]]\ndrop = 1.0", "plan:1:8: from.c: unknown"),
        ("[[in]]\ndrop = 1.0", "plan:1:3: in: unknown"),
        ("[[from.a]]\ndrip = 1.0", "plan:2:1: from.a[0].drip: unknown"),
        ("[[from.b]]\ndrop = { psnn = 1 }", "plan:2:10: from.b[0].drop.psnn: unknown"),
        ("from = 5", "plan:1:8: from: 5 is not a table"),
        ("[from]\na = 0", "plan:2:5: from.a: 0 is not a list"),
        ("[from]\na = [1]", "plan:2:6: from.a[0]: 1 is not a table"),
        ("seed = -1", "plan:1:8: seed: "),
        ("[[from.a]]\npfc = { nth = 1 }", "plan:2:7: from.a[0].pfc: priorities is missing"),
        ("[[from.a]\n", "plan:1:"),
    ],
)
def test_error_of_a_plan_says_where(text: str, where: str) -> None:
    with pytest.raises(ScriptError) as caught:
        read_plan(text.encode(), "plan")

    assert str(caught.value).startswith(where)


def test_plan_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(ScriptError, match="No such file"):
        load_plan(str(tmp_path / "none.toml"))
    with pytest.raises(ScriptError, match="no such plan; did you mean lumina"):
        load_plan("lumna")


def test_every_shipped_plan_says_what_it_is() -> None:
    plans = shipped()

    assert "lumina" in plans
    assert all(plans.values())


def test_ways_share_a_seed_and_draw_apart() -> None:
    text = b"[[from.a]]\nloss = 0.5\n[[from.b]]\nloss = 0.5\n"

    def lost(way: Direction) -> list[bool]:
        return [not way.take(bytes(60), n).leaving for n in range(64)]

    first, second = read_plan(text, "").ways, read_plan(text, "").ways
    assert lost(first[0]) == lost(second[0])
    assert lost(first[0]) != lost(first[1])
    assert lost(read_plan(text, "", 7).ways[0]) != lost(first[0])


# A way.


def way_of(text: str) -> Direction:
    return read_plan(text.encode(), "plan").ways[0]


def test_delayed_frames_leave_in_the_order_of_their_times() -> None:
    way = way_of("[[from.a]]\ndelay = { time = '10ns', psn = 0 }\n[[from.a]]\ndelay = '5ns'")
    first, second = request(0), request(1)

    assert way.take(first, 0).leaving == []
    assert way.take(second, 1000).leaving == []
    assert way.poll_timeout() == 6000
    assert list(way.due(14_999)) == [(6000, second)]
    assert list(way.due(15_000)) == [(15_000, first)]
    assert way.poll_timeout() is None


def test_held_frame_leaves_when_nothing_follows() -> None:
    way = way_of("[[from.a]]\nreorder = { psn = 0, max_delay = '1us' }")
    assert way.take(request(0), 0).leaving == []

    assert list(way.due(1_000_000)) == []
    due = way.poll_timeout()
    assert due is not None
    assert [frame for _, frame in way.due(due)] == [request(0)]


def test_rest_is_what_was_delayed_and_held() -> None:
    way = way_of("[[from.a]]\nreorder = { psn = 1 }\n[[from.a]]\ndelay = { time = '1s', psn = 0 }")
    for n in range(2):
        way.take(request(n), n)

    assert sorted(frame for _, frame in way.rest(5)) == sorted([request(0), request(1)])
    assert way.poll_timeout() is None


def test_too_many_delayed_frames_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Direction, "LIMIT", 1000)
    way = way_of("[[from.a]]\ndelay = '1s'")
    for n in range(10):
        way.take(request(n), n)

    kept = len(list(way.rest(0)))
    assert 0 < kept < 10
    assert kept + way.overflow == 10


EVERYTHING = """
[[from.a]]
cnp = 1.0
[[from.a]]
nak = { code = "RNR_NAK" }
[[from.a]]
pfc = { priorities = [0, 7] }
[[from.a]]
mark_ecn = { force = true }
[[from.a]]
corrupt = { where = "frame", every = 2 }
[[from.a]]
corrupt = { where = "payload", psn = [0, 1, 2] }
[[from.a]]
rewrite = { set = { bth.dest_qp = 7 } }
[[from.a]]
reorder = { connection = 2 }
[[from.a]]
duplicate = { dest_qp = 7 }
"""


@given(st.lists(damaged() | random_frames, max_size=20))
def test_no_frame_makes_a_way_fail(frames: list[Any]) -> None:
    way = way_of(EVERYTHING)
    data = np.frombuffer(b"".join(each.data for each in frames) + bytes(WINDOW), np.uint8)
    lengths = np.array([len(each.data) for each in frames], np.int64)
    way.concerned(data, np.cumsum(lengths) - lengths, lengths)

    left = [out for n, each in enumerate(frames) for out in way.take(each.data, n).leaving]
    left += [out for _, out in way.rest(100)]

    assert len(left) >= len(frames)
    for each in frames:
        header_of(each.data)


# Batches of frames between two interfaces.


class MadeUpSide:
    """A side whose frames are given, in batches, and which keeps what is sent."""

    def __init__(self, name: str, batches: Sequence[Sequence[bytes]] = ()) -> None:
        self.name = name
        self.counters: Counter[str] = Counter()
        self.sent: list[bytes] = []
        self._batches = list(batches)

    def receive(self, most: int) -> Arrived | None:
        if not self._batches:
            return None
        frames = self._batches.pop(0)
        data = np.zeros((len(frames), 2000), np.uint8)
        for row, frame in enumerate(frames):
            data[row, 10 : 10 + len(frame)] = np.frombuffer(frame, np.uint8)
        starts = np.arange(len(frames), dtype=np.int64) * 2000 + 10
        lengths = np.array([len(frame) for frame in frames], np.int64)
        return Arrived(data.reshape(-1), starts, lengths, np.zeros(len(frames), np.bool_))

    def forward(self, arrived: Arrived) -> None:
        self.send(range(len(arrived)), arrived)

    def send(self, frames: Sequence[bytes | int], arrived: Arrived | None = None) -> None:
        for each in frames:
            if isinstance(each, int):
                assert arrived is not None
                self.sent.append(arrived.frame(each))
            else:
                self.sent.append(each)

    def count_losses(self) -> None: ...

    def fileno(self) -> int:
        return -1


def passed(plan: str, *batches: Sequence[bytes]) -> tuple[list[bytes], list[bytes], list[Event]]:
    """What leaves at b and at a when batches come to a, and the events."""
    events: list[Event] = []
    sides: Any = (MadeUpSide("a", batches), MadeUpSide("b"))
    LiveTap(read_plan(plan.encode(), "plan"), sides, events.append).run(
        count=sum(len(batch) for batch in batches)
    )
    return sides[1].sent, sides[0].sent, events


def test_frames_that_no_rule_is_for_keep_their_place() -> None:
    frames = [request(n) for n in range(40)]

    left, _, events = passed("[[from.a]]\ndrop = { psn = [3, 20] }", frames[:16], frames[16:])

    assert left == [frame for n, frame in enumerate(frames) if n not in (3, 20)]
    assert [(each.frame, each.header["psn"], each.packet) for each in events] == [
        (4, 3, None),
        (21, 20, None),
    ]


def test_held_frame_goes_behind_frames_that_no_rule_is_for() -> None:
    frames = [request(n) for n in range(40)]

    left, _, _ = passed(
        "[[from.a]]\nreorder = { psn = 3, by = 20, max_delay = '10s' }", frames[:16], frames[16:]
    )

    assert left == [*frames[:3], *frames[4:24], frames[3], *frames[24:]]


def test_answers_leave_where_their_frame_came_from() -> None:
    frames = [request(n) for n in range(16)]

    left, back, _ = passed("[[from.a]]\nnak = { psn = 3, to_qp = 9 }", frames)

    assert left == frames
    assert [Packet.parse(each).bth.psn for each in back] == [3]


def test_packets_that_the_kernel_has_merged_pass_and_are_told() -> None:
    events: list[Event] = []
    frames = [request(n) for n in range(16)]
    sides: Any = (MadeUpSide("a", [frames]), MadeUpSide("b"))
    receive = sides[0].receive

    def merged(most: int) -> Arrived | None:
        arrived: Arrived | None = receive(most)
        if arrived is not None:
            arrived.merged[5] = True
        return arrived

    sides[0].receive = merged
    tap = LiveTap(read_plan(b"[[from.a]]\ndrop = { psn = [5, 6] }", "plan"), sides, events.append)
    tap.run(count=16)

    assert sides[1].sent == [frame for n, frame in enumerate(frames) if n != 6]
    assert "1 frames are merged packets, seen by no rule" in tap.problems()[0]


# From capture to capture.


def test_empty_plan_copies_the_file(captures: Path, tapped: Tapped, tmp_path: Path) -> None:
    for name in ("rc-pingpong.pcap", "fmt-pcap-nano.pcap", "probe-odd-frames.pcap"):
        tapped("", captures / name)

        assert (tmp_path / "out.pcap").read_bytes() == (captures / name).read_bytes()


def test_records_of_a_pcapng_stay_as_they_are(captures: Path, tapped: Tapped) -> None:
    before = records(captures / "fmt-pcapng.pcapng")

    after, _ = tapped("", captures / "fmt-pcapng.pcapng", suffix=".pcapng")

    assert after == before


def test_dropped_packet_is_missing_and_everything_else_there(
    captures: Path, tapped: Tapped
) -> None:
    """0x36 gets PSNs 1205250 to 53 as its first message (tshark); 1205253 is packet 16."""
    before = records(captures / "rc-pingpong.pcap")

    after, told = tapped(
        "[[from.a]]\ndrop = { connection = 1, psn = 3 }", captures / "rc-pingpong.pcap"
    )

    gone = [(each.time_ns, each.data) for each in before if each.number != 16]
    assert [(each.time_ns, each.data) for each in after] == gone
    assert told == [
        "from a: frame 4, packet 16: drop (rule 1): RC_SEND_LAST qp 0x36 psn 1205253",
        "rule 1 from a: drop applied to 1 frame",
        f"records: read {len(before)}, written {len(after)}",
    ]


def test_delayed_packet_has_a_later_time_and_its_place(tapped: Tapped) -> None:
    plan = "[[from.a]]\ndelay = { time = '2500 ns', psn = 1 }"

    after, _ = tapped(plan, [request(n) for n in range(6)])

    assert [each.data for each in after] == [request(n) for n in (0, 2, 3, 1, 4, 5)]
    assert [each.time_ns - 10**18 for each in after] == [0, 2000, 3000, 3500, 4000, 5000]


def test_delay_beyond_the_end_is_kept(tapped: Tapped) -> None:
    after, _ = tapped("[[from.a]]\ndelay = { time = '1s', psn = 0 }", [request(0), request(1)])

    assert [each.time_ns - 10**18 for each in after] == [1000, 10**9]


def test_answers_are_written_where_they_were_made(tapped: Tapped) -> None:
    plan = "[[from.a]]\nnak = { psn = 2 }\n[[from.b]]\ncnp = { psn = 1 }\n"
    frames = [each for n in range(4) for each in (request(50 + n), response(50 + n))]

    after, told = tapped(plan, frames)

    new = [each for each in after if each.data not in frames]
    assert [Packet.parse(each.data).bth.opcode for each in new] == [
        OpCode.CNP,
        OpCode.RC_ACKNOWLEDGE,
    ]
    assert [Packet.parse(each.data).bth.dest_qp for each in new] == [0x11, 0x22]
    assert [each.time_ns - 10**18 for each in new] == [3000, 4000]
    assert [line.partition(": ")[2].partition(" (")[0] for line in told[:2]] == [
        "frame 2, packet 4: cnp",
        "frame 3, packet 5: nak",
    ]


def test_rules_are_for_one_side_only(tapped: Tapped) -> None:
    frames = [each for n in range(4) for each in (request(n), response(n))]

    after, _ = tapped("[[from.b]]\ndrop = {}", frames)

    assert [each.data for each in after] == [request(n) for n in range(4)]


@pytest.mark.parametrize(
    ("chosen", "left"), [("10.0.0.1", response), ("10.0.0.2", request), ("10.9.9.9", None)]
)
def test_side_a_can_be_an_address(
    tapped: Tapped, chosen: str, left: Callable[[int], bytes] | None
) -> None:
    frames = [request(0), response(0)]

    after, _ = tapped("[[from.a]]\ndrop = {}", frames, "--a", chosen)

    assert [each.data for each in after] == ([left(0)] if left else frames)


def test_what_is_no_ip_has_the_side_of_its_mac_address(tapped: Tapped) -> None:
    arp = request(0)[:12] + EtherType.ARP.to_bytes(2) + bytes(46)

    after, _ = tapped("[[from.a]]\ndrop = {}", [request(0), arp, response(0)])

    assert [each.data for each in after] == [response(0)]


def test_tagged_frames_have_their_side(tapped: Tapped) -> None:
    def tagged(frame: bytes) -> bytes:
        return frame[:12] + EtherType.VLAN.to_bytes(2) + vlan(frame[14:])[:4] + frame[14:]

    after, _ = tapped("[[from.a]]\ndrop = {}", [tagged(request(0)), tagged(response(0))])

    assert [each.data for each in after] == [tagged(response(0))]


@pytest.mark.parametrize("chosen", ["1", "right"])
def test_side_a_can_be_an_interface(tmp_path: Path, tapped: Tapped, chosen: str) -> None:
    with PcapngWriter(tmp_path / "in.pcapng", name="left") as writer:
        writer.add_interface(1, "right")
        for number in range(4):
            writer.write(request(number), 10**18 + number, interface=number % 2)

    after, _ = tapped(
        "[[from.a]]\ndrop = {}", tmp_path / "in.pcapng", "--a", chosen, suffix=".pcapng"
    )

    assert [each.data for each in after] == [request(0), request(2)]


def test_cut_records_stay_cut(tmp_path: Path, tapped: Tapped) -> None:
    with PcapWriter(tmp_path / "in.pcap") as writer:
        for number in range(3):
            writer.write(request(number)[:60], 10**18 + number, 1082)
    plan = "[[from.a]]\nmark_ecn = { psn = 1, force = true }\n[[from.a]]\ncorrupt = { psn = 2 }"

    after, told = tapped(plan, tmp_path / "in.pcap")

    assert [(len(each.data), each.wire_len) for each in after] == [(60, 1082)] * 3
    # The packet that was to be damaged is not all there: nothing to damage it in.
    assert told[1:3] == [
        "rule 1 from a: mark_ecn applied to 1 frame",
        "rule 2 from a: corrupt applied to no frames",
    ]


def test_native_infiniband_passes_and_is_told(tmp_path: Path) -> None:
    with PcapWriter(tmp_path / "in.pcap", 247) as writer:
        writer.write(bytes(60), 10**18)
    (tmp_path / "plan.toml").write_text("[[from.a]]\ndrop = {}")

    done = invoked(
        tmp_path / "in.pcap", "-o", tmp_path / "out.pcap", "--plan", tmp_path / "plan.toml"
    )

    assert "1 records are not Ethernet frames: unchanged" in done.stderr
    assert [each.data for each in records(tmp_path / "out.pcap")] == [bytes(60)]


def test_event_as_json_names_the_frame(tmp_path: Path) -> None:
    (tmp_path / "plan.toml").write_text(
        "[[from.a]]\ndrop = { psn = 1 }\n[[from.a]]\ndrop = { psn = 9 }"
    )
    capture = written(tmp_path / "in.pcap", [response(9), request(7), request(8)])

    done = invoked(
        capture,
        "-o",
        tmp_path / "out.pcap",
        "--plan",
        tmp_path / "plan.toml",
        "--json",
        "--a",
        "10.0.0.1",
    )

    event, end = map(json.loads, done.stdout.splitlines())
    assert event == {
        "kind": "event",
        "time_ns": 10**18 + 2000,
        "from": "a",
        "rule": 1,
        "action": "drop",
        "frame": 2,
        "packet": 3,
        "opcode": "RC_SEND_ONLY",
        "dest_qp": 0x11,
        "psn": 8,
    }
    assert [(each["from"], each["rule"], each["frames"]) for each in end["rules"]] == [
        ("a", 1, 1),
        ("a", 2, 0),
    ]
    assert end["frames"] == {"records": {"read": 3, "written": 2}}


def test_count_ends_it_early(tapped: Tapped) -> None:
    after, _ = tapped("", [request(n) for n in range(1000)], "--count", "300")

    assert [each.data for each in after] == [request(n) for n in range(300)]


def test_damaged_capture_is_used_as_far_as_it_goes(tmp_path: Path) -> None:
    capture = Path(written(tmp_path / "in.pcap", [request(n) for n in range(5)]))
    capture.write_bytes(capture.read_bytes()[:-10])
    (tmp_path / "plan.toml").write_text("[[from.a]]\ndrop = { psn = 1 }")

    done = invoked(capture, "-o", tmp_path / "out.pcap", "--plan", tmp_path / "plan.toml")

    assert done.exit_code == 3
    assert "the file ends inside record 5" in done.stderr
    assert [each.data for each in records(tmp_path / "out.pcap")] == [request(n) for n in (0, 2, 3)]


def invoked(*arguments: object) -> Result:
    return CliRunner().invoke(main, ["tap", *map(str, arguments)])


@pytest.mark.parametrize(
    ("arguments", "status", "words"),
    [
        ([], 2, "one of CAPTURE and --between"),
        (["in.pcap", "--between", "x", "y"], 2, "one of CAPTURE and --between"),
        (["in.pcap", "-o", "out.pcap"], 2, "--plan is required"),
        (["in.pcap", "--plan", "lumina"], 2, "requires one -o"),
        (["in.pcap", "--plan", "lumina", "-o", "a.pcap", "-o", "b.pcap"], 2, "requires one -o"),
        (["in.pcap", "--plan", "lumina", "-o", "o.pcap", "--time", "1"], 2, "excludes --time"),
        (["in.pcap", "--plan", "lumina", "-o", "in.pcap"], 2, "it is also an input"),
        (["in.pcap", "--plan", "lumina", "-o", "out.txt"], 1, "ends neither in .pcap nor"),
        (["none.pcap", "--plan", "lumina", "-o", "out.pcap"], 3, "none.pcap: cannot be opened"),
        (["in.pcap", "--plan", "lumina", "-o", "no/out.pcap"], 1, "no/out.pcap: cannot be written"),
        (
            ["in.pcap", "--plan", "lumina", "-o", "full.pcap"],
            1,
            "full.pcap: cannot be written: no space left",
        ),
        (["in.pcap", "--plan", "lumin", "-o", "out.pcap"], 2, "did you mean lumina"),
        (["--between", "x", "x", "--plan", "lumina"], 2, "two different interfaces"),
        (["--between", "x", "y", "--plan", "lumina", "--a", "1.2.3.4"], 2, "--a requires CAPTURE"),
        (["--between", "none-such", "y", "--plan", "lumina"], 1, "none-such: no such interface"),
    ],
)
def test_wrong_usage_is_told(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    status: int,
    words: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    written(tmp_path / "in.pcap", [packet(ROUTE4)])
    before = (tmp_path / "in.pcap").read_bytes()
    (tmp_path / "full.pcap").symlink_to("/dev/full")

    done = invoked(*arguments)

    assert done.exit_code == status, done.output
    assert words in done.stderr
    assert (tmp_path / "in.pcap").read_bytes() == before


def test_plans_are_listed() -> None:
    assert "lumina  " in invoked("--list").stdout


# Lumina's example.


FOUR_WRITES = """
[[connection]]
count = 4
mtu = 1024
psn = {psn}

[[workload]]
opcode = "RDMA_WRITE"
size = 1024000
"""


@pytest.mark.slow
def test_luminas_example_does_its_four_events(tmp_path: Path) -> None:
    """Marks at PSN 4 of the first two connections, drops PSN 3 of the third and 5 of the fourth.

    PSNs count from the first of each connection; their packets pass once each.
    """
    (tmp_path / "writes.toml").write_text(FOUR_WRITES.format(psn=0xFFFFFE))
    capture, out = tmp_path / "in.pcap", tmp_path / "out.pcap"
    made = CliRunner().invoke(run, [str(tmp_path / "writes.toml"), "-o", str(capture)])
    assert made.exit_code == 0, made.output

    done = invoked(capture, "-o", out, "--plan", "lumina", "--json")

    *events, end = map(json.loads, done.stdout.splitlines())
    first: dict[Any, Any] = {}
    for record in records(capture):
        bth = Packet.parse(record.data).bth
        if bth.opcode == OpCode.RC_RDMA_WRITE_FIRST:
            first.setdefault(bth.dest_qp, len(first))
    assert sorted((first[each["dest_qp"]], each["action"], each["psn"]) for each in events) == [
        (0, "mark_ecn", 2),
        (1, "mark_ecn", 2),
        (2, "drop", 1),
        (3, "drop", 3),
    ]
    assert [each["frames"] for each in end["rules"]] == [1, 1, 1, 1]
    assert len(records(out)) == len(records(capture)) - 2
    marked = [each for each in records(out) if Packet.parse(each.data).route.ip.ecn == 3]
    assert [Packet.parse(each.data).bth.psn for each in marked] == [2, 2]


def test_output_is_closed_when_the_plan_is_over(tmp_path: Path) -> None:
    """Also when it saw nothing: an empty capture is a capture."""
    capture = written(tmp_path / "in.pcap", [])
    plan = read_plan(b"", "plan")

    with FileTap(plan, capture, str(tmp_path / "out.pcap"), lambda event: None) as file_tap:
        file_tap.run()

    assert records(tmp_path / "out.pcap") == []
