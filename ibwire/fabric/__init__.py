"""Networks in virtual time: wires between nodes, and bridges."""

from ibwire.fabric.bridge import Bridge
from ibwire.fabric.sim import Direction, Livelock, Outcome, Simulator, Wire

__all__ = ["Bridge", "Direction", "Livelock", "Outcome", "Simulator", "Wire"]
