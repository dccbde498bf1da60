"""A network of its own for guests: one bridge in a network namespace that dies with us.

The namespace belongs to a process that only waits for the end of its input, so it goes, with
every interface in it, however the process that made it ends. Without root it stands inside a user
namespace.
"""

import os
import shutil
import subprocess
from itertools import count
from pathlib import Path

from ibwire.base.closing import Closing

LINK_MTU = 9000
"""Room for a path MTU of 4096 and its headers."""

_TUN = Path("/dev/net/tun")

_TOOLS = {"ip": "iproute2", "unshare": "util-linux", "nsenter": "util-linux"}

_SETTINGS = {
    # Only interfaces that request it have IPv6, so that only the ends send packets.
    "net/ipv6/conf/default/disable_ipv6": "1",
    "net/ipv6/conf/default/accept_dad": "0",
    # No interface answers for the address of another.
    "net/ipv4/conf/all/arp_ignore": "1",
    "net/ipv4/conf/all/arp_announce": "2",
}

# The bridge forwards from the first moment and floods multicast to everyone.
_BRIDGE = ("stp_state", "0", "forward_delay", "0", "mcast_snooping", "0")


class NetworkError(Exception):
    """The network cannot be made: one message gives the reason."""


def missing() -> str | None:
    """What the machine lacks for a `Network`, as one sentence."""
    for tool, package in _TOOLS.items():
        if not shutil.which(tool):
            return f"{tool} is not installed (Debian: {package})"
    if not os.access(_TUN, os.R_OK | os.W_OK):
        return f"{_TUN} cannot be opened, so there are no taps"
    try:
        with Network() as network:
            network.add_tap()
    except NetworkError as error:
        return str(error)
    return None


class Network(Closing):
    """A bridge with taps for guests and ports for us, until it is closed.

    Raises `NetworkError` wherever the system refuses.
    """

    def __init__(self) -> None:
        unshare = ["unshare", "--net"]
        self._enter = ["nsenter", "--net"]
        if os.geteuid():
            unshare += ["--user", "--map-root-user"]
            self._enter += ["--user", "--preserve-credentials"]
        self._holder = subprocess.Popen(
            [*unshare, "sh", "-c", "echo made; exec cat"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        self.pid = self._holder.pid
        self._enter += ["--target", str(self.pid), "--"]
        self._numbers = count()
        assert self._holder.stdout
        if not self._holder.stdout.readline():
            assert self._holder.stderr
            reason = self._holder.stderr.read().decode(errors="replace").strip()
            self.close()
            raise NetworkError(f"no network namespace: {reason}")
        try:
            settings = (f"echo {value} >/proc/sys/{name}" for name, value in _SETTINGS.items())
            self.run("sh", "-c", " && ".join(settings))
            self.run("ip", "link", "add", "bridge", "type", "bridge", *_BRIDGE)
            self.run("ip", "link", "set", "bridge", "mtu", str(LINK_MTU), "up")
            self.run("ip", "link", "set", "lo", "up")
        except NetworkError:
            self.close()
            raise

    def command(self, *command: str) -> list[str]:
        """The command as it has to be started to run in the namespace."""
        return [*self._enter, *command]

    def run(self, *command: str) -> str:
        """Run a command in the namespace; its output."""
        run = subprocess.run(self.command(*command), capture_output=True, text=True)
        if run.returncode:
            raise NetworkError(f"{' '.join(command)}: {run.stderr.strip()}")
        return run.stdout

    def add_tap(self) -> str:
        """A tap on the bridge; its name."""
        name = f"tap{next(self._numbers)}"
        self.run("ip", "tuntap", "add", name, "mode", "tap")
        self._join(name)
        return name

    def add_port(self, *addresses: str) -> str:
        """A port of the bridge for a program in the namespace; the name of its interface.

        addresses: what the interface has, each with its prefix length.
        """
        number = next(self._numbers)
        name, other = f"port{number}", f"bridge{number}"
        self.run("ip", "link", "add", name, "type", "veth", "peer", "name", other)
        self._join(other)
        self.run("sh", "-c", f"echo 0 >/proc/sys/net/ipv6/conf/{name}/disable_ipv6")
        self.run("ip", "link", "set", name, "mtu", str(LINK_MTU), "up")
        for address in addresses:
            self.run("ip", "address", "add", address, "dev", name)
        return name

    def _join(self, name: str) -> None:
        self.run("ip", "link", "set", name, "mtu", str(LINK_MTU), "master", "bridge", "up")

    def close(self) -> None:
        """Let the namespace go, with all that is in it, when nothing runs there any more."""
        # The holder ends at the end of its input.
        self._holder.communicate()
