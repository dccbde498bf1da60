"""The connection manager of a device's host for the agent of drill scripts, by librdmacm.

The agent finds this file beside itself, when a script is about connection management.
pyverbs.cmid does not report why a connection was rejected, so this calls the library by ctypes.

Source: rdma/rdma_cma.h and libibverbs/verbs.h of rdma-core for functions and layouts.
"""

from __future__ import annotations

import ctypes
import errno
import os
import socket
import struct
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from ctypes import POINTER, byref, c_int, c_uint8, c_uint16, c_uint32, c_uint64, c_void_p
from typing import Any

import pyverbs.enums as e  # type: ignore[import-not-found]
from pyverbs.addr import GID, AHAttr, GlobalRoute  # type: ignore[import-not-found]
from pyverbs.pyverbs_error import PyverbsError  # type: ignore[import-not-found]
from pyverbs.qp import QPAttr  # type: ignore[import-not-found]

TCP_SPACE = 0x0106
"""RDMA_PS_TCP, which a service ID has above the 16 bits of its port (IBA annex A11)."""

MAXIMUM_KEPT = 4096
"""IDs and unread events kept before requests from the network are refused."""

MOST_DEPTH = 254
"""READs and ATOMICs at a time: 255 is the maximum of the device (RDMA_MAX_RESP_RES)."""

LARGEST_INT = (1 << 31) - 1

V4_MAPPED = bytes(10) + b"\xff\xff"
"""First bytes of a GID that is an IPv4 address (RFC 4291)."""

RESOLUTION_MS = 2000
"""Milliseconds to resolve an address or a route."""

CONNECT_REQUEST, ESTABLISHED, DISCONNECTED, TIMEWAIT_EXIT = 4, 9, 10, 15
"""rdma_cm_event_type."""

CONSUMER_DEFINED, VENDOR_OPTION = 28, 35
"""Reasons of a REJ that librdmacm can send."""

RETRIES = 7
"""Retries of requests, and RNR retries, which the peer is asked for, as rping does."""


class RDMAManager:
    """A listener, and the newest connection, which is that of a queue pair.

    For a queue pair that librdmacm has not made, the application has duties, which are done here
    on each event: it brings the queue pair to RTR when it accepts and to RTS when the connection
    is established (rdma_init_qp_attr), confirms a disconnect of the peer by rdma_disconnect, and
    destroys the ID at TIMEWAIT_EXIT. After rdma_establish the kernel reports no event; here
    ESTABLISHED follows, as for a queue pair of librdmacm (librdmacm/cma.c).
    """

    def __init__(self, qp: Any) -> None:
        self._qp = qp
        self._library = _librdmacm()
        self._listener: int | None = None
        self._newest: int | None = None
        self._made: list[int] = []
        self._events: list[dict[str, int]] = []
        self._channel = self._library.rdma_create_event_channel()
        if not self._channel:
            reason = _failure("rdma_create_event_channel").strerror
            raise NotImplementedError(f"no connection manager here: {reason}")
        os.set_blocking(self.fileno(), False)

    def fileno(self) -> int:
        """Descriptor that is readable when there is an event."""
        return int(ctypes.cast(self._channel, POINTER(c_int))[0])

    def handle(self) -> None:
        """Read all events and react as an application does."""
        pointer = POINTER(Event)()
        while not self._library.rdma_get_cm_event(self._channel, byref(pointer)):
            event = pointer.contents
            kind, connection, status = event.event, int(event.id), event.status
            self._library.rdma_ack_cm_event(pointer)
            if kind == CONNECT_REQUEST and not self._has_room():
                self._library.rdma_destroy_id(connection)  # the kernel refuses it then
                continue
            self._events.append({"event": kind, "status": status})
            if kind == CONNECT_REQUEST:
                self._made.append(connection)
                self._newest = connection
            elif kind == ESTABLISHED:
                # It fails unless the queue pair is in RTR, which a script sees by the state.
                with suppress(OSError, PyverbsError):
                    self._modify(connection, e.IBV_QPS_RTS)
            elif kind == DISCONNECTED:
                # It fails after a disconnect of this side.
                self._library.rdma_disconnect(connection)
            elif kind == TIMEWAIT_EXIT:
                self._newest = None if connection == self._newest else self._newest
                self._destroy(connection)

    def close(self) -> None:
        """Close the listener and the connections."""
        for each in list(self._made):
            self._destroy(each)
        self._library.rdma_destroy_event_channel(self._channel)

    # Questions.

    def cm_events(self) -> list[dict[str, int]]:
        """Events since the last call."""
        self.handle()
        found, self._events = self._events, []
        return found

    def listen(self, service: int, backlog: int, gid: str) -> None:
        """Listen at an address of the device."""
        with self._created(self._channel) as listener:
            self._call("rdma_bind_addr", listener, _sockaddr(gid, _port(service)))
            self._call("rdma_listen", listener, _limited(backlog, LARGEST_INT))
        self._listener = listener

    def unlisten(self) -> None:
        """End the listener."""
        if self._listener is None:
            raise OSError(errno.EINVAL, "no listener to end")
        self._destroy(self._listener)
        self._listener = None

    def connect(
        self,
        service: int,
        gid: str,
        own_gid: str,
        initiator_depth: int,
        responder_resources: int,
        **timing: int,
    ) -> None:
        """Request a connection to a service at an address, from one of the device."""
        if timing:
            raise NotImplementedError(f"the kernel has {' and '.join(timing)} fixed at 20 and 15")
        parameters = self._parameters(initiator_depth, responder_resources)
        source, destination = _sockaddr(own_gid, 0), _sockaddr(gid, _port(service))
        # Without a channel every step is waited for.
        with self._created(None) as connection:
            self._call("rdma_resolve_addr", connection, source, destination, RESOLUTION_MS)
            self._call("rdma_resolve_route", connection, RESOLUTION_MS)
            self._call("rdma_migrate_id", connection, self._channel)
            self._call("rdma_connect", connection, byref(parameters))
        self._newest = connection

    def accept(self, initiator_depth: int, responder_resources: int) -> None:
        """Accept a request, with the queue pair in RTR."""
        connection = self._connection()
        parameters = self._parameters(initiator_depth, responder_resources)
        # Before it sends the REP the kernel knows only the attributes of the REQ.
        self._modify(connection, e.IBV_QPS_INIT, e.IBV_QPS_RTR, most_served=responder_resources)
        self._call("rdma_accept", connection, byref(parameters))

    def reject(self, reason: int) -> None:
        """Reject a REQ or a REP."""
        names = {CONSUMER_DEFINED: "rdma_reject", VENDOR_OPTION: "rdma_reject_ece"}
        if reason not in names:
            what = "CONSUMER_DEFINED and VENDOR_OPTION_NOT_SUPPORTED"
            raise NotImplementedError(f"librdmacm has no other reasons than {what}")
        self._call(names[reason], self._connection(), None, 0)

    def delay(self, **given: int) -> None:
        """Send an MRA to ask for more time."""
        raise NotImplementedError("librdmacm has no function for it: the kernel decides about MRAs")

    def ready(self) -> None:
        """Bring the queue pair to RTS and send the RTU."""
        connection = self._connection()
        self._modify(connection, e.IBV_QPS_INIT, e.IBV_QPS_RTR, e.IBV_QPS_RTS)
        self._call("rdma_establish", connection)
        self._events.append({"event": ESTABLISHED, "status": 0})

    def disconnect(self) -> None:
        """End the connection."""
        self._call("rdma_disconnect", self._connection())

    def _connection(self) -> int:
        self.handle()
        if self._newest is None:
            raise OSError(errno.EINVAL, "no connection was asked for")
        return self._newest

    def _has_room(self) -> bool:
        return max(len(self._made), len(self._events)) < MAXIMUM_KEPT

    @contextmanager
    def _created(self, channel: int | None) -> Iterator[int]:
        """An ID that is destroyed when its first use fails."""
        if not self._has_room():
            raise OSError(errno.ENOMEM, f"{MAXIMUM_KEPT} connections, or events to be asked for")
        made = c_void_p()
        self._call("rdma_create_id", channel, byref(made), None, TCP_SPACE)
        created = int(made.value or 0)
        self._made.append(created)
        with ExitStack() as undo:
            undo.callback(self._destroy, created)
            yield created
            undo.pop_all()

    def _destroy(self, made: int) -> None:
        self._made.remove(made)
        self._library.rdma_destroy_id(made)

    def _parameters(self, initiator_depth: int, responder_resources: int) -> Parameters:
        return Parameters(
            responder_resources=_limited(responder_resources, MOST_DEPTH),
            initiator_depth=_limited(initiator_depth, MOST_DEPTH),
            retry_count=RETRIES,
            rnr_retry_count=RETRIES,
            qp_num=self._qp.qp_num,
        )

    def _modify(self, connection: int, *states: int, most_served: int = MOST_DEPTH) -> None:
        """Bring the queue pair through these states with the attributes of the kernel.

        most_served: limit of the READs and ATOMICs of the peer at a time.
        """
        for state in states:
            wanted, mask = Attributes(qp_state=state), c_int()
            self._call("rdma_init_qp_attr", connection, byref(wanted), byref(mask))
            wanted.max_dest_rd_atomic = min(wanted.max_dest_rd_atomic, most_served)
            attr = QPAttr()
            for bit, name in FIELDS.items():
                if mask.value & bit:
                    setattr(attr, name, getattr(wanted, name))
            if mask.value & e.IBV_QP_AV:
                way = wanted.ah_attr
                gid = bytes(way.dgid).hex()
                route = GlobalRoute(
                    dgid=GID(":".join(gid[at : at + 4] for at in range(0, 32, 4))),
                    sgid_index=way.sgid_index,
                    flow_label=way.flow_label,
                    hop_limit=way.hop_limit,
                    traffic_class=way.traffic_class,
                )
                attr.ah_attr = AHAttr(port_num=way.port_num, is_global=1, gr=route, sl=way.sl)
            self._qp.modify(attr, mask.value)

    def _call(self, name: str, *arguments: object) -> None:
        try:
            failed = getattr(self._library, name)(*arguments)
        except ctypes.ArgumentError as error:  # which is not a TypeError
            raise TypeError(f"{name}: {error}") from None
        if failed:
            raise _failure(name)


class Parameters(ctypes.Structure):
    """rdma_conn_param."""

    _fields_ = (
        ("private_data", c_void_p),
        ("private_data_len", c_uint8),
        ("responder_resources", c_uint8),
        ("initiator_depth", c_uint8),
        ("flow_control", c_uint8),
        ("retry_count", c_uint8),
        ("rnr_retry_count", c_uint8),
        ("srq", c_uint8),
        ("qp_num", c_uint32),
    )


class Event(ctypes.Structure):
    """rdma_cm_event, without the parameters at its end."""

    _fields_ = (
        ("id", c_void_p),
        ("listen_id", c_void_p),
        ("event", c_int),
        ("status", c_int),
    )


class Address(ctypes.Structure):
    """ibv_ah_attr, which begins with an ibv_global_route."""

    _fields_ = (
        ("dgid", c_uint64 * 2),
        ("flow_label", c_uint32),
        *((name, c_uint8) for name in ("sgid_index", "hop_limit", "traffic_class", "pad")),
        ("dlid", c_uint16),
        *((name, c_uint8) for name in ("sl", "src_path_bits", "static_rate", "is_global")),
        ("port_num", c_uint8),
    )


class Attributes(ctypes.Structure):
    """ibv_qp_attr; newer libraries have more at its end."""

    _fields_ = (
        *((name, c_int) for name in ("qp_state", "cur_qp_state", "path_mtu", "path_mig_state")),
        *((name, c_uint32) for name in ("qkey", "rq_psn", "sq_psn", "dest_qp_num")),
        ("qp_access_flags", c_uint32),
        ("cap", c_uint32 * 5),
        ("ah_attr", Address),
        ("alt_ah_attr", Address),
        *((name, c_uint16) for name in ("pkey_index", "alt_pkey_index")),
        *((name, c_uint8) for name in ("en_sqd_async_notify", "sq_draining", "max_rd_atomic")),
        *((name, c_uint8) for name in ("max_dest_rd_atomic", "min_rnr_timer", "port_num")),
        *((name, c_uint8) for name in ("timeout", "retry_cnt", "rnr_retry")),
        ("rest", c_uint8 * 64),
    )


FIELDS = {
    e.IBV_QP_STATE: "qp_state",
    e.IBV_QP_PKEY_INDEX: "pkey_index",
    e.IBV_QP_PORT: "port_num",
    e.IBV_QP_ACCESS_FLAGS: "qp_access_flags",
    e.IBV_QP_PATH_MTU: "path_mtu",
    e.IBV_QP_DEST_QPN: "dest_qp_num",
    e.IBV_QP_RQ_PSN: "rq_psn",
    e.IBV_QP_SQ_PSN: "sq_psn",
    e.IBV_QP_TIMEOUT: "timeout",
    e.IBV_QP_RETRY_CNT: "retry_cnt",
    e.IBV_QP_RNR_RETRY: "rnr_retry",
    e.IBV_QP_MIN_RNR_TIMER: "min_rnr_timer",
    e.IBV_QP_MAX_QP_RD_ATOMIC: "max_rd_atomic",
    e.IBV_QP_MAX_DEST_RD_ATOMIC: "max_dest_rd_atomic",
}
"""The attribute of each bit of the mask."""

ARGUMENTS: dict[str, list[Any]] = {
    "rdma_destroy_event_channel": [c_void_p],
    "rdma_create_id": [c_void_p, c_void_p, c_void_p, c_int],
    "rdma_destroy_id": [c_void_p],
    "rdma_migrate_id": [c_void_p, c_void_p],
    "rdma_bind_addr": [c_void_p, ctypes.c_char_p],
    "rdma_listen": [c_void_p, c_int],
    "rdma_resolve_addr": [c_void_p, c_void_p, ctypes.c_char_p, c_int],
    "rdma_resolve_route": [c_void_p, c_int],
    "rdma_connect": [c_void_p, c_void_p],
    "rdma_accept": [c_void_p, c_void_p],
    "rdma_establish": [c_void_p],
    "rdma_reject": [c_void_p, c_void_p, c_uint8],
    "rdma_reject_ece": [c_void_p, c_void_p, c_uint8],
    "rdma_disconnect": [c_void_p],
    "rdma_init_qp_attr": [c_void_p, c_void_p, c_void_p],
    "rdma_get_cm_event": [c_void_p, c_void_p],
    "rdma_ack_cm_event": [c_void_p],
}


def _librdmacm() -> Any:
    try:
        library = ctypes.CDLL("librdmacm.so.1", use_errno=True)
    except OSError as error:
        raise NotImplementedError(f"librdmacm: {error}") from None
    library.rdma_create_event_channel.restype = c_void_p
    for name, types in ARGUMENTS.items():
        if hasattr(library, name):  # rdma_reject_ece is younger than the others
            getattr(library, name).argtypes = types
    return library


def _failure(name: str) -> OSError:
    number = ctypes.get_errno()
    return OSError(number, f"{name}: {os.strerror(number)}")


def _limited(number: int, most: int) -> int:
    """A number that fits; ctypes would cut a larger one."""
    if not 0 <= number <= most:
        raise OSError(errno.EINVAL, f"{number} is not from 0 to {most}")
    return number


def _port(service: int) -> int:
    if service >> 16 != TCP_SPACE:
        raise NotImplementedError(f"the service {service:#x} is not a TCP port of the RDMA-CM")
    return service & 0xFFFF


def _sockaddr(gid: str, port: int) -> bytes:
    """A sockaddr_in for a GID that stands for an IPv4 address, else a sockaddr_in6."""
    address = socket.inet_pton(socket.AF_INET6, gid)
    if address.startswith(V4_MAPPED):
        return struct.pack("=H", socket.AF_INET) + struct.pack(">H4s8x", port, address[12:])
    if address[0] == 0xFE and address[1] >> 6 == 2:  # fe80::/10 (RFC 4291)
        raise NotImplementedError(f"{gid} is link-local, and has no interface")
    return struct.pack("=H", socket.AF_INET6) + struct.pack(">H4x16s4x", port, address)
