"""The socket by which programs reach an emulated fabric: connections of `umad_shim.c`.

Each open file of a program is one connection: a stream of messages, with a word before each that
says its kind and its length. The server reads what programs write, lets the
fabric deliver it, and hands on what came for them; it never waits for a program. A connection may
also carry commands for the fabric itself, as JSON (`ibwire fabric`).
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import selectors
import shutil
import socket
import struct
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from ibwire.base.errors import EncodeError, IbwireError
from ibwire.base.units import MS, Time
from ibwire.fabric.infiniband.subnet import Port
from ibwire.link.ibsim_server import IbsimServer
from ibwire.link.umad_files import write_host
from ibwire.sm.management import Management
from ibwire.sm.umad import HEADER, Agent, Door, UmadFile
from ibwire_layers.mad import MAD_SIZE

HELLO = struct.Struct("<IIII112s")
MAGIC = 0x69627731
UMAD, ISSM, CONTROL = 1, 2, 3
INLINE, FILED, REGISTER, UNREGISTER = 0, 1, 2, 3
_REGISTRATION = struct.Struct("<IIIIIBBB3sBx")
"""struct ib_user_mad_reg_req: id, method mask, QPN, class, version, OUI, RMPP version."""
_REGISTRATION2 = struct.Struct("<IIBBHIQQIB3x")
"""struct ib_user_mad_reg_req2."""

_PLAIN = HEADER.size + MAD_SIZE
"""Bytes of a message with one MAD."""
_PLAIN_WORD = _PLAIN.to_bytes(4, "little")

WORD = 4
"""Bytes before each message: its length, and in the uppermost of them its kind."""
REQUEST = 44
"""Bytes of a registration."""
LONGEST = 32_000
"""Bytes of a message; longer ones go by a file. The system adds 32 KiB to a stream at once."""
LONGEST_COMMAND = 1 << 16
"""The same of a command for the fabric itself."""
ROUND = 1 << 16
"""Bytes that are read from a connection before the others have their turn."""
MOST_UNSENT = 1 << 20
"""Bytes of answers to commands that nobody reads, before their connection is closed."""
MADS_OF_A_STEP = 1000
"""MADs that are delivered before connections have their turn: a sweep of a manager of our own is
one long exchange."""
QUIET: Time = 20 * MS
"""After the last change of a port before the files of its host are written again."""
SHORTEST_WAIT = 1e-3
"""Seconds."""
MAXIMUM_CONNECTIONS = 1000


class _Connection:
    """An open file of a program."""

    __slots__ = (
        "blocked",
        "door",
        "file",
        "files",
        "kind",
        "name",
        "port",
        "rest",
        "socket",
        "unsent",
    )

    def __init__(self, connected: socket.socket) -> None:
        self.socket = connected
        self.kind = 0
        self.file: UmadFile | None = None
        self.door: Door | None = None
        self.port: Port | None = None
        self.name = ""
        self.blocked = False
        self.rest = b""
        """The beginning of a message whose end has not come yet."""
        self.files: deque[tuple[Path, int]] = deque()
        """Files with long messages, and their lengths, until the program has removed them."""
        self.unsent = b""
        """Bytes that the socket has had no room for."""


class UmadServer:
    """Serves the programs on a fabric.

    management: the fabric. folder: of this fabric alone; the socket and the files of its hosts
    are put there. control: answers a command, a JSON object, with another.
    """

    def __init__(
        self,
        management: Management,
        folder: Path,
        control: Callable[[dict[str, Any]], dict[str, Any]] | None = None,
    ) -> None:
        self.management = management
        if management.times is not None:
            management.times.clock = _now
        self.folder = folder
        self.path = folder / "socket"
        self.programs = 0
        """Connections so far."""
        self.control = control
        self._doors: dict[Port, Door] = {}
        self._written: dict[str, bytes] = {}
        """Hosts whose files exist, with the state of their ports then."""
        self._is_stale: Time | None = None
        self._due: Time | None = 0
        """When a step has something to do without a message, files of hosts aside."""
        self._connections: dict[int, _Connection] = {}
        self._with_messages: set[int] = set()
        self._serial = 0
        self._ibsim: IbsimServer | None = None
        self._stopped = False
        self._selector = selectors.DefaultSelector()
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(str(self.path))
        self._listener.listen(64)
        self._listener.setblocking(False)
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._alarm, self._bell = socket.socketpair()
        self._selector.register(self._alarm, selectors.EVENT_READ)

    def add_ibsim(self, name: str) -> None:
        """Also serve programs with libumad2sim of ibsim, by this name; raises `LinkError`."""
        ibsim = self._ibsim = IbsimServer(self.management, name, _now)
        self._watch(ibsim.control, ibsim.read_control)
        for number, each in enumerate(ibsim.data):
            self._watch(each, partial(ibsim.read_data, number))

    def _watch(self, opened: socket.socket, read: Callable[[], None]) -> None:
        self._selector.register(opened, selectors.EVENT_READ, read)

    def environment(self, host: str) -> dict[str, str]:
        """The variables with which a program runs on a host; makes the files it reads."""
        node = self.management.subnet.node(host)
        if node.is_switch:
            raise EncodeError("host", host, "a channel adapter: programs run there")
        self._write(node.name)
        return {
            "IBWIRE_FABRIC": str(self.path),
            "IBWIRE_HOST": node.name,
            "IBWIRE_ROOT": str(self._root(node.name)),
        }

    def stop(self) -> None:
        """End `run`, also from another thread."""
        self._stopped = True
        self._bell.send(b"!")

    def run(self, until: Callable[[], bool] | None = None) -> None:
        """Serve until `stop`, or until `until` is true after some messages."""
        while not self._stopped and not (until is not None and until()):
            self.step()

    def step(self, longest: float = 1.0) -> None:
        """Wait for messages, at most `longest` seconds, and deal with them."""
        due = min((each for each in (self._due, self._is_stale) if each is not None), default=None)
        found = self._selector.select(_seconds(due, longest))
        answered = 0
        is_plain = bool(found)
        for key, events in found:
            connection = key.data
            if isinstance(connection, _Connection):
                if events & selectors.EVENT_READ:
                    count, is_all = self._read(connection)
                    answered += count
                    is_plain = is_plain and is_all
                if events & selectors.EVENT_WRITE:
                    self._with_messages.add(connection.socket.fileno())
                continue
            is_plain = False
            if key.fileobj is self._listener:
                self._accept()
            elif key.fileobj is self._alarm:
                self._alarm.recv(1)
            else:
                connection()
        now = _now()
        if not is_plain or (due is not None and due <= now):
            if self._due is not None and self._due <= now:
                self._time_out(now)
            self.management.run(now, MADS_OF_A_STEP)
            self._due = self._next_due()
        if answered:
            self._is_stale = now + QUIET
        self._flush()
        if self._is_stale is not None and now >= self._is_stale:
            self._is_stale = None
            for name in list(self._written):
                self._write(name)

    def close(self) -> None:
        """Close all connections and remove the socket."""
        for connection in list(self._connections.values()):
            self._drop(connection)
        self._selector.close()
        if self._ibsim is not None:
            self._ibsim.close()
        for each in (self._listener, self._alarm, self._bell):
            each.close()
        self.path.unlink(missing_ok=True)

    def _next_due(self) -> Time | None:
        """When the next step has something to do without a message."""
        if self.management.is_busy:
            return 0
        dues = [door.poll_timeout() for door in self._doors.values()]
        dues.append(self.management.poll_timeout())
        if self._ibsim is not None:
            dues.append(self._ibsim.poll_timeout())
        return min((due for due in dues if due is not None), default=None)

    def _time_out(self, now: Time) -> None:
        due = self.management.poll_timeout()
        if due is not None and due <= now:
            self.management.handle_timeout(now, MADS_OF_A_STEP)
        if self._ibsim is not None:
            self._ibsim.handle_timeout(now)
        for door in self._doors.values():
            due = door.poll_timeout()
            if due is not None and due <= now:
                door.handle_timeout(now)

    def _accept(self) -> None:
        with contextlib.suppress(BlockingIOError):
            connected, _ = self._listener.accept()
            if len(self._connections) >= MAXIMUM_CONNECTIONS:
                connected.close()
                return
            connected.setblocking(False)
            connection = _Connection(connected)
            self._connections[connected.fileno()] = connection
            self._selector.register(connected, selectors.EVENT_READ, connection)

    def _read(self, connection: _Connection) -> tuple[int, bool]:
        """Take messages: how many agents have answered at once, and whether these were all."""
        try:
            data = connection.socket.recv(ROUND)
        except BlockingIOError:
            return 0, True
        except OSError:
            data = b""
        if not data:
            self._drop(connection)
            return 0, False
        if connection.rest:
            data = connection.rest + data
        file = connection.file
        answered, at, end = 0, 0, len(data)
        if file is not None:
            answer = file.answer
            while data[at : at + WORD] == _PLAIN_WORD and end - at >= WORD + _PLAIN:
                if not answer(data[at + WORD : at + WORD + _PLAIN]):
                    break
                at += WORD + _PLAIN
                answered += 1
            if answered:
                self._with_messages.add(connection.socket.fileno())
        connection.rest = b""
        if at == end:
            return answered, True
        try:
            connection.rest = self._take_all(connection, data[at:])
        except (struct.error, ValueError, OSError):
            # Not one of our own: its other programs are not disturbed.
            self._drop(connection)
        return answered, False

    def _take_all(self, connection: _Connection, data: bytes) -> bytes:
        """Take the whole messages of what has come; the rest."""
        at = 0
        if connection.kind == 0:
            if len(data) < HELLO.size:
                return data
            self._hello(connection, data[: HELLO.size])
            at = HELLO.size
        while len(data) - at >= WORD:
            size, kind = int.from_bytes(data[at : at + WORD - 1], "little"), data[at + WORD - 1]
            if size > (LONGEST_COMMAND if connection.kind == CONTROL else LONGEST):
                raise ValueError("too long")
            if len(data) - at - WORD < size:
                break
            self._take(connection, kind, data[at + WORD : at + WORD + size])
            at += WORD + size
        return data[at:]

    def _take(self, connection: _Connection, kind: int, message: bytes) -> None:
        file = connection.file
        if connection.kind == CONTROL:
            self._command(connection, message)
        elif file is not None:
            self._count_read(connection)
            if kind == INLINE:
                if not file.answer(message):
                    _write(file, message)
            elif kind == FILED:
                self._long(connection, message)
            elif kind == REGISTER:
                file.register(_agent(message))
            elif kind == UNREGISTER:
                file.unregister(int.from_bytes(message[:4], "little"))
            self._is_stale = _now() + QUIET

    def _hello(self, connection: _Connection, message: bytes) -> None:
        magic, kind, number, _, host = HELLO.unpack(message)
        if magic != MAGIC:
            raise ValueError("not a program of the fabric")
        connection.kind = kind
        connection.name = host.rstrip(b"\0").decode(errors="replace")
        result = 0
        if kind in (UMAD, ISSM):
            result = self._open(connection, number)
        elif kind != CONTROL:
            raise ValueError("not a kind of connection")
        self._send(connection, result.to_bytes(4, "little"))

    def _open(self, connection: _Connection, number: int) -> int:
        node = self.management.subnet.nodes.get(connection.name)
        if node is None or node.is_switch or number >= node.num_ports:
            return errno.ENODEV
        port = node.ports[number + 1]
        door = self._doors.get(port)
        if door is None:
            door = self._doors[port] = Door(self.management, port)
        if connection.kind == ISSM:
            if not door.open_sm():
                return errno.EAGAIN
        else:
            descriptor = connection.socket.fileno()
            connection.file = door.open(lambda: self._with_messages.add(descriptor))
        connection.door, connection.port = door, port
        self.programs += 1
        return 0

    def _long(self, connection: _Connection, name: bytes) -> None:
        path = Path(os.fsdecode(name))
        # Only a file that the shim has put into the folder of its own host.
        if connection.file is None or path.parent != self._root(connection.name):
            raise ValueError("a message in a foreign file")
        data = path.read_bytes()
        path.unlink()
        _write(connection.file, data)

    def _command(self, connection: _Connection, message: bytes) -> None:
        try:
            command = json.loads(message)
            if not isinstance(command, dict) or self.control is None:
                raise EncodeError("command", command, "one of this fabric")
            answer = self.control(command)
        except KeyError as error:
            answer = {"error": f"the command has no {error}"}
        except (IbwireError, ValueError, TypeError, RecursionError) as error:
            answer = {"error": str(error)}
        data = json.dumps(answer).encode()
        if len(data) > LONGEST:
            path = self._spill(self.folder, data)
            data = json.dumps({"file": str(path)}).encode()
        self._send(connection, len(data).to_bytes(WORD, "little") + data)
        if len(connection.unsent) > MOST_UNSENT:
            raise ValueError("answers are not read")

    def _flush(self) -> None:
        while self._with_messages:
            connection = self._connections.get(self._with_messages.pop())
            if connection is not None:
                try:
                    self._give(connection)
                except OSError:  # no room for a file
                    self._drop(connection)

    def _give(self, connection: _Connection) -> None:
        """Send what waits for a program, as much as there is room for."""
        if not self._send(connection, b"") or connection.file is None:
            return
        self._count_read(connection)
        waiting = connection.file.waiting
        while waiting:
            parts: list[bytes] = []
            size = 0
            while waiting and size + len(waiting[0]) <= LONGEST:
                message = waiting.popleft()
                length = len(message)
                size += WORD + length
                is_plain = length == _PLAIN
                if not is_plain:
                    connection.file.fetched(length)
                parts += (_PLAIN_WORD if is_plain else length.to_bytes(WORD, "little"), message)
            if not parts:
                path = os.fsencode(self._file(connection, waiting.popleft()))
                parts = [(len(path) | FILED << 24).to_bytes(WORD, "little"), path]
            if not self._send(connection, b"".join(parts)):
                return

    def _file(self, connection: _Connection, message: bytes) -> Path:
        """Write a long message where the program reads it."""
        path = self._spill(self._root(connection.name), message)
        connection.files.append((path, len(message)))
        return path

    def _count_read(self, connection: _Connection) -> None:
        """Count the files that the program has read; it reads them in order."""
        files = connection.files
        while files and connection.file is not None and not files[0][0].exists():
            connection.file.fetched(files.popleft()[1])

    def _send(self, connection: _Connection, data: bytes) -> bool:
        """Send data behind what is unsent; `False` if not all is sent."""
        if connection.unsent:
            data = connection.unsent + data
        if data:
            try:
                data = data[connection.socket.send(data) :]
            except BlockingIOError:
                pass
            except OSError:
                self._drop(connection)
                return False
            connection.unsent = data
        if connection.blocked != bool(data):
            self._block(connection, is_blocked=bool(data))
        return not data

    def _block(self, connection: _Connection, *, is_blocked: bool) -> None:
        """Whether to be called again when the program has read something."""
        connection.blocked = is_blocked
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if is_blocked else 0)
        self._selector.modify(connection.socket, events, connection)

    def _drop(self, connection: _Connection) -> None:
        descriptor = connection.socket.fileno()
        if self._connections.pop(descriptor, None) is None:
            return
        self._selector.unregister(connection.socket)
        connection.socket.close()
        for path, _ in connection.files:
            path.unlink(missing_ok=True)
        if connection.file is not None:
            connection.file.close()
        elif connection.kind == ISSM and connection.door is not None:
            connection.door.close_sm()

    def _spill(self, folder: Path, data: bytes) -> Path:
        self._serial += 1
        path = folder / f"answer-{self._serial}"
        try:
            path.write_bytes(data)
        except OSError:
            path.unlink(missing_ok=True)
            raise
        return path

    def _root(self, host: str) -> Path:
        index = list(self.management.subnet.nodes).index(host)
        return self.folder / "hosts" / str(index)

    def _write(self, host: str) -> None:
        node = self.management.subnet.nodes[host]
        state = b"".join(bytes(port.info) for port in node.external_ports())
        if self._written.get(host) == state:
            return
        self._written[host] = state
        write_host(self._root(host), node)


def _seconds(due: Time | None, longest: float) -> float:
    """How long to wait for a time, at most `longest` seconds.

    Less than a millisecond is not waited for: the system would make a whole one of it.
    """
    if due is None:
        return longest
    wait = (due - _now()) / 1e12
    return min(longest, wait) if wait > SHORTEST_WAIT else 0.0


def _agent(body: bytes) -> Agent:
    """The agent of a registration, in either of the kernel's two forms."""
    if len(body) != REQUEST:
        raise ValueError("not a registration")
    if body[43] == _REGISTRATION.size:
        number, *mask, qpn, mgmt_class, version, oui, rmpp_version = _REGISTRATION.unpack_from(body)
        methods = sum(word << 32 * index for index, word in enumerate(mask))
        return Agent(
            number,
            qpn,
            mgmt_class,
            version,
            methods,
            int.from_bytes(oui, "big"),
            is_rmpp=rmpp_version == 1,
        )
    number, qpn, mgmt_class, version, _, _, low, high, wide, rmpp_version = (
        _REGISTRATION2.unpack_from(body)
    )
    return Agent(
        number, qpn, mgmt_class, version, low | high << 64, wide, is_rmpp=rmpp_version == 1
    )


def _write(file: UmadFile, message: bytes) -> None:
    error = file.write(message, _now())
    if error:
        file.refuse(message, error)


def _now() -> Time:
    return time.monotonic_ns() * 1000


def remove_folder(folder: Path) -> None:
    """Remove the folder of a fabric that has ended."""
    shutil.rmtree(folder, ignore_errors=True)
