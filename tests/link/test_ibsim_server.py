"""ibsim's protocol as a server: a client of ibsim, ours, brings the fabric up over it."""

from __future__ import annotations

import os
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from ibwire.base.errors import LinkError
from ibwire.fabric.infiniband.shipped import find_topology
from ibwire.fabric.infiniband.subnet import IS_SM, Subnet
from ibwire.link.ibsim_client import IbsimClient
from ibwire.link.umad_server import UmadServer
from ibwire.sm.configuration import Settings
from ibwire.sm.control import route
from ibwire.sm.management import Management

NAME = f"ibwire-server-{os.getpid()}"


@pytest.fixture
def subnet() -> Iterator[Subnet]:
    with tempfile.TemporaryDirectory() as folder:
        server = UmadServer(Management(find_topology("ring6")), Path(folder))
        server.add_ibsim(NAME)
        thread = threading.Thread(target=server.run)
        thread.start()
        yield server.management.subnet
        server.stop()
        thread.join()
        server.close()


def manage(subnet: Subnet) -> None:
    client = IbsimClient("node-0-0", Settings(), NAME)
    try:
        client.run(lambda: client.manager.is_up)
        assert subnet.nodes["node-0-0"].ports[1].capability_mask & IS_SM
    finally:
        client.close()


def test_a_client_manages_the_fabric(subnet: Subnet) -> None:
    manage(subnet)
    manage(subnet)  # in the place of the first

    ends = [node.ports[1] for node in subnet.nodes.values() if not node.is_switch]
    assert all("problem" not in route(a, b)[-1] for a in ends for b in ends if a is not b)


def test_an_unknown_host_is_refused(subnet: Subnet) -> None:
    with pytest.raises(LinkError, match="no such node"):
        IbsimClient("nobody", Settings(), NAME)


def test_a_name_that_is_taken_is_an_error(subnet: Subnet, tmp_path: Path) -> None:
    with tempfile.TemporaryDirectory() as folder:
        server = UmadServer(Management(find_topology("star2")), Path(folder))
        with pytest.raises(LinkError, match="an ibsim has this name"):
            server.add_ibsim(NAME)
        server.close()
