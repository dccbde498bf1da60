"""Devices that send what is no packet: a difference like any other, with a name."""

from __future__ import annotations

import pytest

from ibwire.fuzz.campaign import Campaign
from ibwire.fuzz.case import Connection, Role
from ibwire.fuzz.targets.emulated_device import Emulation
from ibwire.fuzz.targets.emulator import EmulatorTestbed
from ibwire.fuzz.vocabulary.vocabularies import vocabulary_for
from ibwire_layers.errors import DecodeError
from ibwire_layers.packet import Packet

MALFORMED = {
    "an empty frame": b"",
    "the beginning of an IP header": bytes(12) + b"\x08\x00E" + bytes(3),
    "a frame of another protocol": bytes(range(80)),
}

EVERY = 5
"""One time in so many that the device is asked for its answers, it sends such a frame."""


def device(frame: bytes, *, replaces: bool) -> type[Emulation]:
    class Garbling(Emulation):
        def __init__(self, connection: Connection) -> None:
            self.times = 0
            super().__init__(connection)

        def answers(self) -> list[bytes]:
            sent = super().answers()
            self.times += 1
            if self.times % EVERY:
                return sent
            return [*sent[: -1 if replaces else None], frame]

    return Garbling


@pytest.mark.parametrize("replaces", [False, True], ids=["added", "in place of an answer"])
@pytest.mark.parametrize("frame", MALFORMED.values(), ids=MALFORMED)
def test_a_frame_that_is_no_packet_is_a_finding_of_a_run_that_goes_on(
    frame: bytes, replaces: bool
) -> None:
    with pytest.raises(DecodeError):
        Packet.parse(frame)
    make = vocabulary_for(Role.BOTH).generators(0, Role.BOTH, ())
    campaign = Campaign(EmulatorTestbed(device(frame, replaces=replaces)), make)

    found = list(campaign.run(200))

    assert campaign.report.packets == 200
    assert found
    names = [": a frame that is no packet instead of "]
    names += [": a frame that is no packet too many"] * (not replaces)
    assert all(any(name in each.bucket for name in names) for each in found)
