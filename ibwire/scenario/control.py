"""Reads `[cc]`: how the hosts of a scenario control congestion."""

from __future__ import annotations

from dataclasses import fields, replace
from functools import partial

from ibwire.base.errors import EncodeError
from ibwire.base.toml import Table
from ibwire.base.units import US
from ibwire.rc.congestion import CONNECTX, DCQCN, HPCC_MODEL, PAPER, Parameters, Scope
from ibwire.scenario.specs import ControlSpec

MAXIMUM_INTERVAL_US = 1_000_000


def read_control(table: Table | None) -> ControlSpec | None:
    """The congestion control of all hosts; `None` for none."""
    if table is None:
        return None
    algorithm = table.take_name("algorithm", "dcqcn", ("dcqcn", "none"))
    if algorithm == "none":
        table.end()
        return None
    name = table.take_name("set", "connectx", _SETS)
    parameters, interval = _SETS[name]
    parameters = _changed(table, parameters)
    interval = table.take_int("np_min_time_between_cnps", interval, 0, MAXIMUM_INTERVAL_US)
    control = ControlSpec(
        make=partial(DCQCN, parameters),
        interval=interval * US,
        scope=Scope(
            table.take_name("cnp_scope", Scope.QUEUE_PAIR.value, [each.value for each in Scope])
        ),
        dscp=table.take_int("np_cnp_dscp", 48, 0, 63),
        priority=table.take_int("np_cnp_prio", 6, 0, 7),
    )
    table.end()
    return control


def _changed(table: Table, parameters: Parameters) -> Parameters:
    for each in fields(Parameters):
        value = table.take_int(each.name, None, 0, 1 << 40)
        if value is None:
            continue
        try:
            parameters = replace(parameters, **{each.name: value})
        except EncodeError as error:
            reason = str(error).removeprefix(f"{error.field}: ")
            raise table.error(each.name, reason) from None
    return parameters


_SETS = {"connectx": (CONNECTX, 4), "paper": (PAPER, 50), "hpcc": (HPCC_MODEL, 0)}
"""Parameters by name, and microseconds between CNPs (docs/reference/congestion.md)."""
