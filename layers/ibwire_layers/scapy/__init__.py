"""The InfiniBand headers as Scapy layers; importing this package binds them.

    from scapy.all import *
    from ibwire_layers.scapy import *

While bound, UDP port 4791, EtherTypes 0x8915 and 0x8808 and the link types
INFINIBAND and ERF are read by these layers, also where `scapy.contrib.roce` or
`scapy.contrib.mac_control` are loaded; `unbind()` gives everything back.

Scapy is GPL-2.0-only; a program that imports this package is distributed under
that licence. The files here are BSD-2-Clause like the rest.
"""

from __future__ import annotations

from typing import Any

from scapy.config import conf
from scapy.layers.inet import IP, UDP
from scapy.layers.inet6 import IPv6
from scapy.layers.l2 import ARP, CookedLinux, Ether
from scapy.packet import Packet, bind_top_down, split_top_down

from ibwire_layers.outer import MAC_CONTROL_ADDRESS, ROCEV2_PORT, ErfType, EtherType, LinkType
from ibwire_layers.outer import UDP as UDPHeader
from ibwire_layers.scapy import mad
from ibwire_layers.scapy.control import PFC, Pause
from ibwire_layers.scapy.routing import ERF, ERF_ETHERNET, GRH, LRH, RWH, FlowControl
from ibwire_layers.scapy.transport import (
    AETH,
    BTH,
    CNP,
    DETH,
    FETH,
    IETH,
    RDETH,
    RETH,
    XRCETH,
    AtomicAckETH,
    AtomicETH,
    CNPReserved,
    ImmDt,
    IPoIB,
)

__all__ = [
    "AETH",
    "BTH",
    "CNP",
    "DETH",
    "ERF",
    "FETH",
    "GRH",
    "IETH",
    "LRH",
    "PFC",
    "RDETH",
    "RETH",
    "RWH",
    "XRCETH",
    "AtomicAckETH",
    "AtomicETH",
    "CNPReserved",
    "FlowControl",
    "IPoIB",
    "ImmDt",
    "Pause",
    "bind",
    "mad",
    "unbind",
]

_Match = dict[str, Any]

_MAC_CONTROL = MAC_CONTROL_ADDRESS.to_bytes(6).hex(":")

# Lower layer, upper layer, fields of the lower one that select the upper one
# when reading, and what building sets besides.
_BINDINGS: tuple[tuple[type[Packet], type[Packet], _Match, _Match], ...] = (
    # Scapy's default source port is DNS, so other dissectors would take the payload for DNS.
    (UDP, BTH, {"dport": ROCEV2_PORT}, {"sport": UDPHeader.FIELDS[0].default}),
    (Ether, GRH, {"type": int(EtherType.ROCE)}, {}),
    (CookedLinux, GRH, {"proto": int(EtherType.ROCE)}, {}),
    (Ether, Pause, {"type": int(EtherType.MAC_CONTROL)}, {"dst": _MAC_CONTROL}),
    (Ether, PFC, {"type": int(EtherType.MAC_CONTROL)}, {"dst": _MAC_CONTROL}),
    (LRH, RWH, {"lnh": 0}, {}),
    (LRH, IPv6, {"lnh": 1}, {}),
    (LRH, BTH, {"lnh": 2}, {}),
    (LRH, GRH, {"lnh": 3}, {}),
    (GRH, BTH, {"nxt_hdr": 0x1B}, {}),
    (ERF, LRH, {"type": int(ErfType.INFINIBAND)}, {}),
    (ERF, FlowControl, {"type": int(ErfType.INFINIBAND_LINK)}, {}),
    *((ERF, Ether, {"type": int(kind)}, {}) for kind in ERF_ETHERNET),  # built as the last
    *(
        (lower, upper, {"ether_type": int(ether_type)}, {})
        for lower in (RWH, IPoIB)
        for upper, ether_type in (
            (IP, EtherType.IPV4),
            (IPv6, EtherType.IPV6),
            (ARP, EtherType.ARP),
        )
    ),
)

_LINK_TYPES: dict[int, type[Packet]] = {
    LinkType.INFINIBAND: LRH,
    LinkType.ERF: ERF,
}


def bind() -> None:
    """Have Scapy read and build with these layers; nothing if it does already."""
    if _bound:
        return
    for lower, upper, match, more in _BINDINGS:
        # Before existing bindings, not after them as `bind_layers` does.
        _bound.append((lower, (match, upper)))
        lower.payload_guess = [_bound[-1][1], *lower.payload_guess]
        bind_top_down(lower, upper, **match, **more)
    # Some senders swap the ports in answers. Building does not.
    _bound.append((UDP, ({"sport": ROCEV2_PORT}, BTH)))
    UDP.payload_guess = [_bound[-1][1], *UDP.payload_guess]
    for number, layer in _LINK_TYPES.items():
        _former_link_types[number] = conf.l2types.num2layer.get(number)
        conf.l2types.register(number, layer)
    # Scapy takes a datagram for an answer only if its destination port is the
    # request's source port. RoCEv2 sends to port 4791 both ways, and `UDP.answers`
    # decides before it asks the payload: no layer above can correct it, a subclass
    # of UDP would not be found as `UDP`, and `conf.checkIPsrc = False` would change
    # the pairing of every protocol. So this one method is replaced, for datagrams
    # that carry our BTH; all others use the original method.
    if not _former_answers:
        _former_answers.append(UDP.answers)
        UDP.answers = _answers  # type: ignore[method-assign]


def unbind() -> None:
    """Undo `bind` exactly; nothing if it was not called."""
    for lower, entry in _bound:
        lower.payload_guess = [other for other in lower.payload_guess if other is not entry]
        split_top_down(lower, entry[1])
    for number, former in _former_link_types.items():
        del conf.l2types.layer2num[conf.l2types.num2layer.pop(number)]
        if former is not None:
            conf.l2types.register_num2layer(number, former)
    # A later wrapper of our method stays; unbound, it only calls the original.
    if UDP.answers is _answers:
        UDP.answers = _former_answers.pop()  # type: ignore[method-assign]
    _bound.clear()
    _former_link_types.clear()


_bound: list[tuple[type[Packet], tuple[_Match, type[Packet]]]] = []
_former_link_types: dict[int, type[Packet] | None] = {}
_former_answers: list[Any] = []


def _answers(self: Packet, other: Packet) -> Any:
    """`UDP.answers` while bound."""
    if isinstance(self.payload, BTH) and isinstance(other, UDP) and isinstance(other.payload, BTH):
        return self.dport == other.dport and self.payload.answers(other.payload)
    return _former_answers[-1](self, other)


bind()
