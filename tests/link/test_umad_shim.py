"""The preload library, in programs that have threads and signals."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ibwire.fabric.infiniband import read_topology
from ibwire.fabric.infiniband.shipped import topology_path
from ibwire.link import umad_client
from ibwire.link.umad_server import UmadServer
from ibwire.sm.management import Management

pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="cc not installed")

SLOW_LOOKS = """
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <unistd.h>
ssize_t recv(int fd, void *data, size_t size, int flags) {
    ssize_t got = syscall(SYS_recvfrom, fd, data, size, flags, 0, 0);
    if (flags & MSG_PEEK) usleep(1000);
    return got;
}
"""
"""Between a look at a message and what follows, other threads have time for the same."""

READERS = """
import fcntl, os, struct, threading
COUNT, THREADS = 60, 4
fd = os.open("/dev/infiniband/umad0", os.O_RDWR)
agent = bytearray(28)
struct.pack_into("<24xBB", agent, 0, 0x81, 1)
fcntl.ioctl(fd, 0xC01C1B01, agent)
found, lock = [], threading.Lock()
all_are_read = threading.Event()

def read():
    while True:
        try:
            message = os.read(fd, 320)
        except OSError as error:
            message = str(error)
        with lock:
            found.append((len(message), message[76:80]))
            if len(found) == COUNT or isinstance(message, str):
                all_are_read.set()

for _ in range(THREADS):
    threading.Thread(target=read, daemon=True).start()
for number in range(COUNT):
    is_lost = number % 3 == 0  # by port 9, which the node has not
    timeout = 1 if is_lost else 60_000
    header = struct.pack("<8xI16x2s34x", timeout, b"\\xff\\xff")
    mad = bytearray(256)
    mad[:4], mad[7], mad[129] = bytes((1, 0x81, 1, 1)), is_lost, 9 * is_lost
    mad[12:18] = struct.pack(">IH", number, 0x11)
    mad[32:36] = b"\\xff" * 4
    os.write(fd, header + mad)
all_are_read.wait(30)
expected = [(88 if n % 3 == 0 else 320, struct.pack(">I", n)) for n in range(COUNT)]
print(sorted(found, key=lambda each: each[1]) == expected, flush=True)
os._exit(0)
"""

INTERRUPTED = """
import os, signal, sys
os.set_blocking(int(sys.argv[1]), False)
signal.signal(signal.SIGALRM, lambda *_: None)
signal.set_wakeup_fd(int(sys.argv[1]), warn_on_full_buffer=False)
signal.setitimer(signal.ITIMER_REAL, 0.002, 0.002)
fd = os.open("/dev/infiniband/umad0", os.O_RDWR)
signal.setitimer(signal.ITIMER_REAL, 0)
print(fd >= 0, flush=True)
"""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[UmadServer]:
    server = UmadServer(Management(read_topology(topology_path("star2"))), tmp_path)
    yield server
    server.close()


def environment(server: UmadServer, *libraries: Path) -> dict[str, str]:
    preload = ":".join(map(str, (umad_client.library(), *libraries)))
    return {**os.environ, **server.environment("node-0"), "LD_PRELOAD": preload}


def output(server: UmadServer, program: subprocess.Popen[str]) -> str:
    while program.poll() is None:
        server.step(0.01)
    return program.communicate()[0]


def test_threads_that_read_at_the_same_time_get_each_message_once(
    server: UmadServer, tmp_path: Path
) -> None:
    source, library = tmp_path / "looks.c", tmp_path / "looks.so"
    source.write_text(SLOW_LOOKS)
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, source], check=True)

    program = subprocess.Popen(
        [sys.executable, "-c", READERS],
        env=environment(server, library),
        stdout=subprocess.PIPE,
        text=True,
    )

    assert output(server, program) == "True\n"


def test_a_signal_while_a_device_is_opened_does_not_end_it(server: UmadServer) -> None:
    ours, theirs = socket.socketpair()
    program = subprocess.Popen(
        [sys.executable, "-c", INTERRUPTED, str(theirs.fileno())],
        env=environment(server),
        pass_fds=[theirs.fileno()],
        stdout=subprocess.PIPE,
        text=True,
    )
    theirs.close()
    with ours:
        for _ in range(100):  # signals; the server has not answered yet
            ours.recv(1)

    assert output(server, program) == "True\n"
