"""The client side of ibsim's protocol, with a server that answers from an emulated fabric."""

from __future__ import annotations

import os
import socket
import struct
import threading

import pytest

from ibwire.base.errors import LinkError
from ibwire.fabric.infiniband.shipped import find_topology
from ibwire.link.ibsim_client import IbsimClient
from ibwire.sm.configuration import Settings
from ibwire.sm.control import route
from ibwire.sm.mads import Datagram
from ibwire.sm.management import Management

NAME = f"ibwire-test-{os.getpid()}"


class Server:
    """One client of a subnet, by the structures of ibsim.h as numbers: 80 bytes, and 288."""

    def __init__(self) -> None:
        self.subnet = find_topology("ring6")
        self.management = Management(self.subnet)
        self.port = self.subnet.nodes["node-0-0"].ports[1]
        self.management.programs[self.port] = self
        self.types: list[int] = []
        self.losses = 3
        self.control = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.control.bind(f"\0{NAME}:ctl\0")
        self.data = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.data.bind(f"\0{NAME}:out3\0")
        threading.Thread(target=self.serve_control, daemon=True).start()
        threading.Thread(target=self.serve_data, daemon=True).start()

    def serve_control(self) -> None:
        while True:
            message, asker = self.control.recvfrom(100)
            magic, _, kind, _ = struct.unpack_from("<4I", message)
            assert (len(message), magic) == (80, 0xDEADBEEF)
            self.types.append(kind)
            answer = bytearray(message)
            if kind == 1:
                process = struct.unpack_from("<I", message, 16)[0]
                if not message[28:].startswith(b"node-0-0\0"):
                    answer[8:12] = bytes(4)
                else:
                    self.data.connect(f"\0{NAME}:in{process}\0")
                    answer[16:20] = struct.pack("<I", 3)
            if kind != 2:
                self.control.sendto(answer, asker)

    def serve_data(self) -> None:
        while True:
            message = self.data.recv(400)
            assert len(message) == 288
            if self.losses:
                self.losses -= 1
                self.data.send(message[:16] + (110).to_bytes(4, "big") + message[20:])
                continue
            dlid = int.from_bytes(message[:2], "big")
            slid = 0xFFFF if dlid == 0xFFFF else self.port.lid
            qpns = (int.from_bytes(message[at : at + 4], "big") for at in (8, 12))
            dqp, sqp = qpns
            datagram = Datagram(bytearray(message[32:]), slid, dlid, sqp, dqp)
            self.management.send(datagram, self.port)
            self.management.run(0)

    def deliver(self, datagram: Datagram, now: int) -> bool:
        lids = [each.to_bytes(2, "big") + b"\0\0" for each in (datagram.dlid, datagram.slid)]
        numbers = [each.to_bytes(4, "big") for each in (datagram.dqp, datagram.sqp, 0, 0)]
        mad = bytearray(datagram.mad)
        mad[8:12] = b"\0\3\0\0"
        self.data.send(b"".join((*lids, *numbers, (256).to_bytes(8, "big"), bytes(mad))))
        return True


@pytest.fixture(scope="module")
def server() -> Server:
    return Server()


@pytest.mark.slow
def test_a_subnet_of_ibsim_comes_up(server: Server) -> None:
    client = IbsimClient("node-0-0", Settings(), NAME)
    try:
        client.run(lambda: client.manager.is_up)
    finally:
        client.close()

    ends = [node.ports[1] for node in server.subnet.nodes.values() if not node.is_switch]
    assert all("problem" not in route(a, b)[-1] for a in ends for b in ends if a is not b)
    assert server.types[:2] == [1, 9]


def test_an_unknown_host_is_refused(server: Server) -> None:
    with pytest.raises(LinkError, match="no such node"):
        IbsimClient("nobody", Settings(), NAME)


def test_a_host_that_is_no_text_is_refused(server: Server) -> None:
    """What Python makes of bytes in arguments that are not UTF-8."""
    with pytest.raises(LinkError, match="no such node"):
        IbsimClient("\udcff", Settings(), NAME)


def test_a_client_that_was_refused_leaves_others_connected(server: Server) -> None:
    """A DISCONNECT would be of client 0, which is another; the server answers in order."""
    server.types.clear()
    for _ in range(2):
        with pytest.raises(LinkError, match="no such node"):
            IbsimClient("nobody", Settings(), NAME)

    assert server.types == [1, 1]


def test_without_ibsim_there_is_an_error_at_once() -> None:
    with pytest.raises(LinkError, match="no ibsim answers: Connection refused"):
        IbsimClient("", Settings(), "ibwire-nobody")


def test_a_name_that_is_too_long_is_refused() -> None:
    with pytest.raises(LinkError, match="at most 31 bytes"):
        IbsimClient("x" * 32, Settings())
