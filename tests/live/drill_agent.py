"""The agent of `ibwire drill` on a device of ours.

Arguments: the interface, the profile, and maybe a question that it dies of. Time passes for the
device also while the agent waits for what it is asked.
"""

import json
import os
import select
import sys
from contextlib import suppress
from functools import partial

from ibwire.link.afpacket import AFPacketPort
from ibwire.programs.endpoint import Endpoint, Interrupted
from ibwire.verbs import install_as_pyverbs, use
from live_network import LiveNetwork


def readable(waiting, endpoint):
    """Let the device live until one of these can be read."""
    poll = select.poll()
    for each in waiting:
        poll.register(each, select.POLLIN)
    endpoint.run(stop=lambda: bool(poll.poll(0)), watch=[each.fileno() for each in waiting])
    ready = {number for number, _ in poll.poll(0)}
    return [each for each in waiting if each.fileno() in ready]


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

                return Mortal(context, has_event)

            print("ready", flush=True)
            serve(listening, make_agent, partial(readable, endpoint=own))


if __name__ == "__main__":
    with suppress(Interrupted):
        main(*sys.argv[1:])
