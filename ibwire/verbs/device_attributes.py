"""Attributes of devices and ports: the attribute classes of `pyverbs.device`."""

from __future__ import annotations

from dataclasses import dataclass, field, fields

from ibwire.verbs.base import PyverbsObject, table
from ibwire.verbs.device_text import translate_event_type, translate_gid_type
from ibwire.verbs.utils import gid_str


@dataclass(frozen=True, eq=False, repr=False)
class _ReadOnly(PyverbsObject):
    """Base of read-only attributes."""

    def __str__(self) -> str:
        return _text(self, "")


@dataclass(frozen=True, eq=False, repr=False)
class DeviceAttr(_ReadOnly):
    """Limits of a device: `ibv_device_attr`. GUIDs are in memory order."""

    fw_version: str = ""
    node_guid: int = 0
    sys_image_guid: int = 0
    max_mr_size: int = 0
    page_size_cap: int = 0
    vendor_id: int = 0
    vendor_part_id: int = 0
    hw_ver: int = 0
    max_qp: int = 0
    max_qp_wr: int = 0
    device_cap_flags: int = 0
    max_sge: int = 0
    max_sge_rd: int = 0
    max_cq: int = 0
    max_cqe: int = 0
    max_mr: int = 0
    max_pd: int = 0
    max_qp_rd_atom: int = 0
    max_ee_rd_atom: int = 0
    max_res_rd_atom: int = 0
    max_qp_init_rd_atom: int = 0
    max_ee_init_rd_atom: int = 0
    atomic_caps: int = 0
    max_ee: int = 0
    max_rdd: int = 0
    max_mw: int = 0
    max_raw_ipv6_qps: int = 0
    max_raw_ethy_qp: int = 0
    max_mcast_grp: int = 0
    max_mcast_qp_attach: int = 0
    max_ah: int = 0
    max_fmr: int = 0
    max_map_per_fmr: int = 0
    max_srq: int = 0
    max_srq_wr: int = 0
    max_srq_sge: int = 0
    max_pkeys: int = 0
    local_ca_ack_delay: int = 0
    phys_port_cnt: int = 0


@dataclass(frozen=True, eq=False, repr=False)
class ODPCaps(_ReadOnly):
    """On-demand paging capabilities: none."""

    general_caps: int = 0
    rc_odp_caps: int = 0
    uc_odp_caps: int = 0
    ud_odp_caps: int = 0
    xrc_odp_caps: int = 0


@dataclass(frozen=True, eq=False, repr=False)
class PCIAtomicCaps(_ReadOnly):
    """PCI atomics capabilities: none."""

    fetch_add: int = 0
    swap: int = 0
    compare_swap: int = 0


@dataclass(frozen=True, eq=False, repr=False)
class TSOCaps(_ReadOnly):
    """Segmentation offload capabilities: none."""

    max_tso: int = 0
    supported_qpts: int = 0


@dataclass(frozen=True, eq=False, repr=False)
class RSSCaps(_ReadOnly):
    """Receive side scaling capabilities: none."""

    supported_qpts: int = 0
    max_rwq_indirection_tables: int = 0
    rx_hash_fields_mask: int = 0
    rx_hash_function: int = 0
    max_rwq_indirection_table_size: int = 0


@dataclass(frozen=True, eq=False, repr=False)
class PacketPacingCaps(_ReadOnly):
    """Packet pacing capabilities: none."""

    qp_rate_limit_min: int = 0
    qp_rate_limit_max: int = 0
    supported_qpts: int = 0


@dataclass(frozen=True, eq=False, repr=False)
class TMCaps(_ReadOnly):
    """Tag matching capabilities: none."""

    max_rndv_hdr_size: int = 0
    max_num_tags: int = 0
    flags: int = 0
    max_ops: int = 0
    max_sge: int = 0


@dataclass(frozen=True, eq=False, repr=False)
class CQModerationCaps(_ReadOnly):
    """CQ moderation capabilities: none."""

    max_cq_count: int = 0
    max_cq_period: int = 0


@dataclass(frozen=True, eq=False, repr=False)
class DeviceAttrEx(_ReadOnly):
    """Limits and optional features of a device: `ibv_device_attr_ex`."""

    orig_attr: DeviceAttr = field(default_factory=DeviceAttr)
    comp_mask: int = 0
    odp_caps: ODPCaps = field(default_factory=ODPCaps)
    completion_timestamp_mask: int = 0
    hca_core_clock: int = 0
    device_cap_flags_ex: int = 0
    tso_caps: TSOCaps = field(default_factory=TSOCaps)
    pci_atomic_caps: PCIAtomicCaps = field(default_factory=PCIAtomicCaps)
    rss_caps: RSSCaps = field(default_factory=RSSCaps)
    max_wq_type_rq: int = 0
    packet_pacing_caps: PacketPacingCaps = field(default_factory=PacketPacingCaps)
    raw_packet_caps: int = 0
    tm_caps: TMCaps = field(default_factory=TMCaps)
    cq_mod_caps: CQModerationCaps = field(default_factory=CQModerationCaps)
    max_dm_size: int = 0
    phys_port_cnt_ex: int = 0


@dataclass(frozen=True, eq=False, repr=False)
class PortAttr(_ReadOnly):
    """Attributes of a port: `ibv_port_attr`."""

    state: int = 0
    max_mtu: int = 0
    active_mtu: int = 0
    gid_tbl_len: int = 0
    port_cap_flags: int = 0
    max_msg_sz: int = 0
    bad_pkey_cntr: int = 0
    qkey_viol_cntr: int = 0
    pkey_tbl_len: int = 0
    lid: int = 0
    sm_lid: int = 0
    lmc: int = 0
    max_vl_num: int = 0
    sm_sl: int = 0
    subnet_timeout: int = 0
    init_type_reply: int = 0
    active_width: int = 0
    active_speed: int = 0
    phys_state: int = 0
    link_layer: int = 0
    flags: int = 0
    port_cap_flags2: int = 0
    active_speed_ex: int = 0


def _text(attributes: _ReadOnly, indent: str) -> str:
    lines: list[str] = []
    for each in fields(attributes):
        name, value = each.name.replace("_", " "), getattr(attributes, each.name)
        if isinstance(value, _ReadOnly):
            lines += [f"{indent}{name}\n", _text(value, indent + "  ")]
        else:
            lines.append(table((name, value), indent=indent))
    return "".join(lines)


class GIDEntry(PyverbsObject):
    """An entry of a GID table; the halves of the GID are in memory order."""

    def __init__(
        self,
        subnet_prefix: int = 0,
        interface_id: int = 0,
        gid_index: int = 0,
        port_num: int = 0,
        gid_type: int = 0,
        ndev_ifindex: int = 0,
    ) -> None:
        self.gid_subnet_prefix = subnet_prefix
        self.gid_interface_id = interface_id
        self.gid_index = gid_index
        self.port_num = port_num
        self.gid_type = gid_type
        self.ndev_ifindex = ndev_ifindex

    def gid_str(self) -> str:
        """The GID as text."""
        return gid_str(self.gid_subnet_prefix, self.gid_interface_id)

    def __str__(self) -> str:
        return table(
            ("GID", self.gid_str()),
            ("GID Index", self.gid_index),
            ("Port number", self.port_num),
            ("GID type", translate_gid_type(self.gid_type)),
            ("Ndev ifindex", self.ndev_ifindex),
        )


class AsyncEvent(PyverbsObject):
    """An asynchronous event of a device or of an object of a context."""

    def __init__(self, event_type: int = 0) -> None:
        self.event_type = event_type

    def ack(self) -> None:
        """Acknowledge the event."""

    def __str__(self) -> str:
        return table(("Event Type", translate_event_type(self.event_type)))
