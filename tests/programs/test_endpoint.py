"""An endpoint with an address of its own, and a peer that may have it already."""

import pytest

from ibwire.base.errors import LinkError
from ibwire.cli.live import host_of
from ibwire.programs.endpoint import Endpoint
from ibwire.rc.device import gid_of
from socket_port import ports, side_by_side

MAC = bytes.fromhex("0200000000aa")


def test_own_address_is_not_asked_for_as_that_of_the_peer() -> None:
    """A probe with its own address as the sender would claim that address (RFC 5227 3)."""
    port, other = ports()
    with port, other, Endpoint(port, addresses=["10.0.0.2"], mac=MAC) as own:
        with pytest.raises(LinkError, match=r"10\.0\.0\.2 is both the peer's and our own address"):
            own.gid_towards(gid_of("10.0.0.2"))

        assert other.receive() == []


def test_sockets_are_told_the_interface_of_a_link_local_peer() -> None:
    """RFC 4007 11."""
    assert host_of("fe80::1", "eth1") == "fe80::1%eth1"
    assert host_of("fd00::1", "eth1") == "fd00::1"
    assert host_of("10.0.0.1", "eth1") == "10.0.0.1"


def test_peer_with_our_mac_address_is_no_peer() -> None:
    port, other = ports()
    own = Endpoint(port, addresses=["10.0.0.1"], mac=MAC)
    peer = Endpoint(other, addresses=["10.0.0.2"], mac=MAC)

    def ask() -> None:
        with pytest.raises(LinkError, match=r"10\.0\.0\.2 has our own MAC address"):
            own.gid_towards(gid_of("10.0.0.2"))

    def answer() -> None:
        peer.run(stop=lambda: bool(peer.live.sent))

    with port, other, own, peer:
        side_by_side(ask, answer)
