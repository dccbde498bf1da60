"""The two processes of the tests of sending: one sends, the other records what arrives.

Arguments: a role, a function here, and a JSON object with its arguments. Prints a JSON object
per line: first that it is ready, last the result.
"""

import hashlib
import json
import random
import select
import socket
import sys

import numpy as np

from ibwire.base.errors import EncodeError, LinkError
from ibwire.traffic.injection import Injection
from ibwire.traffic.kernel_sender import KernelSender
from ibwire.traffic.pace import Pacer, make_pace, parse_rate
from ibwire.traffic.sender import Sender
from ibwire.traffic.stream import Stream, Verb
from ibwire.traffic.transmission import SourceOutlet, transmit

DEVICE = "veth-a"
HEADER = bytes.fromhex("02000a000002 02000a000001 88b5")
"""To the other side, of a type that is for experiments (IEEE 802)."""
FINAL = HEADER + b"the end" + bytes(39)


def tell(**facts):
    print(json.dumps(facts), flush=True)


class Random:
    """Frames of all lengths, in blocks of many sizes, whose rows are longer than they."""

    def __init__(self, count, longest):
        self.random = random.Random(6)
        self.count = count
        self.longest = longest

    def blocks(self, size):
        left = self.count
        while left:
            rows = min(self.random.randint(1, size), left)
            frames = np.frombuffer(
                self.random.randbytes(rows * (self.longest + 9)), np.uint8
            ).reshape(rows, -1)
            frames = frames.copy()
            frames[:, : len(HEADER)] = np.frombuffer(HEADER, np.uint8)
            lengths = [self.random.randint(14, self.longest) for _ in range(rows)]
            yield Block(frames, np.array(lengths))
            left -= rows


class Numbered:
    """Short frames that count, until stopped; may fail on the way."""

    def __init__(self, fails_after=None):
        self.fails_after = fails_after

    def blocks(self, size):
        number = 0
        while True:
            if self.fails_after is not None and number >= self.fails_after:
                raise EncodeError("frame", number, "one that can be built")
            frames = np.zeros((10, 60), np.uint8)
            frames[:, : len(HEADER)] = np.frombuffer(HEADER, np.uint8)
            counted = np.arange(number, number + 10).astype(">u8")
            frames[:, 14:22] = counted.view(np.uint8).reshape(10, 8)
            yield Block(frames, np.full(10, 60))
            number += 10


class Block:
    def __init__(self, frames, lengths):
        self.frames = frames
        self.lengths = lengths


def cycle(wanted):
    """Messages to two queue pairs, around the largest PSN."""
    streams = [
        Stream(
            verb=Verb.WRITE,
            qpns=((0x11, 2), (0x12, 1)),
            size=wanted.get("size", 2 * wanted["mtu"] + 7),
            mtu=wanted["mtu"],
            psn=0xFFFF00,
            src="10.0.0.1",
            dst="10.0.0.2",
        )
    ]
    return Injection(streams=tuple(streams), count=wanted["count"])


SOURCES = {
    "random": lambda wanted: Random(wanted["count"], wanted["longest"]),
    "numbered": lambda wanted: Numbered(wanted.get("fails_after")),
    "cycle": cycle,
}


def digest(frames):
    """One number for all of them, in their order."""
    hashed = hashlib.sha256()
    for each in frames:
        hashed.update(len(each).to_bytes(4, "big") + each)
    return hashed.hexdigest()


def told_report(report):
    return {
        "ended": report.ended,
        "signal": report.signal,
        "error": None if report.error is None else str(report.error),
        "accepted": report.accepted,
        "final": report.final,
        "device": None if report.device is None else report.device.packets,
        "lost": report.lost,
        "bytes": report.bytes,
        "held": report.rate_kept,
        "rate": report.rate,
        "waits": dict(report.waits),
    }


def send(wanted):
    """Send from a source; returns the report, and the digest of what had to be sent."""
    pace = make_pace({"rate": parse_rate(wanted.get("rate", "max"))})
    source = SOURCES[wanted["source"]](wanted)
    final = [FINAL] if wanted.get("final") else ()
    limits = {"count": wanted.get("count"), "seconds": wanted.get("seconds")}
    try:
        if wanted.get("back_end") == "live":
            sender = outlet = KernelSender(DEVICE, source.templates())
        else:
            sender = Sender(DEVICE, allow_default_route=wanted.get("allow_default_route", False))
            outlet = SourceOutlet(sender, source)
        with sender:
            tell(running=True)
            report = transmit(outlet, pace and Pacer(pace), final=final, **limits)
    except (LinkError, EncodeError) as error:
        tell(error=str(error))
        return
    facts = told_report(report)
    if wanted["source"] != "numbered":
        again = SOURCES[wanted["source"]](wanted)
        facts["digest"] = (
            None
            if report.signal
            else digest(
                bytes(row[:length])
                for block in again.blocks(SourceOutlet.BLOCK)
                for row, length in zip(block.frames, block.lengths, strict=True)
            )
        )
    tell(**facts)


def receive(wanted):
    """Record frames until a signal and silence; returns the digest, and the last two."""
    frames = []
    with socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0) as receiving:
        receiving.setsockopt(socket.SOL_SOCKET, 33, 1 << 28)  # SO_RCVBUFFORCE
        receiving.bind(("veth-b", 3))  # ETH_P_ALL
        tell(ready=True)
        while True:
            ready, _, _ = select.select([receiving, sys.stdin], [], [])
            if receiving in ready:
                frame, (_, _, kind, _, _) = receiving.recvfrom(65536)
                if kind != socket.PACKET_OUTGOING and frame[:12] == HEADER[:12]:
                    frames.append(frame)
            elif sys.stdin in ready:
                break
    if "only" in wanted:
        frames = [frame for frame in frames if frame[12:14].hex() == wanted["only"]]
    ends = [number for number, frame in enumerate(frames) if frame == FINAL]
    tell(
        count=len(frames),
        digest=digest(frames),
        ends=[number - len(frames) for number in ends],
        numbers=[int.from_bytes(f[14:22], "big") for f in frames if f != FINAL][:3000],
    )


if __name__ == "__main__":
    roles = {"send": send, "receive": receive}
    roles[sys.argv[1]](json.loads(sys.argv[2]))
