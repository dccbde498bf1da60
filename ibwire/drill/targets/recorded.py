"""A recorded connection as the device under test: does it satisfy a script?

`<` lines are patterns for the next packet that the device received, `>` lines for the next that
it sent. Each direction keeps its own order, since a recording does not show in which order the
device saw the two. Verbs are skipped: a recording has no application. A script may begin at any
packet; it passes if all of it fits from some packet on.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Mapping, Sequence

from ibwire.base.node import Frame
from ibwire.base.units import Time
from ibwire.connections.device_packets import DeviceConnection, DevicePacket
from ibwire.drill.language.expressions import Scope
from ibwire.drill.language.literals import Literal
from ibwire.drill.language.steps import Case, Impair, Inject, Script, Step, Verb
from ibwire.drill.packets import Wire, differences
from ibwire.drill.runner import carry_out
from ibwire.drill.targets.target import LONGEST, Damage, Unable
from ibwire.drill.verdict import Failure, Verdict
from ibwire_layers import headers as h


def judge(
    script: Script, case: Case, connection: DeviceConnection, profile: str = "spec"
) -> Verdict:
    """Whether a case of a script, parsed as `recorded`, fits somewhere in a connection.

    If not, the verdict is that of the start at which most lines matched.
    """

    def new_verdict() -> Verdict:
        return Verdict(script.path, case.name, script.rule, script.section, profile)

    steps = [step for step in case.steps if not isinstance(step, Verb)]
    if not steps:
        verdict = new_verdict()
        verdict.skipped = "has no packets, and a recording has nothing else"
        return verdict
    best: Verdict | None = None
    for start in _starts(steps, connection):
        verdict = new_verdict()
        target = _Recording(connection, start)
        carry_out(script, steps, target, verdict, None, Scope(script.path, {}))
        if verdict.passed:
            return verdict
        if best is None or _matched(verdict) > _matched(best):
            best = verdict
    if best is None:
        best = new_verdict()
        best.failure = Failure(steps[0].line, "a packet", "nothing: the recording has none")
    return best


class _Recording:
    """A connection from one packet on, as a target."""

    is_recorded = True
    slack: Time = 0
    end = LONGEST

    def __init__(self, connection: DeviceConnection, start: int) -> None:
        packets = connection.packets
        self._connection = connection
        self._received = bisect_left(connection.received, start)
        self._sent = bisect_left(connection.sent, start)
        self.outbound: deque[tuple[Time, Frame]] = deque()
        self.now: Time = packets[start].time
        addressed = _next(connection.addressed, start, packets)
        reth = addressed.packet.extension(h.RETH) if addressed else None
        requests = (connection.requests, connection.own_requests)
        first, own = (_next(each, start, packets) for each in requests)
        self.wires: Mapping[str, Wire] = {}
        self.wire = Wire(
            packets[start].packet.route,
            qpn=connection.qpn,
            peer_qpn=connection.peer_qpn,
            pkey=packets[start].packet.bth.pkey,
            mtu=connection.mtu,
            rq_psn=first.packet.bth.psn if first else 0,
            sq_psn=own.packet.bth.psn if own else 0,
            va=reth.va if reth else 0,
            rkey=reth.rkey if reth else 0,
        )

    def manager_owner(self, frame: Frame) -> str:
        """The first queue pair: there is one."""
        return ""

    @property
    def symbols(self) -> dict[str, int]:
        """Values of the symbols of a script; those of memory are in the first RETH."""
        wire = self.wire
        return {
            "rq_psn": wire.rq_psn,
            "sq_psn": wire.sq_psn,
            "qpn": wire.qpn,
            "peer_qpn": wire.peer_qpn,
            "mtu": wire.mtu,
            "pkey": wire.pkey,
            "va": wire.va,
            "rkey": wire.rkey,
        }

    def inject(
        self, literal: Literal, scope: Scope, owner: str = ""
    ) -> tuple[Time, Frame | None, list[str]]:
        """The next packet that the device received, which may be older than what it sent last."""
        received = self._connection.received
        if self._received == len(received):
            return self.now, None, []
        each = self._connection.packets[received[self._received]]
        self._received += 1
        self.now = max(self.now, each.time)
        problems = differences(literal, each.packet, self.wire, scope, from_device=False)
        return each.time, each.frame, problems

    def settle(self) -> None:
        """Read the packets that the device has sent by now."""
        while (each := self._next_sent()) is not None and each.time <= self.now:
            self._sent += 1
            self.outbound.append((each.time, each.frame))

    def deliver(self) -> None:
        """Do nothing: a recorded packet has arrived."""

    def advance(self, until: Time, stop: Callable[[], bool]) -> None:
        """Read the recording up to a time, to its end at most."""
        self.settle()
        while not stop():
            each = self._next_sent()
            if each is None or each.time > until:
                self.now = max(self.now, min(until, self._connection.packets[-1].time))
                return
            self.now = max(self.now, each.time)
            self.settle()

    def impair(self, step: Impair, scope: Scope) -> None:
        """Refuse: the recorded packets have arrived."""
        raise Unable("needs packets that are on their way: those of a recording have arrived")

    def poll_damage(self) -> Damage | None:
        """Nothing: no rule acts on a recording."""
        return None

    def _next_sent(self) -> DevicePacket | None:
        sent = self._connection.sent
        return self._connection.packets[sent[self._sent]] if self._sent < len(sent) else None


def _starts(steps: Sequence[Step], connection: DeviceConnection) -> Sequence[int]:
    """Packets at which a script may begin: those in the direction of its first step."""
    return connection.received if isinstance(steps[0], Inject) else connection.sent


def _next(
    indices: Sequence[int], start: int, packets: Sequence[DevicePacket]
) -> DevicePacket | None:
    """The first of these packets that is not before `start`."""
    at = bisect_left(indices, start)
    return packets[indices[at]] if at < len(indices) else None


def _matched(verdict: Verdict) -> int:
    """The lines that matched."""
    return sum(entry.is_expected for entry in verdict.entries)
