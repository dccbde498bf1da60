"""Which message a connection manager retransmits at other times, or another number of times.

While time passes several connections may have something to retransmit. A message of another
connection than expected is right in itself: one of the two came too early or too late.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from types import MappingProxyType

from ibwire.base.units import Time
from ibwire.cm.messages import decode
from ibwire.fuzz.case import Case, Command, Mad, Packet, Step, Wait
from ibwire.fuzz.judge.comparison import Difference, Kind
from ibwire.fuzz.judge.findings import verdict
from ibwire_layers.errors import DecodeError
from ibwire_layers.packet import Packet as WholePacket

NOTHING_DUE: Mapping[object, Time] = MappingProxyType({})
"""Where no timers are known."""


@dataclass(frozen=True, slots=True)
class Retransmission:
    """What a manager does otherwise with a message that it retransmits."""

    messages: tuple[str, ...]
    """That message; two where either may be the one that comes at another time."""
    how: str
    change: int = 0
    """How many more times it is sent; 0 if that is not known."""
    is_certain: bool = True
    """Whether the number is another one, and not the time perhaps."""
    connections: tuple[object, ...] = ()
    """The manager's own IDs of the connections of these messages."""
    shift: int = 0
    """By how many ps the first one that differs is too late; 0 if that is not known."""
    times: tuple[Time, Time] | None = None
    """When that one is due and when it comes, from the beginning of the wait, if that is known."""

    @property
    def text(self) -> str:
        """In words."""
        what = " or the ".join(self.messages)
        if self.is_without_end:
            return f"{_TIMEOUT} is missing at the end"
        if self.how in _UNCERTAIN:
            return f"a {what} {'is missing' if self.is_less else 'too many'}"
        return f"it retransmits the {what} {self.how}"

    @property
    def is_without_end(self) -> bool:
        """Whether only the REJ that ends the wait for an answer is missing."""
        return self.how == _WITHOUT_END

    def includes(self, other: Retransmission) -> bool:
        """Whether another one is the same, as far as this one says what it is."""
        is_same_side = None in (self.is_less, other.is_less) or self.is_less is other.is_less
        return set(other.messages) <= set(self.messages) and is_same_side

    @property
    def is_less(self) -> bool | None:
        """Whether it is sent later or fewer times, not sooner or more often, if that is known."""
        return next((_SIDES[each] for each in _SIDES if each in self.how), None)


def parts_of_exchanges(case: Case) -> Iterator[Case]:
    """What a case has of each of its exchanges, if there are several."""
    exchanges = {each.exchange for each in case.steps if isinstance(each, Mad | Command)}
    for exchange in exchanges if len(exchanges) > 1 else ():
        others = exchanges - {exchange}
        yield case.with_steps([s for s in case.steps if getattr(s, "exchange", None) not in others])


def retransmission_of(
    difference: Difference, steps: Sequence[Step], dues: Mapping[object, Time] = NOTHING_DUE
) -> Retransmission | None:
    """What is retransmitted otherwise in a wait, the last of these steps; `None` for anything else.

    A message that is wrong itself is something else. dues: how long the timer of each connection
    has to run when the wait begins, by its ID.
    """
    if isinstance(steps[-1], Mad | Command | Packet):
        return None
    if difference.kind is Kind.TIME:
        return _at_another_time(difference, sum(map(_length, steps[:-1])))
    if difference.kind is not Kind.ANSWER:
        return None
    sides = zip((difference.expected, difference.got), difference.times, strict=True)
    expected, got = ([_sent(frame, time) for frame, time in zip_longest(*side)] for side in sides)
    if None in expected or None in got:
        return None
    ours, theirs = ([each for each in side if each is not None] for side in (expected, got))
    if _has_wrong_fields(ours, theirs, is_alone=sum(map(_begins, steps)) < _SEVERAL):
        return None
    return _of_one_connection(ours, theirs, steps, dues) or _of_several(ours, theirs)


@dataclass(frozen=True, slots=True)
class _Sent:
    """A message that a manager has sent."""

    what: str
    connection: object
    """Its own ID of the connection, or the number of a request for a queue pair of datagrams."""
    mad: bytes
    time: object
    """When; `None` if that is not known."""

    @property
    def is_retransmitted(self) -> bool:
        return self.what in _RETRANSMITTED


def _sent(frame: object, time: object = None) -> _Sent | None:
    """A message with its connection; `None` for what is none."""
    assert isinstance(frame, bytes)
    try:
        payload = bytes(WholePacket.parse(frame).payload)
    except DecodeError:
        return None
    if (received := decode(payload)) is None:
        return None
    names = ("local_comm_id", "request_id")
    number = next((n for name in names if (n := getattr(received.message, name, None))), None)
    return _Sent(verdict(frame), number, payload, time)


def _begins(step: Step) -> bool:
    """Whether a step begins a connection."""
    if isinstance(step, Mad):
        return step.message in ("REQ", "SIDR_REQ")
    return isinstance(step, Command) and step.what in ("connect", "resolve")


def _has_wrong_fields(expected: Sequence[_Sent], got: Sequence[_Sent], is_alone: bool) -> bool:
    """Whether a message differs from the one of the same connection. is_alone: in the case."""
    known = {(each.what, each.connection): each.mad for each in expected}
    for one, other in zip(expected, got, strict=False):
        right = known.get((other.what, other.connection), other.mad)
        if one.what == other.what and (is_alone or one.connection == other.connection):
            right = one.mad
        if right != other.mad:
            return True
    return False


def _at_another_time(difference: Difference, began: Time) -> Retransmission | None:
    """What comes at another time, where the messages are as expected. began: when the wait did."""
    rows = zip(difference.expected, difference.got, difference.frames, strict=False)
    for expected, got, frame in rows:
        if expected == got or not isinstance(expected, int) or not isinstance(got, int):
            continue
        sent = _sent(frame)
        before = [_sent(each) for each in difference.frames]
        if sent is not None and not sent.is_retransmitted:  # the end of it
            own = [each for each in before if each and each.connection == sent.connection]
            sent = own[0]
        if sent is None or not sent.is_retransmitted:
            return None
        how = "too early" if got < expected else "too late"
        connections = (sent.connection,)
        return Retransmission(
            (sent.what,),
            how,
            connections=connections,
            shift=got - expected,
            times=(expected - began, got - began),
        )
    return None


def _of_one_connection(
    expected: Sequence[_Sent],
    got: Sequence[_Sent],
    steps: Sequence[Step],
    dues: Mapping[object, Time],
) -> Retransmission | None:
    """What one connection has more or less of."""
    for connection in dict.fromkeys(each.connection for each in (*expected, *got)):
        sides = [
            [each for each in side if each.connection == connection] for side in (expected, got)
        ]
        ours, theirs = ([each.what for each in side] for side in sides)
        if ours != theirs:
            is_first = not any(isinstance(each, Wait) for each in steps[:-1])
            found = _more_or_less(ours, theirs, _given_up(steps), is_first=is_first)
            if found is None:
                return None
            due, first = dues.get(connection), sides[1][0].time if sides[1] else None
            shift = 0
            if not sides[0] and due is not None and isinstance(first, int):
                shift = first - due
            found = replace(found, connections=(connection,), shift=shift)
            return _at_its_times(found, *sides, until=_length(steps[-1]))
    return None


def _length(step: Step) -> int:
    """How long a wait lasts, in ps; 0 for what is none."""
    return step.time if isinstance(step, Wait) else 0


def _at_its_times(
    found: Retransmission, expected: Sequence[_Sent], got: Sequence[_Sent], *, until: int
) -> Retransmission:
    """The same, with what the times of messages say that both have sent. until: end of the wait."""
    for one, other in zip(expected, got, strict=False):
        if one.what != other.what:
            break
        if not isinstance(one.time, int) or not isinstance(other.time, int):
            continue
        if one.time != other.time:
            when = "too early" if other.time < one.time else "too late"
            how = f"{when} and {found.how}" if found.is_certain else when
            times = one.time, other.time
            shift = other.time - one.time
            return Retransmission(
                found.messages, how, connections=found.connections, shift=shift, times=times
            )
    common = min(len(expected), len(got))
    if common and found.change and _is_over([each.time for each in expected], until):
        how = "too few times" if found.change < 0 else "too many times"
        return replace(found, how=how, is_certain=True)
    return found


def _is_over(times: Sequence[object], until: int) -> bool:
    """Whether a wait lasts so long after the last of several messages that another one was due."""
    known = [each for each in times if isinstance(each, int)]
    return len(known) > 1 and until - known[-1] > known[-1] - known[-2]


def _given_up(steps: Sequence[Step]) -> list[str]:
    """The message that a manager may give up in a case, if it is of one kind alone."""
    commands = {each.what for each in steps if isinstance(each, Command)}
    messages = [message for what, message in _GIVEN_UP.items() if what in commands]
    return messages if len(messages) == 1 else []


def _more_or_less(
    expected: Sequence[str], got: Sequence[str], given_up: Sequence[str], *, is_first: bool
) -> Retransmission | None:
    """How the messages of one connection differ. given_up: where only the end of it is seen.

    is_first: whether no time has passed before, in which others may have been sent.
    """
    pairs = enumerate(zip_longest(expected, got))
    place, (one, other) = next((at, pair) for at, pair in pairs if pair[0] != pair[1])
    candidates = [one, other, *reversed(expected[:place]), *given_up]
    what = next((each for each in candidates if each in _RETRANSMITTED), None)
    if what is None or {one, other} - {None, what} - {_TIMEOUT}:
        return None
    change = got.count(what) - expected.count(what)
    if one is not None and other is not None:
        how = "too few times" if one == what else "too many times"
        return Retransmission((what,), how, change)
    if (one, other) == (_TIMEOUT, None) and not change:
        return Retransmission((what,), _WITHOUT_END)
    if not place and is_first:
        return Retransmission((what,), "too early" if one is None else "too late or not at all")
    how = "too early or too many times" if one is None else "too late or too few times"
    return Retransmission((what,), how, change, is_certain=False)


def _of_several(expected: Sequence[_Sent], got: Sequence[_Sent]) -> Retransmission | None:
    """Which messages come in another order, where each connection has its own in the right one.

    Of those whose times are known the one that comes at another time.
    """
    for connection in dict.fromkeys(each.connection for each in expected):
        own = [[each for each in side if each.connection == connection] for side in (expected, got)]
        for one, other in zip(*own, strict=True):
            if isinstance(one.time, int) and isinstance(other.time, int) and one.time != other.time:
                what = one.what if one.is_retransmitted else own[0][0].what
                how = "too early" if other.time < one.time else "too late"
                shift = other.time - one.time
                return Retransmission((what,), how, connections=(connection,), shift=shift)
    for one, other in zip(expected, got, strict=False):
        if one.connection == other.connection:
            continue
        first = {each.connection: each.what for each in reversed(expected) if each.is_retransmitted}
        both = [each.connection for each in (one, other) if each.connection in first]
        found = tuple(dict.fromkeys(first[each] for each in both))
        how = "at another time"
        return Retransmission(found, how, connections=tuple(both)) if found else None
    return None


_UNCERTAIN = (
    "too early or too many times",
    "too late or too few times",
    "too late or not at all",
)
_WITHOUT_END = "without an end"
_SIDES = {"too early": False, "too late": True, "too many": False, "too few": True}
_RETRANSMITTED = ("REQ", "REP", "DREQ", "SIDR_REQ")
_GIVEN_UP = {"connect": "REQ", "accept": "REP"}
"""What an application lets a manager send, for which a REJ says that nothing answered."""
_TIMEOUT = "REJ TIMEOUT"
_SEVERAL = 2
"""Connections from which on a message may be that of another one."""
