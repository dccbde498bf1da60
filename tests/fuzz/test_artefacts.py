"""What a run leaves in its directory: files that show a finding without the run."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from random import Random
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from examples import usual
from fuzz.cases import json_values, places
from ibwire.base.errors import DecodeError, OutputError
from ibwire.base.units import ack_timeout
from ibwire.capture import open_capture
from ibwire.drill import load, run
from ibwire.drill.language.tokens import MAXIMUM_LINE
from ibwire.fuzz import artefacts
from ibwire.fuzz.artefacts import checked_script, save, write_junit
from ibwire.fuzz.campaign import Campaign
from ibwire.fuzz.case import (
    Case,
    CaseError,
    Connect,
    Connection,
    Packet,
    Post,
    Role,
    Step,
    Wait,
)
from ibwire.fuzz.judge.comparison import Difference, Kind
from ibwire.fuzz.judge.findings import Finding
from ibwire.fuzz.recording import record
from ibwire.fuzz.run_file import Session, Settings
from ibwire.fuzz.run_file import load as load_session
from ibwire.fuzz.saved import case_text, says
from ibwire.fuzz.targets.emulated_device import Emulation
from ibwire.fuzz.targets.emulator import target
from ibwire.fuzz.vocabulary.queue_pair.script import script
from ibwire.fuzz.vocabulary.vocabularies import QUEUE_PAIR, queue_pair_generators
from ibwire.rc.work import WROpcode
from ibwire_layers.opcodes import OpCode
from ibwire_layers.packet import CrcStatus
from ibwire_layers.packet import Packet as WholePacket

RXE = target("emu:rxe")


@pytest.fixture(scope="module")
def done() -> Campaign:
    """A run against rxe; in `make test` one that ends after six findings, of about forty."""
    found = Campaign(RXE.testbed(Role.BOTH), queue_pair_generators(1, Role.BOTH), origin="seed 1, ")
    assert list(islice(found.run(300), usual(100, quick=6)))
    return found


@pytest.fixture(scope="module")
def saved(
    done: Campaign, tmp_path_factory: pytest.TempPathFactory
) -> Sequence[tuple[Finding, Path]]:
    """Findings of a run against rxe, each with its directory."""
    top = tmp_path_factory.mktemp("run")
    found = [(finding, top / f"F{finding.number:04}") for finding in done.report.findings]
    for finding, directory in found:
        save(finding, directory, RXE)
    return found


def test_cases_are_there_minimised_and_as_found(saved: Sequence[tuple[Finding, Path]]) -> None:
    for finding, directory in saved:
        assert says((directory / "case.drill").read_text("utf-8"), finding.case)
        assert says((directory / "original.drill").read_text("utf-8"), finding.original)
        assert finding.case.packets <= finding.original.packets


def test_every_packet_has_its_purpose(saved: Sequence[tuple[Finding, Path]]) -> None:
    for finding, directory in saved:
        with open_capture(str(directory / "case.pcapng")) as capture:
            records = list(capture.records())

        sent = [each for each in records if any("sent by the device" in c for c in each.comments)]
        assert len(records) - len(sent) == finding.case.packets
        assert all(each.comments for each in records)
        if records:
            assert any(comment.startswith("expected: ") for comment in records[-1].comments)
            assert any(comment.startswith("got: ") for comment in records[-1].comments)


def test_packets_that_a_case_does_not_damage_are_right(
    saved: Sequence[tuple[Finding, Path]],
) -> None:
    for _, directory in saved:
        with open_capture(str(directory / "case.pcapng")) as capture:
            for each in capture.records():
                try:
                    packet = WholePacket.parse(bytes(each.data))
                except DecodeError:
                    continue
                damaged = any("icrc=" in comment for comment in each.comments)
                assert damaged or packet.icrc_status() is CrcStatus.GOOD


def test_a_script_passes_on_the_emulator_and_fails_on_the_target(
    saved: Sequence[tuple[Finding, Path]],
) -> None:
    scripts = [directory / "case.drill" for _, directory in saved]
    scripts = [path for path in scripts if "anything" not in path.read_text("utf-8")]
    assert len(scripts) >= len(saved) / 2

    for path in scripts:
        right, wrong = load(path, "spec"), load(path, "rxe")
        assert run(right, right.cases[0], "spec").passed
        assert run(wrong, wrong.cases[0], "rxe").failure is not None


def test_script_has_the_rule_and_a_report_explains_a_missing_script(
    saved: Sequence[tuple[Finding, Path]],
) -> None:
    for finding, directory in saved:
        report = (directory / "report.txt").read_text("utf-8")
        path = directory / "case.drill"
        assert finding.rule in report
        has_checks = "anything" not in path.read_text("utf-8")
        assert ("  no script of what is expected: " in report) is not has_checks
        if has_checks:
            assert load(path).section == finding.rule
            assert finding.bucket in load(path).rule


def test_several_connections_are_one_script(done: Campaign) -> None:
    finding = done.report.findings[0]
    case = finding.case.with_steps([Connect(Connection(rq_psn=7)), *finding.case.steps])

    text = script(case, finding.difference, "Any.")

    assert "reconnect mtu=256 rq_psn=7 " in text
    assert says(text, case)
    assert target("emu:spec").fulfils(text)
    assert not RXE.fulfils(text)


def test_connections_of_any_shape_are_one_script() -> None:
    """Other types, queue pairs, P_Keys, alternate paths and receive requests, and back again."""
    send, uc_send = int(OpCode.RC_SEND_ONLY), int(OpCode.UC_SEND_ONLY)
    steps = [
        Packet(send, length=8, pair=1),
        Connect(Connection(service="UC", pairs=3, pkey_index=2, sges=2, room=64)),
        Packet(uc_send, length=64, pair=2),
        Connect(Connection(service="UD", mtu=1024, wrong_lkey=1)),
        Packet(int(OpCode.UD_SEND_ONLY), length=8),
        Connect(Connection(pairs=2, rearmed=1, retry_cnt=1, receives=0)),
        Packet(send, length=8, pair=1),
    ]
    case = Case(Connection(pairs=2), tuple(steps))

    text = case_text(case)

    assert says(text, case)
    assert "  qp qp3 " in text
    assert "  qp2 modify state=RESET" in text
    assert target("emu:spec").fulfils(text)


def test_a_difference_after_connections_of_other_shapes_is_in_the_script() -> None:
    """rxe NAKs the gap again after its RNR NAK; it is not the first connection of the device."""
    send = int(OpCode.RC_SEND_ONLY)
    last = Connection(receives=0, timeout=0, pairs=2)
    steps = (
        Packet(int(OpCode.UC_SEND_ONLY), length=8),
        Connect(last),
        Packet(send, pair=1),
        Packet(send, ("expected", 1), pair=1),
    )
    case = Case(Connection(service="UC", sges=2), steps)
    case = replace(case, choices={"live_credits": "False", "mig_req": "0"})
    difference = record(case, RXE).difference
    assert difference is not None
    text, reason = checked_script(Finding(1, "Any.", case, case, difference, 1, "Any."), RXE)

    assert not reason
    assert says(text, case)
    assert text.rstrip().endswith("qp2 < SEND_ONLY psn+1 ack\n  silence")


def test_a_long_answer_that_is_no_piece_of_the_pattern_is_in_the_script_by_its_length() -> None:
    """In hexadecimal it would be longer than a line of a script."""
    odd = Packet(int(OpCode.RC_RDMA_WRITE_ONLY), length=8, at=99)
    read = Packet(int(OpCode.RC_RDMA_READ_REQUEST), fields={"reth.dma_len": 1024})
    last = Packet(int(OpCode.RC_SEND_ONLY), length=8)
    case = Case(Connection(mtu=1024, receives=0), (odd, read, last))
    difference = Difference(2, Kind.ANSWER, [], [])

    text = script(case, difference, "Any.")

    assert "> READ_RESPONSE_ONLY psn+1 aeth.msn=2 len=1024\n" in text
    assert max(map(len, text.split("\n"))) <= MAXIMUM_LINE
    assert says(text, case)
    assert target("emu:spec").fulfils(text)


@pytest.mark.slow
def test_cases_one_after_the_other_are_one_script() -> None:
    """Whatever their connections are; a case that ends with a held packet is not one, and a shared
    receive queue and XRC are those of one connection.
    """
    testbed = target("emu:spec").testbed(Role.BOTH)
    found = Campaign(testbed, queue_pair_generators(3, Role.BOTH), minimises=False)
    assert not list(found.run(2000))
    cases = [
        each
        for each in testbed.history
        if not getattr(each.steps[-1], "held", False)
        and not each.connection.srq
        and not each.connection.is_xrc
    ]
    assert len({each.connection.service for each in cases}) == 3

    rng = Random(1)
    for _ in range(12):
        first, second, third = rng.sample(cases, 3)
        again = [Connect(second.connection), *second.steps]
        again += [Connect(third.connection), *third.steps]
        case = first.with_steps([*first.steps, *again])
        text = case_text(case)
        assert not text.startswith("{")
        assert target("emu:spec").fulfils(text)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2])
def test_every_case_is_read_from_its_script_as_it_was(seed: int) -> None:
    """Whatever the device sends, completes and raises is the same."""
    make = queue_pair_generators(seed, Role.BOTH)
    found = Campaign(RXE.testbed(Role.BOTH), make, minimises=False)
    findings = list(found.run(100))

    assert findings
    for case in (each.original for each in findings):
        assert says(case_text(case), case)


def test_a_step_that_is_missing_in_a_script_is_noticed() -> None:
    """Each of the two packets is acknowledged."""
    case = Case(Connection(), (Packet(int(OpCode.RC_SEND_ONLY)),) * 2)

    assert says(case_text(case), case)
    assert not says(case_text(case.with_steps(case.steps[:1])), case)


ACK = int(OpCode.RC_ACKNOWLEDGE)


@pytest.mark.parametrize(
    ("steps", "line"),
    [
        # The ACK timeout of code 14 is 67.1 ms (IBA 9.7.6.1.3), and that of rxe 64 ms.
        (
            (Post(int(WROpcode.SEND), 8), Wait(ack_timeout(14) or 0)),
            "+67108864ns > SEND_ONLY psn len=8 at=",
        ),
        # With no credits a device sends one packet, rxe all of them (IBA 9.7.7.2.5).
        (
            (Post(int(WROpcode.SEND), 512), Packet(ACK, ("una", 1), fields={"aeth.syndrome": 88})),
            ">? SEND_LAST psn+1 len=256 at=",
        ),
    ],
)
def test_what_depends_on_time_or_on_a_choice_is_in_a_script(
    steps: tuple[Step, ...], line: str
) -> None:
    case = Case(steps=steps, choices={"live_credits": "False", "mig_req": "0"})
    if isinstance(steps[-1], Wait):
        case = replace(case, choices={"counts_identification": "True", "mig_req": "0"})
    difference = record(case, RXE).difference
    assert difference is not None
    text, reason = checked_script(Finding(1, "Any.", case, case, difference, 1, "Any."), RXE)

    assert not reason
    assert line in text


@pytest.mark.slow
def test_a_fault_that_no_packet_shows_is_in_the_script(tmp_path: Path) -> None:
    """Memory that is not as it should be is read after the last packet."""
    tested = target("py:mutants.target:odd-write-across-a-page")
    run_ = Campaign(tested.testbed(Role.BOTH), queue_pair_generators(0, Role.RESPONDER))
    finding = next(iter(run_.run(20_000)))
    _, reason = save(finding, tmp_path / "F0001", tested)

    assert not reason
    assert finding.difference.kind == Kind.MEMORY
    assert "  memory va+" in (tmp_path / "F0001" / "case.drill").read_text("utf-8")


def test_recording_shows_where_both_begin_to_differ() -> None:
    read = Packet(
        int(OpCode.RC_RDMA_READ_REQUEST), fields={"reth.dma_len": 1024, "reth.va": ("va", 0)}
    )
    middle = Packet(read.opcode, ("expected", -2), fields={"reth.va": ("va", 512)})
    case = Case(steps=(read, Wait(10**6), middle), choices=_choices_of_rxe())
    recording = record(case, RXE)

    assert recording.difference is not None
    assert [entry.way for entry in recording.entries].count("<") == 2
    assert "READ_RESPONSE_ONLY" in recording.expected[-1]
    assert "READ_RESPONSE_LAST" in recording.got[-1]


def _choices_of_rxe() -> dict[str, str]:
    return {"live_credits": "False", "mig_req": "0", "counts_identification": "True"}


def test_junit_has_a_failure_for_each_finding(tmp_path: Path) -> None:
    path = tmp_path / "out.xml"
    write_junit(str(path), "emu:rxe", [("F0001", "one \x00", "text"), ("F0002", "two", "text")])
    suite = ElementTree.parse(path).getroot()

    assert (suite.get("tests"), suite.get("failures")) == ("2", "2")
    assert [case.get("name") for case in suite] == ["F0001 one ?", "F0002 two"]
    assert suite.find("testcase/failure").text == "text"


def test_junit_of_a_run_without_findings_has_passed(tmp_path: Path) -> None:
    path = tmp_path / "out.xml"
    write_junit(str(path), "emu", [])
    suite = ElementTree.parse(path).getroot()

    assert (suite.get("tests"), suite.get("failures")) == ("1", "0")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full")
def test_a_file_that_cannot_be_written_is_named() -> None:
    """Also when it could be opened: a disk that is full has no name by itself."""
    with pytest.raises(OutputError, match="no space left") as caught:
        write_junit("/dev/full", "emu", [])

    assert caught.value.path == "/dev/full"


def test_the_directory_of_a_run_is_not_made_again(done: Campaign, tmp_path: Path) -> None:
    """The directory was removed, with its contents."""
    with pytest.raises(OutputError) as caught:
        save(done.report.findings[0], tmp_path / "gone" / "F0001", RXE)
    with pytest.raises(OutputError):
        session_of(done).save(tmp_path / "gone", done)

    assert caught.value.path == str(tmp_path / "gone" / "F0001")
    assert not (tmp_path / "gone").exists()


# run.json.


def session_of(done: Campaign) -> Session:
    session = Session.new(Settings(target="emu:rxe", ops=("psn", "dup"), seed=1))
    for finding in done.report.findings:
        session.add(finding, has_script=True)
    return session


def test_a_run_is_read_as_it_was_written(done: Campaign, tmp_path: Path) -> None:
    session = session_of(done)
    session.save(tmp_path, done)
    read = load_session(tmp_path)

    assert (read.settings, read.known, read.next_case) == (
        session.settings,
        session.known,
        done.next_case,
    )
    report = done.report
    assert (read.report.packets, read.report.cases) == (report.packets, report.cases)
    assert (read.report.seen, read.report.taken) == (report.seen, report.taken)
    assert read.report.coverage.counts == report.coverage.counts
    assert read.report.coverage.cells == report.coverage.cells


def test_findings_without_a_group_take_no_others_in(done: Campaign, tmp_path: Path) -> None:
    session_of(done).save(tmp_path, done)
    file = tmp_path / "run.json"
    written = json.loads(file.read_text())
    written["findings"][0]["group"] = ""
    file.write_text(json.dumps(written))

    assert "" not in load_session(tmp_path).report.groups


@pytest.mark.parametrize(
    ("member", "value", "reason"),
    [
        ("role", "king", "role: 'king', not one of responder, requester, both, cm"),
        ("ops", ["psn", "all"], "ops: 'all', not one of "),
        ("seed", -1, "seed: -1, not a number from 0"),
        ("packets", "7", "packets: '7', not a number from 0"),
        ("taken", [], "taken: not an object"),
        ("findings", [7], "findings[0]: not an object"),
        ("findings", [{"bucket": 1}], "findings[0].bucket: 1, not a text"),
        ("coverage", [[1, 2]], "coverage[0]: not state, opcode, answer and count"),
        ("coverage", [["HOME", 1, [], 1]], "coverage[0][0]: 'HOME', not one of IDLE, "),
        ("coverage", [["IDLE", 1, [1, 2, 3], 1]], "coverage[0][2]: not an opcode and a syndrome"),
        ("cells", [[1, 2]], "cells[0]: not an opcode, 6 values and a count"),
        ("cells", [[4, 0, 9, 0, 0, 0, 0, 1]], "cells[0][2]: 9, not a number from 0 to 4"),
    ],
)
def test_a_damaged_run_is_refused_with_the_place(
    done: Campaign, tmp_path: Path, member: str, value: object, reason: str
) -> None:
    session_of(done).save(tmp_path, done)
    path = tmp_path / "run.json"
    document = json.loads(path.read_text())
    path.write_text(json.dumps({**document, member: value}))

    with pytest.raises(CaseError) as caught:
        load_session(tmp_path)

    assert str(caught.value).startswith(f"{path}: {reason}")


def test_a_run_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CaseError, match=r": no run\.json; expected the directory of a run"):
        load_session(tmp_path)


@given(json_values, st.data())
def test_any_damage_is_refused_or_read(
    done: Campaign, tmp_path_factory: pytest.TempPathFactory, value: object, data: st.DataObject
) -> None:
    directory = tmp_path_factory.mktemp("damaged", numbered=True)
    session_of(done).save(directory, done)
    path = directory / "run.json"
    document = json.loads(path.read_text())
    holder, key = data.draw(st.sampled_from(places(document)))
    holder[key] = value
    path.write_text(json.dumps(document))

    try:
        session = load_session(directory)
    except CaseError:
        return

    assert session.report.coverage.tried()


class Talkative(Emulation):
    """Crashes with a lot to say."""

    def receive(self, frame: bytes) -> None:
        raise RuntimeError("\n\x00é" * 100_000)


def test_a_crash_with_a_lot_to_say_can_be_kept(tmp_path: Path) -> None:
    tested = replace(target("emu"), devices={QUEUE_PAIR.name: Talkative})
    finding = next(
        iter(Campaign(tested.testbed(Role.BOTH), queue_pair_generators(1, Role.RESPONDER)).run(100))
    )
    save(finding, tmp_path / "F0001", tested)

    with open_capture(str(tmp_path / "F0001" / "case.pcapng")) as capture:
        comments = [comment for each in capture.records() for comment in each.comments]
    assert max(map(len, comments)) < 1000
    assert finding.bucket.isprintable()
    assert len(finding.bucket) < 1000


def test_a_script_that_the_emulator_fails_is_left_out_with_the_line(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    text = "  qp\n  < SEND_ONLY psn ack\n  silence\n"
    monkeypatch.setattr(artefacts, "script", lambda *arguments: text)
    case = Case(Connection(), (Packet(int(OpCode.RC_SEND_ONLY)),))
    difference = Difference(0, Kind.ANSWER, [], [])

    found, reason = checked_script(Finding(1, "Any.", case, case, difference, 1, "Any."), RXE)

    assert not found
    assert "a script of this case fails on the emulator, too: line 3: silence: got " in reason
