"""What the kernel's ib_umad does for a program: agents, transactions, timeouts, RMPP.

A program opens a port, registers agents for management classes, and writes and reads MADs with a
header of 64 bytes (`struct ib_user_mad`, Linux include/uapi/rdma/ib_user_mad.h; the rules:
drivers/infiniband/core/user_mad.c, mad.c, mad_rmpp.c). Here a `UmadFile` is one open file.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from itertools import count

from ibwire.base.units import MS, Time
from ibwire.fabric.infiniband.subnet import IS_SM, Port
from ibwire.sm import rmpp
from ibwire.sm.direct import Stream
from ibwire.sm.mads import METHOD, MGMT_CLASS, PERMISSIVE, RESPONSE, TID, Datagram
from ibwire.sm.management import Management
from ibwire_layers.mad import MAD_SIZE, VENDOR_RANGE_2, Method, MgmtClass, RMPPType

HEADER = struct.Struct("<IIIII4s4s2sBBBBBB16s4sH6x")
"""struct ib_user_mad up to the MAD, with the P_Key index: agent, status, timeout_ms, retries,
length, QPN, Q_Key, LID, SL, path bits, GRH present, GID index, hop limit, traffic class, GID, flow
label, P_Key index. QPN, Q_Key, LID, GID and flow label are in network order."""

_FIRST, _REST, _LAST = struct.Struct("<IIIII"), struct.Struct(">IIHBB24x"), struct.Struct("<H6x")
"""The same for a message to a program, whose fields from the path bits to the P_Key index are all
0."""

WORD = 4
"""Bytes of the number before each message of a stream: its length, and in the uppermost of them its
kind, 0 for a MAD (`ibwire/link/umad_shim.c`)."""
ONE_MAD = HEADER.size + MAD_SIZE
"""Bytes of a message with one MAD."""
_WORD = ONE_MAD.to_bytes(WORD, "little")

MAXIMUM_AGENTS = 32
MAXIMUM_WAITING = 100_000
"""Messages that a file keeps for a program that does not read; later ones are dropped."""
MAXIMUM_LONG_BYTES = 64 << 20
"""Bytes of the messages longer than a MAD among them, after which no more are kept."""
MAXIMUM_MESSAGE = 64 << 20
MAXIMUM_REQUESTS = 10_000
"""Requests of a file that wait for a response; opensm has 1000."""
_SPARE_DUES = 1000
_MOST_SEGMENTS = MAXIMUM_LONG_BYTES // 200
"""Segments that a file keeps of messages that are not whole yet."""
ETIMEDOUT, EINVAL, EBUSY, ENOMEM = 110, 22, 16, 12
DIRECTED_LID = 0xFFFF

_TRAP_REPRESS, _DIRECTED_ROUTE = int(Method.TRAP_REPRESS), int(MgmtClass.SUBN_DIRECTED_ROUTE)
_hi_tids = count(1)


@dataclass(slots=True)
class Agent:
    """A class that a program answers for, or asks questions of.

    methods: bits of the methods of unsolicited MADs it wants. hi_tid: upper half of the
    transaction ids of its requests.
    """

    number: int
    qpn: int
    mgmt_class: int
    version: int
    methods: int
    oui: int
    is_rmpp: bool
    hi_tid: int = field(default_factory=lambda: next(_hi_tids))


@dataclass(slots=True)
class _Request:
    """A MAD that an answer is awaited for."""

    agent: Agent
    header: bytes
    mad: bytes
    due: Time
    wait: Time
    retries: int


class Door:
    """The programs at one port: their open files."""

    def __init__(self, management: Management, port: Port) -> None:
        self.management = management
        self.port = port
        self.files: list[UmadFile] = []
        self.sm_files = 0
        """Open issm files: at most one."""
        self._others = management.programs.get(port)
        """Programs there that use another protocol."""
        management.programs[port] = self

    def open(self, on_message: Callable[[], None]) -> UmadFile:
        """Open the port; `on_message` is called when there is something to read."""
        file = UmadFile(self, on_message)
        self.files.append(file)
        return file

    def open_sm(self) -> bool:
        """Open issm: a subnet manager runs here. `False` if one does already, also one of ours."""
        if self.sm_files or self.port in self.management.managers:
            return False
        self.sm_files = 1
        self.port.capability_mask |= IS_SM
        self.management.traps.capabilities_changed(self.port)
        return True

    def close_sm(self) -> None:
        """Close issm."""
        if not self.sm_files:
            return
        self.sm_files = 0
        self.port.capability_mask &= ~IS_SM
        self.management.traps.capabilities_changed(self.port)

    def deliver(self, datagram: Datagram, now: Time) -> bool:
        """Hand a MAD to the file whose agent waits for it, or to the other programs."""
        if self._deliver(datagram, now):
            return True
        return self._others is not None and self._others.deliver(datagram, now)

    def poll_timeout(self) -> Time | None:
        """When `handle_timeout` is due."""
        return min(
            (due for file in self.files if (due := file.poll_timeout()) is not None), default=None
        )

    def handle_timeout(self, now: Time) -> None:
        """Repeat requests and give up what is too old."""
        for file in self.files:
            file.handle_timeout(now)

    def _deliver(self, datagram: Datagram, now: Time) -> bool:
        if datagram.is_response:
            hi_tid = int.from_bytes(datagram.mad[8:12], "big")
            for file in self.files:
                for agent in file.agents.values():
                    if agent.hi_tid == hi_tid:
                        file.receive(agent, datagram, now)
                        return True
            return False
        for file in self.files:
            for agent in file.agents.values():
                if _wants(agent, datagram.mad):
                    file.receive(agent, datagram, now)
                    return True
        return False


class UmadFile:
    """An open umad file."""

    def __init__(self, door: Door, on_message: Callable[[], None]) -> None:
        self.door = door
        self.agents: dict[int, Agent] = {}
        self.waiting: deque[bytes] = deque()
        """Messages to read: header and MAD."""
        self.long_bytes = 0
        """Of the messages longer than a MAD that wait, or that the program has not fetched yet."""
        self.dropped = 0
        self._on_message = on_message
        self._stream = Stream(door.management.direct, door.port, WORD + HEADER.size, self._plainly)
        self._requests: dict[tuple[bytes, int], _Request] = {}
        self._dues: list[tuple[Time, int, tuple[bytes, int]]] = []
        """A heap of when requests are due, also of those that have their answer."""
        self._number = count().__next__
        self._sending: dict[tuple[bytes, int], tuple[rmpp.Sending, bytes, Agent]] = {}
        self._receiving: dict[tuple[bytes, int, int], tuple[rmpp.Receiving, Agent]] = {}
        self._segments = 0
        """Of the messages that are not whole yet."""

    def register(self, agent: Agent) -> int:
        """Take an agent; 0 or an error number."""
        if not 0 <= agent.number < MAXIMUM_AGENTS or agent.number in self.agents:
            return EINVAL
        if agent.qpn not in (0, 1):
            return EINVAL
        self.agents[agent.number] = agent
        self._stream.forget()
        return 0

    def unregister(self, number: int) -> None:
        """Forget an agent and what it waits for."""
        agent = self.agents.pop(number, None)
        if agent is None:
            return
        self._stream.forget()
        self._requests = {
            key: request for key, request in self._requests.items() if request.agent is not agent
        }
        self._sending = {key: each for key, each in self._sending.items() if each[2] is not agent}
        for place in [key for key, each in self._receiving.items() if each[1] is agent]:
            self._forget(place)

    def close(self) -> None:
        """The program has closed the file, or has ended."""
        if self in self.door.files:
            self.door.files.remove(self)
        self.agents.clear()
        self._stream.forget()
        self._requests.clear()
        self._sending.clear()
        self._receiving.clear()

    def answer(self, data: bytes) -> tuple[int, bytes]:
        """The responses to what a program writes, as far as agents answer it at once.

        data: messages of `ONE_MAD` bytes, with a word before each; so are the responses. Their
        number comes first. The rest is for `write`: with it nothing has happened.
        """
        door = self.door
        if not door.management.answers_at_once(door.port):
            return 0, b""
        return self._stream.answer(data, self._requests)

    def put(self, message: bytes) -> None:
        """Keep a message until the program reads it."""
        if len(self.waiting) == MAXIMUM_WAITING:
            self.dropped += 1
            self.fetched(len(message))
            return
        self.waiting.append(message)
        self._on_message()

    def write(self, message: bytes, now: Time) -> int:
        """Send what a program writes; 0 or an error number."""
        if len(message) < HEADER.size + 36 or len(message) > MAXIMUM_MESSAGE:
            return EINVAL
        header, mad = message[: HEADER.size], bytearray(message[HEADER.size :])
        number, _, timeout_ms, retries, *_ = HEADER.unpack(header)
        agent = self.agents.get(number)
        if agent is None:
            return EINVAL
        is_rmpp = agent.is_rmpp and rmpp.uses(mad[MGMT_CLASS]) and rmpp.is_active(mad)
        if len(mad) > MAD_SIZE and not is_rmpp:
            return EINVAL
        if not is_rmpp:
            mad = mad.ljust(MAD_SIZE, b"\0")
        is_request = not mad[METHOD] & RESPONSE and mad[METHOD] != _TRAP_REPRESS
        if is_request:
            mad[8:12] = agent.hi_tid.to_bytes(4, "big")
        key = bytes(mad[TID]), mad[MGMT_CLASS]
        if is_rmpp:
            unacknowledged = sum(len(each.message) for each, _, _ in self._sending.values())
            if unacknowledged + len(mad) > MAXIMUM_LONG_BYTES:
                return ENOMEM
        if is_request and timeout_ms:
            if key in self._requests:
                return EINVAL
            if len(self._requests) >= MAXIMUM_REQUESTS:
                return ENOMEM
            wait = timeout_ms * MS
            request = _Request(
                agent, header, bytes(mad), due=now + wait, wait=wait, retries=min(retries, 1000)
            )
            self._requests[key] = request
            self._wait_until(request.due, key)
        if is_rmpp:
            sending = rmpp.Sending(bytes(mad), now)
            self._sending[key] = (sending, header, agent)
            for segment in sending.take(now):
                self._send(segment, header, agent)
        else:
            self._send(mad, header, agent)
        return 0

    def refuse(self, message: bytes, error: int) -> None:
        """Give a program its request back, with the error of `write` as its status.

        It has written into a socket, which does not fail; without this it would wait for ever.
        """
        if len(message) < HEADER.size + 24:
            return
        number, _, timeout_ms, *_ = HEADER.unpack(message[: HEADER.size])
        is_answer = message[HEADER.size + METHOD] & RESPONSE
        if number in self.agents and timeout_ms and not is_answer:
            self._return(message[: HEADER.size], message[HEADER.size :], error)

    def receive(self, agent: Agent, datagram: Datagram, now: Time) -> None:
        """Take a MAD for one of the agents."""
        mad = datagram.mad
        key = bytes(mad[TID]), mad[MGMT_CLASS]
        if agent.is_rmpp and rmpp.uses(mad[MGMT_CLASS]) and rmpp.is_active(mad):
            kind = mad[rmpp.TYPE_AT]
            if kind == RMPPType.DATA:
                self._segment(agent, datagram, now)
                return
            if kind in (RMPPType.ACK, RMPPType.STOP, RMPPType.ABORT):
                self._acknowledged(key, datagram, now)
                return
        if datagram.is_response and self._requests.pop(key, None) is None:
            return
        self._give(agent, datagram, bytes(mad))

    def take(self) -> bytes | None:
        """The next message for the program."""
        if not self.waiting:
            return None
        message = self.waiting.popleft()
        self.fetched(len(message))
        return message

    def fetched(self, length: int) -> None:
        """The program has a message of this length."""
        if length > HEADER.size + MAD_SIZE:
            self.long_bytes -= length

    def poll_timeout(self) -> Time | None:
        """When `handle_timeout` is due."""
        dues = self._dues
        while dues and not self._is_due_at(dues[0]):
            heappop(dues)
        found = [dues[0][0]] if dues else []
        found += [sending.due for sending, _, _ in self._sending.values()]
        found += [receiving.due for receiving, _ in self._receiving.values()]
        return min(found, default=None)

    def handle_timeout(self, now: Time) -> None:
        """Repeat requests without a response, until they are given up."""
        dues = self._dues
        while dues and dues[0][0] <= now:
            place = heappop(dues)
            if not self._is_due_at(place):
                continue
            key = place[2]
            request = self._requests[key]
            if request.retries:
                request.retries -= 1
                request.due = now + request.wait
                self._wait_until(request.due, key)
                self._send(bytearray(request.mad), request.header, request.agent)
                continue
            del self._requests[key]
            self._return(request.header, request.mad, ETIMEDOUT)
        for key, (sending, header, agent) in list(self._sending.items()):
            if sending.due > now:
                continue
            if not sending.repeat():
                del self._sending[key]
                continue
            for segment in sending.take(now):
                self._send(segment, header, agent)
        for message, (receiving, _) in list(self._receiving.items()):
            if receiving.due <= now:
                self._forget(message)

    def _wait_until(self, due: Time, key: tuple[bytes, int]) -> None:
        if len(self._dues) > _SPARE_DUES + 2 * len(self._requests):
            self._dues = [place for place in self._dues if self._is_due_at(place)]
            heapify(self._dues)
        heappush(self._dues, (due, self._number(), key))

    def _is_due_at(self, place: tuple[Time, int, tuple[bytes, int]]) -> bool:
        """Whether a request still waits for its answer, and is due then."""
        request = self._requests.get(place[2])
        return request is not None and request.due == place[0]

    def _plainly(self, before: bytes) -> tuple[bytes, bytes] | None:
        """What is before a response to a directed-route SMP, and the upper half of its TID."""
        if before[:WORD] != _WORD:
            return None
        number, _, timeout_ms, _, _, qpn, qkey, lid, sl, *_ = HEADER.unpack(before[WORD:])
        agent = self.agents.get(number)
        if agent is None or agent.qpn or any(qpn) or lid != PERMISSIVE or not timeout_ms:
            return None
        first = _FIRST.pack(number, 0, 0, 0, ONE_MAD)
        rest = _REST.pack(0, int.from_bytes(qkey, "big"), DIRECTED_LID, sl & 0xF, 0)
        return _WORD + first + rest + _LAST.pack(0), agent.hi_tid.to_bytes(4, "big")

    def _segment(self, agent: Agent, datagram: Datagram, now: Time) -> None:
        mad = datagram.mad
        place = bytes(mad[TID]), mad[MGMT_CLASS], datagram.slid
        if place not in self._receiving:
            while len(self._receiving) >= rmpp.MOST_RECEIVING:
                self._forget(next(iter(self._receiving)))
            self._receiving[place] = (rmpp.Receiving(now), agent)
        receiving = self._receiving[place][0]
        if self._segments >= _MOST_SEGMENTS:
            return
        kept = len(receiving.data)
        whole, ack = receiving.receive(mad)
        self._segments += len(receiving.data) - kept
        if ack is not None:
            answer = Datagram(
                ack,
                slid=datagram.dlid,
                dlid=datagram.slid,
                sqp=datagram.dqp,
                dqp=datagram.sqp,
                sl=datagram.sl,
                qkey=datagram.qkey,
                pkey=datagram.pkey,
            )
            self.door.management.send(answer, self.door.port)
        if whole is None:
            return
        receiving.due = now + rmpp.DONE_TIMEOUT
        if datagram.is_response:
            self._requests.pop(place[:2], None)
        self._give(agent, datagram, whole)

    def _forget(self, place: tuple[bytes, int, int]) -> None:
        self._segments -= len(self._receiving.pop(place)[0].data)

    def _acknowledged(self, key: tuple[bytes, int], datagram: Datagram, now: Time) -> None:
        found = self._sending.get(key)
        if found is None:
            return
        sending, header, agent = found
        if datagram.mad[rmpp.TYPE_AT] != RMPPType.ACK:
            del self._sending[key]
            return
        sending.acknowledge(datagram.mad)
        if sending.is_done:
            del self._sending[key]
            return
        for segment in sending.take(now):
            self._send(segment, header, agent)

    def _send(self, mad: bytearray, header: bytes, agent: Agent) -> None:
        fields = HEADER.unpack(header)
        qpn, qkey, lid, sl = fields[5], fields[6], fields[7], fields[8]
        port = self.door.port
        pkey = port.pkey_at(fields[-1]) or port.pkey_at(0)
        dlid = int.from_bytes(lid, "big")
        is_permissive = dlid == DIRECTED_LID and mad[MGMT_CLASS] == _DIRECTED_ROUTE
        datagram = Datagram(
            mad,
            slid=DIRECTED_LID if is_permissive else port.lid | fields[9],
            dlid=dlid,
            sqp=agent.qpn,
            # A packet has no room for the other bits.
            dqp=int.from_bytes(qpn, "big") & 0xFF_FFFF,
            sl=sl & 0xF,
            qkey=int.from_bytes(qkey, "big"),
            pkey=pkey if agent.qpn else 0xFFFF,
        )
        self.door.management.send(datagram, port)

    def _give(self, agent: Agent, datagram: Datagram, mad: bytes) -> None:
        if len(mad) > MAD_SIZE:
            if self.long_bytes >= MAXIMUM_LONG_BYTES:
                self.dropped += 1
                return
            self.long_bytes += HEADER.size + len(mad)
        first = _FIRST.pack(agent.number, 0, 0, 0, HEADER.size + len(mad))
        bits = 0 if datagram.dlid == DIRECTED_LID else self._path_bits(datagram.dlid)
        rest = _REST.pack(datagram.sqp, datagram.qkey, datagram.slid, datagram.sl, bits)
        index = self.door.port.pkey_index(datagram.pkey) if datagram.dqp else 0
        self.put(first + rest + _LAST.pack(index) + mad)

    def _path_bits(self, dlid: int) -> int:
        port = self.door.port
        return dlid - port.lid if port.has_lid(dlid) else 0

    def _return(self, header: bytes, mad: bytes, status: int) -> None:
        fields = list(HEADER.unpack(header))
        fields[1], fields[4] = status, HEADER.size + 24
        self.put(HEADER.pack(*fields) + mad[:24])


def _wants(agent: Agent, mad: bytes | bytearray) -> bool:
    """Whether an agent takes a MAD that answers nothing."""
    mgmt_class = mad[MGMT_CLASS]
    if agent.mgmt_class != mgmt_class or agent.version != mad[2]:
        return False
    if mgmt_class in VENDOR_RANGE_2 and int.from_bytes(mad[37:40], "big") != agent.oui:
        return False
    return bool(agent.methods >> (mad[METHOD] & 0x7F) & 1)
