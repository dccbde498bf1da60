"""Whether a device does what a right one would do whose RNR NAKs use up retries of the ACK timer.

The two are counted apart: `rnr_retry` limits RNR NAKs, `retry_cnt` timeouts and sequence NAKs. A
device that counts them together gives up a request too early, whatever the step at which it does.
"""

from __future__ import annotations

from collections.abc import Sequence

from ibwire.base.node import Frame
from ibwire.fuzz.case import Step
from ibwire.fuzz.judge.concurrency import both
from ibwire.fuzz.judge.effects import RETRY_COUNT, RNR_RETRY
from ibwire.fuzz.judge.subject import About
from ibwire.fuzz.judge.variants import Deliver, Trials, Variant
from ibwire.fuzz.targets.emulated_device import Emulation

GROUP = "RNR NAKs that count as other retries"
RULE = both(RNR_RETRY, RETRY_COUNT)


def counts_as_retry(trials: Trials, abouts: Sequence[About]) -> bool:
    """Whether the reference does what the device does, if RNR NAKs use up such retries.

    abouts: what each step is about.
    """
    if not any(each.rule.endswith(_OF_RNR_NAKS) for each in abouts):
        return False
    return trials.first_that_shows([Variant(_counting)], longest=_LONGEST) is not None


def _counting(steps: Sequence[Step]) -> Deliver:
    """Frames arrive as usual, but an RNR NAK that is taken uses up a retry."""

    def deliver(reference: Emulation, number: int, frame: Frame) -> None:
        before = [qp.counters.rnr_naks_received for qp in reference.pairs]
        reference.receive(frame)
        for qp, count in zip(reference.pairs, before, strict=True):
            if qp.counters.rnr_naks_received > count:
                qp.sends.retries = max(qp.sends.retries - 1, 0)

    return deliver


_OF_RNR_NAKS = ("#rnr-wait", "#rnr-place")
_LONGEST = 20
"""Steps of a case: as many RNR NAKs, and waits behind them, as there are retries."""
