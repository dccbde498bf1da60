"""Live: connections of the RDMA connection manager with the kernel's, made by rping and others."""

import json
import os
import re
import select
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from ibwire.capture import open_capture
from ibwire.programs.rping import ping_data
from ibwire_layers import cm
from ibwire_layers.packet import CrcStatus, Packet
from interop.rxe.boot import Guest, Result
from interop.rxe.peers import Peers
from interop.rxe.wire import OURS, THEIRS
from processes import ending

CM_END = Path(__file__).with_name("cm_end.py")

LIMIT = 120.0
"""Seconds for anything; a lost message of the connection manager costs 6.4."""

SHORTEST_TIMEOUT_NS = 1_000_000_000
"""No message of the connection manager is retransmitted earlier, by either side."""

RPING_PORT = 7174

ANY = {4: "0.0.0.0", 6: "::0"}

WHOLE = ["client REQ", "server REP", "client RTU", "client DREQ", "server DREP"]
"""The messages on QP1 when nothing is lost, and the client disconnects."""

Start = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def start(peers: Peers) -> Iterator[Start]:
    """Starts Python where our port is; whatever still runs is ended with the test."""
    with ending() as processes:
        yield lambda *arguments: processes.start(peers.network.command(sys.executable, *arguments))


class Ended(NamedTuple):
    """How a command of ours ended."""

    status: int
    output: str
    errors: str


CLOSED_CHANNEL = "rdma_get_cm_event: Bad file descriptor\n"


def assert_content(rping: Result) -> None:
    """The guest's rping has done all it was to do.

    Its main thread closes the channel of events last of all. Versions without rdma-core's
    `cb->eventfd` (librdmacm/examples/rping.c) do so while `cm_thread` may still read it, which
    then ends the program with -1.
    """
    if rping.status == 255 and CLOSED_CHANNEL in rping.output:
        others = rping.output.replace(CLOSED_CHANNEL, "")
        assert not re.search("failed|error", others, re.IGNORECASE), rping
    else:
        assert rping.status == 0, rping


def end(process: subprocess.Popen[str], limit: float = LIMIT) -> Ended:
    output, errors = process.communicate(timeout=limit)
    return Ended(process.returncode, output, errors)


def next_result(process: subprocess.Popen[str]) -> Any:
    """The result of a connection of our server, when it has ended."""
    assert process.stdout
    output, line = process.stdout.fileno(), b""
    while not line.endswith(b"\n"):
        assert select.select([output], [], [], LIMIT)[0], "no result"
        byte = os.read(output, 1)
        assert byte, end(process)
        line += byte
    return json.loads(line)


class RPing:
    """rping of ours and of the guest, in one role each."""

    def __init__(self, peers: Peers, start: Start, capture: Path) -> None:
        self.peers = peers
        self.start = start
        self.capture = capture

    def ours(self, *arguments: object) -> subprocess.Popen[str]:
        command = ("-m", "ibwire", "rping", "--dev", self.peers.port)
        return self.start(*command, *map(str, arguments))

    def serve(self, *arguments: object) -> subprocess.Popen[str]:
        """Our server, when it listens."""
        process = self.ours(*arguments)
        assert process.stderr
        for line in process.stderr:
            if "waiting for a client" in line:
                return process
        raise AssertionError(end(process))

    def meet(
        self, role: str, version: int, ours: Sequence[object], theirs: str
    ) -> tuple[Ended, str]:
        """How both fare, the guest's being content."""
        guest = self.peers.guest
        with guest.capture(self.capture):
            if role == "client":
                job = guest.start(f"rping -s -a {ANY[version]} {theirs}")
                wait_for_listener(guest)
                running = self.ours("--connect", THEIRS[version], *ours)
            else:
                running = self.serve(*ours)
                job = guest.start(f"rping -c -a {OURS[version]} {theirs}")
            own = end(running)
            other = job.wait(LIMIT)
        assert own.status == 0, (own, other)
        assert_content(other)
        return own, other.output

    def assert_clean(self, profile: str) -> None:
        """Every ICRC is good, and no rule broken."""
        check = [sys.executable, "-m", "ibwire", "check", "--profile", profile, str(self.capture)]
        checked = subprocess.run(check, capture_output=True, text=True)
        assert (checked.returncode, checked.stderr) == (0, "")
        assert ": 0 errors, 0 warnings" in checked.stdout
        assert {packet.icrc_status() for packet in self.packets()} == {CrcStatus.GOOD}

    def packets(self) -> list[Packet]:
        return [packet for _, packet in self._timed_packets()]

    def assert_messages(self, expected: Sequence[str], *, client_is_ours: bool) -> None:
        """The messages on QP1, as the guest sees them, are the expected ones.

        A slow guest may answer after the timeout of the other side: what was retransmitted then,
        and the answers to that, may come in addition.
        """
        mac = int(self.peers.guest.mac.replace(":", ""), 16)
        found: list[str] = []
        last: dict[str, int] = {}
        late = 0
        for time_ns, packet in self._timed_packets():
            if packet.bth.dest_qp != 1:
                continue
            is_client = (packet.route.eth.src != mac) == client_is_ours
            name = cm.CMAttribute(int.from_bytes(packet.payload[16:18])).name
            message = f"{'client' if is_client else 'server'} {name}"
            late += message in last and time_ns - last[message] >= SHORTEST_TIMEOUT_NS
            last[message] = time_ns
            found.append(message)
        if late > len(expected) - len(set(expected)):
            assert list(dict.fromkeys(found)) == list(dict.fromkeys(expected)), found
            assert Counter(found) >= Counter(expected), found
        else:
            assert found == list(expected)

    def _timed_packets(self) -> list[tuple[int, Packet]]:
        with open_capture(self.capture) as capture:
            frames = [(record.time_ns, record.data) for record in capture.records()]
        return [(time_ns, Packet.parse(frame)) for time_ns, frame in frames if is_roce(frame)]


def is_roce(frame: bytes) -> bool:
    """Whether UDP port 4791 stands where either IP version has it."""
    return b"\x12\xb7" in (frame[36:38], frame[56:58])


def wait_for_listener(guest: Guest) -> None:
    listens = f"rdma resource show cm_id | grep -q 'LISTEN.*:{RPING_PORT}'"
    guest.check(f"until {listens}; do sleep 0.05; done", LIMIT)


@pytest.fixture
def rping(peers: Peers, start: Start, tmp_path: Path) -> RPing:
    return RPing(peers, start, tmp_path / "guest.pcap")


def lines(count: int, size: int, word: str) -> str:
    """What rping prints of its pings."""
    texts = (ping_data(number, size).rstrip(b"\0").decode() for number in range(count))
    return "".join(f"{word} data: {text}\n" for text in texts)


@pytest.mark.parametrize("profile", ["rxe", "spec"])
@pytest.mark.parametrize("version", [4, 6])
@pytest.mark.parametrize("role", ["client", "server"])
def test_rping_pings_and_both_have_the_same_data(
    rping: RPing, role: str, version: int, profile: str
) -> None:
    own, other = rping.meet(
        role,
        version,
        ["-C", 10, "-v", "--address", OURS[version], "--profile", profile],
        "-C 10 -v -V",
    )

    is_client = role == "client"
    word, other_word = ("ping", "server ping") if is_client else ("server ping", "ping")
    assert own.output.startswith(lines(10, 64, word))
    assert "10 pings of 64 bytes, contents verified" in own.output
    assert lines(10, 64, other_word) in other
    assert "mismatch" not in other
    rping.assert_messages(WHOLE, client_is_ours=is_client)
    # cm-rping has as many packets for as many pings, after the first three messages. Each is
    # counted once, since a busy machine may retransmit some.
    headers = [(each.route.eth.src, each.bth) for each in rping.packets()]
    once = {(src, bth.dest_qp, bth.opcode, bth.psn) for src, bth in headers if bth.dest_qp != 1}
    assert len(once) == 120
    assert [bth.dest_qp for _, bth in headers[:3]] == [1, 1, 1]
    rping.assert_clean(profile)


@pytest.mark.parametrize("role", ["client", "server"])
def test_largest_pings_arrive_whole(rping: RPing, role: str) -> None:
    own, _ = rping.meet(role, 4, ["-C", 5, "-S", 65535, "--json"], "-C 5 -S 65535 -V")

    result = json.loads(own.output)
    assert (result["pings"], result["size"], result["validated"]) == (5, 65535, True)
    rping.assert_clean("rxe" if role == "server" else "spec")


@pytest.mark.parametrize("role", ["client", "server"])
def test_rping_that_brings_its_queue_pair_up_itself_is_content(rping: RPing, role: str) -> None:
    """Option -q: the queue pair is not the RDMA-CM's, and `rdma_establish` sends the RTU."""
    own, _ = rping.meet(role, 4, ["-C", 3], "-q -C 3 -V")

    assert "3 pings of 64 bytes, contents verified" in own.output
    rping.assert_messages(WHOLE, client_is_ours=role == "client")


LOSSES = {
    # Which of the messages that we send or receive on QP1 is lost, by our role; and what the
    # guest sees then. What we lose on its way in, it has sent.
    ("client", "out", 1): ["client REQ", *WHOLE[1:]],
    ("client", "in", 1): ["client REQ", "server REP", "server REP", *WHOLE[2:]],
    # To rping's server data does not stand for the RTU: it waits until the kernel asks again.
    ("client", "out", 2): [*WHOLE[:2], *WHOLE[1:]],
    ("client", "out", 3): WHOLE,
    ("client", "in", 2): [*WHOLE, *WHOLE[3:]],
    ("server", "in", 1): ["client REQ", *WHOLE],
    ("server", "out", 1): WHOLE,
    ("server", "in", 2): WHOLE,
}


@pytest.mark.parametrize(("role", "direction", "number"), LOSSES)
def test_lost_message_of_the_connection_manager_is_made_up_for(
    rping: RPing, tmp_path: Path, role: str, direction: str, number: int
) -> None:
    plan = tmp_path / "plan.toml"
    plan.write_text(f"[[{direction}]]\ndrop = {{ dest_qp = 1, nth = {number} }}\n")

    own, _ = rping.meet(role, 4, ["-C", 3, "--faults", plan], "-C 3 -V")

    assert "3 pings of 64 bytes, contents verified" in own.output
    assert "faults 1" in own.errors
    rping.assert_messages(LOSSES[role, direction, number], client_is_ours=role == "client")
    rping.assert_clean("rxe")


def test_missing_listener_in_the_guest_is_one_message(rping: RPing) -> None:
    with rping.peers.guest.capture(rping.capture):
        own = end(rping.ours("--connect", THEIRS[4], "-C", 1))

    assert own.status == 1
    assert own.errors.endswith(f"error: {THEIRS[4]} port 7174: no program listens there (REJ 8)\n")
    rping.assert_messages(["client REQ", "server REJ"], client_is_ours=True)
    rping.assert_clean("rxe")


def test_rping_gets_a_refusal_without_a_listener_here(rping: RPing) -> None:
    """IB_CM_REJ_INVALID_SERVICE_ID is 8; as in cm-reject."""
    rping.serve("-p", 7175)
    with rping.peers.guest.capture(rping.capture):
        output = rping.peers.guest.run(f"rping -c -a {OURS[4]} -C 1", LIMIT).output

    assert "RDMA_CM_EVENT_REJECTED, error 8" in output
    rping.assert_messages(["client REQ", "server REJ"], client_is_ours=False)
    rping.assert_clean("rxe")


def test_several_clients_of_one_server_are_served_at_once(rping: RPing) -> None:
    serving = rping.serve("-P", "--json")
    guest = rping.peers.guest
    with guest.capture(rping.capture):
        jobs = [guest.start(f"rping -c -a {OURS[4]} -C 50 -S 5000 -V") for _ in range(3)]
        theirs = [job.wait(LIMIT) for job in jobs]
        results = [next_result(serving) for _ in jobs]
    serving.terminate()
    own = end(serving)

    for each in theirs:
        assert_content(each)
    assert (own.status, own.output) == (128 + 15, "")
    assert [(each["pings"], each["validated"]) for each in results] == [(50, True)] * 3
    rping.assert_clean("spec")


def test_guest_that_vanishes_is_noticed(rping: RPing) -> None:
    """Its cable is pulled; ours gives up, whichever end had to send."""
    peers = rping.peers
    job = peers.guest.start(f"rping -s -a {ANY[4]}")
    wait_for_listener(peers.guest)
    running = rping.ours("--connect", THEIRS[4], "-v")
    assert running.stdout
    for line in running.stdout:
        if "rdma-ping-20:" in line:
            break
    peers.network.run("ip", "link", "set", peers.tap, "down")
    try:
        own = end(running)
    finally:
        peers.network.run("ip", "link", "set", peers.tap, "up")
        job.kill()

    assert own.status == 1
    gone = f"{THEIRS[4]} port 7174: no longer acknowledges (RETRY_EXC_ERR)"
    silent = f"no response from {THEIRS[4]} port 7174 for 20 s"
    assert own.errors.splitlines()[-1] in (f"error: {gone}", f"error: {silent}")


def test_rping_that_is_killed_does_not_hold_its_server(rping: RPing) -> None:
    """The kernel disconnects for it."""
    serving = rping.serve("-P", "--json")
    job = rping.peers.guest.start(f"rping -c -a {OURS[4]}")
    rping.peers.wait_for_traffic(100)
    job.kill()
    first = next_result(serving)
    again = rping.peers.guest.run(f"rping -c -a {OURS[4]} -C 2 -V", LIMIT)
    second = next_result(serving)

    assert_content(again)
    assert first["pings"] > 0
    assert (second["pings"], second["problem"]) == (2, None)


def other_end(peers: Peers, start: Start, role: str) -> subprocess.Popen[str]:
    """`cm_end.py` when it is ready."""
    wanted = {"role": role, "interface": peers.port, "address": OURS[4], "host": THEIRS[4]}
    process = start(str(CM_END), json.dumps(wanted))
    assert process.stdout
    assert process.stdout.readline() == "ready\n"
    return process


def test_ucmatose_exchanges_its_messages(peers: Peers, start: Start, rping: RPing) -> None:
    process = other_end(peers, start, "ucmatose")
    with peers.guest.capture(rping.capture):
        told = peers.guest.check(f"ucmatose -s {OURS[4]}", LIMIT)
        own = end(process)

    assert "test complete" in told
    assert "return status 0" in told
    assert json.loads(own.output) == {"received": [100] * 10, "statuses": ["SUCCESS"]}
    rping.assert_clean("spec")


def test_queue_pair_of_udaddy_is_resolved(peers: Peers, start: Start, rping: RPing) -> None:
    """SIDR; its Q_Key is that of the UDP port space (cm-udaddy)."""
    with peers.guest.capture(rping.capture):
        job = peers.guest.start("udaddy")
        wait_for_listener(peers.guest)
        own = json.loads(end(other_end(peers, start, "udaddy")).output)
        told = peers.guest.check("rdma resource show qp link rxe0/1 type UD", LIMIT)
        job.kill()

    assert (own["status"], own["qkey"]) == (0, 0x01234567)
    assert str(own["qpn"]) in re.findall(r"lqpn (\d+) type UD", told)
    rping.assert_messages(["client SIDR_REQ", "server SIDR_REP"], client_is_ours=True)
