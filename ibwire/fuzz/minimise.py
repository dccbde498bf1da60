"""A case made as short and as plain as it can be while it still shows the same.

Of a case of several connections first whole connections go, then steps, both in ever smaller
groups (delta debugging), then what is odd about those that are left. What leaks from one
connection to the next shows after hundreds of steps, and to try them one by one would take
minutes: so all steps of a kind are tried before, and one step again and again.

Cases are symbolic, so PSNs, lengths and checksums fit again after every cut.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from itertools import pairwise
from typing import Any, TypeVar

from ibwire.fuzz.case import (
    GOOD,
    Case,
    Connect,
    Connection,
    Mad,
    Packet,
    Post,
    Receive,
    Step,
    Value,
    Wait,
)
from ibwire.fuzz.condense import Part, parts_of_case, whole_case
from ibwire.fuzz.vocabulary.queue_pair.messages import FORMS, READ
from ibwire.rc.work import WROpcode
from ibwire_layers import syndrome as aeth
from ibwire_layers.opcodes import OpCode, Service
from ibwire_layers.psn import HALF, MASK

MAXIMUM_TRIALS = 3000
"""Cases carried out for one finding."""

MAXIMUM_STEPS = 100_000
"""Steps of them all: 10 s on the emulator, where one takes 0.1 ms."""

FEW = 6
"""Up to this size groups are tried wherever they may begin: they are messages."""

Thing = TypeVar("Thing")

Holds = Callable[[Sequence[Part]], bool]
"""Whether the case still shows what it shall, with these connections before the last one."""

Shows = Callable[[Case], bool]
"""Whether a case still shows what it shall show."""


def never(case: Case) -> bool:
    """No case is enough."""
    return False


def minimise(
    case: Case,
    shows: Shows,
    trials: int = MAXIMUM_TRIALS,
    *,
    is_over: Callable[[], bool] = bool,
    elsewhere: bool = True,
    is_enough: Shows = never,
) -> Case:
    """The shortest case that was found.

    is_over: whether time is up; without it there is no limit. elsewhere: whether other
    connections are tried, on most of which the case shows the same. is_enough: whether a case,
    which needs its connection, need not be made shorter.
    """
    counted = _Counted(shows, trials, is_over)
    case = _on_usual_connection(_fewer_connections(case, counted), counted)
    case = _last_steps(case, counted)
    case = next(filter(counted, _of_rc(case)), case)
    for shorten in (_on_plainer_connection, _needed_steps, _fewer_steps, _plain):
        before = case
        case = shorten(case, counted)
        if (shorten is _on_plainer_connection or case != before) and is_enough(case):
            return case
    if case != before:
        case = _fewer_steps(case, counted)
    for other in _elsewhere(case) if elsewhere and case.packets > 1 else ():
        if counted(other):
            shorter = _fewer_steps(_last_steps(other, counted), counted, few=1)
            if shorter.packets < case.packets:
                case = shorter
    return case


def condense(case: Case, shows: Shows) -> Case:
    """A case without connections that it does not need, and nothing else."""
    return _fewer_connections(case, _Counted(shows, MAXIMUM_TRIALS, bool))


class _Counted:
    """What trials show, as long as there is time for them."""

    def __init__(self, shows: Shows, trials: int, is_over: Callable[[], bool]) -> None:
        self._shows = shows
        self._trials = trials
        self._steps = MAXIMUM_STEPS
        self._is_late = is_over
        self._failed: Case | None = None

    @property
    def is_over(self) -> bool:
        return self._trials <= 0 or self._steps <= 0 or self._is_late()

    def __call__(self, case: Case) -> bool:
        # Whichever of many equal steps goes, what is left is the same: it was just tried.
        if case == self._failed or self.is_over:
            return False
        self._trials -= 1
        self._steps -= len(case.steps)
        if self._shows(case):
            return True
        self._failed = case
        return False


def _fewer_connections(case: Case, shows: Shows) -> Case:
    """The case with fewer connections, and with less that differs between them."""
    *others, last = parts_of_case(case)

    def holds(parts: Sequence[Part]) -> bool:
        return shows(whole_case(case, [*parts, last]))

    others = _fewest_last(others, holds)
    if others:
        others = _bare(others, holds) or _of_few_kinds(others, holds)
        others = _alike(others, holds)
        others = _repeated(others, last[0], holds)
        size = len(others)
        while size := size // 2:
            others = list(without_groups(others, holds, size))
    return whole_case(case, [*others, last])


def _fewest_last(things: list[Thing], holds: Callable[[list[Thing]], bool]) -> list[Thing]:
    """As many of the last ones as it takes, if more of them never show less."""
    low, high = 0, len(things)
    while low < high:
        middle = (low + high) // 2
        if holds(things[len(things) - middle :]):
            high = middle
        else:
            low = middle + 1
    return things[len(things) - high :]


def _bare(parts: list[Part], holds: Holds) -> list[Part]:
    """Connections with which nothing is done; none if those do not show it."""
    bare: list[Part] = [(connection, ()) for connection, _ in parts]
    return _fewest_last(bare, holds) if holds(bare) else []


def _of_few_kinds(parts: list[Part], holds: Holds) -> list[Part]:
    """Only those kinds of steps that it takes, on one connection if that will do."""
    for kind in dict.fromkeys(_kind(step) for _, steps in parts for step in steps):
        fewer: list[Part] = [
            (connection, [step for step in steps if _kind(step) != kind])
            for connection, steps in parts
        ]
        if holds(fewer):
            parts = fewer
    busy = [part for part in parts if part[1]]
    if busy and holds(busy):
        parts = busy
    together: list[Part] = [(parts[0][0], [step for _, steps in parts for step in steps])]
    return together if holds(together) else parts


def _alike(parts: list[Part], holds: Holds) -> list[Part]:
    """The usual connection each time, and the same step for all of a kind."""
    plain: list[Part] = [(Connection(), steps) for _, steps in parts]
    if holds(plain):
        parts = plain
    for kind in dict.fromkeys(_kind(step) for _, steps in parts for step in steps):
        model = next(step for _, steps in parts for step in steps if _kind(step) == kind)
        alike: list[Part] = [
            (connection, [model if _kind(step) == kind else step for step in steps])
            for connection, steps in parts
        ]
        if holds(alike):
            parts = alike
    return parts


def _repeated(parts: list[Part], last: Connection, holds: Holds) -> list[Part]:
    """The same step again and again, if that will do, on a connection like the last one or not."""
    models = {_kind(step): (connection, step) for connection, steps in parts for step in steps}
    count = sum(len(steps) for _, steps in parts)
    for own, model in models.values():
        for connection in dict.fromkeys((last, own)):

            def does(steps: list[Step], connection: Connection = connection) -> bool:
                return holds([(connection, steps)])

            if does([model] * count):
                return [(connection, _fewest_last([model] * count, does))]
    return parts


def _kind(step: Step) -> object:
    if isinstance(step, Mad):
        return step.message
    return step.opcode if isinstance(step, Packet) else type(step)


def _on_usual_connection(case: Case, shows: Shows) -> Case:
    """On a connection with nothing odd about it at all, which is enough for most."""
    usual = _usual(case.connection)
    if case.connection == usual:
        return case
    plain = _on(case, usual)
    return plain if shows(plain) else case


def _usual(connection: Connection) -> Connection:
    """The usual connection of that service."""
    return Connection(service=connection.service, version=connection.version)


def _of_rc(case: Case) -> Iterator[Case]:
    """A case of XRC as one of RC, which has the same operations."""
    if case.connection.is_xrc:
        connection = replace(case.connection, service="RC")
        yield replace(case, connection=connection, steps=tuple(map(_step_of_rc, case.steps)))


def _step_of_rc(step: Step) -> Step:
    if not isinstance(step, Packet) or step.opcode >> 5 != Service.XRC:
        return step
    of_rc = step.altered(opcode=_operation(step))
    is_gone = step.why in _FIELDS and _FIELDS[step.why] not in of_rc.fields
    return of_rc.altered(why="") if is_gone else of_rc


def _on(case: Case, connection: Connection) -> Case:
    """The case on another connection."""
    steps = case.steps
    if connection.pairs < case.connection.pairs:
        steps = tuple(_of_pair(step, connection.pairs) for step in steps)
    return replace(case, connection=connection, steps=steps)


def _on_plainer_connection(case: Case, shows: Shows) -> Case:
    """On a connection with nothing odd about it that the case does not need."""
    odd, usual = case.connection, _usual(case.connection)
    names = [each.name for each in fields(Connection)]

    def with_odd(kept: Sequence[str]) -> Case:
        changes: dict[str, Any] = {name: getattr(odd, name) for name in kept}
        return _on(case, replace(usual, **changes))

    differing = [name for name in names if getattr(odd, name) != getattr(usual, name)]
    case = with_odd(_needed(differing, lambda kept: shows(with_odd(kept))))
    for name in names:
        case = next(filter(shows, _with_plainer(case, name)), case)
    return case


def _last_steps(case: Case, shows: Shows) -> Case:
    """Without the first half of its steps, the first half of the rest, and so on."""
    while len(case.steps) > 1:
        half = case.with_steps(case.steps[len(case.steps) // 2 :])
        if not shows(half):
            break
        case = half
    return case


def _needed_steps(case: Case, shows: _Counted) -> Case:
    """With the last step, and those before it that it takes."""
    steps = case.steps
    last = len(steps) - 1

    def with_numbers(kept: Sequence[int]) -> Case:
        return case.with_steps([steps[number] for number in (*sorted(kept), last)])

    if last < FEW:
        return case  # few trials are needed anyway
    return with_numbers(_needed(range(last), lambda kept: shows(with_numbers(kept))))


def _needed(things: Sequence[Thing], holds: Callable[[Sequence[Thing]], bool]) -> Sequence[Thing]:
    """Those that it takes, of which each is found by bisection.

    Some are left that are not needed where more of them do not always show as much as fewer, where
    `FEW` are not enough, or where the first one is needed and others are, too.
    """
    needed: list[Thing] = []
    is_first = False
    while things and not holds(needed):
        if len(needed) == FEW or is_first:
            return [*needed, *things]
        # From the first on they are enough, from the end on they are not.
        first, end = 0, len(things)
        while end - first > 1:
            middle = (first + end) // 2
            if holds([*needed, *things[middle:]]):
                first = middle
            else:
                end = middle
        is_first = not first
        needed.append(things[first])
        things = things[first + 1 :]
    return needed


def _fewer_steps(case: Case, shows: _Counted, few: int = FEW) -> Case:
    """Without any group of steps that it does not need. few: up to it, groups of each size."""
    whole, before = case, len(case.steps) + 1
    failed: set[tuple[int, ...]] = set()
    """What was tried, by the identity of its steps."""

    def holds(rest: Sequence[Step]) -> bool:
        key = tuple(map(id, rest))
        if key in failed:
            return False
        if shows(whole.with_steps(rest)):
            return True
        failed.add(key)
        return False

    while len(case.steps) < before and not shows.is_over:
        before = len(case.steps)
        size = max(before // 2, min(before - 1, FEW), 1)  # a long message beside one step, too
        while size:
            case = case.with_steps(without_groups(case.steps, holds, size))
            size = size // 2 if size > few else size - 1
    return case


def without_groups(
    things: Sequence[Thing], holds: Callable[[Sequence[Thing]], bool], size: int
) -> Sequence[Thing]:
    """Things without any group of this size that is not needed."""
    at = 0
    while at + size <= len(things):
        rest = [*things[:at], *things[at + size :]]
        if holds(rest):
            things = rest
        else:
            at += 1 if size <= FEW else size
    return things


def _plain(case: Case, shows: _Counted) -> Case:
    """With nothing odd about it that it does not need."""
    case = _on_usual_connection(case, shows)
    begin = 0
    while not shows.is_over:
        for number, plainer in enumerate(_plainer(case)):
            if number >= begin and shows(plainer):
                case, begin = plainer, number  # what was tried before it is not tried again
                break
        else:
            if not begin:
                break
            begin = 0
    return case


def _plainer(case: Case) -> Iterator[Case]:
    """The case with one thing less that is odd."""
    for entry in fields(Connection):
        yield from _with_plainer(case, entry.name)
    yield from _without_exchange(case)
    yield from _joined_waits(case)
    yield from _of_right_size(case)
    yield from _ended_before(case)
    yield from _nearer(case)
    yield from _begun_later(case)
    yield from _in_one_packet(case)
    yield from _in_one_response(case)
    yield from _read_in_one_packet(case)
    yield from _of_one_packet(case)
    for number, step in enumerate(case.steps):
        equal = case.steps.count(step)
        for plainer in _plainer_step(step, case.connection.mtu):
            if equal <= FEW:
                yield case.with_steps([*case.steps[:number], plainer, *case.steps[number + 1 :]])
            elif step not in case.steps[:number]:
                yield case.with_steps([plainer if each == step else each for each in case.steps])


def _with_plainer(case: Case, name: str) -> Iterator[Case]:
    """The case with plainer values of an attribute of its connection."""
    if name == "version":
        return  # nothing odd, but where a device is
    plain = _PLAIN.get(name, ()) or (getattr(Connection(), name),)
    now = getattr(case.connection, name)
    # Only what is plainer than it is now, or it would go round.
    for value in plain[: plain.index(now)] if now in plain else plain:
        changes: dict[str, Any] = {name: value}
        fewer = replace(case, connection=replace(case.connection, **changes))
        if name == "pairs":
            yield fewer.with_steps([_of_pair(step, value) for step in case.steps])
        yield fewer


def _of_pair(step: Step, pairs: Any) -> Step:
    """The step for the same one of fewer queue pairs."""
    if isinstance(step, Packet | Post | Receive) and step.pair >= pairs:
        return replace(step, pair=step.pair % pairs)
    return step


def _elsewhere(case: Case) -> Iterator[Case]:
    """The case on connections on which less may be needed to come to the same point."""
    for name, values in _PLAIN.items():
        for value in values:
            if getattr(case.connection, name) != value:
                changes: dict[str, Any] = {name: value}
                yield replace(case, connection=replace(case.connection, **changes))


def _without_exchange(case: Case) -> Iterator[Case]:
    """Without a request of the device and one of the responses behind it.

    Without one of the two the other means something else.
    """
    steps = case.steps
    for at, asked in enumerate(steps):
        if not isinstance(asked, Post):
            continue
        for place in range(at + 1, len(steps) - 1):
            response = steps[place]
            if isinstance(response, Packet) and response.psn[0] == "una":
                yield case.with_steps([*steps[:at], *steps[at + 1 : place], *steps[place + 1 :]])


def _joined_waits(case: Case) -> Iterator[Case]:
    """Two waits as one."""
    for number, (one, other) in enumerate(pairwise(case.steps)):
        if isinstance(one, Wait) and isinstance(other, Wait):
            whole = Wait(one.time + other.time)
            yield case.with_steps([*case.steps[:number], whole, *case.steps[number + 2 :]])


def _of_right_size(case: Case) -> Iterator[Case]:
    """With the right length of a packet that has another: what is wrong with it may not matter."""
    for number, step in enumerate(case.steps):
        size = _right_size(step, case.connection.mtu)
        if not isinstance(step, Packet) or not size or step.length == size:
            continue
        right = step.altered(length=size)
        if _operation(step) == _WRITE_FIRST:
            right = right.altered(fields={**step.fields, _DMA_LEN: 2 * size})
        if _operation(step) == _ATOMIC_WRITE:
            others = {name: each for name, each in step.fields.items() if name != _DMA_LEN}
            right = right.altered(fields=others)
        yield case.with_steps([*case.steps[:number], right, *case.steps[number + 1 :]])


def _right_size(step: Step, mtu: int) -> int:
    """The only right length of a packet; 0 if it may have several."""
    operation = _operation(step)
    if operation == _ATOMIC_WRITE:
        return 8
    return mtu if operation in _FULL else 0


def _ended_before(case: Case) -> Iterator[Case]:
    """Without the last step, where the one before it was held until that came."""
    last = case.steps[-2] if len(case.steps) > 1 else None
    if isinstance(last, Packet) and last.held:
        yield case.with_steps([*case.steps[:-2], replace(last, held=False)])


def _nearer(case: Case) -> Iterator[Case]:
    """One step less before a packet that counts back, which then counts back less far."""
    steps = case.steps
    for number, step in enumerate(steps):
        if not isinstance(step, Packet) or step.psn[1] >= 0:
            continue
        base, offset = step.psn
        for gone in range(number):
            for less in range(1, min(-offset, 4) + 1):
                moved = replace(step, psn=(base, offset + less))
                rest = [*steps[:gone], *steps[gone + 1 : number], moved, *steps[number + 1 :]]
                yield case.with_steps(rest)


def _begun_later(case: Case) -> Iterator[Case]:
    """Without some requests, and with first PSNs behind theirs: all others keep their PSNs.

    Where numbers wrap matters only in a case that needs other first PSNs than the usual ones.
    """
    connection, steps, usual = case.connection, case.steps, Connection()
    moves_own, moves = connection.sq_psn != usual.sq_psn, connection.rq_psn != usual.rq_psn
    for size in range(1, FEW):
        for at in range(len(steps) - size):
            gone = steps[at : at + size]
            own = sum(_psns_of_post(each, connection.mtu) for each in gone) * moves_own
            requests = sum(_psns_of_request(each, connection.mtu) for each in gone) * moves
            if own or requests:
                later = replace(
                    connection,
                    sq_psn=connection.sq_psn + own & MASK,
                    rq_psn=connection.rq_psn + requests & MASK,
                )
                rest = (*steps[:at], *steps[at + size :])
                yield replace(case, connection=later, steps=rest)


def _psns_of_post(step: Step, mtu: int) -> int:
    """PSNs that a send request takes."""
    return max(-(-step.length // mtu), 1) if isinstance(step, Post) else 0


def _psns_of_request(step: Step, mtu: int) -> int:
    """PSNs that a request takes which the device executes."""
    if not isinstance(step, Packet) or step.psn != ("expected", 0):
        return 0
    length = step.fields.get("reth.dma_len", 0) if _operation(step) == READ else 0
    return max(-(-length // mtu), 1) if isinstance(length, int) else 1


def _in_one_packet(case: Case) -> Iterator[Case]:
    """A message of several packets as one of a single packet."""
    steps = case.steps
    for number, step in enumerate(steps):
        for first, middle, last, only in FORMS.values():
            if not isinstance(step, Packet) or _operation(step) != first:
                continue
            end = number + 1
            while end < len(steps) and _operation(steps[end]) == middle:
                end += 1
            ending = steps[end] if end < len(steps) else None
            if isinstance(ending, Packet) and _operation(ending) == last:
                opcode = step.opcode - first + int(only)
                whole = Packet(opcode, step.psn, length=min(step.length, 8), pair=step.pair)
                yield case.with_steps([*steps[:number], whole, *steps[end + 1 :]])
                whole = whole.altered(fields=ending.fields)  # it may ask for no ACK
                yield case.with_steps([*steps[:number], whole, *steps[end + 1 :]])


def _in_one_response(case: Case) -> Iterator[Case]:
    """A READ of the device that is answered in several packets as one that a single one answers."""
    steps = case.steps
    for number, asked in enumerate(steps):
        if not isinstance(asked, Post) or asked.opcode != WROpcode.RDMA_READ:
            continue
        responses = [
            at
            for at in range(number + 1, len(steps))
            if _operation(steps[at]) in _PARTS_OF_READ and _pair(steps[at]) == asked.pair
        ]
        ends = [at for at in responses if _operation(steps[at]) == _READ_LAST]
        if not ends:
            continue
        end = ends[0]
        opcode = _opcode(steps[end]) - _READ_LAST + _READ_ONLY
        whole = Packet(opcode, ("una", 0), length=8, pair=asked.pair)
        yield case.with_steps(
            [
                replace(asked, length=8) if at == number else whole if at == end else step
                for at, step in enumerate(steps)
                if at not in responses or at >= end
            ]
        )


def _read_in_one_packet(case: Case) -> Iterator[Case]:
    """A READ to the device that it answers in several packets as one that it answers in one."""
    steps, mtu = case.steps, case.connection.mtu
    for number, read in enumerate(steps):
        more = _psns_of_request(read, mtu) - 1
        if isinstance(read, Packet) and more > 0:
            short = read.altered(fields=_SHORT_READ)
            later = [_back_less(step, read.pair, more) for step in steps[number + 1 :]]
            yield case.with_steps([*steps[:number], short, *later])


def _back_less(step: Step, pair: int, psns: int) -> Step:
    """A packet to a queue pair that goes so many PSNs less back; a READ is the short one then."""
    if not isinstance(step, Packet) or step.pair != pair or step.psn[0] != "expected":
        return step
    if step.psn[1] >= 0:
        return step
    is_read = _operation(step) == READ
    nearer = step.altered(psn=("expected", min(step.psn[1] + psns, -1)))
    return nearer.altered(fields=_SHORT_READ) if is_read else nearer


def _of_one_packet(case: Case) -> Iterator[Case]:
    """A SEND or WRITE of the device of several packets as one of a single packet."""
    steps = case.steps
    for number, asked in enumerate(steps):
        more = _psns_of_post(asked, case.connection.mtu) - 1
        if not isinstance(asked, Post) or asked.opcode == WROpcode.RDMA_READ or not more:
            continue
        yield case.with_steps(
            [
                *steps[:number],
                replace(asked, length=8),
                *(_moved(step, asked.pair, more) for step in steps[number + 1 :]),
            ]
        )


def _moved(step: Step, pair: int, psns: int) -> Step:
    """A response of a queue pair whose PSN is so many smaller, if it counts from the oldest."""
    if not isinstance(step, Packet) or step.pair != pair or step.psn[0] != "una":
        return step
    base, offset = step.psn
    return replace(step, psn=(base, max(offset - psns, 0) if offset > 0 else offset))


def _pair(step: Step) -> int:
    return step.pair if isinstance(step, Packet | Post | Receive) else 0


def _opcode(step: Step) -> int:
    return step.opcode if isinstance(step, Packet) else -1


def _operation(step: Step) -> int:
    """The bits of an opcode that are the same in all services."""
    return step.opcode & 0x1F if isinstance(step, Packet) else -1


_PLAINER_OPCODES = {
    int(OpCode[f"{service}_{name}_WITH_{what}"]): int(OpCode[f"{service}_{name}"])
    for service in ("RC", "UC", "XRC")
    for name in ("SEND_LAST", "SEND_ONLY", "RDMA_WRITE_LAST", "RDMA_WRITE_ONLY")
    for what in ("IMMEDIATE", "INVALIDATE")
    if f"{service}_{name}_WITH_{what}" in OpCode.__members__
}
"""Packets without immediate data and without a key to invalidate, by those with it."""
_PLAINER_VERBS = {
    int(WROpcode.SEND_WITH_IMM): int(WROpcode.SEND),
    int(WROpcode.SEND_WITH_INV): int(WROpcode.SEND),
    int(WROpcode.RDMA_WRITE_WITH_IMM): int(WROpcode.RDMA_WRITE),
}
_DMA_LEN = "reth.dma_len"
_WRITE_FIRST = int(OpCode.RC_RDMA_WRITE_FIRST)
_ATOMIC_WRITE = int(OpCode.RC_ATOMIC_WRITE)
_FULL = frozenset(int(each) for first, middle, *_ in FORMS.values() for each in (first, middle))
"""Packets that are as long as the path MTU."""
_LASTS = frozenset(int(last) for _, _, last, _ in FORMS.values())
"""Packets that are not empty."""
_SHORT_READ: Mapping[str, Value] = {_DMA_LEN: 8}
"""The fields of a READ that one packet answers."""

_READ_LAST = int(OpCode.RC_RDMA_READ_RESPONSE_LAST)
_READ_ONLY = int(OpCode.RC_RDMA_READ_RESPONSE_ONLY)
_PARTS_OF_READ = (
    OpCode.RC_RDMA_READ_RESPONSE_FIRST,
    OpCode.RC_RDMA_READ_RESPONSE_MIDDLE,
    OpCode.RC_RDMA_READ_RESPONSE_LAST,
)
_PLAIN = {
    "rq_psn": (100, 0xFFFFFF, 0xFFFFFE),
    "sq_psn": (500, 0xFFFFFF, 0xFFFFFE),
    "receives": (4, 0, 1),
    "max_dest_rd_atomic": (16, 1, 0),
    "max_rd_atomic": (16, 1),
    "retry_cnt": (7, 0, 1),
    "rnr_retry": (7, 0, 1),
}
"""Values that are easy to understand, the plainest first."""


_FIELDS = {"P_Key": "bth.pkey", "shared receive queue": "xrceth.xrc_srq"}
"""The field that is wrong in a packet of which this is said to be wrong on purpose."""


def _plainer_step(step: Step, mtu: int) -> Iterator[Step]:
    if isinstance(step, Connect):
        for entry in fields(Connection):
            if getattr(step.connection, entry.name) != entry.default:
                changes: dict[str, Any] = {entry.name: entry.default}
                yield Connect(replace(step.connection, **changes))
    if isinstance(step, Post):
        yield from _plainer_post(step)
    if not isinstance(step, Packet):
        return
    for name in step.fields:
        rest = {key: step.fields[key] for key in step.fields if key != name}
        # What is named after the field is not wrong with it any more.
        is_named = step.why in (name, name.partition(".")[2]) or _FIELDS.get(step.why) == name
        yield replace(step, fields=rest, why="" if is_named else step.why)
    syndrome = step.fields.get("aeth.syndrome", 0)
    if isinstance(syndrome, int) and syndrome & aeth.RESERVED_BIT:
        usual = syndrome & ~aeth.RESERVED_BIT
        yield replace(step, fields={**step.fields, "aeth.syndrome": usual})
    if step.opcode in _PLAINER_OPCODES:
        yield step.altered(opcode=_PLAINER_OPCODES[step.opcode])
    if step.held:
        yield replace(step, held=False)
    if step.icrc != GOOD:
        yield replace(step, icrc=GOOD, why=step.why if step.why != "ICRC" else "")
    if step.cut is not None:
        yield replace(step, cut=None, why=step.why if step.why != "cut" else "")
    if step.pad is not None:
        yield replace(step, pad=None)
    if step.more:
        yield replace(step, more=0)
    if step.at:
        yield replace(step, at=0)
    base, offset = step.psn
    if offset:
        yield replace(step, psn=(base, 0))
    for nearer in (1, 2):
        if abs(offset) > nearer:
            yield replace(step, psn=(base, nearer if offset > 0 else -nearer))
    if abs(offset) >= HALF - 1:  # on the other side of it
        yield replace(step, psn=(base, -1 if offset > 0 else 1))
    if step.length != _right_size(step, mtu):
        yield from _shorter(step)


def _shorter(packet: Packet) -> Iterator[Packet]:
    if packet.length and _operation(packet) not in _LASTS:
        yield packet.altered(length=0)
    if packet.length > 8:
        yield packet.altered(length=8)


def _plainer_post(post: Post) -> Iterator[Post]:
    if post.opcode in _PLAINER_VERBS:
        yield replace(post, opcode=_PLAINER_VERBS[post.opcode])
    for length in (8, 0, 257, 513):
        if length < post.length:
            yield replace(post, length=length)
    plain: dict[str, Any] = {
        "remote": 0,
        "wrong_lkey": 0,
        "fence": False,
        "solicited": False,
        "sges": 1,
    }
    for name, value in plain.items():
        if getattr(post, name) != value:
            yield replace(post, **{name: value})
