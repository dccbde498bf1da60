"""What a run leaves behind: packets as pcapng, results as JUnit XML."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

from ibwire.base.errors import ScriptError
from ibwire.capture import open_capture
from ibwire.drill import Verdict, parse, run
from ibwire.drill.files import write_capture, write_junit

TEXT = """// A rule & <more>.
cases what, number {
  right, psn
  wrong, psn+1
}
  +1us < WRITE_ONLY psn ack len=8
       > ACK $number
"""


def verdicts() -> list[Verdict]:
    script = parse(TEXT.encode(), "some/script.drill")
    return [run(script, case) for case in script.cases]


def test_packets_have_the_times_of_the_run_and_comments(tmp_path: Path) -> None:
    path = write_capture(verdicts()[1], tmp_path / "new" / "directory", set())

    assert path == tmp_path / "new" / "directory" / "script.wrong.pcapng"
    with open_capture(path) as reader:
        records = list(reader.records())
    assert [(record.time_ns, record.comments) for record in records] == [
        (1000, ("line 6 of the script",)),
        (
            1000,
            (
                "sent by the device; no line of the script expects it",
                "line 7 failed: expected ACKNOWLEDGE psn=psn+1 (101), "
                "got ACKNOWLEDGE psn (100) ACK credits=0 msn=1 at 1.000 us",
            ),
        ),
    ]


def test_the_first_unexpected_packet_has_a_comment_with_the_failure(tmp_path: Path) -> None:
    text = "post_send RDMA_WRITE len=8\n> any\npost_send RDMA_WRITE len=512\n+1us silence"
    script = parse(text.encode(), "s.drill")

    path = write_capture(run(script, script.cases[0]), tmp_path, set())

    with open_capture(path) as reader:
        comments = [record.comments for record in reader.records()]
    nobody = "sent by the device; no line of the script expects it"
    assert comments[0] == ("sent by the device, as line 2 of the script expects",)
    assert comments[1][0] == nobody
    assert comments[1][1].startswith("line 4 failed: expected silence until 1.000 us, got WRITE_")
    assert comments[2] == (nobody,)


def test_without_an_unexpected_packet_the_last_one_has_the_failure(tmp_path: Path) -> None:
    script = parse(b"+1us < WRITE_ONLY psn ack\n> ACK psn\n> ACK psn", "s.drill")

    path = write_capture(run(script, script.cases[0]), tmp_path, set())

    with open_capture(path) as reader:
        first, last = (record.comments for record in reader.records())
    assert len(first) == 1
    assert last[1] == "line 3 failed: expected ACKNOWLEDGE psn=psn (100) by 1.000 us, got nothing"


def test_captures_of_one_name_stand_beside_each_other_and_replace_those_of_former_runs(
    tmp_path: Path,
) -> None:
    first, second = verdicts()
    for _ in range(2):
        taken: set[Path] = set()
        names = [write_capture(each, tmp_path, taken).name for each in (first, second, second)]
        assert names == ["script.right.pcapng", "script.wrong.pcapng", "script.wrong-2.pcapng"]

    assert len(list(tmp_path.iterdir())) == 3


def test_junit_has_a_case_for_each_and_the_report_of_what_failed(tmp_path: Path) -> None:
    path = tmp_path / "out.xml"
    error = ScriptError("other.drill", 3, 4, "bad\x00character")

    write_junit(str(path), verdicts(), [error])

    suite = ElementTree.parse(path).getroot()
    assert suite.attrib == {
        "name": "ibwire drill",
        "tests": "3",
        "failures": "1",
        "errors": "1",
        "skipped": "0",
    }
    cases = [(case.get("classname"), case.get("name")) for case in suite]
    assert cases == [("some/script", "right"), ("some/script", "wrong"), ("other", "other")]
    failure = suite[1].find("failure")
    assert failure is not None
    assert failure.text is not None
    assert "rule      A rule & <more>." in failure.text
    broken = suite[2].find("error")
    assert broken is not None
    assert broken.get("message") == "other.drill:3:4: bad?character"
