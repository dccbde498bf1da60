"""Types of option values, and groups of options."""

from __future__ import annotations

import functools
import ipaddress
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import fields
from typing import Any, TypeVar

import click
from click.shell_completion import CompletionItem

from ibwire.base.quantities import parse_duration
from ibwire.base.units import Time
from ibwire_layers.errors import EncodeError

MOST_JOBS = 1024
"""Processes that an option can ask for."""


def did_you_mean(text: str, names: Iterable[str]) -> str:
    """`; did you mean NAME?` for a misspelled name, else nothing."""
    import difflib

    close = difflib.get_close_matches(text, names, 1) if len(text) <= _LONGEST else []
    return f"; did you mean {close[0]}?" if close else ""


_LONGEST = 64
"""Longer texts are not compared, which takes quadratic time."""

Decorated = TypeVar("Decorated", bound=Callable[..., object])


def as_one(
    name: str, kind: Callable[..., object], options: Sequence[Callable[[Any], Any]]
) -> Callable[[Decorated], Decorated]:
    """Options of a command that become one argument: a dataclass with a field for each."""

    def decorate(function: Decorated) -> Decorated:
        @functools.wraps(function)
        def command(*args: Any, **given: Any) -> object:
            names = [field.name for field in fields(kind)]  # type: ignore[arg-type]
            wish = kind(**{name: given.pop(name) for name in names})
            return function(*args, **{name: wish}, **given)

        for option in reversed(options):
            command = option(command)
        return command  # type: ignore[return-value]

    return decorate


def completions(names: Iterable[str], incomplete: str) -> list[CompletionItem]:
    """What a shell offers for the beginning of a name."""
    return [CompletionItem(name) for name in names if name.startswith(incomplete)]


class FieldNames(click.ParamType[str]):
    """Names of fields with commas between them; a shell completes the last."""

    name = "text"

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        """The fields that begin so."""
        from ibwire.dissect import FIELDS

        before, comma, last = incomplete.rpartition(",")
        return [
            CompletionItem(f"{before}{comma}{name}") for name in FIELDS if name.startswith(last)
        ]


class RuleName(click.ParamType[str]):
    """A rule of `ibwire check`, a family of rules, or one of some other names."""

    name = "rule"

    def __init__(self, *others: str) -> None:
        self._others = others

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> str:
        """The name, which must be known."""
        from ibwire.rules.catalogue import FAMILIES, RULES

        name = str(value)
        known = [*FAMILIES, *RULES, *self._others]
        if name not in known:
            hint = did_you_mean(name, known)
            hint = hint or "; `ibwire check --rules` lists them"
            self.fail(f"no rule or family {name!r}{hint}", param, ctx)
        return name

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        """The rules and families that begin so."""
        from ibwire.rules.catalogue import FAMILIES, RULES

        return completions([*FAMILIES, *RULES, *self._others], incomplete)


class Number(click.IntRange):
    """A number in a range; what is no number is wrong usage, with a hint at the right one."""

    def __init__(self, *, min: int, hint: str = "") -> None:
        super().__init__(min=min)
        self._hint = f"; {hint}" if hint else ""

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> int:
        """The number."""
        try:
            number = int(str(value))
        except ValueError:
            self.fail(f"{value!r} is not a number{self._hint}", param, ctx)
        return super().convert(number, param, ctx)


class QueuePairNumber(click.ParamType[int]):
    """A QP number, decimal or with 0x."""

    name = "number"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> int:
        """The number; whatever does not fit 24 bits is wrong usage."""
        try:
            number = value if isinstance(value, int) else int(str(value), 0)
        except ValueError:
            self.fail(f"{value!r} is not a number, decimal or with 0x", param, ctx)
        if not 0 <= number < 1 << 24:
            self.fail(f"{value} does not fit 24 bits", param, ctx)
        return number


class IPAddress(click.ParamType[str]):
    """An IPv4 or IPv6 address that a host may have, in its usual form."""

    name = "ip"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> str:
        """The address; what is mapped into IPv6 is IPv4."""
        try:
            address = ipaddress.ip_address(str(value))
        except ValueError:
            self.fail(f"{value!r} is not an IP address", param, ctx)
        if isinstance(address, ipaddress.IPv6Address):
            if address.scope_id is not None:
                self.fail(f"{value} says an interface, and that is known already", param, ctx)
            address = address.ipv4_mapped or address
        if address.is_unspecified or address.is_multicast or str(address) == _BROADCAST:
            self.fail(f"{value} is not an address of a single host", param, ctx)
        return str(address)


class MACAddress(click.ParamType[bytes]):
    """Six bytes with colons between them."""

    name = "mac"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> bytes:
        """The address of one station."""
        if isinstance(value, bytes):
            return value
        parts = str(value).split(":")
        if len(parts) != 6 or not all(_BYTE.fullmatch(part) for part in parts):
            self.fail(f"{value!r} is not a MAC address", param, ctx)
        address = bytes(int(part, 16) for part in parts)
        if address[0] & 1:
            self.fail(f"{value} is the address of a group", param, ctx)
        return address


_BROADCAST = "255.255.255.255"
_BYTE = re.compile("[0-9a-fA-F]{1,2}")


class Duration(click.ParamType[int]):
    """A time such as 10ms, in picoseconds."""

    name = "time"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> Time:
        """Picoseconds."""
        try:
            return value if isinstance(value, int) else parse_duration(str(value))
        except EncodeError as error:
            self.fail(str(error), param, ctx)


class BitErrorRate(click.ParamType[float]):
    """A bit error rate such as 1e-7, below 1; may_be_zero: whether it can be 0."""

    name = "rate"

    def __init__(self, *, may_be_zero: bool) -> None:
        self.may_be_zero = may_be_zero

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """The rate."""
        try:
            rate = float(str(value))
        except ValueError:
            rate = -1
        if not (0 < rate < 1 or (self.may_be_zero and rate == 0)):
            least = "0 or above" if self.may_be_zero else "above 0"
            text = f"{value!r} is not a bit error rate: a number {least} and below 1, such as 1e-5"
            self.fail(text, param, ctx)
        return rate


class Rate(click.ParamType[int]):
    """A link speed such as 100G, in bits a second."""

    name = "rate"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> int:
        """Bits a second."""
        from ibwire.base.quantities import parse_rate

        try:
            return value if isinstance(value, int) else parse_rate(str(value))
        except EncodeError as error:
            self.fail(str(error), param, ctx)
