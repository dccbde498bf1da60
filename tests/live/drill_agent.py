"""The agent of `ibwire drill` on an emulated device, which may die at a request.

Arguments: the interface, the profile, and optionally that request.
"""

import importlib
import os
import sys
from contextlib import suppress

from ibwire.drill.agent import agent_server
from ibwire.drill.agent.emulated import serve_device
from ibwire.link.afpacket import AFPacketPort
from ibwire.programs.endpoint import Endpoint, Interrupted
from ibwire.verbs import install_as_pyverbs


def main(name, profile, dies_of=None, weaken=lambda endpoint: None):
    if dies_of:
        install_as_pyverbs()
        handlers = importlib.import_module("ibwire.drill.agent.agent").HANDLERS
        handlers[dies_of] = lambda agent, **given: os._exit(1)
    with AFPacketPort(name) as port, Endpoint(port, profile=profile) as own:
        weaken(own)
        own.device.pkeys.append(0x7FFF)  # a limited member of the default partition, too
        token = os.environ[agent_server.TOKEN_VARIABLE]
        serve_device(
            own,
            own.listening_addresses,
            agent_server.PORT,
            token,
            report=lambda listening: print("ready", flush=True),
        )


if __name__ == "__main__":
    with suppress(Interrupted):
        main(*sys.argv[1:])
