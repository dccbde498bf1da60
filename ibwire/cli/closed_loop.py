"""Responses in `ibwire inject`: the options, the receiver and the report."""

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
from ibwire.traffic.closed_loop import ClosedLoopSender, SendPolicy
from ibwire.traffic.injection import Injection
from ibwire.traffic.receiving import ReceivingOutlet, run_closed_loop
from ibwire.traffic.responses import ResponseCounter, ResponseTally
from ibwire.traffic.transmission import Outlet, SendReport
from ibwire_layers.psn import MASK

Decorated = TypeVar("Decorated", bound=Callable[..., object])

SHOWN = 16
"""Queue pairs that are listed for people; --json has all."""


class ClosedLoop:
    """Counts the responses to an injection; policy: how it reacts to them, `None` for not."""

    def __init__(self, injection: Injection, policy: SendPolicy | None) -> None:
        """Raises `EncodeError` for packets that the policy does not fit."""
        self.injection = injection
        pairs = injection.queue_pairs()
        self.sender: ClosedLoopSender | None = None
        if policy is None:
            self.responses = ResponseCounter(pairs)
        else:
            self.sender = ClosedLoopSender(pairs, policy, time=injection.time, pace=injection.pace)
            self.responses = self.sender.responses

    @property
    def error(self) -> PeerError | None:
        """How the peer failed; `None` if it did not."""
        return None if self.sender is None else self.sender.error

    def run(self, dev: str, *, allow_default_route: bool) -> SendReport:
        """Send according to the policy."""
        assert self.sender is not None
        return run_closed_loop(self.sender, dev, allow_default_route=allow_default_route)

    def receiving(self, outlet: Outlet) -> ReceivingOutlet:
        """An outlet that also takes responses."""
        return ReceivingOutlet(outlet, self.responses.take)

    def count(self, report: SendReport) -> None:
        """Record how many packets of each queue pair were sent, without a closed loop."""
        if self.sender is None:
            sent = self.injection.packets_by_queue_pair(report.accepted)
            for tally, packets in zip(self.responses.tallies, sent, strict=True):
                tally.sent = packets

    def lines(self) -> Iterator[str]:
        """The responses as text."""
        tallies = self.responses.tallies
        asked = sum(each.asked for each in tallies)
        done = sum(min(each.acknowledged, each.asked) for each in tallies)
        unasked = sum((each.sent or 0) - max(each.asked, each.acknowledged) for each in tallies)
        text = f"{done} of {asked} packets acknowledged"
        if not asked:
            text = "no packet requests an acknowledgement"
        if asked and unasked:
            text += f", {unasked} more request none"
            yield f"responses {text}"
            received = ", ".join(f"{count} {name}" for name, count in _received(tallies).items())
            yield f"received  {received or 'nothing'}"
            retransmitted = sum(each.retransmitted for each in tallies)
            if retransmitted:
                timeouts = sum(each.timeouts for each in tallies)
                yield f"retransmitted {retransmitted} packets, {timeouts} timeouts"
            if len(self.responses.round_trips):
                yield f"round trip {spread(self.responses.round_trips)}"
            if self.responses.others:
                yield f"others    {self.responses.others} packets that are damaged or no responses"
        if len(tallies) > 1:
            worst = sorted(tallies, key=lambda each: -each.missing)
            yield from (f"  {_line(each)}" for each in worst[:SHOWN])
            if len(tallies) > SHOWN:
                yield f"  ... and {len(tallies) - SHOWN} more queue pairs"

    def as_object(self) -> dict[str, object]:
        """The responses for JSON."""
        return {
            "queue_pairs": [each.as_object() for each in self.responses.tallies],
            "others": self.responses.others,
            "round_trip_ns": self.responses.round_trips.to_json(),
            "error": None if self.error is None else str(self.error),
        }


def spread(histogram: Histogram) -> str:
    """Median and 99th percentile of nanoseconds, as text."""
    median, late = histogram.percentile(50), histogram.percentile(99)
    return f"median {(median or 0) / 1e3:g} us, 99 % {(late or 0) / 1e3:g} us"


def closed_loop_options(function: Decorated) -> Decorated:
    """Add the options as one argument, `loop`: a function that makes a `ClosedLoop`, or `None`."""

    @functools.wraps(function)
    def command(*args: Any, **options: Any) -> object:
        given = {key: options.pop(key) for key in ("listen", *_READ)}
        wanted = {key: each for key, each in given.items() if each}
        loop = functools.partial(_loop, wanted) if wanted else None
        return function(*args, loop=loop, **options)

    for option in reversed(_OPTIONS):
        command = option(command)
    return command  # type: ignore[return-value]


def _loop(given: dict[str, Any], injection: Injection) -> ClosedLoop:
    """The closed loop for options; `EncodeError` names an invalid one."""
    values = {key: _READ[key](text) for key, text in given.items() if key in _READ}
    if values in ({}, {"on_nak": "count"}):
        return ClosedLoop(injection, None)
    if "recovery" in values and "on_cnp" not in values:
        raise EncodeError("recovery", given["recovery"], "valid without --on-cnp")
    if "stall_timeout" in values and not {"window", "on_nak"} & set(values):
        raise EncodeError("stall_timeout", given["stall_timeout"], "valid without --window")
    goes_back_n = values.get("on_nak") == "goback"
    window, total = values.get("window", (WINDOW if goes_back_n else None, None))
    policy: dict[str, Any] = {key: values[key] for key in _TIMES if key in values}
    return ClosedLoop(
        injection,
        SendPolicy(
            window=window,
            total_window=total,
            goes_back_n=goes_back_n,
            cnp_rate_factor=values.get("on_cnp"),
            **policy,
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
            raise EncodeError(key, text, "longer than 0")
        return found

    return read


def _received(tallies: list[ResponseTally]) -> Counter[str]:
    found: Counter[str] = Counter()
    for each in tallies:
        found["ACK"] += each.acks
        found["responses"] += each.responses
        found.update({f"NAK {name}": count for name, count in each.naks.items()})
        found["RNR NAK"] += each.rnr_naks
        found["CNP"] += each.cnps
        found["skipped responses"] += each.gaps
        found["ACK of packets never sent"] += each.impossible
    return +found


def _line(tally: ResponseTally) -> str:
    psn = tally.highest_psn
    to = "" if psn is None else f", to PSN {psn}"
    received = "".join(f", {count} {name}" for name, count in _received([tally]).items())
    text = f"QP {tally.queue_pair.qpn:#x}: {tally.acknowledged} of {tally.sent} acknowledged"
    return f"{text}{to}{received}"


_TIMES = ("stall_timeout", "recovery")

_READ: dict[str, Callable[[str], Any]] = {
    "window": _window,
    "on_nak": str,
    "on_cnp": _factor,
    "recovery": _duration("recovery"),
    "stall_timeout": _duration("stall_timeout"),
}

_OPTIONS = (
    click.option("--listen", is_flag=True, help="Count the responses: ACKs, NAKs, CNPs."),
    click.option(
        "--window",
        metavar="N[,ALL]",
        help="Limit of unacknowledged packets per queue pair, and of ALL queue pairs.",
    ),
    click.option(
        "--on-nak",
        type=click.Choice(["count", "goback"]),
        help="goback: retransmit from the PSN of a NAK on. "
        f"It needs a window, {WINDOW} without --window.",
    ),
    click.option(
        "--on-cnp",
        metavar="FACTOR",
        help="A CNP multiplies the rate of its queue pair by FACTOR: half, or 0.9.",
    ),
    click.option(
        "--recovery",
        metavar="TIME",
        help="Time in which a rate reduced by CNPs grows from 0 to --rate. [100ms]",
    ),
    click.option(
        "--stall-timeout",
        metavar="TIME",
        help="Fail after this time without an acknowledgement. [5s]",
    ),
)
