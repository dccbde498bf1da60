"""A part of the way that carries only smaller packets, found after a queue pair has failed."""

from __future__ import annotations

from queue import SimpleQueue

import pytest

from each_case import each_case
from ibwire.base.errors import PeerError
from ibwire.base.node import Frame
from ibwire.base.units import Time
from ibwire.programs import perf, pingpong
from ibwire.programs.path_probe import _largest
from ibwire.programs.perf_flows import Plan
from ibwire.programs.perftest import Verb
from ibwire.rc.work import WCStatus
from socket_port import SocketEndpoint, endpoints, side_by_side

ETHERNET = 14


def narrow(endpoint: SocketEndpoint, mtu: int) -> None:
    """Lose all larger packets that it sends."""

    def stage(frame: Frame, now: Time) -> list[tuple[Time, Frame]]:
        return [(0, frame)] if len(frame) - ETHERNET <= mtu else []

    endpoint.staged.outbound = stage


@pytest.mark.slow
@pytest.mark.parametrize(("mtu", "size", "fits"), [(1500, 1500, 1024), (300, 300, 0)])
def test_largest_packet_that_reaches_the_peer_is_reported(mtu: int, size: int, fits: int) -> None:
    """IPv4, UDP, BTH and ICRC are 44 bytes; payload comes in steps of four."""
    a, b = endpoints()
    narrow(a, mtu)
    listens: SimpleQueue[int] = SimpleQueue()
    plan = pingpong.Plan(size=8000, mtu=4096, stall_timeout=4)

    def server() -> None:
        with pytest.raises(PeerError, match="no message from"):
            pingpong.serve(b, plan, 0, listens=listens.put)

    with a, b, a.port, b.port:
        client, _ = side_by_side(
            lambda: pingpong.connect(a, plan, "127.0.0.1", listens.get()), server
        )

    advice = f"use a path MTU of {fits} (-m {fits})" if fits else "no path MTU fits"
    assert client.status is WCStatus.RETRY_EXC_ERR
    assert client.cause.endswith(
        f"; packets of {size} bytes with IP header reach the peer, larger ones do not, as a part "
        f"of the way has a smaller MTU: {advice}"
    )


@pytest.mark.slow
def test_perf_reports_it_in_the_middle_of_a_test() -> None:
    a, b = endpoints()
    listens: SimpleQueue[int] = SimpleQueue()
    plan = Plan(Verb.WRITE, size=4096, messages=1000, mtu=4096)

    def client() -> None:
        narrow(a, 2128)
        with pytest.raises(PeerError, match=r"packets of 2128 bytes .*: use a path MTU of 2048"):
            perf.connect(a, plan, "127.0.0.1", listens.get())

    def server() -> None:
        with pytest.raises(PeerError):
            perf.serve(b, plan, 0, listens=listens.put)

    with a, b, a.port, b.port:
        side_by_side(client, server)


@each_case(
    ("limit", "found"),
    [(-1, None), (0, 0), (3, 0), (4, 4), (1456, 1456), (4092, 4092), (4096, None)],
)
def test_sizes_are_searched_in_steps_of_four(limit: int, found: int | None) -> None:
    asked: list[int] = []

    def passes(size: int) -> bool:
        asked.append(size)
        return size <= limit

    assert _largest(passes, 4096) == found
    assert len(asked) <= 12
