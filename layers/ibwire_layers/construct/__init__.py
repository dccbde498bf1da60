"""Construct grammars of the wire formats: nested, annotated, independent of the fast readers.

`packet.py` reads whole frames, `mad.py` management datagrams. They are for
looking closely at a packet and for cross-checks; they are far too slow for
captures.
"""

from ibwire_layers.construct.headers import HEADERS, STRUCTS
from ibwire_layers.construct.mad import annotate_mad, build_mad, parse_mad
from ibwire_layers.construct.packet import (
    annotate_frame,
    build_frame,
    describe,
    grammar_of,
    parse_frame,
)

__all__ = [
    "HEADERS",
    "STRUCTS",
    "annotate_frame",
    "annotate_mad",
    "build_frame",
    "build_mad",
    "describe",
    "grammar_of",
    "parse_frame",
    "parse_mad",
]
