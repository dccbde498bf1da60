"""The state of a send queue: posted work requests, the PSNs they take, retries and timers.

`una` is the oldest PSN that is not acknowledged, `next_psn` the first that was never
sent, `psn` the next to send. A retransmission moves `psn` back to somewhere between the
two, and everything from there is retransmitted (go-back-N). `cursor` is the index of the
work request that `psn` belongs to.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from ibwire.base.units import Time
from ibwire.rc.credits import SendCredits
from ibwire.rc.packet import Form
from ibwire.rc.plan import Plan
from ibwire.rc.timers import Timers
from ibwire.rc.work import SendFlags, SendWR, WCStatus
from ibwire_layers.psn import MASK

# Plain numbers: combining members of an enumeration is slow.
_FENCE: Final = int(SendFlags.FENCE)
_SOLICITED: Final = int(SendFlags.SOLICITED)


class SendWQE:
    """A posted send work request and its progress."""

    __slots__ = (
        "done",
        "fence",
        "first_psn",
        "forms",
        "generation",
        "holds_slot",
        "in_response",
        "inline",
        "is_segmented",
        "is_sent",
        "length",
        "limited",
        "packets",
        "plan",
        "received",
        "signaled",
        "skipped",
        "solicited",
        "ssn",
        "started",
        "status",
        "view",
        "wr",
    )

    def __init__(self, wr: SendWR, plan: Plan, forms: tuple[Form, Form, Form, Form]) -> None:
        self.wr = wr
        self.plan = plan
        self.forms = forms
        self.is_sent = plan.operation is not None
        """Whether it has packets; a local operation has none."""
        self.is_segmented = plan.is_segmented
        """As of its plan, which is looked up more slowly."""
        self.length = 0
        self.packets = 1
        """PSNs that it takes."""
        self.signaled = True
        flags = int(wr.send_flags)
        self.fence = bool(flags & _FENCE)
        self.solicited = bool(flags & _SOLICITED) and plan.takes_credit
        """Whether its last packet asks for a solicited event; only a message that consumes a
        receive request can."""
        self.limited = False
        """Whether it was started as the one message beyond the credits."""
        self.inline: bytes | None = None
        self.view: memoryview | None = None
        """The message, valid while `generation` is that of the key table."""
        self.generation = -1
        self.ssn = 0
        self.first_psn = 0
        self.started = False
        self.holds_slot = False
        """Whether it counts against `max_rd_atomic`."""
        self.done = False
        """Whether a local operation has been carried out."""
        self.status: WCStatus | None = None
        """Why it cannot be sent; it completes with this status when it is the oldest."""
        self.received = 0
        """Bytes of the response that have arrived."""
        self.skipped = 0
        """Bytes of the response before `first_psn`, after a READ was renumbered."""
        self.in_response = False
        """Whether the next response packet continues one that has begun."""


class SendState:
    """The work requests, PSNs, retry counters and timers of one send queue."""

    __slots__ = (
        "_uncompleted_slots",
        "ack_wait",
        "credits",
        "cursor",
        "exact",
        "is_extended",
        "is_lengthened",
        "next_psn",
        "probe",
        "probing",
        "psn",
        "reads",
        "recover",
        "resend",
        "resent",
        "restart_psn",
        "retries",
        "rnr_retries",
        "since_ack_request",
        "ssn",
        "stalled",
        "timers",
        "una",
        "wqes",
    )

    def __init__(self) -> None:
        self.wqes: deque[SendWQE] = deque()
        """Work requests that have not completed, oldest first."""
        self.timers = Timers()
        self.credits = SendCredits()
        self._uncompleted_slots = 0
        """Slots of unsignalled work requests that are done: the next completion frees them."""
        self.reset()

    def reset(self) -> None:
        """Forget every work request, as after creation."""
        self.wqes.clear()
        self.timers.stop()
        self.cursor = 0
        self.ssn = 0
        """Send sequence number of the newest message."""
        self.credits = SendCredits()
        self.reads = 0
        """READs and atomics that are started and not answered."""
        self._uncompleted_slots = 0
        self.ack_wait: Time | None = None
        """How long to wait for a response, `None` for ever."""
        self.retries = self.rnr_retries = 0
        self.start_at(0)

    def start_at(self, psn: int) -> None:
        """Set the PSN of the first packet."""
        self.psn = self.una = self.next_psn = psn
        self.restart_psn: int | None = None
        """PSN of the last restart, until something is acknowledged."""
        self.recover: int | None = None
        """`next_psn` at the last restart, until that PSN is acknowledged."""
        self.exact = False
        """Whether only the response at `una` counts, because one before it was lost."""
        self.probe = False
        """Whether the next packet asks for an ACK and is the only one until it comes."""
        self.probing = False
        """Whether that packet is sent and unacknowledged."""
        self.since_ack_request = 0
        """Packets sent since one asked for an ACK."""
        self.is_lengthened = False
        """Whether `ack_wait` is that after a retry (`Profile.ack_timer_percents`)."""
        self.is_extended = False
        """Whether the ACK timer waits for the rest of a longer timeout (IRN)."""
        self.stalled = False
        """Whether a message, or the rest of one, waits for credits."""
        self.resend: list[int] = []
        """PSNs to retransmit before anything else (selective repeat)."""
        self.resent: dict[int, int] = {}
        """PSNs that were retransmitted, each with `next_psn` at that time."""

    @property
    def in_use(self) -> int:
        """Occupied slots: those of posted work requests, and of unsignalled ones that are done.

        The slot of an unsignalled work request is freed by the next completion.
        """
        return len(self.wqes) + self._uncompleted_slots

    @property
    def outstanding(self) -> bool:
        """Whether a packet is unacknowledged."""
        return self.una != self.next_psn

    @property
    def has_more(self) -> bool:
        """Whether a work request is not sent, or must be retransmitted."""
        return self.cursor < len(self.wqes) or bool(self.resend)

    def find(self, psn: int) -> SendWQE | None:
        """The started work request that a PSN belongs to."""
        for wqe in self.wqes:
            if not wqe.started:
                return None
            if wqe.plan.operation is not None and (psn - wqe.first_psn) & MASK < wqe.packets:
                return wqe
        return None
