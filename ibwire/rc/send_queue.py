"""The send queue of a queue pair: going back, retries, timers and completions.

The requester takes packets from it and the completer reports responses to it;
neither keeps its own state. `SendState` describes the PSNs. Work requests complete in
the order in which they were posted, each once.

Source: IBA 9.7.5 to 9.7.8; rxe_req.c `req_retry`, rxe_comp.c, qib_rc.c `qib_restart_rc`.
"""

from __future__ import annotations

from typing import Final

from ibwire.base.units import Time
from ibwire.rc.attributes import QPState
from ibwire.rc.congestion.window import SendWindow
from ibwire.rc.context import QPContext
from ibwire.rc.credits import SendCredits
from ibwire.rc.send_state import SendState, SendWQE
from ibwire.rc.timers import ack_wait, rnr_wait
from ibwire.rc.work import WC, WCStatus
from ibwire_layers.psn import HALF, MASK

# A member is found faster without its class (measured: ibwire/rc/qp.py).
_SUCCESS: Final = WCStatus.SUCCESS
_RTS: Final = QPState.RTS


class SendQueue(SendState):
    """Posted send work requests, in order, and what happens to them."""

    __slots__ = ("_habits", "qp", "window")

    def __init__(self, qp: QPContext) -> None:
        self.qp = qp
        self._habits = qp.habits.requester
        self.window: SendWindow | None = None
        """With congestion control, what limits the packets in flight."""
        super().__init__()

    def reset(self) -> None:
        """Forget every work request, as after creation."""
        super().reset()
        if self.window is not None:
            self.window.stop()
        # A requester that sends no credits waits for none (rxe: the first message of rc-pingpong).
        self.credits = SendCredits()
        self.credits.limited = self.qp.profile.live_credits
        if self.qp.profile.takes_credits:
            self.credits.limited = True

    def configure(self) -> None:
        """Take retry counts and timeout from the attributes."""
        attr = self.qp.attr
        self.retries = attr.retry_cnt
        self.rnr_retries = attr.rnr_retry
        self.ack_wait = ack_wait(attr.timeout, self.qp.profile)
        self.is_lengthened = False
        if self.window is not None:
            self.window.configure(self.ack_wait)

    @property
    def is_drained(self) -> bool:
        """Whether no started work request is left."""
        return not (self.wqes and self.wqes[0].started)

    def post(self, wqe: SendWQE) -> None:
        """Queue a work request that has been checked."""
        if wqe.plan.operation is not None:
            self.ssn = wqe.ssn = self.ssn + 1 & MASK
        self.wqes.append(wqe)

    def restart(self, psn: int) -> None:
        """Send everything from this PSN on again."""
        self.psn = psn
        if self.resent:
            self.resend.clear()
            self.resent.clear()
        if self.window is not None:
            self.window.restart(psn)
        # The count to the next request for an ACK continues (reference/habits#rxe-ack-request).
        self.probe = self.probing = False
        if psn == self.una:
            self._habits.renumber(self, self.qp.mtu)
        for index, wqe in enumerate(self.wqes):
            if not wqe.started:
                self.cursor = index
                return
            if wqe.plan.operation is not None and (psn - wqe.first_psn) & MASK < wqe.packets:
                self.cursor = index
                return
        self.cursor = len(self.wqes)

    def go_back(self, psn: int, now: Time, *, implied: bool) -> None:
        """Restart at `psn` after a NAK or a missing response; takes one retry.

        implied: whether a response is missing, instead of a NAK that has arrived.
        """
        if not self.outstanding and self._habits.oldest_read_incomplete(self):
            self.use_up_retry()  # although there is nothing to send
            return
        if psn in (self.restart_psn, self.psn) or self.timers.rnr is not None:
            return  # it has gone back already, or will after the wait
        if not self._habits.may_go_back(self):
            return
        if implied:
            self.qp.counters.implied_naks += 1
        if self.use_up_retry():
            if self.window is not None:
                self.window.lose(now, timeout=False)
            self.restart_psn = psn
            self.exact = implied
            self.recover = self.next_psn
            self.restart(psn)
            self.arm(now)

    def acknowledge(self, psn: int, now: Time) -> None:
        """Everything before `psn` is acknowledged: progress."""
        self.una = psn
        if self.window is not None:
            self.window.acknowledge(now)
        if self.recover is not None and (psn - self.recover) & MASK < HALF:
            self.recover = None
        self.exact = False
        self.restart_psn = None
        if self.resent:
            self._forget_resent()
        attr = self.qp.attr
        self.retries = attr.retry_cnt
        self.rnr_retries = attr.rnr_retry
        self.probing = False
        # The refused request was executed after all.
        if self.timers.rnr is not None and self._habits.rnr_wait_blocks():
            self.timers.rnr = None
            self.restart(psn)
        self.arm(now)
        if (psn - self.psn) & MASK < HALF and psn != self.psn:
            self.restart(psn)  # the response is to a packet that was about to be retransmitted

    def _forget_resent(self) -> None:
        """Drop what was retransmitted and is acknowledged now."""
        for psn in [each for each in self.resent if (each - self.una) & MASK >= HALF]:
            del self.resent[psn]

    def acknowledge_inside(self, psn: int, now: Time) -> None:
        """All packets before `psn` in the oldest message are acknowledged, without progress."""
        self.una = psn
        if self.window is not None:
            self.window.acknowledge(now)
        if (self.psn - psn) & MASK >= HALF:
            self.restart(psn)
        self.arm(now)

    def wait_out_rnr(self, code: int, now: Time) -> None:
        """Wait as an RNR NAK with this timer code asks for; takes one RNR retry."""
        if not self._habits.takes_rnr_nak(self):
            return
        self.qp.counters.rnr_naks_received += 1
        if self.rnr_retries == 0:
            self.fail(WCStatus.RNR_RETRY_EXC_ERR)
            return
        if self.rnr_retries != 7:
            self.rnr_retries -= 1
        self.timers.rnr = now + rnr_wait(code, self.qp.profile)
        self.timers.ack = None
        self.restart_psn = self._habits.restart_psn_after_rnr_nak(self)
        self._lengthen()
        self.timers.rnr_time = self.timers.rnr - now

    def arm(self, now: Time) -> None:
        """Restart the ACK timer, or stop it when nothing is outstanding."""
        self.is_extended = False
        if self.is_lengthened:
            self.is_lengthened = False
            self.ack_wait = ack_wait(self.qp.attr.timeout, self.qp.profile)
        if self.una != self.next_psn:
            self.timers.ack = None if self.ack_wait is None else now + self.ack_wait
        else:
            self._habits.stop_ack_timer(self)

    def _lengthen(self) -> None:
        """Let the ACK timer run as long as after the retries that have been used up."""
        attr, profile = self.qp.attr, self.qp.profile
        if profile.ack_timer_percents:
            self.is_lengthened = True
            self.ack_wait = ack_wait(attr.timeout, profile, max(attr.retry_cnt - self.retries, 0))

    def handle_timeout(self, now: Time) -> None:
        """Go back after an RNR wait, or because no response has arrived."""
        timers = self.timers
        if timers.rnr is not None and timers.rnr <= now:
            timers.rnr = None
            self.restart(self.una)
            if self.qp.profile.rnr_wait_sends_one:
                self.probe = True
        if timers.ack is not None and timers.ack <= now:
            timers.ack = None
            if self._extend(now):
                return
            if not self.outstanding:
                if self._habits.oldest_read_incomplete(self):
                    self.use_up_retry()  # although there is nothing to send
                return
            self.qp.counters.timeouts += 1
            if self.use_up_retry():
                if self.window is not None:
                    self.window.lose(now, timeout=True)
                self.exact = False
                self.restart_psn = self._habits.restart_psn_after_timeout(self)
                self.recover = self.next_psn
                self.restart(self.una)
                self._lengthen()
                self.probe = self.qp.profile.timeout_sends_one

    def _extend(self, now: Time) -> bool:
        """Wait longer once, because many packets are on the way (IRN)."""
        profile = self.qp.profile
        in_flight = (self.next_psn - self.una) & MASK
        if not profile.timeout_low or self.is_extended or in_flight <= profile.few_unacked_psns:
            self.is_extended = False
            return False
        self.is_extended = True
        self.timers.ack = now + max(profile.timeout_high - profile.timeout_low, 0)
        return True

    def use_up_retry(self) -> bool:
        """Count one retry; `False` if none was left, and then the queue pair has failed."""
        if self.retries == 0:
            if self.qp.migrate():
                self.retries = self.qp.attr.retry_cnt
                return True
            self.fail(WCStatus.RETRY_EXC_ERR)
            return False
        self.retries = self._habits.retries_left(self.retries)
        return True

    def complete(self, wqe: SendWQE, status: WCStatus) -> None:
        """Remove the oldest work request and report it if it is signalled or has failed."""
        self.wqes.popleft()
        if self.cursor:
            self.cursor -= 1
        if wqe.holds_slot:
            self.reads -= 1
        if wqe.signaled or status is not _SUCCESS:
            self._uncompleted_slots = 0
            self.qp.report(
                self.qp.send_cq,
                WC(
                    wr_id=wqe.wr.wr_id,
                    status=status,
                    opcode=wqe.plan.completion,
                    qp_num=self.qp.number,
                    byte_len=wqe.length if wqe.plan.is_answered else 0,
                    solicited=status is not _SUCCESS,
                ),
            )
        else:
            self._uncompleted_slots += 1

    def retire(self) -> None:
        """Complete what is done at the head of the queue; fail a head that cannot be sent."""
        wqes = self.wqes
        while wqes and wqes[0].done:
            self.complete(wqes[0], _SUCCESS)
        wqe = wqes[0] if wqes else None
        # In SQD a work request that has not started waits, its failure too.
        if wqe and wqe.status is not None and (wqe.started or self.qp.state is _RTS):
            self.fail(wqe.status)
        self.qp.check_drained()

    def fail(self, status: WCStatus) -> None:
        """End the oldest work request with this status, and the connection with it."""
        if self.wqes:
            self.complete(self.wqes[0], status)
        self.qp.enter_error()

    def flush(self) -> None:
        """Complete everything with WR_FLUSH_ERR."""
        self.timers.stop()
        while self.wqes:
            self.complete(self.wqes[0], WCStatus.WR_FLUSH_ERR)
        self.cursor = self.reads = 0
        if self.window is not None:
            self.window.stop()
