"""Run a script for pyverbs on ibwire, on a real link.

Arguments: a JSON object with `interface`, `tap`, `address`, `profile`, `faults` and the `peer` that
will be talked to; the script; its arguments. The verbs face of ibwire lives on a simulated network;
here the time that passes in it is that of the link.
"""

import json
import runpy
import sys

from ibwire.link.afpacket import AFPacketPort
from ibwire.link.tapped import TappedPort
from ibwire.programs.endpoint import Endpoint
from ibwire.programs.faults import read_faults
from ibwire.rc.device import gid_of
from ibwire.units import S
from ibwire.verbs import Network, install_as_pyverbs, use

POLL_SECONDS = 0.01


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
        self.live.run(stop=done, seconds=POLL_SECONDS)

    def wait(self, done):
        self.live.run(stop=done)
        return True


def main(wish, script, *arguments):
    faults = read_faults(wish["faults"]) if wish["faults"] else None
    with (
        TappedPort(AFPacketPort(wish["interface"]), wish["tap"]) as port,
        Endpoint(port, addresses=[wish["address"]], profile=wish["profile"], faults=faults) as own,
    ):
        own.gid_towards(gid_of(wish["peer"]))
        install_as_pyverbs()
        sys.argv = [script, *arguments]
        with use(LiveNetwork(own)):
            runpy.run_path(script, run_name="__main__")


main(json.loads(sys.argv[1]), *sys.argv[2:])
