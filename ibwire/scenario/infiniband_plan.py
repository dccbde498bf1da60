"""Traffic, faults and expectations in the TOML file of an InfiniBand topology.

topology = "ring6"

[traffic]
sm = "own"
size = "1 MiB"

[[flow]]
from = "node-0-0"
to = "node-3-1"

[[fault]]
link = "sw0[7]"
at = "20us"

[expect]
success = "all"
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from ibwire.base.errors import EncodeError, ScriptError
from ibwire.base.toml import Document, Table, reason_of
from ibwire.base.units import S, Time
from ibwire.fabric.infiniband.network import FOREVER
from ibwire.fabric.infiniband.routing import Engine
from ibwire.fabric.infiniband.subnet import Subnet
from ibwire.fabric.infiniband.tomlfile import OF_TRAFFIC
from ibwire.rc.work import WCStatus
from ibwire.scenario.expect import (
    DEFAULTS,
    METRICS,
    NONE_FAILED,
    Expectation,
    read_expectations,
    says_how_sends_complete,
)
from ibwire.scenario.infiniband import LARGEST, FabricTraffic, Operation, Transfer
from ibwire.scenario.outcome import Checked, Metrics, goodput, percentile

DEADLOCK = "deadlock"
"""Key of `[expect]`: whether queues are to wait for each other in a circle."""
LANES = ("1", "2", "4", "8")
"""Data lanes that a run may have: the ports of a topology have VL0 to VL7."""
ELSEWHERE = "is a metric of ibwire run, not of an InfiniBand fabric"
KNOWN = frozenset(
    {
        "messages",
        "success",
        "failed",
        "unfinished",
        "wrong",
        "retransmitted",
        "time",
        "goodput",
        "rate.min",
        "rate.max",
        "fairness",
        "fct.mean",
        "fct.p50",
        "fct.p99",
        "fct.max",
        "drops.all",
    }
)
"""Metrics of a run; a message is a transfer here."""


Placed = Callable[[str, str], ScriptError]
"""An error about the value of a key of a table, with its place: of key and reason."""


@dataclass(frozen=True, slots=True)
class FlowSpec:
    """A transfer. options: what differs from the other transfers of the run."""

    source: str
    destination: str
    options: dict[str, Any]
    error: Placed


@dataclass(frozen=True, slots=True)
class FaultSpec:
    """What happens to a link: bit errors from the beginning, or no signal for some time.

    at: from the first transfer. duration: `None` for the rest of the run.
    """

    link: str
    at: Time = 0
    duration: Time | None = None
    errors: float = 0


@dataclass(frozen=True, slots=True)
class Plan:
    """What a file says besides the topology.

    options: those of `ibwire fabric traffic` by the names of its arguments. error: makes one about
    the value of such an option.
    """

    options: dict[str, Any] = field(default_factory=dict)
    flows: tuple[FlowSpec, ...] = ()
    faults: tuple[FaultSpec, ...] = ()
    expectations: tuple[Expectation, ...] = ()
    expects_deadlock: bool | None = None
    error: Placed | None = None


def read_plan(content: bytes, name: str, subnet: Subnet) -> Plan:
    """The plan in a file; raises `ScriptError` with file, line and column.

    name: of the file. subnet: of its topology.
    """
    top = Document(content, name).top
    options: dict[str, Any] = {}
    traffic = top.table("traffic")
    if traffic is not None:
        options = _options(traffic, _OPTIONS)
        traffic.end()
    error = None if traffic is None else _placed(traffic)
    flows = tuple(_flow(table) for table in top.tables("flow"))
    faults = tuple(_fault(table, subnet) for table in top.tables("fault"))
    expect = top.table("expect")
    if expect is None:
        return Plan(options, flows, faults, error=error)
    is_expected = expect.take(DEADLOCK)
    if is_expected is not None and not isinstance(is_expected, bool):
        raise expect.error(DEADLOCK, "is true or false")
    found = read_expectations(expect, KNOWN, frozenset({DEADLOCK}), ELSEWHERE)
    given = {each.metric for each in found}
    usual = tuple(each for each in DEFAULTS if each.metric not in given)
    if not says_how_sends_complete(found):
        usual += (NONE_FAILED,)
    if is_expected:
        usual = tuple(each for each in usual if each.metric != "unfinished")
    return Plan(options, flows, faults, usual + found, is_expected, error)


def has_plan(content: bytes, name: str) -> bool:
    """Whether a file has more than a topology; raises `ScriptError`."""
    top = Document(content, name).top
    return any(key in top for key in OF_TRAFFIC)


Reader = Callable[[Table, str], Any]

_OF_A_FLOW: dict[str, tuple[str, Reader]] = {
    "size": ("size", lambda table, key: table.take_size(key, None, 1, LARGEST)),
    "message": ("message", lambda table, key: table.take_size(key, None, 1, LARGEST)),
    "operation": ("operation", lambda table, key: table.take_name(key, None, list(Operation))),
    "sl": ("sl", lambda table, key: table.take_int(key, 0, 0, 15)),
}
"""Keys with the arguments of the command that they are, and what reads them."""

_OPTIONS = _OF_A_FLOW | {
    "shift": ("shift", lambda table, key: table.take_int(key, 1, 1, 1 << 20)),
    "to": ("target", lambda table, key: table.take_text(key, None)),
    "routing": ("routing", lambda table, key: table.take_name(key, None, list(Engine))),
    "sm": ("manager", lambda table, key: table.take_name(key, None, ["none", "own"])),
    "sm_host": ("sm_host", lambda table, key: table.take_text(key, None)),
    "lanes": ("lanes", lambda table, key: _lanes(table, key)),
    "buffer": ("buffer", lambda table, key: table.take_int(key, 256, 2, 2048)),
    "hoq_life": ("hoq_life", lambda table, key: table.take_int(key, FOREVER, 0, 31)),
    "adaptive": ("adaptive", lambda table, key: table.take_bool(key, False)),
    "retry": ("retry", lambda table, key: table.take_bool(key, False)),
    "errors": ("errors", lambda table, key: table.take_number(key, 0, 0, 0.999)),
    "time": ("limit", lambda table, key: table.take_time(key, S)),
    "seed": ("seed", lambda table, key: table.take_int(key, 0, 0, (1 << 63) - 1)),
}


def _lanes(table: Table, key: str) -> str:
    lanes = str(table.take_int(key, 1, 1, 8))
    if lanes not in LANES:
        raise table.error(key, f"is {lanes}, not one of {', '.join(LANES)}")
    return lanes


def _options(table: Table, known: dict[str, tuple[str, Reader]]) -> dict[str, Any]:
    """The options that a table gives."""
    return {argument: read(table, key) for key, (argument, read) in known.items() if key in table}


def _flow(table: Table) -> FlowSpec:
    ends = []
    for key in ("from", "to"):
        name = table.take_text(key, None)
        if name is None:
            raise table.error(None, f"a flow needs {key}, the name of a host")
        ends.append(name)
    options = _options(table, _OF_A_FLOW)
    table.end()
    return FlowSpec(ends[0], ends[1], options, _placed(table))


def _placed(table: Table) -> Placed:
    """What makes errors about the options of a table, by the names of arguments."""
    keys = {argument: key for key, (argument, _) in _OPTIONS.items()}
    return lambda argument, reason: table.error(keys.get(argument, argument), reason)


@contextmanager
def at_its_place(name: str, *tables: tuple[Collection[str], Placed | None]) -> Iterator[None]:
    """Give an `EncodeError` about an option the place in the file that the option comes from.

    name: of the option. tables: the options that each table gives, the one that counts first.
    """
    try:
        yield
    except EncodeError as error:
        for given, placed in tables:
            if name in given and placed is not None:
                raise placed(name, reason_of(error)) from None
        raise


def _fault(table: Table, subnet: Subnet) -> FaultSpec:
    link = table.take_text("link", None)
    if link is None:
        raise table.error(None, 'a fault needs link = "NODE[PORT]"')
    name, _, number = link.removesuffix("]").rpartition("[")
    try:
        port = subnet.port(name, int(number) if number.isdecimal() else 0)
    except EncodeError as error:
        raise table.error("link", str(error)) from None
    if port.peer is None:
        raise table.error("link", f"{link} has no link")
    has_time = "at" in table
    at = table.take_time("at", 0)
    duration = table.take_time("for", 0) if "for" in table else None
    errors = table.take_number("errors", 0, 0, 0.999)
    table.end()
    if has_time == bool(errors):
        raise table.error(None, "a fault has either at, with for if it ends, or errors")
    if duration is not None and (errors or not duration):
        raise table.error("for", "is for a fault with at, and above 0")
    return FaultSpec(link, at, duration, errors)


def metrics_of(traffic: FabricTraffic) -> Metrics:
    """The metrics of `KNOWN`, of a run that has ended."""
    transfers = traffic.transfers
    ended = [each for each in transfers if each.end is not None]
    arrived = [each for each in ended if each.status is WCStatus.SUCCESS]
    times = sorted((each.end or 0) - each.begin for each in arrived)
    rates = [_rate(each) for each in transfers]
    begin = min((each.begin for each in transfers), default=0)
    time = max((each.end or 0 for each in ended), default=begin) - begin
    squares = len(rates) * sum(rate * rate for rate in rates)
    counts = {
        "messages": len(transfers),
        "success": len(arrived),
        "failed": len(ended) - len(arrived),
        "unfinished": len(transfers) - len(ended),
        "wrong": sum(not each.arrived for each in arrived),
        "retransmitted": sum(each.qp.counters.retransmitted for each in transfers),
        "time": time,
        "goodput": goodput(sum(each.size for each in arrived), time),
        "rate.min": min(rates, default=0),
        "rate.max": max(rates, default=0),
        "fairness": 1000 * sum(rates) ** 2 // squares if squares else 0,
        "fct.mean": sum(times) // len(times) if times else 0,
        "drops.all": sum(link.counters.port_xmit_discards for link in traffic.fabric.links()),
    }
    for name, percent in (("p50", 50), ("p99", 99), ("max", 100)):
        counts[f"fct.{name}"] = percentile(times, percent)
    return dict.fromkeys(METRICS, 0) | counts


def _rate(transfer: Transfer) -> int:
    """Bits a second; 0 of a transfer that has not ended with success."""
    if transfer.end is None or transfer.status is not WCStatus.SUCCESS:
        return 0
    return goodput(transfer.size, transfer.end - transfer.begin)


def check(traffic: FabricTraffic, expectations: Sequence[Expectation]) -> list[Checked]:
    """The expectations, and whether each was met."""
    metrics = metrics_of(traffic)
    return [Checked(each, None, metrics[each.metric], each.holds(metrics)) for each in expectations]
