"""The attributes of performance management: counters of a port."""

from __future__ import annotations

from enum import IntEnum

from ibwire_layers.schema import Header, Show, bits, header


class PerfAttribute(IntEnum):
    """Attributes of performance management (IBA 16.1)."""

    CLASS_PORT_INFO = 0x0001
    PORT_SAMPLES_CONTROL = 0x0010
    PORT_SAMPLES_RESULT = 0x0011
    PORT_COUNTERS = 0x0012
    PORT_RCV_ERROR_DETAILS = 0x0015
    PORT_XMIT_DISCARD_DETAILS = 0x0016
    PORT_COUNTERS_EXTENDED = 0x001D
    PORT_EXTENDED_SPEEDS_COUNTERS = 0x001F


@header("PortCounters", key="portcounters", section="IBA 16.1")
class PortCounters(Header):
    """Counters of one port; they stop at their largest value and do not wrap."""

    reserved: int = bits(8, "Reserved", default=0)
    port_select: int = bits(
        8,
        "PortSelect",
        default=0,
        wireshark="infiniband.portcounters.portselect",
        doc="0xFF for all ports",
    )
    counter_select: int = bits(
        16,
        "CounterSelect",
        default=0,
        show=Show.HEX,
        wireshark="infiniband.portcounters.counterselect",
    )
    symbol_error_counter: int = bits(
        16, "SymbolErrorCounter", default=0, wireshark="infiniband.portcounters.symbolerrorcounter"
    )
    link_error_recovery_counter: int = bits(
        8,
        "LinkErrorRecoveryCounter",
        default=0,
        wireshark="infiniband.portcounters.linkerrorrecoverycounter",
    )
    link_downed_counter: int = bits(
        8, "LinkDownedCounter", default=0, wireshark="infiniband.portcounters.linkdownedcounter"
    )
    port_rcv_errors: int = bits(
        16, "PortRcvErrors", default=0, wireshark="infiniband.portcounters.portrcverrors"
    )
    port_rcv_remote_physical_errors: int = bits(
        16,
        "PortRcvRemotePhysicalErrors",
        default=0,
        wireshark="infiniband.portcounters.portrcvremotephysicalerrors",
    )
    port_rcv_switch_relay_errors: int = bits(
        16,
        "PortRcvSwitchRelayErrors",
        default=0,
        wireshark="infiniband.portcounters.portrcvswitchrelayerrors",
    )
    port_xmit_discards: int = bits(
        16, "PortXmitDiscards", default=0, wireshark="infiniband.portcounters.portxmitdiscards"
    )
    port_xmit_constraint_errors: int = bits(
        8,
        "PortXmitConstraintErrors",
        default=0,
        wireshark="infiniband.portcounters.portxmitconstrainterrors",
    )
    port_rcv_constraint_errors: int = bits(
        8,
        "PortRcvConstraintErrors",
        default=0,
        wireshark="infiniband.portcounters.portrcvconstrainterrors",
    )
    counter_select2: int = bits(8, "CounterSelect2", default=0, show=Show.HEX)
    local_link_integrity_errors: int = bits(
        4,
        "LocalLinkIntegrityErrors",
        default=0,
        wireshark="infiniband.portcounters.locallinkintegrityerrors",
    )
    excessive_buffer_overrun_errors: int = bits(
        4,
        "ExcessiveBufferOverrunErrors",
        default=0,
        wireshark="infiniband.portcounters.excessivebufferoverrunerrors",
    )
    qp1_dropped: int = bits(16, "QP1Dropped", default=0)
    vl15_dropped: int = bits(
        16, "VL15Dropped", default=0, wireshark="infiniband.portcounters.vl15dropped"
    )
    port_xmit_data: int = bits(
        32,
        "PortXmitData",
        default=0,
        wireshark="infiniband.portcounters.portxmitdata",
        doc="in 4-byte words",
    )
    port_rcv_data: int = bits(
        32,
        "PortRcvData",
        default=0,
        wireshark="infiniband.portcounters.portrcvdata",
        doc="in 4-byte words",
    )
    port_xmit_pkts: int = bits(
        32, "PortXmitPkts", default=0, wireshark="infiniband.portcounters.portxmitpkts"
    )
    port_rcv_pkts: int = bits(
        32, "PortRcvPkts", default=0, wireshark="infiniband.portcounters.portrcvpkts"
    )
    port_xmit_wait: int = bits(32, "PortXmitWait", default=0)


@header("PortCountersExtended", key="portcounters_ext", section="IBA 16.1")
class PortCountersExtended(Header):
    """The same in 64 bits each."""

    reserved: int = bits(8, "Reserved", default=0)
    port_select: int = bits(
        8, "PortSelect", default=0, wireshark="infiniband.portcounters_ext.portselect"
    )
    counter_select: int = bits(
        16,
        "CounterSelect",
        default=0,
        show=Show.HEX,
        wireshark="infiniband.portcounters_ext.counterselect",
    )
    counter_select2: int = bits(32, "CounterSelect2", default=0, show=Show.HEX)
    port_xmit_data: int = bits(
        64,
        "PortXmitData",
        default=0,
        wireshark="infiniband.portcounters_ext.portxmitdata",
        doc="in 4-byte words",
    )
    port_rcv_data: int = bits(
        64,
        "PortRcvData",
        default=0,
        wireshark="infiniband.portcounters_ext.portrcvdata",
        doc="in 4-byte words",
    )
    port_xmit_pkts: int = bits(
        64, "PortXmitPkts", default=0, wireshark="infiniband.portcounters_ext.portxmitpkts"
    )
    port_rcv_pkts: int = bits(
        64, "PortRcvPkts", default=0, wireshark="infiniband.portcounters_ext.portrcvpkts"
    )
    port_unicast_xmit_pkts: int = bits(
        64,
        "PortUnicastXmitPkts",
        default=0,
        wireshark="infiniband.portcounters_ext.portunicastxmitpkts",
    )
    port_unicast_rcv_pkts: int = bits(
        64,
        "PortUnicastRcvPkts",
        default=0,
        wireshark="infiniband.portcounters_ext.portunicastrcvpkts",
    )
    port_multicast_xmit_pkts: int = bits(
        64,
        "PortMulticastXmitPkts",
        default=0,
        wireshark="infiniband.portcounters_ext.portmulticastxmitpkts",
    )
    port_multicast_rcv_pkts: int = bits(
        64,
        "PortMulticastRcvPkts",
        default=0,
        wireshark="infiniband.portcounters_ext.portmulticastrcvpkts",
    )
    symbol_error_counter: int = bits(64, "SymbolErrorCounter", default=0)
    link_error_recovery_counter: int = bits(64, "LinkErrorRecoveryCounter", default=0)
    link_downed_counter: int = bits(64, "LinkDownedCounter", default=0)
    port_rcv_errors: int = bits(64, "PortRcvErrors", default=0)
    port_rcv_remote_physical_errors: int = bits(64, "PortRcvRemotePhysicalErrors", default=0)
    port_rcv_switch_relay_errors: int = bits(64, "PortRcvSwitchRelayErrors", default=0)
    port_xmit_discards: int = bits(64, "PortXmitDiscards", default=0)
    port_xmit_constraint_errors: int = bits(64, "PortXmitConstraintErrors", default=0)
    port_rcv_constraint_errors: int = bits(64, "PortRcvConstraintErrors", default=0)
    local_link_integrity_errors: int = bits(64, "LocalLinkIntegrityErrors", default=0)
    excessive_buffer_overrun_errors: int = bits(64, "ExcessiveBufferOverrunErrors", default=0)
    vl15_dropped: int = bits(64, "VL15Dropped", default=0)
    port_xmit_wait: int = bits(64, "PortXmitWait", default=0)
    qp1_dropped: int = bits(64, "QP1Dropped", default=0)
