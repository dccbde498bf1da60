"""RDMA test traffic: streams, their packets, pace, senders and a closed loop.

`Stream` describes packets, `Builder` makes them, `ibwire.traffic.transmission` sends them.
"""

from ibwire.traffic.blocks import Block, Source, Template
from ibwire.traffic.builder import Builder
from ibwire.traffic.cycle import Turn
from ibwire.traffic.injection import Injection
from ibwire.traffic.injection_file import make_injection, make_stream, parse_value, read_injection
from ibwire.traffic.pace import Pace, Phase, Rate, Unit
from ibwire.traffic.queue_pairs import QueuePairTraffic
from ibwire.traffic.stream import Icrc, Link, Payload, PortRule, Stream, Verb, parse_qpns

__all__ = [
    "Block",
    "Builder",
    "Icrc",
    "Injection",
    "Link",
    "Pace",
    "Payload",
    "Phase",
    "PortRule",
    "QueuePairTraffic",
    "Rate",
    "Source",
    "Stream",
    "Template",
    "Turn",
    "Unit",
    "Verb",
    "make_injection",
    "make_stream",
    "parse_qpns",
    "parse_value",
    "read_injection",
]
