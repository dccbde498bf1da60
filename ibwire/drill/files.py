"""Files of a run: the packets of a case as pcapng, results as JUnit XML."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from xml.etree import ElementTree

from ibwire.base.errors import ScriptError
from ibwire.base.output import Output, make_directory
from ibwire.base.units import NS, Time
from ibwire.capture import PcapngWriter
from ibwire.drill.verdict import INTO, OUT_OF, CaseError, Verdict, report


def write_capture(verdict: Verdict, directory: Path, taken: set[Path], script: str = "") -> Path:
    """Write every packet of a case; returns the file, named after script and case.

    script: start of the file name, by default the name of the script.
    taken: files of this run, which are not overwritten; this one is added to it.
    Packets are in order of time. Each has a comment: the line of the script that sent or
    expected it, or that no line did. The first unexpected packet, or else the last one, also
    has the expectation that failed.
    Raises `OutputError` when it cannot be written.
    """
    make_directory(directory)
    path = free(directory / f"{_file_name(verdict, script)}.pcapng", taken)
    with Output(path) as output, PcapngWriter(output, name="drill") as writer:
        write_packets(verdict, writer)
    return path


def write_packets(verdict: Verdict, writer: PcapngWriter, start: Time = 0) -> Time:
    """Write every packet of a case with its comment, later by `start`; returns the last time."""
    packets = [entry for entry in verdict.entries if entry.frame]
    unexpected = [entry for entry in packets if not entry.is_expected]
    blamed = next(iter(unexpected or packets[-1:]), None)
    failure = verdict.failure
    last = start
    for entry in sorted(packets, key=lambda entry: entry.time):
        assert entry.frame is not None
        comments = [_comment(entry.way, entry.line)]
        if failure is not None and entry is blamed:
            comments.append(
                f"line {failure.line.number} failed: expected {failure.expected}, got {failure.got}"
            )
        last = start + entry.time
        writer.write(entry.frame, last // NS, comments=comments)
    return last


def free(path: Path, taken: set[Path]) -> Path:
    """A path that is not taken yet, which it is from then on: `x-2.pcapng` beside `x.pcapng`."""
    found, number = path, 1
    while found in taken:
        number += 1
        found = path.with_stem(f"{path.stem}-{number}")
    taken.add(found)
    return found


def write_junit(path: str, verdicts: Sequence[Verdict], errors: Sequence[ScriptError]) -> None:
    """Write results as JUnit XML: a test case for each case, an error for each bad script or case.

    Raises `OutputError`.
    """
    failed = sum(verdict.failure is not None for verdict in verdicts)
    suite = ElementTree.Element(
        "testsuite",
        name="ibwire drill",
        tests=str(len(verdicts) + len(errors)),
        failures=str(failed),
        errors=str(len(errors)),
        skipped=str(sum(bool(verdict.skipped) for verdict in verdicts)),
    )
    for verdict in verdicts:
        script = verdict.path.removesuffix(".drill")
        case = ElementTree.SubElement(
            suite, "testcase", classname=script, name=verdict.case or Path(script).name
        )
        failure = verdict.failure
        if failure is not None:
            message = f"line {failure.line.number}: expected {failure.expected}, got {failure.got}"
            element = ElementTree.SubElement(case, "failure", message=_clean(message))
            element.text = _clean(report(verdict))
        elif verdict.skipped:
            ElementTree.SubElement(case, "skipped", message=_clean(verdict.skipped))
    for error in errors:
        script = error.path.removesuffix(".drill")
        name = error.case if isinstance(error, CaseError) else ""
        case = ElementTree.SubElement(
            suite, "testcase", classname=script, name=name or Path(script).name
        )
        ElementTree.SubElement(case, "error", message=_clean(str(error)))
    write_xml(path, suite)


def write_xml(path: str, top: ElementTree.Element) -> None:
    """Write an XML document; raises `OutputError`."""
    ElementTree.indent(top)
    text = ElementTree.tostring(top, encoding="unicode")
    write_text(path, f"<?xml version='1.0' encoding='utf-8'?>\n{text}")


def write_text(path: Path | str, text: str) -> None:
    """Write a text file; raises `OutputError`."""
    with Output(path) as output:
        output.text.write(text)


def _comment(way: str, line: int | None) -> str:
    if line is None:
        done = "received" if way == INTO else "sent"
        return f"{done} by the device; no line of the script expects it"
    return {
        INTO: f"line {line} of the script",
        OUT_OF: f"sent by the device, as line {line} of the script expects",
    }[way]


def _file_name(verdict: Verdict, script: str) -> str:
    """A name of letters, digits and signs that every file system allows."""
    stem = script or Path(verdict.path).name.removesuffix(".drill")
    name = f"{stem}.{verdict.case}" if verdict.case else stem
    return re.sub(r"[^A-Za-z0-9_.+-]+", "-", name)[:120]


def _clean(text: str) -> str:
    """The text without characters that XML does not allow."""
    return re.sub(r"[^\t\n\x20-\uD7FF\uE000-\uFFFD]", "?", text)
