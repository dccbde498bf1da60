"""The result of replaying a connection: equal packets and differences."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass, field
from typing import Any

from ibwire.rc.packet import TransportPacket
from ibwire.replay.recorded import Address, Exchange, Key
from ibwire_layers import syndrome as aeth

KEPT = 1000
"""Differences and kinds of inferences of a connection that are kept; further ones are counted."""

NAMED = 8
"""Packets that an inference lists."""

Value = int | str | None


@dataclass(frozen=True, slots=True)
class Difference:
    """A field in which an emulated packet differs from the recorded one."""

    packet: int
    """Number of the recorded packet; if there is none, of the one that was expected next."""
    field: str
    """The field, or `packet` when one side has no such packet."""
    recorded: Value
    emulated: Value


@dataclass(slots=True)
class Inference:
    """A fact that was taken from the recorded responses, not from the replayed packets."""

    what: str
    count: int = 0
    packets: list[int] = field(default_factory=list)
    """The first packets that it was taken from or needed for."""


@dataclass(slots=True)
class ReplayReport:
    """The result of one connection: the requests to one queue pair and their responses."""

    role: str
    """The emulated side: `responder` or `requester`."""
    profile: str
    source: Address
    destination: Address
    dst_qpn: int
    src_qpn: int | None = None
    requests: int = 0
    responses: int = 0
    """Responses in the capture."""
    equal: int = 0
    """Recorded packets of the emulated side that are equal in every field."""
    coalesced: int = 0
    """Emulated acknowledgements that a later recorded one covers, with a profile that coalesces
    acknowledgements depending on time."""
    differences: list[Difference] = field(default_factory=list)
    more_differences: int = 0
    """Differences that were not kept."""
    inferred: dict[str, Inference] = field(default_factory=dict)
    left_out: dict[str, Inference] = field(default_factory=dict)
    """Packets that could not be replayed or compared, by reason."""

    @classmethod
    def of(cls, exchange: Exchange, role: str, profile: str) -> ReplayReport:
        """An empty report of an exchange."""
        source, destination, qpn = exchange.key
        return cls(role, profile, source, destination, qpn)

    @property
    def key(self) -> Key:
        """The flow of the requests."""
        return self.source, self.destination, self.dst_qpn

    @property
    def has_differences(self) -> bool:
        """Whether there are differences."""
        return bool(self.differences)

    def differ(self, packet: int, name: str, recorded: Value, emulated: Value) -> None:
        """Add a difference."""
        if len(self.differences) < KEPT:
            self.differences.append(Difference(packet, name, recorded, emulated))
        else:
            self.more_differences += 1

    def infer(self, what: str, packet: int) -> None:
        """Add a fact that was taken from the recording."""
        _count(self.inferred, what, packet)

    def leave_out(self, why: str, packet: int) -> None:
        """Count a packet that cannot be used."""
        _count(self.left_out, why, packet)

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "as": self.role,
            "profile": self.profile,
            "source": name_of(self.source),
            "destination": name_of(self.destination),
            "src_qpn": self.src_qpn,
            "dst_qpn": self.dst_qpn,
            "requests": self.requests,
            "responses": self.responses,
            "equal": self.equal,
            "coalesced": self.coalesced,
            "differences": [
                {
                    "packet": each.packet,
                    "field": each.field,
                    "recorded": each.recorded,
                    "emulated": each.emulated,
                }
                for each in self.differences
            ],
            "more_differences": self.more_differences,
            "inferred": [
                {"what": each.what, "count": each.count, "packets": each.packets}
                for each in self.inferred.values()
            ],
            "left_out": [
                {"why": each.what, "count": each.count, "packets": each.packets}
                for each in self.left_out.values()
            ],
        }


def _count(kept: dict[str, Inference], what: str, packet: int) -> None:
    inference = kept.get(what)
    if inference is None:
        if len(kept) >= KEPT:
            return
        inference = kept[what] = Inference(what)
    inference.count += 1
    if len(inference.packets) < NAMED:
        inference.packets.append(packet)


def name_of(address: Address) -> str:
    """An address as text: IPv4, IPv6, or a LID."""
    gid, lid = address
    if lid and not gid:
        return f"LID {lid}"
    parsed = ipaddress.IPv6Address(gid)
    return str(parsed.ipv4_mapped or parsed)


def summary_of(packet: TransportPacket) -> str:
    """A short description of a packet, for a difference that concerns all of it."""
    text = f"{packet.form.name} psn={packet.psn:#08x}"
    if packet.form.has_aeth:
        text += f" {aeth.describe(packet.syndrome)} msn={packet.msn}"
    return text
