"""InfiniBand fabrics: nodes, ports, links and the tables that a subnet manager writes."""

from ibwire.fabric.infiniband.netfile import read_topology
from ibwire.fabric.infiniband.speeds import Speed, Width
from ibwire.fabric.infiniband.subnet import Node, Port, Subnet

__all__ = ["Node", "Port", "Speed", "Subnet", "Width", "read_topology"]
