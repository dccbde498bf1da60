"""Replays every connection of a capture with one side emulated."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterator
from itertools import chain
from typing import Protocol

from ibwire.base.errors import CaptureError
from ibwire.capture.stream import Source
from ibwire.rc.profile import RXE, Profile
from ibwire.replay.inferred import Memory
from ibwire.replay.recorded import Exchange, Exchanges, Key, RecordedPacket, RecordedPackets
from ibwire.replay.report import ReplayReport
from ibwire.replay.requester import RequesterReplay
from ibwire.replay.responder import ReplayOutput, ResponderReplay


class Replay(Protocol):
    """The replay of one connection."""

    def advance(self) -> None:
        """Continue after a new packet of the exchange."""
        ...

    def finish(self) -> ReplayReport:
        """End the replay and return its report."""
        ...


class Conversation:
    """Replays a capture; `reports()` yields the connections as they end.

    role: `responder` or `requester`, the emulated side. qpn: only requests to
    this queue pair. requests: a separate capture of the requests as they reached the responder,
    possibly with another clock; the requests of the first capture are then
    ignored. interface: only packets of this interface of a pcapng file.
    """

    def __init__(
        self,
        source: Source,
        *,
        role: str = "responder",
        profile: Profile = RXE,
        qpn: int | None = None,
        requests: Source | None = None,
        interface: int | None = None,
        tap: ReplayOutput | None = None,
    ) -> None:
        self._packets = RecordedPackets(source, frames=tap is not None, interface=interface)
        self._arrived = None
        if requests is not None:
            self._arrived = RecordedPackets(requests, apart=True, frames=tap is not None)
        self._profile = profile
        self._qpn = qpn
        self._role = role
        self._tap = tap
        self._memory = Memory()
        self._replays: dict[Key, Replay] = {}
        self._ended: list[ReplayReport] = []
        self._exchanges = Exchanges(self._end)

    @property
    def skipped(self) -> Counter[str]:
        """Frames that no queue pair would have processed, by reason."""
        skipped = Counter(self._packets.skipped)
        if self._arrived is not None:
            skipped.update(self._arrived.skipped)
        return skipped

    @property
    def copies(self) -> int:
        """Packets that are in the capture on several interfaces."""
        return self._packets.copies

    @property
    def unclaimed(self) -> int:
        """Responses whose requests are not in the capture."""
        return self._exchanges.unclaimed

    def reports(self) -> Iterator[ReplayReport]:
        """The reports; raises `CaptureError` for damage, after the connections before it."""
        damage: CaptureError | None = None
        try:
            for recorded in self._merged():
                self._take(recorded)
                if self._ended:
                    yield from self._ended
                    self._ended.clear()
        except CaptureError as error:
            damage = error
        for exchange in self._exchanges.finish():
            self._end(exchange)
        yield from self._ended
        self._ended.clear()
        if damage is not None:
            raise damage

    def _take(self, recorded: RecordedPacket) -> None:
        exchange = self._exchanges.take(recorded)
        if exchange is None:
            return
        if self._qpn is not None and exchange.key[2] != self._qpn:
            exchange.requests.clear()
            exchange.responses.clear()
            return
        replay = self._replays.get(exchange.key)
        if replay is None:
            replay = self._replays[exchange.key] = self._begin(exchange)
        replay.advance()

    def _begin(self, exchange: Exchange) -> Replay:
        kind = ROLES[self._role]
        return kind(exchange, self._profile, self._memory, self._tap)

    def _end(self, exchange: Exchange) -> None:
        replay = self._replays.pop(exchange.key, None)
        if replay is not None:
            self._ended.append(replay.finish())

    def _merged(self) -> Iterator[RecordedPacket]:
        """Both captures merged by time, with the clock of the first."""
        if self._arrived is None:
            return iter(self._packets)
        before: list[RecordedPacket] = []
        main = iter(self._packets)
        for recorded in main:
            before.append(recorded)
            if not recorded.packet.form.is_response and recorded.packet.dest_qp != 1:
                break
        arrived = iter(self._arrived)
        first = next(arrived, None)
        if first is None:
            return chain(before, main)
        shift = before[-1].time_ns - first.time_ns if before else 0
        return heapq.merge(
            (each for each in chain(before, main) if _is_no_request(each)),
            (each for each in chain((first,), arrived) if not _is_no_request(each)),
            key=lambda each: each.time_ns + (0 if _is_no_request(each) else shift),
        )


ROLES: dict[str, type[ResponderReplay] | type[RequesterReplay]] = {
    "responder": ResponderReplay,
    "requester": RequesterReplay,
}


def _is_no_request(recorded: RecordedPacket) -> bool:
    packet = recorded.packet
    return packet.form.is_response or packet.dest_qp == 1
