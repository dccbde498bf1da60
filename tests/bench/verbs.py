"""CPU time of a message through the verbs face, both devices and the network included.

    python tests/bench/verbs.py [--messages N] [--rounds N]

SENDs of 64 bytes: back and forth, each posted when the one before has completed; and bursts of
16 in one direction. A message includes its receive request, its work requests and elements, and
the polling of both completion queues. The garbage collector is set as the command `ibwire` sets it.
"""

from __future__ import annotations

import argparse
import gc
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "verbs"))

from ends import End, ends

from ibwire.base.collector import set_collector
from ibwire.base.compiled import describe_build
from ibwire.verbs.libibverbs_enums import ibv_wr_opcode
from ibwire.verbs.network import Network, use

SIZE = 64
BURST = 16


def post(sender: End, receiver: End) -> None:
    """One message, and the request that receives it."""
    receiver.qp.post_recv(receiver.recv(SIZE))
    sender.qp.post_send(sender.send(ibv_wr_opcode.IBV_WR_SEND, SIZE))


def back_and_forth(a: End, b: End, messages: int) -> None:
    """Messages in turns, each after the one before has completed at both ends."""
    for _ in range(messages // 2):
        for sender, receiver in ((a, b), (b, a)):
            post(sender, receiver)
            assert not receiver.wc().status
            assert not sender.wc().status


def bursts(a: End, b: End, messages: int) -> None:
    """Messages from `a` to `b`, some at once."""
    for _ in range(messages // BURST):
        for _ in range(BURST):
            post(a, b)
        for end in (b, a):
            left = BURST
            while left:
                left -= end.cq.poll(left)[0]


JOBS = {"back and forth": back_and_forth, f"bursts of {BURST}": bursts}


def measure(name: str, messages: int) -> float:
    """CPU time of a message in microseconds."""
    with use(Network()):
        a, b = ends()
        gc.collect()
        start = time.process_time()
        JOBS[name](a, b, messages)
        return (time.process_time() - start) / messages * 1e6


if __name__ == "__main__":
    set_collector()
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=4800)
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    print(f"ibwire: {describe_build()}; SENDs of {SIZE} bytes, least of {given.rounds} rounds\n")
    times: dict[str, list[float]] = {name: [] for name in JOBS}
    for _ in range(given.rounds):
        for name, found in times.items():
            found.append(measure(name, given.messages))
    for name, found in times.items():
        print(f"{name}: {min(found):.1f} µs a message")
