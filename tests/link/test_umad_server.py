"""The socket of a fabric, as the preload library uses it: good programs and bad ones."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import socket
import struct
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from ibwire.base.errors import LinkError
from ibwire.fabric.infiniband import read_topology
from ibwire.fabric.infiniband.shipped import topology_path
from ibwire.link import umad_client
from ibwire.link.umad_files import HostFiles
from ibwire.link.umad_server import (
    CONTROL,
    FILED,
    HELLO,
    INLINE,
    ISSM,
    LONGEST,
    MADS_OF_A_STEP,
    MAGIC,
    REGISTER,
    ROUND,
    UMAD,
    UNREGISTER,
    UmadServer,
)
from ibwire.sm import umad
from ibwire.sm.control import Control
from ibwire.sm.mads import Datagram
from ibwire.sm.management import Management
from ibwire.sm.umad import HEADER


class Client:
    """A program; the server takes its steps in the same thread."""

    def __init__(self, server: UmadServer) -> None:
        self.server = server
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.socket.connect(str(server.path))
        self.socket.setblocking(False)

    def tell(self, message: bytes, kind: int = INLINE) -> None:
        self.tell_raw(struct.pack("<I", len(message) | kind << 24) + message)

    def tell_raw(self, data: bytes) -> None:
        self.socket.send(data)
        self.server.step(0)
        self.server.step(0)

    def hear(self) -> bytes:
        """One message."""
        (word,) = struct.unpack("<I", self.socket.recv(4))
        return self.socket.recv(word & 0xFFFFFF)

    def hello(self, kind: int, host: str = "node-0", number: int = 0) -> int:
        self.tell_raw(HELLO.pack(MAGIC, kind, number, 0, host.encode()))
        return int.from_bytes(self.socket.recv(4), "little")

    def register(
        self, number: int, mgmt_class: int, methods: int, *, rmpp: int = 0, qpn: int = 1
    ) -> None:
        body = struct.pack("<IIIIIBBB3sB", number, methods, 0, 0, 0, qpn, mgmt_class, 2, b"", rmpp)
        self.tell(struct.pack("<43sB", body, 28), REGISTER)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[UmadServer]:
    management = Management(read_topology(topology_path("star2")))
    server = UmadServer(management, tmp_path)
    server.control = Control(management, server.environment)
    yield server
    server.close()


def test_a_program_opens_a_port(server: UmadServer) -> None:
    assert Client(server).hello(UMAD) == 0
    assert server.programs == 1


@pytest.mark.parametrize(("host", "number"), [("nobody", 0), ("node-0", 1), ("sw0", 0)])
def test_a_port_that_does_not_exist_is_no_device(
    server: UmadServer, host: str, number: int
) -> None:
    assert Client(server).hello(UMAD, host, number) == 19


def test_a_second_subnet_manager_on_a_port_is_refused(server: UmadServer) -> None:
    port = server.management.subnet.nodes["node-0"].ports[1]
    first, second = Client(server), Client(server)
    assert first.hello(ISSM) == 0
    assert port.capability_mask & 2
    assert second.hello(ISSM) == 11

    first.socket.close()
    server.step(0)

    assert not port.capability_mask & 2
    assert Client(server).hello(ISSM) == 0


@pytest.mark.parametrize(
    "message", [b"x", b"x" * 128, HELLO.pack(MAGIC, 99, 0, 0, b""), b"\0" * 128]
)
def test_a_stranger_is_shown_out_and_others_stay(server: UmadServer, message: bytes) -> None:
    good, bad = Client(server), Client(server)
    assert good.hello(UMAD) == 0
    bad.tell_raw(message)
    if len(message) == HELLO.size:
        assert bad.socket.recv(1) == b""

    good.register(0, 0x81, 0)
    assert len(server.management.programs) == 1


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (b'{"command":"manage","host":"node-0","priority":null}', "priority: None is not a whole"),
        (b'{"command":"manage","host":"node-0","lmc":Infinity}', "lmc: inf is not a whole"),
        (b'{"command":"manage","host":"node-0","roots":5}', "roots: 5 is not a list"),
        (b'{"command":"manage"}', "the command has no 'host'"),
        (b'{"command":"fail","node":"sw0","port":[1]}', "is not a whole number"),
        (b'{"command":"fail","node":"sw0"}', "port: None is not a whole number"),
        (b'{"command":"fail","node":"sw0","port":' + b"9" * 5000 + b"}", "4300 digits"),
        (b"[" * 20_000, "recursion"),
        (b"[]", "is not one of this fabric"),
    ],
)
def test_a_wrong_command_is_answered_with_a_sentence(
    server: UmadServer, command: bytes, words: str
) -> None:
    client = Client(server)
    client.hello(CONTROL)
    client.tell(command)

    assert words in json.loads(client.hear())["error"]
    assert Client(server).hello(UMAD) == 0


def test_junk_behind_the_greeting_does_no_harm(server: UmadServer) -> None:
    client = Client(server)
    client.hello(UMAD)
    for kind, junk in (
        (INLINE, b""),
        (INLINE, b"\0" * 400),
        (REGISTER, b""),
        (UNREGISTER, b""),
        (77, b"\xff" * 500),
        (FILED, b"/etc/passwd"),
        (FILED, b"\0"),
        (0xFF, b"\xff" * LONGEST),
    ):
        try:
            client.tell(junk, kind)
        except OSError:
            client = Client(server)
            client.hello(UMAD)

    assert Path("/etc/passwd").exists()
    assert Client(server).hello(UMAD) == 0


def test_a_program_that_does_not_read_stops_nobody(server: UmadServer) -> None:
    idle, busy = Client(server), Client(server)
    for client in (idle, busy):
        client.hello(UMAD)
        client.register(0, 0x81, 0)
    request = HEADER.pack(
        0, 0, 1000, 0, 0, bytes(4), bytes(4), b"\xff\xff", *(0,) * 6, bytes(16), bytes(4), 0
    )
    for tid in range(3000):
        mad = bytearray(256)
        mad[:4] = bytes((1, 0x81, 1, 1))
        mad[12:16] = tid.to_bytes(4, "big")
        mad[16:18] = b"\0\x11"
        mad[32:36] = b"\xff" * 4
        idle.tell(request + bytes(mad))
    busy.tell(request + bytes(mad))

    assert len(busy.hear()) == 64 + 256
    heard = b""
    for _ in range(3000):
        with contextlib.suppress(BlockingIOError):
            heard += idle.socket.recv(1 << 20)
        server.step(0)
    size = 4 + 64 + 256
    found = [int.from_bytes(heard[at + 80 : at + 84]) for at in range(0, len(heard), size)]
    assert found == list(range(3000))


def get_node_info(tid: int, port: int) -> bytes:
    """Get NodeInfo of what is behind a port, as it is written to the socket."""
    header = HEADER.pack(
        0, 0, 20_000, 0, 0, bytes(4), bytes(4), b"\xff\xff", *(0,) * 6, bytes(16), bytes(4), 0
    )
    mad = bytearray(256)
    mad[:8] = bytes((1, 0x81, 1, 1, 0, 0, 0, 1))
    mad[12:16] = tid.to_bytes(4, "big")
    mad[16:18] = b"\0\x11"
    mad[32:36] = b"\xff" * 4
    mad[129] = port
    return (320).to_bytes(4, "little") + header + bytes(mad)


@pytest.mark.parametrize("port", [1, 9], ids=["answered at once", "lost"])
def test_a_program_that_asks_for_much_leaves_others_their_turn(
    server: UmadServer, port: int
) -> None:
    greedy, modest = Client(server), Client(server)
    for each in (greedy, modest):
        each.hello(UMAD)
        each.register(0, 0x81, 0)
    many = b"".join(get_node_info(tid, port) for tid in range(5000))
    assert greedy.socket.send(many) > 2 * ROUND
    modest.socket.send(get_node_info(1, 1))

    server.step(0)

    assert len(modest.hear()) == 320
    server.management.settle()
    assert server.management.delivered // 2 + server.management.lost <= ROUND // 324 + 2


def test_a_program_that_is_alone_is_answered_without_a_look_at_the_others(
    server: UmadServer,
) -> None:
    """A command of another connection is answered all the same, before the program has ended."""
    program, command = Client(server), Client(server)
    program.hello(UMAD)
    program.register(0, 0x81, 0, qpn=0)
    command.hello(CONTROL)
    heard: list[bytes] = []
    asked = threading.Event()

    def ask() -> None:
        program.socket.setblocking(True)
        for tid in range(2000):
            program.socket.send(get_node_info(tid, 1))
            program.socket.recv(4, socket.MSG_WAITALL)
            heard.append(program.socket.recv(320, socket.MSG_WAITALL)[76:80])
            if tid == 100:
                message = json.dumps({"command": "show"}).encode()
                command.socket.send(struct.pack("<I", len(message)) + message)
                command.socket.setblocking(True)
                assert json.loads(command.hear())["rows"]
                asked.set()
        server.stop()

    thread = threading.Thread(target=ask)
    thread.start()
    steps = 0

    def count() -> bool:
        nonlocal steps
        steps += 1
        return False

    server.run(count)
    thread.join(10)

    assert heard == [tid.to_bytes(4, "big") for tid in range(2000)]
    assert asked.is_set()
    assert steps < 1000


def test_many_programs_that_ask_for_much_do_not_fill_the_memory(server: UmadServer) -> None:
    clients = [Client(server) for _ in range(12)]
    for each in clients:
        each.hello(UMAD)
        each.register(0, 0x81, 0)
    modest = clients.pop()
    written = {each: b"".join(get_node_info(tid, 9) for tid in range(5000)) for each in clients}
    waited = 0
    for turn in range(40):
        for each in clients:
            with contextlib.suppress(BlockingIOError):
                written[each] = written[each][each.socket.send(written[each]) :]
        if turn == 20:
            modest.socket.send(get_node_info(1, 1))
        server.step(0)
        waited = max(waited, server.management.waiting)

    assert waited <= MADS_OF_A_STEP + 11 * (ROUND // 324 + 1)
    assert len(modest.hear()) == 320


def test_long_messages_that_nobody_reads_are_bounded_and_removed(
    server: UmadServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(umad, "MAXIMUM_LONG_BYTES", 3 * (64 + 40_000))
    client = Client(server)
    client.hello(UMAD)
    client.register(0, 3, 0, rmpp=1)
    (connection,) = server._connections.values()
    file = connection.file
    assert file is not None
    datagram = Datagram(bytearray(40_000), slid=1, dlid=2, sqp=1, dqp=1)

    def received(times: int) -> list[Path]:
        for _ in range(times):
            file._give(file.agents[0], datagram, bytes(40_000))
        server.step(0)
        return sorted(server.folder.glob("hosts/*/answer-*"))

    server.environment("node-0")
    paths = received(5)
    assert len(paths) == 3
    assert file.dropped == 2
    paths[0].unlink()  # as the program does when it has read it
    client.register(1, 4, 0)
    assert len(received(2)) == 3
    assert file.dropped == 3

    client.socket.close()
    server.step(0)
    assert not list(server.folder.glob("hosts/*/answer-*"))


def test_no_room_for_a_long_message_ends_its_connection_alone(server: UmadServer) -> None:
    client, other = Client(server), Client(server)
    for each in (client, other):
        each.hello(UMAD)
        each.register(0, 3, 0, rmpp=1)
    file = next(iter(server._connections.values())).file
    assert file is not None
    # The folder of the host does not exist: nothing can be written there.
    file._give(file.agents[0], Datagram(bytearray(1), 1, 2, 1, 1), bytes(40_000))
    server.step(0)

    assert client.socket.recv(1) == b""
    assert len(server._connections) == 1


def test_messages_come_in_pieces_and_together(server: UmadServer) -> None:
    client = Client(server)
    client.hello(UMAD)
    client.register(0, 0x81, 0)
    header = HEADER.pack(
        0, 0, 1000, 0, 0, bytes(4), bytes(4), b"\xff\xff", *(0,) * 6, bytes(16), bytes(4), 0
    )
    messages = b""
    for tid in (1, 2, 3):
        mad = bytearray(256)
        mad[:4] = bytes((1, 0x81, 1, 1))
        mad[12:18] = struct.pack(">IH", tid, 0x11)
        mad[32:36] = b"\xff" * 4
        messages += struct.pack("<I", 320) + header + bytes(mad)

    for start, end in ((0, 3), (3, 40), (40, 640), (640, 972)):
        client.tell_raw(messages[start:end])

    assert [client.hear()[76:80] for _ in range(3)] == [b"\0\0\0\1", b"\0\0\0\2", b"\0\0\0\3"]


def test_a_program_gets_back_what_cannot_be_sent(server: UmadServer) -> None:
    """A write into a socket does not fail, so that a program would wait for ever."""
    client = Client(server)
    client.hello(UMAD)
    client.register(0, 3, 0)
    header = struct.pack("<4I", 0, 0, 60_000, 0).ljust(HEADER.size, b"\0")

    client.tell(header + bytes((1, 3, 2, 1)) + bytes(253))

    message = client.hear()
    assert struct.unpack_from("<2I", message) == (0, 22)
    assert message[HEADER.size :][:4] == bytes((1, 3, 2, 1))


def test_a_message_that_would_be_too_long_ends_its_connection(server: UmadServer) -> None:
    client = Client(server)
    client.hello(UMAD)
    client.tell_raw(struct.pack("<I", LONGEST + 1))
    assert client.socket.recv(1) == b""


def test_answers_that_nobody_reads_end_their_connection(server: UmadServer) -> None:
    client = Client(server)
    client.hello(CONTROL)
    command = json.dumps({"command": "counters"}).encode()
    told = 0
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        while told < 20_000:
            client.tell(command)
            told += 1
    assert 100 < told < 20_000
    assert Client(server).hello(UMAD) == 0


def test_files_say_what_the_port_is(server: UmadServer) -> None:
    root = Path(server.environment("node-1")["IBWIRE_ROOT"])
    port = root / "sys/class/infiniband/ibwire0/ports/1"

    assert (port / "rate").read_text() == "100 Gb/sec (4X EDR)\n"
    assert (port / "state").read_text() == "2: INIT\n"
    assert (port / "gids/0").read_text() == "fe80:0000:0000:0000:0002:c903:0020:0021\n"
    assert (root / "sys/class/infiniband_mad/umad0/ibdev").read_text() == "ibwire0\n"


def test_a_full_disk_ends_no_fabric_and_files_follow_once_there_is_room(
    server: UmadServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    client = Client(server)
    client.hello(UMAD)
    root = Path(server.environment("node-1")["IBWIRE_ROOT"])
    state = root / "sys/class/infiniband/ibwire0/ports/1/state"
    port = server.management.subnet.nodes["node-1"].ports[1]

    def full(opened: int, data: bytes) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    def change_state(to: int) -> None:
        port.state = to
        client.register(0, 3, 0)

    with monkeypatch.context() as patched:
        patched.setattr(os, "write", full)
        change_state(3)
    before = state.read_text()
    change_state(4)

    assert "No space left on device" in caplog.text
    assert (before, state.read_text()) == ("2: INIT\n", "4: ACTIVE\n")


def test_what_did_not_fit_is_written_with_the_next_change(
    server: UmadServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk that becomes full takes a part of a file; the rest has to be an error."""
    files = HostFiles(server.folder / "host", server.management.subnet.nodes["node-1"])
    write, room = os.write, [100]

    def write_some(opened: int, data: bytes) -> int:
        if not room[0]:
            raise OSError(errno.ENOSPC, "No space left on device")
        count = write(opened, data[: room[0]])
        room[0] -= count
        return count

    monkeypatch.setattr(os, "write", write_some)
    with pytest.raises(OSError, match="No space left"):
        files.write()
    room[0] = 1 << 20
    files.write()

    rate = server.folder / "host/sys/class/infiniband/ibwire0/ports/1/rate"
    assert rate.read_text() == "100 Gb/sec (4X EDR)\n"


def test_a_command_for_which_there_is_no_room_is_answered_with_a_sentence(
    server: UmadServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = Client(server)
    client.hello(CONTROL)

    def full(opened: int, data: bytes) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    client.tell(json.dumps({"command": "attach", "host": "node-1"}).encode())

    assert "No space left on device" in json.loads(client.hear())["error"]


def test_commands_are_answered_and_errors_are_sentences(server: UmadServer) -> None:
    client = Client(server)
    client.hello(CONTROL)
    client.tell(json.dumps({"command": "show"}).encode())
    rows = json.loads(client.hear())["rows"]
    assert [(row["node"], row["port"]) for row in rows] == [
        ("sw0", 1),
        ("sw0", 2),
        ("node-0", 1),
        ("node-1", 1),
    ]
    for command in ({"command": "nothing"}, {"command": "route"}, [1], "x"):
        client.tell(json.dumps(command).encode())
        assert json.loads(client.hear())["error"]
    client.tell(b"{")
    assert json.loads(client.hear())["error"]


def test_no_fabric_is_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(LinkError, match="no fabric is running"):
        umad_client.ask(tmp_path, {"command": "show"})


@pytest.mark.parametrize("name", ["", "a/b", "..", "x" * 33])
def test_names_are_names(name: str) -> None:
    with pytest.raises(LinkError, match="invalid name"):
        umad_client.fabric_folder(name)
