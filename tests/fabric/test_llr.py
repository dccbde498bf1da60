"""Link-level retry: cases of the test plan of UEC, and whole networks (reference/fabric#llr)."""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from examples import scaled
from fabric.hosts import Host, Network, frame
from ibwire.base.errors import EncodeError
from ibwire.base.node import DamagedFrame, Frame
from ibwire.base.units import GBPS, MS, NS, US, Time
from ibwire.fabric import Simulator
from ibwire.fabric.llr import LLR, Control, LLRCounters, RetryLink, Sending, WhileDown
from ibwire.fabric.lossless import Outage
from ibwire.fabric.topology import star
from ibwire.impair import Chance, Corrupt, Loss

INITIALISED = 10 * US
"""The echo of INIT comes after 2 us."""


class Run:
    """Two hosts at a wire with LLR; `wrong` is a stage of the direction from a to b."""

    def __init__(self, wrong: Any = None, *, drops: Any = None, **changes: Any) -> None:
        self.simulator = Simulator()
        self.a, self.b = Host("a"), Host("b")
        wire = self.simulator.connect(
            self.a, self.b, rate_bps=100 * GBPS, delay=1 * US, a_to_b=wrong, flow_control=True
        )
        self.wire = wire
        self.link = RetryLink(self.simulator, wire, LLR(**changes), drops_control=drops)
        self.sender, self.receiver = self.link.ends

    def send(self, count: int, size: int = 1024) -> None:
        self.simulator.run(until=INITIALISED)
        self.a.to_send.extend(frame(1, number=number, size=size) for number in range(count))
        self.simulator.run(until=50 * MS)

    @property
    def numbers(self) -> list[int]:
        return [int.from_bytes(each[51:54]) for _, each in self.b.got]

    @property
    def tx(self) -> LLRCounters:
        return self.sender.counters

    @property
    def rx(self) -> LLRCounters:
        return self.receiver.counters


class Nth:
    """Loses the frames with these places, or damages them."""

    def __init__(self, *places: int, damages: bool = False) -> None:
        self.places, self.damages, self.count = places, damages, 0

    def __call__(self, each: Frame, now: Time) -> list[tuple[Time, Frame]]:
        self.count += 1
        if self.count not in self.places:
            return [(0, each)]
        return [(0, each[:-1] + bytes([each[-1] ^ 1]))] if self.damages else []


def test_thousand_clean_frames() -> None:
    run = Run()

    run.send(1000)

    assert run.numbers == list(range(1000))
    assert run.tx.LLR_TX_OK == 1000
    assert (run.rx.LLR_RX_OK, run.rx.LLR_RX_EXPECTED_SEQ_GOOD) == (1000, 1000)
    assert (run.rx.LLR_RX_DUPLICATE_SEQ, run.tx.LLR_TX_REPLAY) == (0, 0)
    # An ACK for each 2048 bytes; frames have 1082 bytes.
    assert run.rx.LLR_TX_ACK_CTL_OS == run.tx.LLR_RX_ACK_CTL_OS == 500
    assert (run.tx.LLR_TX_INIT_CTL_OS, run.tx.LLR_RX_INIT_ECHO_CTL_OS) == (1, 1)


@pytest.mark.parametrize("damages", [False, True])
def test_frame_50_of_100_is_lost_or_damaged(damages: bool) -> None:
    sent: list[tuple[Control, int]] = []

    def note(kind: Control, number: int, now: Time) -> bool:
        sent.append((kind, number))
        return False

    run = Run(Nth(50, damages=damages), drops=note)

    run.send(100)

    assert run.numbers == list(range(100))
    assert run.rx.LLR_TX_NACK_CTL_OS == 1
    # Frame 50 has the number 49; the last good one is 48. No ACK until it comes again.
    nack = sent.index((Control.NACK, 48))
    assert sent[nack + 1] == (Control.ACK, 50)
    assert run.tx.LLR_TX_REPLAY == run.rx.LLR_RX_REPLAY == 1
    assert run.rx.LLR_RX_DUPLICATE_SEQ == 0
    assert damages == run.rx.LLR_RX_BAD == run.rx.LLR_RX_EXPECTED_SEQ_BAD
    assert run.rx.LLR_RX_OK == 100


def test_without_acks_frames_are_repeated_when_the_timer_expires_and_not_before() -> None:
    times: list[Time] = []

    def wrong(each: Frame, now: Time) -> list[tuple[Time, Frame]]:
        times.append(now)
        return [(0, each)]

    run = Run(wrong, drops=lambda kind, number, now: kind is Control.ACK and now < 25 * US)

    run.send(1)

    assert [time - times[0] for time in times] == [0, 10_000 * NS, 20_000 * NS]
    assert run.numbers == [0]
    assert run.rx.LLR_RX_DUPLICATE_SEQ == 2


def test_sequence_numbers_wrap_without_false_duplicates() -> None:
    run = Run(sequence_bits=5, frames=15)

    run.send(100)

    assert run.numbers == list(range(100))
    assert run.rx.LLR_RX_DUPLICATE_SEQ == run.rx.LLR_RX_MISSING_SEQ == 0


def test_five_percent_of_random_loss() -> None:
    run = Run(Loss(Chance(0.05, seed=1)))

    run.send(400)

    assert run.numbers == list(range(400))
    assert run.tx.LLR_TX_REPLAY > 8
    assert run.tx.LLR_TX_DISCARD == 0


def test_loss_costs_a_round_trip_and_what_was_in_flight() -> None:
    clean, lossy = Run(), Run(Nth(50))
    clean.send(100)
    lossy.send(100)

    # The gap shows with frame 51, the NACK returns after 1 us: frames 50 to then are sent again.
    # A frame takes 88.48 ns.
    extra = lossy.b.got[-1][0] - clean.b.got[-1][0]
    assert 2 * US + 88_480 < extra < 2 * US + 4 * 88_480


def test_full_replay_buffer_holds_the_node_back() -> None:
    run = Run(frames=10)

    run.send(30)

    assert run.numbers == list(range(30))
    # Ten frames leave at once; the eleventh follows the first ACK, which takes more than 2 us.
    times = [time for time, _ in run.a.sent]
    assert times[9] - times[0] == 9 * 88_480
    assert times[10] - times[0] > 2 * US


def test_flush_after_too_many_replays_and_a_new_start() -> None:
    run = Run(Loss(lambda each, now: INITIALISED <= now < 60 * US), replay_count_max=2)

    run.send(5)

    # Replays after 10 and 20 us; after 30 us all frames are given up.
    assert run.numbers == []
    assert run.tx.LLR_TX_DISCARD == 5
    assert run.sender.sending is Sending.ADVANCE
    run.a.to_send.extend(frame(1, number=number) for number in range(7))
    run.simulator.run()
    assert run.numbers == list(range(7))


def test_flush_without_new_start_waits_for_the_operator() -> None:
    run = Run(
        Loss(lambda each, now: now < 60 * US),
        replay_count_max=1,
        re_init_on_flush=False,
        while_down=WhileDown.BLOCK,
    )
    run.send(3)
    run.a.to_send.append(frame(1, number=9))
    run.simulator.run()
    assert run.sender.sending is Sending.FLUSH
    assert run.numbers == []

    run.link.init()
    run.simulator.run()

    assert run.numbers == [9]


@pytest.mark.parametrize(
    ("policy", "arrived", "discarded"),
    [(WhileDown.BEST_EFFORT, 3, 0), (WhileDown.BLOCK, 3, 0), (WhileDown.DISCARD, 0, 3)],
)
def test_frames_before_the_link_is_initialised(
    policy: WhileDown, arrived: int, discarded: int
) -> None:
    run = Run(while_down=policy)
    run.a.to_send.extend(frame(1, number=number) for number in range(3))

    run.simulator.run(until=MS)

    assert len(run.b.got) == arrived
    assert discarded == run.tx.LLR_TX_DISCARD
    assert (3 if policy is WhileDown.BLOCK else 0) == run.tx.LLR_TX_OK


@settings(max_examples=scaled(12))
@given(
    st.integers(0, 1 << 16),
    st.floats(0, 0.3),
    st.floats(0, 0.3),
    st.floats(0, 0.3),
    st.integers(1, 40),
)
def test_every_frame_arrives_once_and_in_order(
    seed: int, loss: float, damage: float, control_loss: float, count: int
) -> None:
    drop = Chance(control_loss, seed=seed, name="control")
    losing, damaging = Loss(Chance(loss, seed=seed)), Corrupt(Chance(damage, seed=seed, name="c"))

    def wrong(each: Frame, now: Time) -> list[Any]:
        return [out for _, kept in losing(each, now) for out in damaging(kept, now)]

    late: Callable[..., bool] = lambda kind, number, now: now > INITIALISED and drop(b"", now)  # noqa: E731
    run = Run(wrong, drops=late, data_age_timeout=50 * MS, replay_count_max=10_000)

    run.send(count, size=256)

    assert run.numbers == list(range(count))


def test_network_with_lossy_links_hides_the_loss() -> None:
    run = Network(star(3), llr=LLR())
    for number, wire in enumerate(run.simulator.wires):
        wire.a_to_b.stage = Loss(Chance(0.02, seed=number))
    run.simulator.run(until=INITIALISED)
    run.hosts[0].to_send.extend(frame(2, number=number) for number in range(300))
    run.hosts[1].to_send.extend(frame(2, by=1, number=number) for number in range(300))

    run.simulator.run(until=20 * MS)

    assert len(run.hosts[2].got) == 600
    assert run.dropped == 0
    ends = [
        end.counters for each in run.network.retries.values() for link in each for end in link.ends
    ]
    assert sum(end.LLR_TX_REPLAY for end in ends) > 5


def test_link_that_fails_starts_again_when_it_is_back() -> None:
    topology = star(2)
    outage = Outage(topology.links[0], at=50 * US, until=10 * MS)
    run = Network(topology, llr={topology.links[0]: LLR()}, outages=[outage])
    run.hosts[0].to_send.extend(frame(1, number=number) for number in range(1000))

    run.simulator.run(until=30 * MS)

    (link,) = run.network.retries[topology.links[0]]
    assert list(run.network.retries) == [topology.links[0]]
    assert link.ends[0].sending is Sending.ADVANCE
    # What was on the cable is in the buffer of the sender too, which gives it up.
    assert run.lost > 0
    assert 1000 - len(run.hosts[1].got) == link.ends[0].counters.LLR_TX_DISCARD


@pytest.mark.parametrize(("outage", "is_repeated"), [(400 * NS, True), (600 * NS, False)])
def test_short_failure_is_repeated_and_a_long_one_flushes(outage: Time, is_repeated: bool) -> None:
    """PCS_LOST_TIMEOUT is 500 ns here."""
    topology = star(2)
    failure = Outage(topology.links[0], at=50 * US, until=50 * US + outage)
    run = Network(topology, llr={topology.links[0]: LLR()}, outages=[failure])
    run.hosts[0].to_send.extend(frame(1, number=number) for number in range(1000))

    run.simulator.run(until=30 * MS)

    (link,) = run.network.retries[topology.links[0]]
    discarded = link.ends[0].counters.LLR_TX_DISCARD
    assert run.lost > 0
    assert (discarded == 0) is is_repeated
    # Of the discarded ones some had arrived, and their ACKs had not.
    assert 1000 - discarded <= len(run.hosts[1].got) <= 999 + is_repeated
    numbers = [int.from_bytes(each[51:54]) for _, each in run.hosts[1].got]
    assert numbers == sorted(set(numbers))


def test_frame_that_was_damaged_before_is_poisoned_and_delivered() -> None:
    run = Network(star(2), llr=LLR())
    run.simulator.run(until=INITIALISED)
    run.hosts[0].to_send.append(DamagedFrame(frame(1)))
    run.hosts[0].to_send.append(frame(1, number=1))

    run.simulator.run(until=5 * MS)

    (link,) = run.network.retries[run.topology.links[0]]
    sent, received = (end.counters for end in link.ends)
    assert (sent.LLR_TX_POISONED, sent.LLR_TX_OK) == (1, 1)
    assert (received.LLR_RX_POISONED, received.LLR_RX_OK) == (1, 1)
    assert received.LLR_RX_EXPECTED_SEQ_POISONED == 1
    assert received.LLR_RX_BAD == sent.LLR_TX_REPLAY == 0
    assert len(run.hosts[1].got) == 1  # the switch drops it
    assert run.dropped == 1


@pytest.mark.parametrize(
    "wrong",
    [{"frames": 0}, {"sequence_bits": 1}, {"frames": 8, "sequence_bits": 4}, {"replay_timer": 0}],
)
def test_impossible_settings_are_refused(wrong: Any) -> None:
    with pytest.raises(EncodeError):
        LLR(**wrong)
