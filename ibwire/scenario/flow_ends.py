"""The ends of flows: which hosts, or which of their ports, `from` and `to` name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from itertools import product

from ibwire.base.toml import Table, hint, shown

MAXIMUM_FLOWS = 1 << 16


@dataclass(frozen=True, slots=True)
class Ends:
    """What flows can be between.

    A port of a host with several is an end; the name of such a host stands for all its ports.
    """

    hosts: Sequence[str]
    """Hosts with one port, and ports of hosts with several."""
    ports: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Those of each host with several."""
    island: Mapping[str, str] = field(default_factory=dict)
    """The same for ends that wires connect."""

    def pairs(self, table: Table) -> list[tuple[str, str]]:
        """From each of `from` to each of `to`, but for a host to itself.

        Of two hosts with several ports, each port sends to the one with its number, in turn where
        the other host has fewer. A single end sends to the port of a host that has its number, or
        to one port after the other where it has none; in the other direction it is the same.
        """
        senders, receivers = (self._named(table, key) for key in ("from", "to"))
        pairs: list[tuple[str, str]] = []
        for (at, a), (place, b) in product(enumerate(senders), enumerate(receivers)):
            own, other = self.ports.get(a), self.ports.get(b)
            if own and other:
                if a != b:
                    count = max(len(own), len(other))
                    turns = range(count)
                    pairs += [(own[n % len(own)], other[n % len(other)]) for n in turns]
            elif other:
                if a not in other:
                    pairs.append((a, other[self._number(a, at) % len(other)]))
            elif own:
                if b not in own:
                    pairs.append((own[self._number(b, place) % len(own)], b))
            elif a != b:
                pairs.append((a, b))
        if not pairs:
            raise table.error("to", f"{senders[0]} would send to itself only")
        if len(pairs) > MAXIMUM_FLOWS:
            raise table.error("to", f"{len(pairs):,} flows, at most {MAXIMUM_FLOWS:,}")
        self.check_ways(table, pairs)
        return pairs

    def chosen(self, table: Table, key: str, default: str | None = None) -> list[str]:
        """The ends that a key names, one by one."""
        found: dict[str, None] = {}
        for each in self._named(table, key, default):
            found |= dict.fromkeys(self.ports.get(each, (each,)))
        return list(found)

    def targets(
        self, table: Table, senders: Sequence[str], receivers: Sequence[str]
    ) -> dict[str, list[str]]:
        """The receivers that wires connect to each sender: of other hosts, if there are any.

        A host sends from those of its ports that reach a receiver; one without is refused, unless
        it is the only receiver.
        """
        targets = {sender: self._ways(sender, receivers) for sender in senders}
        sending = {self._host(sender) for sender, own in targets.items() if own}
        if not sending and not any(each != senders[0] for each in receivers):
            raise table.error("to", f"{senders[0]} would send to itself only")
        for sender in senders:
            others = [each for each in receivers if each != sender]
            if others and self._host(sender) not in sending:
                raise table.error("to", f"no wires lead from {sender} to {others[0]}")
        return targets

    def _ways(self, source: str, targets: Sequence[str]) -> list[str]:
        found = [
            each for each in targets if each != source and self.island[each] == self.island[source]
        ]
        host = self._host(source)
        return [each for each in found if self._host(each) != host] or found

    def check_ways(self, table: Table, pairs: Sequence[tuple[str, str]]) -> None:
        """Refuse a flow between ends that no wires connect."""
        for a, b in pairs:
            if self.island[a] != self.island[b]:
                raise table.error("to", f"no wires lead from {a} to {b}")

    def _named(self, table: Table, key: str, default: str | None = None) -> list[str]:
        """Ends and hosts by name or pattern, in the order in which they are given.

        A pattern that fits an end is for ends; else it is for hosts with several ports.
        """
        value = table.take(key)
        value = default if value is None else value
        if value is None:
            raise table.error(
                None, f"{key} is missing: a host, a pattern such as 'h*', or an array"
            )
        found: dict[str, None] = {}
        for each in value if isinstance(value, list) else [value]:
            fits = [
                [name for name in names if isinstance(each, str) and fnmatchcase(name, each)]
                for names in (self.hosts, self.ports)
            ]
            if not any(fits):
                near = hint(each, [*self.hosts, *self.ports]) if isinstance(each, str) else ""
                raise table.error(key, f"no host is called {shown(each)}{near}")
            found |= dict.fromkeys(fits[0] or fits[1])
        if not found:
            raise table.error(key, "expected a host, or several")
        return list(found)

    def _host(self, end: str) -> str:
        """The host of a port; a host with one port is its own."""
        host = end.rpartition(".")[0]
        return host if end in self.ports.get(host, ()) else end

    def _number(self, end: str, place: int) -> int:
        """The number of a port at its host; `place` for a host with one port."""
        host, _, number = end.rpartition(".")
        return int(number) if end in self.ports.get(host, ()) else place
