"""Tests with the programs of perftest (`ib_send_bw`, `ib_write_bw`, `ib_read_bw`,
`ib_atomic_bw` and their `_lat`) or with ibwire, as client or server.

Both ends exchange their queue pairs (`perftest`) and bring them up; the client sends, writes,
reads or adds; then both report the end. An end that sends nothing waits while its device
responds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from ibwire.base.errors import LinkError, PeerError
from ibwire.programs.channel import TOGETHER, Channel, TCPListener
from ibwire.programs.endpoint import Endpoint
from ibwire.programs.path_probe import path_hint
from ibwire.programs.perf_bandwidth import QueuePairFailed, Receiving, Sending
from ibwire.programs.perf_exchange import Exchange, TCPExchange
from ibwire.programs.perf_flows import Flow, Plan, fitting
from ibwire.programs.perf_latency import PingPongWrites, Turns, make_turns
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
    pack_mtu,
    pack_number,
    step_order,
    unpack_mtu,
    unpack_number,
)
from ibwire.rc.attributes import QPType
from ibwire.rc.cq import CompletionQueue
from ibwire.rc.path import address_of, is_v4, nearest

DEFAULT_MTU = 4096
"""Default path MTU; the tools use that of the port."""

LATE = 0.05
"""Seconds after which messages of an unreliable service count as lost."""


def connect(endpoint: Endpoint, plan: Plan, host: str, port: int = PORT) -> Result:
    """Run a test as the client of a program on a host."""
    refuse_unfit(endpoint, plan)
    with Channel.connect(host, port, starting=TOGETHER) as channel:
        gid_index = endpoint.gid_like(channel.address)
        exchange = TCPExchange(endpoint, channel, is_client=True)
        return Run(endpoint, plan, exchange, gid_index, greet(exchange)).run()


def serve(
    endpoint: Endpoint,
    plan: Plan,
    port: int = PORT,
    *,
    addresses: Sequence[str] = (),
    listens: Callable[[int], None] = lambda port: None,
) -> Result:
    """Run a test as the server of the first client that connects.

    addresses: where it listens, by default those of the interface. listens: called with the TCP
    port when clients can connect. Connections that do not begin as a client does are reported
    and closed.
    """
    refuse_unfit(endpoint, plan)
    with TCPListener(port, addresses or endpoint.listening_addresses) as listening:
        listens(listening.port)
        channel, version = endpoint.accept_client(
            listening, VERSION_SIZE, "version", Version.unpack
        )
    with channel:
        channel.send(Version().pack())
        gid_index = endpoint.gid_like(channel.address)
        exchange = TCPExchange(endpoint, channel, is_client=False)
        run = Run(endpoint, plan, exchange, gid_index, version)
        exchange.adapt = run.with_gid_towards
        return run.run()


def refuse_unfit(endpoint: Endpoint, plan: Plan) -> None:
    """Raise the errors of `fitting` before waiting for a peer."""
    fitting(plan, endpoint.path_mtu(plan.mtu, DEFAULT_MTU))


def greet(exchange: Exchange) -> Version:
    """Exchange versions; returns the peer's."""
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
        """version: of the peer."""
        self.endpoint = endpoint
        self.plan = plan
        self.exchange = exchange
        self.gid_index = gid_index
        """Index of the GID in our records."""
        back_and_forth = plan.latency and plan.verb in (Verb.SEND, Verb.WRITE)
        self.requests = exchange.is_client or plan.both or back_and_forth
        """Whether this end is a requester."""
        self.responds = not exchange.is_client or plan.both or back_and_forth
        self.is_ibwire = version.is_ibwire
        """Whether the peer is ibwire."""
        self.mtu = endpoint.path_mtu(plan.mtu, DEFAULT_MTU)
        self.cqs: tuple[CompletionQueue, CompletionQueue]
        """Completion queues for sends and receives."""
        self.flows: list[Flow] = []
        self.sending: Sending | None = None
        self.receiving: Receiving | None = None
        self.turns: Turns | None = None
        self.peer_report: Report | None = None
        """What the peer measured."""
        self._is_up = False
        """Whether the queue pairs are in RTS before their records are exchanged."""
        self._is_prepared = False

    def run(self) -> Result:
        """Exchange parameters, run the traffic, report the end."""
        self._make_flows(self._agree())
        self._is_up = self.exchange.bring_up(self.flows)
        if self._is_up:
            self.mtu = self.flows[0].qp.mtu
        plan = self.plan
        steps = step_order(
            plan.verb, latency=plan.latency, both=plan.both, timed=plan.seconds is not None
        )
        for step in steps.before:
            self._exchange_step(step)
        self._run_traffic()
        for step in steps.after:
            self._exchange_step(step, timeout=plan.stall_timeout)
        if self.receiving is not None and plan.qp_type is not QPType.RC:
            self.endpoint.linger(LATE)
            self.receiving.step()
        if not steps.after:
            self.endpoint.linger()
        return self._result()

    def with_gid_towards(self, own: Record, theirs: Record) -> Record:
        """Our record with the own GID from which the peer is reached, if there is one."""
        gid = nearest(self.endpoint.device.gids, theirs.gid)
        if not theirs.gid or gid is None:
            return own
        for flow in self.flows:
            flow.own = replace(flow.own, gid=gid)
        return replace(own, gid=gid)

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

    def _exchange_step(self, step: Step, timeout: float | None = None) -> None:
        """Carry out a step before or after the traffic."""
        exchange = self.exchange
        if step is Step.ONE:
            exchange.swap_record(self.flows[0].own, timeout=timeout)
        elif step is Step.ALL:
            records = [exchange.swap_record(flow.own) for flow in self.flows]
            if not self._is_prepared:
                self._is_prepared = True
                if not self._is_up:
                    self._bring_up(records)
                self._prepare(records)
        elif step is Step.REPORT:
            own = self.sending.measured.report() if self.sending else Report(self.plan.size)
            numbers = [exchange.swap(each, "report", timeout=timeout) for each in own.pack()]
            if self.responds:  # otherwise it comes from a server that measured nothing
                self.peer_report = Report.unpack(numbers)
        else:
            exchange.end(DONE)

    def _bring_up(self, records: Sequence[Record]) -> None:
        """Bring the queue pairs up; those of a peer all have the same GID."""
        endpoint, own, theirs = self.endpoint, self.flows[0].own.gid, records[0].gid
        if is_v4(theirs) != is_v4(own):
            raise LinkError(
                endpoint.port.name,
                f"the peer's GID is {address_of(theirs)} and ours {address_of(own)}: choose an "
                "own address of that version with --address",
            )
        endpoint.gid_towards(theirs)
        gid_index = endpoint.device.gids.index(own)  # the one in our record
        for flow, peer in zip(self.flows, records, strict=True):
            flow.bring_up(peer, gid_index, self.mtu)

    def _prepare(self, records: Sequence[Record]) -> None:
        """Create and post the work requests of the traffic."""
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
            # The peer may still send after we are done.
            self.exchange.meanwhile = self.receiving.step

    def _run_traffic(self) -> None:
        """Run the traffic until our own requests are done."""
        endpoint, plan = self.endpoint, self.plan
        before = endpoint.live.spin
        # A message of an unreliable service is completed by sending it, which wakes no poll.
        endpoint.live.spin = before or plan.qp_type is not QPType.RC
        try:
            if plan.latency:
                self._take_turns()
            elif self.sending is not None:
                self._send(self.sending)
        except QueuePairFailed as error:
            hint = path_hint(endpoint, error.qp, error.status)
            raise PeerError(f"{error}{hint}") from None
        finally:
            endpoint.live.spin = before

    def _take_turns(self) -> None:
        if self.requests:
            self.turns = make_turns(
                self.endpoint,
                self.plan,
                self.flows[0],
                self.cqs,
                is_client=self.exchange.is_client,
                is_ibwire=self.is_ibwire,
            )
            self.turns.run(self.exchange.peer)

    def _send(self, sending: Sending) -> None:
        exchange, receiving = self.exchange, self.receiving
        # The SENDs of a server start after the client's first one: earlier the client may not
        # have posted its receives.
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
            self.plan.stall_timeout,
        )

    # Results.

    def _result(self) -> Result:
        plan, flows = self.plan, self.flows
        result = Result(
            own=address_of(flows[0].own.gid),
            peer=address_of(flows[0].peer.gid),
            is_ibwire=self.is_ibwire,
            mtu=self.mtu,
            size=plan.size,
            qpns=[(flow.own.qpn, flow.peer.qpn) for flow in flows],
            sent=sum(flow.completed for flow in flows),
            received=sum(flow.received for flow in flows),
            wrong=sum(flow.wrong for flow in flows),
        )
        self._measure(result)
        if self.requests and (how := flows[0].requests.how):
            result.verified["results"] = how
        if isinstance(self.turns, PingPongWrites):
            result.verified["writes"] = self.turns.how
        elif plan.verb is Verb.SEND and self.responds:
            self._count_sends(result)
        elif plan.verb is Verb.WRITE and self.responds:
            self._verify_writes(result)
        elif plan.verb is Verb.ATOMIC and self.responds:
            self._count_atomics(result)
        return result

    def _measure(self, result: Result) -> None:
        plan = self.plan
        if self.turns is not None:
            result.latency = Latency.of(plan.size, self.turns.posted_ns, self.turns.ways)
        elif self.sending is not None:
            result.report = self.sending.measured.report()
            if plan.both and self.peer_report is not None:
                result.report = result.report.plus(self.peer_report)
        elif self.receiving is not None:
            result.report = self.receiving.measured.report()
        else:
            result.report = self.peer_report

    def _count_sends(self, result: Result) -> None:
        plan, receives = self.plan, self.flows[0].receives
        assert receives is not None
        result.verified["messages"] = receives.contents.how
        missing = plan.messages * plan.qps - result.received
        if plan.seconds is not None or missing <= 0:
            return
        if plan.qp_type is QPType.RC:
            raise PeerError(
                f"{self.exchange.peer} has sent {result.received} of {plan.messages * plan.qps} "
                "messages: start both ends with the same -n"
            )
        result.lost = missing

    def _verify_writes(self, result: Result) -> None:
        """Verify memory after all WRITEs; an unreliable service may leave a message incomplete."""
        messages = self.peer_report.messages if self.peer_report else 0
        if self.plan.qps > 1:
            messages = min(messages, 1)  # in a timed test queue pairs have different numbers
        for flow in self.flows:
            wrong, how = flow.written(is_ibwire=self.is_ibwire, messages=messages)
            result.verified["writes"] = f"{how}, for the last message at each address"
            if self.plan.qp_type is QPType.RC:
                result.wrong += wrong
            else:
                result.lost += wrong

    def _count_atomics(self, result: Result) -> None:
        """Compare the sum that atomics added to memory with their number.

        COMPARE_AND_SWAPs of perftest change nothing, and a timed perftest counts only some.
        """
        plan = self.plan
        added = sum(flow.atomic_sum() for flow in self.flows)
        counted = self.peer_report.messages if self.peer_report else plan.messages
        expected = 0 if plan.swaps and not self.is_ibwire else counted
        if plan.seconds is None or (self.is_ibwire and self.peer_report):
            result.wrong += added != expected
            result.verified["memory"] = f"increased by {added}, of {expected}"
        else:
            result.verified["memory"] = f"increased by {added}"
