"""TCP connections: what they send after losses and marks, by hand, and real bytes for tshark.

reference/fabric#tcp.
"""

from __future__ import annotations

import shutil
import subprocess
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from each_case import each_case
from ibwire.base.errors import ScriptError
from ibwire.base.toml_settings import parse_setting
from ibwire.base.units import MS, US, Time
from ibwire.cli import main
from ibwire.report.switches import switch_lines, tcp_lines
from ibwire.scenario import read_scenario, run
from ibwire.scenario.run import Network
from ibwire.scenario.shipped import load
from ibwire.scenario.tcp import (
    Address,
    Data,
    Flags,
    Receiver,
    Segment,
    Sender,
    State,
    checksum,
    pack,
    unpack,
)

MSS = 1000
WAY: Time = 10 * US


class Line:
    """Both ends, and a line with a delay on which segments of the sender may change."""

    def __init__(
        self,
        total: int,
        change: Callable[[int, Segment], Segment | None] = lambda number, each: each,
        *,
        first: int = 0,
        uses_ecn: bool = False,
    ) -> None:
        data = Data("test", MSS)
        self.sender = Sender(data, total, mss=MSS, first=first, uses_ecn=uses_ecn)
        self.receiver = Receiver(data, mss=MSS, first=7, uses_ecn=uses_ecn)
        self.sent: list[tuple[Time, Segment]] = []
        self.answers: list[tuple[Time, Segment]] = []
        self.now: Time = 0
        self._change = change
        self._on_way: list[tuple[Time, int, Any, Segment]] = []

    def run(self, until: Time = 10_000 * MS) -> None:
        self.sender.open()
        while True:
            self._drain()
            times = [entry[0] for entry in self._on_way]
            times += [
                due
                for due in (self.sender.poll_timeout(), self.receiver.poll_timeout())
                if due is not None
            ]
            if not times or min(times) > until:
                return
            self.now = min(times)
            arrived = [entry for entry in self._on_way if entry[0] <= self.now]
            self._on_way = [entry for entry in self._on_way if entry[0] > self.now]
            for _, _, end, segment in arrived:
                end.receive(segment, self.now)
                self._drain()
            self.sender.handle_timeout(self.now)
            self.receiver.handle_timeout(self.now)

    def _drain(self) -> None:
        while (segment := self.sender.poll_transmit(self.now)) is not None:
            self.sent.append((self.now, segment))
            changed = self._change(len(self.sent), segment)
            if changed is not None:
                self._on_way.append((self.now + WAY, len(self.sent), self.receiver, changed))
        while (segment := self.receiver.poll_transmit(self.now)) is not None:
            self.answers.append((self.now, segment))
            self._on_way.append((self.now + WAY, len(self.answers), self.sender, segment))

    def data(self) -> list[tuple[Time, int]]:
        """When data left, and its number of segments from the start."""
        return [(time, (each.sequence - 1) // MSS) for time, each in self.sent if each.payload]


def test_slow_start_sends_half_as_much_again_a_round_trip_with_delayed_acks() -> None:
    """RFC 5681 3.1: one segment more for each ACK, and an ACK for two segments."""
    line = Line(100 * MSS)

    line.run()

    rounds: dict[Time, int] = {}
    for time, _ in line.data():
        rounds[time] = rounds.get(time, 0) + 1
    # Of 15 segments the last one has no ACK yet: 7 ACKs make 22, and one of them is on the way.
    assert list(rounds.values())[:4] == [10, 15, 21, 33]
    assert list(rounds)[:2] == [2 * WAY, 4 * WAY]
    assert line.sender.state is State.DONE
    assert (line.receiver.received, line.receiver.wrong) == (100 * MSS, 0)


def test_lost_segment_is_repeated_after_three_duplicate_acks() -> None:
    lost: list[int] = []

    def change(number: int, segment: Segment) -> Segment | None:
        if segment.payload and (segment.sequence - 1) // MSS == 4 and not lost:
            lost.append(number)
            return None
        return segment

    line = Line(40 * MSS, change)
    line.run()

    again = [time for time, number in line.data() if number == 4]
    assert len(again) == 2
    assert again[1] - again[0] == 2 * WAY  # the ACKs of what came behind it
    assert (line.sender.retransmitted, line.sender.timeouts, line.sender.cuts) == (1, 0, 1)
    # Ten were on the way, two of the ACKs before the loss let six more leave: half of 12.
    assert line.sender.threshold <= 8 * MSS
    assert line.receiver.received == 40 * MSS


def test_lost_end_waits_for_the_timeout() -> None:
    lost: list[int] = []

    def change(number: int, segment: Segment) -> Segment | None:
        if Flags.PSH in segment.flags and not lost:
            lost.append(number)
            return None
        return segment

    line = Line(3 * MSS, change)
    line.run()

    again = [time for time, number in line.data() if number == 2]
    assert line.sender.timeouts == 1
    # The timer was set again by the ACK of the first two segments.
    assert again[1] - again[0] == 2 * WAY + 200 * MS
    assert line.receiver.received == 3 * MSS


def test_mark_is_echoed_until_the_window_was_halved_once() -> None:
    """RFC 3168 6.1."""

    def change(number: int, segment: Segment) -> Segment:
        if segment.payload and (segment.sequence - 1) // MSS == 3:
            assert segment.is_capable
            return Segment(
                segment.sequence,
                segment.acknowledgement,
                segment.flags,
                segment.window,
                payload=segment.payload,
                is_capable=True,
                is_marked=True,
            )
        return segment

    line = Line(60 * MSS, change, uses_ecn=True)
    line.run()

    syn, answer = line.sent[0][1], line.answers[0][1]
    assert syn.flags == Flags.SYN | Flags.ECE | Flags.CWR
    assert answer.flags == Flags.SYN | Flags.ACK | Flags.ECE
    assert sum(Flags.CWR in each.flags for _, each in line.sent[1:]) == 1
    echoes = [each for _, each in line.answers[1:] if Flags.ECE in each.flags]
    assert 3 <= len(echoes) < 12  # a round trip of them
    assert (line.sender.cuts, line.sender.retransmitted) == (1, 0)


@given(
    total=st.integers(0, 60 * MSS),
    seed=st.randoms(use_true_random=True),  # drawn numbers may lose every segment
    loss=st.sampled_from((0.0, 0.05, 0.3)),
    first=st.sampled_from((0, (1 << 32) - 5000)),
)
@settings(max_examples=40, deadline=None)
def test_everything_arrives_whatever_is_lost_and_numbers_may_wrap(
    total: int, seed: Any, loss: float, first: int
) -> None:
    line = Line(total, lambda number, each: None if seed.random() < loss else each, first=first)

    line.run(until=10_000_000 * MS)

    assert line.receiver.received == total
    assert line.receiver.wrong == 0
    assert line.sender.state is State.DONE
    assert line.sender.una == total


def test_many_early_segments_are_taken_in_their_order() -> None:
    """20,000 in the window behind one that is missing, from the end to the beginning."""
    mss, count = 64, 20_000
    data = Data("test", mss)
    receiver = Receiver(data, mss=mss)
    receiver.receive(Segment(0, 0, Flags.SYN, 0xFFFF), 0)

    for number in reversed(range(count)):
        start = number * mss
        payload = data.piece(start, mss)
        receiver.receive(Segment(start + 1, 0, Flags.ACK, 500, payload=payload), 0)

    assert receiver.received == count * mss
    assert receiver.wrong == 0


A = Address(bytes(5) + b"\1", bytes((10, 0, 0, 1)), 32768)
B = Address(bytes(5) + b"\2", bytes((10, 0, 0, 2)), 5001)


def test_checksum_is_that_of_rfc_1071() -> None:
    """RFC 1071 3: the sum of its example is ddf2."""
    assert checksum(bytes.fromhex("0001f203f4f5f6f7")) == 0xFFFF ^ 0xDDF2


@given(st.binary(max_size=1460), st.integers(0, 0xFFFFFFFF), st.integers(0, 63), st.booleans())
def test_segment_survives_its_frame(payload: bytes, number: int, dscp: int, tagged: bool) -> None:
    segment = Segment(number, number ^ 5, Flags.ACK, 500, payload=payload, is_capable=True)

    frame = pack(segment, A, B, dscp=dscp, vlan=5 if tagged else None)

    assert unpack(frame) == (segment, (A.ip, A.port), (B.ip, B.port))
    if payload:
        damaged = bytearray(frame)
        damaged[60 if len(frame) > 60 else 14 + 4 * tagged + 40] ^= 1
        assert unpack(bytes(damaged)) is None


@given(st.binary(max_size=120))
def test_any_frame_is_read_or_refused(rest: bytes) -> None:
    unpack(bytes(12) + b"\x08\x00E" + rest)
    unpack(rest)


# In scenarios.

BESIDE = """
[topology]
kind = "star"
hosts = 3
[switch]
buffer = "16 MiB"
[[flow]]
from = "h1"
to = "h0"
size = "500 kB"
[[flow]]
transport = "tcp"
from = "h2"
to = "h0"
size = "500 kB"
"""


def read(text: str) -> Any:
    return read_scenario(text.encode(), "x.toml")


def test_same_transfer_over_rc_and_over_tcp_share_a_line() -> None:
    metrics = run(read(BESIDE)).metrics

    assert metrics["tcp.bytes"] == metrics["verified_bytes"] == 500_000
    # 343 segments of 1514 and 489 packets of about 1082 bytes, 24 more each on the line.
    line_time = 343 * 1538 * 80 + 489 * (1024 + 58 + 24) * 80
    assert line_time < max(metrics["tcp.time"], metrics["time"]) < line_time + 30 * US
    assert metrics["tcp.segments"] == 343
    assert metrics["tcp.retransmitted"] == metrics["drops.all"] == 0


def test_drops_of_a_lossy_class_are_repeated_one_by_one() -> None:
    text = BESIDE.replace('"16 MiB"', '"300 kB"').replace('from = "h2"', 'from = ["h1", "h2"]')

    metrics = run(read(text)).metrics

    assert metrics["drops.buffer_full"] > 0
    assert metrics["tcp.retransmitted"] >= metrics["drops.buffer_full"]
    assert metrics["tcp.bytes"] == 1_000_000
    assert metrics["tcp.unfinished"] == metrics["tcp.wrong"] == metrics["unfinished"] == 0


def test_class_that_is_not_lossless_drops_at_the_threshold_of_its_queue() -> None:
    limited = BESIDE.replace(
        'buffer = "16 MiB"', 'buffer = "4 MiB"\nclass.other.egress_alpha = "1/64"'
    ).replace('from = "h2"', 'from = ["h1", "h2"]')

    metrics = run(read(limited)).metrics

    assert metrics["drops.all"] == metrics["drops.queue_full"] > 0
    assert metrics["tcp.bytes"] == 1_000_000


def test_shipped_comparison_pauses_rc_and_drops_tcp_when_the_buffer_is_small() -> None:
    metrics = run(load("tcp-beside-rdma", [parse_setting("switch.buffer.size=300kB")])).metrics

    assert metrics["pauses"] > 0
    assert metrics["retransmitted"] == 0
    assert metrics["tcp.retransmitted"] >= metrics["drops.all"] > 0


def test_marks_reach_the_sender() -> None:
    text = BESIDE.replace('from = "h2"', 'from = ["h1", "h2"]\necn = true') + (
        '[switch.class.other]\necn = { min = "20 kB" }\n'
    )

    metrics = run(read(text)).metrics

    assert metrics["tcp.marked"] > 0
    assert metrics["tcp.marked"] == metrics["marks"]
    assert metrics["tcp.cuts"] > 0
    assert metrics["tcp.retransmitted"] == 0


def test_tcp_needs_no_switch_and_no_rdma() -> None:
    metrics = run(
        read('[[flow]]\ntransport = "tcp"\nfrom = "a"\nto = "b"\nsize = 5000\ncount = 3')
    ).metrics

    assert (metrics["tcp.flows"], metrics["tcp.bytes"], metrics["messages"]) == (3, 15_000, 0)


def test_goodput_counts_to_the_end_of_the_run_while_a_flow_is_unfinished() -> None:
    text = BESIDE.replace("hosts = 3", 'hosts = 3\nrate = "10G"').replace("500 kB", "10 MB")
    flow = '[[flow]]\ntransport = "tcp"\nfrom = "h1"\nto = "h0"\nsize = "10 kB"\n'

    outcome = run(read('limit = "2ms"\n' + text + flow))

    metrics = outcome.metrics
    _, left = tcp_lines(outcome)
    assert left.startswith("tcp flow tcp1, h2 to h0: ")
    assert left.endswith(" of 10,000,000 bytes acknowledged")
    assert (metrics["tcp.flows"], metrics["tcp.unfinished"]) == (2, 1)
    assert metrics["tcp.time"] == 2 * MS
    assert metrics["tcp.goodput"] == metrics["tcp.bytes"] * 8 * 500
    assert 0 < metrics["tcp.goodput"] < 10_000_000_000


@pytest.mark.parametrize("count", [5, 50])
def test_work_for_a_segment_does_not_grow_with_the_connections(
    count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: Counter[str] = Counter()
    for kind in (Sender, Receiver):
        for name in ("poll_transmit", "poll_timeout", "handle_timeout", "receive"):
            monkeypatch.setattr(kind, name, counted(getattr(kind, name), name, calls))
    text = '[[flow]]\ntransport = "tcp"\nfrom = "a"\nto = "b"\nsize = 5000\nstagger = "1us"\n'

    metrics = run(read(f"{text}count = {count}")).metrics

    assert metrics["tcp.segments"] == 4 * count
    # Two for the handshake, four with data, and about as many answers and ACKs.
    assert 6 * count <= calls["receive"] <= 14 * count
    assert calls["poll_transmit"] < 4 * calls["receive"]
    assert calls["poll_timeout"] < 10 * calls["receive"]
    assert calls["handle_timeout"] <= count


FIVE = """
[[wire]]
between = ["a", "b"]
{faults}
[[flow]]
transport = "tcp"
from = "a"
to = "b"
size = "100 kB"
count = 5
min_rto = "1ms"
"""


def test_connections_of_a_host_send_in_turn() -> None:
    network = Network(read(FIVE.format(faults="")), 1)
    ports: list[int] = []

    def note(frame: bytes, now: Time) -> tuple[tuple[Time, bytes], ...]:
        if len(frame) > 1000:
            ports.append(int.from_bytes(frame[34:36]))
        return ((0, frame),)

    network.simulator.wires[0].a_to_b.stage = note
    network.run()

    # While each has some of its first ten segments left.
    assert len(set(ports)) == 5
    assert ports[10:15] == ports[15:20] == ports[20:25]
    assert len(set(ports[10:15])) == 5


def test_each_connection_of_a_host_has_its_own_timer() -> None:
    metrics = run(read(FIVE.format(faults="[[wire.faults.a]]\nloss = 0.3"))).metrics

    assert metrics["tcp.bytes"] == 500_000
    assert metrics["tcp.timeouts"] > 5
    assert metrics["tcp.unfinished"] == metrics["tcp.wrong"] == 0


def test_damaged_segments_are_counted_and_repeated() -> None:
    """Without a switch, the checksum of TCP finds the changed bit."""
    rule = '[[wire.faults.a]]\ncorrupt = { nth = [8, 9], where = "frame" }'
    outcome = run(read(FIVE.format(faults=rule)))

    assert outcome.metrics["tcp.dropped"] == outcome.metrics["faults"] == 2
    assert outcome.metrics["tcp.bytes"] == 500_000
    assert next(tcp_lines(outcome)).endswith(", 2 dropped by hosts")


def counted(method: Any, name: str, calls: Counter[str]) -> Any:
    def call(*arguments: Any) -> Any:
        calls[name] += 1
        return method(*arguments)

    return call


def test_report_of_a_run_without_rdma_has_no_rates_of_queue_pairs() -> None:
    only_tcp = BESIDE[: BESIDE.index("[[flow]]")] + BESIDE[BESIDE.rindex("[[flow]]") :]

    assert "\nfairness: 1;" in "\n".join(switch_lines(run(read(BESIDE)), None))
    lines = list(switch_lines(run(read(only_tcp)), None))
    assert not [line for line in lines if "goodput" in line]
    assert [line for line in lines if line.startswith("busiest port: ")]


@pytest.mark.parametrize(
    ("count", "words"), [(0, "0 segments "), (1, "1 segment "), (2, "2 segments ")]
)
def test_report_counts_repeated_segments(count: int, words: str) -> None:
    outcome = run(read('[[flow]]\ntransport = "tcp"\nfrom = "a"\nto = "b"\nsize = 5000'))
    outcome.metrics["tcp.retransmitted"] = count

    assert f"; {words}repeated, 0 timeouts" in next(tcp_lines(outcome))


@each_case(
    ("old", "new", "message"),
    [
        ('transport = "tcp"', 'transport = "sctp"', "not one of"),
        ('transport = "tcp"', 'transport = "tcp"\nmss = 10', "mss: 10 is not from 64"),
        ('transport = "tcp"', 'transport = "tcp"\nmtu = 1024', "mtu"),
        ('transport = "tcp"', 'transport = "tcp"\nmin_rto = "0us"', "above 0"),
        ('transport = "tcp"', 'transport = "tcp"\ncount = 5000', "count"),
        ('"h2"', '"h0"', "send to itself"),
    ],
)
def test_impossible_tcp_flows_are_refused(old: str, new: str, message: str) -> None:
    with pytest.raises(ScriptError, match=message):
        read(BESIDE.replace(old, new))


DRAWN = 'sizes = "web-search"\nload = 0.5\nduration = "1s"\ncount = 2'


@pytest.mark.parametrize("more", ['transport = "tcp"', "", DRAWN])
def test_flow_between_hosts_that_no_wires_connect_is_refused(more: str) -> None:
    nodes = "".join(f'[[node]]\nname = "{name}"\n' for name in "abc")
    text = nodes + '[[wire]]\nbetween = ["a", "b"]\n[[flow]]\nfrom = "a"\nto = "c"\n' + more
    with pytest.raises(ScriptError, match=r"x\.toml:11:6: flow.0..to: no wires lead from a to c"):
        read(text)
    read(text.replace('to = "c"', 'to = "b"'))


def test_tcp_needs_ipv4() -> None:
    text = '[[node]]\nname = "a"\naddress = "fd00::1"\n[[node]]\nname = "b"\n'
    with pytest.raises(ScriptError, match="tcp needs IPv4, and a has fd00::1"):
        read(text + '[[flow]]\ntransport = "tcp"\nfrom = "a"\nto = "b"')


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("tshark") is None, reason="tshark not installed")
def test_tshark_finds_nothing_wrong_with_the_segments(tmp_path: Path) -> None:
    scenario, capture = tmp_path / "x.toml", tmp_path / "x.pcapng"
    scenario.write_text(BESIDE)
    result = CliRunner().invoke(main, ["run", str(scenario), "-o", str(capture), "--tap", "h2"])
    assert result.exit_code == 0, result.output
    assert "tcp: 1 flow, 500,000 bytes" in result.output

    def count(condition: str) -> int:
        arguments = ["-r", str(capture), "-Y", condition, "-o", "tcp.check_checksum:TRUE"]
        arguments += ["-o", "ip.check_checksum:TRUE", "-T", "fields", "-e", "frame.number"]
        found = subprocess.run(["tshark", *arguments], capture_output=True, text=True, check=True)
        return len(found.stdout.split())

    assert count("tcp.len > 0") == 343
    assert count("tcp.flags.syn == 1") == 2
    assert count("tcp.flags.fin == 1") == 2
    assert count("_ws.malformed || tcp.checksum.status == 0 || ip.checksum.status == 0") == 0
    assert count("tcp.analysis.flags") == 0
