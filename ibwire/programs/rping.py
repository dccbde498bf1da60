"""The protocol of rping over an existing connection.

        client                              server
        SEND  address, R_Key, size of source
                                            READ   the source: the ping
                                            SEND   go ahead
        SEND  address, R_Key, size of sink
                                            WRITE  the ping into the sink
                                            SEND   go ahead
        compares sink and source, and repeats

Each side acts on completions only, so it runs on any kind of link.

Source: rdma-core `librdmacm/examples/rping.c`; cm-rping.
"""

from __future__ import annotations

import struct
from abc import abstractmethod
from collections.abc import Callable
from enum import Enum, auto
from typing import NamedTuple

from ibwire.base.closing import Closing
from ibwire.base.errors import PeerError
from ibwire.base.units import Time
from ibwire.peer import create_queue_pair
from ibwire.programs.failures import cause, first_status
from ibwire.rc.attributes import QPCap
from ibwire.rc.device import Device
from ibwire.rc.memory import Access, MemoryRegion
from ibwire.rc.qp import QueuePair
from ibwire.rc.work import SGE, RecvWR, SendFlags, SendWR, WCOpcode, WCStatus, WROpcode

PORT = 7174

SMALLEST = 26
"""Smallest size of a ping: room for its text with the largest number (RPING_MIN_BUFSIZE)."""

LARGEST = 65535
"""Largest size of a ping (RPING_BUFSIZE - 1)."""

DEFAULT_SIZE = 64


class Advert(NamedTuple):
    """Memory that the peer may read or write; also the message "go ahead", without meaning."""

    address: int = 0
    rkey: int = 0
    size: int = 0

    def pack(self) -> bytes:
        """Encode as `struct rping_rdma_info`."""
        return _ADVERT.pack(*self)

    @classmethod
    def unpack(cls, data: bytes) -> Advert:
        """Decode a message of `ADVERT_SIZE` bytes."""
        return cls(*_ADVERT.unpack(data))


_ADVERT = struct.Struct(">QII")

ADVERT_SIZE = _ADVERT.size


def ping_data(number: int, size: int) -> bytes:
    """The data of ping `number`, from 0: a text that ends with a zero byte.

    After the number come the characters from A to z; each ping starts one character later.
    """
    text = f"rdma-ping-{number}: ".encode()
    begin = number % len(_CHARACTERS)
    missing = max(size - len(text), 0)
    pattern = _CHARACTERS[begin:] + _CHARACTERS * (missing // len(_CHARACTERS) + 1)
    return (text + pattern[:missing])[: size - 1] + b"\0" if size else b""


_CHARACTERS = bytes(range(ord("A"), ord("z") + 1))


class Side(Closing):
    """The common part of client and server: a queue pair and its messages.

    peer: name of the other side in errors. validate: raise `PeerError` for wrong contents.
    on_data: called with the data of each ping.
    """

    def __init__(
        self, device: Device, peer: str, *, validate: bool, on_data: Callable[[bytes], None]
    ) -> None:
        self.peer = peer
        self.validate = validate
        self.on_data = on_data
        self.pings = 0
        """Completed pings."""
        self.completed = 0
        """Completed work requests; while they increase the peer is alive."""
        cap = QPCap(_DEPTH // 2, _DEPTH // 2, 1, 1, ADVERT_SIZE)
        self._cq = device.create_cq(_DEPTH)
        self.qp = create_queue_pair(device, cq=self._cq, cap=cap)
        self._pd = self.qp.pd
        self._regions: list[MemoryRegion] = []
        self._message = self._register(ADVERT_SIZE, Access.LOCAL_WRITE)

    def listen(self) -> None:
        """Post a receive for the next message."""
        region = self._message
        self.qp.post_recv(RecvWR([SGE(region.iova, ADVERT_SIZE, region.lkey)]))

    def step(self, now: Time) -> None:
        """Handle completions.

        Raises `PeerError` when the connection has failed, and for an invalid message.
        """
        for wc in self._cq.poll(_DEPTH):
            if wc.status is not WCStatus.SUCCESS:
                status = first_status(self.qp, wc.status)
                raise PeerError(f"{self.peer}: {_failure(self.qp, status)} ({status.name})")
            self.completed += 1
            if wc.opcode is not WCOpcode.RECV:
                self._handle_done(wc.opcode, now)
                continue
            if wc.byte_len != ADVERT_SIZE:
                raise PeerError(
                    f"{self.peer} has sent a message of {wc.byte_len} bytes, expected {ADVERT_SIZE}"
                )
            message = Advert.unpack(self._message.read(self._message.iova, ADVERT_SIZE))
            self.listen()
            self._handle_message(message, now)

    def close(self) -> None:
        """Release all resources."""
        self.qp.close()
        for region in self._regions:
            region.deregister()
        self._cq.close()
        self._pd.close()

    @abstractmethod
    def _handle_message(self, message: Advert, now: Time) -> None:
        """Handle a message of the peer."""

    def _handle_done(self, opcode: WCOpcode, now: Time) -> None:
        """Handle a completion of the send queue; SENDs need nothing."""

    def _register(self, size: int, access: Access) -> MemoryRegion:
        region = self._pd.register(size, int(access))
        self._regions.append(region)
        return region

    def _send(self, message: Advert) -> None:
        flags = SendFlags.SIGNALED | SendFlags.INLINE
        self.qp.post_send(SendWR(send_flags=flags, inline_data=message.pack()))


class Client(Side):
    """The client: `count` pings of `size` bytes, 0 for endless."""

    def __init__(
        self,
        device: Device,
        peer: str,
        *,
        size: int = DEFAULT_SIZE,
        count: int = 0,
        validate: bool = True,
        on_data: Callable[[bytes], None] = lambda data: None,
    ) -> None:
        super().__init__(device, peer, validate=validate, on_data=on_data)
        self.size = size
        self.count = count
        self.shortest: Time = 0
        """Shortest latency of all completed pings."""
        self.longest: Time = 0
        self.total: Time = 0
        self._source = self._register(size, Access.REMOTE_READ)
        self._sink = self._register(size, Access.LOCAL_WRITE | Access.REMOTE_WRITE)
        self._data = b""
        self._begun: Time = 0
        self._is_read = False
        """Whether the server has read the data of this ping."""

    @property
    def is_done(self) -> bool:
        """Whether all pings are complete."""
        return self.pings == self.count != 0

    def start(self, now: Time) -> None:
        """Start the next ping."""
        self._begun = now
        self._is_read = False
        self._data = ping_data(self.pings, self.size)
        self._source.buffer[:] = self._data
        self._offer(self._source)

    def _handle_message(self, message: Advert, now: Time) -> None:
        """The server allows the next step; its message has no other meaning."""
        if self.is_done:
            raise PeerError(f"{self.peer} has sent a message after the last ping")
        if not self._is_read:
            self._is_read = True
            self._offer(self._sink)
            return
        pong = self._sink.read(self._sink.iova, self.size)
        if self.validate and pong != self._data:
            raise PeerError(f"{self.peer}: ping {self.pings} returned with wrong contents")
        self.on_data(pong)
        took = now - self._begun
        self.shortest = min(self.shortest, took) if self.pings else took
        self.longest = max(self.longest, took)
        self.total += took
        self.pings += 1
        if not self.is_done:
            self.start(now)

    def _offer(self, region: MemoryRegion) -> None:
        self._send(Advert(region.iova, region.rkey, self.size))


class ServerState(Enum):
    """What a server waits for."""

    SOURCE = auto()
    """The next ping."""
    READ = auto()
    SINK = auto()
    WRITE = auto()


class Server(Side):
    """The server. limit: bytes of the largest ping that it accepts."""

    def __init__(
        self,
        device: Device,
        peer: str,
        *,
        limit: int = LARGEST,
        validate: bool = True,
        on_data: Callable[[bytes], None] = lambda data: None,
    ) -> None:
        super().__init__(device, peer, validate=validate, on_data=on_data)
        self.state = ServerState.SOURCE
        self.size = 0
        """Bytes of the current ping."""
        self._limit = limit
        self._buffer = self._register(limit, Access.LOCAL_WRITE)

    def _handle_message(self, message: Advert, now: Time) -> None:
        if self.state is ServerState.SOURCE:
            if message.size > self._limit:
                raise PeerError(
                    f"{self.peer} has a ping of {message.size} bytes; the limit is {self._limit}"
                )
            self.size = message.size
            self._post(WROpcode.RDMA_READ, message, self.size)
            self.state = ServerState.READ
        elif self.state is ServerState.SINK:
            # Only up to the zero byte, because the C server handles strings.
            size = self._data.find(b"\0") + 1 or self.size
            self._post(WROpcode.RDMA_WRITE, message, size)
            self.state = ServerState.WRITE
        else:
            raise PeerError(f"{self.peer} has sent an unexpected message")

    def _handle_done(self, opcode: WCOpcode, now: Time) -> None:
        if opcode is WCOpcode.RDMA_READ:
            data = self._data
            if self.validate and data != ping_data(self.pings, self.size):
                raise PeerError(f"{self.peer}: ping {self.pings} arrived with wrong contents")
            self.on_data(data)
            self.state = ServerState.SINK
        elif opcode is WCOpcode.RDMA_WRITE:
            self.pings += 1
            self.state = ServerState.SOURCE
        else:
            return
        self._send(Advert())

    @property
    def _data(self) -> bytes:
        return self._buffer.read(self._buffer.iova, self.size)

    def _post(self, opcode: WROpcode, place: Advert, size: int) -> None:
        self.qp.post_send(
            SendWR(
                opcode,
                [SGE(self._buffer.iova, size, self._buffer.lkey)],
                SendFlags.SIGNALED,
                remote_addr=place.address,
                rkey=place.rkey,
            )
        )


def _failure(qp: QueuePair, status: WCStatus) -> str:
    """Why a connection has failed, as text."""
    return _FAILURES.get(status) or cause(qp, status)


_FAILURES = {
    WCStatus.RETRY_EXC_ERR: "no longer acknowledges",
    WCStatus.RNR_RETRY_EXC_ERR: "no longer posts receives",
    WCStatus.REM_ACCESS_ERR: "the memory that it has offered is not accessible",
    WCStatus.WR_FLUSH_ERR: "has sent an invalid request, which has ended the connection",
}

_DEPTH = 32
"""Entries of the completion queue: rping has 16 requests per queue (RPING_SQ_DEPTH)."""
