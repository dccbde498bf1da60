"""A lab: two network namespaces with a veth pair between them, also without root.

With a middle there are three, and two veth pairs: a --- m --- b. Frames pass the middle only
through a program such as `ibwire tap`.

Root is not necessary where unprivileged users may create user namespaces: the network
namespaces then belong to a user namespace in which its creator has all rights. Nothing
outside of it changes.

A separate process, the keeper, creates the namespaces and stays in them, so they exist
as long as it does. It listens on a Unix socket and passes descriptors of its
namespaces to processes that want to enter them; only the socket is in the file
system. When the keeper ends, the kernel removes everything. A lab of a `with`
statement ends with its creator in any case: the keeper notices that their pipe closes.

Source: unshare(2), setns(2), user_namespaces(7), ip-link(8).
"""

from __future__ import annotations

import ctypes
import errno
import os
import re
import select
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NoReturn, Self

from ibwire.base.closing import Closing
from ibwire.base.errors import LinkError
from ibwire.link.interface import interface, set_tx_checksum

SIDES = ("a", "b")

INTERFACES = {"a": "veth-a", "b": "veth-b"}

ADDRESSES = {
    "a": ("10.0.0.1", "fd00::a00:1"),
    "b": ("10.0.0.2", "fd00::a00:2"),
}
"""IPv4, IPv6. They end with the same four bytes, so that `ibwire.rc.device.mac_of` gives the
same MAC address for both, and devices need no ARP."""

MIDDLE = "m"
"""The name of the third side, if there is one."""

MIDDLE_INTERFACES = ("eth-a", "eth-b")
"""Its ends of the links to a and b. They have no addresses, so the kernel sends nothing there."""

DEFAULT_NAME = "lab"
DEFAULT_MTU = 9000
"""Sufficient for every path MTU."""
SMALLEST_MTU = 1280
"""The minimum of IPv6 (RFC 8200 5)."""
LARGEST_MTU = 65535

VARIABLE = "IBWIRE_LAB"
"""The environment variable with the socket of the lab, for programs inside."""


class Lab(Closing):
    """A running lab; a context manager that takes it down at its end."""

    def __init__(self, path: Path, keeper: subprocess.Popen[bytes] | None = None) -> None:
        """The lab with this socket; use `create` or `find`, which check it."""
        self.path = path
        self._keeper = keeper

    @classmethod
    def create(
        cls,
        name: str | None = None,
        *,
        mtu: int = DEFAULT_MTU,
        detached: bool = False,
        middle: bool = False,
    ) -> Self:
        """Create a lab.

        name: for `find`; `None` for the default name of a detached lab, otherwise for a private
        name. mtu: bytes, 1280 to 65535. detached: it stays when
        this process ends, until `down`. middle: a and b are connected through a third side, m.

        Raises `LinkError` if a lab of that name exists, and if the system does not
        allow it or lacks the command `ip`.
        """
        label = DEFAULT_NAME if name is None else name
        hidden = name is None and not detached
        path = _socket_path(f"{os.getpid()}-{time.monotonic_ns()}" if hidden else label)
        if not SMALLEST_MTU <= mtu <= LARGEST_MTU:
            raise LinkError(label, f"MTU {mtu}, expected {SMALLEST_MTU} to {LARGEST_MTU}")
        connection = _connect(path)
        if connection is not None:
            connection.close()
            raise LinkError(label, "is up already")
        how = ["detached" if detached else "attached", *(["middle"] if middle else [])]
        keeper = subprocess.Popen(
            [*_PYTHON, "keep", str(path), str(mtu), *how],
            stdin=subprocess.DEVNULL if detached else subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=_environment(),
            cwd="/",
            # Ctrl-C is handled by the program that uses the lab and takes it down.
            start_new_session=True,
        )
        assert keeper.stdout is not None
        assert keeper.stderr is not None
        if keeper.stdout.readline() != _READY:
            reason = keeper.stderr.read().decode(errors="replace").strip()
            keeper.communicate()
            raise LinkError(label, reason.rpartition("\n")[2] or "its keeper has died")
        keeper.stdout.close()
        keeper.stderr.close()
        if detached:
            # It is no longer treated as a child process: no warning and no wait at exit.
            keeper.returncode = 0
            return cls(path)
        return cls(path, keeper)

    @classmethod
    def find(cls, name: str | None = None) -> Self | None:
        """The lab with this name; without a name that of this process, or the default one."""
        around = os.environ.get(VARIABLE)
        path = Path(around) if name is None and around else _socket_path(name or DEFAULT_NAME)
        connection = _connect(path)
        if connection is None:
            return None
        connection.close()
        return cls(path)

    def command(
        self, side: str, arguments: Sequence[str], *, ends_with_parent: bool = False
    ) -> list[str]:
        """The command line that runs another command inside, with `environment`.

        ends_with_parent: whether it gets SIGTERM when the thread that has started it ends.
        """
        how = "follow" if ends_with_parent else "enter"
        return [*_PYTHON, how, str(self.path), side, *arguments]

    def environment(self) -> dict[str, str]:
        """The environment for programs inside, which then find the lab and this ibwire."""
        return {**_environment(), VARIABLE: str(self.path)}

    def enter(self, side: str) -> None:
        """Move this process, which must have one thread, into one side, irreversibly."""
        user, *networks = self._namespaces()
        sides = dict(zip((*SIDES, MIDDLE), networks, strict=False))
        try:
            if side not in sides:
                raise LinkError(self.path.stem, "has no middle: ibwire lab up --middle")
            if not os.path.samestat(os.fstat(user), os.stat("/proc/self/ns/user")):
                _call("setns", user, _CLONE_NEWUSER)
            _call("setns", sides[side], _CLONE_NEWNET)
        except OSError as error:
            raise LinkError(self.path.stem, f"cannot be entered: {error.strerror}") from None
        finally:
            for each in (user, *networks):
                os.close(each)

    def down(self) -> None:
        """Remove the links, end the keeper and wait for its end.

        Programs that are still inside keep their namespace without its links. Raises
        `LinkError` when the keeper does not respond.
        """
        connection = _connect(self.path)
        if connection is not None:
            with connection, suppress(ConnectionError):
                try:
                    connection.send(_DOWN)
                    connection.recv(1)
                except TimeoutError:
                    raise LinkError(self.path.stem, _SILENT) from None
        if self._keeper is not None:
            assert self._keeper.stdin is not None
            self._keeper.stdin.close()
            self._keeper.wait()
            self._keeper = None

    def close(self) -> None:
        """Take the lab down."""
        self.down()

    def _namespaces(self) -> list[int]:
        """Descriptors of the user namespace and of the network namespaces of all sides."""
        connection = _connect(self.path)
        if connection is None:
            raise LinkError(self.path.stem, "is not up: ibwire lab up")
        with connection:
            try:
                connection.send(_ENTER)
                _, descriptors, _, _ = socket.recv_fds(connection, 1, _MOST_NAMESPACES)
            except OSError:
                descriptors = []
        if len(descriptors) <= len(SIDES):
            raise LinkError(self.path.stem, _SILENT)
        return descriptors


def main(arguments: Sequence[str]) -> None:
    """Run a process of a lab: `keep` it, or `enter` it and run a command.

    `follow` is `enter` for a command that ends with the process that has started it.
    """
    parent = os.getppid()
    try:
        if arguments[0] == "keep":
            path, mtu, *how = arguments[1:]
            _keep(Path(path), int(mtu), attached="attached" in how, middle="middle" in how)
        else:
            path, side, *command = arguments[1:]
            Lab(Path(path)).enter(side)
            if arguments[0] == "follow":
                _end_with(parent)
            execute(command)
    except LinkError as error:
        sys.exit(error.reason if arguments[0] == "keep" else f"error: {error}")


def _end_with(parent: int) -> None:
    """Get SIGTERM when the parent ends, also when it is killed (prctl(2)).

    After `enter`, because new capabilities clear it (Linux cred.c `commit_creds`).
    """
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    if os.getppid() != parent:
        sys.exit(128 + signal.SIGTERM)  # it has ended before


def execute(command: Sequence[str], environment: Mapping[str, str] | None = None) -> NoReturn:
    """Execute another program; raises `LinkError` when it cannot be started."""
    try:
        os.execvpe(command[0], list(command), os.environ if environment is None else environment)
    except OSError as error:
        raise LinkError(command[0], f"cannot be started: {error.strerror}") from None


# The keeper.


def _keep(path: Path, mtu: int, *, attached: bool, middle: bool) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC) as listening:
        try:
            path.parent.mkdir(mode=0o700, exist_ok=True)
            # Check the directory again after creating it.
            _directory(path.stem)
            listening.bind(str(path))
            # At once: a socket without a listener would look like that of a dead keeper.
            listening.listen()
        except OSError as error:
            taken = error.errno == errno.EADDRINUSE
            reason = "is up already" if taken else f"{path.parent}: {error.strerror}"
            raise LinkError(path.stem, reason) from None
        try:
            # A terminated keeper cleans up.
            signal.signal(signal.SIGTERM, lambda *_: sys.exit())
            networks = _build(path.stem, mtu, middle=middle)
            sys.stdout.buffer.write(_READY)
            sys.stdout.buffer.flush()
            # The process that sent the request to end waits for this connection to close.
            waiting = _serve(listening, networks, attached=attached)
            # Removed explicitly: programs that stay inside would keep them alive.
            for side, network in zip(SIDES, networks, strict=False):
                _call("setns", network, _CLONE_NEWNET)
                with suppress(LinkError):  # without a middle the second goes with the first
                    _ip(path.stem, f"link del {INTERFACES[side]}")
        finally:
            _remove(path)
    if waiting is not None:
        waiting.close()


def _build(name: str, mtu: int, *, middle: bool) -> list[int]:
    """Create the namespaces of a, b and possibly m, and the links between them."""
    _unshare_first(name)
    networks = [_own_network_namespace()]
    for _ in range(2 if middle else 1):
        try:
            _call("unshare", _CLONE_NEWNET)
        except OSError as error:
            raise LinkError(name, f"no further network namespace: {_reason(error)}") from None
        networks.append(_own_network_namespace())
    a, b = (f"{INTERFACES[side]} address {_mac(side)} mtu {mtu}" for side in SIDES)
    # This process is in the last namespace: one end of each link is there.
    here = [f"{link} mtu {mtu}" for link in MIDDLE_INTERFACES] if middle else [b]
    for near, far, network in zip(here, (a, b), networks, strict=False):
        link = f"link add {near} type veth peer name {far} netns /proc/self/fd/{network}"
        _ip(name, link, descriptors=networks)
    if middle:
        _configure_middle(name)
    for side, network in reversed(list(zip(SIDES, networks, strict=False))):
        _call("setns", network, _CLONE_NEWNET)
        _configure(name, side)
    # Both ends of each link are up, so there is a carrier, which the kernel detects later.
    links = [(INTERFACES[side],) for side in SIDES] + [MIDDLE_INTERFACES]
    for names, network in reversed(list(zip(links, networks, strict=False))):
        _call("setns", network, _CLONE_NEWNET)
        for each in names:
            _wait_for_carrier(each)
            # Otherwise packets of the kernel are captured without checksums.
            set_tx_checksum(each, False)
    return networks


def _unshare_first(name: str) -> None:
    """Leave the network namespace of this machine, without root if necessary."""
    try:
        _call("unshare", _CLONE_NEWNET)
        return
    except OSError as error:
        if error.errno != errno.EPERM:
            raise LinkError(name, f"no network namespace: {_reason(error)}") from None
    uid, gid = os.geteuid(), os.getegid()
    try:
        _call("unshare", _CLONE_NEWUSER | _CLONE_NEWNET)
        # Without this an unprivileged process may not map its group (user_namespaces(7)).
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"0 {uid} 1")
        Path("/proc/self/gid_map").write_text(f"0 {gid} 1")
    except OSError as error:
        raise LinkError(name, f"no user namespace: {_reason(error)}; {_FORBIDDEN}") from None


def _reason(error: OSError) -> str:
    # The kernel's error text is about a full disk.
    full = error.errno == errno.ENOSPC
    return "the limit of namespaces is reached" if full else str(error.strerror)


def _configure(name: str, side: str) -> None:
    link = INTERFACES[side]
    # These addresses are unique, and the kernel would not use them during duplicate address
    # detection. Where /proc is read-only, the link-local address is delayed by a second.
    with suppress(OSError):
        Path(f"/proc/sys/net/ipv6/conf/{link}/accept_dad").write_text("0")
    v4, v6 = ADDRESSES[side]
    _ip(name, "link set lo up", f"addr add {v4}/24 dev {link}", f"link set {link} up")
    # A lab also works without IPv6.
    if Path("/proc/net/if_inet6").exists():
        _ip(name, f"addr add {v6}/64 dev {link} nodad")


def _configure_middle(name: str) -> None:
    for link in MIDDLE_INTERFACES:
        if Path("/proc/net/if_inet6").exists():
            # Before it is up, so that it gets no link-local address.
            _ip(name, f"link set {link} addrgenmode none")
        _ip(name, f"link set {link} up")


def _serve(
    listening: socket.socket, networks: Sequence[int], *, attached: bool
) -> socket.socket | None:
    """Pass out descriptors of the namespaces until the creator ends or a request to end comes.

    Returns the connection of that request.
    """
    user = _own_user_namespace()
    waiting: list[socket.socket | int] = [listening]
    if attached:
        waiting.append(sys.stdin.fileno())
    while True:
        ready, _, _ = select.select(waiting, [], [])
        if listening not in ready:
            return None
        connection, _ = listening.accept()
        request = b""
        with suppress(OSError):
            connection.settimeout(_TIMEOUT)
            request = connection.recv(1)
            if request == _ENTER:
                socket.send_fds(connection, [_ENTER], [user, *networks])
        if request == _DOWN:
            return connection
        connection.close()


def _wait_for_carrier(link: str) -> None:
    end = time.monotonic() + _TIMEOUT
    while not interface(link).has_carrier and time.monotonic() < end:
        time.sleep(_STEP)


def _mac(side: str) -> str:
    """02:00 and the IPv4 address."""
    return ":".join(f"{byte:02x}" for byte in (2, 0, *map(int, ADDRESSES[side][0].split("."))))


def _ip(name: str, *commands: str, descriptors: Sequence[int] = ()) -> None:
    """Run commands of ip(8), which inherits the descriptors."""
    program = shutil.which("ip", path=os.environ.get("PATH", "") + ":/usr/sbin:/sbin")
    if program is None:
        raise LinkError(name, "needs the command ip (Debian: apt-get install iproute2)")
    for command in commands:
        done = subprocess.run(
            [program, *command.split()],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            pass_fds=descriptors,
            check=False,
        )
        if done.returncode:
            reason = done.stderr.decode(errors="replace").strip().rpartition("\n")[2]
            hint = f"; {_FORBIDDEN}" if "not permitted" in reason else ""
            raise LinkError(name, f"ip {command}: {reason}{hint}")


# Namespaces.


def _call(name: str, *arguments: int) -> None:
    """Call a namespace function of libc, which Python has only since 3.12."""
    function = getattr(ctypes.CDLL(None, use_errno=True), name, None)
    if function is None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
    if function(*arguments):
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))


def _own_network_namespace() -> int:
    return os.open("/proc/self/ns/net", os.O_RDONLY | os.O_CLOEXEC)


def _own_user_namespace() -> int:
    return os.open("/proc/self/ns/user", os.O_RDONLY | os.O_CLOEXEC)


# Sockets.


def _socket_path(name: str) -> Path:
    if not re.fullmatch(r"[A-Za-z0-9_-]{1,32}", name):
        raise LinkError(name, "invalid name: 1 to 32 letters, digits, _ and - are allowed")
    path = _directory(name) / f"{name}.socket"
    if len(os.fsencode(path)) > _LONGEST_PATH:
        raise LinkError(name, f"{path} is too long for a socket; set XDG_RUNTIME_DIR")
    return path


def _directory(name: str) -> Path:
    """The directory of the sockets, which only this user can access."""
    base = os.environ.get("XDG_RUNTIME_DIR") or tempfile.gettempdir()
    directory = Path(base) / f"ibwire-{os.geteuid()}"
    try:
        found = directory.lstat()
    except FileNotFoundError:
        return directory  # the keeper of the first lab creates it
    except OSError as error:
        raise LinkError(name, f"{directory}: {error.strerror}") from None
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o077:
        raise LinkError(name, f"{directory} is not a private directory of this user")
    return directory


def _connect(path: Path) -> socket.socket | None:
    """A connection to a keeper; `None` without one. The socket of a dead keeper is removed."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC)
    try:
        connection.settimeout(_KEEPER_TIMEOUT)
        connection.connect(str(path))
    except ConnectionRefusedError:
        connection.close()
        _remove(path)
        return None
    except OSError:
        connection.close()
        return None
    return connection


def _remove(path: Path) -> None:
    path.unlink(missing_ok=True)
    with suppress(OSError):  # another lab is up
        path.parent.rmdir()


def _environment() -> dict[str, str]:
    """The environment of this process, in which another Python finds the same ibwire."""
    places = [os.path.abspath(each) for each in sys.path]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(places)}


_PYTHON = (sys.executable, "-P", "-m", "ibwire.lab.veth")
"""Starts this module; with -P no module comes from the current directory."""

_CLONE_NEWUSER = 0x10000000  # linux/sched.h
_CLONE_NEWNET = 0x40000000  # linux/sched.h

_PR_SET_PDEATHSIG = 1  # linux/prctl.h

_READY = b"ready\n"
_ENTER = b"e"
_DOWN = b"d"
_MOST_NAMESPACES = 1 + len(SIDES) + 1

_TIMEOUT = 2.0
"""Seconds that a keeper waits for a client's request, and for a link to have a carrier."""
_KEEPER_TIMEOUT = 10.0
"""Seconds that a client waits for the keeper."""
_SILENT = "its keeper does not respond"
_STEP = 0.001
_LONGEST_PATH = 107
"""Bytes of a socket's path, without the NUL (unix(7))."""

_FORBIDDEN = (
    "this system does not let unprivileged users create namespaces (see the sysctls "
    "user.max_user_namespaces, kernel.unprivileged_userns_clone and "
    "kernel.apparmor_restrict_unprivileged_userns, and the limits of the container): "
    "run the command as root"
)

if __name__ == "__main__":
    main(sys.argv[1:])
