"""`run.json`: the settings of a run, its progress, and what it has learned so far.

A run resumes there with the next case, and does not report again what it has found already.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from ibwire.base.errors import CaptureError
from ibwire.drill.files import write_text
from ibwire.fuzz.campaign import Campaign
from ibwire.fuzz.case import CaseError, Role, from_json, to_json
from ibwire.fuzz.condense import last_part
from ibwire.fuzz.coverage import Cell, Coverage
from ibwire.fuzz.judge.exclusions import parse_exclusion
from ibwire.fuzz.judge.findings import Finding
from ibwire.fuzz.judge.profiles import MAY_BE_UNCHECKED
from ibwire.fuzz.report import Postponed, Report
from ibwire.fuzz.stepper import Maker
from ibwire.fuzz.targets.emulator import DEFAULT
from ibwire.fuzz.vocabulary.operators import Group
from ibwire.fuzz.vocabulary.queue_pair.cells import DIMENSIONS
from ibwire.fuzz.vocabulary.queue_pair.recorded_traffic import read_seeds, seeded
from ibwire.fuzz.vocabulary.vocabularies import vocabulary_for

FORMAT = 3
"""Of `run.json`."""

NAME = "run.json"

MAXIMUM_NAME = 100
"""Characters of the name of a recording in an origin."""

LONGEST_POSTPONED = 1000
"""Steps of a postponed case that is saved."""

STEPS_OF_POSTPONED = 50_000
"""Steps of all postponed cases that are saved, so that they fit into the file."""

MAXIMUM_SIZE = 1 << 26
"""Bytes of such a file."""


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of a run, which stay the same when it is resumed."""

    target: str = DEFAULT
    profile: str = "spec"
    """Of the reference."""
    role: Role = Role.BOTH
    ops: tuple[str, ...] = ()
    seed: int = 0
    capture: str = ""
    """The recording that cases begin with; empty for none."""
    device: str = ""
    """Its address in there."""
    qpn: int | None = None
    """Which of its queue pairs, if it has several."""

    def maker(self) -> Maker:
        """The generators of its cases.

        Raises `CaptureError` for a recording that cannot be read, or has nothing for the role.
        """
        if not self.capture:
            make = vocabulary_for(self.role).generators
            return make(self.seed, self.role, self.ops, combines=self.combines)
        seeds = read_seeds(self.capture, self.device, self.qpn)
        if not seeds.roles(self.role):
            reason = f"its requests are none for role {self.role}"
            raise CaptureError(self.capture, None, reason)
        return seeded(seeds, self.seed, self.role, self.ops)

    @property
    def combines(self) -> bool:
        """Whether some cases are short or combined ones, as an emulated device can have them."""
        return not self.capture and not self.target.startswith("live:")

    @property
    def origin(self) -> str:
        """What cases begin to say about where they come from."""
        words = [f"seed {self.seed}", f"role {self.role}"]
        if self.capture:
            name = Path(self.capture).name[:MAXIMUM_NAME]
            words.append("".join(each if each.isprintable() else "?" for each in name))
        return "".join(f"{word}, " for word in words)


@dataclass(frozen=True, slots=True)
class Known:
    """A finding of a run, as its index has it."""

    number: int
    bucket: str
    rule: str
    origin: str
    packet: int
    script: bool
    """Whether it could be written as a drill script."""
    group: str = ""
    """Equal for findings that probably have one cause."""
    causes: tuple[str, ...] = ()
    """Beside the group."""

    @property
    def name(self) -> str:
        """Of its directory."""
        return f"F{self.number:04}"


@dataclass(slots=True)
class Session:
    """A run in a directory."""

    settings: Settings
    report: Report
    next_case: int = 0
    known: list[Known] = field(default_factory=list)

    @classmethod
    def new(cls, settings: Settings) -> Session:
        """A run that has not begun."""
        return cls(settings, Report(Coverage(vocabulary_for(settings.role).coverage)))

    def add(self, finding: Finding, *, has_script: bool) -> None:
        """Take a finding into the index."""
        self.known.append(
            Known(
                number=finding.number,
                bucket=finding.bucket,
                rule=finding.rule,
                origin=finding.original.origin,
                packet=finding.packet,
                script=has_script,
                group=finding.group,
                causes=finding.causes,
            )
        )

    def save(self, directory: Path, campaign: Campaign) -> None:
        """Write the current state into an existing directory, completely or not at all.

        Raises `OutputError`.
        """
        report = campaign.report
        document = {
            "ibwire-fuzz-run": FORMAT,
            **asdict(self.settings),
            "packets": report.packets,
            "cases": report.cases,
            "next_case": campaign.next_case,
            "taken": report.taken,
            "allowed": report.choices,
            "unchecked": report.unchecked,
            "left_out": list(map(str, report.left_out)),
            "unstable": dict(report.unstable),
            "unexamined": dict(report.unexamined),
            "explained": campaign.explained,
            "led_to": report.led_to,
            "examined": dict(report.examined),
            "in_vain": report.in_vain,
            "postponed": [
                {
                    "case": to_json(each.case),
                    "bucket": each.bucket,
                    "kind": each.kind,
                    "packet_fault": each.packet_fault,
                    "packet": each.packet,
                }
                for each in _to_save(report)
            ],
            "findings": [
                {**asdict(known), "seen": report.seen[known.bucket]} for known in self.known
            ],
            "coverage": [
                [state, opcode, list(kind), count]
                for (state, opcode, kind), count in sorted(report.coverage.counts.items())
            ],
            "cells": [[*cell, count] for cell, count in sorted(report.coverage.cells.items())],
        }
        write_text(directory / NAME, _dumps(document))


def _to_save(report: Report) -> list[Postponed]:
    """The postponed differences that fit into the file: without what came before where it is long.

    Most cases show their difference alone.
    """
    in_order, left = report.postponed_in_order, STEPS_OF_POSTPONED
    kept: dict[str, Postponed] = {}
    for each in in_order:
        alone = replace(each, case=last_part(each.case))
        if (steps := len(alone.case.steps)) <= min(left, LONGEST_POSTPONED):
            kept[each.bucket] = alone
            left -= steps
    for each in in_order:
        if each.bucket in kept and len(each.case.steps) <= LONGEST_POSTPONED:
            more = len(each.case.steps) - len(kept[each.bucket].case.steps)
            if more <= left:
                kept[each.bucket] = each
                left -= more
    return [kept[bucket] for bucket in report.postponed if bucket in kept]


def load(place: Path) -> Session:
    """The run in a directory, or of its `run.json`; raises `CaseError` that names the place."""
    path = place / NAME if place.is_dir() else place
    if path is not place and not path.exists():
        raise CaseError(f"{place}: no {NAME}; expected the directory of a run of ibwire fuzz")
    try:
        with path.open("rb") as file:
            content = file.read(MAXIMUM_SIZE + 1)
    except OSError as error:
        raise CaseError(f"{path}: {error.strerror}") from None
    if len(content) > MAXIMUM_SIZE:
        raise CaseError(f"{path}: longer than {MAXIMUM_SIZE} bytes")
    try:
        document = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise CaseError(f"{path}: no JSON: {error}") from None
    if not isinstance(document, dict) or document.get("ibwire-fuzz-run") != FORMAT:
        raise CaseError(f"{path}: no run of ibwire fuzz of format {FORMAT}")
    try:
        return _session(_Object(document, ""))
    except CaseError as error:
        raise CaseError(f"{path}: {error}") from None


def _session(document: _Object) -> Session:
    settings = Settings(
        document.text("target"),
        document.text("profile"),
        Role(document.one_of("role", tuple(Role))),
        tuple(document.texts("ops", tuple(Group))),
        document.number("seed"),
        document.text("capture"),
        document.text("device"),
        None if document.document.get("qpn") is None else document.number("qpn"),
    )
    report = Report(
        _coverage(document.items("coverage"), settings.role),
        packets=document.number("packets"),
        cases=document.number("cases"),
    )
    if "cells" in document.document:
        report.coverage.cells = _cells(document.items("cells"))
    known: list[Known] = []
    for number, each in enumerate(document.objects("findings"), 1):
        finding = Known(
            number=number,
            bucket=each.text("bucket"),
            rule=each.text("rule"),
            origin=each.text("origin"),
            packet=each.number("packet"),
            script=each.flag("script"),
            group=each.text("group"),
            causes=tuple(each.texts("causes")) if "causes" in each.document else (),
        )
        known.append(finding)
        report.seen[finding.bucket] = each.number("seen")
        for group in (finding.group, *finding.causes):
            if group:
                report.groups[group] = finding.bucket
    taken = document.object("taken")
    report.taken = {name: taken.text(name) for name in taken.document}
    if "unchecked" in document.document:
        report.unchecked = list(document.texts("unchecked", tuple(MAY_BE_UNCHECKED)))
    report.left_out = [parse_exclusion(text) for text in document.texts("left_out")]
    report.unstable = _by_bucket(document, "unstable")
    if "unexamined" in document.document:
        report.unexamined = _by_bucket(document, "unexamined")
    if "explained" in document.document:
        _take_examined(report, document)
    return Session(settings, report, document.number("next_case"), known)


def _take_examined(report: Report, document: _Object) -> None:
    """Read what was examined, and what waits."""
    report.explained = document.number("explained")
    report.examined = _by_bucket(document, "examined")
    led_to = document.object("led_to")
    for bucket in led_to.document:
        if (name := led_to.text(bucket)) in report.seen:
            report.led_to[bucket] = name
    if "postponed" not in document.document:
        return  # of a version that kept none
    in_vain = document.object("in_vain")
    report.in_vain = {kind: in_vain.number(kind) for kind in in_vain.document}
    for each in document.objects("postponed"):
        postponed = Postponed(
            from_json(each.text("case"), "postponed"),
            each.line("bucket"),
            each.line("kind"),
            each.line("packet_fault"),
            each.number("packet"),
        )
        report.postponed[postponed.bucket] = postponed


def _by_bucket(document: _Object, name: str) -> Counter[str]:
    counts = document.object(name)
    for bucket in counts.document:
        if not bucket.isprintable():
            raise CaseError(f"{name}: {bucket!r}, not a line of text")
    return Counter({bucket: counts.number(bucket) for bucket in counts.document})


def _coverage(rows: list[Any], role: Role) -> Coverage:
    coverage = Coverage(vocabulary_for(role).coverage)
    states = coverage.scheme.states
    for index, row in enumerate(rows):
        where = f"coverage[{index}]"
        if not isinstance(row, list) or len(row) != 4:
            raise CaseError(f"{where}: not state, opcode, answer and count")
        state, opcode, kind, count = row
        if state not in states:
            raise CaseError(f"{where}[0]: {state!r}, not one of {', '.join(states)}")
        if not isinstance(kind, list) or len(kind) > 2:
            raise CaseError(f"{where}[2]: not an opcode and a syndrome")
        opcode, *kind = (_number(each, 0xFFFF, f"{where}[1, 2]") for each in (opcode, *kind))
        coverage.counts[state, opcode, tuple(kind)] = _number(count, 1 << 63, f"{where}[3]")
    return coverage


def _cells(rows: list[Any]) -> Counter[Cell]:
    cells: Counter[Cell] = Counter()
    for index, row in enumerate(rows):
        where = f"cells[{index}]"
        if not isinstance(row, list) or len(row) != len(DIMENSIONS) + 2:
            raise CaseError(f"{where}: not an opcode, {len(DIMENSIONS)} values and a count")
        opcode, *values, count = row
        cell = [_number(opcode, 0xFF, f"{where}[0]")]
        for place, (_, names) in DIMENSIONS.items():
            cell.append(_number(values[place - 1], len(names) - 1, f"{where}[{place}]"))
        cells[tuple(cell)] = _number(count, 1 << 63, f"{where}[{len(row) - 1}]")
    return cells


class _Object:
    """An object of a file that may be damaged: every value by the type that it must have."""

    def __init__(self, document: Mapping[str, Any], where: str) -> None:
        self.document = document
        self._where = where

    def _take(self, name: str) -> Any:
        if name not in self.document:
            raise CaseError(f"{self._where}{name}: missing")
        return self.document[name]

    def text(self, name: str) -> str:
        value = self._take(name)
        if not isinstance(value, str):
            raise CaseError(f"{self._where}{name}: {value!r}, not a text")
        return value

    def line(self, name: str) -> str:
        value = self.text(name)
        if value and not value.isprintable():
            raise CaseError(f"{self._where}{name}: {value!r}, not a line of text")
        return value

    def one_of(self, name: str, known: tuple[str, ...]) -> str:
        value = self.text(name)
        if value not in known:
            raise CaseError(f"{self._where}{name}: {value!r}, not one of {', '.join(known)}")
        return value

    def texts(self, name: str, known: tuple[str, ...] = ()) -> list[str]:
        values = self.items(name)
        for value in values:
            if not isinstance(value, str):
                raise CaseError(f"{self._where}{name}: {value!r}, not a text")
            if known and value not in known:
                raise CaseError(f"{self._where}{name}: {value!r}, not one of {', '.join(known)}")
        return values

    def number(self, name: str) -> int:
        return _number(self._take(name), 1 << 63, f"{self._where}{name}")

    def flag(self, name: str) -> bool:
        value = self._take(name)
        if not isinstance(value, bool):
            raise CaseError(f"{self._where}{name}: {value!r}, not true or false")
        return value

    def items(self, name: str) -> list[Any]:
        value = self._take(name)
        if not isinstance(value, list):
            raise CaseError(f"{self._where}{name}: not a list")
        return value

    def object(self, name: str) -> _Object:
        return self._as_object(self._take(name), f"{self._where}{name}")

    def objects(self, name: str) -> list[_Object]:
        return [
            self._as_object(value, f"{self._where}{name}[{index}]")
            for index, value in enumerate(self.items(name))
        ]

    def _as_object(self, value: Any, where: str) -> _Object:
        if not isinstance(value, dict):
            raise CaseError(f"{where}: not an object")
        return _Object(value, f"{where}.")


def _number(value: Any, highest: int, where: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= highest:
        raise CaseError(f"{where}: {value!r}, not a number from 0 to {highest}")
    return value


def _dumps(document: Mapping[str, Any]) -> str:
    """JSON with a line for each member and each row."""
    rows = []
    for name, value in document.items():
        if isinstance(value, list) and value and isinstance(value[0], list | dict):
            inner = ",\n  ".join(json.dumps(each) for each in value)
            rows.append(f"{json.dumps(name)}: [\n  {inner}\n ]")
        else:
            rows.append(f"{json.dumps(name)}: {json.dumps(value)}")
    return "{\n " + ",\n ".join(rows) + "\n}\n"
