"""A scenario with several values of its keys and several seeds: its runs, and each as a row.

A run is a task of its own (`Task`), which any process does alike: it reads the scenario, runs it,
and returns a row of plain values. A run that fails is a row with its error.
"""

from __future__ import annotations

import hashlib
import traceback
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import version
from itertools import product
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

from ibwire.base.errors import IbwireError
from ibwire.base.toml_settings import Setting, parse_value
from ibwire.scenario.expect import METRICS, SCOPED, plain_value, unit_name
from ibwire.scenario.model import read_scenario
from ibwire.scenario.outcome import Metrics, Outcome
from ibwire.scenario.run import run

MOST_RUNS = 1_000_000

MOST_CONNECTIONS = 8
"""Most connections of a scenario whose metrics are columns."""

Row = dict[str, Any]
"""Keys that were set, seed, result and metrics of one run, all plain values."""

SEED = "seed"
RESULT = ("error", "passed", "unmet", "ended", "virtual_time_ps")
"""Columns of the result, before the metrics."""


class Run(NamedTuple):
    """One run of a sweep."""

    values: tuple[str, ...]
    """As written, one for each key of the sweep."""
    seed: int


@dataclass(frozen=True, slots=True)
class Sweep:
    """A scenario, the values of its keys, and the seeds of each combination."""

    name: str
    """Of the scenario, for messages."""
    content: bytes
    axes: tuple[tuple[str, tuple[str, ...]], ...]
    """Keys with their values."""
    seeds: Sequence[int]
    files: tuple[str, ...] = ()
    """Files of flows that the scenario reads."""

    @property
    def keys(self) -> tuple[str, ...]:
        """The keys that are set."""
        return tuple(key for key, _ in self.axes)

    def __len__(self) -> int:
        return prod(len(values) for _, values in self.axes) * len(self.seeds)

    def points(self) -> Iterator[tuple[str, ...]]:
        """The combinations of values; the last key changes fastest."""
        return product(*(values for _, values in self.axes))

    def runs(self) -> Iterator[Run]:
        """All runs in the order of their rows."""
        return (Run(values, seed) for values in self.points() for seed in self.seeds)

    @property
    def identity(self) -> dict[str, str]:
        """What rows of the same sweep have in common, whichever values and seeds they have."""
        digest = hashlib.sha256(self.content)
        for file in self.files:
            digest.update(Path(file).read_bytes())
        return {
            "ibwire": version("ibwire"),
            "scenario": digest.hexdigest(),
            "keys": " ".join(self.keys),
        }

    def checked(self) -> Sweep:
        """The sweep with the scenario's own first seed.

        Raises `ScriptError` if the scenario can be read with none of the combinations.
        """
        first: IbwireError | None = None
        for values in self.points():
            try:
                found = read_scenario(self.content, self.name, self.settings(values))
            except IbwireError as error:
                first = first or error
            else:
                seeds = range(found.seed, found.seed + len(self.seeds))
                return replace(self, seeds=seeds, files=found.files)
        assert first is not None
        raise first

    def settings(self, values: Sequence[str]) -> list[Setting]:
        """What a run sets."""
        return [Setting(key, value) for key, value in zip(self.keys, values, strict=True)]

    def task(self, each: Run) -> tuple[Run, Row]:
        """Do one run, in whichever process this is."""
        settings = self.settings(each.values)
        row: Row = {setting.key: plain(setting.text) for setting in settings} | {SEED: each.seed}
        settings.append(Setting("seed", str(each.seed)))
        try:
            outcome = run(read_scenario(self.content, self.name, settings), each.seed)
        except IbwireError as error:
            return each, row | {"error": str(error), "passed": False}
        except Exception as error:  # one of many runs: the others must not be lost with it
            place = traceback.extract_tb(error.__traceback__)[-1]
            what = f"internal error: {type(error).__name__}: {error} ({place.name}:{place.lineno})"
            return each, row | {"error": what, "passed": False}
        return each, row | _result(outcome)


def plain(text: str) -> int | float | str:
    """A value as a column has it: a number, or the text that was given."""
    value = parse_value(text)
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return value if is_number else text


def _result(outcome: Outcome) -> Row:
    unmet = [
        f"{check.connection}: {check.expectation.text}"
        if check.connection
        else check.expectation.text
        for check in outcome.checks
        if not check.passed
    ]
    row: Row = {
        "error": None,
        "passed": outcome.passed,
        "unmet": "; ".join(unmet) or None,
        "ended": outcome.ended,
        "virtual_time_ps": outcome.virtual_time,
    }
    row |= _named(outcome.metrics, METRICS)
    if 1 < len(outcome.by_connection) <= MOST_CONNECTIONS:
        for name, metrics in outcome.by_connection.items():
            row |= {f"{name}.{key}": value for key, value in _named(metrics, SCOPED).items()}
    return row


def _named(metrics: Metrics, names: Iterable[str]) -> Row:
    """Metrics by names with units, in the order of reports."""
    known = set(names)
    return {
        unit_name(name): plain_value(name, metrics[name]) if name in metrics else None
        for name in METRICS
        if name in known
    }


def metric_columns(rows: Iterable[Row], keys: Sequence[str]) -> list[str]:
    """The columns of metrics that rows have, in their order.

    keys: of the sweep, whose columns come before.
    """
    found: dict[str, None] = {}
    for row in rows:
        found |= dict.fromkeys(row)
    others = {*keys, SEED, *RESULT}
    return [name for name in found if name not in others]
