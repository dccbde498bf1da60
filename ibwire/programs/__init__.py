"""Counterparts of tools of rdma-core and perftest on a real link: pingpong, perf and rping.

`Endpoint` is the emulated device that they run on; each tool has its own module.
"""

from ibwire.programs.endpoint import Endpoint, Interrupted
from ibwire.programs.faults import Faults, read_faults
from ibwire.programs.live_network import LiveNetwork

__all__ = ["Endpoint", "Faults", "Interrupted", "LiveNetwork", "read_faults"]
