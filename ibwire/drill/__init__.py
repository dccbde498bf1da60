"""Conformance scripts: packets to a device, and those expected from it, line by line.

`load` and `parse` read a script, `run` runs one of its cases, `report` explains a failure.
The language is in docs/drill.md.
"""

from ibwire.drill.language.parser import load, parse
from ibwire.drill.language.steps import Case, Script
from ibwire.drill.runner import run
from ibwire.drill.verdict import Failure, Verdict, report

__all__ = ["Case", "Failure", "Script", "Verdict", "load", "parse", "report", "run"]
