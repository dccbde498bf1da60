"""From the text of a drill script to the steps of its cases.

A script is a comment that states a rule, directives, and events, one a line. An event
may begin with its time: `+1us`, `+0..5us`; without one it is `+0`. Blocks in braces are
a table of `cases`, loops (`for`), what only some profiles do (`on`), and packets in any
order (`unordered`), and blocks whose lines take turns (`interleaved`). Tables and loops put
tokens in the place of `$name`, so each row may give a number, an opcode, or half a packet;
then the line is read as if it stood there.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path

from ibwire.base.errors import ScriptError
from ibwire.drill.language.cursor import SYMBOLS, Cursor
from ibwire.drill.language.expressions import (
    Expression,
    Scope,
    Value,
    constant,
    read_expression,
    read_value,
)
from ibwire.drill.language.impairments import read_impair
from ibwire.drill.language.literals import Literal, read_data, read_expected, read_injected
from ibwire.drill.language.steps import (
    Anything,
    Case,
    Expect,
    Inject,
    Script,
    Silence,
    Step,
    Unordered,
    Verb,
    When,
)
from ibwire.drill.language.tokens import MAXIMUM_SIZE, Kind, Line, Token, read_lines
from ibwire.drill.language.vocabulary import LISTS, OWNED_VERBS, VERBS, VerbForm, impossible
from ibwire.rc.profile import PROFILES

MAXIMUM_STEPS = 5_000
"""Steps of all cases of a script together."""

MAXIMUM_CASES = 500

MAXIMUM_TOKENS = 400
"""Tokens of a line when those of tables stand in it."""

MAXIMUM_QUEUE_PAIRS = 200
"""Queue pairs of a case beside the first one."""

DEEPEST = 8
"""Blocks within blocks."""

_NO_TOKENS: Mapping[str, tuple[Token, ...]] = {}


def load(path: Path, profile: str = "spec", *, recorded: bool = False) -> Script:
    """The script in a file, as `parse`; raises `ScriptError` also for a file that has none."""
    try:
        with path.open("rb") as file:
            content = file.read(MAXIMUM_SIZE + 1)
    except OSError as error:
        raise ScriptError(str(path), None, None, error.strerror or str(error)) from None
    return parse(content, str(path), profile, recorded=recorded)


def parse(
    content: bytes,
    path: str,
    profile: str = "spec",
    *,
    recorded: bool = False,
    size: int = MAXIMUM_SIZE,
    steps: int = MAXIMUM_STEPS,
) -> Script:
    """The steps of a script for a device of this profile.

    recorded: it is held against a recording, so what the device receives is a pattern, too.
    size, steps: bytes and steps that it may have.

    Raises `ScriptError` with line and column for anything that is not a script.
    """
    rule, lines = read_lines(content, path, size)
    return _Parser(path, profile, recorded=recorded, steps=steps).script(rule, lines)


@dataclass(slots=True)
class _Block:
    """Lines in braces, with those after `otherwise`."""

    head: Line
    body: list[Line | _Block] = field(default_factory=list)
    otherwise: list[Line | _Block] = field(default_factory=list)
    others: list[list[Line | _Block]] = field(default_factory=list)
    """Those after each `and`."""


@dataclass(slots=True)
class _Row:
    name: str
    cells: Mapping[str, tuple[Token, ...]]


class _Parser:
    def __init__(self, path: str, profile: str, *, recorded: bool, steps: int) -> None:
        self._path = path
        self._read_inbound = read_expected if recorded else read_injected
        self._profile = profile
        self._captured: set[str] = set()
        self._regions: set[str] = set()
        self._queue_pairs: set[str] = set()
        self._windows: set[str] = set()
        self._left = self._most = steps

    def script(self, rule: Sequence[str], lines: Sequence[Line]) -> Script:
        blocks = self._blocks(lines)
        texts = dict.fromkeys(_TEXTS, "")
        choices: dict[str, str] = {}
        tolerance: Expression | None = None
        rows = [_Row("", {})]
        events: list[Line | _Block] = []
        has_table = False
        for block in blocks:
            head = block.head if isinstance(block, _Block) else block
            first = head.tokens[0]
            if first.text == "cases" and isinstance(block, _Block):
                if has_table or events:
                    raise self._error(first, "one table of cases, before everything that happens")
                has_table = True
                rows = self._rows(block)
            elif first.text == "choice" and first.kind is Kind.NAME:
                name, value = self._choice(head.tokens[1])
                if name in choices:
                    raise self._error(first, f"choice {name} is given twice")
                choices[name] = value
            elif first.text in texts and first.kind is Kind.NAME:
                if texts[first.text]:
                    raise self._error(first, f"{first.text} is given twice")
                texts[first.text] = head.tokens[1].text
                if not texts[first.text]:
                    raise self._error(head.tokens[1], f"expected {_TEXTS[first.text]}")
            elif first.text == "tolerance":
                cursor = self._cursor(head.tokens[1:])
                tolerance = read_expression(cursor)
                cursor.end()
            else:
                events.append(block)
        if not events:
            raise ScriptError(self._path, 1, 1, "expected an event: nothing happens in this script")
        cases = tuple(self._case(row, events) for row in rows)
        return Script(
            self._path,
            "\n".join(rule).strip(),
            texts["section"],
            texts["virtual"],
            tolerance,
            cases,
            texts["origin"],
            texts["reference"],
            tuple(f"{name}={value}" for name, value in choices.items()),
        )

    def _choice(self, token: Token) -> tuple[str, str]:
        name, equals, value = token.text.partition("=")
        if not (name.strip() and equals and value.strip()):
            raise self._error(token, "expected what a device does otherwise, such as mig_req=0")
        return name.strip(), value.strip()

    def _case(self, row: _Row, events: Sequence[Line | _Block]) -> Case:
        self._captured, self._regions = set(), set()
        self._queue_pairs, self._windows = set(), set()
        return Case(row.name, tuple(self._steps(events, row.cells)))

    # Blocks.

    def _blocks(self, lines: Sequence[Line]) -> list[Line | _Block]:
        top: list[Line | _Block] = []
        open_blocks: list[_Block] = []
        targets = [top]
        for line in lines:
            tokens = line.tokens
            first, last = tokens[0], tokens[-2]
            opens = last.text == "{" and last.kind is Kind.SIGN
            if first.text == "}" and first.kind is Kind.SIGN:
                if not open_blocks:
                    raise self._error(first, "'}' without its '{'")
                targets.pop()
                if len(tokens) == 2:
                    open_blocks.pop()
                    continue
                if tokens[1].text == "and" and len(tokens) == 4 and opens:
                    if not _is_interleaved(open_blocks[-1]):
                        raise self._error(tokens[1], "'and' without its 'interleaved {'")
                    open_blocks[-1].others.append([])
                    targets.append(open_blocks[-1].others[-1])
                    continue
                if tokens[1].text != "otherwise" or len(tokens) != 4 or not opens:
                    raise self._error(
                        tokens[1], "expected the end of the line, 'otherwise {' or 'and {'"
                    )
                if open_blocks[-1].head.tokens[0].text != "on" or open_blocks[-1].otherwise:
                    raise self._error(tokens[1], "'otherwise' without its 'on PROFILE {'")
                targets.append(open_blocks[-1].otherwise)
            elif opens and not _is_value(tokens):
                if len(open_blocks) == DEEPEST:
                    raise self._error(last, f"more than {DEEPEST} blocks inside each other")
                block = _Block(line)
                targets[-1].append(block)
                open_blocks.append(block)
                targets.append(block.body)
            else:
                targets[-1].append(line)
        if open_blocks:
            head = open_blocks[-1].head
            raise self._error(head.tokens[-2], "'{' without its '}'")
        return top

    def _rows(self, block: _Block) -> list[_Row]:
        """The rows of a table."""
        head = block.head.tokens[1:-2]
        columns = _cells(head)
        names: list[str] = []
        for cell in columns:
            at = cell[0] if cell else block.head.tokens[-2]
            if len(cell) != 1 or at.kind is not Kind.NAME:
                raise self._error(at, f"expected the name of a column, found {at}")
            if at.text in names:
                raise self._error(at, f"column {at.text} is given twice")
            names.append(at.text)
        table: list[list[tuple[Token, ...]]] = []
        texts: list[list[str]] = []
        for line in block.body:
            if isinstance(line, _Block):
                raise self._error(line.head.tokens[-2], "a table has rows, no blocks")
            cells = _cells(line.tokens[:-1])
            if len(cells) != len(names):
                reason = f"{len(cells)} cells in a table of {len(names)} columns"
                raise self._error(line.tokens[-1], reason)
            table.append(cells)
            texts.append([_written(line, cell) for cell in cells])
        rows = [
            _Row(name, dict(zip(names, cells, strict=True)))
            for name, cells in zip(_case_names(texts), table, strict=True)
        ]
        if not rows:
            raise self._error(block.head.tokens[0], "a table without rows")
        if len(rows) > MAXIMUM_CASES:
            reason = f"{len(rows)} rows, a table has at most {MAXIMUM_CASES}"
            raise self._error(block.head.tokens[0], reason)
        return rows

    def _steps(
        self, events: Sequence[Line | _Block], tokens: Mapping[str, tuple[Token, ...]]
    ) -> Iterator[Step]:
        for event in events:
            if isinstance(event, Line):
                yield self._count(self._event(event, tokens))
                continue
            cursor = self._cursor(self._replaced(event.head.tokens[:-2], tokens, event.head))
            word = cursor.here
            if word.text == "for":
                yield from self._loop(cursor, event, tokens)
            elif word.text == "on":
                yield from self._on(cursor, event, tokens)
            else:
                if cursor.takes_name("interleaved"):
                    cursor.end("'{'")
                    yield from self._interleaved(event, tokens)
                    continue
                when = self._when(cursor)
                if not cursor.takes_name("unordered"):
                    raise cursor.expected("cases, for, interleaved, on or unordered", cursor.here)
                cursor.end("'{'")
                yield self._count(self._unordered(event, when, tokens))

    def _loop(
        self, cursor: Cursor, block: _Block, tokens: Mapping[str, tuple[Token, ...]]
    ) -> Iterator[Step]:
        cursor.take()
        name = cursor.name("the name of a variable")
        if name.text in SYMBOLS:
            raise cursor.error(name, f"{name.text} is a number of the connection already")
        if not cursor.takes_name("in"):
            raise cursor.expected("'in'", cursor.here)
        low = self._constant(cursor)
        cursor.sign("..")
        start = cursor.here
        high = self._constant(cursor)
        cursor.end("'{'")
        if high - low >= MAXIMUM_STEPS:
            raise self._error(start, f"a loop of more than {MAXIMUM_STEPS} turns")
        # A count of 0 from a table makes a loop without a turn.
        is_counted = any(token.kind is Kind.VARIABLE for token in block.head.tokens)
        if high < low - is_counted:
            raise self._error(start, f"{high} comes before {low}")
        for value in range(low, high + 1):
            number = Token(Kind.NUMBER, str(value), name.line, name.column, value)
            self._spend()
            yield from self._steps(block.body, {**tokens, name.text: (number,)})

    def _on(
        self, cursor: Cursor, block: _Block, tokens: Mapping[str, tuple[Token, ...]]
    ) -> Iterator[Step]:
        cursor.take()
        profiles: list[str] = []
        while True:
            name = cursor.name("the name of a profile")
            if name.text not in PROFILES:
                raise cursor.unknown(name, "profile", PROFILES)
            profiles.append(name.text)
            if not cursor.takes(","):
                break
        cursor.end("'{' or ','")
        chosen = self._profile in profiles
        before = self._regions, self._queue_pairs, self._windows
        named = tuple(set(names) for names in before)
        # Both are read, so that a mistake shows whatever the profile.
        for body, counts in ((block.body, chosen), (block.otherwise, not chosen)):
            self._regions, self._queue_pairs, self._windows = map(set, before)
            for step in self._steps(body, tokens):
                if counts:
                    yield step
            for names, new in zip(
                named, (self._regions, self._queue_pairs, self._windows), strict=True
            ):
                names.update(new)
        self._regions, self._queue_pairs, self._windows = named

    def _interleaved(
        self, block: _Block, tokens: Mapping[str, tuple[Token, ...]]
    ) -> Iterator[Step]:
        """One step of each block in turn, until all are over."""
        if not block.others:
            raise self._error(block.head.tokens[0], "one block: the next begins with '} and {'")
        left = [list(self._steps(body, tokens)) for body in (block.body, *block.others)]
        for turn in zip_longest(*left):
            yield from (step for step in turn if step is not None)

    def _unordered(
        self, block: _Block, when: When, tokens: Mapping[str, tuple[Token, ...]]
    ) -> Unordered:
        members: list[Expect] = []
        for step in self._steps(block.body, tokens):
            if not isinstance(step, Expect) or step.most is not None or step.when.low is not None:
                at = step.line.tokens[0]
                is_optional = isinstance(step, Expect) and step.most is not None
                reason = "in any order come only packets, '>', without a time"
                raise self._error(at, reason + (": no '>?' and no upto" if is_optional else ""))
            members.append(step)
        if not members:
            raise self._error(block.head.tokens[0], "nothing is expected, in whatever order")
        if len(members) > _MOST_UNORDERED:
            reason = f"{len(members)} packets in any order, at most {_MOST_UNORDERED}"
            raise self._error(block.head.tokens[0], reason)
        return Unordered(block.head, when, tuple(members))

    # Lines.

    def _event(self, line: Line, tokens: Mapping[str, tuple[Token, ...]]) -> Step:
        cursor = self._cursor(self._replaced(line.tokens, tokens, line))
        when = self._when(cursor)
        owner = ""
        if cursor.here.kind is Kind.NAME and cursor.here.text in self._queue_pairs:
            owner = cursor.take().text
        token = cursor.here
        step: Step
        if cursor.takes("<"):
            self._exact(when, token)
            step = Inject(line, when, self._read_inbound(cursor), owner)
        elif cursor.takes(">?"):
            most = Expression(token, "1", lambda scope: 1, is_plain=True)
            step = Expect(line, when, self._alternatives(cursor), most, owner)
        elif cursor.takes(">"):
            upto = cursor.takes_name("upto")
            count = self._count_of(cursor) if upto else None
            step = Expect(line, when, self._alternatives(cursor), count, owner)
        elif owner and (token.kind is not Kind.NAME or token.text not in OWNED_VERBS):
            known = ", ".join(OWNED_VERBS)
            raise cursor.error(token, f"{owner} is a queue pair: expected '<', '>', {known}")
        elif cursor.takes_name("silence"):
            self._exact(when, token)
            step = Silence(line, when)
        elif cursor.takes_name("anything"):
            self._exact(when, token)
            step = Anything(line, when)
        elif cursor.takes_name("impair"):
            self._exact(when, token)
            step = read_impair(cursor, line, when)
        elif token.kind is Kind.NAME and token.text in VERBS:
            step = self._verb(line, cursor, when, owner)
        elif token.kind is Kind.NAME and token.text in _BLOCKS:
            reason = f"the line of {token.text} ends with '{{'; what it holds stands on the next"
            raise cursor.error(token, reason)
        elif token.kind is Kind.NAME:
            raise cursor.unknown(token, "event", [*VERBS, *_LINES])
        else:
            raise cursor.expected("'<', '>', silence or a verb", token)
        cursor.end(
            "a field, '|' or the end of the line"
            if isinstance(step, Expect)
            else "the end of the line"
        )
        return step

    def _count_of(self, cursor: Cursor) -> Expression:
        count = read_expression(cursor)
        number = constant(count, self._path)
        if number is not None and number < 1:
            raise cursor.error(count.token, f"up to {number} packets: use silence")
        return count

    def _alternatives(self, cursor: Cursor) -> tuple[Literal, ...]:
        found = [read_expected(cursor)]
        while cursor.takes("|"):
            found.append(read_expected(cursor))
        return tuple(found)

    def _verb(self, line: Line, cursor: Cursor, when: When, owner: str) -> Verb:
        token = cursor.take()
        form = VERBS[token.text]
        if not form.waits:
            self._exact(when, token)
        word = self._word(cursor, token, form)
        address = read_expression(cursor) if form.has_address else None
        args: dict[str, tuple[Token, Value]] = {}
        data: bytes | None = None
        while not cursor.at_end:
            name = cursor.name("an argument")
            if form.has_data and name.text == "data":
                cursor.sign("=")
                data = read_data(cursor)
                continue
            if name.text not in form.args:
                raise cursor.unknown(name, f"argument of {token.text}", form.args)
            if name.text in args:
                raise cursor.error(name, f"{name.text} is given twice")
            value = args[name.text] = name, self._argument(cursor, name, form)
            if token.text != "modify" or name.text == "state":  # the device may refuse the others
                self._check_possible(cursor, *value, form)
        if form.has_data and (data is not None) + len({"at", "u64", "zero"} & set(args)) != 1:
            choices = "at=, u64=, data= or zero" if form.expects else "at=, u64= or data="
            raise cursor.error(token, f"expected one of {choices}")
        return Verb(line, when, token, word, address, args, data, owner)

    def _check_possible(self, cursor: Cursor, name: Token, value: Value, form: VerbForm) -> None:
        """Raise for a number that an argument can never have."""
        for end in {id(end): end for choice in value.choices for end in choice}.values():
            number = constant(end, self._path)
            problem = "" if number is None else impossible(name.text, form.args[name.text], number)
            if problem:
                raise cursor.error(end.token, problem)

    def _word(self, cursor: Cursor, token: Token, form: VerbForm) -> Token | None:
        if token.text == "qp":
            return self._name_of_queue_pair(cursor)
        if form.words is None:
            return None
        word = cursor.name(form.what)
        if form.words and word.text not in form.words:
            raise cursor.unknown(word, form.what.partition(" ")[2], form.words)
        if token.text in ("mr", "mw"):
            if "." in word.text:
                raise cursor.error(word, "a name without a dot")
            if word.text in {*self._regions, "mr"}:
                raise cursor.error(word, f"{word.text} is the name of another region or window")
            if word.text in self._queue_pairs:
                raise cursor.error(word, f"{word.text} is the name of a queue pair")
            self._regions.add(word.text)
            self._windows |= {word.text} if token.text == "mw" else set()
        elif token.text == "bind" and word.text not in self._windows:
            raise cursor.unknown(word, "window", self._windows)
        elif token.text == "dereg" and word.text not in (self._regions | {"mr"}) - self._windows:
            raise cursor.unknown(word, "region", (self._regions | {"mr"}) - self._windows)
        return word

    def _name_of_queue_pair(self, cursor: Cursor) -> Token | None:
        """The name of a queue pair beside the first one."""
        word = cursor.here
        if word.kind is not Kind.NAME or cursor.after.text == "=" or word.text in _BARE:
            return None
        cursor.take()
        if "." in word.text:
            raise cursor.error(word, "a name without a dot")
        taken = {*VERBS, *SYMBOLS, *_BLOCKS, *_LINES, *self._regions, "mr"}
        if word.text in taken:
            raise cursor.error(word, f"{word.text} means something else: choose another name")
        if word.text in self._queue_pairs:
            raise cursor.error(word, f"{word.text} is the name of another queue pair")
        if len(self._queue_pairs) == MAXIMUM_QUEUE_PAIRS:
            reason = f"more than {MAXIMUM_QUEUE_PAIRS} queue pairs beside the first one"
            raise cursor.error(word, reason)
        self._queue_pairs.add(word.text)
        return word

    def _argument(self, cursor: Cursor, name: Token, form: VerbForm) -> Value:
        if name.text in _BARE and cursor.here.text != "=":
            one = Expression(name, "1", lambda scope: 1, is_plain=True)
            return Value(name, ((one, one),))
        cursor.sign("=")
        if form.expects:
            return read_value(cursor, form.args[name.text])
        at = cursor.here
        is_list = name.text in LISTS and form in (VERBS["post_send"], VERBS["post_recv"])
        if is_list and cursor.takes("{"):
            pieces = [read_expression(cursor)]
            while cursor.takes(","):
                pieces.append(read_expression(cursor))
            cursor.sign("}")
            return Value(at, tuple((each, each) for each in pieces))
        expression = read_expression(cursor, form.args[name.text])
        return Value(at, ((expression, expression),))

    def _when(self, cursor: Cursor) -> When:
        """The time at the start of an event."""
        if cursor.here.kind is Kind.NUMBER:  # packetdrill's first line: a time without +
            if cursor.here.value:
                raise cursor.expected("a time such as +1us", cursor.here)
            cursor.take()
            return When(None, None, False)
        if not cursor.takes("+"):
            return When(None, None, False)
        low = read_expression(cursor)
        if not cursor.takes(".."):
            return When(low, low, False)
        if cursor.here.kind is Kind.SIGN and cursor.here.text in ("<", ">", ">?"):
            return When(low, None, True)
        high = read_expression(cursor)
        first, last = constant(low, self._path), constant(high, self._path)
        if first is not None and last is not None and last < first:
            raise cursor.error(high.token, "the range ends before it begins")
        return When(low, high, True)

    def _exact(self, when: When, token: Token) -> None:
        if when.is_range:
            raise self._error(token, "this happens at one time: a range is for what is expected")

    def _constant(self, cursor: Cursor) -> int:
        """A number that needs no connection."""
        return read_expression(cursor).evaluate(Scope(self._path, {}))

    def _replaced(
        self, tokens: tuple[Token, ...], given: Mapping[str, tuple[Token, ...]], line: Line
    ) -> tuple[Token, ...]:
        """The tokens with those of tables and loops in the place of variables."""
        if not any(token.kind is Kind.VARIABLE for token in tokens):
            return tokens if tokens and tokens[-1].kind is Kind.END else (*tokens, line.tokens[-1])
        found: list[Token] = []
        for token in tokens:
            if token.kind is Kind.VARIABLE and token.text[1:] in given:
                found += given[token.text[1:]]
            else:
                found.append(token)
        if not found or found[-1].kind is not Kind.END:
            found.append(line.tokens[-1])
        if len(found) > MAXIMUM_TOKENS:
            reason = f"{len(found)} words when its variables are replaced, at most {MAXIMUM_TOKENS}"
            raise self._error(line.tokens[0], reason)
        return tuple(found)

    def _cursor(self, tokens: tuple[Token, ...]) -> Cursor:
        return Cursor(self._path, tokens, self._captured, self._regions, self._queue_pairs)

    def _error(self, token: Token, reason: str) -> ScriptError:
        return ScriptError(self._path, token.line, token.column, reason)

    def _count(self, step: Step) -> Step:
        self._spend()
        return step

    def _spend(self) -> None:
        self._left -= 1
        if self._left < 0:
            reason = f"more than {self._most} steps when loops and cases are laid out"
            raise ScriptError(self._path, None, None, reason)


def _cells(tokens: Sequence[Token]) -> list[tuple[Token, ...]]:
    """Tokens between commas; those in brackets stay together."""
    cells: list[list[Token]] = [[]]
    depth = 0
    for token in tokens:
        if token.kind is Kind.SIGN:
            depth += (token.text in "({") - (token.text in ")}")
        if token.kind is Kind.SIGN and token.text == "," and depth <= 0:
            cells.append([])
        else:
            cells[-1].append(token)
    return [tuple(cell) for cell in cells]


def _written(line: Line, cell: Sequence[Token]) -> str:
    """A cell as it stands in its line; a text alone without its quotes."""
    if len(cell) == 1:
        return cell[0].text
    return line.text[cell[0].column - 1 : cell[-1].end - 1] if cell else ""


def _case_names(texts: Sequence[Sequence[str]]) -> list[str]:
    """Names of cases: the first cell of each row where these differ, else the whole row."""
    firsts = [row[0] for row in texts]
    if len(set(firsts)) == len(firsts):
        return firsts
    return [", ".join(text for text in row if text) for row in texts]


def _is_interleaved(block: _Block) -> bool:
    return block.head.tokens[0].text == "interleaved"


def _is_value(tokens: Sequence[Token]) -> bool:
    """Whether the brace at the end of a line begins one of several values: `psn={`."""
    return len(tokens) > 2 and tokens[-3].text == "="


_BARE = ("nothing", "zero", "srq", "sqd_event", "solicited", "rearm")
"""Arguments that may stand without a value."""

_BLOCKS = ("cases", "for", "interleaved", "on", "unordered")

_LINES = (
    *("anything", "choice", "impair", "origin", "reference"),
    *("section", "silence", "tolerance", "virtual"),
)
"""First words of lines that are no verbs."""

_MOST_UNORDERED = 16

_TEXTS = {
    "section": "a section of the specification",
    "virtual": "what a real link cannot give",
    "origin": "where the script comes from",
    "reference": "the profile of the device that the script describes",
}
"""Lines whose value is text, and its meaning."""
