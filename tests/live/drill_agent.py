"""The agent of `ibwire drill` on a device of ours.

Arguments: the interface, the profile, and maybe a question that it dies of. Time passes for the
device also while the agent waits for what it is asked. Its connection manager is ours, too.
"""

import json
import os
import select
import sys
from contextlib import suppress
from functools import partial

from ibwire.drill.emulated import UP
from ibwire.drill.manager import Manager
from ibwire.drill.vocabulary import MANAGER_VERBS
from ibwire.errors import VerbsError
from ibwire.link.afpacket import AFPacketPort
from ibwire.programs.cm import leave
from ibwire.programs.endpoint import Endpoint, Interrupted
from ibwire.rc.attributes import QPAttr, QPAttrMask
from ibwire.rc.device import gid_of
from ibwire.rc.states import TRANSITIONS
from ibwire.verbs import install_as_pyverbs, use
from live_network import LiveNetwork

EVENTS = {
    "CONNECT_REQUEST": 4,
    "CONNECT_RESPONSE": 5,
    "UNREACHABLE": 7,
    "REJECTED": 8,
    "ESTABLISHED": 9,
    "DISCONNECTED": 10,
    "TIMEWAIT_EXIT": 15,
}
"""rdma_cm_event_type (rdma_cma.h)."""


class OurManager:
    """The connection manager of our device, as the agent has it for a queue pair."""

    def __init__(self, endpoint, qp):
        self.endpoint = endpoint
        self.device = endpoint.device
        self.qp = endpoint.device.qps[qp.qp_num]
        self.symbols = {"qpn": qp.qp_num, "pkey": 0xFFFF, "rq_psn": endpoint.psn(), "mtu": 1024}
        self.manager = Manager(self, endpoint.managed)
        self.former = set(endpoint.manager.connections)

    @property
    def now(self):
        return self.endpoint.live.now

    @property
    def state(self):
        return self.qp.state

    def join(self, connection, state):
        address, attributes = connection.queue_pair_attributes()
        for after in UP[UP.index(self.state) + 1 : UP.index(state) + 1]:
            attr = QPAttr(ah_attr=address, qp_state=after, min_rnr_timer=12, **attributes)
            needed = TRANSITIONS[self.qp.qp_type][self.state, after].required
            self.qp.modify(attr, needed | QPAttrMask.STATE)

    def handle(self):
        self.manager.settle()

    def cm_events(self):
        self.handle()
        events = [each for each in self.manager.events if each.connection not in self.former]
        self.manager.events.clear()
        return [{"event": EVENTS[each.kind.name], "status": each.reason} for each in events]

    def close(self):
        manager = self.endpoint.manager
        for listener in list(manager.listeners.values()):
            manager.unlisten(listener)
        for connection in list(manager.connections):
            leave(self.endpoint, connection)

    def __getattr__(self, verb):
        if verb not in MANAGER_VERBS:
            raise AttributeError(verb)

        def do(gid=None, **given):
            if verb == "connect":
                peer = gid_of(gid)
                own = self.device.gids[self.endpoint.gid_towards(peer)]
                self.symbols |= {"gid": own, "peer_gid": peer}
            try:
                self.manager.do(verb, given)
            except VerbsError as error:
                raise OSError(error.errno, error.reason) from None

        return do


def readable(waiting, endpoint):
    """Let the device live until one of these can be read; what managers are told they handle."""
    managers = [each for each in waiting if isinstance(each, OurManager)]
    sockets = [each for each in waiting if each not in managers]
    poll = select.poll()
    for each in sockets:
        poll.register(each, select.POLLIN)

    def is_asked():
        for each in managers:
            each.handle()
        return bool(poll.poll(0))

    endpoint.run(stop=is_asked, watch=[each.fileno() for each in sockets])
    ready = {number for number, _ in poll.poll(0)}
    return [each for each in sockets if each.fileno() in ready]


def main(name, profile, dies_of=None, weaken=lambda endpoint: None):
    with AFPacketPort(name) as port, Endpoint(port, profile=profile) as own:
        weaken(own)
        own.device.pkeys.append(0x7FFF)  # a limited member of the default partition, too
        install_as_pyverbs()
        # They need pyverbs, which is only now there.
        from pyverbs.device import Context

        from ibwire.drill.agent import PORT, Agent, listen, serve

        with use(LiveNetwork(own, glance=0)) as network, listen("", PORT) as listening:

            class Mortal(Agent):
                def answer(self, line):
                    if json.loads(line)["do"] == dies_of:
                        os._exit(1)
                    return super().answer(line)

            def make_agent():
                context = Context(name=name)

                def has_event():
                    network.deliver_events()
                    return bool(context._events)

                return Mortal(context, has_event, partial(OurManager, own))

            print("ready", flush=True)
            serve(listening, make_agent, partial(readable, endpoint=own))


if __name__ == "__main__":
    with suppress(Interrupted):
        main(*sys.argv[1:])
