"""Networks in virtual time: a simulator, the wires between its nodes, and bridges.

The names below are public. `Simulator.connect` makes a `Wire` of two `Direction` objects
between two nodes; `Simulator.run` returns an `Outcome` and raises `Livelock`. A `Bridge` is a
node that forwards Ethernet frames. `LosslessNetwork` in `ibwire.fabric.lossless` joins hosts by
the switches of a `Topology`, with shared buffers, pause frames and ECN marks. This package moves
frames and does not parse transports.
"""

from ibwire.fabric.bridge import Bridge
from ibwire.fabric.line import Direction
from ibwire.fabric.sim import Livelock, Outcome, Simulator, Wire
from ibwire.fabric.topology import Link, Topology

__all__ = [
    "Bridge",
    "Direction",
    "Link",
    "Livelock",
    "Outcome",
    "Simulator",
    "Topology",
    "Wire",
]
