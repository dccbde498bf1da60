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

INACTIVE: Final = "port_inactive_discards"
TOO_LARGE: Final = "port_neighbor_mtu_discards"
TOO_OLD_IN_SWITCH: Final = "port_sw_lifetime_limit_discards"
TOO_OLD_IN_QUEUE: Final = "port_sw_hoq_lifetime_limit_discards"
DISCARDS: Final = (INACTIVE, TOO_LARGE, TOO_OLD_IN_SWITCH, TOO_OLD_IN_QUEUE)
"""Why packets did not leave, in the order of PortXmitDiscardDetails (IBA 16.1.4.2)."""

DAMAGED: Final = "port_local_physical_errors"
MALFORMED: Final = "port_malformed_packet_errors"
OVERRUN: Final = "port_buffer_overrun_errors"
NO_ROUTE: Final = "port_dlid_mapping_errors"
NO_LANE: Final = "port_vl_mapping_errors"
LOOPING: Final = "port_looping_errors"
RCV_ERRORS: Final = (DAMAGED, MALFORMED, OVERRUN, NO_ROUTE, NO_LANE, LOOPING)
"""What was wrong with packets that came, in the order of PortRcvErrorDetails (IBA 16.1.4.1): the
first three are in PortRcvErrors, the others in PortRcvSwitchRelayErrors."""


class Counters:
    """What a port counts, by the names of PortCountersExtended (IBA 16.1.4.11), and why.

    Data are words of 4 bytes from the LRH to the ICRC. They do not stop at a largest value; what
    reads them cuts them to its fields.
    """

    __slots__ = COUNTERS + DISCARDS + RCV_ERRORS

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

    port_inactive_discards: int
    port_neighbor_mtu_discards: int
    port_sw_lifetime_limit_discards: int
    port_sw_hoq_lifetime_limit_discards: int

    port_local_physical_errors: int
    port_malformed_packet_errors: int
    port_buffer_overrun_errors: int
    port_dlid_mapping_errors: int
    port_vl_mapping_errors: int
    port_looping_errors: int

    def __init__(self) -> None:
        for name in COUNTERS + DISCARDS + RCV_ERRORS:
            setattr(self, name, 0)

    def discard(self, reason: str) -> None:
        """Count a packet that does not leave; `reason` is one of `DISCARDS`."""
        self.port_xmit_discards += 1
        setattr(self, reason, getattr(self, reason) + 1)

    def reject(self, reason: str) -> None:
        """Count a packet that is taken no further; `reason` is one of `RCV_ERRORS`."""
        if reason in RCV_ERRORS[:3]:
            self.port_rcv_errors += 1
        else:
            self.port_rcv_switch_relay_errors += 1
        setattr(self, reason, getattr(self, reason) + 1)
