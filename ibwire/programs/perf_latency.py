"""The traffic of a latency test: one message at a time.

SENDs and WRITEs go back and forth: each end sends its next message when the other's has
arrived and its own is completed. The client sends the first SEND, but the server the first
WRITE. A WRITE causes no completion at the receiver, so its last byte is a counter that is
polled in memory. Only the client issues READs and atomics.

Source: perftest 4.5-0.17 perftest_resources.c run_iter_lat_send, run_iter_lat_write and
run_iter_lat; captures/send-lat.pcap.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from array import array

from ibwire.base.errors import PeerError
from ibwire.programs.endpoint import Endpoint
from ibwire.programs.perf_bandwidth import failure
from ibwire.programs.perf_contents import pieces_sent
from ibwire.programs.perf_flows import Flow, Plan
from ibwire.programs.perftest import Verb
from ibwire.rc.cq import CompletionQueue
from ibwire.rc.memory import Access
from ibwire.rc.work import SGE, SendWR, WCStatus, WROpcode

BATCH = 16
"""Completions polled at a time."""


class Turns(ABC):
    """One end of a latency test."""

    ways = 2
    """Messages per round."""

    def __init__(
        self, endpoint: Endpoint, plan: Plan, flow: Flow, cq: CompletionQueue, *, begins: bool
    ) -> None:
        self.posted_ns = array("q")
        self.plan = plan
        self.flow = flow
        self._endpoint = endpoint
        self._cq = cq
        self._begins = begins

    def run(self, peer: str) -> None:
        """Run the test for its number of messages or its duration."""
        endpoint, plan = self._endpoint, self.plan
        if self._begins:
            self._send()
        if plan.seconds is None:
            endpoint.wait_on(
                self._step, lambda: self.flow.progress, f"message from {peer}", plan.stall_timeout
            )
            return
        endpoint.run(stop=self._step, seconds=plan.seconds)
        if not self.flow.completed:
            raise PeerError(f"no message from {peer} for {plan.seconds:g} s")

    @abstractmethod
    def post(self, number: int) -> None:
        """Post message `number`."""

    @abstractmethod
    def take(self) -> None:
        """Count and verify the peer's messages that have arrived."""

    def may_send(self) -> bool:
        """Whether the next message may be sent."""
        flow = self.flow
        return flow.posted == flow.completed < flow.received + self._begins

    def is_over(self) -> bool:
        """Whether all messages are done."""
        flow, wanted = self.flow, self.plan.messages
        return flow.completed >= wanted <= flow.received

    def _step(self) -> bool:
        flow = self.flow
        if self._cq:
            for wc in self._cq.poll(BATCH):
                if wc.status is not WCStatus.SUCCESS:
                    raise failure(flow, wc, flow.completed)
                flow.wrong += flow.requests.settle(flow.completed, flow.completed + 1)
                flow.completed += 1
        self.take()
        if self.may_send() and (self.plan.seconds or flow.posted < self.plan.messages):
            self._send()
        return self.plan.seconds is None and self.is_over()

    def _send(self) -> None:
        self.posted_ns.append(self._endpoint.now_ns)
        self.post(self.flow.posted)
        self.flow.posted += 1


class PingPongSends(Turns):
    """SENDs back and forth."""

    def __init__(
        self,
        endpoint: Endpoint,
        plan: Plan,
        flow: Flow,
        cqs: tuple[CompletionQueue, CompletionQueue],
        *,
        is_client: bool,
    ) -> None:
        super().__init__(endpoint, plan, flow, cqs[0], begins=is_client)
        self._received = cqs[1]

    def post(self, number: int) -> None:
        """Post the next piece."""
        signaled = self.flow.requests.signaled
        self.flow.qp.post_send(signaled[number % len(signaled)])

    def take(self) -> None:
        """Take receive completions."""
        flow = self.flow
        if not self._received:
            return
        assert flow.receives is not None
        for wc in self._received.poll(BATCH):
            if wc.status is not WCStatus.SUCCESS:
                raise failure(flow, wc, flow.received)
            flow.wrong += not flow.receives.take(wc, flow.received)
            flow.received += 1


class PingPongWrites(Turns):
    """WRITEs back and forth.

    The last byte of message `number` is `number + 1` modulo 256. The bytes before it are zeros
    with perftest, the expected piece with ibwire.
    """

    how = "every byte"

    def __init__(
        self,
        endpoint: Endpoint,
        plan: Plan,
        flow: Flow,
        cq: CompletionQueue,
        *,
        is_client: bool,
        is_ibwire: bool,
    ) -> None:
        super().__init__(endpoint, plan, flow, cq, begins=not is_client)
        assert flow.buffer is not None
        self._arriving = flow.buffer.buffer
        self._last = plan.size - 1
        self._own = pieces_sent(flow.own, flow.layout)
        self._theirs = pieces_sent(flow.peer, flow.layout) if is_ibwire else None
        self._zeros = bytes(self._last)
        leaving = flow.qp.pd.register(plan.size, int(Access.LOCAL_WRITE))
        self._leaving = leaving.buffer
        self._wr = SendWR(
            WROpcode.RDMA_WRITE,
            [SGE(leaving.iova, plan.size, leaving.lkey)],
            remote_addr=flow.peer.vaddr,
            rkey=flow.peer.rkey,
        )

    def post(self, number: int) -> None:
        """Post the next piece with its counter; the previous message is completed."""
        start = self._own.offsets[number % len(self._own.offsets)]
        self._leaving[: self._last] = self._own.row[start : start + self._last]
        self._leaving[self._last] = number + 1 & 0xFF
        self.flow.qp.post_send(self._wr)

    def take(self) -> None:
        """Check whether the last byte has changed."""
        flow = self.flow
        if self._arriving[self._last] != flow.received + 1 & 0xFF:
            return
        before = self._arriving[: self._last]
        if self._theirs is None:
            flow.wrong += not self._zeros.startswith(before)
        else:
            flow.wrong += not self._theirs.fits(flow.received, before)
        flow.received += 1


class Fetches(Turns):
    """READs or atomics."""

    ways = 1

    def post(self, number: int) -> None:
        """Post the request for the next address."""
        signaled = self.flow.requests.signaled
        self.flow.qp.post_send(signaled[number % len(signaled)])

    def take(self) -> None:
        """The peer sends no messages."""

    def may_send(self) -> bool:
        """Whether the last request is completed."""
        return self.flow.posted == self.flow.completed

    def is_over(self) -> bool:
        """Whether all requests are completed."""
        return self.flow.completed >= self.plan.messages


def make_turns(
    endpoint: Endpoint,
    plan: Plan,
    flow: Flow,
    cqs: tuple[CompletionQueue, CompletionQueue],
    *,
    is_client: bool,
    is_ibwire: bool,
) -> Turns:
    """The end of a latency test."""
    if plan.verb is Verb.SEND:
        return PingPongSends(endpoint, plan, flow, cqs, is_client=is_client)
    if plan.verb is Verb.WRITE:
        return PingPongWrites(
            endpoint, plan, flow, cqs[0], is_client=is_client, is_ibwire=is_ibwire
        )
    return Fetches(endpoint, plan, flow, cqs[0], begins=True)
