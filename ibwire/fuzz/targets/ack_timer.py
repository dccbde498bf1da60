"""How long the ACK timer of a device is, where that explains what it does.

A timer of a wrong length shows in many ways: something is sent too late, or not within a wait, or
after something else. Its length is measured once. Whatever a reference with a timer of that length
does in the same way has the same cause; so has what it does with the device's RNR timer, where that
has a wrong length too.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction

from ibwire.base.node import Frame
from ibwire.base.units import Time
from ibwire.fuzz.case import (
    Case,
    CaseError,
    Connect,
    Connection,
    Packet,
    Post,
    RunsAway,
    Step,
    Wait,
)
from ibwire.fuzz.judge.comparison import Device, Difference, Kind, apply
from ibwire.fuzz.judge.replays import Compare
from ibwire.rc.profile import Profile
from ibwire.rc.timers import ack_wait, rnr_wait
from ibwire.rc.work import WROpcode
from ibwire_layers.opcodes import OpCode
from ibwire_layers.psn import HALF
from ibwire_layers.syndrome import AckKind

LENGTH_RULE = "C9-141; docs/reference/transport.md#ack-timeout"
LENGTH_GROUP = "the ACK timer: time"

LONGER = 32
"""How many times as long as in its case a wait is in which the device shall do the same."""

RNR_CODE = 12
"""Timer code of the RNR NAK after which the device's wait is measured: 0.64 ms."""

RNR_STEPS = 2
"""Steps before that wait."""


class AckTimer:
    """The lengths of the ACK timer that were measured on a device, as factors."""

    def __init__(self, compare: Compare, open_device: Callable[[Connection], Device]) -> None:
        self._compare = compare
        self._open = open_device
        self._factors: list[Fraction] = []
        self._rnr_percent = 0
        """The length of its RNR timer, in percent of the right one; 0 if it was not measured."""
        self.devices = 0
        """How many were made, references included."""

    def explains(self, case: Case, difference: Difference, profile: Profile) -> bool:
        """Whether a reference with a timer of another length does what the device does.

        profile: of the reference; one that follows the device has no timer of one length.
        """
        if profile.timers_vary:
            return False
        steps = case.steps[: difference.step + 1]
        nominal = ack_wait(case.connection.timeout, profile)
        has_waits = any(isinstance(step, Wait) for step in steps)
        if nominal is None or not has_waits or any(isinstance(step, Connect) for step in steps):
            return False
        last, as_it_is = steps[-1], case
        if isinstance(last, Wait):  # in a short one it may only be silent
            case = case.with_steps([*steps[:-1], Wait(last.time * LONGER)])
        if any(self._is_alike(case, profile, factor, nominal) for factor in self._factors):
            return True
        if self._factors and any(map(_is_rnr_nak, steps)):
            percent = self._rnr_percent = self._rnr_percent or self._measured_rnr(profile)
            other = replace(profile, rnr_timer_percent=percent)
            if percent != profile.rnr_timer_percent and not self._is_same(as_it_is, other):
                return any(self._is_alike(case, other, each, nominal) for each in self._factors)
        factor = self._measured(steps, case.connection, nominal)
        if factor is None or not self._is_alike(case, profile, factor, nominal):
            return False
        self._factors.append(factor)
        return True

    def _is_alike(self, case: Case, profile: Profile, factor: Fraction, nominal: Time) -> bool:
        """Whether a reference does the same whose timer is longer by this factor."""
        other = replace(profile, timeout_low=int(nominal * factor), few_unacked_psns=HALF)
        return self._is_same(case, other)

    def _is_same(self, case: Case, profile: Profile) -> bool:
        """Whether a reference does what the device does."""
        self.devices += 2
        try:
            return self._compare(case.connection, profile, None).carry_out(case) is None
        except (CaseError, RunsAway):
            return False

    def _measured_rnr(self, profile: Profile) -> int:
        """How long the device waits after an RNR NAK, in percent of what is right."""
        usual = profile.rnr_timer_percent
        self.devices += 2
        comparison = self._compare(Connection(timeout=0), profile, None)
        refused = Packet(
            int(OpCode.RC_ACKNOWLEDGE), ("una", 0), fields={"aeth.syndrome": _RNR << 5 | RNR_CODE}
        )
        wait = Wait(LONGER * rnr_wait(RNR_CODE, profile))
        found = comparison.carry_out(
            Case(comparison.reference.connection, (Post(int(WROpcode.RDMA_WRITE)), refused, wait))
        )
        if found is None or found.kind is not Kind.TIME or found.step != RNR_STEPS:
            return usual
        (right, *_), (got, *_) = found.expected, found.got
        assert isinstance(right, int)
        assert isinstance(got, int)
        percent, rest = divmod(usual * got, right)
        return usual if rest else percent

    def _measured(
        self, steps: tuple[Step, ...], connection: Connection, nominal: Time
    ) -> Fraction | None:
        """How many times too long the device waits after a single request, before it retries."""
        post, *waits = steps
        if not isinstance(post, Post) or not all(isinstance(step, Wait) for step in waits):
            return None
        self.devices += 1
        device = self._open(connection)
        try:
            apply(device, post)
            device.answers()
            sent: list[tuple[Time, Frame]] = device.wait(nominal * LONGER)
        except Exception:  # a device under test may raise anything
            return None
        return Fraction(sent[0][0], nominal) if sent and sent[0][0] != nominal else None


def _is_rnr_nak(step: Step) -> bool:
    syndrome = step.fields.get("aeth.syndrome") if isinstance(step, Packet) else None
    return isinstance(syndrome, int) and syndrome >> 5 == _RNR


_RNR = int(AckKind.RNR_NAK)
