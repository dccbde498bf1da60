"""What ibwire does with a tool in the guest, and how both ends show that all of it was done."""

from abc import ABC, abstractmethod
from dataclasses import dataclass

from interop.rxe.peers import GID_INDEX, Meeting
from interop.rxe.wire import OURS

PERF = {
    "send": ("ib_send_bw", ("send",)),
    "write": ("ib_write_bw", ("write",)),
    "read": ("ib_read_bw", ("read",)),
    "compare and swap": ("ib_atomic_bw", ("atomic", "-A", "CMP_AND_SWAP")),
    "fetch and add": ("ib_atomic_bw", ("atomic", "-A", "FETCH_AND_ADD")),
}
"""Tests of perftest: its tool, and the arguments of `ibwire perf`."""

ATOMICS = 300

PINGPONG = {"rc pingpong": "rc", "uc pingpong": "uc", "ud pingpong": "ud"}
"""Tests of rdma-core, by transport service."""


@dataclass(frozen=True)
class Workload(ABC):
    """Messages of some size over a path MTU."""

    name: str
    mtu: int
    size: int
    messages: int

    @abstractmethod
    def ours(self) -> list[str]:
        """The arguments of ibwire."""

    @abstractmethod
    def theirs(self) -> str:
        """The tool and its arguments."""

    @abstractmethod
    def assert_done(self, meeting: Meeting, *, is_client: bool) -> None:
        """All of it, at both ends."""

    @property
    def service(self) -> str:
        """Its transport service, as in the names of opcodes."""
        return "RC"

    def commands(self, version: int, profile: str) -> tuple[list[str], str]:
        """Those of both ends for `Peers.meet`."""
        ours = [*self.ours(), "--address", OURS[version], "--profile", profile, "--json"]
        return ours, f"{self.theirs()} {GID_INDEX[version]}"


class Pingpong(Workload):
    """`ibwire pingpong` with ibv_rc_pingpong, ibv_uc_pingpong or ibv_ud_pingpong."""

    @property
    def service(self) -> str:
        """As in the name of the tool."""
        return PINGPONG[self.name].upper()

    def ours(self) -> list[str]:
        return ["pingpong", "-t", PINGPONG[self.name], *self._common()]

    def theirs(self) -> str:
        return f"ibv_{PINGPONG[self.name]}_pingpong -c {' '.join(self._common())} -g"

    def assert_done(self, meeting: Meeting, *, is_client: bool) -> None:
        """The tool looks at one byte of every page; we look at all."""
        assert meeting.ours.status == 0, meeting.ours.errors
        assert meeting.theirs.status == 0, meeting.theirs.output
        found, told = meeting.ours.found, meeting.theirs.output
        assert found["passed"]
        assert found["sent"] == found["received"] == self.messages
        assert found["wrong"] == 0
        # The tool counts both directions, and reports every unexpected byte.
        assert f"{2 * self.messages * self.size} bytes in" in told
        assert f"{self.messages} iters in" in told
        assert "invalid data" not in told

    def _common(self) -> list[str]:
        # The tool for datagrams has no path MTU.
        mtu = [] if PINGPONG[self.name] == "ud" else ["-m", str(self.mtu)]
        return ["-n", str(self.messages), "-s", str(self.size), *mtu]


class Perf(Workload):
    """`ibwire perf` with the programs of perftest."""

    def ours(self) -> list[str]:
        return ["perf", *PERF[self.name][1], *self._common()]

    def theirs(self) -> str:
        tool, (_, *kind) = PERF[self.name]
        return " ".join([tool, *kind, *self._common(), "-F", "-x"])

    def assert_done(self, meeting: Meeting, *, is_client: bool) -> None:
        """What the tool sends follows a law, by which we verify it; the tool looks at nothing."""
        assert meeting.ours.status == 0, meeting.ours.errors
        assert meeting.theirs.status == 0, meeting.theirs.output
        found, told = meeting.ours.found, meeting.theirs.output
        assert found["passed"]
        assert found["wrong"] == 0
        assert found["path_mtu"] == self.mtu
        if is_client:
            assert found["sent"] == self.messages
        elif self.name == "send":
            assert found["received"] == self.messages
        verified, how = _VERIFIED[self.name, is_client]
        if verified:
            assert how in found["verified"][verified]
        # The row of its table: size, messages, and rates.
        rows = [row.split() for row in told.splitlines()]
        assert [str(self.size), str(self.messages)] in [row[:2] for row in rows]

    def _common(self) -> list[str]:
        size = [] if "atomic" in PERF[self.name][0] else ["-s", str(self.size)]
        return ["-n", str(self.messages), *size, "-m", str(self.mtu)]


_RANDOM = "as runs of glibc's rand()"

_VERIFIED = {
    ("send", True): ("", ""),
    ("send", False): ("messages", _RANDOM),
    ("write", True): ("", ""),
    ("write", False): ("writes", _RANDOM),
    ("read", True): ("results", _RANDOM),
    ("read", False): ("", ""),
    ("compare and swap", True): ("results", "counts up by one"),
    # Those of the tool change nothing.
    ("compare and swap", False): ("memory", "increased by 0"),
    ("fetch and add", True): ("results", "counts up by one"),
    ("fetch and add", False): ("memory", f"increased by {ATOMICS}, of {ATOMICS}"),
}
"""By test and whether ours is the client: what ours verifies of the contents, and how."""


def workload(name: str, mtu: int) -> Workload:
    """One of all of them, of some hundred packets, the last of a message not full."""
    messages = 30 if mtu == 256 else 100
    if name in PINGPONG:
        # A datagram is one packet.
        return Pingpong(name, mtu, mtu if name == "ud pingpong" else 4196, messages)
    if PERF[name][0] == "ib_atomic_bw":
        return Perf(name, mtu, 8, ATOMICS)
    return Perf(name, mtu, 10_001, messages)
