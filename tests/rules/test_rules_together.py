"""Rules judge many connections at once as they judge single packets, also where these are odd."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from heapq import merge
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from bench import emulated
from connections.talk import QPNS, Talk
from emulated_traffic import Stamped, Work, run
from examples import scaled
from ibwire.capture import open_capture
from ibwire.connections import analysis, rounds, short_runs, steady, untracked
from ibwire.rc.profile import PROFILES
from ibwire_layers.headers import AETH, RETH
from ibwire_layers.opcodes import INFO, OpCode
from ibwire_layers.outer import IPv4
from ibwire_layers.packet import Packet, RoCEv2Route
from rules.test_rules_runs import OPCODES, checked


def emulated_frames(
    folder: Path, *, packets: int, connections: int, loss: float, seed: int
) -> list[Stamped]:
    """What many queue pairs send over a wire that loses packets."""
    path = folder / "emulated.pcap"
    emulated.generate(path, packets, connections, loss, seed)
    with open_capture(path) as capture:
        return [(record.time_ns, record.data) for record in capture.records()]


def traffic_of_profiles(rng: random.Random, connections: int) -> list[Stamped]:
    """Connections of devices of several kinds, with and without credits, at the same time."""
    talks = []
    for number in range(connections):
        work = [Work(rng.choice(OPCODES), rng.choice((0, 10, 256, 1000))) for _ in range(60)]
        acts = {(rng.choice("ab"), rng.randrange(1, 150)): ("loss", 0) for _ in range(2)}
        profile = PROFILES[rng.choice(sorted(PROFILES))]
        traffic = run(work, acts, profile=profile, depth=rng.choice((1, 16, 60)))
        talks.append([(time_ns, _moved(frame, number)) for time_ns, frame in traffic.frames("a")])
    return list(merge(*talks))


def _moved(frame: bytes, number: int) -> bytes:
    """The frame between other addresses."""
    packet = Packet.parse(frame)
    route = packet.route
    assert isinstance(route, RoCEv2Route)
    ip = route.ip
    assert isinstance(ip, IPv4)
    moved = replace(ip, src=ip.src + (number << 8), dst=ip.dst + (number << 8))
    return replace(packet, route=replace(route, ip=moved)).repaired().build()


def _bth(rng: random.Random, packet: Packet) -> Packet:
    bth = packet.bth
    change = rng.choice(("psn", "ack_req", "opcode", "se"))
    if change == "psn":
        return replace(
            packet, bth=replace(bth, psn=bth.psn + rng.choice((-2, -1, 1, 100)) & 0xFFFFFF)
        )
    if change == "opcode":
        same = [code for code, info in INFO.items() if info.headers == INFO[bth.opcode].headers]
        return replace(packet, bth=replace(bth, opcode=rng.choice(same)))
    return replace(packet, bth=replace(bth, **{change: 1 - getattr(bth, change)}))


def _extension(rng: random.Random, packet: Packet) -> Packet:
    def changed(header: Any) -> Any:
        if isinstance(header, RETH):
            name = rng.choice(("dma_len", "va", "rkey"))
            return replace(header, **{name: getattr(header, name) + rng.choice((1, 8, 4096))})
        if isinstance(header, AETH):
            if rng.random() < 0.5:
                return replace(header, syndrome=rng.choice((0, 3, 0x1F, 0x20, 0x60, 0x62)))
            return replace(header, msn=header.msn + rng.choice((-1, 1, 5)) & 0xFFFFFF)
        return header

    return replace(packet, extensions=tuple(map(changed, packet.extensions)))


def _payload(rng: random.Random, packet: Packet) -> Packet:
    size = max(0, len(packet.payload) + rng.choice((-4, 4, 256)))
    return replace(packet, payload=bytes(size), bth=replace(packet.bth, pad_count=-size % 4))


CHANGES: tuple[Callable[[random.Random, Packet], Packet], ...] = (_bth, _extension, _payload)


def damaged(frames: list[Stamped], rng: random.Random, share: float) -> list[Stamped]:
    """The frames, of which a share has a wrong field and yet a correct ICRC."""
    found = []
    for time_ns, frame in frames:
        if rng.random() < share:
            packet = rng.choice(CHANGES)(rng, Packet.parse(frame))
            frame = packet.repaired().build()
        found.append((time_ns, frame))
    return found


def assert_the_same_as_alone(frames: list[Stamped]) -> int:
    """Check a capture both ways; returns how many packets were judged together."""
    took = 0
    advance, count = short_runs.advance, untracked.count

    def counting(*given: Any) -> npt.NDArray[np.int64]:
        nonlocal took
        found = advance(*given)
        took += int(found.sum())
        return found

    def counting_untracked(*given: Any, **options: Any) -> npt.NDArray[np.bool_]:
        nonlocal took
        found = count(*given, **options)
        took += int(given[3][found].sum())
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(short_runs, "advance", counting)
        patch.setattr(untracked, "count", counting_untracked)
        found = checked(frames)
        patch.setattr(untracked, "MOST", 0)
        patch.setattr(steady, "advance", lambda *_: 0)
        patch.setattr(rounds, "advance", lambda trackers, *_: np.zeros(len(trackers), np.int64))
        assert found == checked(frames)
    return took


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(scaled(24)))
def test_many_connections_break_the_same_rules_together_and_alone(
    seed: int, tmp_path: Path
) -> None:
    rng = random.Random(seed)
    if seed % 3:
        frames = traffic_of_profiles(rng, connections=12)
    else:
        connections, loss = rng.choice((1, 9, 40)), rng.choice((0.0, 0.01, 0.1))
        frames = emulated_frames(
            tmp_path, packets=2000, connections=connections, loss=loss, seed=seed
        )
    frames = damaged(frames, rng, rng.choice((0.0, 0.01, 0.05)))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rounds, "MANY", 1)
        patch.setattr(rounds, "WINDOW", rng.choice((8, 256)))
        patch.setattr(short_runs, "FEWEST", 1)
        block = rng.choice((700, 1 << 14))
        patch.setattr(rounds, "REST", rng.choice((0, rounds.REST)))
        for name in ("BLOCK", "SETTLE_EVERY"):
            patch.setattr(analysis, name, block)
        assert_the_same_as_alone(frames)


def test_most_of_lossy_traffic_is_judged_together(tmp_path: Path) -> None:
    frames = emulated_frames(tmp_path, packets=6000, connections=60, loss=0.01, seed=1)

    took = assert_the_same_as_alone(frames)

    assert took > 0.6 * len(frames)


def test_connections_that_begin_with_a_long_read_are_judged_together_after_it() -> None:
    """Until a packet shows the path MTU, requests are judged alone; a few rounds take none."""
    talks = [Talk(True, number) for number in range(10)]
    for talk in talks:
        talk.ask(OpCode.RC_RDMA_READ_REQUEST, 0, length=2048)
        for psn in range(2, 9):
            talk.ask(OpCode.RC_SEND_ONLY, psn, 64, ack_req=1)
        talk.answer(0, 1, opcode=OpCode.RC_RDMA_READ_RESPONSE_FIRST, size=1024)
        talk.answer(1, 1, opcode=OpCode.RC_RDMA_READ_RESPONSE_LAST, size=1024)
        for psn in range(2, 9):
            talk.answer(psn, psn)
        talk.sends(9, 200, msn=9)
    frames = list(merge(*(talk.frames for talk in talks)))

    assert assert_the_same_as_alone(frames) > 0.8 * len(frames)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(scaled(6)))
@pytest.mark.parametrize(("share", "least"), [(0.0, 0.2), (0.02, 0.2), (0.2, 0.05)])
def test_short_connections_break_the_same_rules_without_a_tracker(
    seed: int, share: float, least: float, tmp_path: Path
) -> None:
    rng = random.Random(f"{seed} {share}")
    connections = rng.choice((20, 100, 300))
    frames = emulated_frames(tmp_path, packets=1200, connections=connections, loss=0.002, seed=seed)

    took = assert_the_same_as_alone(damaged(frames, rng, share))

    assert took > least * len(frames)


def message_not_counted(talk: Talk) -> None:
    """An MSN of one message less than were sent."""
    talk.ask(OpCode.RC_SEND_ONLY, 40, 64, ack_req=1)
    talk.answer(40, 40, 2)


def credits_exceeded(talk: Talk) -> None:
    """Forty messages where the last response gave two credits."""
    for psn in range(40, 80):
        talk.ask(OpCode.RC_SEND_ONLY, psn, 64, ack_req=1)


@pytest.mark.parametrize(
    ("breaks", "rule"),
    [(credits_exceeded, "credits.limit"), (message_not_counted, "psn_acks.msn")],
)
def test_a_rule_broken_behind_what_was_judged_together_is_found(
    breaks: Callable[[Talk], None], rule: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Otherwise the trackers of these three get all packets, from the first.
    monkeypatch.setattr(untracked, "MOST", 0)
    talks = [Talk(True, number) for number in range(12)]
    for talk in talks:
        for psn in range(40):
            talk.ask(OpCode.RC_SEND_ONLY, psn, 64, ack_req=1)
            talk.answer(psn, psn + 1, 2)
    for talk in talks[:3]:
        breaks(talk)
    frames = list(merge(*(talk.frames for talk in talks)))

    assert assert_the_same_as_alone(frames) > 0.8 * len(frames)
    assert [each["rule"] for each in checked(frames)] == [rule] * 3


def test_connections_whose_pairing_is_a_guess_are_judged_together_apart_from_the_others() -> None:
    """Of these, requests alone are checked: they do not have all checks of the others."""
    frames = []
    for number in range(24):
        is_guess = number % 2 == 1
        talk = Talk(True, 0 if is_guess else number)
        ends = (0x100 + number, 0x200 + number) if is_guess else QPNS
        for psn in range(150):
            code = OpCode.RC_SEND_LAST if psn == 120 and number < 4 else OpCode.RC_SEND_ONLY
            talk.ask(code, psn, 64, ack_req=1, dest_qp=ends[1])
            talk.answer(psn, psn + 1, dest_qp=ends[0])
        frames.append(talk.frames)

    together = list(merge(*frames))

    assert assert_the_same_as_alone(together) > 0.7 * len(together)
    assert [each["rule"] for each in checked(together)] == ["sequences.order"] * 4
