"""Whatever stands in the packets, judging goes on and its memory stays bounded."""

import random
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from examples import scaled
from ibwire_layers.errors import DecodeError
from ibwire_layers.packet import Packet
from rules.check_frames import judge, read_frames

CAPTURES = Path(__file__).parents[2] / "captures"
FRAMES = [
    frame
    for name in ("rcx-all-ops", "rnr-multi-packet", "drop-atomic-ack.b", "cm-rping", "uc-write-bw")
    for frame in read_frames(CAPTURES / f"{name}.pcap")
]
TRANSPORT = 42
"""Bytes before the BTH in these captures."""


def disturbed(frame: bytes, chance: random.Random) -> bytes:
    """The frame with a byte of its transport headers changed, and the ICRC made right again."""
    if len(frame) <= TRANSPORT + 16:
        return frame
    place = chance.randrange(TRANSPORT, min(len(frame), TRANSPORT + 32))
    changed = frame[:place] + bytes([chance.randrange(256)]) + frame[place + 1 :]
    try:
        packet = Packet.parse(changed, strict=False)
    except DecodeError:
        return changed
    return packet.repaired().build()


@settings(max_examples=scaled(40))
@given(st.integers(0, 1 << 30), st.sampled_from((0.02, 0.3, 1.0)))
def test_right_icrcs_over_wrong_headers_crash_nothing(seed: int, share: float) -> None:
    chance = random.Random(seed)
    frames = [
        (number * 1000, disturbed(frame, chance) if chance.random() < share else frame)
        for number, (_, frame) in enumerate(chance.choices(FRAMES, k=200))
    ]

    found = judge(frames)

    assert all(finding.count >= len(finding.numbers) > 0 for finding in found)
    assert all(finding.text for finding in found)


@settings(max_examples=scaled(40))
@given(st.integers(0, 1 << 30), st.integers(14, 80))
def test_cut_frames_crash_nothing(seed: int, snaplen: int) -> None:
    chance = random.Random(seed)
    frames = [(number, frame) for number, (_, frame) in enumerate(chance.choices(FRAMES, k=100))]

    judge(frames, snaplen=snaplen)
