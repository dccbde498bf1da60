"""The page of `ibwire fuzz --html`: ladders of findings by rule, and no markup from a run."""

import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

from click.testing import CliRunner

from ibwire.cli import main
from ibwire.fuzz.case import Case, Connection, Packet, Post, Receive
from ibwire.fuzz.judge.findings import Finding
from ibwire.fuzz.recording import record
from ibwire.fuzz.targets.emulator import target
from ibwire.rc.work import WROpcode
from ibwire.report.fuzz_page import MAXIMUM_ROWS, brief_part, finding_part, fuzz_page
from ibwire_layers.opcodes import OpCode

EVIL = "<script>alert(1)</script>\"'&\x1b[2J\udcff"

CASE = Case(
    Connection(timeout=0),
    (
        Post(int(WROpcode.RDMA_WRITE), 8),
        Packet(int(OpCode.RC_RDMA_READ_RESPONSE_ONLY), psn=("una", 0), length=8, why=EVIL),
    ),
)
"""A READ response to a WRITE: BAD_RESP_ERR, but LOC_QP_OP_ERR on rdmavt (qib_rc.c)."""


class Tags(HTMLParser):
    """The elements of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.found.add(tag)


def part(case: Case = CASE) -> str:
    recording = record(case, target("emu:rdmavt"))
    assert recording.difference is not None
    finding = Finding(
        number=1,
        bucket=EVIL,
        rule="",
        case=case,
        original=case,
        packet=5,
        difference=recording.difference,
    )
    return finding_part(finding, recording)


def rows(text: str) -> list[tuple[str, str, str]]:
    """Kind, step and text of each row of the ladder."""
    return re.findall(r'<li class="([a-z ]+)"><i>(\d+)</i><span>(.*)</span></li>', text)


def test_ladder_has_actions_and_packets_of_both_sides_in_order() -> None:
    found = rows(part())

    assert [(kind, step, text.split()[0]) for kind, step, text in found] == [
        ("own", "1", "post"),
        ("out", "1", "WRITE_ONLY"),
        ("in differs", "2", "READ_RESPONSE_ONLY"),
    ]


def test_a_packet_says_each_field_that_its_case_sets() -> None:
    fields = {"bth.pkey": 0x1234, "bth.mig_req": 0, "reth.rkey": 7, "reth.dma_len": 8}
    read = Packet(int(OpCode.RC_RDMA_READ_REQUEST), fields=fields)

    text = next(text for kind, _, text in rows(part(Case(CASE.connection, (read, *CASE.steps)))))

    assert "bth.pkey=0x1234" in text
    assert "bth.mig_req=0" in text
    assert "rkey=0x7" in text


def test_expected_stands_beside_got() -> None:
    text = part()

    assert "<b>expected</b><ul><li>send wr_id=0 BAD_RESP_ERR" in text
    assert "<b>got</b><ul><li>send wr_id=0 LOC_QP_OP_ERR" in text


def test_no_text_of_a_run_becomes_markup() -> None:
    parts = [part(), brief_part("F0002", EVIL, EVIL)]
    page = "".join(fuzz_page(EVIL, [EVIL], {EVIL: parts}))
    plain = "".join(fuzz_page("emu", [""], {"": [part(replace(CASE, steps=CASE.steps))]}))

    page.encode()
    assert "script" not in Tags(page).found
    assert Tags(page).found == Tags(plain).found
    assert page.count("&lt;script&gt;alert(1)&lt;/script&gt;&quot;&#x27;&amp;\\x1b[2J\\xff") == 8


def test_page_loads_nothing() -> None:
    page = "".join(fuzz_page("emu", ["line"], {}))

    assert "default-src 'none'" in page
    assert not re.search(r"src=|href=|url\(|@import", page)


def test_long_case_shows_its_last_rows() -> None:
    other = Post(int(WROpcode.RDMA_WRITE), 16)
    case = replace(CASE, steps=(*CASE.steps[:1], other) * 20 + CASE.steps)
    text = part(case)

    assert len(rows(text)) == MAXIMUM_ROWS
    assert rows(text)[-1][1] == "42"
    assert ">... 23 rows before<" in text  # 41 posts with a packet each, and the response


def test_equal_steps_are_folded_so_that_the_first_steps_are_shown() -> None:
    other = Post(int(WROpcode.RDMA_WRITE), 16)
    case = replace(CASE, steps=(other, *CASE.steps[:1] * 40, *CASE.steps[1:]))

    assert [(kind, step, text.split("psn")[0]) for kind, step, text in rows(part(case))][:7] == [
        ("own", "1", "post RDMA_WRITE len=16"),
        ("out", "1", "WRITE_ONLY "),
        ("own", "2", "post RDMA_WRITE len=8"),
        ("out", "2", "WRITE_ONLY "),
        ("own", "3", "... 38 steps like it"),
        ("own", "41", "post RDMA_WRITE len=8"),
        ("out", "41", "WRITE_ONLY "),
    ]


def test_equal_steps_with_another_answer_are_not_folded_together() -> None:
    sends = (Packet(int(OpCode.RC_SEND_ONLY)),) * 20  # to four receive requests
    shown = rows(part(replace(CASE, steps=sends + CASE.steps)))

    refused = [step for kind, step, text in shown if kind == "out" and "RNR NAK" in text]
    assert refused[0] == "5"


def test_equal_steps_without_packets_are_one_row() -> None:
    case = replace(CASE, steps=(*[Receive(1)] * 9, *CASE.steps))

    assert rows(part(case))[0] == ("own", "1", "receive x1   9 times")


def test_command_groups_findings_by_rule(tmp_path: Path) -> None:
    out = tmp_path / "page.html"
    arguments = ["fuzz", "--target", "emu:rdmavt", "--budget", "1", "--html", str(out)]
    result = CliRunner().invoke(main, arguments)
    text = out.read_text(encoding="utf-8")

    assert result.exit_code == 1
    printed = re.findall(r"^F\d{4}  (.*)\n  rule      (.*)$", result.stdout, re.MULTILINE)
    rules = list(dict.fromkeys(rule for _, rule in printed))
    assert len(rules) < len(printed)  # two findings of rdmavt are about responses that do not fit
    assert re.findall("<h2>(.*)</h2>", text) == rules
    assert len(re.findall("<h3>F", text)) == len(printed)
