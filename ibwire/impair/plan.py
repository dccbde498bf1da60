"""Builds a pipe of stages from the rules of a TOML plan.

    [[faults]]
    drop = { psn = 2, nth = 1 }
    [[faults]]
    loss = 0.01
    [[faults]]
    corrupt = { probability = 0.001, bits = 3, where = "payload" }

A rule has one action. The table of an action has its parameters and the selection of
frames: the conditions of `Match`, then `burst`, then `probability`, each of
which is applied only to frames that the ones before select. A number instead of
the table is a probability. `after`, `before` and other times are strings
with a unit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from ibwire.base.errors import EncodeError, IbwireError
from ibwire.base.node import Stage
from ibwire.base.quantities import parse_duration
from ibwire.base.units import Time
from ibwire.impair.match import All, Burst, Chance, Match, Pick, Sightings, always
from ibwire.impair.replies import Answer, Answering, PFCAnswer, QueuePairAnswer
from ibwire.impair.rules import Rules
from ibwire.impair.stages import Corrupt, Delay, Duplicate, Loss, MarkECN, Reorder, Rewrite
from ibwire_layers.outer import LinkType

KeyPath = tuple[str | int, ...]


class PlanError(IbwireError):
    """An invalid rule; `key_path` leads from the top to the mistake.

    at_key: the key is wrong, not its value. known: the valid keys, for an unknown one.
    """

    def __init__(
        self, key_path: KeyPath, reason: str, *, at_key: bool = False, known: Sequence[str] = ()
    ) -> None:
        self.key_path = key_path
        self.reason = reason
        self.at_key = at_key
        self.known = known
        super().__init__(f"{_dotted(key_path)}: {reason}")


def build_pipe(
    rules: object,
    *,
    seed: int = 0,
    name: str = "pipe",
    path: KeyPath = ("faults",),
    link_type: int = LinkType.ETHERNET,
    answering: Answering | None = None,
) -> Rules:
    """The stages of a list of rules, in order.

    name: of the point that the pipe is for; each random rule has a generator
    named `seed/name/index`. path: of the list in the file, for errors. link_type: of
    the frames, Ethernet or native InfiniBand. answering: takes replies; without it `cnp`, `nak`
    and `pfc` are not possible. Raises `PlanError`.
    """
    if not isinstance(rules, Sequence) or isinstance(rules, str):
        raise PlanError(path, f"{_shown(rules)} is not a list of rules")
    place = _Context(seed, link_type, Sightings(), answering)
    stages = [
        _stage(rule, (*path, index), f"{name}/{index}", place) for index, rule in enumerate(rules)
    ]
    return Rules(*stages, sightings=place.sightings, link_type=link_type)


class _Context(NamedTuple):
    """The values that all rules of a list share."""

    seed: int
    link_type: int
    sightings: Sightings
    answering: Answering | None


def _stage(rule: object, path: KeyPath, name: str, place: _Context) -> Stage:
    if not isinstance(rule, Mapping):
        raise PlanError(path, f"{_shown(rule)} is not a table")
    for key in rule:
        if key not in _ACTIONS:
            reason = f"unknown; a rule is one of {', '.join(_ACTIONS)}"
            raise PlanError((*path, key), reason, at_key=True)
    if not rule:
        raise PlanError(path, "a rule has one action, found nothing")
    (action, value), *more = rule.items()
    if more:
        reason = f"a rule has one action, and {action} is there already"
        raise PlanError((*path, more[0][0]), reason, at_key=True)
    return _ACTIONS[action](_Table(value, action, (*path, action), name, place))


class _Table:
    """The table of an action: keys are taken one by one, and the rest is unknown."""

    def __init__(
        self, value: object, action: str, path: KeyPath, name: str, place: _Context
    ) -> None:
        self.seed = place.seed
        self.link_type = place.link_type
        self.name = name
        self.path = path
        self._place = place
        shorthand = _SHORTHANDS.get(action)
        if isinstance(value, Mapping):
            self._left = dict(value)
        elif shorthand is None:
            raise PlanError(path, f"{_shown(value)} is not a table")
        else:
            self._left = {shorthand: value}
        self._known: list[str] = []
        self._is_short = not isinstance(value, Mapping)

    def path_of(self, key: str) -> KeyPath:
        """The path of the value of a key."""
        return self.path if self._is_short else (*self.path, key)

    def take(self, *keys: str) -> dict[str, Any]:
        """The given keys with their values."""
        self._known += keys
        return {key: self._left.pop(key) for key in keys if key in self._left}

    def take_times(self, *keys: str) -> dict[str, Time]:
        """The same for keys whose values are times."""
        times = {}
        for key, text in self.take(*keys).items():
            try:
                times[key] = parse_duration(text)
            except EncodeError as error:
                raise PlanError(self.path_of(key), _reason(error)) from None
        return times

    def pick(self) -> Pick:
        """The selection of frames; it is taken last."""
        picks: list[Pick] = []
        conditions = self.take(*_CONDITIONS) | self.take_times("after", "before")
        burst = self.take("burst")
        chance = self.take("probability")
        for key in self._left:
            reason = f"unknown; expected {', '.join(self._known)}"
            raise PlanError((*self.path, key), reason, at_key=True, known=self._known)
        with self.errors():
            if conditions:
                sightings = self._place.sightings
                picks.append(Match(**conditions, link_type=self.link_type, sightings=sightings))
            if chance:
                chosen = Chance(chance["probability"], seed=self.seed, name=self.name)
        if burst:
            picks.append(self._burst(burst["burst"]))
        if chance:
            picks.append(chosen)
        if not picks:
            return always
        return picks[0] if len(picks) == 1 else All(*picks)

    def _burst(self, value: object) -> Burst:
        path = (*self.path, "burst")
        if not isinstance(value, Mapping):
            raise PlanError(path, f"{_shown(value)} is not a table")
        for key in value:
            if key not in BURST:
                reason = "unknown; expected count, first or period"
                raise PlanError((*path, key), reason, at_key=True, known=BURST)
        if "count" not in value:
            raise PlanError(path, "count is missing")
        with _errors(lambda field: (*path, field)):
            return Burst(**value)

    def answering(self) -> Answering:
        """The context for replies."""
        if self._place.answering is None:
            reason = "only `ibwire tap` can reply to frames"
            raise PlanError(self.path, reason, at_key=True)
        return self._place.answering

    @contextmanager
    def errors(self) -> Iterator[None]:
        """Convert an `EncodeError` to a `PlanError` at its key."""
        with _errors(self.path_of):
            yield


@contextmanager
def _errors(path_of: Callable[[str], KeyPath]) -> Iterator[None]:
    try:
        yield
    except EncodeError as error:
        raise PlanError(path_of(error.field), _reason(error)) from None


def _loss(table: _Table) -> Stage:
    return Loss(table.pick())


def _corrupt(table: _Table) -> Stage:
    options = table.take("bits", "where")
    pick = table.pick()
    with table.errors():
        return Corrupt(
            pick,
            **options,
            link_type=table.link_type,
            seed=table.seed,
            name=f"{table.name}/bits",
        )


def _duplicate(table: _Table) -> Stage:
    options = table.take("copies") | table.take_times("delay")
    pick = table.pick()
    with table.errors():
        return Duplicate(pick, **options)


def _reorder(table: _Table) -> Stage:
    options = table.take("by") | table.take_times("max_delay")
    pick = table.pick()
    with table.errors():
        return Reorder(pick, **options)


def _delay(table: _Table) -> Stage:
    options = table.take_times("time", "jitter")
    pick = table.pick()
    if not options:
        raise PlanError(table.path, "time or jitter is missing")
    time, jitter = options.get("time", 0), options.get("jitter", 0)
    return Delay(time, jitter, pick=pick, seed=table.seed, name=f"{table.name}/jitter")


def _mark_ecn(table: _Table) -> Stage:
    options = table.take("force")
    pick = table.pick()
    with table.errors():
        return MarkECN(pick, **options)


def _rewrite(table: _Table) -> Stage:
    fields = table.take("set").get("set")
    options = table.take("repair")
    pick = table.pick()
    path = (*table.path, "set")
    if not isinstance(fields, Mapping):
        raise PlanError(path, _EXPECTED_FIELDS)
    # In TOML an unquoted dotted key is a table of the header.
    flat: dict[str, Any] = {}
    paths: dict[str, KeyPath] = {}
    for key, value in fields.items():
        inside = value.items() if isinstance(value, Mapping) else ((None, value),)
        for attribute, inner in inside:
            field = key if attribute is None else f"{key}.{attribute}"
            flat[field] = inner
            paths[field] = (*path, key) if attribute is None else (*path, key, attribute)
    if not flat:
        raise PlanError(path, _EXPECTED_FIELDS)
    with _errors(lambda field: paths.get(field, (*table.path, field))):
        return Rewrite(pick, flat, **options, link_type=table.link_type)


def _cnp(table: _Table) -> Stage:
    send, partners = table.answering()
    options = table.take("to_qp", "dscp")
    pick = table.pick()
    with table.errors():
        return Answer(pick, QueuePairAnswer(partners, **options), send)


def _nak(table: _Table) -> Stage:
    send, partners = table.answering()
    options = table.take("code", "timer", "to_qp", "dscp")
    options.setdefault("code", "PSN_SEQUENCE_ERROR")
    pick = table.pick()
    with table.errors():
        return Answer(pick, QueuePairAnswer(partners, **options), send)


def _pfc(table: _Table) -> Stage:
    send, _ = table.answering()
    options = table.take("priorities", "quanta")
    pick = table.pick()
    if "priorities" not in options:
        raise PlanError(table.path, "priorities is missing")
    with table.errors():
        return Answer(pick, PFCAnswer(**options), send)


def _dotted(path: KeyPath) -> str:
    text = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path)
    return text.removeprefix(".")


def _reason(error: EncodeError) -> str:
    return str(error).removeprefix(f"{error.field}: ")


def _shown(value: object) -> str:
    return "a table" if isinstance(value, Mapping) else repr(value)


_ACTIONS: dict[str, Callable[[_Table], Stage]] = {
    "drop": _loss,
    "loss": _loss,
    "corrupt": _corrupt,
    "duplicate": _duplicate,
    "reorder": _reorder,
    "delay": _delay,
    "mark_ecn": _mark_ecn,
    "rewrite": _rewrite,
    "cnp": _cnp,
    "nak": _nak,
    "pfc": _pfc,
}

_SHORTHANDS = {
    **dict.fromkeys(("drop", "loss", "corrupt", "duplicate", "reorder"), "probability"),
    **dict.fromkeys(("mark_ecn", "cnp", "nak"), "probability"),
    "delay": "time",
}
"""Action -> key for a value that is not a table."""

_CONDITIONS = (
    "opcode",
    "dest_qp",
    "connection",
    "psn",
    "absolute_psn",
    "syndrome",
    "min_size",
    "max_size",
    "nth",
    "every",
)

BURST = ("count", "first", "period")
"""Keys of a burst."""

_EXPECTED_FIELDS = "expected a table of fields, such as { bth.psn = 5 }"
