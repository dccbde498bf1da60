"""Reads `[cc]`: how the hosts of a scenario control congestion."""

from __future__ import annotations

from dataclasses import Field, fields, replace
from functools import partial
from typing import Any

from ibwire.base.errors import EncodeError
from ibwire.base.toml import Table
from ibwire.base.units import US
from ibwire.rc.congestion import (
    CONNECTX,
    DCQCN,
    DCTCP,
    HPCC,
    HPCC_MODEL,
    PAPER,
    DCTCPParameters,
    HPCCParameters,
    Parameters,
    Scope,
    Swift,
    SwiftParameters,
    Timely,
    TimelyParameters,
)
from ibwire.scenario.specs import ControlSpec

MAXIMUM_INTERVAL_US = 1_000_000


def read_control(table: Table | None) -> ControlSpec | None:
    """The congestion control of all hosts; `None` for none."""
    if table is None:
        return None
    for name in _RTT_RESPONSES:
        if name in table:
            raise table.error(
                name,
                "is the DSCP of answers to the RTT requests of mlx5, which the emulator does not "
                "send: timely and swift measure round trips by ACKs",
            )
    algorithm = table.take_name("algorithm", "dcqcn", ("dcqcn", *_OTHERS, "none"))
    if algorithm == "none":
        table.end()
        return None
    if algorithm == "dcqcn":
        name = table.take_name("set", "connectx", _SETS)
        parameters, interval = _SETS[name]
        make = partial(DCQCN, _changed(table, parameters))
        control = _notified(table, make, interval)
    else:
        other, start = _OTHERS[algorithm]
        make = partial(other, _changed(table, start))
        if algorithm == "dctcp":
            control = _notified(table, make, 0)
        else:
            control = ControlSpec(
                make=make,
                interval=0,
                scope=None,
                dscp=48,
                priority=6,
                has_cnps=False,
                has_telemetry=algorithm == "hpcc",
            )
    table.end()
    return control


def _notified(table: Table, make: Any, interval: int) -> ControlSpec:
    """A control that marks reach as CNPs; interval: between them in microseconds."""
    interval = table.take_int("np_min_time_between_cnps", interval, 0, MAXIMUM_INTERVAL_US)
    scope = table.take_name("cnp_scope", None, [each.value for each in Scope])
    has_priority = "np_cnp_prio" in table
    priority = table.take_int("np_cnp_prio", 6, 0, 7)
    follows_priority = bool(table.take_int("np_cnp_prio_mode", 0, 0, 1))
    if follows_priority and has_priority:
        raise table.error(
            "np_cnp_prio",
            "has no effect with np_cnp_prio_mode = 1, where CNPs have the priority of their "
            "connection: leave out one of the two",
        )
    return ControlSpec(
        make=make,
        interval=interval * US,
        scope=None if scope is None else Scope(scope),
        dscp=table.take_int("np_cnp_dscp", 48, 0, 63),
        priority=priority,
        follows_priority=follows_priority,
    )


def _changed(table: Table, parameters: Any) -> Any:
    """Parameters with other values, by their names; all at once, as some limit others."""
    given = {}
    for each in fields(parameters):
        if each.name in table:
            given[each.name] = _value(table, each, getattr(parameters, each.name))
        else:
            table.take(each.name)
    try:
        found = replace(parameters, **given)
    except EncodeError as error:
        if error.field not in given:
            # A limit was set, and not the parameter beside it.
            raise table.error(next(iter(given), None), f"with the default {error}") from None
        reason = str(error).removeprefix(f"{error.field}: ")
        raise table.error(error.field, reason) from None
    if isinstance(found, Parameters) and 0 < found.rp_max_rate < found.rp_min_rate:
        key = "rp_min_rate" if "rp_min_rate" in given else "rp_max_rate"
        rates = f"rp_min_rate is {found.rp_min_rate:,} and rp_max_rate {found.rp_max_rate:,}"
        raise table.error(key, f"{rates}: the lowest rate is above the highest")
    return found


def _value(table: Table, field: Field[Any], start: Any) -> Any:
    """A value of the kind that a parameter has: rate, time, truth value or number."""
    if field.name.endswith("_bps"):
        return table.take_rate(field.name, start)
    if field.type == "Time":
        return table.take_time(field.name, start)
    if isinstance(start, bool):
        return table.take_bool(field.name, start)
    if isinstance(start, float):
        return table.take_number(field.name, start, 0, 1 << 40)
    return table.take_int(field.name, start, 0, 1 << 40)


_RTT_RESPONSES = ("rtt_resp_dscp", "rtt_resp_dscp_valid")
"""Those of `cc_params` without an effect here (docs/reference/congestion.md#dcqcn-parameters)."""

_SETS = {"connectx": (CONNECTX, 4), "paper": (PAPER, 50), "hpcc": (HPCC_MODEL, 0)}
"""Parameters by name, and microseconds between CNPs (docs/reference/congestion.md)."""

_OTHERS: dict[str, tuple[Any, Any]] = {
    "hpcc": (HPCC, HPCCParameters()),
    "timely": (Timely, TimelyParameters()),
    "dctcp": (DCTCP, DCTCPParameters()),
    "swift": (Swift, SwiftParameters()),
}
