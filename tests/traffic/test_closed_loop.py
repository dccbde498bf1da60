"""A sender sender in virtual time: every message arrives once and in order, whatever is lost."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from each_case import each_case
from examples import sampled, usual
from ibwire.base.errors import EncodeError
from ibwire.base.node import Frame
from ibwire.base.units import GBPS, MS, NS, US, S, Time
from ibwire.fabric.sim import Simulator
from ibwire.rc.attributes import AddressVector, QPCap, QPState, QPType
from ibwire.rc.connect import ALL_ACCESS, bring_up
from ibwire.rc.device import Device, gid_of
from ibwire.rc.qp import QPInit, QueuePair
from ibwire.rc.work import SGE, RecvWR
from ibwire.traffic.closed_loop import ClosedLoopSender, SendPolicy
from ibwire.traffic.injection import Injection
from ibwire.traffic.pace import make_pace, parse_rate
from ibwire.traffic.rate_reduction import ReducedRateClock
from ibwire.traffic.stream import Payload, Stream, Verb
from ibwire_layers import headers as h
from ibwire_layers.opcodes import OpCode
from ibwire_layers.packet import Packet

OURS, PEERS = "10.0.0.1", "10.0.0.22"
POSTED = 8192
"""Bytes of each receive request."""


class Talk:
    """A sender sender and an emulated responder, with a wire that may lose frames."""

    def __init__(self, queue_pairs: int = 1, psn: int = 0xFFFFF0, posted: int = 1000) -> None:
        self.psn = psn
        self.device = Device("peer", PEERS)
        self.pd = self.device.alloc_pd()
        self.mr = self.pd.register(1 << 20, int(ALL_ACCESS))
        self.cq = self.device.create_cq(1 << 16)
        self.qps = [self._queue_pair(number, posted) for number in range(queue_pairs)]
        self.sim = Simulator()
        self.frames: list[tuple[Time, Frame]] = []
        """What was sent, lost or not."""
        self.answers: list[tuple[Time, Frame]] = []
        self.lose: Callable[[Packet, int], bool] = lambda packet, number: False
        """Whether to lose a request; numbers are from 1."""
        self.lose_answer = self.lose

    def _queue_pair(self, number: int, posted: int) -> QueuePair:
        cap = QPCap(max_send_wr=16, max_recv_wr=4096)
        init = QPInit(QPType.RC, self.pd, send_cq=self.cq, recv_cq=self.cq, cap=cap)
        qp = self.device.create_qp(init, 0x200 + number)
        bring_up(
            qp,
            AddressVector(dgid=gid_of(OURS)),
            dest_qp_num=0x100 + number,
            sq_psn=0,
            rq_psn=self.psn,
            path_mtu=3,
            timeout=14,
        )
        for _ in range(posted):
            self.post(qp)
        return qp

    def post(self, qp: QueuePair) -> None:
        qp.post_recv(RecvWR([SGE(self.mr.iova, POSTED, self.mr.lkey)]))

    def stream(self, **more: Any) -> Stream:
        values: dict[str, Any] = {
            "verb": Verb.SEND,
            "src": OURS,
            "dst": PEERS,
            "qpns": tuple((qp.number, 1) for qp in self.qps),
            "src_qpn": 0x100,
            "psn": self.psn,
            "va": self.mr.iova,
            "rkey": self.mr.rkey,
        }
        return Stream(**{**values, **more})

    def run(self, injection: Injection, until: Time = 100 * S, **policy: Any) -> ClosedLoopSender:
        sender = ClosedLoopSender(
            injection.queue_pairs(), SendPolicy(**policy), time=injection.time, pace=injection.pace
        )
        self.sim.connect(
            sender,
            self.device,
            rate_bps=100 * GBPS,
            delay=US,
            a_to_b=self._stage(self.frames, lambda p, n: self.lose(p, n)),
            b_to_a=self._stage(self.answers, lambda p, n: self.lose_answer(p, n)),
        )
        self.sim.run(until=until)
        return sender

    def _stage(self, seen: list[tuple[Time, Frame]], lose: Callable[[Packet, int], bool]) -> Any:
        def stage(frame: Frame, now: Time) -> list[tuple[Time, Frame]]:
            seen.append((now, frame))
            return [] if lose(Packet.parse(frame), len(seen)) else [(0, frame)]

        return stage

    @property
    def sizes(self) -> list[int]:
        """Bytes of each message that was received, in order."""
        return [wc.byte_len for wc in self.cq.poll(1 << 16)]

    @property
    def psns(self) -> list[int]:
        """Of what was sent, from 0 on."""
        return [(Packet.parse(frame).bth.psn - self.psn) % 2**24 for _, frame in self.frames]


def packets_of(injection: Injection) -> list[Frame]:
    """The frames as they are without a responder."""
    found = []
    for frames, lengths in injection.blocks(64):
        found += [
            row[:length].tobytes() for row, length in zip(frames, lengths.tolist(), strict=True)
        ]
    return found


def test_without_loss_every_packet_leaves_once_and_as_in_the_mix() -> None:
    talk = Talk()
    injection = Injection(streams=(talk.stream(size=2500),), count=300)

    sender = talk.run(injection, window=64, goes_back_n=True)

    assert [frame for _, frame in talk.frames] == packets_of(injection)
    assert talk.sizes == [2500] * 100
    (tally,) = sender.responses.tallies
    assert (tally.sent, tally.acknowledged, tally.missing) == (300, 300, 0)
    assert (tally.acks, tally.retransmitted, tally.timeouts) == (100, 0, 0)
    assert tally.highest_psn == (talk.psn + 299) % 2**24
    assert sender.done
    assert sender.error is None


@pytest.mark.slow
@pytest.mark.parametrize("size", [100, 2500])
@pytest.mark.parametrize("seed", range(10))
def test_under_loss_all_messages_arrive_once_and_in_order(seed: int, size: int) -> None:
    talk = Talk(posted=300)
    draw = random.Random(seed)
    talk.lose = talk.lose_answer = lambda packet, number: draw.random() < 0.05
    stream = talk.stream(size=size, verb=Verb.SEND_IMM, payload=Payload.COUNTER)
    count = 200 * stream.packets

    sender = talk.run(Injection(streams=(stream,), count=count), window=16, goes_back_n=True)

    assert sender.done
    assert sender.error is None
    assert talk.sizes == [size] * 200
    assert sender.responses.tallies[0].acknowledged == count
    assert sender.responses.tallies[0].retransmitted > 0
    # What is sent again has the same bytes.
    first: dict[int, Frame] = {}
    for number, (_, frame) in zip(talk.psns, talk.frames, strict=True):
        assert first.setdefault(number, frame) == frame


def test_a_nak_is_answered_from_its_psn_on() -> None:
    talk = Talk()
    talk.lose = lambda packet, number: number == 11

    sender = talk.run(
        Injection(streams=(talk.stream(size=1024),), count=100), window=8, goes_back_n=True
    )

    again = talk.psns.index(10, 11)
    assert talk.psns[again : again + 8] == list(range(10, 18))
    assert sender.responses.tallies[0].naks == {"PSN_SEQUENCE_ERROR": 1}
    assert sender.responses.tallies[0].timeouts == 0
    assert talk.sizes == [1024] * 100


def test_a_lost_acknowledgement_costs_a_timeout_and_nothing_else() -> None:
    talk = Talk()
    talk.lose_answer = lambda packet, number: number == 1

    sender = talk.run(Injection(streams=(talk.stream(),), count=1), window=1, goes_back_n=True)

    (tally,) = sender.responses.tallies
    assert (tally.acknowledged, tally.timeouts, tally.retransmitted) == (1, 1, 1)
    assert 67 * MS < talk.frames[1][0] - talk.frames[0][0] < 90 * MS
    assert talk.sizes == [1024]


@pytest.mark.parametrize(
    ("queue_pairs", "window", "total_window", "most"),
    [(1, 1, None, 1), (1, 5, None, 5), (3, 5, None, 15), (3, 64, 5, 5), (3, 1, 64, 3)],
)
def test_no_more_packets_than_the_window_are_unacknowledged(
    queue_pairs: int, window: int, total_window: int | None, most: int
) -> None:
    talk = Talk(queue_pairs)
    count = usual(600, quick=200)
    injection = Injection(streams=(talk.stream(size=100),), count=count)
    talk.run(injection, window=window, total_window=total_window)

    events = [(time, +1) for time, _ in talk.frames]
    events += [(time, -1) for time, _ in talk.answers]
    level = highest = 0
    for _, change in sorted(events, key=lambda event: (event[0], event[1])):
        level += change
        highest = max(highest, level)

    assert len(talk.answers) == count
    assert highest == most


def test_an_rnr_nak_is_waited_for() -> None:
    talk = Talk(posted=3)
    (qp,) = talk.qps
    sender = ClosedLoopSender(
        Injection(streams=(talk.stream(),), count=10).queue_pairs(),
        SendPolicy(window=4, goes_back_n=True),
    )
    talk.sim.connect(
        sender,
        talk.device,
        a_to_b=talk._stage(talk.frames, talk.lose),
        b_to_a=talk._stage(talk.answers, talk.lose),
    )
    talk.sim.run(until=S, stop=lambda: sender.responses.tallies[0].rnr_naks == 1)
    asked = talk.sim.now
    sent = len(talk.frames)
    for _ in range(10):
        talk.post(qp)
    talk.sim.run(until=S)

    # What was on its way when the RNR NAK came was refused too; then comes the first again.
    code = Packet.parse(talk.answers[3][1]).extension(h.AETH)
    assert code is not None
    assert code.syndrome >> 5 == 1
    again = talk.frames[sent:]
    assert again[0][0] - asked >= 10 * US  # the shortest timer of all
    assert talk.psns[sent] == 3
    assert talk.sizes == [1024] * 10
    assert sender.responses.tallies[0].timeouts == 0


@pytest.mark.parametrize(("verb", "size"), [(Verb.READ, 4096), (Verb.FADD, None)])
@pytest.mark.parametrize("seed", sampled(range(5), 3))
def test_reads_and_atomics_are_asked_for_again_until_each_is_answered(
    verb: Verb, size: int | None, seed: int
) -> None:
    talk = Talk()
    draw = random.Random(seed)
    talk.lose = talk.lose_answer = lambda packet, number: draw.random() < 0.05

    sender = talk.run(
        Injection(streams=(talk.stream(verb=verb, size=size, swap=1),), count=200),
        window=4,
        goes_back_n=True,
    )

    (tally,) = sender.responses.tallies
    assert sender.error is None
    assert (tally.acknowledged, tally.missing) == (200, 0)
    if verb is Verb.FADD:
        assert int.from_bytes(bytes(talk.mr.buffer)[:8], "little") == 200


@pytest.mark.parametrize(("verb", "size"), [(Verb.READ, 2048), (Verb.FADD, None)])
def test_an_answer_that_is_passed_over_is_asked_for_again_at_once(
    verb: Verb, size: int | None
) -> None:
    talk = Talk()
    lost = (talk.psn + (7 if verb is Verb.READ else 3)) % 2**24
    seen: list[int] = []

    def lose(packet: Packet, number: int) -> bool:
        seen.append(packet.bth.psn)
        return packet.bth.psn == lost and seen.count(lost) == 1

    talk.lose_answer = lose
    injection = Injection(streams=(talk.stream(verb=verb, size=size, swap=1),), count=20)

    sender = talk.run(injection, window=4, goes_back_n=True)

    (tally,) = sender.responses.tallies
    assert (tally.acknowledged, tally.timeouts) == (20, 0)
    assert tally.gaps >= 1
    # Request 3, in PSNs 6 and 7 if it is a READ, and with it those behind it.
    third = 6 if verb is Verb.READ else 3
    assert talk.psns.count(third) == 2
    assert talk.psns.count(0) == 1


def test_counts_are_those_of_the_mix() -> None:
    talk = Talk(queue_pairs=3)
    stream = talk.stream(qpns=((0x200, 3), (0x201, 1), (0x202, 1)), size=2500)
    injection = Injection(streams=(stream,), count=137)
    found = [Packet.parse(frame).bth.dest_qp for frame in packets_of(injection)]

    assert {pair.qpn: pair.count for pair in injection.queue_pairs()} == {
        qpn: found.count(qpn) for qpn in set(found)
    }


def test_a_queue_pair_that_loses_does_not_hold_up_the_others() -> None:
    talk = Talk(queue_pairs=2)
    talk.lose = lambda packet, number: packet.bth.dest_qp == 0x200 and number < 500
    injection = Injection(streams=(talk.stream(),), count=400)

    sender = talk.run(injection, window=8, goes_back_n=True)

    ends = {
        qpn: max(time for time, frame in talk.frames if Packet.parse(frame).bth.dest_qp == qpn)
        for qpn in (0x200, 0x201)
    }
    assert ends[0x201] < 5 * MS < ends[0x200]
    assert [tally.acknowledged for tally in sender.responses.tallies] == [200, 200]


def test_a_refusal_that_nothing_cures_is_an_error() -> None:
    talk = Talk()
    stream = talk.stream(verb=Verb.WRITE, rkey=talk.mr.rkey + 1)

    sender = talk.run(Injection(streams=(stream,), count=10), window=4, goes_back_n=True)

    assert talk.qps[0].state is QPState.ERR
    assert str(sender.error) == "QP 0x200: NAK REMOTE_ACCESS_ERROR for PSN 16777200"


@pytest.mark.parametrize("goes_back_n", [True, False])
def test_a_peer_that_says_nothing_ends_it_after_the_stall_timeout(goes_back_n: bool) -> None:
    talk = Talk()
    talk.lose = lambda packet, number: True

    sender = talk.run(
        Injection(streams=(talk.stream(),), count=10),
        window=4,
        goes_back_n=goes_back_n,
        stall_timeout=2 * S,
    )

    expected = "QP 0x200: no acknowledgement of PSN 16777200 for 2 s; received no NAK"
    assert str(sender.error) == expected
    assert sender.responses.tallies[0].missing == 4
    assert len(talk.frames) == (
        4 if not goes_back_n else 4 + 4 * sender.responses.tallies[0].timeouts
    )


def test_without_going_back_a_loss_is_counted_and_ends_it() -> None:
    talk = Talk()
    talk.lose = lambda packet, number: number == 5

    sender = talk.run(Injection(streams=(talk.stream(),), count=100), window=8)

    assert "for 5 s; received 1 NAK PSN_SEQUENCE_ERROR (PSN 16777204)" in str(sender.error)
    assert sender.responses.tallies[0].acknowledged == 4
    assert len(set(talk.psns)) == len(talk.psns)


def test_time_ends_it_when_what_is_on_the_way_is_acknowledged() -> None:
    talk = Talk(posted=4000)
    injection = Injection(
        streams=(talk.stream(),), time=10 * MS, pace=make_pace({"rate": parse_rate("100kpps")})
    )

    sender = talk.run(injection, window=64, goes_back_n=True)

    (tally,) = sender.responses.tallies
    assert sender.done
    assert sender.error is None
    assert sender.is_cut_short
    assert tally.sent == tally.acknowledged == 1000
    assert len(talk.sizes) == 1000


def test_queue_pairs_share_the_rate_evenly_in_time() -> None:
    talk = Talk(queue_pairs=4)
    pace = make_pace({"rate": parse_rate("100kpps")})
    talk.run(Injection(streams=(talk.stream(size=0),), count=400, pace=pace), window=64)

    gaps = np.diff([time for time, _ in talk.frames])

    assert gaps.min() == gaps.max() == 10 * US


def cnps_to(qpn: int) -> Frame:
    """A CNP to one of our queue pairs."""
    stream = Stream(verb=Verb.CNP, src=PEERS, dst=OURS, qpns=((qpn, 1),))
    (frame,) = packets_of(Injection(streams=(stream,), count=1))
    assert Packet.parse(frame).bth.opcode == OpCode.CNP
    return frame


@pytest.mark.slow
def test_a_cnp_halves_the_rate_of_its_queue_pair_which_recovers() -> None:
    talk = Talk(queue_pairs=2, posted=0)
    pace = make_pace({"rate": parse_rate("200kpps")})
    stream = talk.stream(verb=Verb.WRITE, size=0)
    sender = ClosedLoopSender(
        Injection(streams=(stream,), time=100 * MS, pace=pace).queue_pairs(),
        SendPolicy(cnp_rate_factor=0.5, recovery=20 * MS),
        time=100 * MS,
        pace=pace,
    )
    talk.sim.connect(sender, talk.device, a_to_b=talk._stage(talk.frames, talk.lose))
    talk.sim.run(until=50 * MS)
    sender.receive(cnps_to(0x100), talk.sim.now)
    talk.sim.run(until=S)

    def sent(qpn: int, begin: Time, end: Time) -> int:
        return sum(
            begin <= time < end and Packet.parse(frame).bth.dest_qp == qpn
            for time, frame in talk.frames
        )

    assert sent(0x201, 50 * MS, 52 * MS) == sent(0x200, 40 * MS, 42 * MS) == 200
    # Half, and then a tenth of a half more each millisecond.
    assert sent(0x200, 50 * MS, 51 * MS) == pytest.approx(52.5, abs=1)
    assert sent(0x200, 55 * MS, 56 * MS) == pytest.approx(77.5, abs=1)
    assert sent(0x200, 60 * MS, 61 * MS) == 100
    assert sender.responses.tallies[0].cnps == 1


def test_the_last_packet_that_nobody_answers_wakes_whoever_drives_it() -> None:
    pace = make_pace({"rate": parse_rate("1kpps")})
    injection = Injection(streams=(Talk().stream(verb=Verb.WRITE),), count=2, pace=pace)
    sender = ClosedLoopSender(injection.queue_pairs(), SendPolicy(cnp_rate_factor=0.5), pace=pace)
    assert sender.poll_transmit(0)
    assert not sender.done
    sender.handle_timeout(MS)
    assert sender.poll_transmit(MS)

    assert sender.done
    assert sender.poll_timeout() == MS
    sender.handle_timeout(MS)
    assert sender.poll_timeout() is None


@each_case("seed", range(5))
def test_the_slowed_clock_says_the_same_in_both_directions(seed: int) -> None:
    draw = random.Random(seed)
    clock = ReducedRateClock(0, 20 * MS)
    now = own = 0
    for _ in range(200):
        own += draw.randrange(1, 5 * MS)
        real = clock.real_time(own)
        assert real >= now
        now = real
        # What passes on it is what its speed is on average.
        assert clock._own_at(now) == pytest.approx(own, abs=NS)
        if draw.random() < 0.5:
            clock.reduce(now, draw.choice([0.5, 0.9]))


def test_two_streams_share_an_own_queue_pair_towards_no_address() -> None:
    talk = Talk()
    streams = (talk.stream(), talk.stream(qpns=((0x300, 1),)))

    with pytest.raises(EncodeError, match="src_qpn: '0x100' is not used once towards"):
        Injection(streams=streams, count=10).queue_pairs()


@pytest.mark.parametrize(
    ("stream", "policy", "reason"),
    [
        ({"ack_every": 0}, {"window": 4}, "request no acknowledgement"),
        ({"size": 8192}, {"window": 4}, "8 or more"),
        ({}, {"goes_back_n": True}, "is required by go-back-N"),
        ({}, {"cnp_rate_factor": 0.5}, "without a rate"),
    ],
)
def test_manners_that_a_stream_cannot_have_are_refused(
    stream: dict[str, Any], policy: dict[str, Any], reason: str
) -> None:
    talk = Talk()
    pairs = Injection(streams=(talk.stream(**stream),), count=10).queue_pairs()

    with pytest.raises(EncodeError, match=reason):
        ClosedLoopSender(pairs, SendPolicy(**policy))


def acknowledgement(psn: int, syndrome: int = 0x1F) -> Frame:
    """Of the only queue pair."""
    stream = Stream(
        verb=Verb.ACK, src=PEERS, dst=OURS, qpns=((0x100, 1),), psn=psn % 2**24, syndrome=syndrome
    )
    (frame,) = packets_of(Injection(streams=(stream,), count=1))
    return frame


def test_what_is_acknowledged_after_all_is_not_sent_again() -> None:
    talk = Talk(psn=0)
    injection = Injection(streams=(talk.stream(),), count=100)
    sender = ClosedLoopSender(injection.queue_pairs(), SendPolicy(window=8, goes_back_n=True))
    for _ in range(8):
        assert sender.poll_transmit(0)

    sender.receive(acknowledgement(2, 0x60), 0)  # a NAK
    sender.receive(acknowledgement(5), 0)

    following = [sender.poll_transmit(0) for _ in range(3)]
    assert [Packet.parse(each).bth.psn for each in following if each] == [6, 7, 8]
    assert sender.responses.tallies[0].retransmitted == 2


def test_old_answers_take_nothing_back() -> None:
    talk = Talk(psn=0)
    injection = Injection(streams=(talk.stream(),), count=100)
    sender = ClosedLoopSender(injection.queue_pairs(), SendPolicy(window=8, goes_back_n=True))
    for _ in range(8):
        assert sender.poll_transmit(0)
    sender.receive(acknowledgement(5), 0)

    for old in (acknowledgement(3), acknowledgement(3, 0x60), acknowledgement(-4, 0x60)):
        sender.receive(old, 0)

    assert sender.responses.tallies[0].acknowledged == 6
    frame = sender.poll_transmit(0)
    assert frame is not None
    assert Packet.parse(frame).bth.psn == 8


def test_hostile_answers_change_nothing() -> None:
    talk = Talk()
    sender = ClosedLoopSender(
        Injection(streams=(talk.stream(),), count=100).queue_pairs(),
        SendPolicy(window=8, goes_back_n=True),
    )
    for _ in range(8):
        assert sender.poll_transmit(0)
    draw = random.Random(6)
    right, impossible = acknowledgement(talk.psn + 7), acknowledgement(talk.psn + 8)
    for _ in range(2000):
        damaged = bytearray(right)
        damaged[draw.randrange(14, len(right))] ^= 1 << draw.randrange(8)
        for unprotected in (15, 22, 46):  # TOS, TTL, BTH byte 4: no ICRC covers them
            damaged[unprotected] = right[unprotected]
        if bytes(damaged) != right:
            sender.receive(bytes(damaged), 0)
        sender.receive(draw.randbytes(draw.randrange(100)), 0)
    sender.receive(impossible, 0)

    (tally,) = sender.responses.tallies
    assert (tally.acknowledged, tally.impossible) == (0, 1)
    sender.receive(right, 0)
    assert tally.acknowledged == 8
