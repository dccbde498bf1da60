"""The switches of a scenario: made, sampled and measured."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import asdict
from functools import partial

from ibwire.base.node import Frame, Node
from ibwire.base.trace import RECEIVED, SENT, Observer
from ibwire.base.units import S, Time
from ibwire.fabric import Simulator, Topology
from ibwire.fabric.line import Direction
from ibwire.fabric.lossless import LosslessNetwork, SwitchSettings
from ibwire.fabric.pause import LANES
from ibwire.fabric.switch import Classifier, Switch
from ibwire.fabric.waiting import DeadlockWatch, explain
from ibwire.peer import Host
from ibwire.scenario.expect import DROP_REASONS, NEVER
from ibwire.scenario.outcome import Metrics, PortOutcome, percentile
from ibwire.scenario.queue_lengths import QueueKey, QueueSampler
from ibwire.scenario.specs import FabricSpec, SwitchSpec, WireSpec
from ibwire.scenario.switches import rules_of


class SwitchedNetwork:
    """The switches of a scenario in a simulator, with the hosts at them."""

    def __init__(
        self,
        simulator: Simulator,
        spec: FabricSpec,
        wires: Sequence[WireSpec],
        hosts: Mapping[str, tuple[Node, bytes]],
        *,
        observers: Sequence[Observer] = (),
        observed: Collection[str] = (),
    ) -> None:
        """observed: switches whose frames the observers see, besides those of all hosts."""
        self.topology: Topology = spec.topology
        self._spec = spec
        self._simulator = simulator
        self._sampler: QueueSampler | None = None

        def prepare(name: str, switch: Switch) -> None:
            if observers and name in observed:
                self._watch(name, switch, observers)

        self._lossless = LosslessNetwork(
            simulator,
            spec.topology,
            hosts,
            {name: _settings(each, spec) for name, each in spec.switches.items()},
            routes={name: each.routes for name, each in spec.switches.items() if each.routes},
            outages=spec.outages,
            reroute_after=spec.reroute_after,
            storms=spec.storms,
            llr={
                link: wire.llr
                for link, wire in zip(spec.topology.links, wires, strict=True)
                if wire.llr
            },
            prepare=prepare,
        )
        self._lines: dict[tuple[str, int], Direction] = {}
        """The way out of each port."""
        taken: Counter[str] = Counter()
        for wire_spec, wire in zip(wires, simulator.wires, strict=True):
            for name, line in zip(wire_spec.between, (wire.a_to_b, wire.b_to_a), strict=True):
                line.overhead = wire_spec.overhead
                self._lines[name, taken[name]] = line
                taken[name] += 1
        if observers:
            self._watch_pauses(observers, {*hosts, *observed})

    @property
    def switches(self) -> Mapping[str, Switch]:
        """By name."""
        return self._lossless.switches

    @property
    def lines(self) -> Mapping[tuple[str, str], list[Direction]]:
        """The ways out of the ports of each node, by node and neighbour."""
        found: dict[tuple[str, str], list[Direction]] = {}
        for (name, number), line in self._lines.items():
            found.setdefault((name, self.topology.ports(name)[number][1]), []).append(line)
        return found

    def _watch(self, name: str, switch: Switch, observers: Sequence[Observer]) -> None:
        """Report what a switch sends and receives; pause frames do not reach it."""
        labels = self._labels(name)

        def observe(port: int, is_sent: bool, frame: Frame, now: Time) -> None:
            _report(observers, labels[port], SENT if is_sent else RECEIVED, frame, now)

        switch.observe = observe

    def _watch_pauses(self, observers: Sequence[Observer], names: Collection[str]) -> None:
        """Report the pause frames that nodes do not see."""
        for (name, port), line in self._lines.items():
            if name in names and line.pause is not None:
                label = self._labels(name)[port] if name in self.switches else name
                line.pause.observe = partial(_report, observers, label, RECEIVED)

    def _labels(self, switch: str) -> list[str]:
        """The names of the ports of a switch for observers."""
        return [f"{switch}:{peer}" for _, peer in self.topology.ports(switch)]

    def ports(self) -> list[PortOutcome]:
        """What each port has done."""
        found = []
        retries = {
            id(end.line): asdict(end.counters)
            for links in self._lossless.retries.values()
            for link in links
            for end in link.ends
        }
        for (name, number), line in self._lines.items():
            switch = self.switches.get(name)
            counters = switch.counters[number] if switch else None
            pause = line.pause
            stopped = [0] * LANES
            if pause is not None:
                stopped = [pause.time_stopped(lane, self._simulator.now) for lane in range(LANES)]
            found.append(
                PortOutcome(
                    node=name,
                    port=number,
                    peer=self.topology.ports(name)[number][1],
                    rate_bps=line.rate_bps,
                    is_switch=switch is not None,
                    sent=counters.sent if counters else [0] * LANES,
                    sent_bytes=counters.sent_bytes if counters else [0] * LANES,
                    marked=counters.marked if counters else [0] * LANES,
                    largest_queue=counters.largest_queue if counters else [0] * LANES,
                    pauses_sent=counters.pauses_sent if counters else [0] * LANES,
                    pause_frames=pause.frames if pause else 0,
                    time_paused=stopped,
                    dropped=counters.dropped + counters.discarded if counters else {},
                    llr=retries.get(id(line), {}),
                )
            )
        return found

    def metrics(
        self, ports: Sequence[PortOutcome], hosts: Iterable[Host], start: Time, end: Time
    ) -> Metrics:
        """The metrics of switches; start, end: of the traffic."""
        own = [port for port in ports if port.is_switch]
        counters = [each for switch in self.switches.values() for each in switch.counters]
        drops: Counter[str] = Counter()
        for port in own:
            drops.update(port.dropped)
        points = [host.device.notification for host in hosts if host.device.notification]
        cnp_lane = points[0].priority if points and not points[0].follows_priority else None
        ends = set(self.topology.hosts)
        found = {
            "marks": sum(sum(port.marked) for port in own),
            "cnps_sent": sum(point.sent for point in points),
            "cnps_switched": 0
            if cnp_lane is None
            else sum(port.sent[cnp_lane] for port in own if port.peer in ends),
            "pauses": sum(sum(port.pauses_sent) for port in own),
            "resumes": sum(sum(each.resumes_sent) for each in counters),
            "pause_frames": sum(port.pause_frames for port in ports),
            "time_paused.sum": sum(sum(port.time_paused) for port in ports),
            "time_paused.max": max((max(port.time_paused) for port in ports), default=0),
            "drops.all": drops.total(),
            "first_ce": _first(each.first_mark for each in counters),
            "first_pause": _first(each.first_pause for each in counters),
            "early_pauses": sum(map(_pauses_early, self.switches.values())),
            "llr_replays": sum(
                end.counters.LLR_TX_REPLAY
                for links in self._lossless.retries.values()
                for link in links
                for end in link.ends
            ),
            "stomped": sum(each.stomped for each in counters),
            "utilisation": max((self._utilisation(port, end - start) for port in own), default=0),
        }
        for reason in DROP_REASONS:
            found[f"drops.{reason.replace(' ', '_')}"] = drops[reason]
        return found | self._queue_metrics(own, start, end)

    def _utilisation(self, port: PortOutcome, time: Time) -> int:
        """Thousandths of a time in which a port sent."""
        line = self._lines[port.node, port.port]
        size = sum(port.sent_bytes) + sum(port.sent) * line.overhead
        whole = port.rate_bps * time
        return min((size * 8 * S * 1000 + whole // 2) // whole, 1000) if time > 0 else 0

    def _queue_metrics(self, ports: Sequence[PortOutcome], start: Time, end: Time) -> Metrics:
        """The port and priority with the largest queue, and that queue while traffic lasts."""
        queues = [
            (size, port, lane) for port in ports for lane, size in enumerate(port.largest_queue)
        ]
        largest, port, lane = max(queues, key=lambda each: each[0], default=(0, None, 0))
        values: list[int] = []
        if port is not None and self._sampler is not None:
            key = QueueKey(port.node, port.port, lane)
            values = sorted(self._sampler.lengths.between(key, start, end))
        return {
            "queue.max": largest,
            "queue.p50": percentile(values, 50),
            "queue.p99": percentile(values, 99),
        }

    def sample_queues(self, is_over: Callable[[], bool]) -> None:
        """Sample the queues of switches during the run, and look for a deadlock."""
        watch = DeadlockWatch(self._lossless)

        def read() -> dict[QueueKey, int]:
            watch.look(self._simulator.now)
            found = {}
            for name, switch in self.switches.items():
                for port in range(len(switch.counters)):
                    if switch.queued(port):
                        for lane in range(LANES):
                            size = switch.queued(port, lane)
                            if size:
                                found[QueueKey(name, port, lane)] = size
            return found

        self._sampler = QueueSampler(read, lambda: is_over() and not watch.suspects)
        self._simulator.kick(self._sampler)

    def standstill(self) -> list[str]:
        """Which ports wait for which: those with frames that may not leave."""
        return explain(self._lossless).splitlines()


def _pauses_early(switch: Switch) -> bool:
    """Whether a switch has sent a pause before it marked a frame."""
    first_mark = _first(each.first_mark for each in switch.counters)
    return _first(each.first_pause for each in switch.counters) < first_mark


def _first(times: Iterable[Time | None]) -> Time:
    return min((time for time in times if time is not None), default=NEVER)


def _settings(spec: SwitchSpec, fabric: FabricSpec) -> SwitchSettings:
    strict = sorted((each.priority for each in spec.classes if each.is_strict), reverse=True)
    return SwitchSettings(
        buffer=spec.buffer,
        strict=tuple(strict),
        pauses_port=spec.pauses_port,
        weights={each.priority: each.weight for each in spec.classes if not each.is_strict},
        classifier=Classifier(
            spec.trust,
            by_dscp={dscp: each.priority for each in spec.classes for dscp in each.dscp},
            by_pcp={pcp: each.priority for each in spec.classes for pcp in each.pcp},
        ),
        strategy=spec.strategy,
        path_weights=spec.path_weights,
        flowlet_gap=spec.flowlet_gap,
        latency=spec.latency,
        is_cut_through=spec.is_cut_through,
        remarks={each.priority: each.remark for each in spec.classes if each.remark},
        rules=lambda link: rules_of(spec, link, fabric.largest_frame),
        watchdog=spec.watchdog,
        has_telemetry=fabric.has_telemetry,
    )


def _report(observers: Sequence[Observer], name: str, event: str, frame: Frame, now: Time) -> None:
    for observe in observers:
        observe(name, event, frame, now)
