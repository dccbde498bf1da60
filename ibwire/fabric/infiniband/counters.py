"""What a port of a fabric counts: for the agents of its node, changed with every packet."""

from __future__ import annotations

from typing import Final

COUNTERS: Final = (
    "excessive_buffer_overrun_errors",
    "link_downed_counter",
    "link_error_recovery_counter",
    "local_link_integrity_errors",
    "port_multicast_rcv_pkts",
    "port_multicast_xmit_pkts",
    "port_rcv_constraint_errors",
    "port_rcv_data",
    "port_rcv_errors",
    "port_rcv_pkts",
    "port_rcv_remote_physical_errors",
    "port_rcv_switch_relay_errors",
    "port_xmit_constraint_errors",
    "port_xmit_data",
    "port_xmit_discards",
    "port_xmit_pkts",
    "port_xmit_wait",
    "qp1_dropped",
    "symbol_error_counter",
    "vl15_dropped",
)
"""The names of the counters."""


class Counters:
    """What a port counts, by the names of PortCountersExtended (IBA 16.1.4.11).

    Data are words of 4 bytes from the LRH to the ICRC. They do not stop at a largest value; what
    reads them cuts them to its fields.
    """

    __slots__ = COUNTERS

    excessive_buffer_overrun_errors: int
    link_downed_counter: int
    link_error_recovery_counter: int
    local_link_integrity_errors: int
    port_multicast_rcv_pkts: int
    port_multicast_xmit_pkts: int
    port_rcv_constraint_errors: int
    port_rcv_data: int
    port_rcv_errors: int
    port_rcv_pkts: int
    port_rcv_remote_physical_errors: int
    port_rcv_switch_relay_errors: int
    port_xmit_constraint_errors: int
    port_xmit_data: int
    port_xmit_discards: int
    port_xmit_pkts: int
    port_xmit_wait: int
    qp1_dropped: int
    symbol_error_counter: int
    vl15_dropped: int

    def __init__(self) -> None:
        for name in COUNTERS:
            setattr(self, name, 0)
