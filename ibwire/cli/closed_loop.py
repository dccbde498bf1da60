"""What `ibwire inject` makes of answers: its options, who listens, and what is told of it."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import click

from ibwire.base.errors import EncodeError, PeerError
from ibwire.base.histogram import Histogram
from ibwire.base.quantities import parse_duration
from ibwire.programs.endpoint import WINDOW
from ibwire.traffic.closed_loop import Manners, Polite
from ibwire.traffic.injection import Injection
from ibwire.traffic.listening import Listening, converse
from ibwire.traffic.responses import Answers, Tally
from ibwire.traffic.transmission import Outlet, Report
from ibwire_layers.psn import MASK

Decorated = TypeVar("Decorated", bound=Callable[..., object])

SHOWN = 16
"""Queue pairs that are listed for people; --json has all."""


class Loop:
    """Packets whose answers count; manners: `None` if they change nothing."""

    def __init__(self, injection: Injection, manners: Manners | None) -> None:
        """Raises `EncodeError` for packets that manners are not possible with."""
        self.injection = injection
        pairs = injection.pairs()
        self.polite: Polite | None = None
        if manners is None:
            self.answers = Answers(pairs)
        else:
            self.polite = Polite(pairs, manners, time=injection.time, pace=injection.pace)
            self.answers = self.polite.answers

    @property
    def error(self) -> PeerError | None:
        """What the peer did not do."""
        return None if self.polite is None else self.polite.error

    def converse(self, dev: str, *, certain: bool) -> Report:
        """Send as answers allow it."""
        assert self.polite is not None
        return converse(self.polite, dev, certain=certain)

    def listening(self, outlet: Outlet) -> Listening:
        """An outlet that takes answers too."""
        return Listening(outlet, self.answers.take)

    def count(self, report: Report) -> None:
        """Take down what was sent, when somebody else has sent it."""
        if self.polite is None:
            sent = self.injection.counts(report.accepted)
            for tally, packets in zip(self.answers.tallies, sent, strict=True):
                tally.sent = packets

    def lines(self) -> Iterator[str]:
        """What came back, for people."""
        tallies = self.answers.tallies
        asked = sum(each.asked for each in tallies)
        done = sum(min(each.acknowledged, each.asked) for each in tallies)
        unasked = sum((each.sent or 0) - max(each.asked, each.acknowledged) for each in tallies)
        text = f"{done} of {asked} packets acknowledged" if asked else "no packet asks for any"
        if asked and unasked:
            text += f", {unasked} more do not ask for it"
        yield f"answers   {text}"
        heard = ", ".join(f"{count} {name}" for name, count in _heard(tallies).items())
        yield f"heard     {heard or 'nothing'}"
        repeated = sum(each.repeated for each in tallies)
        if repeated:
            timeouts = sum(each.timeouts for each in tallies)
            yield f"again     {repeated} packets, {timeouts} times after no answer at all"
        if len(self.answers.round_trips):
            yield f"round trip {spread(self.answers.round_trips)}"
        if self.answers.others:
            yield f"others    {self.answers.others} packets that are no answers, or damaged"
        if len(tallies) > 1:
            worst = sorted(tallies, key=lambda each: -each.missing)
            yield from (f"  {_line(each)}" for each in worst[:SHOWN])
            if len(tallies) > SHOWN:
                yield f"  ... and {len(tallies) - SHOWN} more queue pairs"

    def as_object(self) -> dict[str, object]:
        """What came back, for JSON."""
        return {
            "queue_pairs": [each.as_object() for each in self.answers.tallies],
            "others": self.answers.others,
            "round_trip_ns": self.answers.round_trips.to_json(),
            "error": None if self.error is None else str(self.error),
        }


def spread(histogram: Histogram) -> str:
    """Nanoseconds in words."""
    median, late = histogram.percentile(50), histogram.percentile(99)
    return f"median {(median or 0) / 1e3:g} us, 99 % {(late or 0) / 1e3:g} us"


def loop_options(function: Decorated) -> Decorated:
    """The options, which become one argument, `loop`: what makes a `Loop`, or `None`."""

    @functools.wraps(function)
    def command(*args: Any, **options: Any) -> object:
        given = {key: options.pop(key) for key in ("listen", *_READ)}
        wanted = {key: each for key, each in given.items() if each}
        loop = functools.partial(_loop, wanted) if wanted else None
        return function(*args, loop=loop, **options)

    for option in reversed(_OPTIONS):
        command = option(command)
    return command  # type: ignore[return-value]


def _loop(given: dict[str, Any], injection: Injection) -> Loop:
    """A loop as options say; `EncodeError` names the one that is wrong."""
    values = {key: _READ[key](text) for key, text in given.items() if key in _READ}
    if values in ({}, {"on_nak": "count"}):
        return Loop(injection, None)
    if "recovery" in values and "on_cnp" not in values:
        raise EncodeError("recovery", given["recovery"], "of use without --on-cnp")
    if "patience" in values and not {"window", "on_nak"} & set(values):
        raise EncodeError("patience", given["patience"], "of use without --window")
    goes_back = values.get("on_nak") == "goback"
    window, total = values.get("window", (WINDOW if goes_back else None, None))
    manners: dict[str, Any] = {key: values[key] for key in _TIMES if key in values}
    return Loop(
        injection,
        Manners(
            window=window,
            total=total,
            goes_back=goes_back,
            slows_to=values.get("on_cnp"),
            **manners,
        ),
    )


def _window(text: str) -> tuple[int, int | None]:
    each, comma, whole = text.partition(",")
    try:
        found = int(each), int(whole) if comma else None
    except ValueError:
        found = 0, None
    if not all(number is None or 1 <= number <= MASK >> 8 for number in found):
        raise EncodeError("window", text, f"packets from 1 to {MASK >> 8}, or two such: N,ALL")
    return found


def _factor(text: str) -> float:
    try:
        factor = 0.5 if text == "half" else float(text)
    except ValueError:
        factor = 0.0
    if not 0 < factor < 1:
        raise EncodeError("on_cnp", text, "half or a number between 0 and 1")
    return factor


def _duration(key: str) -> Callable[[str], int]:
    def read(text: str) -> int:
        found = parse_duration(text)
        if not found:
            raise EncodeError(key, text, "longer than nothing")
        return found

    return read


def _heard(tallies: list[Tally]) -> Counter[str]:
    found: Counter[str] = Counter()
    for each in tallies:
        found["ACK"] += each.acks
        found["responses"] += each.responses
        found.update({f"NAK {name}": count for name, count in each.naks.items()})
        found["RNR NAK"] += each.rnr_naks
        found["CNP"] += each.cnps
        found["unanswered READs or atomics"] += each.gaps
        found["ACK of what was not sent"] += each.impossible
    return +found


def _line(tally: Tally) -> str:
    psn = tally.highest_psn
    to = "" if psn is None else f", to PSN {psn}"
    heard = "".join(f", {count} {name}" for name, count in _heard([tally]).items())
    return f"QP {tally.asker.qpn:#x}: {tally.acknowledged} of {tally.sent} acknowledged{to}{heard}"


_TIMES = ("patience", "recovery")

_READ: dict[str, Callable[[str], Any]] = {
    "window": _window,
    "on_nak": str,
    "on_cnp": _factor,
    "recovery": _duration("recovery"),
    "patience": _duration("patience"),
}

_OPTIONS = (
    click.option("--listen", is_flag=True, help="Count answers too: ACKs, NAKs, CNPs."),
    click.option(
        "--window",
        metavar="N[,ALL]",
        help="No more packets unacknowledged to a queue pair, and to all.",
    ),
    click.option(
        "--on-nak",
        type=click.Choice(["count", "goback"]),
        help=f"Go back to what a NAK asks for; with a window, of {WINDOW} if none is given.",
    ),
    click.option(
        "--on-cnp",
        metavar="FACTOR",
        help="A CNP slows its queue pair to that part of --rate: half, or 0.9.",
    ),
    click.option("--recovery", metavar="TIME", help="From nothing back to the rate. [100ms]"),
    click.option("--patience", metavar="TIME", help="Without an acknowledgement. [5s]"),
)
