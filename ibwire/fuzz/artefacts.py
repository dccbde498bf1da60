"""The files of a run in its directory: each finding, and the state to resume from.

`F0001/case.drill` is the minimised case, a drill script that also says what is expected where
it can, `original.drill` the case as found, `case.pcapng` its packets with comments about the
differences, `report.txt` a description. `run.json` is the run itself. A case that scripts have no
words for is in `case.json` and `original.json`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from shlex import quote
from xml.etree import ElementTree

from ibwire.base.errors import ScriptError
from ibwire.base.output import Output, make_directory
from ibwire.base.units import NS
from ibwire.capture import PcapngWriter
from ibwire.drill import parse, run
from ibwire.drill.files import write_text, write_xml
from ibwire.fuzz.case import Case, Connect, Packet, Role, RunsAway, step_text
from ibwire.fuzz.judge.findings import Finding
from ibwire.fuzz.judge.profiles import UNCHECKED
from ibwire.fuzz.recording import Recording, record
from ibwire.fuzz.report_text import SHOWN_STEPS, finding_lines, folded, some, step_line
from ibwire.fuzz.saved import case_text, file_name, says
from ibwire.fuzz.targets.emulator import target
from ibwire.fuzz.targets.testbed import Target
from ibwire.fuzz.vocabulary.cm.script import manager_script
from ibwire.fuzz.vocabulary.queue_pair.script import CannotSay, script
from ibwire.fuzz.vocabulary.vocabularies import role_of
from ibwire.fuzz.watchdog import supervised

SCRIPT = "case.drill"

MAXIMUM_COMMENT = 4000
"""Characters: what crashes may have much to say."""


def save(finding: Finding, directory: Path, tested: Target) -> tuple[Recording, str]:
    """Write the files of a finding into a directory, whose parent must exist.

    Returns the recording of the target, and the reason why there is no script, empty if there is
    one. Raises `OutputError`.
    """
    make_directory(directory, parents=False)
    case = finding.case
    recording = record(case, tested)
    write_capture(directory / "case.pcapng", case, recording)
    text, reason = checked_script(finding, tested)
    (directory / SCRIPT).unlink(missing_ok=True)
    if text:
        write_text(directory / SCRIPT, text)
    if not text or not says(text, case):
        text = case_text(case)
        write_text(directory / file_name("case", text), text)
    text = case_text(finding.original)
    write_text(directory / file_name("original", text), text)
    lines = [*finding_lines(finding, recording), *_ways(case, tested, directory, reason)]
    write_text(directory / "report.txt", "\n".join(lines) + "\n")
    return recording, reason


def checked_script(finding: Finding, tested: Target) -> tuple[str, str]:
    """A drill script that the emulator passes and the target does not, or the reason why not."""
    case = finding.case
    rule = f"Found by ibwire fuzz: {finding.bucket}."
    try:
        write = manager_script if role_of(case) is Role.CM else script
        text = write(case, finding.difference, rule, finding.rule)
        if not target(f"emu:{case.profile}").fulfils(text):
            if case.choices.keys() - {UNCHECKED}:
                return "", "without the choices of the target the answers before it are others"
            return "", _unfulfilled(text, case.profile)
        if tested.fulfils(text):
            return "", "what the target does otherwise cannot be seen in a script"
    except CannotSay as error:
        return "", str(error)
    except ScriptError as error:
        return "", f"drill cannot read it: {error.reason}"
    return text, ""


def _unfulfilled(text: str, profile: str) -> str:
    """What the emulator does otherwise than a script of a case says."""
    reason = "a script of this case fails on the emulator, too"
    parsed = parse(text.encode(), SCRIPT, profile)
    try:
        for each in parsed.cases:
            failure = supervised(partial(run, parsed, each, profile)).failure
            if failure is not None:
                line = f"line {failure.line.number}: {failure.line.text.strip()}"
                return f"{reason}: {line}: got {failure.got}"
    except RunsAway as error:
        return f"{reason}: {error}"
    return reason


def write_capture(path: Path, case: Case, recording: Recording) -> None:
    """Write the packets of a case as pcapng, each with comments.

    Raises `OutputError` when it cannot be written.
    """
    with Output(path) as output, PcapngWriter(output, name="fuzz") as writer:
        described = 0
        for number, entry in enumerate(recording.entries):
            is_last = number == len(recording.entries) - 1
            comments = []
            for before in range(described, entry.step):
                if not isinstance(case.steps[before], Packet):
                    comments.append(
                        f"before it: step {before + 1}: {step_text(case.steps[before])}"
                    )
            described = max(described, entry.step + 1)
            step = case.steps[entry.step]
            what = f"step {entry.step + 1}"
            if entry.way == "<" or not isinstance(step, Packet):
                what += f": {step_text(step)}"
            if entry.way == ">":
                what += f": sent by the device: {entry.text}"
            comments.append(what)
            if entry.way == "<" and isinstance(step, Packet) and step.why:
                comments.append(f"on purpose: {step.why}")
            if is_last and recording.difference is not None:
                comments += [f"expected: {some(recording.expected)}", f"got: {some(recording.got)}"]
            comments = [comment[:MAXIMUM_COMMENT] for comment in comments]
            writer.write(entry.frame, entry.time // NS, comments=comments)


def brief_text(finding: Finding, recording: Recording) -> str:
    """The case of a finding and what came of it, in one line."""
    steps = "; ".join(text for _, text in folded(map(step_line, finding.case.steps))[-SHOWN_STEPS:])
    return f"{steps}; expected: {some(recording.expected)}; got: {some(recording.got)}"


def write_sarif(path: str, name: str, findings: Sequence[tuple[str, str, str, str]]) -> None:
    """Write findings as SARIF 2.1.0, for programs that show the results of analyses.

    name: of the target. findings: number, rule, group and text of each. Raises `OutputError`.
    """
    rules = dict.fromkeys(rule for _, rule, _, _ in findings)
    document = {
        "$schema": "https://json.schemastore.org/sarif-2.1.0.json",
        "version": "2.1.0",
        "runs": [
            {
                "tool": {
                    "driver": {
                        "name": "ibwire fuzz",
                        "rules": [
                            {
                                "id": _rule_id(rule),
                                "shortDescription": {"text": _rule_words(rule)},
                                "fullDescription": {"text": rule},
                            }
                            for rule in rules
                        ],
                    }
                },
                "results": [
                    {
                        "ruleId": _rule_id(rule),
                        "level": "error",
                        "message": {"text": f"{number} {text}"},
                        "locations": [{"logicalLocations": [{"name": name, "kind": "module"}]}],
                        "partialFingerprints": {"ibwireGroup/v1": group},
                    }
                    for number, rule, group, text in findings
                ],
            }
        ],
    }
    write_text(Path(path), json.dumps(document, indent=2) + "\n")


def _rule_id(rule: str) -> str:
    """The entry of the reference that a rule names, the last of several; else the section."""
    return rule.rpartition("#")[2]


def _rule_words(rule: str) -> str:
    """A rule by the words of its entry, with the section of the specification."""
    return f"{_rule_id(rule).replace('-', ' ')} ({rule.partition(';')[0]})"


def write_junit(path: str, name: str, failures: Sequence[tuple[str, str, str]]) -> None:
    """Write a run as JUnit XML: a failure for each finding, or one test that has passed.

    name: of the target. failures: number, bucket and text of each. Raises
    `OutputError`.
    """
    suite = ElementTree.Element(
        "testsuite",
        name="ibwire fuzz",
        tests=str(len(failures) or 1),
        failures=str(len(failures)),
        errors="0",
    )
    if not failures:
        ElementTree.SubElement(suite, "testcase", classname=_clean(name), name="nothing found")
    for number, bucket, text in failures:
        case = ElementTree.SubElement(
            suite, "testcase", classname=_clean(name), name=_clean(f"{number} {bucket}")
        )
        failure = ElementTree.SubElement(case, "failure", message=_clean(bucket))
        failure.text = _clean(text)
    write_xml(path, suite)


def _ways(case: Case, tested: Target, directory: Path, reason: str) -> Iterator[str]:
    """How to see it again."""
    yield ""
    yield f"  again     ibwire fuzz replay {quote(str(directory))} {tested.options}"
    options = f" --profile {case.profile}" * (case.profile != "spec")
    options += f" {tested.place}" * bool(tested.place)
    if reason:
        yield f"  no script of what is expected: {reason}"
    else:
        yield f"  script    ibwire drill {quote(str(directory / SCRIPT))}{options}"
    for name, value in case.choices.items():
        if name == UNCHECKED:
            yield f"  unchecked {value}: not compared, because another finding reports it"
            continue
        yield f"  choice    the reference makes this one of the target, too: {name} = {value}"
    if any(isinstance(step, Connect) for step in case.steps):
        yield "  note      it takes several connections with the same device"


def _clean(text: str) -> str:
    """The text without the characters that XML does not allow."""
    return re.sub(r"[^\t\n\x20-\uD7FF\uE000-\uFFFD]", "?", text)
