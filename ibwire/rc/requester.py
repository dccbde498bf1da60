"""The requester: from send work requests to request packets, once and again.

The send queue holds work requests in posting order. `una` is the oldest PSN that is
not acknowledged, `next_psn` the first that was never sent, `psn` the one to send now;
a retransmission moves `psn` back and everything from there is sent again (go-back-N).
The `cursor` is the work request that `psn` belongs to.

A request restarts in the middle of a message: a SEND or WRITE goes on with a MIDDLE
or LAST, a READ becomes a new READ REQUEST for the rest. The completer moves `una`;
nothing here reads a response.

Source: IBA 9.7.2 to 9.7.8; rxe_req.c, qib_rc.c `qib_make_rc_req`.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from ibwire.base.units import Time
from ibwire.rc.attributes import QPState
from ibwire.rc.credits import SendCredits
from ibwire.rc.memory import gather
from ibwire.rc.packet import Form, TransportPacket
from ibwire.rc.plan import Plan
from ibwire.rc.timers import Timers, ack_wait
from ibwire.rc.work import WC, SendFlags, SendWR, WCStatus, WROpcode
from ibwire_layers.opcodes import Operation
from ibwire_layers.psn import HALF, MASK

if TYPE_CHECKING:
    from ibwire.rc.qp import QueuePair


# Plain numbers: combining members of an enumeration is slow.
_FENCE = int(SendFlags.FENCE)
_SOLICITED = int(SendFlags.SOLICITED)

# A member is found faster without its class (measured: ibwire/rc/qp.py).
_RTS, _READ, _WRITE = QPState.RTS, Operation.READ, Operation.WRITE


class SendWQE:
    """A posted send work request and how far it has come."""

    __slots__ = (
        *("wr", "plan", "forms", "length", "packets", "signaled", "fence", "solicited", "limited"),
        "inline",
        *(
            "ssn",
            "view",
            "generation",
            "first_psn",
            "started",
            "holds_slot",
            "done",
            "status",
            "received",
            "skipped",
            "in_response",
        ),
    )

    def __init__(self, wr: SendWR, plan: Plan, forms: tuple[Form, Form, Form, Form]) -> None:
        self.wr = wr
        self.plan = plan
        self.forms = forms
        self.length = 0
        self.packets = 1
        """PSNs that it takes."""
        self.signaled = True
        flags = int(wr.send_flags)
        self.fence = bool(flags & _FENCE)
        self.solicited = bool(flags & _SOLICITED) and plan.takes_credit
        """Whether the peer's application is to be told; only messages that take a receive
        request can ask for that."""
        self.limited = False
        """Whether it was started as the one message beyond the credits."""
        self.inline: bytes | None = None
        self.view: memoryview | None = None
        """The message, while `generation` is that of the key table."""
        self.generation = -1
        self.ssn = 0
        self.first_psn = 0
        self.started = False
        self.holds_slot = False
        """Whether it counts against `max_rd_atomic`."""
        self.done = False
        """A local operation that has been carried out."""
        self.status: WCStatus | None = None
        """Why it cannot be sent; it completes so when it is the oldest."""
        self.received = 0
        """Bytes of the response that have arrived."""
        self.skipped = 0
        """Bytes of it before `first_psn`: it was asked for again."""
        self.in_response = False
        """Whether the next response packet continues one that has begun."""


class Requester:
    """The sending half of a reliable queue pair."""

    __slots__ = (
        *("qp", "wqes", "cursor", "una", "next_psn", "psn", "ssn", "credits", "timers"),
        *("reads", "retries", "rnr_retries", "restart_psn", "recover", "exact"),
        *("_since_request", "_probe", "_probing", "_unfreed", "_wait", "_stalled"),
    )

    def __init__(self, qp: QueuePair) -> None:
        self.qp = qp
        self.wqes: deque[SendWQE] = deque()
        self.timers = Timers()
        self._unfreed = 0
        self.reset()

    def reset(self) -> None:
        """As after creation: whatever was posted is forgotten."""
        self.wqes.clear()
        self.timers.stop()
        self.cursor = 0
        self.ssn = 0
        self.credits = SendCredits()
        # Whoever sends no credits waits for none (rxe: the first message of rc-pingpong).
        self.credits.limited = self.qp.profile.live_credits
        self.reads = 0
        """READs and atomics that are started and not answered."""
        self._unfreed = 0
        self._wait: Time | None = None
        self.retries = self.rnr_retries = 0
        self.start_at(0)

    def start_at(self, psn: int) -> None:
        """Set the PSN of the first packet."""
        self.una = self.next_psn = self.psn = psn
        self.restart_psn: int | None = None
        """Where a sequence NAK made it go back to, until something newer is acknowledged."""
        self.recover: int | None = None
        """First PSN that was not sent when it last went back, until that is acknowledged."""
        self.exact = False
        """Whether only the response at `una` counts, because what is before it was lost."""
        self._since_request = 0
        self._probe = False
        """Whether the next packet asks for an ACK and nothing follows it until one comes."""
        self._probing = False
        """Whether that packet is on its way."""
        self._stalled = False

    def configure(self) -> None:
        """Take retry counts and timeout from the attributes."""
        attr = self.qp.attr
        self.retries = attr.retry_cnt
        self.rnr_retries = attr.rnr_retry
        self._wait = ack_wait(attr.timeout, self.qp.profile)

    @property
    def in_use(self) -> int:
        """Slots of the send queue that are not free: posted, or completed without a completion.

        The slot of an unsignalled work request is free again with the next completion.
        """
        return len(self.wqes) + self._unfreed

    @property
    def outstanding(self) -> bool:
        """Whether a packet is unacknowledged."""
        return self.una != self.next_psn

    @property
    def wants_more(self) -> bool:
        """Whether the oldest is a READ whose PSNs are over before its bytes have come."""
        if not self.wqes or not self.wqes[0].started:
            return False
        wqe = self.wqes[0]
        is_read = wqe.plan.operation is Operation.READ
        return is_read and (wqe.first_psn + wqe.packets) & MASK == self.una

    def post(self, wqe: SendWQE) -> None:
        """Queue a work request that has been checked."""
        if wqe.plan.operation is not None:
            self.ssn = wqe.ssn = self.ssn + 1 & MASK
        self.wqes.append(wqe)

    def poll_transmit(self, now: Time) -> TransportPacket | None:
        """The next request packet, `None` when there is none that may leave."""
        wqes = self.wqes
        if self.cursor >= len(wqes) or self._probing:
            return None
        qp, timers = self.qp, self.timers
        if timers.rnr is not None and not qp.profile.sends_during_rnr_wait:
            return None
        while self.cursor < len(wqes):
            wqe = wqes[self.cursor]
            if wqe.status is not None:
                qp.completer.retire()
                return None  # it fails when all before it, which may be sent again, is done
            if not wqe.started and (qp.state is not _RTS or not self._start(wqe)):
                return None
            plan = wqe.plan
            if plan.operation is None:
                if wqe.done:
                    self.cursor += 1
                qp.completer.retire()
                continue
            psn = self.psn
            if (psn - self.una) & MASK > qp.profile.max_unacked_psns:
                return None
            index = (psn - wqe.first_psn) & MASK
            if plan.is_segmented:
                if index and wqe.limited and self._is_held_back(wqe):
                    return None
                packet = self._segment(wqe, index)
                if packet is None:  # its memory is at fault
                    wqe.status = WCStatus.LOC_PROT_ERR
                    qp.completer.retire()
                    return None
                following = psn + 1 & MASK
                if packet.form.is_last:
                    self.cursor += 1
            else:
                packet = self._single(wqe, index)
                following = (wqe.first_psn + wqe.packets) & MASK
                self.cursor += 1
            qp.address(packet, wqe.wr)
            if psn == self.next_psn:
                self.next_psn = following
            else:
                qp.counters.retransmitted += 1
                if (following - self.next_psn) & MASK < HALF:
                    self.next_psn = following
            self.psn = following
            if self._probe:
                packet.ack_req = 1
                self._probe, self._probing = False, True
            if timers.ack is None and self._wait is not None and timers.rnr is None:
                timers.ack = now + self._wait
            return packet
        return None

    def restart(self, psn: int) -> None:
        """Send everything from this PSN on again."""
        self.psn = psn
        # The count to the next request for an ACK goes on (rxe: big-send-bw-loss.a).
        self._probe = self._probing = False
        if psn == self.una and not self.qp.profile.checks_response_length:
            self._renumber()
        for index, wqe in enumerate(self.wqes):
            if not wqe.started:
                self.cursor = index
                return
            if wqe.plan.operation is not None and (psn - wqe.first_psn) & MASK < wqe.packets:
                self.cursor = index
                return
        self.cursor = len(self.wqes)

    def acknowledge(self, psn: int, now: Time) -> None:
        """Everything before `psn` is acknowledged: progress."""
        self.una = psn
        if self.recover is not None and (psn - self.recover) & MASK < HALF:
            self.recover = None
        self.exact = False
        self.restart_psn = None
        attr = self.qp.attr
        self.retries = attr.retry_cnt
        self.rnr_retries = attr.rnr_retry
        self._probing = False
        # What was refused has been taken after all.
        if self.timers.rnr is not None and not self.qp.profile.sends_during_rnr_wait:
            self.timers.rnr = None
            self.restart(psn)
        self.arm(now)
        if (psn - self.psn) & MASK < HALF and psn != self.psn:
            self.restart(psn)  # an answer to what was about to be sent again

    def arm(self, now: Time) -> None:
        """Start the ACK timer afresh, or stop it when nothing is outstanding."""
        if self.una != self.next_psn:
            self.timers.ack = None if self._wait is None else now + self._wait
        elif not self.qp.profile.keeps_pending_timer:
            self.timers.ack = None

    def handle_timeout(self, now: Time) -> None:
        """Go back after an RNR wait, or because no answer came."""
        timers = self.timers
        if timers.rnr is not None and timers.rnr <= now:
            timers.rnr = None
            self.restart(self.una)
        if timers.ack is not None and timers.ack <= now:
            timers.ack = None
            if not self.outstanding:
                if self.wants_more:
                    self.use_up_retry()  # though there is nothing to send (rxe_completer)
                return
            self.qp.counters.timeouts += 1
            if self.use_up_retry():
                self.exact = False
                self.restart_psn = None if self.qp.profile.nak_is_progress else self.una
                self.recover = self.next_psn
                self.restart(self.una)
                self._probe = self.qp.profile.timeout_sends_one

    def use_up_retry(self) -> bool:
        """Count one retry; `False` if there was none left, and then the queue pair has failed."""
        if self.retries == 0:
            if self.qp.migrate():
                self.retries = self.qp.attr.retry_cnt
                return True
            self.qp.completer.fail(WCStatus.RETRY_EXC_ERR)
            return False
        if self.retries != 7 or not self.qp.profile.retry_7_is_infinite:
            self.retries -= 1
        return True

    def complete(self, wqe: SendWQE, status: WCStatus) -> None:
        """Take the oldest work request off the queue and report it if it wants to be."""
        self.wqes.popleft()
        if self.cursor:
            self.cursor -= 1
        if wqe.holds_slot:
            self.reads -= 1
        if wqe.signaled or status is not WCStatus.SUCCESS:
            self._unfreed = 0
            self.qp.report(
                self.qp.send_cq,
                WC(
                    wqe.wr.wr_id,
                    status,
                    wqe.plan.completion,
                    self.qp.number,
                    byte_len=wqe.length if wqe.plan.is_answered else 0,
                    solicited=status is not WCStatus.SUCCESS,
                ),
            )
        else:
            self._unfreed += 1

    def flush(self) -> None:
        """Complete everything with WR_FLUSH_ERR."""
        self.timers.stop()
        while self.wqes:
            self.complete(self.wqes[0], WCStatus.WR_FLUSH_ERR)
        self.cursor = self.reads = 0

    def _renumber(self) -> None:
        """A READ that goes on takes a PSN for each packet that is missing; the next ones follow."""
        if not self.wqes or not self.wqes[0].started:
            return
        wqe, mtu = self.wqes[0], self.qp.mtu
        if wqe.plan.operation is not Operation.READ:
            return
        end = wqe.first_psn + wqe.packets
        wqe.skipped = wqe.received
        wqe.first_psn = self.una
        wqe.packets = max(-(-(wqe.length - wqe.received) // mtu), 1)
        moved = self.una + wqe.packets - end
        self.next_psn = self.next_psn + moved & MASK
        for behind in self.wqes:
            if behind is not wqe:
                behind.first_psn = behind.first_psn + moved & MASK

    def _start(self, wqe: SendWQE) -> bool:
        """Begin a work request if everything that it must wait for has happened."""
        plan = wqe.plan
        if plan.operation is None:
            return self._run_local(wqe)
        if wqe.fence and self.reads:
            return False
        profile = self.qp.profile
        if plan.is_answered and self.reads >= self.qp.attr.max_rd_atomic:
            return False
        in_flight = (self.next_psn - self.una) & MASK
        if in_flight > profile.max_unacked_psns or in_flight + wqe.packets > HALF:
            return False
        if plan.takes_credit:
            beyond = self.credits.beyond(wqe.ssn)
            if beyond > 1:
                if not self._stalled:
                    self._stalled = True
                    self.qp.counters.credit_stalls += 1
                return False
            self._stalled = False
            wqe.limited = beyond == 1
        else:
            self.credits.skip_one()
        if plan.is_answered:
            self.reads += 1
            wqe.holds_slot = True
        wqe.first_psn = self.next_psn
        wqe.started = True
        return True

    def _is_held_back(self, wqe: SendWQE) -> bool:
        """Whether the rest of a limited message waits for the answer to its first packet."""
        if self.qp.profile.limited_message:
            return False
        if not self.credits.beyond(wqe.ssn):
            wqe.limited = False
            return False
        return (self.una - wqe.first_psn - 1) & MASK >= HALF

    def _single(self, wqe: SendWQE, index: int) -> TransportPacket:
        """The packet of a request that is one: of a READ, for the answer from `index` on."""
        operation, wr = wqe.plan.operation, wqe.wr
        packet = TransportPacket(wqe.forms[3], self.psn)
        packet.ack_req = 1
        packet.rkey = wr.rkey
        packet.va = wr.remote_addr
        if operation is _READ:
            done = index * self.qp.mtu + wqe.skipped
            wqe.in_response = False
            packet.va = wr.remote_addr + done - done % self.qp.mtu
            packet.dma_len = wqe.length - done
        elif operation is Operation.FLUSH:
            packet.dma_len = wr.length
            packet.plt, packet.sel = wr.flush_type, wr.flush_level
        elif operation is Operation.ATOMIC_WRITE:
            packet.dma_len = 8
            packet.payload = wr.atomic_data
        elif operation is Operation.COMPARE_SWAP:
            packet.swap, packet.compare = wr.swap, wr.compare_add
        else:
            packet.swap, packet.compare = wr.compare_add, 0
        self._since_request = 0
        return packet

    def _segment(self, wqe: SendWQE, index: int) -> TransportPacket | None:
        """Packet `index` of a SEND or WRITE; `None` when its own memory is at fault."""
        qp, wr = self.qp, wqe.wr
        mtu = qp.mtu
        start = index * mtu
        size = wqe.length - start
        ends = size <= mtu
        if ends:
            form = wqe.forms[2 if index else 3]
        else:
            size = mtu
            form = wqe.forms[1 if index else 0]
        if wqe.inline is not None:
            payload: bytes | None = wqe.inline[start : start + size]
        elif wqe.generation == qp.keys.generation:
            assert wqe.view is not None
            payload = bytes(wqe.view[start : start + size])
        elif size:
            payload = self._gather(wqe, start, size)
        else:
            payload = b""
        if payload is None:
            return None
        packet = TransportPacket(form, self.psn, payload)
        if not index and wqe.plan.operation is _WRITE:
            packet.va, packet.rkey, packet.dma_len = wr.remote_addr, wr.rkey, wqe.length
        if ends:
            packet.ack_req = 1
            self._since_request = 0
            if form.has_imm:
                packet.imm_data = wr.imm_data
            elif form.has_invalidate:
                packet.invalidate_rkey = wr.invalidate_rkey
            if wqe.solicited:
                packet.se = 1
            return packet
        self._since_request += 1
        if self._since_request >= qp.profile.ack_request_interval:
            packet.ack_req = 1
            self._since_request = 0
        elif not index and wqe.limited:
            packet.ack_req = 1
        return packet

    def _gather(self, wqe: SendWQE, start: int, size: int) -> bytes | None:
        """Bytes of a message; what was found is kept for the next packet where it is one piece."""
        qp, sges = self.qp, wqe.wr.sg_list
        if len(sges) == 1 and size < wqe.length:
            sge = sges[0]
            region = qp.keys.find_local(qp.pd, sge.lkey, sge.addr, sge.length, 0)
            if region is not None:
                first = sge.addr - region.iova
                wqe.view = region.buffer[first : first + sge.length]
                wqe.generation = qp.keys.generation
        return gather(qp.keys, qp.pd, sges, start, size)

    def _run_local(self, wqe: SendWQE) -> bool:
        """Carry out an operation that never leaves the device."""
        wr, qp = wqe.wr, self.qp
        if wr.opcode is WROpcode.LOCAL_INV:
            if self.wqes[0] is not wqe:  # the local invalidate fence
                return False
            done = qp.keys.invalidate(wr.invalidate_rkey, qp.pd, qp.number)
            status = WCStatus.LOC_QP_OP_ERR
        else:
            done = (
                wr.mw is not None
                and wr.bind_info is not None
                and qp.keys.bind(wr.mw, qp.number, qp.pd, wr.bind_info, wr.rkey)
            )
            status = WCStatus.MW_BIND_ERR
        wqe.started = True
        if not done:
            wqe.status = status
        wqe.done = done
        return True
