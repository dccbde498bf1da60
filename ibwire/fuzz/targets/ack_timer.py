"""How long the ACK timer of a device is, where that explains what it does.

A timer of a wrong length shows in many ways: something is sent too late, or not within a wait, or
after something else. Its length is measured once. Whatever a reference with a timer of that length
does in the same way has the same cause.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction

from ibwire.base.node import Frame
from ibwire.base.units import Time
from ibwire.fuzz.case import Case, CaseError, Connect, Connection, Post, RunsAway, Step, Wait
from ibwire.fuzz.judge.comparison import Device, Difference, apply
from ibwire.fuzz.judge.replays import Compare
from ibwire.rc.profile import Profile
from ibwire.rc.timers import ack_wait
from ibwire_layers.psn import HALF

LENGTH_RULE = "C9-141; docs/reference/transport.md#ack-timeout"
LENGTH_GROUP = "the ACK timer: time"

LONGER = 32
"""How many times as long as in its case a wait is in which the device shall do the same."""


class AckTimer:
    """The lengths of the ACK timer that were measured on a device, as factors."""

    def __init__(self, compare: Compare, open_device: Callable[[Connection], Device]) -> None:
        self._compare = compare
        self._open = open_device
        self._factors: list[Fraction] = []
        self.devices = 0
        """How many were made, references included."""

    def explains(self, case: Case, difference: Difference, profile: Profile) -> bool:
        """Whether a reference with a timer of another length does what the device does.

        profile: of the reference.
        """
        steps = case.steps[: difference.step + 1]
        nominal = ack_wait(case.connection.timeout, profile)
        has_waits = any(isinstance(step, Wait) for step in steps)
        if nominal is None or not has_waits or any(isinstance(step, Connect) for step in steps):
            return False
        last = steps[-1]
        if isinstance(last, Wait):  # in a short one it may only be silent
            case = case.with_steps([*steps[:-1], Wait(last.time * LONGER)])
        if any(self._is_alike(case, profile, factor, nominal) for factor in self._factors):
            return True
        factor = self._measured(steps, case.connection, nominal)
        if factor is None or not self._is_alike(case, profile, factor, nominal):
            return False
        self._factors.append(factor)
        return True

    def _is_alike(self, case: Case, profile: Profile, factor: Fraction, nominal: Time) -> bool:
        """Whether a reference does the same whose timer is longer by this factor."""
        other = replace(profile, timeout_low=int(nominal * factor), few_unacked_psns=HALF)
        self.devices += 2
        try:
            return self._compare(case.connection, other, None).carry_out(case) is None
        except (CaseError, RunsAway):
            return False

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
