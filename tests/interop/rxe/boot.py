"""A guest with Soft-RoCE in QEMU: booted, connected to a network, given commands to run.

    with Network() as network, Guest(network) as one, Guest(network) as other:
        one.add_rxe("10.0.0.1/24")
        other.add_rxe("10.0.0.2/24")
        with one.capture(path):
            server = other.start("ibv_rc_pingpong -d rxe0 -g 1")
            other.wait_for_port(18515)
            client = one.run("ibv_rc_pingpong -d rxe0 -g 1 10.0.0.2")

KVM is used where a guest boots under it, else QEMU interprets (TCG), ten or more times slower.
"""

import base64
import json
import os
import shlex
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

from ibwire.base.closing import Closing
from interop.rxe import build
from interop.rxe.network import LINK_MTU, Network

QEMU = "qemu-system-x86_64"

BOOT_LIMIT = 600.0
"""Seconds until a guest must have booted: 5 under TCG, 130 on a machine with far more to do."""

KVM_LIMIT = 15.0
"""Seconds until a guest must have booted under KVM, or it is not used."""

COMMAND_LIMIT = 400.0
"""Seconds for a command that names no limit."""

ANSWER_LIMIT = 60.0
"""Seconds until QEMU must have answered, and until a killed command must be gone."""

DEVICE = "rxe0"

# Without these features QEMU interprets the kernel three times faster (reference/habits#guest).
_CPU = {"kvm": "host", "tcg": "max,-pclmulqdq,-la57,-erms,-fsrm"}

# The kernel counts ticks for some milliseconds when it boots, and panics if QEMU had no processor
# in that time: "IO-APIC + timer doesn't work" (Linux, admin-guide/kernel-parameters.txt).
_NO_TIMER_CHECK = "no_timer_check"

_TOOLS = {QEMU: "qemu-system-x86", "setpriv": "util-linux"}

# What setpriv asks for comes too late when the parent, $0, ended before.
_UNLESS_ORPHANED = '[ "$PPID" = "$0" ] && ulimit -c 0 && exec "$@"'

_numbers = count(1)


class GuestError(Exception):
    """A guest does not boot, crashed, or a command in it took too long."""


class Result(NamedTuple):
    """How a command ended."""

    status: int
    """Exit status; 128 and the number of the signal that ended it."""
    output: str
    """Standard output and standard error."""


def missing() -> str | None:
    """What the machine lacks for a `Guest`, as one sentence."""
    for tool, package in _TOOLS.items():
        if not shutil.which(tool):
            return f"{tool} is not installed (Debian: {package})"
    if not build.cached():
        return "no guest was built yet (python tests/interop/rxe/build.py)"
    return None


@cache
def accelerator() -> str:
    """`kvm` where a guest boots under it, else `tcg`.

    That a virtual machine can be made does not say so: where KVM is itself emulated, a
    stock kernel may hang or QEMU give up.
    """
    if os.access("/dev/kvm", os.R_OK | os.W_OK):
        try:
            with Guest(accel="kvm", boot_limit=KVM_LIMIT) as guest:
                guest.run("true", KVM_LIMIT)
        except GuestError:
            return "tcg"
        return "kvm"
    return "tcg"


class Job:
    """A command that runs in a guest."""

    def __init__(self, guest: "Guest", number: int, script: str) -> None:
        self._guest = guest
        self._number = number
        self._script = script

    def wait(self, limit: float = COMMAND_LIMIT) -> Result:
        """How it ended. After `limit` seconds it is killed, and that is a `GuestError`."""
        if result := self._guest._answer(self._number, limit):
            return result
        output = self.kill().output
        raise GuestError(f"took more than {limit:g} s: {self._script}\n{output}")

    def kill(self) -> Result:
        """End it, with everything that it started."""
        self._guest._send(f"kill {self._number}")
        result = self._guest._answer(self._number, ANSWER_LIMIT)
        if result is None:
            raise GuestError(f"cannot be killed: {self._script}")
        return result


class Guest(Closing):
    """One guest, from its creation until it is closed.

    It boots in the background: guests made one after the other boot at the same time, and
    the first command waits. QEMU also ends when the thread that made the guest does.

    network: where its one interface, `eth0`, is joined; None for none.
    accel: `kvm` or `tcg`; what works by default.
    Every method raises `GuestError` when the guest does not boot or crashed.
    """

    def __init__(
        self,
        network: Network | None = None,
        *,
        accel: str | None = None,
        memory_mb: int = 512,
        boot_limit: float = BOOT_LIMIT,
    ) -> None:
        reason = missing()
        image = build.cached()
        if reason or not image:
            raise GuestError(reason)
        self.accel = accel or accelerator()
        self._boot_deadline = time.monotonic() + boot_limit
        self._booted = False
        self._buffer = bytearray()
        self._answers: dict[int, Result] = {}
        self._jobs = count()
        self._captures = count()
        number = next(_numbers)
        # Locally administered, one for each guest of a process.
        self.mac = f"52:54:00:00:{number >> 8:02x}:{number & 0xFF:02x}"
        command = [
            "setpriv",
            "--pdeathsig",
            "KILL",
            "sh",
            "-c",
            _UNLESS_ORPHANED,
            str(os.getpid()),
            QEMU,
            "-machine",
            "pc",
            "-accel",
            self.accel,
            "-cpu",
            _CPU[self.accel],
            "-m",
            str(memory_mb),
            "-nodefaults",
            "-no-user-config",
            "-no-reboot",
            "-display",
            "none",
            "-serial",
            "chardev:console",
            "-chardev",
            "file,id=console,path=/dev/stdout,append=on",
            "-kernel",
            str(image.kernel),
            "-initrd",
            str(image.initramfs),
            "-append",
            f"console=ttyS0 panic=-1 quiet {_NO_TIMER_CHECK}",
        ]
        if network:
            # Without the virtio header nothing is offloaded: every frame on the tap is finished.
            tap = f"tap,id=net,ifname={network.add_tap()},script=no,downscript=no,vnet_hdr=off"
            card = f"virtio-net-pci,netdev=net,romfile=,mac={self.mac}"
            command = network.command(*command, "-netdev", tap, "-device", card)
        self._agent, agent = socket.socketpair()
        self._monitor, monitor = socket.socketpair()
        command += [
            "-chardev",
            f"socket,id=agent,fd={agent.fileno()}",
            "-device",
            "virtio-serial-pci",
            "-device",
            "virtserialport,chardev=agent,nr=1",
            "-chardev",
            f"socket,id=monitor,fd={monitor.fileno()}",
            "-mon",
            "chardev=monitor,mode=control",
        ]
        # What QEMU and the console of the guest say, in a file without a name.
        self._words = tempfile.TemporaryFile("a+b")  # noqa: SIM115
        with agent, monitor:
            self._process = subprocess.Popen(
                command,
                pass_fds=(agent.fileno(), monitor.fileno()),
                stdin=subprocess.DEVNULL,
                stdout=self._words,
                stderr=subprocess.STDOUT,
            )
        self.pid = self._process.pid
        self._monitor.settimeout(ANSWER_LIMIT)
        self._monitor_lines = self._monitor.makefile("rb")
        self._agreed = False

    def start(self, script: str) -> Job:
        """Run a shell script in the guest; it continues while others run."""
        while not self._booted:
            if not self._receive(self._boot_deadline):
                raise GuestError(f"does not boot ({self.accel}): {self._last_words()}")
        number = next(self._jobs)
        self._send(f"run {number} {base64.b64encode(script.encode()).decode()}")
        return Job(self, number, script)

    def run(self, script: str, limit: float = COMMAND_LIMIT) -> Result:
        """Run a shell script in the guest and wait for its end; see `Job.wait`."""
        return self.start(script).wait(limit)

    def check(self, script: str, limit: float = COMMAND_LIMIT) -> str:
        """As `run`; the output of what must succeed, else a `GuestError`."""
        result = self.run(script, limit)
        if result.status:
            raise GuestError(f"status {result.status}: {script}\n{result.output}")
        return result.output

    def add_rxe(self, *addresses: str) -> None:
        """Bring `eth0` up with these addresses (and prefix lengths), and `DEVICE` on it.

        GID 0 is the link-local one, then IPv4, then IPv6.
        """
        script = f"ip link set eth0 mtu {LINK_MTU} up\n"
        for address in sorted(addresses, key=lambda address: ":" in address):
            script += f"ip address add {shlex.quote(address)} dev eth0\n"
        self.check(f"set -e\n{script}rdma link add {DEVICE} type rxe netdev eth0")

    def wait_for_port(self, port: int, limit: float = COMMAND_LIMIT) -> None:
        """Until a program in the guest listens at this TCP port."""
        # State 0A is LISTEN.
        listens = f"grep -q ':{port:04X} 0*:0000 0A' /proc/net/tcp /proc/net/tcp6"
        self.check(f"until {listens}; do sleep 0.1; done", limit)

    @contextmanager
    def capture(self, path: Path) -> Iterator[None]:
        """Write every frame between guest and tap to a pcap file, meanwhile."""
        name = f"capture{next(self._captures)}"
        options = {"qom-type": "filter-dump", "netdev": "net", "file": str(path.absolute())}
        self._tell_qemu("object-add", id=name, **options)
        try:
            yield
        finally:
            self._tell_qemu("object-del", id=name)

    def close(self) -> None:
        """End the guest and remove what it left."""
        self._process.kill()
        self._process.wait()
        self._agent.close()
        self._monitor_lines.close()
        self._monitor.close()
        self._words.close()

    def _send(self, line: str) -> None:
        try:
            self._agent.settimeout(ANSWER_LIMIT)
            self._agent.sendall(f"{line}\n".encode())
        except OSError as error:
            raise GuestError(f"does not listen ({error}): {self._last_words()}") from error

    def _answer(self, number: int, limit: float) -> Result | None:
        """How a command ended; None when that takes longer."""
        deadline = time.monotonic() + limit
        while number not in self._answers:
            if not self._receive(deadline):
                return None
        return self._answers.pop(number)

    def _receive(self, deadline: float) -> bool:
        """Read the next output of the guest; false when it is silent until the deadline."""
        left = deadline - time.monotonic()
        if left <= 0:
            return False
        self._agent.settimeout(left)
        try:
            data = self._agent.recv(1 << 20)
        except TimeoutError:
            return False
        except OSError as error:
            raise GuestError(f"lost ({error}): {self._last_words()}") from error
        if not data:
            raise GuestError(f"died: {self._last_words()}")
        self._buffer += data
        while (end := self._buffer.find(b"\n")) >= 0:
            line = self._buffer[:end].decode()
            size = 0
            if line == "ready":
                self._booted = True
            else:
                number, status, size = map(int, line.split())
                output = self._buffer[end + 1 : end + 1 + size]
                if len(output) < size:
                    break
                self._answers[number] = Result(status, output.decode(errors="replace"))
            del self._buffer[: end + 1 + size]
        return True

    def _tell_qemu(self, command: str, **arguments: str) -> None:
        """Have the monitor of QEMU do something (QMP); it must agree."""
        if not self._agreed:
            self._agreed = True
            self._tell_qemu("qmp_capabilities")
        request = {"execute": command, "arguments": arguments}
        # The greeting and events stand before the answer.
        answer: dict[str, Any] = {}
        try:
            self._monitor.sendall(json.dumps(request).encode())
            while "return" not in answer and "error" not in answer:
                answer = json.loads(self._monitor_lines.readline())
        except (OSError, json.JSONDecodeError) as error:
            raise GuestError(f"QEMU does not answer: {self._last_words()}") from error
        if "error" in answer:
            raise GuestError(f"QEMU refuses {command}: {answer['error']['desc']}")

    def _last_words(self) -> str:
        """The end of the output of QEMU and the console."""
        self._words.seek(0)
        return self._words.read()[-2000:].decode(errors="replace").strip() or "without a word"
