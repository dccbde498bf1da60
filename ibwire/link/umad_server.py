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
import logging
import os
import select
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
from ibwire.base.units import Time
from ibwire.fabric.infiniband.subnet import Port
from ibwire.link.ibsim_server import IbsimServer
from ibwire.link.umad_files import HostFiles
from ibwire.sm.management import Management
from ibwire.sm.umad import ONE_MAD, WORD, Agent, Door, UmadFile

log = logging.getLogger(__name__)

HELLO = struct.Struct("<IIII112s")
MAGIC = 0x69627731
UMAD, ISSM, CONTROL = 1, 2, 3
INLINE, FILED, REGISTER, UNREGISTER = 0, 1, 2, 3
_REGISTRATION = struct.Struct("<IIIIIBBB3sBx")
"""struct ib_user_mad_reg_req: id, method mask, QPN, class, version, OUI, RMPP version."""
_REGISTRATION2 = struct.Struct("<IIBBHIQQIB3x")
"""struct ib_user_mad_reg_req2."""

_ONE_WORD = ONE_MAD.to_bytes(WORD, "little")
_WITH_WORD = WORD + ONE_MAD

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
QUIET = 20e-3
"""Seconds without a message after which the files of hosts are written again, if ports may have
changed."""
_STAY = struct.pack("ll", 0, 1000)
"""For how long the only program is waited for before all sockets are looked at: 1 ms, as struct
timeval."""
_ROUNDS = 32
"""Reads from the only program before all sockets are looked at."""
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
        self._files: dict[str, HostFiles] = {}
        """Of the hosts that programs have run on."""
        self._is_stale = False
        """Whether ports may have changed since the files of hosts were written."""
        self._due: Time | None = 0
        """When a step has something to do without a message, files of hosts aside."""
        self._connections: dict[int, _Connection] = {}
        self._with_messages: set[int] = set()
        self._serial = 0
        self._files_open = 0
        """Connections with an open umad file."""
        self._ibsim: IbsimServer | None = None
        self._stopped = False
        self._poll = select.epoll()
        self._readers: dict[int, Callable[[], object]] = {}
        """What reads the other descriptors."""
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(str(self.path))
        self._listener.listen(64)
        self._listener.setblocking(False)
        self._watch(self._listener, self._accept)
        self._alarm, self._bell = socket.socketpair()
        self._watch(self._alarm, partial(self._alarm.recv, 1))

    def add_ibsim(self, name: str) -> None:
        """Also serve programs with libumad2sim of ibsim, by this name; raises `LinkError`."""
        ibsim = self._ibsim = IbsimServer(self.management, name, _now)
        self._watch(ibsim.control, ibsim.read_control)
        for number, each in enumerate(ibsim.data):
            self._watch(each, partial(ibsim.read_data, number))

    def _watch(self, opened: socket.socket, read: Callable[[], object]) -> None:
        self._readers[opened.fileno()] = read
        self._poll.register(opened, select.EPOLLIN)

    def environment(self, host: str) -> dict[str, str]:
        """The variables with which a program runs on a host; makes the files it reads."""
        node = self.management.subnet.node(host)
        if node.is_switch:
            raise EncodeError("host", host, "a channel adapter: programs run there")
        files = self._files.get(node.name)
        if files is None:
            number = len(self._files)
            files = HostFiles(self.folder / "hosts" / str(number), node)
            self._files[node.name] = files
        files.write()
        return {
            "IBWIRE_FABRIC": str(self.path),
            "IBWIRE_HOST": node.name,
            "IBWIRE_ROOT": str(files.root),
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
        due = self._due
        if self._is_stale and longest > QUIET:
            longest = QUIET
        found = self._poll.poll(longest if due is None else _seconds(due, longest))
        is_plain = bool(found)
        if self.management.waiting > MADS_OF_A_STEP:
            # All wait together, so that none gets ahead of the others.
            found = [each for each in found if not self._is_of_program(each[0])]
            is_plain = False
        for descriptor, events in found:
            connection = self._connections.get(descriptor)
            if connection is None:
                is_plain = False
                self._readers[descriptor]()
                continue
            if events & ~select.EPOLLOUT and self._read(connection) is False:
                is_plain = False
            if events & select.EPOLLOUT:
                self._with_messages.add(descriptor)
            elif is_plain and self._files_open == len(found) == 1 and due is None and longest:
                is_plain = self._stay(connection)
        if not is_plain or (due is not None and due <= _now()):
            self._proceed(_now())
        if self._with_messages:
            self._flush()
        if self._is_stale and not found and not self.management.is_busy:
            self._is_stale = False
            self._write_files()

    def _write_files(self) -> None:
        """Bring the files of all hosts up to date; where that fails, with the next change."""
        for files in self._files.values():
            try:
                files.write()
            except OSError as error:
                log.warning("files of a host: %s: %s", files.root, error.strerror)

    def _proceed(self, now: Time) -> None:
        """Deliver MADs, and do what is due."""
        if self._due is not None and self._due <= now:
            self._time_out(now)
        delivered = self.management.delivered
        self.management.run(now, MADS_OF_A_STEP)
        if self.management.delivered != delivered:
            self._is_stale = True
        self._due = self._next_due()
        self._flush()

    def _is_of_program(self, descriptor: int) -> bool:
        connection = self._connections.get(descriptor)
        return connection is not None and connection.file is not None

    def close(self) -> None:
        """Close all connections and remove the socket."""
        for connection in list(self._connections.values()):
            self._drop(connection)
        self._poll.close()
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
            connected.setblocking(True)  # see `_stay`; other calls do not wait
            connected.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, _STAY)
            connection = _Connection(connected)
            self._connections[connected.fileno()] = connection
            self._poll.register(connected, select.EPOLLIN)

    def _stay(self, connection: _Connection) -> bool:
        """Go on with the only program as long as it has requests: a wait for one socket costs less
        than one for all. Whether agents have answered all of them at once."""
        for _ in range(_ROUNDS):
            is_plain = self._read(connection, 0)
            if not is_plain:
                return is_plain is None
            if connection.unsent:
                break
        return True

    def _read(self, connection: _Connection, flags: int = socket.MSG_DONTWAIT) -> bool | None:
        """Take messages; whether agents have answered all of them at once; `None` without any."""
        try:
            data = connection.socket.recv(ROUND, flags)
        except BlockingIOError:
            return None
        except OSError:
            data = b""
        if not data:
            self._drop(connection)
            return False
        if connection.rest:
            data = connection.rest + data
            connection.rest = b""
        file = connection.file
        if file is not None:
            count, answers = file.answer(data)
            if count:
                self._is_stale = True
                if connection.unsent or file.waiting:
                    for at in range(WORD, len(answers), _WITH_WORD):
                        file.put(answers[at : at + ONE_MAD])
                else:
                    self._send(connection, answers)
                if len(data) == len(answers):
                    return True
                data = data[len(answers) :]
        try:
            connection.rest = self._take_all(connection, data)
        except (struct.error, ValueError, OSError):
            # Not one of our own: its other programs are not disturbed.
            self._drop(connection)
        return False

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
                _write(file, message)
            elif kind == FILED:
                self._long(connection, message)
            elif kind == REGISTER:
                file.register(_agent(message))
            elif kind == UNREGISTER:
                file.unregister(int.from_bytes(message[:4], "little"))
            self._is_stale = True

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
            self._files_open += 1
        connection.door, connection.port = door, port
        self.programs += 1
        return 0

    def _long(self, connection: _Connection, name: bytes) -> None:
        path = Path(os.fsdecode(name))
        files = self._files.get(connection.name)
        # Only a file that the shim has put into the folder of its own host.
        if connection.file is None or files is None or path.parent != files.root:
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
        except OSError as error:
            answer = {"error": f"{error.filename or self.folder}: {error.strerror}"}
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
                is_plain = length == ONE_MAD
                if not is_plain:
                    connection.file.fetched(length)
                parts += (_ONE_WORD if is_plain else length.to_bytes(WORD, "little"), message)
            if not parts:
                path = os.fsencode(self._file(connection, waiting.popleft()))
                parts = [(len(path) | FILED << 24).to_bytes(WORD, "little"), path]
            if not self._send(connection, b"".join(parts)):
                return

    def _file(self, connection: _Connection, message: bytes) -> Path:
        """Write a long message where the program reads it."""
        files = self._files.get(connection.name)
        if files is None:
            raise FileNotFoundError(connection.name)
        path = self._spill(files.root, message)
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
                data = data[connection.socket.send(data, socket.MSG_DONTWAIT) :]
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
        events = select.EPOLLIN | (select.EPOLLOUT if is_blocked else 0)
        self._poll.modify(connection.socket, events)

    def _drop(self, connection: _Connection) -> None:
        descriptor = connection.socket.fileno()
        if self._connections.pop(descriptor, None) is None:
            return
        self._poll.unregister(connection.socket)
        connection.socket.close()
        for path, _ in connection.files:
            path.unlink(missing_ok=True)
        if connection.file is not None:
            connection.file.close()
            self._files_open -= 1
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
