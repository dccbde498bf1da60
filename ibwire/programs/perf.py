"""Tests with the programs of perftest: `ib_send_bw`, `ib_write_bw`, `ib_read_bw`,
`ib_atomic_bw` and their `_lat`, in both roles, and with ibwire itself.

Both ends tell each other their queue pairs (`perftest`), bring them up, and the client
sends, writes, reads or adds; then they tell each other that it is over. An end without a
part in the traffic waits, and its device answers meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ibwire.base.errors import LinkError, PeerError
from ibwire.programs.channel import Channel, Listening
from ibwire.programs.endpoint import Endpoint
from ibwire.programs.perf_bandwidth import Receiving, Sending
from ibwire.programs.perf_exchange import Exchange, TCPExchange
from ibwire.programs.perf_flows import Flow, Plan, fitting
from ibwire.programs.perf_latency import Turns, Writes, turns
from ibwire.programs.perf_results import Latency, Result
from ibwire.programs.perftest import (
    CACHE_LINE,
    CYCLE_BUFFER,
    DONE,
    LARGEST_CACHE_LINE,
    LARGEST_CYCLE_BUFFER,
    PORT,
    VERSION_SIZE,
    Layout,
    Record,
    Report,
    Step,
    Verb,
    Version,
    course,
    pack_mtu,
    pack_number,
    unpack_mtu,
    unpack_number,
)
from ibwire.rc.attributes import QPType
from ibwire.rc.cq import CompletionQueue
from ibwire.rc.path import address_of, is_v4

USUAL_MTU = 4096
"""Path MTU unless another is wanted: the tools' is that of the port."""

LATE = 0.05
"""Seconds: what an unreliable service has not brought by then is lost."""


def connect(endpoint: Endpoint, plan: Plan, host: str, port: int = PORT) -> Result:
    """Be the client of a program on a host."""
    refuse_unfit(endpoint, plan)
    with Channel.connect(host, port) as channel:
        gid_index = endpoint.gid_like(channel.address)
        exchange = TCPExchange(endpoint, channel, is_client=True)
        return Run(endpoint, plan, exchange, gid_index, greet(exchange)).run()


def serve(
    endpoint: Endpoint,
    plan: Plan,
    port: int = PORT,
    *,
    listens: Callable[[int], None] = lambda port: None,
) -> Result:
    """Be the server of the first client that connects; who is none is told of.

    listens: called with the TCP port when one can.
    """
    refuse_unfit(endpoint, plan)
    with Listening(port) as listening:
        listens(listening.port)
        channel, version = endpoint.meet(listening, VERSION_SIZE, "version", Version.unpack)
    with channel:
        channel.send(Version().pack())
        gid_index = endpoint.gid_like(channel.address)
        exchange = TCPExchange(endpoint, channel, is_client=False)
        return Run(endpoint, plan, exchange, gid_index, version).run()


def refuse_unfit(endpoint: Endpoint, plan: Plan) -> None:
    """Raise what `fitting` has against a plan, before anybody is waited for."""
    fitting(plan, endpoint.path_mtu(plan.mtu, USUAL_MTU))


def greet(exchange: Exchange) -> Version:
    """Tell each other the versions; the peer's."""
    return Version.unpack(exchange.swap(Version().pack(), "version"))


class Run:
    """One test."""

    def __init__(
        self,
        endpoint: Endpoint,
        plan: Plan,
        exchange: Exchange,
        gid_index: int,
        version: Version,
    ) -> None:
        """version: the peer's, which is told it first."""
        self.endpoint = endpoint
        self.plan = plan
        self.exchange = exchange
        self.gid_index = gid_index
        """Number of the GID that the peer is told."""
        back_and_forth = plan.latency and plan.verb in (Verb.SEND, Verb.WRITE)
        self.requests = exchange.is_client or plan.both or back_and_forth
        """Whether this end sends, writes, reads or adds."""
        self.responds = not exchange.is_client or plan.both or back_and_forth
        self.is_ibwire = version.is_ibwire
        """Whether the peer is."""
        self.mtu = endpoint.path_mtu(plan.mtu, USUAL_MTU)
        self.cqs: tuple[CompletionQueue, CompletionQueue]
        """Of what is sent and of what is received."""
        self.flows: list[Flow] = []
        self.sending: Sending | None = None
        self.receiving: Receiving | None = None
        self.turns: Turns | None = None
        self.told: Report | None = None
        """What the peer has measured."""
        self._is_up = False
        """Whether the queue pairs are, before their records are told."""
        self._is_prepared = False

    def run(self) -> Result:
        """Agree, let traffic flow, agree that it is over."""
        self._make_flows(self._agree())
        self._is_up = self.exchange.bring_up(self.flows)
        if self._is_up:
            self.mtu = self.flows[0].qp.mtu
        plan = self.plan
        steps = course(
            plan.verb, latency=plan.latency, both=plan.both, timed=plan.seconds is not None
        )
        for step in steps.before:
            self._say(step)
        self._flow()
        for step in steps.after:
            self._say(step, patience=plan.patience)
        if self.receiving is not None and plan.qp_type is not QPType.RC:
            self.endpoint.linger(LATE)
            self.receiving.step()
        if not steps.after:
            self.endpoint.linger()
        return self._result()

    def _agree(self) -> tuple[int, int]:
        """Exchange layout and path MTU; returns cycle buffer and cache line."""
        exchange = self.exchange
        cycle, line = (
            max(own, unpack_number(exchange.swap(pack_number(own), what), what, highest))
            for own, what, highest in (
                (CYCLE_BUFFER, "cycle buffer", LARGEST_CYCLE_BUFFER),
                (CACHE_LINE, "cache line", LARGEST_CACHE_LINE),
            )
        )
        theirs = unpack_mtu(exchange.swap(pack_mtu(self.mtu), "path MTU"))
        self.mtu = min(self.mtu, theirs)
        return cycle, line

    def _make_flows(self, cycle_and_line: tuple[int, int]) -> None:
        plan = self.plan = fitting(self.plan, self.mtu)
        endpoint = self.endpoint
        device = endpoint.device
        pd = device.alloc_pd()
        self.cqs = (
            device.create_cq(plan.qps * (plan.depth + 1)),
            device.create_cq(plan.qps * plan.receives),
        )
        layout = Layout(plan.size, *cycle_and_line)
        self.flows = [
            Flow(endpoint, pd, plan, layout, self.cqs, index, self.gid_index)
            for index in range(plan.qps)
        ]

    def _say(self, step: Step, patience: float | None = None) -> None:
        """One of the steps before or after the traffic."""
        exchange = self.exchange
        if step is Step.ONE:
            exchange.swap_record(self.flows[0].own, patience=patience)
        elif step is Step.ALL:
            records = [exchange.swap_record(flow.own) for flow in self.flows]
            if not self._is_prepared:
                self._is_prepared = True
                if not self._is_up:
                    self._bring_up(records)
                self._prepare(records)
        elif step is Step.REPORT:
            own = self.sending.measured.report() if self.sending else Report(self.plan.size)
            numbers = [exchange.swap(each, "report", patience=patience) for each in own.pack()]
            if self.responds:  # else it is of a server that has measured nothing
                self.told = Report.unpack(numbers)
        else:
            exchange.end(DONE)

    def _bring_up(self, records: Sequence[Record]) -> None:
        """Take the queue pairs to RTS; all of a peer's have the same GID."""
        endpoint, own, theirs = self.endpoint, self.flows[0].own.gid, records[0].gid
        if is_v4(theirs) != is_v4(own):
            raise LinkError(
                endpoint.port.name,
                f"the peer's GID is {address_of(theirs)} and ours {address_of(own)}: choose "
                "another of ours with --address",
            )
        gid_index = endpoint.gid_towards(theirs)
        for flow, peer in zip(self.flows, records, strict=True):
            flow.bring_up(peer, gid_index, self.mtu)

    def _prepare(self, records: Sequence[Record]) -> None:
        """Make and post what the traffic needs."""
        endpoint, plan, flows = self.endpoint, self.plan, self.flows
        for flow, peer in zip(flows, records, strict=True):
            flow.peer = peer
            if self.requests:
                flow.prepare_requests(is_ibwire=self.is_ibwire)
            if self.responds and plan.verb is Verb.SEND:
                flow.prepare_receives(is_ibwire=self.is_ibwire)
        if plan.latency:
            return
        if self.requests:
            self.sending = Sending(endpoint, plan, flows, self.cqs[0])
        if self.responds and plan.verb is Verb.SEND:
            self.receiving = Receiving(endpoint, plan, flows, self.cqs[1])
            # The peer may be sending while we are done, and wait for it to say so.
            self.exchange.meanwhile = self.receiving.step

    def _flow(self) -> None:
        """Until all of ours is done; what comes meanwhile is taken."""
        endpoint, plan = self.endpoint, self.plan
        before = endpoint.live.spin
        # What an unreliable service sends is completed by leaving, and that wakes nobody.
        endpoint.live.spin = before or plan.qp_type is not QPType.RC
        try:
            if plan.latency:
                self._take_turns()
            elif self.sending is not None:
                self._send(self.sending)
        finally:
            endpoint.live.spin = before

    def _take_turns(self) -> None:
        if self.requests:
            self.turns = turns(
                *(self.endpoint, self.plan, self.flows[0], self.cqs),
                is_client=self.exchange.is_client,
                is_ibwire=self.is_ibwire,
            )
            self.turns.run(self.exchange.peer)

    def _send(self, sending: Sending) -> None:
        exchange, receiving = self.exchange, self.receiving
        # A server's SENDs wait for the client's first: before that the client may not have
        # posted what they need.
        waits = receiving is not None and not exchange.is_client
        if not waits:
            sending.begin()

        def step() -> bool:
            nonlocal waits
            if receiving is not None:
                receiving.step()
                if waits and receiving.measured.messages:
                    waits = False
                    sending.begin()
            return not waits and sending.step()

        self.endpoint.wait_on(
            step,
            lambda: sum(flow.progress for flow in self.flows),
            f"progress with {exchange.peer}",
            self.plan.patience,
        )

    # What came of it.

    def _result(self) -> Result:
        plan, flows = self.plan, self.flows
        result = Result(
            address_of(flows[0].own.gid),
            address_of(flows[0].peer.gid),
            self.is_ibwire,
            self.mtu,
            plan.size,
            [(flow.own.qpn, flow.peer.qpn) for flow in flows],
            sent=sum(flow.completed for flow in flows),
            received=sum(flow.received for flow in flows),
            wrong=sum(flow.wrong for flow in flows),
        )
        self._measure(result)
        if self.requests and (how := flows[0].requests.how):
            result.verified["results"] = how
        if isinstance(self.turns, Writes):
            result.verified["writes"] = self.turns.how
        elif plan.verb is Verb.SEND and self.responds:
            self._count_sends(result)
        elif plan.verb is Verb.WRITE and self.responds:
            self._look_at_writes(result)
        elif plan.verb is Verb.ATOMIC and self.responds:
            self._count_atomics(result)
        return result

    def _measure(self, result: Result) -> None:
        plan = self.plan
        if self.turns is not None:
            result.latency = Latency.of(plan.size, self.turns.posted_ns, self.turns.ways)
        elif self.sending is not None:
            result.report = self.sending.measured.report()
            if plan.both and self.told is not None:
                result.report = result.report.plus(self.told)
        elif self.receiving is not None:
            result.report = self.receiving.measured.report()
        else:
            result.report = self.told

    def _count_sends(self, result: Result) -> None:
        plan, receives = self.plan, self.flows[0].receives
        assert receives is not None
        result.verified["messages"] = receives.contents.how
        missing = plan.messages * plan.qps - result.received
        if plan.seconds is not None or missing <= 0:
            return
        if plan.qp_type is QPType.RC:
            raise PeerError(
                f"{self.exchange.peer} has sent {result.received} messages of "
                f"{plan.messages * plan.qps}: are both ends to do as many?"
            )
        result.lost = missing

    def _look_at_writes(self, result: Result) -> None:
        """Memory is looked at once all is written; an unreliable service may leave it torn."""
        messages = self.told.messages if self.told else 0
        if self.plan.qps > 1:
            messages = min(messages, 1)  # in a test for a time one may have had more than another
        for flow in self.flows:
            wrong, how = flow.written(is_ibwire=self.is_ibwire, messages=messages)
            result.verified["writes"] = f"{how}, of the last at each place"
            if self.plan.qp_type is QPType.RC:
                result.wrong += wrong
            else:
                result.lost += wrong

    def _count_atomics(self, result: Result) -> None:
        """What they have added must be how many there were.

        perftest's COMPARE_AND_SWAPs change nothing; for a time it counts only some.
        """
        plan = self.plan
        added = sum(flow.added() for flow in self.flows)
        counted = self.told.messages if self.told else plan.messages
        expected = 0 if plan.swaps and not self.is_ibwire else counted
        if plan.seconds is None or (self.is_ibwire and self.told):
            result.wrong += added != expected
            result.verified["memory"] = f"has gone up by {added}, of {expected}"
        else:
            result.verified["memory"] = f"has gone up by {added}"
