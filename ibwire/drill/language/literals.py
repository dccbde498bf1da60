"""A packet in a script: `SEND_FIRST psn+1 len=1024 ack`, with any field of any header.

The opcode determines the headers. A field is a header's field by its
name, with the header before it where two have the same (`ieth.rkey`, `ip.ttl`), or one
of the words below, which stand for several fields or for none. The same words describe
what is sent, where they have one value each, and what is expected.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from ipaddress import ip_address

from ibwire.base.errors import ScriptError
from ibwire.drill.language.cursor import SYMBOLS, Cursor, unknown, with_article
from ibwire.drill.language.expressions import (
    Expression,
    Scope,
    Value,
    constant,
    read_expression,
    read_value,
)
from ibwire.drill.language.manager_messages import FORMS, PREFIX, Form, names_of
from ibwire.drill.language.tokens import Kind, Token
from ibwire_layers import headers as h
from ibwire_layers.opcodes import INFO, OpCode
from ibwire_layers.outer import UDP, VLAN, Ethernet, IPv4, IPv6
from ibwire_layers.schema import Field, Header, Show
from ibwire_layers.syndrome import NakCode

WRAPPING = ("psn", "msn")
"""Fields in which what depends on the connection wraps to 0."""

WORDS = {
    "len": "bytes of payload",
    "at": "where in the test pattern the payload begins",
    "data": "the payload in hexadecimal",
    "nak": "the NAK code of the syndrome",
    "rnr": "the timer code of an RNR NAK",
    "credits": "the credit code of the syndrome",
}
"""Words for packets in both directions."""

INBOUND_WORDS = {
    "pad": "bytes of padding, whatever the payload needs",
    "fill": "what each byte of the padding is",
    "icrc": "good, bad, swapped, none, good^BITS with these bits flipped, or a number of 32 bits",
    "cut": "bytes that are left of the packet, from its BTH on",
    "more": "bytes after the padding that belong to no header",
}
"""Words for packets to the device only."""

NAMES: Mapping[str, Mapping[str, int]] = {
    "nak": {code.name: code.value for code in NakCode},
}
"""Names of the values of a word."""

GOOD_ICRC = 1 << 32
"""The right ICRC, beyond every ICRC that is written as a number; with bits of it flipped, it is
this number with these bits."""

SWAPPED_ICRC = 1 << 33
NO_ICRC = 1 << 34

ICRCS: Mapping[str, int] = {
    "good": GOOD_ICRC,
    "bad": GOOD_ICRC | 1 << 24,  # the lowest bit of the first byte
    "swapped": SWAPPED_ICRC,  # its bytes in the opposite order
    "none": NO_ICRC,
}
"""Names of ICRCs."""

MAXIMUM_PAYLOAD = 16384
"""Bytes of a packet of a script: more than any path MTU, for packets that are too long."""

LIMITS: Mapping[str, tuple[int, int]] = {
    **dict.fromkeys(("len", "pad", "more"), (0, MAXIMUM_PAYLOAD)),
    **dict.fromkeys(("nak", "rnr", "credits"), (0, 31)),
    "at": (0, 1 << 31),
    "fill": (0, 255),
}
"""Least and greatest number of a word."""

_ADDRESSES = {
    Show.MAC: "MAC address such as 02:00:0a:00:00:01",
    Show.IPV4: "IP address such as 10.0.0.1",
    Show.IPV6: "IP address such as 10.0.0.1 or fd00::1",
}
"""Values in quotes instead of a number, by the kind of field."""

_MAC_SIZE = 6

_SYNDROMES = ("nak", "rnr", "credits", "syndrome")
_FLAGS = {"ack": "ack_req", "se": "se"}
_PRIVATE = ("data",), ("data", "len", "at")
"""Words for the private data of a message of connection management: from the device, and to it."""

_OUTER: dict[str, type[Header]] = {"eth": Ethernet, "vlan": VLAN, "udp": UDP}


@dataclass(frozen=True, slots=True)
class Place:
    """A field of a header: `part` is `bth`, `reth`, ..., `ip`, `udp`, `eth` or `vlan`."""

    part: str
    field: Field


@dataclass(frozen=True, slots=True)
class Literal:
    """A packet in a script: its opcode and the given fields."""

    token: Token
    opcode: int
    headers: tuple[type[Header], ...]
    """Extension headers."""
    words: Mapping[str, tuple[Token, Value]]
    fields: Mapping[Place, tuple[Token, Value]]
    data: bytes | None
    form: Form | None = None
    """The form of a message of connection management."""

    @property
    def name(self) -> str:
        """Its name in reports."""
        return short_name(self.opcode) if self.form is None else self.form.name

    @property
    def is_any(self) -> bool:
        """Whether every opcode fits."""
        return self.opcode == ANY

    @property
    def is_response(self) -> bool:
        """Whether it is sent by the responder."""
        info = INFO.get(self.opcode)
        return info is not None and info.is_response


ANY = -1

OPCODES: dict[str, int] = {}
"""Opcodes by each of their names: with or without `RC_` and `RDMA_`, and ACK."""
for _opcode in OpCode:
    _short = _opcode.name.replace("RDMA_", "")
    for _name in (_opcode.name, _short):
        OPCODES[_name] = OPCODES[_name.removeprefix("RC_")] = _opcode
OPCODES["ACK"] = OpCode.RC_ACKNOWLEDGE
OPCODES["ATOMIC_ACK"] = OpCode.RC_ATOMIC_ACKNOWLEDGE


def short_name(opcode: int) -> str:
    """The name of an opcode in reports."""
    info = INFO.get(opcode)
    if info is None:
        return f"OPCODE_0x{opcode:02X}"
    return info.opcode.name.removeprefix("RC_").replace("RDMA_", "")


def read_injected(cursor: Cursor) -> Literal:
    """Read a packet to the device: every field has one value."""
    return _read(cursor, is_inbound=True)


def read_expected(cursor: Cursor) -> Literal:
    """Read an expected packet: fields that are not named may have any right value."""
    return _read(cursor, is_inbound=False)


def single(value: Value) -> Expression:
    """The value of a field of a packet to the device."""
    return value.choices[0][0]


def _read(cursor: Cursor, *, is_inbound: bool) -> Literal:
    token = cursor.name("the name of an opcode")
    form = FORMS.get(token.text)
    opcode = OpCode.UD_SEND_ONLY if form else _opcode_of(cursor, token, is_inbound=is_inbound)
    info = INFO.get(opcode)
    headers = form.headers if form else info.headers if info else ()
    known = _fields_of(headers) if form is None else _fields_of_message(form, octets=is_inbound)
    words: dict[str, tuple[Token, Value]] = {}
    fields: dict[Place, tuple[Token, Value]] = {}
    data: bytes | None = None
    if form is None and _begins_psn(cursor):
        here = cursor.here
        value = _value(cursor, {}, is_inbound=is_inbound)
        fields[known["psn"]] = here, value
        _check_possible(cursor, "psn", value, known["psn"])
    own_words = WORDS if form is None else {name: WORDS[name] for name in _PRIVATE[is_inbound]}
    vocabulary = {**own_words, **INBOUND_WORDS} if is_inbound else own_words
    while not cursor.at_end and cursor.here.text not in ("|", "{"):
        negated = cursor.takes("!")
        name = cursor.name("a field of the packet")
        if name.text in _FLAGS and cursor.here.text != "=":
            _put(cursor, fields, known[_FLAGS[name.text]], name, _constant(name, not negated))
            continue
        if negated:
            raise cursor.unknown(name, "flag", _FLAGS)
        if name.text not in vocabulary and name.text not in known:
            own = [*_own_names(headers), *vocabulary, *_FLAGS]
            raise _unknown(cursor, token, name, known, own)
        cursor.sign("=")
        if name.text == "data":
            if data is not None:
                raise cursor.error(name, "data is given twice")
            data = read_data(cursor)
            continue
        value = _field_value(cursor, name, form, known.get(name.text), is_inbound=is_inbound)
        if name.text not in vocabulary:
            _put(cursor, fields, known[name.text], name, value)
        elif name.text in words:
            raise cursor.error(name, f"{name.text} is given twice")
        else:
            words[name.text] = name, value
    literal = Literal(token, opcode, info.headers if info else (), words, fields, data, form)
    _check(cursor, literal, known)
    return literal


def _field_value(
    cursor: Cursor, name: Token, form: Form | None, place: Place | None, *, is_inbound: bool
) -> Value:
    """Read the value of a field or word: an address in quotes, or a number."""
    if place is not None and place.field.show in _ADDRESSES and cursor.here.kind is Kind.TEXT:
        return _address(cursor, place.field.show)
    if name.text == "icrc" and is_inbound:
        return _icrc(cursor)
    names = NAMES.get(name.text, {})
    if form is not None and place is not None:
        names = names_of(place.field)
    value = _value(cursor, names, is_inbound=is_inbound)
    # Of a packet to the device other numbers are checked when it is built, where they have to fit.
    if not is_inbound or (place is not None and place.field.name in WRAPPING):
        _check_possible(cursor, name.text, value, place)
    return value


def _check_possible(cursor: Cursor, name: str, value: Value, place: Place | None) -> None:
    """Raise for a number that a field of a packet, or a word, can never have."""
    low, high = LIMITS[name] if place is None else (0, (1 << place.field.size) - 1)
    for end in {id(end): end for choice in value.choices for end in choice}.values():
        number = constant(end, cursor.path)
        if number is None or low <= number <= high:
            continue
        if place is None or number > high or place.field.name not in WRAPPING:
            raise cursor.error(end.token, f"{name} is {number}, not from {low} to {high}")


def _icrc(cursor: Cursor) -> Value:
    """Read an ICRC: `good`, `bad`, `swapped`, `none`, `good^0x10000`, or a number of 32 bits."""
    token, start = cursor.here, cursor.position
    named = token.text if token.kind is Kind.NAME else ""
    if named in ICRCS:
        cursor.take()
        base = ICRCS[named]
        bits = read_expression(cursor) if named == "good" and cursor.takes("^") else None
    elif named and named not in SYMBOLS and cursor.after.text != "(":
        raise cursor.unknown(token, "ICRC", ICRCS)
    else:
        base, bits = 0, read_expression(cursor)

    def evaluate(scope: Scope) -> int:
        number = 0 if bits is None else bits.evaluate(scope)
        if not 0 <= number < GOOD_ICRC:
            raise scope.error(token, f"icrc is {number}, not from 0 to {GOOD_ICRC - 1}")
        return base ^ number

    expression = Expression(token, cursor.text_since(start), evaluate, is_plain=True)
    return Value(token, ((expression, expression),))


def _unknown(
    cursor: Cursor, token: Token, name: Token, known: Mapping[str, Place], own: list[str]
) -> ScriptError:
    """The error about a field that a packet does not have."""
    part, dot, rest = name.text.partition(".")
    if not dot:
        return cursor.unknown(name, f"field of {token.text}", own)
    dotted = [each.partition(".") for each in known if "." in each]
    fields = [field for header, _, field in dotted if header == part]
    if not fields:
        parts = ", ".join(sorted({header for header, _, _ in dotted}))
        return cursor.error(name, f"{token.text} has no header {part}, but {parts}")
    return cursor.error(name, unknown(rest, f"field of {part}", fields))


def read_data(cursor: Cursor) -> bytes:
    """Bytes in hexadecimal, in quotes."""
    token = cursor.take()
    if token.kind is not Kind.TEXT:
        raise cursor.expected('bytes such as "00 ff"', token)
    try:
        return bytes.fromhex(token.text)
    except ValueError:
        raise cursor.error(token, f"{token.text!r} is not hexadecimal") from None


def _check(cursor: Cursor, literal: Literal, known: Mapping[str, Place]) -> None:
    """Raise for words that contradict each other."""
    given = [name for name in _SYNDROMES if name in literal.words]
    syndrome = known.get("syndrome")
    if syndrome in literal.fields:
        given.append("syndrome")
    if given and syndrome is None:
        token = literal.words[given[0]][0]
        raise cursor.error(token, f"{literal.token.text} has no AETH and so no {given[0]}")
    if len(given) > 1:
        raise cursor.error(literal.token, f"{given[0]} and {given[1]} are the same field")
    if literal.data is not None and ("len" in literal.words or "at" in literal.words):
        raise cursor.error(literal.token, "data sets the payload, so len and at cannot")
    if literal.form is not None and len(literal.data or b"") > literal.form.room:
        reason = f"{literal.token.text} has room for {literal.form.room} bytes of private data"
        raise cursor.error(literal.token, reason)


def _put(
    cursor: Cursor,
    fields: dict[Place, tuple[Token, Value]],
    place: Place,
    token: Token,
    value: Value,
) -> None:
    if place in fields:
        raise cursor.error(token, f"{token.text} is given twice")
    fields[place] = token, value


def _value(cursor: Cursor, names: Mapping[str, int], *, is_inbound: bool) -> Value:
    if not is_inbound:
        return read_value(cursor, names)
    if cursor.here.kind is Kind.TEXT:
        raise cursor.expected("a number", cursor.here)
    token = cursor.here
    expression = read_expression(cursor, names)
    return Value(token, ((expression, expression),))


def _address(cursor: Cursor, show: Show) -> Value:
    """Read an address in its usual notation, in quotes."""
    token = cursor.take()
    try:
        if show is Show.MAC:
            octets = bytes.fromhex(token.text.replace(":", ""))
            if len(octets) != _MAC_SIZE or token.text.lower() != octets.hex(":"):
                raise ValueError
        else:
            octets = ip_address(token.text).packed
    except ValueError:
        raise cursor.error(
            token, f"{token.text!r} is not {with_article(_ADDRESSES[show])}"
        ) from None
    number = int.from_bytes(octets)
    expression = Expression(token, f'"{token.text}"', lambda scope: number, is_plain=True)
    return Value(token, ((expression, expression),))


def _constant(token: Token, value: bool) -> Value:
    number = int(value)
    expression = Expression(token, str(number), lambda scope: number, is_plain=True)
    return Value(token, ((expression, expression),))


def _begins_psn(cursor: Cursor) -> bool:
    """Whether a PSN without its name is next: `psn+1`, a number, `(psn)`, `*` or `?x`."""
    here = cursor.here
    if here.kind in (Kind.NUMBER, Kind.VARIABLE):
        return True
    if here.kind is Kind.SIGN:
        return here.text in ("(", "*", "?", "{")
    name = here.text.rpartition(".")[2] if here.text != "bth.psn" else ""
    return name in ("psn", "rq_psn", "sq_psn") and cursor.after.text != "="


def _opcode_of(cursor: Cursor, token: Token, *, is_inbound: bool) -> int:
    if token.text == "any" and not is_inbound:
        return ANY
    if token.text in OPCODES:
        return OPCODES[token.text]
    number = token.text.removeprefix("OPCODE_0x").removeprefix("OPCODE_0X")
    if number != token.text and len(number) == 2:
        try:
            return int(number, 16)
        except ValueError:
            pass
    if token.text.startswith(PREFIX):
        raise cursor.unknown(token, "message of connection management", FORMS)
    raise cursor.unknown(token, "opcode", OPCODES if is_inbound else [*OPCODES, "any"])


def _own_names(headers: tuple[type[Header], ...]) -> list[str]:
    return [entry.name for header in _with_bth(headers) for entry in header.FIELDS]


def _with_bth(headers: tuple[type[Header], ...]) -> tuple[type[Header], ...]:
    return (h.BTH, *headers)


def _fields_of(headers: tuple[type[Header], ...]) -> dict[str, Place]:
    """The fields of a packet with these extension headers, by every name."""
    if headers not in _KNOWN:
        _KNOWN[headers] = _places(_with_bth(headers))
    return _KNOWN[headers]


def _fields_of_message(form: Form, *, octets: bool) -> dict[str, Place]:
    """The fields of a message of connection management by every name; its own take precedence.

    octets: also those of bytes, whose number is that of the first eight.
    """
    headers = (*form.headers, h.BTH)
    if headers not in _KNOWN:
        _KNOWN[headers] = _places(headers)
    known = _KNOWN[headers]
    if octets:
        return known
    return {name: place for name, place in known.items() if not place.field.is_octets}


def _places(headers: tuple[type[Header], ...]) -> dict[str, Place]:
    """Fields by name, alone and with their header; the first field gets the name alone."""
    known: dict[str, Place] = {}
    for header in headers:
        for entry in header.FIELDS:
            place = Place(header.KEY, entry)
            known[f"{header.KEY}.{entry.name}"] = place
            known.setdefault(entry.name, place)
    for part, header in _OUTER.items():
        for entry in header.FIELDS:
            known[f"{part}.{entry.name}"] = Place(part, entry)
    for version in (IPv4, IPv6):  # of the IP version with the wider addresses
        for entry in version.FIELDS:
            known[f"ip.{entry.name}"] = Place("ip", entry)
    return known


_KNOWN: dict[tuple[type[Header], ...], dict[str, Place]] = {}
