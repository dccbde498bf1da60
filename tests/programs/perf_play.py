"""Plays perf between two emulated ends."""

from __future__ import annotations

from queue import SimpleQueue

from ibwire.impair import build_pipe
from ibwire.programs import perf
from ibwire.programs.perf_flows import Plan
from ibwire.programs.perf_results import Result
from socket_port import endpoints, side_by_side


def play(
    plan: Plan,
    client_plan: Plan | None = None,
    *,
    faults: dict[str, float] | None = None,
    host: str = "127.0.0.1",
) -> tuple[Result, Result]:
    """What client and server have measured; faults: of both directions of the client."""
    a, b = endpoints()
    if faults:
        a.staged.inbound = build_pipe([faults], name="in")
        a.staged.outbound = build_pipe([faults], name="out")
    listens: SimpleQueue[int] = SimpleQueue()
    with a, b, a.port, b.port:
        client, server = side_by_side(
            lambda: perf.connect(a, client_plan or plan, host, listens.get()),
            lambda: perf.serve(b, plan, 0, listens=listens.put),
        )
    return client, server
