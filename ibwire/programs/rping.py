"""What rping's two sides say to each other over a connection that somebody else has made.

        client                              server
        SEND  address, key, size of source
                                            READ   the source: the ping
                                            SEND   go ahead
        SEND  address, key, size of sink
                                            WRITE  the ping into the sink
                                            SEND   go ahead
        compares sink and source, and begins again

Each side acts when something completes, so that it runs over whatever moves frames.

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
from ibwire.rc.attributes import QPCap, QPType
from ibwire.rc.device import Device
from ibwire.rc.memory import Access, MemoryRegion
from ibwire.rc.qp import QPInit
from ibwire.rc.work import SGE, RecvWR, SendFlags, SendWR, WCOpcode, WCStatus, WROpcode

PORT = 7174

SMALLEST = 26
"""Bytes of a ping: room for its text with the largest number (RPING_MIN_BUFSIZE)."""

LARGEST = 65535
"""Bytes of a ping (RPING_BUFSIZE - 1)."""

DEFAULT_SIZE = 64


class Advert(NamedTuple):
    """Memory that the peer may read or write; also what says "go ahead", where nothing counts."""

    address: int = 0
    rkey: int = 0
    size: int = 0

    def pack(self) -> bytes:
        """As in a message (`struct rping_rdma_info`)."""
        return _ADVERT.pack(*self)

    @classmethod
    def unpack(cls, data: bytes) -> Advert:
        """From a message of `ADVERT_SIZE` bytes."""
        return cls(*_ADVERT.unpack(data))


_ADVERT = struct.Struct(">QII")

ADVERT_SIZE = _ADVERT.size


def ping_data(number: int, size: int) -> bytes:
    """The data of a ping, which are numbered from 0: a text that ends with a zero byte.

    Behind the number come the characters from A to z; each ping begins one later.
    """
    text = f"rdma-ping-{number}: ".encode()
    begin = number % len(_CHARACTERS)
    missing = max(size - len(text), 0)
    pattern = _CHARACTERS[begin:] + _CHARACTERS * (missing // len(_CHARACTERS) + 1)
    return (text + pattern[:missing])[: size - 1] + b"\0" if size else b""


_CHARACTERS = bytes(range(ord("A"), ord("z") + 1))


class Side(Closing):
    """What both sides have: a queue pair, and the messages that it brings.

    peer: what errors call the other side. validate: raise `PeerError` for wrong contents.
    tell: called with the data of each ping.
    """

    def __init__(
        self, device: Device, peer: str, *, validate: bool, tell: Callable[[bytes], None]
    ) -> None:
        self.peer = peer
        self.validate = validate
        self.tell = tell
        self.pings = 0
        """Those that are complete."""
        self.completed = 0
        """Work requests; as long as they grow in number the peer is there."""
        self._pd = device.alloc_pd()
        self._cq = device.create_cq(_DEPTH)
        cap = QPCap(_DEPTH // 2, _DEPTH // 2, 1, 1, ADVERT_SIZE)
        self.qp = device.create_qp(QPInit(QPType.RC, self._pd, self._cq, self._cq, cap=cap))
        self._regions: list[MemoryRegion] = []
        self._message = self._register(ADVERT_SIZE, Access.LOCAL_WRITE)

    def listen(self) -> None:
        """Be ready for a message, as soon as the queue pair is up."""
        region = self._message
        self.qp.post_recv(RecvWR([SGE(region.iova, ADVERT_SIZE, region.lkey)]))

    def step(self, now: Time) -> None:
        """Act on what has completed.

        Raises `PeerError` when the connection has failed, and for what no rping says.
        """
        for wc in self._cq.poll(_DEPTH):
            if wc.status is not WCStatus.SUCCESS:
                raise PeerError(f"{self.peer}: {_failure(wc.status)} ({wc.status.name})")
            self.completed += 1
            if wc.opcode is not WCOpcode.RECV:
                self._handle_done(wc.opcode, now)
                continue
            if wc.byte_len != ADVERT_SIZE:
                raise PeerError(
                    f"{self.peer} has sent {wc.byte_len} bytes: messages of rping "
                    f"have {ADVERT_SIZE}"
                )
            message = Advert.unpack(self._message.read(self._message.iova, ADVERT_SIZE))
            self.listen()
            self._handle_message(message, now)

    def close(self) -> None:
        """Give everything back."""
        self.qp.close()
        for region in self._regions:
            region.deregister()
        self._cq.close()
        self._pd.close()

    @abstractmethod
    def _handle_message(self, message: Advert, now: Time) -> None:
        """The peer has sent something."""

    def _handle_done(self, opcode: WCOpcode, now: Time) -> None:
        """A work request of the send queue is done; SENDs need nothing more."""

    def _register(self, size: int, access: Access) -> MemoryRegion:
        region = self._pd.register(size, int(access))
        self._regions.append(region)
        return region

    def _send(self, message: Advert) -> None:
        flags = SendFlags.SIGNALED | SendFlags.INLINE
        self.qp.post_send(SendWR(send_flags=flags, inline_data=message.pack()))


class Client(Side):
    """The side that asks: `count` pings of `size` bytes, or without end for 0."""

    def __init__(
        self,
        device: Device,
        peer: str,
        *,
        size: int = DEFAULT_SIZE,
        count: int = 0,
        validate: bool = True,
        tell: Callable[[bytes], None] = lambda data: None,
    ) -> None:
        super().__init__(device, peer, validate=validate, tell=tell)
        self.size = size
        self.count = count
        self.shortest: Time = 0
        """Of all complete pings, as the two that follow."""
        self.longest: Time = 0
        self.total: Time = 0
        self._source = self._register(size, Access.REMOTE_READ)
        self._sink = self._register(size, Access.LOCAL_WRITE | Access.REMOTE_WRITE)
        self._data = b""
        self._begun: Time = 0
        self._is_read = False
        """Whether the server has the data of this ping."""

    @property
    def is_done(self) -> bool:
        """Whether all pings are complete."""
        return self.pings == self.count != 0

    def start(self, now: Time) -> None:
        """Begin the next ping."""
        self._begun = now
        self._is_read = False
        self._data = ping_data(self.pings, self.size)
        self._source.buffer[:] = self._data
        self._offer(self._source)

    def _handle_message(self, message: Advert, now: Time) -> None:
        """The server has gone on; it says no more than that."""
        if self.is_done:
            raise PeerError(f"{self.peer} has sent a message after the last ping")
        if not self._is_read:
            self._is_read = True
            self._offer(self._sink)
            return
        pong = self._sink.read(self._sink.iova, self.size)
        if self.validate and pong != self._data:
            raise PeerError(f"{self.peer}: ping {self.pings} has come back with other contents")
        self.tell(pong)
        took = now - self._begun
        self.shortest = min(self.shortest, took) if self.pings else took
        self.longest = max(self.longest, took)
        self.total += took
        self.pings += 1
        if not self.is_done:
            self.start(now)

    def _offer(self, region: MemoryRegion) -> None:
        self._send(Advert(region.iova, region.rkey, self.size))


class Turn(Enum):
    """What a server waits for."""

    SOURCE = auto()
    """The next ping."""
    READ = auto()
    SINK = auto()
    WRITE = auto()


class Server(Side):
    """The side that answers. limit: bytes of the largest ping that it takes."""

    def __init__(
        self,
        device: Device,
        peer: str,
        *,
        limit: int = LARGEST,
        validate: bool = True,
        tell: Callable[[bytes], None] = lambda data: None,
    ) -> None:
        super().__init__(device, peer, validate=validate, tell=tell)
        self.turn = Turn.SOURCE
        self.size = 0
        """Bytes of the newest ping."""
        self._limit = limit
        self._buffer = self._register(limit, Access.LOCAL_WRITE)

    def _handle_message(self, message: Advert, now: Time) -> None:
        if self.turn is Turn.SOURCE:
            if message.size > self._limit:
                raise PeerError(
                    f"{self.peer} has a ping of {message.size} bytes: at most {self._limit} fit"
                )
            self.size = message.size
            self._post(WROpcode.RDMA_READ, message, self.size)
            self.turn = Turn.READ
        elif self.turn is Turn.SINK:
            # As much as the text has, for a server in C handles strings.
            size = self._data.find(b"\0") + 1 or self.size
            self._post(WROpcode.RDMA_WRITE, message, size)
            self.turn = Turn.WRITE
        else:
            raise PeerError(f"{self.peer} has sent a message before it was its turn")

    def _handle_done(self, opcode: WCOpcode, now: Time) -> None:
        if opcode is WCOpcode.RDMA_READ:
            data = self._data
            if self.validate and data != ping_data(self.pings, self.size):
                raise PeerError(f"{self.peer}: ping {self.pings} has arrived with other contents")
            self.tell(data)
            self.turn = Turn.SINK
        elif opcode is WCOpcode.RDMA_WRITE:
            self.pings += 1
            self.turn = Turn.SOURCE
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


def _failure(status: WCStatus) -> str:
    """Why a connection has ended, in words."""
    return _FAILURES.get(status, "the connection has failed")


_FAILURES = {
    WCStatus.RETRY_EXC_ERR: "does not acknowledge any more",
    WCStatus.RNR_RETRY_EXC_ERR: "does not receive any more",
    WCStatus.REM_ACCESS_ERR: "the memory that it has offered cannot be reached",
    WCStatus.WR_FLUSH_ERR: "has asked for what it must not have, and the connection has ended",
}

_DEPTH = 32
"""Completions that fit: rping has 16 requests in each queue (RPING_SQ_DEPTH)."""
