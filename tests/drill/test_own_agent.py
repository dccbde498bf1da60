"""The connection manager of an emulated device, as programs command it through the agent there."""

from __future__ import annotations

import errno
import importlib
import json
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest

from ibwire.cm.messages import request
from ibwire.cm.rdma_cm import Endpoints, resolve_request
from ibwire.drill.agent import emulated
from ibwire.drill.agent.emulated import OwnManager
from ibwire.drill.language.manager_messages import PORT
from ibwire.drill.targets.manager import SERVICE
from ibwire.programs.endpoint import Endpoint
from ibwire.programs.live_network import LiveNetwork
from ibwire.rc.attributes import AddressVector
from ibwire.rc.device import gid_of
from ibwire.verbs import install_as_pyverbs, uninstall, use
from ibwire_layers import cm
from socket_port import endpoints

OWN, PEER = gid_of("10.0.0.1"), gid_of("10.0.0.2")

CREATE: dict[str, Any] = {
    **dict.fromkeys(("max_send_wr", "max_recv_wr", "send_cqe", "recv_cqe"), 1),
    "type": 2,
    "size": 64,
    "srq": False,
    "access": 1,
}

Ask = Callable[..., Any]


@pytest.fixture
def pair() -> Iterator[tuple[Endpoint, Endpoint]]:
    """The device of the agent, and a peer."""
    own, peer = endpoints()
    with own.port, peer.port, own, peer:
        yield own, peer


@pytest.fixture
def agent(pair: tuple[Endpoint, Endpoint]) -> Iterator[Any]:
    """The agent on it, with a queue pair."""
    install_as_pyverbs()
    try:
        module = importlib.import_module("ibwire.drill.agent.agent")
        device = importlib.import_module("pyverbs.device")
        own, _ = pair
        with use(LiveNetwork(own, glance=0)):
            context = device.Context(name=own.device.name)
            made = module.Agent(context, lambda: False, partial(OwnManager, own))
            made.create(**CREATE)
            yield made
    finally:
        uninstall()


@pytest.fixture
def ask(agent: Any) -> Ask:
    """A question to it, and its answer."""

    def ask(do: str, **given: Any) -> Any:
        return json.loads(agent.answer(json.dumps({"do": do, **given}).encode()))

    return ask


def exchange(*ends: Endpoint) -> None:
    """Let both say and hear what they have to."""
    for _ in range(4):
        for end in ends:
            end.run(seconds=0)


def test_a_number_that_fits_no_message_is_refused(ask: Ask) -> None:
    answer = ask("connect", gid="::ffff:10.0.0.2", max_cm_retries=16)

    assert answer["errno"] == errno.EINVAL


@pytest.mark.parametrize("name", ["initiator_depth", "responder_resources"])
def test_more_reads_at_once_than_the_device_can_have_are_refused(
    pair: tuple[Endpoint, Endpoint], ask: Ask, name: str
) -> None:
    """Else the queue pair could not follow when the connection is established."""
    most = pair[0].device.limits.max_qp_rd_atom

    refused = ask("connect", gid="::ffff:10.0.0.2", **{name: most + 1})
    made = ask("connect", gid="::ffff:10.0.0.2", **{name: most})

    assert refused["errno"] == errno.EINVAL
    assert made == {"ok": None}


def test_a_request_for_datagrams_is_refused_without_an_event(
    pair: tuple[Endpoint, Endpoint], ask: Ask
) -> None:
    own, peer = pair
    ask("listen")
    asked = resolve_request(Endpoints(PEER, 40_000, OWN, PORT)).altered(service_id=SERVICE)
    connection = peer.manager.resolve(asked, AddressVector(dgid=OWN), peer.live.now)

    exchange(peer, own)
    events = ask("cm_events")
    exchange(own, peer)

    assert events == {"ok": []}
    assert isinstance(connection.reply, cm.SIDR_REP)
    assert connection.reply.status != cm.SIDRStatus.VALID


def test_too_many_unread_events_stay_at_the_manager(
    pair: tuple[Endpoint, Endpoint], agent: Any, ask: Ask, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which has a limit of its own and then refuses requests."""
    monkeypatch.setattr(emulated, "MOST_EVENTS", 3)
    own, peer = pair
    ask("listen")
    data = Endpoints(PEER, 40_000, OWN, PORT).private_data()
    for qpn in range(1, 11):
        asked = request(
            service_id=SERVICE,
            source=PEER,
            destination=OWN,
            qpn=qpn,
            starting_psn=0,
            private_data=data,
        )
        peer.manager.connect(asked, peer.live.now)
        exchange(peer, own)
        agent.manager.handle()

    assert [len(ask("cm_events")["ok"]) for _ in range(3)] == [3, 7, 0]
