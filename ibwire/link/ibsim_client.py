"""A subnet manager on a host of ibsim: the client side of ibsim's protocol.

Requests are structures of the host in Unix datagrams, names are abstract and end in a zero byte
(docs/reference/infiniband.md#ibsim).
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import time
from collections.abc import Callable

from ibwire.base.errors import LinkError
from ibwire.base.units import Time
from ibwire.sm.asking import TID_HIGH
from ibwire.sm.configuration import Settings
from ibwire.sm.mads import METHOD, RESPONSE, TID, Datagram
from ibwire.sm.manager import SubnetManager
from ibwire_layers.mad import MAD_SIZE, Method

CONTROL = struct.Struct("<IIII64s")
"""Magic, client, type, length, data."""
MAGIC = 0xDEADBEEF
ERROR, CONNECT, DISCONNECT, SET_ISSM = 0, 1, 2, 9
CLIENT = struct.Struct("<III32s")
"""Id, queue pair, whether a manager runs here, host."""
REQUEST = struct.Struct("<2s2x2s2x4s4s4s4xQ256s")
"""DLID, SLID, QPNs, status in network order, length, MAD."""
UNDELIVERED = 110
TIMEOUT = 5.0
WINDOW = 4
"""SMPs on the way: the queues of datagrams are short."""


class IbsimClient:
    """A subnet manager at a host of ibsim.

    host: node id or description; empty for the first node. name: as in IBSIM_SOCKNAME. Raises
    `LinkError`.
    """

    def __init__(self, host: str, settings: Settings, name: str = "sim") -> None:
        if len(os.fsencode(host)) > 31:
            raise LinkError(host, "ibsim has names of at most 31 bytes")
        self.manager = SubnetManager(settings, self._send, window=WINDOW)
        self._number = 0
        self._is_connected = False
        self._control = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._data = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        try:
            self._connect(host, name)
        except OSError as error:
            self.close()
            raise LinkError(name, f"no ibsim answers: {error.strerror or error}") from None
        except LinkError:
            self.close()
            raise

    def _connect(self, host: str, name: str) -> None:
        process = os.getpid()
        self._control.settimeout(TIMEOUT)
        self._control.bind(f"\0{name}:ctl{process}\0")
        self._control.connect(f"\0{name}:ctl\0")
        self._data.bind(f"\0{name}:in{process}\0")
        hello = CLIENT.pack(process, 0, 1, os.fsencode(host))
        kind, answer = self._ask(CONNECT, hello)
        if kind == ERROR:
            raise LinkError(host or name, "ibsim has no such node, or no room for a client")
        self._number = CLIENT.unpack(answer[: CLIENT.size])[0]
        self._is_connected = True
        self._data.connect(f"\0{name}:out{self._number}\0")
        self._ask(SET_ISSM, struct.pack("<I", 1))

    def _ask(self, kind: int, data: bytes) -> tuple[int, bytes]:
        self._control.send(CONTROL.pack(MAGIC, self._number, kind, len(data), data))
        while True:
            _, _, answered, _, answer = CONTROL.unpack(self._control.recv(CONTROL.size))
            if answered in (kind, ERROR):  # not the answer to who had our name before
                return answered, answer

    def run(self, until: Callable[[], bool]) -> None:
        """Manage until `until` is true; it is asked at least every second."""
        while not until():
            self.step()

    def step(self, longest: float = 1.0) -> None:
        """Wait for MADs and for what is due, at most `longest` seconds."""
        now = _now()
        due = self.manager.poll_timeout()
        if due is not None and due <= now:
            self.manager.handle_timeout(now)
            return
        wait = longest if due is None else min(longest, (due - now) / 1e12)
        self._data.settimeout(max(wait, 0.001))
        try:
            message = self._data.recv(REQUEST.size + 1)
        except TimeoutError:
            return
        except OSError as error:
            raise LinkError("ibsim", f"it has ended: {error.strerror}") from None
        self._receive(message)

    def close(self) -> None:
        """Leave; an answer is not waited for, as ibsim may have ended."""
        if self._is_connected:
            self._is_connected = False
            with contextlib.suppress(OSError):
                self._control.send(CONTROL.pack(MAGIC, self._number, DISCONNECT, 0, b""))
        self._control.close()
        self._data.close()

    def _receive(self, message: bytes) -> None:
        if len(message) != REQUEST.size:
            return
        dlid, slid, dqp, sqp, status, _, mad = REQUEST.unpack(message)
        if int.from_bytes(status, "big"):
            return  # our own, undelivered; the manager has its own timeout
        datagram = Datagram(
            bytearray(mad),
            slid=int.from_bytes(slid, "big"),
            dlid=int.from_bytes(dlid, "big"),
            sqp=int.from_bytes(sqp, "big"),
            dqp=int.from_bytes(dqp, "big"),
        )
        if datagram.mad[METHOD] == Method.GET_RESP and datagram.dqp == 0:
            # ibsim has written its own numbers into the upper half.
            datagram.mad[TID.start : TID.start + 4] = TID_HIGH.to_bytes(4, "big")
        self.manager.deliver(datagram, _now())

    def _send(self, datagram: Datagram) -> None:
        mad = bytearray(datagram.mad)
        if not mad[METHOD] & RESPONSE:
            mad[TID.start : TID.start + 4] = bytes(4)
        slid = 0xFFFF if datagram.dlid == 0xFFFF else 0
        message = REQUEST.pack(
            datagram.dlid.to_bytes(2, "big"),
            slid.to_bytes(2, "big"),
            datagram.dqp.to_bytes(4, "big"),
            datagram.sqp.to_bytes(4, "big"),
            bytes(4),
            int.from_bytes(MAD_SIZE.to_bytes(8, "little"), "big"),
            bytes(mad),
        )
        try:
            self._data.settimeout(TIMEOUT)
            self._data.send(message)
        except OSError as error:
            raise LinkError("ibsim", f"it takes no packets: {error.strerror or error}") from None


def _now() -> Time:
    return time.monotonic_ns() * 1000
