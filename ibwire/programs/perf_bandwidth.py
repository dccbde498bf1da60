"""The traffic of a bandwidth test: queues are kept full until all messages are done."""

from __future__ import annotations

from collections.abc import Sequence

from ibwire.base.errors import PeerError
from ibwire.programs.endpoint import Endpoint
from ibwire.programs.failures import cause, first_status
from ibwire.programs.perf_flows import Flow, Plan
from ibwire.programs.perf_results import PEAK_LIMIT, Bandwidth
from ibwire.rc.cq import CompletionQueue
from ibwire.rc.qp import QueuePair
from ibwire.rc.work import WC, WCStatus


class Sending:
    """The requester of an end."""

    def __init__(
        self, endpoint: Endpoint, plan: Plan, flows: Sequence[Flow], cq: CompletionQueue
    ) -> None:
        self.measured = Bandwidth(plan.size)
        self._endpoint = endpoint
        self._plan = plan
        self._flows = flows
        self._cq = cq
        self._every = max(plan.depth // 4, 1)
        """Every N-th message and the last one request a completion."""
        self._total: int | None = None if plan.seconds else plan.messages
        """Messages of each flow; `None` until the time is over."""
        self._posted = 0
        """Messages of all flows."""
        self._ends_ns = 0
        if not plan.seconds and plan.messages * plan.qps <= PEAK_LIMIT:
            self.measured.posted_ns = []

    def begin(self) -> None:
        """Post the first messages."""
        now = self.measured.begun_ns = self._endpoint.now_ns
        self._ends_ns = now + int((self._plan.seconds or 0) * 1e9)
        for flow in self._flows:
            self._post(flow, now)

    def step(self) -> bool:
        """Take completions and post new messages; returns whether all is done."""
        if not self._cq:
            return False
        now = self._endpoint.now_ns
        for wc in self._cq.poll(len(self._cq)):
            flow = self._flows[wc.wr_id]
            self._complete(flow, wc, now)
            self._post(flow, now)
        if self._total is None and now >= self._ends_ns:
            self._stop()
        self.measured.ended_ns = now
        # Each completion is followed by a post, so nothing outstanding means all was posted.
        return self.measured.messages == self._posted

    def _stop(self) -> None:
        """End the test: post a last message that requests a completion where necessary."""
        self._total = 0
        for flow in self._flows:
            if flow.posted % self._every:
                signaled = flow.requests.signaled
                flow.qp.post_send(signaled[flow.posted % len(signaled)])
                flow.posted += 1
                self._posted += 1

    def _complete(self, flow: Flow, wc: WC, now: int) -> None:
        begin = flow.completed
        if wc.status is not WCStatus.SUCCESS:
            raise failure(flow, wc, begin)
        # A completion covers a whole group, or the messages after the last group.
        end = min(begin - begin % self._every + self._every, flow.posted)
        flow.wrong += flow.requests.settle(begin, end)
        flow.completed = end
        self.measured.messages += end - begin
        if self.measured.posted_ns is not None:
            self.measured.completed_ns.extend([now] * (end - begin))

    def _post(self, flow: Flow, now: int) -> None:
        begin, last = flow.posted, self._total
        end = flow.completed + self._plan.depth
        if last is not None:
            end = min(end, last)
        if begin >= end:
            return
        post, every = flow.qp.post_send, self._every
        unsignaled, signaled = flow.requests.unsignaled, flow.requests.signaled
        count = len(unsignaled)
        for number in range(begin, end):
            asks = (number + 1) % every == 0 or number + 1 == last
            post((signaled if asks else unsignaled)[number % count])
        flow.posted = end
        self._posted += end - begin
        if self.measured.posted_ns is not None:
            self.measured.posted_ns.extend([now] * (end - begin))


class Receiving:
    """The receiver of SENDs of an end."""

    def __init__(
        self, endpoint: Endpoint, plan: Plan, flows: Sequence[Flow], cq: CompletionQueue
    ) -> None:
        self.measured = Bandwidth(plan.size)
        self._endpoint = endpoint
        self._flows = {flow.qp.number: flow for flow in flows}
        self._cq = cq

    def step(self) -> None:
        """Take messages that have arrived and post as many receives."""
        if not self._cq:
            return
        now = self.measured.ended_ns = self._endpoint.now_ns
        if not self.measured.messages:
            self.measured.begun_ns = now
        for wc in self._cq.poll(len(self._cq)):
            flow = self._flows[wc.qp_num]
            if wc.status is not WCStatus.SUCCESS:
                raise failure(flow, wc, flow.received)
            assert flow.receives is not None
            flow.wrong += not flow.receives.take(wc, flow.received)
            flow.received += 1
            self.measured.messages += 1


class QueuePairFailed(PeerError):
    """A failed completion of a queue pair; `status` is that of its first error."""

    def __init__(self, text: str, qp: QueuePair, status: WCStatus) -> None:
        super().__init__(text)
        self.qp = qp
        self.status = status


def failure(flow: Flow, wc: WC, number: int) -> QueuePairFailed:
    """The error for a failed completion: the first one of its queue pair."""
    qp = flow.qp
    status = first_status(qp, wc.status)
    return QueuePairFailed(
        f"QP {qp.number:#08x} (peer {flow.peer.qpn:#08x}): message {number} completed "
        f"with {status.name}: {cause(qp, status, ('-u', '-m'))}",
        qp,
        status,
    )
