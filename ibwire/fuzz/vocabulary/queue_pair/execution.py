"""A case carried out on one device: what comes of each step."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from ibwire.base.node import Frame
from ibwire.base.units import Time
from ibwire.fuzz.case import Case, Connect, Connection, Packet, Pause, Post, Receive, Step, Wait
from ibwire.fuzz.targets.emulated_device import QP_NUM, Completion, Emulation
from ibwire.fuzz.vocabulary.binding import emulated_binding
from ibwire.fuzz.vocabulary.queue_pair.encoding import Symbols
from ibwire.rc.profile import Profile
from ibwire_layers.psn import MASK


@dataclass(frozen=True, slots=True)
class Moment:
    """What comes of a step on a device."""

    psn: int
    """Of the packet that it receives."""
    symbols: Symbols
    accepted: bool
    """Whether the device has taken a request that its application posts."""
    answers: Sequence[tuple[Time, Frame]]
    """What it sends, and how long after the step."""
    completions: Sequence[Completion]
    events: Sequence[int]
    takers: Mapping[tuple[int, int], int] = field(default_factory=dict, kw_only=True)
    """The queue pair of each completion, by queue and number of the request."""


class Execution:
    """A device with the connection of a case, and the way to it."""

    def __init__(self, connection: Connection, profile: Profile) -> None:
        self.device = Emulation(connection, profile)
        self._binding = emulated_binding(connection.version)

    def do(self, step: Step) -> Moment:
        """Carry out the next step; raises `CaseError` for one that does not fit the connection."""
        device = self.device
        start, psn, accepted, held = device.now, 0, True, False
        answers: list[tuple[Time, Frame]] = []
        device.prepare(step)
        if isinstance(step, Packet):
            device.symbols["ssn"] = device.oldest_ssn
            base = device.psn(step.psn[0])
            psn, held = base + step.psn[1] & MASK, step.held
            device.receive(self._binding.frame(step, base, device.symbols))
        elif isinstance(step, Post):
            accepted = device.post_send(step)
        elif isinstance(step, Receive):
            device.post_recv(step.count, step.pair)
        elif isinstance(step, Pause):
            device.receive(self._binding.pause(step))
        elif isinstance(step, Connect):
            device.reconnect(step.connection)
        elif isinstance(step, Wait):
            answers = [(when - start, frame) for when, frame in device.wait(step.time)]
        if held:
            return Moment(psn, dict(device.symbols), accepted, (), (), ())
        if not isinstance(step, Wait):
            answers = [(0, frame) for frame in device.answers()]
        completions = device.completions()
        numbers = {qp.number: place for place, qp in enumerate(device.pairs)}
        takers = {(each[0], each[1]): numbers.get(each[QP_NUM], 0) for each in device.details()}
        return Moment(
            psn,
            dict(device.symbols),
            accepted,
            answers,
            completions,
            device.raised(),
            takers=takers,
        )


def moments(case: Case, profile: Profile) -> Iterator[Moment]:
    """A case carried out on one device."""
    execution = Execution(case.connection, profile)
    for step in case.steps:
        yield execution.do(step)
