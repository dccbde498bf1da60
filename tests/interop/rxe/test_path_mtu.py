"""Live: on a way to rxe that carries only small packets, the size that passes is found."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from interop.rxe.network import LINK_MTU
from interop.rxe.peers import Peers

MTU = 1500

SIZES = {f"packets of {size} bytes with IP header reach the peer" for size in (MTU, MTU + 4)}
"""The kernel leaves room for a VLAN tag in the MTU of an interface that it forwards to (Linux,
netdevice.h __is_skb_forwardable); the question comes in steps of 4 bytes."""


@pytest.fixture
def narrow(peers: Peers) -> Iterator[None]:
    """Makes the way narrower behind our port, whose own MTU stays."""
    bridge_end = peers.port.replace("port", "bridge")
    peers.network.run("ip", "link", "set", bridge_end, "mtu", str(MTU))
    yield
    peers.network.run("ip", "link", "set", bridge_end, "mtu", str(LINK_MTU))


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (["pingpong"], "ibv_rc_pingpong -g 1"),
        (["perf", "write"], "ib_write_bw -F -x 1"),
        # Only the responses are large.
        (["perf", "read"], "ib_read_bw -F -x 1"),
    ],
    ids=["pingpong", "write", "read"],
)
@pytest.mark.usefixtures("narrow")
def test_largest_packet_that_reaches_rxe_is_reported_and_its_path_mtu_works(
    peers: Peers, tmp_path: Path, ours: list[str], theirs: str
) -> None:
    common = ["-n", "20", "-s", "8000"]
    too_large, fitting = (tmp_path / name for name in ("large", "fitting"))
    too_large.mkdir()
    fitting.mkdir()

    with peers.together(
        [*ours, *common, "-m", "4096"],
        f"{theirs} {' '.join(common)} -m 4096",
        is_client=True,
        directory=too_large,
    ) as (own, other):
        failed = own.wait()
        other.kill()
    meeting = peers.meet(
        [*ours, *common, "-m", "1024"],
        f"{theirs} {' '.join(common)} -m 1024",
        is_client=True,
        directory=fitting,
    )

    assert failed.status == 1, failed
    last = failed.errors.splitlines()[-1]
    assert "RETRY_EXC_ERR" in last
    assert any(size in last for size in SIZES), last
    assert last.endswith("use a path MTU of 1024 (-m 1024)")
    assert (meeting.ours.status, meeting.theirs.status) == (0, 0), meeting
