"""How fast ibwire is as the peer of Soft-RoCE, beside two Soft-RoCE guests: a measurement.

    make bench-rxe

Messages of 4096 bytes at path MTU 4096 in one direction, and the time of a message of one
way of a ping-pong, half the round trip, as perftest's programs measure both. In each round
every pair has its turn; the table has medians over the rounds. Last, two ibwire processes
over a veth pair, with the same programs.
"""

import json
import statistics
import subprocess
import sys
from collections.abc import Iterator
from typing import NamedTuple

from ibwire.lab.veth import Lab
from interop.rxe import boot
from interop.rxe.boot import Guest
from interop.rxe.network import Network

ROUNDS = 3
LIMIT = 120
"""Seconds that one measurement may take."""

IBWIRE = [sys.executable, "-m", "ibwire", "perf"]


class Test(NamedTuple):
    """One program of perftest, and the same as ibwire has it."""

    title: str
    program: str
    verb: tuple[str, ...]
    options: str
    column: int
    """Of the program's line of results: messages a second in millions, or microseconds."""
    unit: str


TESTS = (
    Test("SEND", "ib_send_bw", ("send",), "-n 5000 -s 4096", 4, "messages/s"),
    Test("WRITE", "ib_write_bw", ("write",), "-n 5000 -s 4096", 4, "messages/s"),
    Test("SEND 64 B", "ib_send_lat", ("send", "--latency"), "-n 1000 -s 64", 4, "us"),
    Test("WRITE 4096 B", "ib_write_lat", ("write", "--latency"), "-n 1000 -s 4096", 4, "us"),
)

PORT = 18515


def main() -> None:
    """Print the table."""
    found: dict[tuple[str, str], list[float]] = {}
    with Network() as network, Guest(network) as one, Guest(network) as other:
        one.add_rxe("10.0.0.1/24")
        other.add_rxe("10.0.0.2/24")
        device = network.add_port("10.0.0.9/24")
        for number in range(ROUNDS):
            for test in TESTS:
                for pair, value in _round(test, network, one, other, device):
                    found.setdefault((test.title, pair), []).append(value)
                    print(f"round {number + 1}: {test.title}, {pair}: {value:.0f}", file=sys.stderr)
        accel = one.accel
    with Lab.create() as lab:
        for _ in range(ROUNDS):
            for test in TESTS:
                found.setdefault((test.title, "ibwire -> ibwire"), []).append(_own(test, lab))
    print(f"{ROUNDS} rounds, medians; guests under {accel}\n")
    pairs = ("rxe -> rxe", "ibwire -> rxe", "rxe -> ibwire", "ibwire -> ibwire")
    print(f"| test | unit | {' | '.join(pairs)} |")
    print(f"|---|---|{'---|' * len(pairs)}")
    for test in TESTS:
        medians = [statistics.median(found[test.title, pair]) for pair in pairs]
        cells = [f"{medians[0]:,.0f}"]
        cells += [f"{value:,.0f} ({value / medians[0]:.2f})" for value in medians[1:]]
        print(f"| {test.title} | {test.unit} | {' | '.join(cells)} |")


def _round(
    test: Test, network: Network, one: Guest, other: Guest, device: str
) -> Iterator[tuple[str, float]]:
    """Each pair once: the sender, and the receiver."""
    tool = f"{test.program} -F -d {boot.DEVICE} -x 1 -m 4096 {test.options}"
    ours = [*IBWIRE, *test.verb, *test.options.split(), "-m", "4096", "--json", "--dev", device]

    served = one.start(tool)
    one.wait_for_port(PORT)
    yield "rxe -> rxe", _of_tool(test, other.check(f"{tool} 10.0.0.1", LIMIT))
    served.wait(LIMIT)

    served = one.start(tool)
    one.wait_for_port(PORT)
    sending = network.command(*ours, "--connect", "10.0.0.1")
    yield (
        "ibwire -> rxe",
        _of_ours(test, subprocess.check_output(sending, stderr=subprocess.DEVNULL, timeout=LIMIT)),
    )
    served.wait(LIMIT)

    with _serving(network.command(*ours)) as serving:
        yield "rxe -> ibwire", _of_tool(test, other.check(f"{tool} 10.0.0.9", LIMIT))
        serving.communicate(timeout=LIMIT)


def _own(test: Test, lab: Lab) -> float:
    ours = [*IBWIRE, *test.verb, *test.options.split(), "-m", "4096", "--json", "--dev"]
    environment = lab.environment()
    with _serving(lab.command("b", [*ours, "veth-b"]), environment) as serving:
        sending = lab.command("a", [*ours, "veth-a", "--connect", "10.0.0.2"])
        output = subprocess.check_output(
            sending, env=environment, stderr=subprocess.DEVNULL, timeout=LIMIT
        )
        serving.communicate(timeout=LIMIT)
    return _of_ours(test, output)


def _serving(
    command: list[str], environment: dict[str, str] | None = None
) -> subprocess.Popen[str]:
    """A server of ours that can be connected to."""
    serving = subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert serving.stderr
    for line in serving.stderr:
        if "waiting" in line:
            break
    return serving


def _of_tool(test: Test, output: str) -> float:
    """The figure in the last line of numbers of a program's output."""
    size = test.options.split()[-1]
    lines = [line.split() for line in output.splitlines() if line.split()[:1] == [size]]
    value = float(lines[-1][test.column])
    return value * 1e6 if test.unit == "messages/s" else value


def _of_ours(test: Test, output: bytes) -> float:
    found = json.loads(output)
    if test.unit == "messages/s":
        return found["bandwidth"]["rate_mpps"] * 1e6
    return found["latency_us"]["t_typical"]


if __name__ == "__main__":
    main()
