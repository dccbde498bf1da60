"""Runs of frames change nothing: the same frames at the same times, completions, counters, memory.

Each schedule is carried out twice, with runs and frame by frame. Frames are lost at the receiving
device here, because a wire with a stage has no runs.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from each_case import each_case
from examples import scaled
from ibwire.base.node import OPEN, Frame, Grant, Stage
from ibwire.base.run import FrameRun
from ibwire.base.unbuilt import UnbuiltFrame
from ibwire.base.units import NS, US, S, Time
from ibwire.fabric.sim import Outcome
from ibwire.rc.connect import connect
from ibwire.rc.device import gid_of
from ibwire.rc.packet import FORMS, TransportPacket, encode
from ibwire.rc.path import Arrivals, Path, ethernet_route, icrc_fits, run_data
from ibwire.rc.profile import PROFILES
from ibwire.rc.work import WCStatus, WROpcode
from ibwire.testing import create_queue_pair
from ibwire_layers.opcodes import OpCode
from ibwire_layers.packet import Packet
from random_schedules import PSNS
from schedules import Fault, Flow, Harm, Run, Schedule, Station, Work

MIDDLE = FORMS[OpCode.RC_RDMA_WRITE_MIDDLE]
WIRE_BYTES = 24
"""Preamble, FCS and gap of each frame."""


class LossyStation(Station):
    """A device that takes runs and loses the frames that the schedule names, as they arrive."""

    arrived = 0
    run: Framewise

    @property
    def ready_ports(self) -> list[int]:
        return self.end.device.ready_ports

    def _lost(self, count: int) -> bool:
        """Whether one of the next frames to arrive is lost."""
        peer = "b" if self.name == "a" else "a"
        numbers = range(self.arrived + 1, self.arrived + count + 1)
        return any(each.sender == peer and each.number in numbers for each in self.run.lost)

    def receive(self, frame: Frame, now: Time, port: int = 0) -> None:
        lost = self._lost(1)
        self.arrived += 1
        self.run.note(now, self.name, "lost" if lost else "arrived", frame=frame)
        if not lost:
            self.end.device.receive(frame, now, port)
        self.look(now)

    def poll_unbuilt(
        self, now: Time, port: int = 0, grant: Grant = OPEN
    ) -> Frame | UnbuiltFrame | None:
        frame = self.end.device.poll_unbuilt(now, port, grant)
        self.look(now)
        return frame

    def extend_run(self, frame: UnbuiltFrame) -> FrameRun | None:
        return self.end.device.extend_run(frame)

    def resume_run(self, run: FrameRun) -> int:
        return self.end.device.resume_run(run)

    def take_back(self, run: FrameRun, count: int) -> None:
        self.end.device.take_back(run, count)

    def expects_run(self, run: FrameRun, first: int) -> bool:
        return self.end.device.expects_run(run, first) and not self._lost(run.count - first)

    def overwrites(self, run: FrameRun, first: int, other: FrameRun) -> bool:
        return self.end.device.overwrites(run, first, other)

    def receive_run(self, run: FrameRun, first: int, last: int, now: Time, port: int = 0) -> None:
        raise AssertionError("the bytes are made")

    def receive_frames(self, frames: Sequence[Frame], now: Time, port: int = 0) -> None:
        gbps = self.run.schedule.rates_gbps[self.name == "a"]
        step = (len(frames[0]) + WIRE_BYTES) * 8000 // gbps
        for index, frame in enumerate(frames):
            began = now - (len(frames) - 1 - index) * step
            self.run.note(began, self.name, "arrived", frame=frame)
        self.arrived += len(frames)
        self.end.device.receive_frames(frames, now, port)
        self.look(now)


class UnbuiltStation(LossyStation):
    """The same for frames whose bytes nobody makes."""

    def receive_unbuilt(self, frame: UnbuiltFrame, now: Time, port: int = 0) -> None:
        lost = self._lost(1)
        self.arrived += 1
        self.run.note(now, self.name, "lost" if lost else "arrived", frame=frame.build())
        if not lost:
            self.end.device.receive_unbuilt(frame, now, port)
        self.look(now)

    def receive_run(self, run: FrameRun, first: int, last: int, now: Time, port: int = 0) -> None:
        gbps = self.run.schedule.rates_gbps[self.name == "a"]
        for index in range(first, last):
            frame = run.frame(index)
            assert isinstance(frame, TransportPacket)
            built = frame.build()
            began = now - (last - 1 - index) * ((len(built) + WIRE_BYTES) * 8000 // gbps)
            self.run.note(began, self.name, "arrived", frame=built)
        self.arrived += last - first
        self.end.device.receive_run(run, first, last, now, port)
        self.look(now)

    def receive_frames(self, frames: Sequence[Frame], now: Time, port: int = 0) -> None:
        raise AssertionError("the bytes are not made")


class Framewise(Run):
    """A schedule whose frames travel one by one."""

    with_runs = False

    def __init__(self, schedule: Schedule, station: type[Station]) -> None:
        self.lost = schedule.faults
        super().__init__(schedule, station)

    def _stage(self, sender: str) -> Stage | None:
        return None

    def _carry_out(self) -> Outcome:
        self.sim.flights.enabled = self.with_runs
        return super()._carry_out()

    def seen(self) -> dict[str, Any]:
        """Everything that must not depend on runs."""
        events = [(e.time, e.end, e.kind, e.frame, e.wc, e.number) for e in self.history]
        return {
            # Events at the two ends may be written down in another order.
            end: [each for each in sorted(events, key=lambda e: e[:3]) if each[1] == end]
            for end in "ab"
        } | {
            "memory": {name: bytes(end.mr.buffer) for name, end in self.ends.items()},
            "counters": [asdict(end.qp.counters) for end in self.ends.values()],
            "device": [end.device.counters for end in self.ends.values()],
            "events": [[e.event_type for e in end.device.events] for end in self.ends.values()],
            "now": self.sim.now,
            "frames": self.sim.frames,
            "outcome": self.outcome,
        }


class InRuns(Framewise):
    """A schedule whose frames travel in runs where that is possible."""

    with_runs = True


def check(schedule: Schedule, station: type[Station] = LossyStation) -> InRuns:
    by_frame, in_runs = Framewise(schedule, station), InRuns(schedule, station)

    assert by_frame.sim.flights.delivered == 0
    expected, found = by_frame.seen(), in_runs.seen()
    for key, value in expected.items():
        assert found[key] == value, key
    return in_runs


OPCODES = (
    WROpcode.RDMA_WRITE,
    WROpcode.SEND,
    WROpcode.RDMA_READ,
    WROpcode.RDMA_WRITE_WITH_IMM,
    WROpcode.ATOMIC_FETCH_AND_ADD,
)
AFTER = (0, 0, 0, 1 * US, 2 * US + 7, 5 * US, 40 * US)

works = st.builds(
    lambda opcode, packets, rest, place, after, pieces: Work(
        opcode,
        0 if opcode is WROpcode.ATOMIC_FETCH_AND_ADD else packets * 256 + rest,
        place=place,
        after=after,
        pieces=pieces,
    ),
    st.sampled_from(OPCODES),
    st.sampled_from((0, 1, 7, 20, 60, 150)),
    st.sampled_from((0, 1, 255)),
    st.integers(0, 2),
    st.sampled_from(AFTER),
    st.sampled_from((1, 1, 1, 2)),
)


@st.composite
def long_schedules(draw: st.DrawFn, /, most_faults: int = 5) -> Schedule:
    """Messages of many packets in both directions, and a few losses."""
    forth = tuple(draw(st.lists(works, min_size=1, max_size=4)))
    back = tuple(draw(st.just([]) | st.lists(works, max_size=3)))
    fault = st.builds(
        Fault, st.sampled_from("ab"), st.integers(1, 300), st.just(Harm.DROP), st.just(0)
    )
    late = draw(st.sampled_from((0, 0, 3 * US, 50 * US)))
    return Schedule(
        forth,
        back=back,
        faults=tuple(draw(st.lists(fault, max_size=most_faults))),
        receives=((0, 2), (late, 6)),
        profiles=(draw(st.sampled_from(sorted(PROFILES))), draw(st.sampled_from(sorted(PROFILES)))),
        psns=(draw(st.sampled_from(PSNS)), draw(st.sampled_from(PSNS))),
        rates_gbps=draw(st.sampled_from(((100, 100), (100, 1), (1, 100), (25, 100)))),
        delay=draw(st.sampled_from((100 * NS, 1 * US, 7 * US))),
        timeout=draw(st.sampled_from((4, 8, 12))),
    )


laws = settings(max_examples=scaled(40), deadline=None, derandomize=True, database=None)


@laws
@given(long_schedules())
def test_history_is_the_same_with_runs_and_frame_by_frame(schedule: Schedule) -> None:
    check(schedule)


@pytest.mark.slow
@laws
@given(long_schedules(most_faults=0))
def test_history_is_the_same_without_losses(schedule: Schedule) -> None:
    check(schedule)


@pytest.mark.slow
@laws
@given(long_schedules())
def test_history_is_the_same_for_frames_that_are_not_built(schedule: Schedule) -> None:
    check(schedule, UnbuiltStation)


STATIONS = pytest.mark.parametrize("station", [LossyStation, UnbuiltStation])


@STATIONS
def test_a_run_that_overwrites_what_another_is_read_from_travels_frame_by_frame(
    station: type[Station],
) -> None:
    """A READ, and a WRITE to the same memory that arrives while its response is under way."""
    read, write = Work(WROpcode.RDMA_READ, 150 * 256), Work(WROpcode.RDMA_WRITE, 150 * 256)

    run = check(Schedule((read, write), rates_gbps=(100, 25)), station)

    own, slot = run.own(0), run.slot(0)
    found = run.ends["a"].mr.buffer[own : own + read.length]
    before = run.initial["b"][slot : slot + read.length]
    after = run.initial["a"][run.own(1) : run.own(1) + read.length]
    assert found[:256] == before[:256]
    assert found[-256:] == after[-256:]


def test_a_wire_without_delay_has_no_runs() -> None:
    """Frames of both directions begin and end together, in an order that no run can know."""
    work = Work(WROpcode.RDMA_WRITE, 60 * 256)

    run = check(Schedule((work,), back=(work,), delay=0))

    assert run.sim.flights.delivered == 0


class InPlace(Framewise):
    """The peer writes to where messages are sent from."""

    def own(self, index: int) -> int:
        return self.slot(0)


class InPlaceInRuns(InPlace):
    with_runs = True


@STATIONS
def test_a_message_is_sent_with_what_the_peer_writes_meanwhile(station: type[Station]) -> None:
    forth = Work(WROpcode.RDMA_WRITE, 150 * 256, place=1)
    back = Work(WROpcode.RDMA_WRITE, 150 * 256, after=100)
    schedule = Schedule((forth,), back=(back,), rates_gbps=(25, 100))
    by_frame, in_runs = InPlace(schedule, station), InPlaceInRuns(schedule, station)

    assert in_runs.seen() == by_frame.seen()
    assert in_runs.sim.flights.delivered > 50


@STATIONS
@pytest.mark.parametrize("opcode", [WROpcode.RDMA_WRITE, WROpcode.SEND, WROpcode.RDMA_READ])
def test_most_packets_of_a_long_message_travel_in_runs(
    opcode: WROpcode, station: type[Station]
) -> None:
    """100 packets; each 64th asks for an ACK, and responses to a READ need none."""
    run = check(Schedule((Work(opcode, 100 * 256),), receives=((0, 1),)), station)

    assert run.sim.flights.delivered >= 90
    assert run.sim.flights.under_way == 0


class CountingStation(LossyStation):
    """Counts the runs that its device begins, and how often it takes frames back."""

    begun = 0
    taken_back = 0

    def take_back(self, run: FrameRun, count: int) -> None:
        super().take_back(run, count)
        self.taken_back += 1

    def extend_run(self, frame: UnbuiltFrame) -> FrameRun | None:
        run = super().extend_run(frame)
        self.begun += run is not None
        return run


@pytest.mark.parametrize("opcode", [WROpcode.RDMA_WRITE, WROpcode.SEND])
def test_a_run_goes_on_after_an_ack_has_arrived_at_its_sender(opcode: WROpcode) -> None:
    """A message of 60 packets takes 1.6 us; the ACK of the one before takes 1 us to arrive."""
    work = Work(opcode, 60 * 256)

    run = check(Schedule((work, work, work), receives=((0, 3),)), CountingStation)

    sender = run.stations["a"]
    assert isinstance(sender, CountingStation)
    assert sender.begun == 3


@pytest.mark.parametrize("number", [129, 130, 131])
def test_a_run_goes_on_only_where_its_receiver_takes_more_than_before(number: int) -> None:
    """With 128 PSNs unacknowledged a run ends at packet 129 until an ACK arrives in its middle."""
    work = Work(WROpcode.RDMA_WRITE, 150 * 256)
    lost = Fault("a", number, Harm.DROP, 0)

    run = check(Schedule((work,), faults=(lost,), profiles=("rxe", "rxe"), rates_gbps=(25, 100)))

    assert run.sim.flights.delivered > 50


NUMBERS = (
    (-1, 0xFFFFFE),
    (0, 0xFFFFFE),
    (0xFFFE, 7),
    (255, 7),
    (0x25BD, 7),  # the checksum of the third is 0, that of the fourth 0xFFFE
    (0x8000, 0xFFFFFB),
)
"""The first IPv4 identification, -1 if they are not counted, and the first PSN."""


def run_of_frames(
    number: int, psn: int, destination: str = "10.0.0.2"
) -> tuple[list[Frame], bytes]:
    """Frames of a run of five WRITE MIDDLEs, made one by one, and their data."""
    route = ethernet_route(
        source=gid_of("10.0.0.1"),
        destination=gid_of(destination),
        source_mac=bytes(6),
        destination_mac=bytes(6),
        source_port=0xC123,
    )
    path = Path(route, counts_identification=number >= 0)
    data = random.Random(number).randbytes(5 * 256)
    frames = []
    for index in range(5):
        packet = TransportPacket(MIDDLE, psn + index & 0xFFFFFF, data[256 * index :][:256])
        packet.pkey, packet.mig_req, packet.dest_qp = 0xFFFF, 1, 0x11
        frames.append(path.frame(encode(packet), number + index & 0xFFFF))
    made = path.frames(encode(packet)[:8], psn, data, 256, number)
    assert made == frames
    return frames, data


@each_case(("number", "psn"), NUMBERS)
def test_frames_of_a_run_are_those_made_one_by_one(number: int, psn: int) -> None:
    frames, data = run_of_frames(number, psn)
    arrival = Arrivals().read(frames[0])
    assert arrival is not None

    assert run_data(frames, arrival) == data
    assert all(icrc_fits(frame, arrival) for frame in frames) is (number < 0)


@pytest.mark.parametrize("number", [0, 1, 0xFFFC, 0xFFFE])
def test_frames_of_a_run_have_checksum_0_at_identification_0_if_it_is_that(number: int) -> None:
    """The checksum of the IPv4 header to this address is 0 with identification 0."""
    frames, data = run_of_frames(number, 7, destination="10.0.37.193")
    arrival = Arrivals().read(frames[0])
    assert arrival is not None

    assert run_data(frames, arrival) == data
    checksums = {frame[18:20]: frame[24:26] for frame in frames}
    assert checksums.get(bytes(2), bytes(2)) == bytes(2)


@each_case(("number", "psn"), NUMBERS)
def test_any_wrong_bit_of_a_run_is_found(number: int, psn: int) -> None:
    frames, _ = run_of_frames(number, psn)
    arrival = Arrivals().read(frames[0])
    assert arrival is not None

    for at in (*range(len(frames[2]) - 256 - 4), len(frames[2]) - 100, len(frames[2]) - 1):
        wrong = bytearray(frames[2])
        wrong[at] ^= 0x10
        assert run_data([*frames[:2], bytes(wrong), *frames[3:]], arrival) is None
    assert run_data([frames[0], *frames[2:]], arrival) is None


class Cut(Framewise):
    """The wire is cut in the middle of a message, and mended."""

    def _carry_out(self) -> Outcome:
        self.sim.flights.enabled = self.with_runs
        wire = self.sim.wires[0]
        self._post(self.flows[0], 0)
        self.sim.run(until=3 * US)
        self.sim.cut(wire)
        self.lost_frames = wire.a_to_b.lost
        self.sim.run(until=400 * US)
        self.sim.mend(wire)
        return self.sim.run(until=self.sim.now + 1000 * S)


class CutInRuns(Cut):
    with_runs = True


def test_a_cut_loses_the_frames_of_a_run_that_are_on_their_way() -> None:
    """A frame of 338 bytes takes 27 ns, so 36 or 37 are on their way for 1 us."""
    schedule = Schedule((Work(WROpcode.RDMA_WRITE, 200 * 256),))
    by_frame, in_runs = Cut(schedule, LossyStation), CutInRuns(schedule, LossyStation)

    assert in_runs.lost_frames == by_frame.lost_frames
    assert 35 <= in_runs.lost_frames <= 38
    assert in_runs.sim.flights.delivered > 20
    assert in_runs.seen() == by_frame.seen()


class Stepped(Framewise):
    """The network stops after every few frames."""

    step = 7

    def _carry_out(self) -> Outcome:
        self.stops: list[Any] = []
        return super()._carry_out()

    def _run(self, until: Time) -> Outcome:
        end = self.sim.frames + self.MAXIMUM_FRAMES
        outcome = Outcome.FRAMES
        while outcome is Outcome.FRAMES and self.sim.frames < end:
            outcome = self.sim.run(until=until, max_frames=self.step)
            counters = [asdict(self.ends[name].qp.counters) for name in "ab"]
            self.stops.append((self.sim.now, self.sim.frames, counters, outcome))
        return outcome


class SteppedInRuns(Stepped):
    with_runs = True


class InLongSteps(Stepped):
    step = 41


class InLongStepsAndRuns(InLongSteps):
    with_runs = True


STEPS = pytest.mark.parametrize(
    ("by_frame", "in_runs"), [(Stepped, SteppedInRuns), (InLongSteps, InLongStepsAndRuns)]
)


@STEPS
@STATIONS
@pytest.mark.parametrize("opcode", [WROpcode.RDMA_WRITE, WROpcode.SEND, WROpcode.RDMA_READ])
def test_a_limit_of_frames_ends_within_a_run(
    by_frame: type[Stepped],
    in_runs: type[Stepped],
    station: type[Station],
    opcode: WROpcode,
) -> None:
    work = Work(opcode, 60 * 256)
    schedule = Schedule((work, work), receives=((0, 2),))
    expected, found = by_frame(schedule, station), in_runs(schedule, station)

    assert found.stops == expected.stops
    assert [frames for _, frames, _, _ in found.stops[:2]] == [found.step, 2 * found.step]
    assert found.seen() == expected.seen()
    assert found.sim.flights.delivered > 90


@pytest.mark.slow
@STEPS
@laws
@given(schedule=long_schedules())
def test_history_is_the_same_where_the_network_stops_after_a_number_of_frames(
    schedule: Schedule, by_frame: type[Stepped], in_runs: type[Stepped]
) -> None:
    expected, found = by_frame(schedule, LossyStation), in_runs(schedule, LossyStation)

    assert found.stops == expected.stops
    assert found.seen() == expected.seen()


class Several(Framewise):
    """Each end has three queue pairs, which carry the messages of a schedule in turn."""

    COUNT = 3

    def _carry_out(self) -> Outcome:
        schedule = self.schedule
        self.qps = {}
        for name, end in self.ends.items():
            parts = {"pd": end.pd, "send_cq": end.send_cq, "recv_cq": end.recv_cq}
            more = [
                create_queue_pair(end.device, **parts, cap=end.qp.cap) for _ in range(1, self.COUNT)
            ]
            self.qps[name] = [end.qp, *more]
        for near, far in zip(self.qps["a"][1:], self.qps["b"][1:], strict=True):
            connect(
                near,
                far,
                psn_a=schedule.psns[1],
                psn_b=schedule.psns[0],
                mtu=schedule.mtu,
                timeout=schedule.timeout,
                min_rnr_timer=schedule.min_rnr_timer,
            )
        return super()._carry_out()

    def _post(self, flow: Flow, index: int) -> None:
        self.ends[flow.requester].qp = self.qps[flow.requester][index % self.COUNT]
        super()._post(flow, index)

    def _post_receive(self, name: str, index: int) -> None:
        self.ends[name].qp = self.qps[name][index % self.COUNT]
        super()._post_receive(name, index)

    def seen(self) -> dict[str, Any]:
        counters = {name: [asdict(qp.counters) for qp in qps] for name, qps in self.qps.items()}
        return super().seen() | {"counters": counters}

    def completed(self, qp_num: int) -> list[tuple[int, WCStatus]]:
        """Completions of the send requests of a queue pair of `a`, in order."""
        found = self.completions("a", "completed")
        return [(wc.wr_id, wc.status) for wc in found if wc.qp_num == qp_num]

    def requests(self) -> list[list[Any]]:
        """What each queue pair of `a` has sent, without AckReq and ICRC: credits change that."""
        packets = [
            Packet.parse(e.frame) for e in self.history if (e.end, e.kind) == ("b", "arrived")
        ]
        return [
            [
                (each.bth.opcode, each.bth.psn, each.extensions, each.payload)
                for each in packets
                if each.bth.dest_qp == qp.number
            ]
            for qp in self.qps["b"]
        ]


class SeveralInRuns(Several):
    with_runs = True


BURSTS = (1, 4, 5, 16, 64, 1000)
"""The least that has runs is 4: one packet and three after it."""


@laws
@given(long_schedules(), st.sampled_from(BURSTS))
def test_history_of_several_queue_pairs_is_the_same_with_runs(
    schedule: Schedule, burst: int
) -> None:
    works, back = 2 * schedule.works, 2 * schedule.back
    schedule = replace(schedule, works=works, back=back, burst_packets=burst)
    by_frame, in_runs = Several(schedule, LossyStation), SeveralInRuns(schedule, LossyStation)

    expected, found = by_frame.seen(), in_runs.seen()
    for key, value in expected.items():
        assert found[key] == value, key


@pytest.mark.slow
@laws
@given(long_schedules(), st.sampled_from(BURSTS))
def test_history_of_several_queue_pairs_is_the_same_for_frames_that_are_not_built(
    schedule: Schedule, burst: int
) -> None:
    schedule = replace(schedule, burst_packets=burst)
    by_frame, in_runs = Several(schedule, UnbuiltStation), SeveralInRuns(schedule, UnbuiltStation)

    expected, found = by_frame.seen(), in_runs.seen()
    for key, value in expected.items():
        assert found[key] == value, key


@laws
@given(
    st.lists(works, min_size=1, max_size=6),
    st.sampled_from(sorted(PROFILES)),
    st.sampled_from(BURSTS[1:]),
)
def test_a_queue_pair_sends_the_same_whatever_the_burst(
    given: list[Work], profile: str, burst: int
) -> None:
    """Nothing is lost; each queue pair writes to a place of its own, and none to what is read."""
    forth = tuple(
        replace(work, place=3 if work.opcode is WROpcode.RDMA_READ else index % 3)
        for index, work in enumerate(given)
    )
    schedule = Schedule(forth, profiles=(profile, profile), timeout=16, burst_packets=1)
    by_packet = Several(schedule, LossyStation)
    in_bursts = SeveralInRuns(replace(schedule, burst_packets=burst), LossyStation)

    assert in_bursts.requests() == by_packet.requests()
    assert in_bursts.seen()["memory"] == by_packet.seen()["memory"]
    for qp, other in zip(in_bursts.qps["a"], by_packet.qps["a"], strict=True):
        assert in_bursts.completed(qp.number) == by_packet.completed(other.number)


@STATIONS
@pytest.mark.parametrize("opcode", [WROpcode.RDMA_WRITE, WROpcode.SEND, WROpcode.RDMA_READ])
def test_packets_of_a_burst_travel_in_runs(opcode: WROpcode, station: type[Station]) -> None:
    """Of 16 packets in a turn the first is polled; MIDDLE packets after it are one run."""
    schedule = Schedule((Work(opcode, 160 * 256),) * 3, receives=((0, 3),), burst_packets=16)
    by_frame, in_runs = Several(schedule, station), SeveralInRuns(schedule, station)

    assert in_runs.seen() == by_frame.seen()
    assert in_runs.sim.flights.delivered >= 400
    assert in_runs.sim.flights.under_way == 0


def test_a_run_is_interrupted_no_more_often_than_something_happens_at_its_sender() -> None:
    """ACKs with credits arrive at the instants at which frames end, and the line is asked twice."""
    schedule = Schedule(
        (Work(WROpcode.SEND, 128 * 256),) * 18, receives=((0, 18),), burst_packets=64
    )

    run = SeveralInRuns(schedule, CountingStation)

    sender = run.stations["a"]
    assert isinstance(sender, CountingStation)
    assert run.sim.flights.delivered > 1000
    assert sender.taken_back <= sender.arrived
