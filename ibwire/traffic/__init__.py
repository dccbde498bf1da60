"""RDMA test traffic: what is sent. How it leaves is `ibwire.link`'s business."""

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
