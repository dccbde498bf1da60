"""Wire formats of RDMA packets: header layouts and their codecs.

    from ibwire_layers import OpCode, Packet, build

`Packet` parses and builds one packet; `build` and `build_packet` make one from named fields;
`OpCode` names the opcodes. Routes (`RoCEv2Route`, `RoCEv1Route`, `IBRoute`) hold the headers
before the BTH. `DecodeError`, with a `Fault`, and `EncodeError` are the errors.

The package needs only the standard library. `ibwire_layers.scapy` and `ibwire_layers.construct`
have the same headers as Scapy layers and as a Construct grammar.
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
