"""Run a script for pyverbs on ibwire, on a real link.

Arguments: a JSON object with `interface`, `tap`, `address`, `profile`, `faults` and the `peer` that
will be talked to; the script; its arguments.
"""

import json
import runpy
import sys
from pathlib import Path

from ibwire.link.afpacket import AFPacketPort
from ibwire.link.tapped import TappedPort
from ibwire.programs.endpoint import Endpoint
from ibwire.programs.faults import read_faults
from ibwire.rc.device import gid_of
from ibwire.verbs import install_as_pyverbs, use

sys.path.append(str(Path(__file__).parents[2]))

from ibwire.programs.live_network import LiveNetwork


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
