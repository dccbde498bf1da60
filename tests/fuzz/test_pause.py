"""PFC frames among the packets of a case, sent only where an option requests them."""

from __future__ import annotations

from collections.abc import Collection
from types import SimpleNamespace
from typing import Any

import pytest

from ibwire.base.node import Frame
from ibwire.base.units import US
from ibwire.fuzz.campaign import Campaign
from ibwire.fuzz.case import (
    Case,
    CaseError,
    Connection,
    Mad,
    Packet,
    Pause,
    Role,
    from_json,
    step_text,
    to_json,
)
from ibwire.fuzz.judge.comparison import Difference, Kind
from ibwire.fuzz.judge.exclusions import Exclusions, parse_exclusion
from ibwire.fuzz.recording import record
from ibwire.fuzz.targets.emulated_device import ADDRESS, PEER_ADDRESS, Emulation
from ibwire.fuzz.targets.emulator import EmulatorTestbed, target
from ibwire.fuzz.targets.link.frames import Pacer, check_addressee, is_pause, stops
from ibwire.fuzz.targets.link.verbs_link import VerbsLink
from ibwire.fuzz.vocabulary.binding import Binding
from ibwire.fuzz.vocabulary.cm.script import manager_script
from ibwire.fuzz.vocabulary.queue_pair.comparison import TolerantComparison
from ibwire.fuzz.vocabulary.queue_pair.script import script
from ibwire.fuzz.vocabulary.reading import read_script
from ibwire.fuzz.vocabulary.vocabularies import queue_pair_generators
from ibwire.rc.path import Path
from ibwire_layers.opcodes import OpCode

MAC, OWN_MAC = bytes.fromhex("020000000002"), bytes.fromhex("020000000001")
BINDING = Binding("10.0.0.1", "10.0.0.2", (OWN_MAC, MAC))

STOP = bytes.fromhex(
    "0180c2000001 020000000001 8808 0101 0009 ffff 0000 0000 ffff 0000 0000 0000 0000" + 26 * "00"
)
"""Priorities 0 and 3 for 65,535 quanta: IEEE 802.1Q figure 36-3, padded to 60 bytes."""


class Notes(Emulation):
    """Records received frames; whether a port pauses is not visible here."""

    received: list[Frame]

    def receive(self, frame: Frame) -> None:
        self.received.append(frame)
        super().receive(frame)


class Fragile(Emulation):
    """Crashes at the second PFC frame."""

    _paused = 0

    def receive(self, frame: Frame) -> None:
        self._paused += is_pause(frame)
        if self._paused > 1:
            raise IndexError("a priority beyond the last")
        super().receive(frame)


def run(role: str, ops: Collection[str], packets: int = 3000) -> tuple[Campaign, list[Frame]]:
    received: list[Frame] = []

    def opened(connection: Connection) -> Notes:
        device = Notes(connection)
        device.received = received
        return device

    campaign = Campaign(EmulatorTestbed(opened), queue_pair_generators(3, Role(role), ops))
    assert list(campaign.run(packets)) == []
    return campaign, [frame for frame in received if frame[12:14] == b"\x88\x08"]


def test_a_frame_stops_the_priorities_of_its_bits() -> None:
    assert BINDING.pause(Pause(priorities=0b1001)) == STOP
    assert BINDING.pause(Pause(0b1001, 0)) == STOP.replace(b"\xff\xff", bytes(2))


@pytest.mark.slow
@pytest.mark.parametrize("role", ["responder", "requester"])
def test_pauses_come_only_when_they_are_asked_for(role: str) -> None:
    usual = run(role, ())[1]
    asked = run(role, ("pfc", "dup", "reply"))[1]

    assert usual == []
    assert len(asked) > 50
    assert all(len(frame) == 60 and frame.startswith(STOP[:6]) for frame in asked)
    assert {frame[14:16] for frame in asked} == {b"\x01\x01"}


def test_a_device_that_a_pause_harms_is_found() -> None:
    campaign = Campaign(EmulatorTestbed(Fragile), queue_pair_generators(1, Role.BOTH, ("pfc",)))

    finding = next(campaign.run(3000))

    assert finding.bucket == "PFC: IndexError in receive"
    assert [type(step) for step in finding.case.steps] == [Pause, Pause]


def test_a_case_is_read_as_it_was_written() -> None:
    case = Case(Connection(), (Pause(0x10, 7), Packet(int(OpCode.RC_SEND_ONLY))))

    assert from_json(to_json(case)) == case
    assert step_text(case.steps[0]) == "PFC priorities=0x10 quanta=7"
    text = script(case, Difference(1, Kind.ANSWER, [], []), "A rule.")
    assert "  pfc priorities=0x10 quanta=7\n" in text
    assert read_script(text.encode(), "case.drill").steps[0] == case.steps[0]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('"priorities": 256', r"steps\[0\].priorities: 256, not a number from 0 to 255"),
        ('"quanta": 65536', r"steps\[0\].quanta: 65536, not a number from 0 to 65535"),
        ('"quanta": true', r"steps\[0\].quanta: True, not a number"),
        ('"time": 5', r"steps\[0\].time: no such key"),
    ],
)
def test_a_pause_that_cannot_be_is_refused_with_its_place(text: str, reason: str) -> None:
    steps = f'{{"ibwire-fuzz-case": 1, "steps": [{{"step": "pause", {text}}}]}}'

    with pytest.raises(CaseError, match=reason):
        from_json(steps)


# On a link.


def test_a_pause_leaves_from_us_without_a_tag_and_is_waited_for() -> None:
    leaving: list[Frame] = []
    link: Any = VerbsLink.__new__(VerbsLink)
    clock, port = SimpleNamespace(now=10 * US), SimpleNamespace(mtu=1500)
    link.endpoint = SimpleNamespace(live=clock, port=port, run=lambda seconds: None)
    link.peer, link.macs = "10.0.0.2", (MAC, OWN_MAC)
    link._leaving, link._tag, link._pacer = leaving, b"\x81\x00\x60\x00", Pacer(1000)
    link._stopped = [0] * 8

    link.send(STOP)

    assert leaving == [STOP]
    assert link.paused == 33_553_920_000  # 65,535 times 512 bits at 1 Gb/s, in ps
    link.send(BINDING.pause(Pause(0b0011, 0)))
    assert link.paused == 33_553_920_000  # priority 3 keeps waiting
    clock.now += 553_920_000
    assert link.paused == 33_000_000_000
    link.send(BINDING.pause(Pause(0xFF, 0)))
    assert link.paused == 0


@pytest.mark.parametrize(
    "frame",
    [
        STOP.replace(OWN_MAC, MAC),  # in the name of another port
        STOP[:12] + b"\x08\x00" + STOP[14:],  # another protocol to that address
        STOP[:14] + b"\x00\x01" + STOP[16:],  # a pause of the whole port
        STOP[:40],
    ],
)
def test_nothing_else_goes_to_that_address(frame: Frame) -> None:
    with pytest.raises(CaseError, match="only the peer is sent to"):
        check_addressee(frame, mac=MAC, own_mac=OWN_MAC, address="10.0.0.2")


def test_priorities_that_are_not_named_are_not_stopped() -> None:
    times = bytes.fromhex("0001 0100 0002 0000 0000 0000 0000 0003")

    assert stops(STOP[:18] + times + STOP[34:]) == {0: 512_000, 3: 0}


def test_what_a_pause_kills_is_not_paused_again() -> None:
    excluded = Exclusions()
    excluded.add(Difference(1, Kind.CRASH, [], ["the host is dead"]), Pause())

    assert list(map(str, excluded.items)) == ["pfc"]
    assert excluded.pauses
    assert Exclusions([parse_exclusion("pfc")]).pauses
    assert not Exclusions([parse_exclusion("packet 4")]).pauses


def test_recording_describes_a_pause() -> None:
    packet = Packet(int(OpCode.RC_SEND_ONLY))
    case = Case(Connection(), (Pause(0x10, 7), packet))

    entries = record(case, target("emu:spec")).entries

    assert [entry.text for entry in entries if entry.way == "<"] == [
        "PFC priorities=0x10 quanta=7",
        "SEND_ONLY psn (100) len=0 ack",
    ]


def test_a_pause_among_messages_of_the_manager_is_in_the_script() -> None:
    case = Case(Connection(), (Mad(), Pause()))

    text = manager_script(case, Difference(1, Kind.ANSWER, [], []), "A rule.")

    assert "  pfc priorities=0xff quanta=65535\n" in text


def test_packets_after_a_pause_find_the_port_stopped() -> None:
    """Nothing is compared in between, also by a comparison after each step."""

    class Looked(Emulation):
        looks = 0

        def answers(self) -> list[Frame]:
            self.looks += 1
            return super().answers()

    emulated = Binding(PEER_ADDRESS, ADDRESS)
    answers = Path(Binding(ADDRESS, PEER_ADDRESS).route)
    device = Looked(Connection())
    duel = TolerantComparison(
        emulated, answers, Emulation(Connection()), device, exclusions=Exclusions()
    )

    assert duel.step(Pause()) is None
    assert device.looks == 0
    duel.step(Packet(int(OpCode.RC_SEND_ONLY)))
    assert device.looks == 1
