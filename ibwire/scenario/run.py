"""Runs a scenario: builds the network, drives it until it is idle, and measures it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ibwire.base.node import Node, Pipe, Stage
from ibwire.base.trace import ObservedNode, Observer
from ibwire.base.units import Time
from ibwire.fabric import Bridge, Simulator
from ibwire.impair import Loss, Match, build_pipe
from ibwire.peer import QKEY, Host
from ibwire.rc.attributes import QPCap, QPType
from ibwire.rc.connect import connect
from ibwire.rc.device import Device
from ibwire.rc.limits import DeviceLimits
from ibwire.rc.qp import QPInit, QueuePair
from ibwire.scenario.expect import Expectation
from ibwire.scenario.model import LINKS, ConnectionSpec, NodeSpec, Scenario, WireSpec
from ibwire.scenario.outcome import Checked, Metrics, Outcome, QPOutcome, total
from ibwire.scenario.workload import Contents, Flow
from ibwire_layers.headers import LRH
from ibwire_layers.outer import Ethernet, LinkType


def run(scenario: Scenario, seed: int | None = None, observers: Sequence[Observer] = ()) -> Outcome:
    """Run a scenario.

    seed: `None` for the scenario's own. observers: called for every frame that a host sends
    or receives; a frame lost on a wire was sent and is never received.
    """
    return Network(scenario, scenario.seed if seed is None else seed, observers).run()


class Network:
    """The nodes, wires, queue pairs and flows of a scenario."""

    def __init__(self, scenario: Scenario, seed: int, observers: Sequence[Observer] = ()) -> None:
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
            self._add_node(spec, observers)
        for number, wire in enumerate(scenario.wires):
            self._add_wire(wire, number)
        by_name: dict[str, list[tuple[QueuePair, QueuePair]]] = {}
        for connection in scenario.connections:
            by_name[connection.name] = self._add_connection(connection)
        self._add_flows(by_name)

    def run(self) -> Outcome:
        """Run until the network is idle or a limit is reached, and measure."""
        scenario, simulator = self.scenario, self.simulator
        ended = simulator.run(until=scenario.limit, max_frames=scenario.max_frames)
        for host in self.hosts.values():
            host.collect(simulator.now)
        for flow in self.flows.values():
            flow.finish()
        return self._outcome(ended.value)

    def _add_node(self, spec: NodeSpec, observers: Sequence[Observer]) -> None:
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
            # QPNs and keys that distinguish the nodes in a capture.
            first_qpn=number << 16 | 1,
            key_start=number << 12,
        )
        host = Host(device)
        self.hosts[spec.name] = host
        self._nodes[spec.name] = ObservedNode(spec.name, host, observers) if observers else host

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

    def _add_connection(self, spec: ConnectionSpec) -> list[tuple[QueuePair, QueuePair]]:
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
        for index, (a, b) in enumerate(pairs):
            psn_a, psn_b = spec.psn
            connect(
                a,
                b,
                psn_a=psn_a,
                psn_b=psn_b,
                mtu=spec.mtu,
                traffic_class=spec.traffic_class,
                **attributes,
            )
            self.pairs.append((spec, index, a, b))
        return pairs

    def _add_flows(self, pairs: dict[str, list[tuple[QueuePair, QueuePair]]]) -> None:
        scenario = self.scenario
        contents = Contents(self.seed, max(each.traffic.largest for each in scenario.workloads))
        for workload in scenario.workloads:
            for index, (a, b) in enumerate(pairs[workload.connection]):
                if a.device.name != workload.sender:
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
                    )
                )
        outcome = Outcome(self.scenario.name, self.seed, ended, self._last_moment(ended), qps)
        outcome.hits = [(where, what, stage.hits) for where, what, stage in self._stages]
        outcome.metrics = total(qps) | self._network_metrics(outcome)
        for spec in self.scenario.connections:
            outcome.by_connection[spec.name] = total(q for q in qps if q.connection == spec.name)
        outcome.checks = list(self._checks(outcome))
        return outcome

    def _last_moment(self, ended: str) -> Time:
        if ended != "idle":
            return self.simulator.now
        return max((flow.tally.ended for flow in self.flows.values()), default=0)

    def _network_metrics(self, outcome: Outcome) -> Metrics:
        too_long = sum(hits for _, what, hits in outcome.hits if what == "too_long")
        return {
            "faults": sum(hits for _, _, hits in outcome.hits) - too_long,
            "too_long": too_long,
            "queue_drops": sum(sum(bridge.dropped) for bridge in self.bridges.values()),
            "bad_icrc": sum(host.device.counters["bad_icrc"] for host in self.hosts.values()),
        }

    def _checks(self, outcome: Outcome) -> list[Checked]:
        scopes: list[tuple[str | None, tuple[Expectation, ...], Metrics]] = [
            (None, self.scenario.expectations, outcome.metrics)
        ]
        for spec in self.scenario.connections:
            scopes.append((spec.name, spec.expectations, outcome.by_connection[spec.name]))
        return [
            Checked(each, name, metrics[each.metric], each.holds(metrics))
            for name, expectations, metrics in scopes
            for each in expectations
        ]
