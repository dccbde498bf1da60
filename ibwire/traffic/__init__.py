"""RDMA test traffic: what is sent. How it leaves is `ibwire.link`'s business."""

from ibwire.traffic.blocks import Block, Source, Template
from ibwire.traffic.build import Builder
from ibwire.traffic.cycle import Turn
from ibwire.traffic.injection import Injection
from ibwire.traffic.model import Icrc, Link, Payload, PortRule, Stream, Verb, parse_qpns
from ibwire.traffic.pace import Pace, Phase, Rate, Unit
from ibwire.traffic.pairs import Pair
from ibwire.traffic.script import make_injection, make_stream, parse_value, read_injection

__all__ = [
    "Block",
    "Builder",
    "Icrc",
    "Injection",
    "Link",
    "Pace",
    "Pair",
    "Payload",
    "Phase",
    "PortRule",
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
