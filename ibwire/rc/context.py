"""The interface of a queue pair for its parts.

The send queue, requester, completer, responder and receive queue each get a `QPContext`,
which is the base of `QueuePair`, so that they do not import it. The parts do not reach each other
through it: a part that works on the send queue or the receive queue gets it as an argument.
"""

from __future__ import annotations

from ibwire.rc.attributes import EventType, QPAttr, QPCap, QPState, QPType
from ibwire.rc.counters import QPCounters
from ibwire.rc.cq import CompletionQueue
from ibwire.rc.habits import Habits
from ibwire.rc.memory import KeyTable, ProtectionDomain
from ibwire.rc.packet import TransportPacket
from ibwire.rc.profile import Profile
from ibwire.rc.srq import SharedReceiveQueue
from ibwire.rc.work import WC, SendWR
from ibwire_layers.opcodes import Service


class QPContext:
    """A queue pair as its parts see it."""

    __slots__ = (
        "accepts_requests",
        "attr",
        "cap",
        "counters",
        "habits",
        "keys",
        "mtu",
        "number",
        "pd",
        "profile",
        "qp_type",
        "recv_cq",
        "refused_request",
        "send_cq",
        "service",
        "sq_sig_all",
        "state",
        "wrong_response",
    )

    number: int
    qp_type: QPType
    service: Service
    state: QPState
    attr: QPAttr
    cap: QPCap
    mtu: int
    """Path MTU in bytes."""
    profile: Profile
    habits: Habits
    keys: KeyTable
    pd: ProtectionDomain
    send_cq: CompletionQueue | None
    recv_cq: CompletionQueue | None
    counters: QPCounters
    sq_sig_all: bool
    refused_request: TransportPacket | None
    """The request that has ended the connection."""
    wrong_response: TransportPacket | None
    """The response that has ended the connection."""
    accepts_requests: bool
    """Whether the state lets the responder take requests."""

    @property
    def is_xrc(self) -> bool:
        """Whether it belongs to an XRC domain."""
        raise NotImplementedError

    def wake(self) -> None:
        """Report that there may be a packet to send."""
        raise NotImplementedError

    def emit(self, event_type: EventType) -> None:
        """Raise an asynchronous event."""
        raise NotImplementedError

    def count_bad_qkey(self) -> None:
        """Count a datagram that is dropped by its Q_Key."""
        raise NotImplementedError

    def report(self, cq: CompletionQueue | None, wc: WC) -> None:
        """Put a completion into its queue."""
        raise NotImplementedError

    def address(self, packet: TransportPacket, wr: SendWR | None) -> None:
        """Fill in the destination of a packet; `wr` is the work request of a request packet."""
        raise NotImplementedError

    def enter_error(self) -> None:
        """Move to ERR."""
        raise NotImplementedError

    def enter_send_error(self) -> None:
        """Move to SQE."""
        raise NotImplementedError

    def check_drained(self) -> None:
        """End the draining in SQD if no send is under way."""
        raise NotImplementedError

    def migrate(self) -> bool:
        """Take the alternate path if it is armed."""
        raise NotImplementedError

    def find_srq(self, number: int) -> SharedReceiveQueue | None:
        """The shared receive queue of its XRC domain with this number."""
        raise NotImplementedError
