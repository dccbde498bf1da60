"""One script for pyverbs at both ends of a connection, here on ibwire and in the guest on rxe."""

import json
import shlex
import zlib
from pathlib import Path
from typing import Any

from interop.rxe.boot import DEVICE
from interop.rxe.peers import GID_INDEX, GUEST_CAPTURE, OWN_CAPTURE, TCP_PORT, Peers, both
from interop.rxe.wire import OURS, THEIRS, Wire

SCRIPT = Path(__file__).with_name("verbs_end.py")
OWN_VERBS = Path(__file__).with_name("own_verbs.py")

SIZE = 8192

USUAL: dict[str, Any] = {
    # The region: its size in bytes, and whether there is something in it.
    "size": SIZE,
    "is_filled": False,
    # Of the queue pair. The timeout is 1.07 s: a slow guest does not cause retransmissions.
    "path_mtu": 3,
    "timeout": 18,
    "retry_cnt": 3,
    "rnr_retry": 7,
    "min_rnr_timer": 12,
    # Lengths of receive requests, arguments of `End.send`, when it is over, and when in any case.
    "receives": [],
    "sends": [],
    "completions": 0,
    "seconds": 60,
    # Commands around all that.
    "before": "",
    "after": "",
}
"""What an end does unless something else is wished."""


class Ends:
    """The results of a requester, whose region is filled, and a responder.

    who: the requester, `ours` or `theirs`. request, response: differences from `USUAL`.
    """

    def __init__(
        self,
        peers: Peers,
        directory: Path,
        who: str,
        request: dict[str, Any],
        response: dict[str, Any],
        *,
        version: int = 4,
        profile: str = "spec",
        faults: Path | None = None,
    ) -> None:
        capture, tap = directory / GUEST_CAPTURE, directory / OWN_CAPTURE
        is_ours = who == "ours"
        wishes = [USUAL | {"is_filled": True} | request, USUAL | response]
        ours, theirs = wishes if is_ours else reversed(wishes)
        ours |= {"device": peers.port, "gid_index": 0, "connect": (THEIRS[4], TCP_PORT)}
        theirs |= {"device": DEVICE, "gid_index": GID_INDEX[version], "listen": TCP_PORT}
        link = {
            "interface": peers.port,
            "tap": str(tap),
            "address": OURS[version],
            "profile": profile,
            "peer": THEIRS[version],
            "faults": str(faults) if faults else None,
        }
        with peers.guest.capture(capture):
            job = peers.guest.start(
                f"python3 - {shlex.quote(json.dumps(theirs))} <<'END'\n{SCRIPT.read_text()}\nEND"
            )
            running = peers.start(str(OWN_VERBS), json.dumps(link), str(SCRIPT), json.dumps(ours))
            own, other = both(running, job)
        assert own.status == other.status == 0, (own, other)
        found = [own.found, json.loads(other.output)]
        self.requester, self.responder = found if is_ours else reversed(found)
        """What each has printed."""
        self.wire = Wire(capture, peers.guest.mac)
        self.tap = Wire(tap, peers.guest.mac)
        self._responses = self.wire.of(is_ours=not is_ours)

    @property
    def naks(self) -> list[int]:
        """Syndromes of all that the responder has refused."""
        syndromes = (packet.syndrome or 0 for packet in self._responses)
        return [syndrome for syndrome in syndromes if syndrome & 0x60]


def statuses(end: dict[str, Any]) -> list[int]:
    """Of the completions of an end."""
    return [each["status"] for each in end["done"]]


def content(size: int) -> bytes:
    """Of a filled region, or of its beginning."""
    return (bytes(range(251)) * (size // 251 + 1))[:size]


def crc(size: int = SIZE, filled: int = 0) -> int:
    """A region of which this many bytes are filled."""
    return zlib.crc32(content(filled).ljust(size, b"\0"))
