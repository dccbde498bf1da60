"""ibsim's protocol for programs with Debian's libumad2sim: a fabric without a C compiler.

What that library cannot do stays so: it cuts messages at 256 bytes and shows one port of one
adapter (docs/reference/infiniband.md#ibsim).

Abstract names have no permissions, so the sender of each message is checked: messages of other
users, and of sockets that are not the client's, are dropped (unix(7), SO_PASSCRED).
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import struct
from collections.abc import Callable
from dataclasses import dataclass

from ibwire.base.errors import EncodeError, LinkError
from ibwire.base.units import S, Time
from ibwire.fabric.infiniband.subnet import IS_SM, Port
from ibwire.link.ibsim_client import (
    CLIENT,
    CONNECT,
    CONTROL,
    DISCONNECT,
    ERROR,
    MAGIC,
    REQUEST,
    SET_ISSM,
    UNDELIVERED,
)
from ibwire.sm.mads import METHOD, RESPONSE, TID, Datagram
from ibwire.sm.management import Management, Programs
from ibwire_layers.attributes import PortInfo
from ibwire_layers.mad import MAD_SIZE, Method

GET_VENDOR, GET_NODEINFO, GET_PORTINFO, GET_PKEYS = 4, 7, 8, 10
CLIENTS = 10
TID_MARK = 0xB000
"""Bits 63:48 of the transaction ids of clients, with their number."""
ANSWER_TIMEOUT: Time = 2 * S
"""Until a request that nobody answers goes back; the library itself has no clock."""
_CREDENTIALS = struct.Struct("=3i")
"""struct ucred: process, user, group."""
_LENGTH = int.from_bytes(MAD_SIZE.to_bytes(8, "little"), "big")


@dataclass(slots=True)
class _Client:
    number: int
    process: int
    port: Port
    is_manager: bool = False


class IbsimServer:
    """The sockets of one fabric, for programs of this user and of root.

    name: as in IBSIM_SOCKNAME. now: the clock. Raises `LinkError` if the name is taken or too long.
    """

    def __init__(self, management: Management, name: str, now: Callable[[], Time]) -> None:
        self.management = management
        self.name = name
        self._now = now
        self._clients: dict[int, _Client] = {}
        self._ports: dict[Port, _AtPort] = {}
        """Of the clients so far."""
        self._open: dict[bytes, tuple[int, bytes, Time]] = {}
        """Requests without an answer, by transaction id: client, message, when to return it."""
        self.control = self._socket("ctl")
        self.data = [self._socket(f"out{number}") for number in range(CLIENTS)]

    def _socket(self, suffix: str) -> socket.socket:
        bound = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        bound.setblocking(False)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        try:
            bound.bind(self._address(suffix))
        except OSError as error:
            bound.close()
            is_taken = error.errno == errno.EADDRINUSE
            reason = "an ibsim has this name" if is_taken else str(error.strerror or error)
            raise LinkError(self.name, reason) from None
        return bound

    def _address(self, suffix: str) -> bytes:
        return b"\0" + os.fsencode(self.name) + f":{suffix}\0".encode()

    def close(self) -> None:
        """Close the sockets."""
        for each in (self.control, *self.data):
            each.close()

    def read_control(self) -> None:
        """Answer a control message."""
        with contextlib.suppress(OSError):
            message, asker = _received(self.control, CONTROL.size)
            if asker is None or len(message) != CONTROL.size:
                return
            magic, number, kind, length, data = CONTROL.unpack(message)
            if magic != MAGIC:
                return
            kind, number, data = self._command(kind, number, data, asker)
            self.control.sendto(CONTROL.pack(MAGIC, number, kind, length, data), asker)

    def read_data(self, number: int) -> None:
        """Send what a client has written."""
        with contextlib.suppress(OSError):
            message, sender = _received(self.data[number], REQUEST.size)
            client = self._clients.get(number)
            if client is None or sender != self._address(f"in{client.process}"):
                return
            if len(message) == REQUEST.size:
                self._transmit(client, message)

    def poll_timeout(self) -> Time | None:
        """When `handle_timeout` is due."""
        return min((due for _, _, due in self._open.values()), default=None)

    def handle_timeout(self, now: Time) -> None:
        """Return requests that nobody has answered."""
        for tid, (_, _, due) in list(self._open.items()):
            if due <= now and tid in self._open:
                self._return(tid)

    def _command(self, kind: int, number: int, data: bytes, asker: bytes) -> tuple[int, int, bytes]:
        """Type, client and data of the answer."""
        if kind == CONNECT:
            return self._connect(data, asker)
        client = self._clients.get(number)
        if client is None or asker != self._address(f"ctl{client.process}"):
            return ERROR, number, data
        port, node = client.port, client.port.node
        if kind == DISCONNECT:
            self._disconnect(client)
        elif kind == SET_ISSM:
            self._set_manager(client, is_manager=any(data[:4]))
        elif kind == GET_VENDOR:
            data = struct.pack("<III4xQ", node.vendor_id, node.device_id, 1, 1)
        elif kind == GET_NODEINFO:
            data = node.node_info(port.number).pack()
        elif kind == GET_PORTINFO:
            asked = data[0] or port.number
            if asked >= len(node.ports):
                return ERROR, number, data
            info = PortInfo.unpack(node.ports[asked].info)
            data = info.altered(local_port_num=port.number).pack()
        elif kind == GET_PKEYS:
            data = bytes(port.pkeys[:64])
        else:
            return ERROR, number, data
        return kind, number, data

    def _connect(self, data: bytes, asker: bytes) -> tuple[int, int, bytes]:
        process, qpn, _, host = CLIENT.unpack(data[: CLIENT.size])
        if asker != self._address(f"ctl{process}"):
            return ERROR, 0, data
        name = host.rstrip(b"\0").decode(errors="replace")
        try:
            subnet = self.management.subnet
            node = subnet.node(name) if name else next(iter(subnet.nodes.values()))
        except EncodeError:
            return ERROR, 0, data
        self._disconnect_ended(process)
        number = next((each for each in range(CLIENTS) if each not in self._clients), None)
        if number is None:
            return ERROR, 0, data
        port = node.ports[0] if node.is_switch else node.ports[1]
        client = _Client(number, process, port)
        if not self._reaches(client):
            return ERROR, 0, data
        self._clients[number] = client
        if port not in self._ports:
            others = self.management.programs.get(port)
            self._ports[port] = self.management.programs[port] = _AtPort(self, port, others)
        name = node.name.encode()[:31].decode(errors="replace")
        return CONNECT, number, CLIENT.pack(number, qpn, 0, name.encode())

    def _reaches(self, client: _Client) -> bool:
        """Connect to the socket of a client; `False` if it has none."""
        try:
            self.data[client.number].connect(self._address(f"in{client.process}"))
        except OSError:
            return False
        return True

    def _disconnect_ended(self, process: int) -> None:
        """Remove clients that were killed, also one with the number of a new process."""
        for each in list(self._clients.values()):
            if each.process == process or not self._reaches(each):
                self._disconnect(each)

    def _disconnect(self, client: _Client) -> None:
        self._set_manager(client, is_manager=False)
        del self._clients[client.number]
        self._open = {tid: each for tid, each in self._open.items() if each[0] != client.number}

    def _set_manager(self, client: _Client, *, is_manager: bool) -> None:
        if client.is_manager == is_manager:
            return
        client.is_manager = is_manager
        port = client.port
        is_managed = any(each.is_manager for each in self._at(port))
        port.capability_mask = port.capability_mask & ~IS_SM | (IS_SM if is_managed else 0)
        self.management.traps.capabilities_changed(port)

    def _at(self, port: Port) -> list[_Client]:
        return [each for each in self._clients.values() if each.port is port]

    def _transmit(self, client: _Client, message: bytes) -> None:
        dlid, slid, dqp, sqp, _, _, written = REQUEST.unpack(message)
        mad = bytearray(written)
        is_request = not mad[METHOD] & RESPONSE and mad[METHOD] != Method.TRAP_REPRESS
        if is_request:
            mad[TID.start : TID.start + 2] = (TID_MARK | client.number).to_bytes(2, "big")
            tid = bytes(mad[TID])
            self._open[tid] = client.number, message, self._now() + ANSWER_TIMEOUT
        is_permissive = slid == b"\xff\xff"
        datagram = Datagram(
            mad,
            slid=0xFFFF if is_permissive else client.port.lid,
            dlid=int.from_bytes(dlid, "big"),
            # A packet has no room for the other bits.
            sqp=int.from_bytes(sqp, "big") & 0xFF_FFFF,
            dqp=int.from_bytes(dqp, "big") & 0xFF_FFFF,
        )
        lost = self.management.lost
        self.management.send(datagram, client.port)
        self.management.run(self._now())
        if is_request and self.management.lost > lost and tid in self._open:
            self._return(tid)

    def _return(self, tid: bytes) -> None:
        number, message, _ = self._open.pop(tid)
        status = UNDELIVERED.to_bytes(4, "big")
        self._write(number, message[:16] + status + message[20:])

    def deliver(self, port: Port, datagram: Datagram) -> bool:
        """Hand a MAD at a port to its client; `False` if none waits for it."""
        mad = datagram.mad
        tid = bytes(mad[TID])
        if mad[METHOD] & RESPONSE and tid in self._open:
            number = self._open.pop(tid)[0]
            return self._give(number, datagram)
        if not datagram.is_response:
            managers = [each.number for each in self._at(port) if each.is_manager]
            return any(self._give(number, datagram) for number in managers)
        return False

    def _give(self, number: int, datagram: Datagram) -> bool:
        message = REQUEST.pack(
            datagram.dlid.to_bytes(2, "big"),
            datagram.slid.to_bytes(2, "big"),
            datagram.dqp.to_bytes(4, "big"),
            datagram.sqp.to_bytes(4, "big"),
            bytes(4),
            _LENGTH,
            bytes(datagram.mad),
        )
        return self._write(number, message)

    def _write(self, number: int, message: bytes) -> bool:
        """Send to a client; `False` if it has ended. A client that does not read loses messages."""
        try:
            self.data[number].send(message)
        except ConnectionRefusedError:
            self._disconnect(self._clients[number])
            return False
        except OSError:
            pass
        return True


def _received(receiver: socket.socket, size: int) -> tuple[bytes, bytes | None]:
    """A message and its sender's address, if it has one; empty if another user has sent it."""
    room = socket.CMSG_SPACE(_CREDENTIALS.size)  # none is left for descriptors
    message, control, _, sender = receiver.recvmsg(size + 1, room)
    for level, kind, data in control:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_CREDENTIALS):
            _, user, _ = _CREDENTIALS.unpack(data)
            if user in (0, os.getuid()):
                return message, sender
    return b"", sender


class _AtPort:
    """The programs at one port, for the fabric.

    others: those that do not use this protocol.
    """

    def __init__(self, server: IbsimServer, port: Port, others: Programs | None) -> None:
        self._server = server
        self._port = port
        self._others = others

    def deliver(self, datagram: Datagram, now: Time) -> bool:
        if self._server.deliver(self._port, datagram):
            return True
        return self._others is not None and self._others.deliver(datagram, now)
