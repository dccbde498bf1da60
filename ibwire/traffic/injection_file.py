"""Reads an injection from TOML, and its values from a command line.

    dst = "10.0.0.2"
    src = "10.0.0.1"
    count = 200_000
    rate = "100kpps"

    [[stream]]
    verb = "write"
    qpn = "0x11..0x14"
    size = "64 KiB"
    weight = 3

    [[stream]]
    verb = "send"
    qpn = 0x20

Stream keys at the top are the defaults of all streams. The reference is docs/inject.md.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ibwire.base.errors import EncodeError, ScriptError
from ibwire.base.quantities import parse_duration
from ibwire.base.toml import Document, Table, listed, parse_size, shown
from ibwire.traffic.cycle import Turn
from ibwire.traffic.injection import Injection
from ibwire.traffic.pace import make_pace, parse_rate
from ibwire.traffic.stream import Icrc, Link, Payload, PortRule, Stream, Verb, parse_qpns
from ibwire_layers.opcodes import Service

MAXIMUM_STREAMS = 256


Completion = Callable[[dict[str, Any]], dict[str, Any]]
"""Adds default values to those of a stream."""


def read_injection(
    content: bytes, name: str, given: Mapping[str, Any], complete: Completion
) -> Injection:
    """The injection in a file; a `ScriptError` gives the place of a mistake.

    name: of the file, for messages. given: values from the command line, which replace those
    at the top of the file, but not those of a stream.
    """
    top = Document(content, name).top
    whole = _values(top, INJECTION) | {key: given[key] for key in given if key in INJECTION}
    defaults = _values(top, STREAM) | {key: given[key] for key in given if key in STREAM}
    tables = top.tables("stream")
    if len(tables) > MAXIMUM_STREAMS:
        raise top.error("stream", f"more than {MAXIMUM_STREAMS}")
    top.end()
    streams = []
    for table in tables or [top]:
        values = defaults
        if table is not top:
            values = defaults | _values(table, STREAM)
            table.end()
        try:
            streams.append(make_stream(complete(values)))
        except EncodeError as error:
            raise _located(table, top, error) from None
    try:
        return make_injection(tuple(streams), whole)
    except EncodeError as error:
        raise _located(top, top, error) from None


def make_stream(values: Mapping[str, Any]) -> Stream:
    """The stream for values by key; `EncodeError` names the key."""
    changed = dict(values)
    return Stream(qpns=changed.pop("qpn", ()), **changed)


def make_injection(streams: tuple[Stream, ...], values: Mapping[str, Any]) -> Injection:
    """The injection for values by key; `EncodeError` names the key."""
    paced = {key: values[key] for key in values if key in PACE}
    whole = {key: values[key] for key in values if key not in PACE}
    return Injection(streams=streams, pace=make_pace(paced), **whole)


def parse_value(key: str, value: object) -> Any:
    """The parsed value of a key, from TOML or a command line; `EncodeError` names the key."""
    try:
        return (STREAM | INJECTION)[key](value)
    except EncodeError as error:
        reason = str(error).partition(" is not ")[2]
        raise EncodeError(key, value, reason) from None


def _values(table: Table, keys: Mapping[str, Parser]) -> dict[str, Any]:
    """The values of the keys that a table has."""
    found: dict[str, Any] = {}
    for key in keys:
        value = table.take(key)
        if value is None:
            continue
        if key == "fields":
            inside = table.table(key)
            assert inside is not None
            value = {name: each for _, name, each in inside.leaves()}
        try:
            found[key] = parse_value(key, value)
        except EncodeError as error:
            raise table.error(key, _reason(error)) from None
    return found


def _located(table: Table, top: Table, error: EncodeError) -> ScriptError:
    """The error at the place of its value, or at its table when the value is missing."""
    is_key = error.field in STREAM | INJECTION
    key, reason = (error.field, _reason(error)) if is_key else ("fields", str(error))
    for place in (table, top):
        if key in place:
            return place.error(key, reason)
    return table.error(None, str(error))


def _reason(error: EncodeError) -> str:
    return str(error).removeprefix(f"{error.field}: ")


Parser = Callable[[Any], Any]


def _number(value: object) -> int:
    if isinstance(value, str):
        try:
            return int(value, 0)
        except ValueError:
            raise EncodeError("number", value, "a number, decimal or with 0x") from None
    if not isinstance(value, int) or isinstance(value, bool):
        raise EncodeError("number", shown(value), "a number")
    return value


def _size(value: object) -> int:
    if isinstance(value, str) and value.strip().isdecimal():
        return _number(value)
    return parse_size(value)


def _truth(value: object) -> bool:
    if not isinstance(value, bool):
        raise EncodeError("value", shown(value), "true or false")
    return value


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise EncodeError("text", shown(value), "a string")
    return value


def _named(names: Mapping[str, Any]) -> Parser:
    def parse(value: object) -> Any:
        if not isinstance(value, str) or value.lower() not in names:
            raise EncodeError("name", value, f"one of {listed(list(names))}")
        return names[value.lower()]

    return parse


def _mac(value: object) -> bytes:
    text = _text(value)
    try:
        return bytes.fromhex(text.replace(":", "").replace("-", ""))
    except ValueError:
        raise EncodeError("address", value, "a MAC address such as 02:00:0a:00:00:01") from None


def _port(value: object) -> int | PortRule:
    if isinstance(value, str) and value in list(PortRule):
        return PortRule(value)
    try:
        return _number(value)
    except EncodeError:
        expected = f"a port number or one of {', '.join(PortRule)}"
        raise EncodeError("port", value, expected) from None


def _payload(value: object) -> bytes | Payload:
    if isinstance(value, str) and value in list(Payload):
        return Payload(value)
    try:
        return bytes.fromhex(_text(value))
    except (ValueError, EncodeError):
        expected = f"hexadecimal digits or one of {', '.join(Payload)}"
        raise EncodeError("payload", shown(value), expected) from None


def _probability(value: object) -> float:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    text = _text(value).strip()
    try:
        return float(text[:-1]) / 100 if text.endswith("%") else float(text)
    except ValueError:
        raise EncodeError("probability", value, "a probability such as 0.01 or 1%") from None


def _fields(value: object) -> dict[str, int]:
    """Parse a table of numbers, or "bth.psn=5, ip.ttl=1"."""
    if isinstance(value, str):
        pairs = (part.partition("=") for part in value.split(","))
        value = {name.strip(): number.strip() for name, _, number in pairs}
    if not isinstance(value, dict):
        raise EncodeError("fields", shown(value), "fields such as bth.psn=5")
    return {name: _number(each) for name, each in value.items()}


INJECTION: dict[str, Parser] = {
    "count": _number,
    "time": parse_duration,
    "rate": parse_rate,
    "ramp_to": parse_rate,
    "ramp_time": parse_duration,
    "on": parse_duration,
    "off": parse_duration,
    "burst": _number,
    "turn": _named({each.value: each for each in Turn}),
    "seed": _number,
}
"""Keys of the injection and the parsers of their values."""

PACE = ("rate", "ramp_to", "ramp_time", "on", "off", "burst")

STREAM: dict[str, Parser] = {
    "verb": _named({each.value: each for each in Verb}),
    "service": _named({name.lower(): Service[name] for name in ("RC", "UC", "UD")}),
    "qpn": parse_qpns,
    "weight": _number,
    "size": _size,
    "mtu": _number,
    "psn": _number,
    "ack_every": _number,
    "src": _text,
    "dst": _text,
    "src_mac": _mac,
    "dst_mac": _mac,
    "link": _named({each.value: each for each in Link}),
    "vlan": _number,
    "pcp": _number,
    "dscp": _number,
    "ecn": _number,
    "ttl": _number,
    "src_port": _port,
    "src_qpn": _number,
    "pkey": _number,
    "solicited": _truth,
    "mig_req": _truth,
    "count_ip_id": _truth,
    "rkey": _number,
    "va": _number,
    "va_step": _size,
    "va_window": _size,
    "imm": _number,
    "swap": _number,
    "compare": _number,
    "qkey": _number,
    "syndrome": _number,
    "msn": _number,
    "payload": _payload,
    "ce": _probability,
    "ce_every": _number,
    "ce_run": _number,
    "fields": _fields,
    "icrc": _named({each.value: each for each in Icrc}),
    "fields_every": _number,
}
"""Keys of a stream and the parsers of their values."""
