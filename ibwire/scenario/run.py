"""Runs a scenario: builds the network, drives it until it is idle, and measures it."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from ibwire.base.collector import existing_objects_ignored
from ibwire.base.huge_pages import ask_for_huge_pages
from ibwire.base.node import Node, Pipe, Stage
from ibwire.base.trace import ObservedNode, Observer
from ibwire.base.units import GBPS, Time
from ibwire.fabric import Bridge, Simulator, Wire
from ibwire.fabric.waiting import Deadlock
from ibwire.impair import Loss, Match, build_pipe
from ibwire.peer import QKEY, Host
from ibwire.rc.attributes import MTU_CODES, QPCap, QPType
from ibwire.rc.congestion import NotificationPoint, RateLimit
from ibwire.rc.connect import address_of, bring_up
from ibwire.rc.device import Device
from ibwire.rc.limits import DeviceLimits
from ibwire.rc.qp import QPInit, QueuePair
from ibwire.scenario.expect import FABRIC, Expectation
from ibwire.scenario.ideal import IdealTimes, Pace
from ibwire.scenario.nodes import LINKS
from ibwire.scenario.outcome import Checked, Metrics, Outcome, QPOutcome, total
from ibwire.scenario.recording import Recording, Sender
from ibwire.scenario.specs import ConnectionSpec, NodeSpec, Scenario, WireSpec
from ibwire.scenario.switched import SwitchedNetwork
from ibwire.scenario.tcp_hosts import add_flows, node_of, tcp_hosts, tcp_metrics, unfinished
from ibwire.scenario.workload import Contents, Flow
from ibwire_layers.headers import LRH
from ibwire_layers.outer import Ethernet, LinkType


def run(
    scenario: Scenario,
    seed: int | None = None,
    observers: Sequence[Observer] = (),
    observed: Collection[str] = (),
    recording: Recording | None = None,
) -> Outcome:
    """Run a scenario.

    seed: `None` for the scenario's own. observers: called for every frame that a host sends
    or receives; a frame lost on a wire was sent and is never received. observed: switches
    whose frames they are called for too, with the name `SWITCH:NEIGHBOUR` for each port.
    recording: keeps what happens over time.
    """
    seed = scenario.seed if seed is None else seed
    if recording is not None:
        observers = (*observers, recording)
    return Network(scenario, seed, observers, observed).run(recording)


class Network:
    """The nodes, wires, queue pairs and flows of a scenario."""

    def __init__(
        self,
        scenario: Scenario,
        seed: int,
        observers: Sequence[Observer] = (),
        observed: Collection[str] = (),
    ) -> None:
        self.scenario = scenario
        self.seed = seed
        self.simulator = Simulator(seed)
        self.hosts: dict[str, Host] = {}
        self.bridges: dict[str, Bridge] = {}
        self.flows: dict[tuple[str, int], Flow] = {}
        """By sending node and QPN."""
        self.pairs: list[tuple[ConnectionSpec, int, QueuePair, QueuePair]] = []
        self._nodes: dict[str, Node] = {}
        self._ports: dict[str, int] = {}
        self._stages: list[tuple[str, str, Any]] = []
        """Wire and sender, what it does, and the stage, which counts its `hits`."""
        for spec in scenario.nodes:
            self._add_node(spec)
        self.tcp_hosts = tcp_hosts(scenario.tcp, self.hosts)
        for name, host in self.hosts.items():
            node = node_of(host, self.tcp_hosts)
            self._nodes[name] = ObservedNode(name, node, observers) if observers else node
        self.tcp = add_flows(
            scenario.tcp, self.tcp_hosts, {each.name: each for each in scenario.nodes}, seed
        )
        switches = scenario.fabric.switches if scenario.fabric else None
        self._ideals = IdealTimes(scenario.wires, switches, scenario.link)
        self.switched: SwitchedNetwork | None = None
        if scenario.fabric is not None:
            self.switched = SwitchedNetwork(
                self.simulator,
                scenario.fabric,
                scenario.wires,
                {name: (self._nodes[name], host.device.mac) for name, host in self.hosts.items()},
                observers=observers,
                observed=observed,
            )
            self._add_stages(self.simulator.wires)
        else:
            for number, wire in enumerate(scenario.wires):
                self._add_wire(wire, number)
        by_name: dict[str, list[tuple[QueuePair, QueuePair]]] = {}
        for connection in scenario.connections:
            pairs = by_name.setdefault(connection.name, [])
            pairs += self._add_connection(connection, len(pairs))
        self._add_flows(by_name)

    def run(self, recording: Recording | None = None) -> Outcome:
        """Run until the network is idle or a limit is reached, and measure."""
        scenario, simulator = self.scenario, self.simulator
        if recording is not None:
            self._attach(recording)
        if self.switched is not None:
            self.switched.sample_queues(self._is_over)
            ask_for_huge_pages()
        try:
            with existing_objects_ignored():
                ended = simulator.run(
                    until=scenario.limit,
                    max_frames=scenario.max_frames,
                    stop=recording.tick if recording is not None else None,
                ).value
        except Deadlock:
            ended = "deadlock"
        if recording is not None:
            recording.close()
        for host in self.hosts.values():
            host.collect(simulator.now)
        for flow in self.flows.values():
            flow.finish()
        return self._outcome(ended)

    def _attach(self, recording: Recording) -> None:
        """Have the network recorded."""
        senders = [
            Sender(spec.name, index, qp, self.flows[qp.device.name, qp.number].tally)
            for spec, index, *ends in self.pairs
            for qp in ends
            if (qp.device.name, qp.number) in self.flows
        ]
        ports: dict[tuple[str, str], int] = {}
        for wire in self.scenario.wires:
            a, b = wire.between
            ports[a, b] = ports[b, a] = wire.overhead
        recording.attach(self.simulator, senders, ports)
        recording.attach_tcp(self.tcp)
        if self.switched is not None:
            recording.attach_switches(self.switched.switches, self.switched.lines)

    def _is_over(self) -> bool:
        """Whether nothing more will change: all messages have ended, or nothing is planned."""
        if any(flow.tally.unfinished for flow in self.flows.values()) or any(
            flow.ended is None for flow in self.tcp
        ):
            return not self.simulator.pending
        return True

    def _add_node(self, spec: NodeSpec) -> None:
        if spec.is_bridge:
            ports = sum(spec.name in wire.between for wire in self.scenario.wires)
            bridge = Bridge(max(ports, 1), queue_frames=spec.queue_frames, name=spec.name)
            self.bridges[spec.name] = self._nodes[spec.name] = bridge
            return
        number = len(self.hosts) + 1
        device = Device(
            spec.name,
            spec.address,
            profile=spec.profile,
            link=self.scenario.link,
            lid=number,
            # QPNs and keys that distinguish the nodes in a capture, as far as 24 bits go.
            first_qpn=((number - 1) % 0xFF + 1) << 16 | 1,
            key_start=number << 12,
            vlan=spec.vlan,
            **self._control(spec.name),
        )
        self.hosts[spec.name] = Host(device)

    def _control(self, host: str) -> dict[str, Any]:
        """The congestion control of a host, for the rate of its line."""
        control = self.scenario.control
        if control is None:
            return {}
        rate_bps = self._line_bps(host)
        if not control.has_cnps:
            return {"rate_control": partial(control.make, rate_bps)}
        return {
            "rate_control": partial(control.make, rate_bps),
            "notification": NotificationPoint(
                interval=control.interval,
                scope=control.scope,
                dscp=control.dscp,
                follows_priority=control.follows_priority,
                priority=control.priority,
            ),
        }

    def _line_bps(self, host: str) -> int:
        """The rate of the line of a host."""
        wires = (wire for wire in self.scenario.wires if host in wire.between)
        return next((wire.rate_bps for wire in wires), 100 * GBPS)

    def _add_stages(self, wires: Sequence[Wire]) -> None:
        """Put the faults on the wires of a network with switches."""
        for number, (spec, wire) in enumerate(zip(self.scenario.wires, wires, strict=True)):
            for name, line in zip(spec.between, (wire.a_to_b, wire.b_to_a), strict=True):
                line.stage = self._stage(spec, number, name) or line.stage

    def _add_wire(self, wire: WireSpec, number: int) -> None:
        a, b = wire.between
        name = f"{a}-{b}"
        self.simulator.connect(
            self._nodes[a],
            self._nodes[b],
            self._port(a),
            self._port(b),
            rate_bps=wire.rate_bps,
            delay=wire.delay,
            a_to_b=self._stage(wire, number, a),
            b_to_a=self._stage(wire, number, b),
            overhead=wire.overhead,
            name=name,
        )

    def _port(self, name: str) -> int:
        port = self._ports.get(name, 0)
        self._ports[name] = port + 1
        return port

    def _stage(self, wire: WireSpec, number: int, sender: str) -> Stage | None:
        stages: list[Stage] = []
        where = f"{wire.between[0]}-{wire.between[1]}, from {sender}"
        link_type = LINKS[self.scenario.link]
        if wire.mtu is not None:
            header = LRH.SIZE if link_type == LinkType.INFINIBAND else Ethernet.SIZE
            too_long = Loss(Match(min_size=header + wire.mtu + 1, link_type=link_type))
            self._stages.append((where, "too_long", too_long))
            stages.append(too_long)
        rules = wire.faults.get(sender, [])
        pipe = build_pipe(rules, seed=self.seed, name=f"wire{number}/{sender}", link_type=link_type)
        for rule, stage in zip(rules, pipe.stages, strict=True):
            self._stages.append((where, next(iter(rule)), stage))
            stages.append(stage)
        if not stages:
            return None
        return stages[0] if len(stages) == 1 else Pipe(*stages)

    def _add_connection(
        self, spec: ConnectionSpec, first: int
    ) -> list[tuple[QueuePair, QueuePair]]:
        """The queue pairs of a connection; first: index of the first of them."""
        ends = []
        for name in spec.between:
            host = self.hosts[name]
            pd = host.device.alloc_pd()
            cap = QPCap(spec.depth, spec.depth, max_inline_data=DeviceLimits().max_inline_data)
            init = QPInit(spec.qp_type, pd, host.cq, host.cq, cap=cap)
            ends.append([host.device.create_qp(init) for _ in range(spec.count)])
        attributes = dict(spec.attributes)
        if spec.qp_type is QPType.UD:
            attributes["qkey"] = QKEY
        pairs = list(zip(*ends, strict=True))
        for index, (a, b) in enumerate(pairs, first):
            psn_a, psn_b = spec.psn
            for qp, peer, own, other in ((a, b, psn_a, psn_b), (b, a, psn_b, psn_a)):
                address = address_of(peer.device, spec.traffic_class)
                bring_up(
                    qp,
                    replace(
                        address,
                        sl=spec.priority,
                        udp_source_port=spec.udp_port if qp is a else None,
                    ),
                    dest_qp_num=peer.number,
                    sq_psn=own,
                    rq_psn=other,
                    path_mtu=MTU_CODES[spec.mtu],
                    **attributes,
                )
            if spec.rate_bps is not None:
                line_bps = self._line_bps(a.device.name)
                a.rate = RateLimit(spec.rate_bps, burst=spec.burst, line_bps=line_bps)
            self.pairs.append((spec, index, a, b))
        return pairs

    def _add_flows(self, pairs: dict[str, list[tuple[QueuePair, QueuePair]]]) -> None:
        scenario = self.scenario
        largest = max((each.traffic.largest for each in scenario.workloads), default=0)
        contents = Contents(self.seed, largest)
        for workload in scenario.workloads:
            for index, (a, b) in enumerate(pairs[workload.connection]):
                if workload.sender is not None and a.device.name != workload.sender:
                    a, b = b, a
                self.flows[a.device.name, a.number] = Flow(
                    len(self.flows),
                    workload.traffic.later(index * workload.stagger),
                    contents,
                    self.hosts[a.device.name],
                    a,
                    self.hosts[b.device.name],
                    b,
                    self.seed,
                )

    def _outcome(self, ended: str) -> Outcome:
        qps = []
        for spec, index, a, b in self.pairs:
            counters = a.counters.as_dict(), b.counters.as_dict()
            for (qp, own), (peer, other) in (
                ((a, counters[0]), (b, counters[1])),
                ((b, counters[1]), (a, counters[0])),
            ):
                flow = self.flows.get((qp.device.name, qp.number))
                qps.append(
                    QPOutcome(
                        connection=spec.name,
                        index=index,
                        node=qp.device.name,
                        qpn=qp.number,
                        peer=peer.device.name,
                        peer_qpn=peer.number,
                        tally=flow.tally if flow else None,
                        counters=own,
                        peer_counters=other,
                        ideal=self._ideal(flow, spec) if flow else 0,
                        rate=qp.rate,
                    )
                )
        outcome = Outcome(self.scenario.name, self.seed, ended, self._last_moment(ended), qps)
        outcome.unfinished_tcp = unfinished(self.tcp)
        outcome.hits = [(where, what, stage.hits) for where, what, stage in self._stages]
        outcome.metrics = total(qps) | self._network_metrics(outcome)
        by_name: dict[str, list[QPOutcome]] = {}
        for each in qps:
            by_name.setdefault(each.connection, []).append(each)
        outcome.by_connection = {name: total(found) for name, found in by_name.items()}
        outcome.checks = list(self._checks(outcome))
        return outcome

    def _last_moment(self, ended: str) -> Time:
        if ended != "idle":
            return self.simulator.now
        times = [flow.tally.ended for flow in self.flows.values()]
        return max([*times, *(flow.ended or 0 for flow in self.tcp)], default=0)

    def _ideal(self, flow: Flow, spec: ConnectionSpec) -> Time:
        """How long the messages of a queue pair take in an idle network; 0 if some have no end."""
        if flow.tally.unfinished or flow.tally.failed:
            return 0
        if next(w for w in self.scenario.workloads if w.connection == spec.name).is_flow:
            pace = None if spec.rate_bps is None else Pace(spec.rate_bps, spec.burst)
            return self._ideals.of_messages(flow, spec.mtu, pace)
        return self._ideals.of_flow(flow, spec.mtu)

    def _network_metrics(self, outcome: Outcome) -> Metrics:
        fabric = dict.fromkeys(FABRIC, 0)
        if self.switched is not None:
            outcome.ports = self.switched.ports()
            tallies = [flow.tally for flow in self.flows.values() if flow.tally.started is not None]
            starts = [tally.started or 0 for tally in tallies]
            start = min([*starts, *(flow.spec.start for flow in self.tcp)], default=0)
            ends = [tally.ended for tally in tallies]
            end = max([*ends, *(flow.ended or 0 for flow in self.tcp)], default=0)
            fabric = self.switched.metrics(outcome.ports, self.hosts.values(), start, end)
            unfinished = any(tally.unfinished for tally in tallies) or any(
                flow.ended is None for flow in self.tcp
            )
            if outcome.ended == "deadlock" or unfinished:
                outcome.standstill = self.switched.standstill()
        too_long = sum(hits for _, what, hits in outcome.hits if what == "too_long")
        fabric |= tcp_metrics(self.tcp, self.tcp_hosts.values(), self.simulator.now)
        return fabric | {
            "faults": sum(hits for _, _, hits in outcome.hits) - too_long,
            "too_long": too_long,
            "queue_drops": sum(sum(bridge.dropped) for bridge in self.bridges.values()),
            "bad_icrc": sum(host.device.counters["bad_icrc"] for host in self.hosts.values()),
        }

    def _checks(self, outcome: Outcome) -> list[Checked]:
        scopes: list[tuple[str | None, tuple[Expectation, ...], Metrics]] = [
            (None, self.scenario.expectations, outcome.metrics)
        ]
        for spec in {spec.name: spec for spec in self.scenario.connections}.values():
            scopes.append((spec.name, spec.expectations, outcome.by_connection[spec.name]))
        return [
            Checked(each, name, metrics[each.metric], each.holds(metrics))
            for name, expectations, metrics in scopes
            for each in expectations
        ]
