"""How many packets a second `ibwire tap` passes on without loss: a measurement, not a test.

    python tests/bench/tap.py [--rate N] [--seconds S] [--size BYTES] [--rules N] [-o FILE]

Two veth pairs in separate namespaces, joined by the tap with a plan of 100 rules. At one end
a process sends RDMA WRITE packets to 16 queue pairs, with increasing PSNs, at the given
rate; at the other the interface counts the frames. No process receives them, so that a third
one does not share two cores. Rates are tried from low to high unless one is given.
`ran` and `waited` are shares of the time: how long the tap had a processor, and how long it
waited for one that other programs used; losses during that time say little about it. On a busy
machine `chrt -r 5` in front of the command gives it one.
"""

from __future__ import annotations

import argparse
import json
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "layers"), str(ROOT / "tests")]

import numpy as np  # noqa: E402

from ibwire.tap.bridge import Arrived, Side  # noqa: E402
from ibwire_layers import Packet  # noqa: E402
from ibwire_layers.headers import BTH  # noqa: E402
from ibwire_layers.outer import UDP, Ethernet, IPv4  # noqa: E402
from ibwire_layers.packet import RoCEv2Route  # noqa: E402
from live.tap_wire import Wire  # noqa: E402

RATES = (50_000, 100_000, 125_000, 150_000, 175_000, 200_000, 250_000)
QUEUE_PAIRS = 16
BATCH = 32


def main() -> None:
    options = _options()
    if options.send:
        send(options.rate, options.seconds, options.size)
        return
    print("asked/s   sent/s    passed/s  lost before, in, behind the tap  rules met  ran   waited")
    for rate in [options.rate] if options.rate else RATES:
        print(measure(rate, options), flush=True)


def measure(rate: int, options: argparse.Namespace) -> str:
    with tempfile.TemporaryDirectory() as folder, Wire() as wire:
        plan = Path(folder) / "plan.toml"
        plan.write_text(rules(options.rules, int(rate * options.seconds)))
        output = ["-o", options.output] if options.output else []
        command = [sys.executable, "-c", _TAP, "--between", "eth1", "eth2", "--json"]
        tap = subprocess.Popen(
            wire.command("middle", *command, "--plan", plan, *output),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=ROOT,
            text=True,
        )
        try:
            assert tap.stderr
            while "passing" not in (line := tap.stderr.readline()):
                assert line, "the tap has died"
            before, ran_before = received(wire), processor(tap.pid)
            command = [sys.executable, __file__, "--send", "--rate", rate, "--seconds"]
            told = wire.run("a", *command, options.seconds, "--size", options.size)
            sent, seconds = json.loads(told)
            time.sleep(0.5)
            passed = received(wire) - before
            ran, waited = (
                (now - then) / seconds
                for now, then in zip(processor(tap.pid), ran_before, strict=True)
            )
        finally:
            tap.send_signal(signal.SIGINT)
            out, _ = tap.communicate()
        *events, end = map(json.loads, out.splitlines())
        dropped = sum(each["action"] == "drop" for each in events)
        taken, left = end["frames"]["eth1"], end["frames"]["eth2"]
        no_room = taken.get("no_room", 0)
        before_it = sent - taken["received"] - no_room
        in_it = no_room + taken["received"] - dropped - left["sent"]
        lost = f"{before_it}, {in_it}, {left['sent'] - passed}"
        speed, through = sent / seconds, passed / seconds
        shares = f"{ran:<5.0%} {waited:.0%}"
        return f"{rate:<9} {speed:<9.0f} {through:<9.0f} {lost:<32} {len(events):<10} {shares}"


def rules(count: int, packets: int) -> str:
    """Rules spread over the whole run: each is for one packet, half of them drop it."""
    each = packets // QUEUE_PAIRS // max(1, count)
    return "\n".join(
        f"[[from.a]]\n{('drop', 'mark_ecn')[number % 2]} = "
        f"{{ connection = {number % QUEUE_PAIRS + 1}, psn = {number * each}, nth = 1 }}"
        for number in range(count)
    )


def received(wire: Wire) -> int:
    """Frames that have come to the other end: its /proc is its own, its /sys is not."""
    (line,) = (
        each for each in wire.run("b", "cat", "/proc/net/dev").splitlines() if "eth0" in each
    )
    return int(line.split(":")[1].split()[1])


def processor(pid: int) -> tuple[float, float]:
    """Seconds for which a process has run, and has waited for a processor that others had."""
    ran, waited, _ = Path(f"/proc/{pid}/schedstat").read_text().split()
    return int(ran) / 1e9, int(waited) / 1e9


def send(rate: int, seconds: float, size: int) -> None:
    """Send at a rate; prints how many frames, and for how long."""
    with Side("eth0") as side:
        # As if the batch had come from somewhere: nothing is made or copied but the PSNs.
        frames = [b"".join((bytes(10), packet(qp, size))) for qp in range(QUEUE_PAIRS)]
        rows = np.array([list(each) for each in frames * (BATCH // QUEUE_PAIRS)], np.uint8)
        width = rows.shape[1]
        starts = np.arange(BATCH, dtype=np.int64) * width + 10
        lengths = np.full(BATCH, width - 10)
        batch = Arrived(rows.reshape(-1), starts, lengths, np.zeros(BATCH, np.bool_))
        total = int(rate * seconds) // BATCH * BATCH
        begin = time.perf_counter()
        for first in range(0, total, BATCH):
            psns = (np.arange(first, first + BATCH) // QUEUE_PAIRS).astype(">u4")
            rows[:, 61:64] = psns.view(np.uint8).reshape(BATCH, 4)[:, 1:]
            # Asleep, not spinning: the processors are for the tap.
            ahead = first / rate - (time.perf_counter() - begin)
            if ahead > 0:
                time.sleep(ahead)
            side.forward(batch)
        print(json.dumps([side.counters["sent"], time.perf_counter() - begin]))


def packet(qp: int, size: int) -> bytes:
    """The ICRC is that of PSN 0: neither the tap nor the counter looks."""
    route = RoCEv2Route(
        IPv4(src=0x0A000001, dst=0x0A000002, ecn=2),
        UDP(src_port=0xC000 + qp, dst_port=4791),
        # Without a receiver: otherwise the kernel would look for a socket and respond by ICMP.
        Ethernet(dst=0x02FF00000001, src=0x02000A000001),
    )
    bth = BTH(opcode=0x07, dest_qp=0x100 + qp)
    return Packet(route, bth, (), bytes(size)).repaired().build()


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("--rate", type=int)
    parser.add_argument("--seconds", type=float, default=3)
    parser.add_argument("--size", type=int, default=1024)
    parser.add_argument("--rules", type=int, default=100)
    parser.add_argument("-o", "--output")
    parser.add_argument("--send", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args()


_TAP = "from ibwire.cli.tap import command; command()"

if __name__ == "__main__":
    main()
