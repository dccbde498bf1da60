"""Scenarios: a network, its faults, traffic and expectations, in one TOML file."""

from ibwire.scenario.expect import METRICS, NETWORK, Expectation
from ibwire.scenario.model import read_scenario
from ibwire.scenario.outcome import Checked, Outcome, QPOutcome, total
from ibwire.scenario.run import Network, run
from ibwire.scenario.shipped import load, shipped
from ibwire.scenario.specs import Scenario

__all__ = [
    "METRICS",
    "NETWORK",
    "Checked",
    "Expectation",
    "Network",
    "Outcome",
    "QPOutcome",
    "Scenario",
    "load",
    "read_scenario",
    "run",
    "shipped",
    "total",
]
