"""ibsim's protocol as a server: a client of ibsim, ours, brings the fabric up over it."""

from __future__ import annotations

import os
import socket
import struct
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from ibwire.base.errors import LinkError
from ibwire.fabric.infiniband.shipped import find_topology
from ibwire.fabric.infiniband.subnet import IS_SM, Subnet
from ibwire.link.ibsim_client import IbsimClient
from ibwire.link.ibsim_server import IbsimServer
from ibwire.link.umad_server import UmadServer
from ibwire.sm.configuration import Settings
from ibwire.sm.control import route
from ibwire.sm.mads import Datagram
from ibwire.sm.management import Management
from ibwire.sm.umad import HEADER, Agent, Door, UmadFile

NAME = f"ibwire-server-{os.getpid()}"


@pytest.fixture
def subnet() -> Iterator[Subnet]:
    with tempfile.TemporaryDirectory() as folder:
        server = UmadServer(Management(find_topology("ring6")), Path(folder))
        server.add_ibsim(NAME)
        thread = threading.Thread(target=server.run)
        thread.start()
        yield server.management.subnet
        server.stop()
        thread.join()
        server.close()


def manage(subnet: Subnet) -> None:
    client = IbsimClient("node-0-0", Settings(), NAME)
    try:
        client.run(lambda: client.manager.is_up)
        assert subnet.nodes["node-0-0"].ports[1].capability_mask & IS_SM
    finally:
        client.close()


def test_a_client_manages_the_fabric(subnet: Subnet) -> None:
    manage(subnet)
    manage(subnet)  # in the place of the first

    ends = [node.ports[1] for node in subnet.nodes.values() if not node.is_switch]
    assert all("problem" not in route(a, b)[-1] for a in ends for b in ends if a is not b)


def test_an_unknown_host_is_refused(subnet: Subnet) -> None:
    with pytest.raises(LinkError, match="no such node"):
        IbsimClient("nobody", Settings(), NAME)


def test_a_name_that_is_taken_is_an_error(subnet: Subnet, tmp_path: Path) -> None:
    with tempfile.TemporaryDirectory() as folder:
        server = UmadServer(Management(find_topology("star2")), Path(folder))
        with pytest.raises(LinkError, match=r"an ibsim has this name$"):
            server.add_ibsim(NAME)
        server.close()


def test_a_name_too_long_for_an_address_is_an_error() -> None:
    """unix(7): an address has 108 bytes."""
    with pytest.raises(LinkError, match="x: AF_UNIX path too long"):
        IbsimServer(Management(find_topology("star2")), "x" * 150, lambda: 0)


def test_names_need_not_be_text(fabric: Fabric) -> None:
    """What Python makes of bytes in arguments that are not UTF-8."""
    name = f"{NAME}-\udcff"
    server = IbsimServer(fabric.management, name, lambda: 0)
    with pytest.raises(LinkError, match=r"an ibsim has this name$"):
        IbsimServer(fabric.management, name, lambda: 0)
    server.close()


CONNECT, DISCONNECT, SET_ISSM = 1, 2, 9
"""ibsim.h; ERROR is 0."""


class Fabric:
    """A fabric of two hosts, and its server, which takes its steps in the same thread."""

    def __init__(self) -> None:
        self.management = Management(find_topology("star2"))
        self.port = self.management.subnet.nodes["node-0"].ports[1]
        self.now = 0
        self.server = IbsimServer(self.management, f"{NAME}-steps", lambda: self.now)
        self.programs: list[Program] = []

    def program(self, process: int) -> Program:
        self.programs.append(Program(self, process))
        return self.programs[-1]

    def request(self) -> bool:
        """Whether a program of node-0 takes a Get that asks it something."""
        mad = bytearray(b"\x01\x01\x01\x01").ljust(256, b"\0")
        return self.management.programs[self.port].deliver(Datagram(mad, 1, 2, 0, 0), 0)


class Program:
    """A program on node-0, by the structures of ibsim.h as numbers: 80 bytes, and 288."""

    def __init__(self, fabric: Fabric, process: int) -> None:
        self.server = fabric.server
        self.process = process
        self.number = 0
        self.user: int | None = None
        """To send as another user, which root may."""
        self.control, self.data = (self.bound(f"{kind}{process}") for kind in ("ctl", "in"))

    def bound(self, suffix: str) -> socket.socket:
        made = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        made.setblocking(False)
        made.bind(f"\0{self.server.name}:{suffix}\0")
        return made

    def write(self, socket_: socket.socket, message: bytes, suffix: str) -> None:
        address = f"\0{self.server.name}:{suffix}\0"
        if self.user is None:
            socket_.sendto(message, address)
            return
        credentials = struct.pack("=3i", os.getpid(), self.user, os.getgid())
        control = (socket.SOL_SOCKET, socket.SCM_CREDENTIALS, credentials)
        socket_.sendmsg([message], [control], 0, address)

    def ask(self, kind: int, data: bytes = b"") -> int:
        """The type of the answer."""
        message = struct.pack("<4I64s", 0xDEADBEEF, self.number, kind, len(data), data)
        self.write(self.control, message, "ctl")
        self.server.read_control()
        _, _, answer, _, data = struct.unpack("<4I64s", self.control.recv(100))
        if answer == CONNECT:
            self.number = int.from_bytes(data[:4], "little")
        return int(answer)

    def connect(self) -> int:
        return self.ask(CONNECT, struct.pack("<III32s", self.process, 0, 1, b"node-0"))

    def transmit(self, mad: bytes) -> bytes:
        """The MAD that comes back, of a directed-route SMP."""
        self.send(mad)
        return self.data.recv(400)[32:]

    def send(self, mad: bytes, lid: int = 0xFFFF) -> None:
        addresses = struct.pack("!H2xH2xIII4xQ", lid, 0xFFFF, 0, 0, 0, 256)
        self.write(self.data, addresses + mad, f"out{self.number}")
        self.server.read_data(self.number)

    def close(self) -> None:
        self.control.close()
        self.data.close()


@pytest.fixture
def fabric() -> Iterator[Fabric]:
    fabric = Fabric()
    yield fabric
    for program in fabric.programs:
        program.close()
    fabric.server.close()


def test_programs_that_have_left_leave_nothing_behind(fabric: Fabric) -> None:
    """Python allows a thousand calls within each other."""
    program = fabric.program(77)
    for _ in range(1200):
        assert program.connect() == CONNECT
        assert program.ask(DISCONNECT) == DISCONNECT

    assert not fabric.request()


def test_programs_that_were_there_before_receive_what_no_client_takes(fabric: Fabric) -> None:
    seen = []

    class Before:
        def deliver(self, datagram: Datagram, now: int) -> bool:
            seen.append(datagram)
            return True

    fabric.management.programs[fabric.port] = Before()
    first, second = fabric.program(77), fabric.program(78)
    first.connect()
    second.connect()

    assert fabric.request()
    assert len(seen) == 1


def test_port_has_a_manager_until_the_last_one_has_left(fabric: Fabric) -> None:
    programs = [fabric.program(77), fabric.program(78)]
    for program in programs:
        program.connect()
        program.ask(SET_ISSM, b"\x01\0\0\0")

    programs[0].ask(DISCONNECT)
    assert fabric.port.capability_mask & IS_SM
    assert fabric.request()
    programs[1].ask(DISCONNECT)
    assert not fabric.port.capability_mask & IS_SM
    assert not fabric.request()


NODE_INFO = bytes.fromhex("01810101 00000000 0000000000000007 00110000 00000000").ljust(32, b"\0")
NODE_INFO = (NODE_INFO + b"\xff\xff\xff\xff").ljust(256, b"\0")
"""A Get of the host's own NodeInfo, by a path of no hops; IBA 14.2.1.2."""


def opened(fabric: Fabric) -> UmadFile:
    """A file of a program that does not use ibsim, with an agent for Gets of SMInfo."""
    file = Door(fabric.management, fabric.port).open(lambda: None)
    file.register(Agent(0, 0, 0x81, 1, 0, 0, is_rmpp=False))
    file.register(Agent(1, 0, 0x01, 1, 1 << 1, 0, is_rmpp=False))
    return file


@pytest.mark.parametrize("is_file_first", [True, False])
def test_programs_of_both_protocols_share_a_port(fabric: Fabric, is_file_first: bool) -> None:
    file = opened(fabric) if is_file_first else None
    program = fabric.program(77)
    program.connect()
    file = file or opened(fabric)

    answer = program.transmit(NODE_INFO)
    file.write(
        HEADER.pack(0, 0, 1000, 0, 0, bytes(4), bytes(4), b"\xff\xff", *(0,) * 6, b"", b"", 0)
        + NODE_INFO,
        0,
    )
    fabric.management.run(0)
    taken = file.take()

    # NodeInfo of an adapter with one port: type 1 at offset 66, the port count behind it.
    assert answer[3] == 0x81
    assert answer[66:68] == b"\x01\x01"
    assert taken is not None
    assert taken[64 + 66 : 64 + 68] == b"\x01\x01"
    assert fabric.request()
    assert file.take() is not None
    file.unregister(1)
    assert not fabric.request()
    program.ask(SET_ISSM, b"\x01\0\0\0")
    assert fabric.request()


def test_clients_that_were_killed_make_room(fabric: Fabric) -> None:
    """There are ten numbers."""
    alive = fabric.program(99)
    assert alive.connect() == CONNECT
    for process in range(100, 130):
        killed = fabric.program(process)
        assert killed.connect() == CONNECT
        killed.close()

    assert alive.transmit(NODE_INFO)[3] == 0x81
    others = [fabric.program(process) for process in range(200, 210)]
    assert [each.connect() for each in others] == [CONNECT] * 9 + [0]
    assert alive.transmit(NODE_INFO)[3] == 0x81


def test_process_with_the_number_of_a_killed_one_takes_its_place(fabric: Fabric) -> None:
    killed = fabric.program(77)
    killed.connect()
    killed.ask(SET_ISSM, b"\x01\0\0\0")
    killed.close()
    program = fabric.program(77)

    assert program.connect() == CONNECT
    assert not fabric.port.capability_mask & IS_SM
    assert program.transmit(NODE_INFO)[3] == 0x81


def test_killed_manager_is_no_manager_once_it_is_asked(fabric: Fabric) -> None:
    killed, standby = fabric.program(77), fabric.program(78)
    for program in (killed, standby):
        program.connect()
        program.ask(SET_ISSM, b"\x01\0\0\0")
    killed.close()

    assert fabric.request()
    assert len(standby.data.recv(400)) == 288
    standby.close()
    assert not fabric.request()
    assert not fabric.port.capability_mask & IS_SM


def test_requests_of_a_killed_client_end_with_it(fabric: Fabric) -> None:
    """They ask for records (SubnAdmGet, IBA 15.2.2) where no program answers."""
    fabric.port.lid = 1
    killed = fabric.program(77)
    killed.connect()
    for tid in (7, 8):
        killed.send((bytes.fromhex("01030201") + bytes(11) + bytes([tid])).ljust(256, b"\0"), 1)
    killed.close()
    due = fabric.server.poll_timeout()
    assert due is not None

    fabric.server.handle_timeout(due)

    assert fabric.server.poll_timeout() is None
    assert fabric.program(77).connect() == CONNECT


def test_other_users_are_not_served(fabric: Fabric, monkeypatch: pytest.MonkeyPatch) -> None:
    program, stranger = fabric.program(77), fabric.program(78)
    program.connect()
    if os.getuid() == 0:
        program.user = stranger.user = 65534
    else:
        user = os.getuid()
        monkeypatch.setattr(os, "getuid", lambda: user + 1)

    with pytest.raises(BlockingIOError):
        stranger.connect()
    with pytest.raises(BlockingIOError):
        program.ask(DISCONNECT)
    with pytest.raises(BlockingIOError):
        program.transmit(NODE_INFO)
    monkeypatch.undo()
    program.user = None
    assert program.transmit(NODE_INFO)[3] == 0x81


def test_a_program_is_not_taken_for_another(fabric: Fabric) -> None:
    program, other = fabric.program(77), fabric.program(78)
    other.send(NODE_INFO)  # before somebody else becomes client 0
    program.connect()
    fabric.server.read_data(0)
    with pytest.raises(BlockingIOError):
        program.data.recv(400)

    assert other.ask(DISCONNECT) == 0
    with pytest.raises(PermissionError):
        other.send(NODE_INFO)
    other.process = 77
    assert other.connect() == 0
    assert program.transmit(NODE_INFO)[3] == 0x81


def test_descriptors_in_messages_are_not_taken(fabric: Fabric) -> None:
    program = fabric.program(77)
    program.connect()
    before = len(os.listdir("/proc/self/fd"))

    rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, struct.pack("=2i", 0, 1))
    program.control.sendmsg([b"x"], [rights], 0, f"\0{fabric.server.name}:ctl\0")
    fabric.server.read_control()

    assert len(os.listdir("/proc/self/fd")) == before


def test_a_sender_without_an_address_is_not_served(fabric: Fabric) -> None:
    message = struct.pack("<4I64s", 0xDEADBEEF, 0, CONNECT, 44, struct.pack("<I", 77))
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as unbound:
        unbound.sendto(message, f"\0{fabric.server.name}:ctl\0")

    fabric.server.read_control()

    assert fabric.program(77).connect() == CONNECT
