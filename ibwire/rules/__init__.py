"""The rules that traffic is checked by, one family a module.

`Conformance` checks one capture and returns `Finding`s; `RULES` is the catalogue. A rule about
single packets is a `PacketRule` of its family's module (`packet`), one about a connection a
`ConnectionCheck` (`history`); `catalogue` lists them. The names below are public.
"""

from ibwire.rules.catalogue import FAMILIES, RULES
from ibwire.rules.conformance import Conformance
from ibwire.rules.findings import ANY, PROFILES, Finding, Location, Rule, Severity

__all__ = [
    "ANY",
    "FAMILIES",
    "PROFILES",
    "RULES",
    "Conformance",
    "Finding",
    "Location",
    "Rule",
    "Severity",
]
