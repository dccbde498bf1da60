"""Two ends and a middle, each a network namespace: where a tap is tried.

    end a: eth0 10.0.0.1 --- eth1  middle  eth2 --- eth0 10.0.0.2: end b

Nothing joins the two interfaces of the middle but what a test starts there. Everything goes when
the processes that hold the namespaces do. Without root they stand in a user namespace.
"""

import os
import shutil
import subprocess
from contextlib import ExitStack

MTU = 9000

_SETTINGS = {
    # Only what a test sends shall be on the wire.
    "net/ipv6/conf/default/disable_ipv6": "1",
    "net/ipv6/conf/default/accept_dad": "0",
}


class WireError(Exception):
    """It cannot be made: one message gives the reason."""


class Wire:
    """The three namespaces; a context manager."""

    def __init__(self, ipv6: bool = False) -> None:
        for tool in ("ip", "unshare", "nsenter"):
            if not shutil.which(tool):
                raise WireError(f"{tool} is not installed")
        self._stack = ExitStack()
        rootless = ["--user", "--map-root-user"] if os.geteuid() else []
        self._into = ["--user", "--preserve-credentials"] if os.geteuid() else []
        try:
            self._pids = {"middle": self._hold(["unshare", "--net", *rootless])}
            self._set("middle")
            for side, inner in (("a", "eth1"), ("b", "eth2")):
                self._pids[side] = self._hold([*self.command("middle"), "unshare", "--net"])
                if not ipv6:
                    self._set(side)
                self._join(side, inner, ipv6)
        except BaseException:
            self.close()
            raise

    def command(self, where: str, *arguments: object) -> list[str]:
        """The command line that runs another one in `a`, `b` or `middle`."""
        target = ["--target", str(self._pids[where])]
        return ["nsenter", "--net", *self._into, *target, "--", *map(str, arguments)]

    def run(self, where: str, *arguments: object) -> str:
        """Run a command to its end; what it prints."""
        done = subprocess.run(self.command(where, *arguments), capture_output=True, text=True)
        if done.returncode:
            raise WireError(f"{' '.join(map(str, arguments))}: {done.stderr.strip()}")
        return done.stdout

    def mac(self, where: str, name: str) -> str:
        return self.run(where, "cat", f"/sys/class/net/{name}/address")

    def close(self) -> None:
        self._stack.close()

    def __enter__(self) -> "Wire":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _hold(self, command: list[str]) -> int:
        holder = subprocess.Popen(
            [*command, "sh", "-c", "echo $$; exec cat"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        self._stack.callback(holder.communicate)
        assert holder.stdout
        assert holder.stderr
        pid = holder.stdout.readline()
        if not pid:
            raise WireError(f"no namespace: {holder.stderr.read().decode().strip()}")
        return int(pid)

    def _set(self, where: str) -> None:
        for name, value in _SETTINGS.items():
            self.run(where, "sh", "-c", f"echo {value} > /proc/sys/{name}")

    def _join(self, side: str, inner: str, ipv6: bool) -> None:
        number = "ab".index(side) + 1
        self.run(
            "middle",
            "ip",
            "link",
            "add",
            inner,
            "mtu",
            MTU,
            "type",
            "veth",
            "peer",
            "name",
            "eth0",
            "mtu",
            MTU,
            "netns",
            self._pids[side],
        )
        self.run(side, "ip", "link", "set", "eth0", "address", f"02:00:0a:00:00:0{number}")
        self.run(side, "ip", "addr", "add", f"10.0.0.{number}/24", "dev", "eth0")
        self.run(side, "ip", "link", "set", "lo", "up")
        self.run(side, "ip", "link", "set", "eth0", "up")
        if ipv6:
            self.run(side, "ip", "addr", "add", f"fd00::{number}/64", "dev", "eth0", "nodad")
        self.run("middle", "ip", "link", "set", inner, "up")
