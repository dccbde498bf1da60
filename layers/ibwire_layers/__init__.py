"""What the bytes of RDMA packets are: header layouts and their codecs.

Usable alone, with nothing but the standard library. `ibwire_layers.scapy` and
`ibwire_layers.construct` hold the same headers as Scapy layers and as a
Construct grammar.
"""

from ibwire_layers.build import build, build_packet
from ibwire_layers.errors import DecodeError, EncodeError, Fault
from ibwire_layers.opcodes import OpCode
from ibwire_layers.packet import IBRoute, Packet, RoCEv1Route, RoCEv2Route

__all__ = [
    "DecodeError",
    "EncodeError",
    "Fault",
    "IBRoute",
    "OpCode",
    "Packet",
    "RoCEv1Route",
    "RoCEv2Route",
    "build",
    "build_packet",
]
