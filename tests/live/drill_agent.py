"""The agent of `ibwire drill` on a device of ours.

Arguments: the interface, the profile, and maybe a question that it dies of. The verbs face of
ibwire lives on a simulated network; here the time that passes in it is that of the link, also
while the agent waits for what it is asked.
"""

import json
import os
import select
import socket
import sys
from contextlib import suppress
from functools import partial

from ibwire.link.afpacket import AFPacketPort
from ibwire.programs.endpoint import Endpoint, Interrupted
from ibwire.units import S
from ibwire.verbs import Network, install_as_pyverbs, use


class LiveNetwork(Network):
    """One device, on a link."""

    def __init__(self, endpoint):
        super().__init__([endpoint.device])
        self.live = endpoint.live

    @property
    def now(self):
        return self.live.now

    def advance(self, duration):
        self.live.run(seconds=duration / S)

    def poll(self, done):
        self.live.run(seconds=0)

    def wait(self, done):
        self.live.run(stop=done)
        return True


def wait_for(waited, endpoint):
    """Let the device live until a socket has something."""
    poll = select.poll()
    poll.register(waited, select.POLLIN)
    endpoint.run(stop=lambda: bool(poll.poll(0)), watch=[waited.fileno()])


def main(name, profile, dies_of=None):
    with AFPacketPort(name) as port, Endpoint(port, profile=profile) as own:
        install_as_pyverbs()
        # They need pyverbs, which is only now there.
        from pyverbs.device import Context

        from ibwire.drill.agent import PORT, Agent, listen, serve

        with use(LiveNetwork(own)) as network, listen("", PORT) as listening:
            context = Context(name=name)

            def has_event():
                network.deliver_events()
                return bool(context._events)

            class Mortal(Agent):
                def answer(self, line):
                    if json.loads(line)["do"] == dies_of:
                        os._exit(1)
                    return super().answer(line)

            agent = Mortal(context, has_event)
            print("ready", flush=True)
            while True:
                wait_for(listening, own)
                connection, _ = listening.accept()
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                with connection:
                    serve(connection, agent, partial(wait_for, connection, own))


with suppress(Interrupted):
    main(*sys.argv[1:])
