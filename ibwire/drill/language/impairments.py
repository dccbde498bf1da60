"""Damage on the way to and from the device: `impair > drop nth=2 opcode=SEND_LAST`.

The rules are those of `ibwire tap` (`ibwire.impair.plan`), one a line. A rule is for what
comes after its line, counts from there, and its times count from there.
"""

from __future__ import annotations

import heapq
from collections import deque
from typing import Any

from ibwire.base.errors import ScriptError
from ibwire.base.node import OPEN, Frame, Grant, Node
from ibwire.base.units import NS, Time
from ibwire.drill.language.cursor import SYMBOLS, Cursor, unknown
from ibwire.drill.language.expressions import FUNCTIONS, Scope, Value, read_value
from ibwire.drill.language.literals import OPCODES
from ibwire.drill.language.steps import Impair, When, Words
from ibwire.drill.language.tokens import Kind, Line, Token
from ibwire.drill.targets.target import Damage, TooBusy
from ibwire.impair.plan import BURST, PlanError, build_pipe
from ibwire.impair.rules import Rules

INTO, OUT_OF = "<", ">"

NOTHING = "nothing"
"""In the place of an action: the rules of this direction end."""

ACTIONS = ("drop", "loss", "corrupt", "duplicate", "reorder", "delay", "mark_ecn", "rewrite")
"""What a rule may do here."""

_OF_TWO_SIDES = ("cnp", "nak", "pfc")
"""Actions that only `ibwire tap` has."""

MAXIMUM_RULES = 64
"""Rules of a run."""

MAXIMUM_UNDER_WAY = 20_000
"""Limit of frames that are delayed at once, and of damaged ones that were not read."""

_TIMES = ("after", "before", "time", "jitter", "max_delay", "delay")
_SHORT = {"delay": "time"}
"""The meaning of a value directly after an action; for the others it is the probability."""

_STAND_IN = 1000
"""For a number that is not known before the connection is: it fits every field."""


def read_impair(cursor: Cursor, line: Line, when: When) -> Impair:
    """The rule after `impair`; raises `ScriptError` for an invalid one."""
    way = cursor.here
    if not (cursor.takes(INTO) or cursor.takes(OUT_OF)):
        raise cursor.expected("'<' or '>'", way)
    action = cursor.name("an action such as drop or delay")
    args: dict[str, tuple[Token, Words]] = {}
    if cursor.takes("="):
        args[_SHORT.get(action.text, "probability")] = action, _words(cursor)
    while not cursor.at_end:
        name = cursor.name("a condition such as nth")
        if name.text in args:
            raise cursor.error(name, f"{name.text} is given twice")
        cursor.sign("=")
        args[name.text] = name, _words(cursor)
    step = Impair(line, when, way.text, action, args)
    if action.text not in (*ACTIONS, *_OF_TWO_SIDES, NOTHING):
        raise cursor.unknown(action, "impairment", (*ACTIONS, NOTHING))
    if action.text != NOTHING:
        # Now, so that a mistake shows before anything is carried out.
        pipe_of(step, Scope(cursor.path, {}), known=False)
    elif args:
        raise cursor.error(next(iter(args.values()))[0], "nothing has no conditions")
    return step


def pipe_of(step: Impair, scope: Scope, *, known: bool = True) -> Rules:
    """The pipe of a rule; raises `ScriptError` for a value that it cannot have.

    known: the connection is there, and so is the value of every symbol.
    """
    table: dict[str, Any] = {}
    for key, (name, words) in step.args.items():
        if isinstance(words, Value):
            value = _numbers(key, name.text, words, scope, known=known)
        else:
            found = [_named(key, word, scope) for word in words]
            value = found if len(found) > 1 else found[0]
        # `burst.count=2`, and `bth.psn=5` of a rewrite: a table within the table.
        head, _, tail = key.partition(".")
        if not tail:
            table[key] = value
        elif head == "burst":
            table.setdefault("burst", {})[tail] = value
        else:
            table.setdefault("set", {})[key] = value
    try:
        return build_pipe([{step.action.text: table}], name=step.way)
    except PlanError as error:
        reason = error.reason
        if error.known:
            *_, owner, key = map(str, error.key_path)
            options: list[str] = []
            for option in error.known:
                options += [f"burst.{each}" for each in BURST] if option == "burst" else [option]
            reason = unknown(key, f"option of {owner}", options)
        raise scope.error(_token_at(step, error), reason) from None


def _words(cursor: Cursor) -> Words:
    """A number or several, or a name or several."""
    if _is_name(cursor.here):
        return (cursor.take(),)
    if not (cursor.here.text == "{" and _is_name(cursor.after)):
        return read_value(cursor)
    names: list[Token] = []
    while not names or cursor.takes(","):
        if not names:
            cursor.sign("{")
        names.append(cursor.name("a name"))
    cursor.sign("}")
    return tuple(names)


def _is_name(token: Token) -> bool:
    is_number = token.text in (*SYMBOLS, *FUNCTIONS) or "." in token.text
    return token.kind is Kind.TEXT or (token.kind is Kind.NAME and not is_number)


def _numbers(key: str, name: str, value: Value, scope: Scope, *, known: bool) -> object:
    """The number or numbers of an option, which the line calls by `name`."""
    if not value.choices:
        raise scope.error(value.token, f"expected a number for {name}")
    numbers: list[int] = []
    for low, high in value.choices:
        if low is not high:
            raise scope.error(low.token, f"{name} takes numbers, no range")
        try:
            numbers.append(low.evaluate(scope))
        except ScriptError:
            if known:
                raise
            numbers.append(_STAND_IN)
    if key not in _TIMES:
        return numbers if len(numbers) > 1 else numbers[0]
    if len(numbers) > 1:
        raise scope.error(value.token, f"{name} is one time")
    if 0 < numbers[0] < NS:
        reason = f"{name} is less than a nanosecond: is its unit missing?"
        raise scope.error(value.token, reason)
    return f"{numbers[0]}ps"


def _named(key: str, token: Token, scope: Scope) -> object:
    """Opcodes have the names that they have in packets, too; a probability is a text."""
    if key == "opcode":
        return OPCODES.get(token.text, token.text)
    if key == "probability":
        try:
            return float(token.text)
        except ValueError:
            raise scope.error(token, f"{token.text!r} is not a probability") from None
    return {"true": True, "false": False}.get(token.text, token.text)


def _token_at(step: Impair, error: PlanError) -> Token:
    """What an error of a plan is about."""
    keys = [str(part) for part in error.key_path[3:]]  # after the list, its index, the action
    for key in (".".join(keys), ".".join(keys[1:]), *keys):
        if key in step.args:
            name, words = step.args[key]
            if error.at_key:
                return name
            return words.token if isinstance(words, Value) else words[0]
    return step.action


class Impaired:
    """A node with rules for its frames: delayed, damaged, duplicated or lost."""

    def __init__(self, inner: Node) -> None:
        self.inner = inner
        self.damage: deque[Damage] = deque()
        """What rules have done since it was last read."""
        self._pipes: dict[str, list[tuple[Rules, Time, Impair]]] = {INTO: [], OUT_OF: []}
        self._under_way: dict[str, list[tuple[Time, int, Frame]]] = {INTO: [], OUT_OF: []}
        self._ready: deque[Frame] = deque()
        self._number = 0

    def impair(self, step: Impair, scope: Scope, now: Time) -> None:
        """Add a rule after the existing ones, or end all of its direction.

        Frames on their way arrive as before; a frame that a rule holds back arrives when its
        rule ends. Raises `ScriptError` for an invalid value.
        """
        pipes = self._pipes[step.way]
        if step.action.text != NOTHING:
            if sum(map(len, self._pipes.values())) >= MAXIMUM_RULES:
                raise scope.error(step.action, f"more than {MAXIMUM_RULES} rules")
            pipes.append((pipe_of(step, scope), now, step))
            return
        for at, (ending, began, _) in enumerate(pipes):
            for delay, frame in ending.release(now - began, all_of_them=True):
                self._send(step.way, frame, now + delay, at + 1)
        pipes.clear()

    def receive(self, frame: Frame, now: Time, port: int = 0) -> None:
        """Take a frame that was sent to the node."""
        if not self._pipes[INTO]:
            self.inner.receive(frame, now, port)
            return
        self._send(INTO, frame, now)
        self._arrive(now)

    def poll_transmit(self, now: Time, port: int = 0, grant: Grant = OPEN) -> Frame | None:
        """The next frame that comes out of the rules."""
        self._arrive(now)
        while not self._ready:
            frame = self.inner.poll_transmit(now, port, grant)
            if frame is None:
                return None
            if not self._pipes[OUT_OF]:
                return frame
            self._send(OUT_OF, frame, now)
            self._arrive(now)
        return self._ready.popleft()

    def poll_timeout(self) -> Time | None:
        """When `handle_timeout` is due; `None` for never."""
        due = [self.inner.poll_timeout()]
        due += [queue[0][0] for queue in self._under_way.values() if queue]
        for pipes in self._pipes.values():
            for pipe, began, _ in pipes:
                held = pipe.poll_timeout()
                # A frame is held up to that time, inclusive.
                due.append(None if held is None else began + held + 1)
        return min((time for time in due if time is not None), default=None)

    def handle_timeout(self, now: Time) -> None:
        """Do what is due by `now`."""
        for way, pipes in self._pipes.items():
            for at, (pipe, began, _) in enumerate(pipes):
                for delay, frame in pipe.release(now - began):
                    self._send(way, frame, now + delay, at + 1)
        self._arrive(now)
        self.inner.handle_timeout(now)

    def _send(self, way: str, frame: Frame, time: Time, first: int = 0) -> None:
        """Send a frame through the rules from the `first` on."""
        leaving = [(time, frame)]
        for pipe, began, step in self._pipes[way][first:]:
            passed: list[tuple[Time, Frame]] = []
            for when, each in leaving:
                out = pipe(each, when - began)
                if out != [(0, each)]:
                    self.damage.append(Damage(when, way, each, step.line, step.action.text))
                passed += [(when + delay, one) for delay, one in out]
                # Rules that duplicate multiply each other.
                under_way = max(len(self._under_way[way]) + len(passed), len(self.damage))
                if under_way > MAXIMUM_UNDER_WAY:
                    raise TooBusy(f"more than {MAXIMUM_UNDER_WAY} packets under way")
            leaving = passed
        for when, each in leaving:
            self._number += 1
            heapq.heappush(self._under_way[way], (when, self._number, each))

    def _arrive(self, now: Time) -> None:
        """Let what is due arrive, at the node or at its peer."""
        into, out = self._under_way[INTO], self._under_way[OUT_OF]
        while into and into[0][0] <= now:
            self.inner.receive(heapq.heappop(into)[2], now)
        while out and out[0][0] <= now:
            self._ready.append(heapq.heappop(out)[2])
