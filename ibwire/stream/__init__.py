"""RDMA test traffic: what is sent. How it leaves is `ibwire.link`'s business."""

from ibwire.stream.blocks import Block, Source, Template
from ibwire.stream.build import Builder
from ibwire.stream.cycle import Turn
from ibwire.stream.injection import Injection
from ibwire.stream.model import Icrc, Link, Payload, PortRule, Stream, Verb, parse_qpns
from ibwire.stream.pace import Pace, Phase, Rate, Unit
from ibwire.stream.pairs import Pair
from ibwire.stream.script import make_injection, make_stream, parse_value, read_injection

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
