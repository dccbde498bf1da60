"""Every law of a reliable connection in schedules that were made for it."""

from __future__ import annotations

import pytest

from ibwire.base.units import US
from ibwire.rc.work import WROpcode
from law_examples import EXAMPLES, FAILING, RECOVERING
from laws import every_request_succeeds, is_request
from laws_wire import check
from schedules import Schedule, Work


@pytest.mark.parametrize("example", RECOVERING)
def test_laws_hold_and_everything_succeeds_when(example: str) -> None:
    every_request_succeeds(check(EXAMPLES[example]))


@pytest.mark.parametrize("example", FAILING)
def test_laws_hold_and_something_fails_when(example: str) -> None:
    assert check(EXAMPLES[example]).flows[0].failed


def test_write_takes_no_credit_from_a_later_send() -> None:
    """It raises the limit by one as it starts, so later requests need not wait for its ACK."""
    writes, sends = (Work(WROpcode.RDMA_WRITE, 5),) * 3, (Work(WROpcode.SEND, 5),) * 3
    first = Work(WROpcode.RDMA_WRITE, 5, after=20 * US)
    run = check(Schedule((Work(WROpcode.SEND, 5), first, *writes[1:], *sends), receives=((0, 4),)))

    seen = [e for e in run.history if e.end == "a" and e.packet and e.time >= 20 * US]
    assert [is_request(e.packet) for e in seen[:6] if e.packet] == [True] * 6
