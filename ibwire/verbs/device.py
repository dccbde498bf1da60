"""Devices and contexts, with pyverbs' names."""

from __future__ import annotations

import errno
import os
from collections import deque
from dataclasses import replace
from itertools import count
from typing import NoReturn

from ibwire.base.errors import VerbsError
from ibwire.base.units import NS, S
from ibwire.rc import attributes as rc
from ibwire.rc.device import Device as Adapter
from ibwire.rc.path import V4_MAPPED
from ibwire.rc.sizes import MAX_MESSAGE
from ibwire.rc.xrc import XRCDomain
from ibwire.verbs.addr import GID
from ibwire.verbs.base import Children, PyverbsCM, PyverbsObject, PyverbsResource, pyverbs_errors
from ibwire.verbs.device_attributes import (
    AsyncEvent,
    CQModerationCaps,
    DeviceAttr,
    DeviceAttrEx,
    GIDEntry,
    ODPCaps,
    PacketPacingCaps,
    PCIAtomicCaps,
    PortAttr,
    RSSCaps,
    TMCaps,
    TSOCaps,
)
from ibwire.verbs.device_text import (
    guid_format,
    guid_to_hex,
    phys_state_to_str,
    port_state_to_str,
    speed_to_str,
    str_from_flags,
    translate_device_caps,
    translate_event_type,
    translate_gid_type,
    translate_link_layer,
    translate_mtu,
    translate_node_type,
    translate_port_cap_flags,
    translate_port_cap_flags2,
    translate_transport_type,
    width_to_str,
)
from ibwire.verbs.fields import Structure, Unsigned
from ibwire.verbs.libibverbs_enums import (
    IBV_LINK_LAYER_ETHERNET,
    IBV_LINK_LAYER_INFINIBAND,
    ibv_atomic_cap,
    ibv_device_cap_flags,
    ibv_gid_type,
    ibv_gid_type_sysfs,
    ibv_node_type,
    ibv_port_cap_flags,
    ibv_port_state,
    ibv_transport_type,
)
from ibwire.verbs.memory import PAGE
from ibwire.verbs.network import current
from ibwire.verbs.pyverbs_error import PyverbsRDMAError, PyverbsUserError
from ibwire.verbs.utils import be64toh

__all__ = [
    "DM",
    "AllocDmAttr",
    "AsyncEvent",
    "CQModerationCaps",
    "Context",
    "Device",
    "DeviceAttr",
    "DeviceAttrEx",
    "FdArr",
    "GIDEntry",
    "ODPCaps",
    "PCIAtomicCaps",
    "PacketPacingCaps",
    "PortAttr",
    "QueryDeviceExInput",
    "RSSCaps",
    "TMCaps",
    "TSOCaps",
    "get_device_list",
    "guid_format",
    "guid_to_hex",
    "phys_state_to_str",
    "port_state_to_str",
    "rdma_get_devices",
    "speed_to_str",
    "str_from_flags",
    "translate_device_caps",
    "translate_event_type",
    "translate_gid_type",
    "translate_link_layer",
    "translate_mtu",
    "translate_node_type",
    "translate_port_cap_flags",
    "translate_port_cap_flags2",
    "translate_transport_type",
    "width_to_str",
]

COMP_VECTORS = 4
"""Completion vectors of a context; they have no effect."""

GID_TABLE = 16
"""Entries of a GID table; the first ones are the device's GIDs."""


class Device(PyverbsObject):
    """An entry of the device list."""

    def __init__(
        self, name: bytes, guid: int, node_type: int, transport_type: int, index: int
    ) -> None:
        self.name = name
        self.guid = guid
        self.node_type = node_type
        self.transport_type = transport_type
        self.index = index

    def __str__(self) -> str:
        return (
            f"Device {self.name.decode()}, node type {translate_node_type(self.node_type)}, "
            f"transport type {translate_transport_type(self.transport_type)}, "
            f"guid {guid_to_hex(self.guid)}, index {self.index}"
        )


def get_device_list() -> list[Device]:
    """The devices of the current network."""
    return [
        Device(
            device.name.encode(),
            _guid(device),
            ibv_node_type.IBV_NODE_CA,
            ibv_transport_type.IBV_TRANSPORT_IB,
            index,
        )
        for index, device in enumerate(current().devices.values())
    ]


def rdma_get_devices() -> list[Device]:
    """As `get_device_list`."""
    return get_device_list()


class Context(PyverbsResource):
    """An opened device of the network that is current when it is opened.

    name: of the device. Opening by a connection manager's ID, a command descriptor or
    vendor attributes raises EOPNOTSUPP.
    """

    _open = False

    def __init__(self, **kwargs: object) -> None:
        name = kwargs.get("name")
        for foreign in ("attr", "cmid", "cmd_fd"):
            if kwargs.get(foreign) is not None:
                raise PyverbsRDMAError(f"Failed to open by {foreign}", errno.EOPNOTSUPP)
        if name is None:
            raise PyverbsUserError("Device name must be provided")
        self.network = current()
        """The network that the device belongs to."""
        if not isinstance(name, str) or name not in self.network.devices:
            raise PyverbsRDMAError(f"Failed to find device {name}")
        self.name = name
        self.device: Adapter = self.network.devices[name]
        """The device itself."""
        self._open = True
        self._events: deque[rc.AsyncEvent] = deque()
        self._children = Children()
        self._handles = count(1)
        self.network.subscribe_to_device(name, self)

    @property
    def context(self) -> Adapter:
        """The device; in pyverbs this is an address."""
        return self.device

    @property
    def num_comp_vectors(self) -> int:
        """Completion vectors."""
        return COMP_VECTORS

    @property
    def cmd_fd(self) -> int:
        """Not supported, an emulated device has no file: EOPNOTSUPP."""
        raise PyverbsRDMAError("An emulated device has no file descriptor", errno.EOPNOTSUPP)

    def verb(self, failure: str) -> pyverbs_errors:
        """Context manager of every verb: takes the lock and converts errors to pyverbs'."""
        if not self._open:
            raise PyverbsUserError(f"{failure}: the Context is closed")
        return pyverbs_errors(failure, self.network.lock)

    def closing(self, failure: str) -> pyverbs_errors:
        """As `verb`, for the release of resources, which may follow the end of the context."""
        return pyverbs_errors(failure, self.network.lock)

    def new_handle(self) -> int:
        """The handle number of a new object of the context."""
        return next(self._handles)

    def add_ref(self, obj: PyverbsCM) -> None:
        """Register an object to be closed with the context."""
        self._children.add(obj)

    def close(self) -> None:
        """Close every object of the context."""
        if self._open:
            self._children.close()
            self._open = False

    def query_device(self) -> DeviceAttr:
        """Limits of the device."""
        limits = self.device.limits
        guid = be64toh(_guid(self.device))
        return DeviceAttr(
            fw_version=f"ibwire {self.device.profile.name}",
            node_guid=guid,
            sys_image_guid=guid,
            max_mr_size=(1 << 64) - 1,
            page_size_cap=(1 << 64) - PAGE,
            vendor_id=_VENDOR_ID,
            max_qp=limits.max_qp,
            max_qp_wr=limits.max_qp_wr,
            device_cap_flags=_CAPABILITIES,
            max_sge=limits.max_sge,
            max_sge_rd=limits.max_sge,
            max_cq=limits.max_cq,
            max_cqe=limits.max_cqe,
            max_mr=limits.max_mr,
            max_pd=_UNLIMITED,
            max_qp_rd_atom=limits.max_qp_rd_atom,
            max_res_rd_atom=_UNLIMITED,
            max_qp_init_rd_atom=limits.max_qp_rd_atom,
            atomic_caps=ibv_atomic_cap.IBV_ATOMIC_HCA,
            max_mw=limits.max_mr,
            max_ah=_UNLIMITED,
            max_srq=limits.max_srq,
            max_srq_wr=limits.max_srq_wr,
            max_srq_sge=limits.max_sge,
            max_pkeys=len(self.device.pkeys),
            phys_port_cnt=1,
        )

    def query_device_ex(self, ex_input: QueryDeviceExInput | None = None) -> DeviceAttrEx:
        """Limits of the device and its optional features; it has none."""
        attr = self.query_device()
        return DeviceAttrEx(
            orig_attr=attr, device_cap_flags_ex=attr.device_cap_flags, phys_port_cnt_ex=1
        )

    def query_comp_cntr_caps(self) -> NoReturn:
        """Not supported: EOPNOTSUPP."""
        raise PyverbsRDMAError("Failed to query comp_cntr caps", errno.EOPNOTSUPP)

    def query_port(self, port_num: int) -> PortAttr:
        """Attributes of a port."""
        failure = f"Failed to query port {port_num}"
        with self.verb(failure):
            self._check_port(port_num)
        native = self.device.link == "ib"
        mtu = rc.MTU_CODES[self.device.limits.port_mtu]
        return PortAttr(
            state=ibv_port_state.IBV_PORT_ACTIVE,
            max_mtu=mtu,
            active_mtu=mtu,
            gid_tbl_len=GID_TABLE,
            port_cap_flags=0 if native else ibv_port_cap_flags.IBV_PORT_IP_BASED_GIDS,
            max_msg_sz=MAX_MESSAGE,
            pkey_tbl_len=len(self.device.pkeys),
            lid=self.device.lid if native else 0,
            active_width=_WIDTH_4X,
            active_speed=_SPEED_25G,
            phys_state=_LINK_UP,
            link_layer=IBV_LINK_LAYER_INFINIBAND if native else IBV_LINK_LAYER_ETHERNET,
        )

    def query_port_speed(self, port_num: int) -> int:
        """Link rate of the port in units of 100 Mb/s."""
        with self.verb(f"Failed to query port speed for port {port_num}"):
            self._check_port(port_num)
        return self.network.rate_bps // 100_000_000

    def query_pkey(self, port_num: int, index: int) -> int:
        """A partition key as stored in memory, in network order."""
        with self.verb(f"Failed to query pkey {index} of port {port_num}"):
            self._check_port(port_num)
            if not 0 <= index < len(self.device.pkeys):
                raise VerbsError(errno.EINVAL, f"no P_Key {index}")
        return _swapped16(self.device.pkeys[index])

    def get_pkey_index(self, port_num: int, pkey: int) -> int:
        """Table index of a partition key given in network order."""
        with self.verb(f"Failed to get pkey index of pkey = {pkey} of port {port_num}"):
            self._check_port(port_num)
            if not 0 <= pkey < 1 << 16 or _swapped16(pkey) not in self.device.pkeys:
                raise VerbsError(errno.EINVAL, "no such P_Key")
        return self.device.pkeys.index(_swapped16(pkey))

    def query_gid(self, port_num: int, index: int) -> GID:
        """An entry of the GID table; an empty one is zero."""
        with self.verb(f"Failed to query gid {index} of port {port_num}"):
            gid = GID()
            gid.number = self._gid(port_num, index)
        return gid

    def query_gid_type(self, port_num: int, index: int) -> ibv_gid_type_sysfs:
        """The GID type as sysfs has it: whether the GID is for RoCEv2."""
        with self.verb(f"Failed to query gid type of port {port_num} and gid index {index}"):
            self._gid(port_num, index)
        if self.device.link == "rocev2":
            return ibv_gid_type_sysfs.IBV_GID_TYPE_SYSFS_ROCE_V2
        return ibv_gid_type_sysfs.IBV_GID_TYPE_SYSFS_IB_ROCE_V1

    def query_gid_ex(self, port_num: int, gid_index: int, flags: int = 0) -> GIDEntry:
        """An entry of the GID table; ENODATA for an empty one."""
        with self.verb(f"Failed to query gid table of port {port_num} in index {gid_index}"):
            if flags:
                raise VerbsError(errno.EOPNOTSUPP, f"flags {flags:#x}")
            number = self._gid(port_num, gid_index)
            if not number:
                raise VerbsError(errno.ENODATA, "the entry is empty")
        return GIDEntry(
            be64toh(number >> 64),
            be64toh(number & (1 << 64) - 1),
            gid_index,
            port_num,
            _GID_TYPES[self.device.link],
        )

    def query_gid_table(self, max_entries: int, flags: int = 0) -> list[GIDEntry]:
        """All used entries; the errno of a failure is negative, as in pyverbs."""
        rows = [index for index, gid in enumerate(self.device.gids) if gid]
        if flags or max_entries < len(rows):
            raise PyverbsRDMAError("Failed to query gid tables of the device", -errno.EINVAL)
        return [self.query_gid_ex(1, index) for index in rows]

    def query_rt_values_ex(self, comp_mask: int = 1) -> tuple[int, int]:
        """Virtual time in seconds and nanoseconds."""
        if comp_mask != 1:
            raise PyverbsRDMAError("Failed to query real time values", errno.EOPNOTSUPP)
        now = self.network.now
        return now // S, now % S // NS

    def get_async_event(self) -> AsyncEvent:
        """Advance time until an asynchronous event of the context.

        Raises EAGAIN if no scheduled event can cause one.
        """

        def arrived() -> bool:
            self.network.deliver_events()
            return bool(self._events)

        if not self._open or not self.network.wait(arrived):
            raise PyverbsRDMAError(
                "Failed to get async event: no scheduled event can cause one", errno.EAGAIN
            )
        return AsyncEvent(int(self._events.popleft().event_type))

    def deliver(self, event: rc.AsyncEvent) -> None:
        """Queue an event of the device."""
        self._events.append(event)

    def check_path(self, path: rc.AddressVector) -> None:
        """Raise `VerbsError` EINVAL for a path that does not start at this device."""
        self._check_port(path.port_num)
        if self.device.link != "ib" and not path.is_global:
            raise VerbsError(errno.EINVAL, "RoCE needs a global route")
        if path.is_global and not self._gid(1, path.sgid_index):
            raise VerbsError(errno.EINVAL, f"no GID {path.sgid_index}")

    def return_path(self, header: bytes, path: rc.AddressVector) -> rc.AddressVector:
        """The path to the sender of a datagram, read from the 40 bytes before it.

        They are a GRH, an IPv6 header, or 20 bytes and an IPv4 header (IBA annex A17.4.5.2).
        Raises `VerbsError` EINVAL for anything else. Source: rdma-core `ibv_init_ah_from_wc`.
        """
        if header[0] >> 4 == 6:
            word = int.from_bytes(header[:4])
            flow_label, traffic_class = word & 0xFFFFF, word >> 20 & 0xFF
            source, own = int.from_bytes(header[8:24]), int.from_bytes(header[24:40])
        elif header[20] >> 4 == 4:
            flow_label, traffic_class = 0, header[21]
            source = V4_MAPPED | int.from_bytes(header[32:36])
            own = V4_MAPPED | int.from_bytes(header[36:40])
        else:
            raise VerbsError(errno.EINVAL, "no network header")
        if own not in self.device.gids:
            raise VerbsError(errno.EINVAL, "the datagram was for another port")
        return replace(
            path,
            dgid=source,
            sgid_index=self.device.gids.index(own),
            flow_label=flow_label,
            traffic_class=traffic_class,
            hop_limit=0xFF,
            is_global=True,
        )

    def open_xrc_domain(self, file: tuple[int, int] | None, oflags: int) -> XRCDomain:
        """The XRC domain of a file, or a private one; raises `VerbsError` as Linux does.

        Source: `ib_uverbs_open_xrcd`.
        """
        if file is None:
            return self.device.open_xrc_domain()
        domains = self.network.xrc_domains
        domain, users = domains.get((self.name, file), (None, 0))
        if domain is None and not oflags & os.O_CREAT:
            raise VerbsError(errno.EAGAIN, "the file has no XRC domain yet")
        if domain is not None and oflags & os.O_EXCL:
            raise VerbsError(errno.EINVAL, "the file has an XRC domain already")
        if domain is None:
            domain = self.device.open_xrc_domain()
        domains[self.name, file] = domain, users + 1
        return domain

    def close_xrc_domain(self, file: tuple[int, int] | None, domain: XRCDomain) -> None:
        """Release a domain; the last user of a file's domain destroys it."""
        if file is not None:
            domains = self.network.xrc_domains
            users = domains[self.name, file][1] - 1
            if users:
                domains[self.name, file] = domain, users
                return
            del domains[self.name, file]
        domain.close()

    def _check_port(self, port_num: int) -> None:
        if port_num != 1:
            raise VerbsError(errno.EINVAL, f"no port {port_num}")

    def _gid(self, port_num: int, index: int) -> int:
        self._check_port(port_num)
        if not 0 <= index < GID_TABLE:
            raise VerbsError(errno.EINVAL, f"no GID {index}")
        gids = self.device.gids
        return gids[index] if index < len(gids) else 0


class QueryDeviceExInput(Structure):
    """Input of an extended query."""

    comp_mask = Unsigned(32)

    def __init__(self, comp_mask: int) -> None:
        self.comp_mask = comp_mask


class AllocDmAttr(Structure):
    """Attributes of device memory."""

    length = Unsigned(64)
    log_align_req = Unsigned(32)
    comp_mask = Unsigned(32)

    def __init__(self, length: int, log_align_req: int = 0, comp_mask: int = 0) -> None:
        self.length = length
        self.log_align_req = log_align_req
        self.comp_mask = comp_mask


class DM(PyverbsResource):
    """Device memory; not supported: EOPNOTSUPP."""

    def __init__(
        self, context: Context, dm_attr: AllocDmAttr | None = None, **kwargs: object
    ) -> None:
        raise PyverbsUserError("Device doesn't support dm allocation")


class FdArr(PyverbsObject):
    """A list of file descriptors."""

    def __init__(self, arr: list[int] | None = None, count: int = 0) -> None:
        self.arr = list(arr or [])[:count]
        self.count = count

    def close(self) -> None:
        """Do nothing."""


def _guid(device: Adapter) -> int:
    """The EUI-64 of the port's MAC address (IEEE guidelines; RFC 4291 appendix A)."""
    mac = device.mac
    return int.from_bytes(bytes((mac[0] ^ 2,)) + mac[1:3] + b"\xff\xfe" + mac[3:])


def _swapped16(value: int) -> int:
    return int.from_bytes(value.to_bytes(2, "little"), "big")


_VENDOR_ID = 0xFFFFFF
"""As in rxe (Linux `rxe_param.h`)."""

_UNLIMITED = (1 << 31) - 1

_CAPABILITIES = (
    ibv_device_cap_flags.IBV_DEVICE_AUTO_PATH_MIG
    | ibv_device_cap_flags.IBV_DEVICE_CURR_QP_STATE_MOD
    | ibv_device_cap_flags.IBV_DEVICE_RC_RNR_NAK_GEN
    | ibv_device_cap_flags.IBV_DEVICE_SRQ_RESIZE
    | ibv_device_cap_flags.IBV_DEVICE_N_NOTIFY_CQ
    | ibv_device_cap_flags.IBV_DEVICE_MEM_WINDOW
    | ibv_device_cap_flags.IBV_DEVICE_MEM_WINDOW_TYPE_2B
    | ibv_device_cap_flags.IBV_DEVICE_XRC
)

_GID_TYPES = {
    "rocev2": ibv_gid_type.IBV_GID_TYPE_ROCE_V2,
    "rocev1": ibv_gid_type.IBV_GID_TYPE_ROCE_V1,
    "ib": ibv_gid_type.IBV_GID_TYPE_IB,
}

_WIDTH_4X = 2
_SPEED_25G = 32
_LINK_UP = 5
