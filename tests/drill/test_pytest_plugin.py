"""The plug-in collects scripts: each case is a test, and a failure is the report."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from drill.pytest_run import ROOT, pytest_in
from ibwire.capture import open_capture
from ibwire_layers.packet import Packet

FOREIGN = {
    "json.view.drill": '{\n  "name" : "sales",\n  "sql" : "SELECT qp FROM t"\n}\n',
    "plain.drill": "M48\nMETRIC,TZ\nT1C0.800\n%\nX10Y20\n",
    "page.drill": "<html>\n<body> +1us </body>\n</html>\n",
    "empty.drill": "",
}
"""What other programs keep in files of this name: views of Apache Drill are JSON."""


@pytest.mark.slow
def test_each_case_is_a_test_and_a_failure_is_the_report(tmp_path: Path) -> None:
    (tmp_path / "two.drill").write_text(
        "cases what, number {\n right, psn\n wrong, psn+1\n}\n"
        "+1us < WRITE_ONLY psn ack len=8\n> ACK $number\n"
    )

    result = pytest_in(tmp_path, "-v", "--ibwire-captures", "out")

    assert result.returncode == 1
    assert "two.drill::right PASSED" in result.stdout
    assert "two.drill::wrong FAILED" in result.stdout
    assert "  expected  ACKNOWLEDGE psn=psn+1 (101)" in result.stdout
    assert "packets in out/two.wrong.pcapng" in result.stdout
    assert "Traceback" not in result.stdout
    with open_capture(tmp_path / "out" / "two.wrong.pcapng") as capture:
        assert len(list(capture.records())) == 2


@pytest.mark.slow
def test_tests_of_the_same_name_have_captures_of_their_own(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "same.drill").write_text("+1us < WRITE_ONLY psn ack\n> ACK psn+1\n")
    (tmp_path / "test_names.py").write_text(
        "import pytest\n"
        "@pytest.mark.parametrize('name', ['x/y', 'x y'])\n"
        "def test_(ibwire_peer, name):\n"
        "    ibwire_peer.receive(b'junk')\n"
        "    raise AssertionError\n"
    )

    pytest_in(tmp_path, "--ibwire-captures", "out")

    assert {path.name for path in (tmp_path / "out").iterdir()} == {
        "same.pcapng",
        "same-2.pcapng",
        "test_names.py-test_-x-y-.pcapng",
        "test_names.py-test_-x-y--2.pcapng",
    }


SCRIPTS = """
def test_fails(ibwire_drill):
    verdicts = ibwire_drill(
        "cases what, number {\\n right, psn\\n wrong, psn+1\\n}\\n"
        "+1us < WRITE_ONLY psn ack len=8\\n> ACK $number"
    )
    assert all(verdict.passed for verdict in verdicts)

def test_knows(ibwire_drill):
    (verdict,) = ibwire_drill("> ACK psn")
    assert verdict.failure.got == "nothing"
"""


@pytest.mark.slow
def test_a_test_that_fails_shows_what_its_scripts_did_not_have_fulfilled(tmp_path: Path) -> None:
    (tmp_path / "test_scripts.py").write_text(SCRIPTS)

    result = pytest_in(tmp_path, "--ibwire-captures", "out")

    assert "1 failed, 1 passed" in result.stdout
    assert result.stdout.count("report of ibwire_drill") == 1
    assert "  expected  ACKNOWLEDGE psn=psn+1 (101)" in result.stdout
    (path,) = (tmp_path / "out").iterdir()
    assert path.name == "test_scripts.py-test_fails.wrong.pcapng"
    with open_capture(path) as capture:
        assert len(list(capture.records())) == 2


@pytest.mark.slow
def test_captures_that_cannot_be_written_do_not_end_the_tests(tmp_path: Path) -> None:
    (tmp_path / "out").write_text("in the way")
    (tmp_path / "wrong.drill").write_text("+1us < WRITE_ONLY psn ack len=8\n> ACK psn msn=7\n")
    (tmp_path / "test_mine.py").write_text(
        "def test_script(ibwire_drill):\n"
        "    assert ibwire_drill('+1us < WRITE_ONLY psn ack len=8')[0].passed\n"
        "def test_pair(ibwire_pair):\n"
        "    ibwire_pair.a.post_send(length=600)\n"
        "    ibwire_pair.run()\n"
        "    raise AssertionError\n"
    )

    result = pytest_in(tmp_path, "--ibwire-captures", "out")

    assert "3 failed" in result.stdout
    assert result.stdout.count("no file: ") == 3


@pytest.mark.slow
def test_a_script_that_cannot_be_read_is_an_error_with_its_place(tmp_path: Path) -> None:
    (tmp_path / "bad.drill").write_text("state NOWHERE\n")

    result = pytest_in(tmp_path)

    assert result.returncode == 2
    assert "bad.drill:1:7: NOWHERE is not a state" in result.stdout


@pytest.mark.slow
def test_the_profile_is_an_option_for_scripts_and_for_fixtures(tmp_path: Path) -> None:
    (tmp_path / "silent.drill").write_text("+1us < OPCODE_0x1F psn\n+1us silence\n")
    (tmp_path / "test_mine.py").write_text(
        "def test_mine(ibwire_drill):\n"
        "    (verdict,) = ibwire_drill('+1us < OPCODE_0x1F psn\\n+1us silence')\n"
        "    assert verdict.passed\n"
        "def test_pair(ibwire_pair, ibwire_peer):\n"
        "    names = {each.device.profile.name for each in (ibwire_pair.b, ibwire_peer)}\n"
        "    assert names == {'rxe'}\n"
    )

    assert "3 passed" in pytest_in(tmp_path, "--ibwire-profile", "rxe").stdout
    assert "3 failed" in pytest_in(tmp_path).stdout
    refused = pytest_in(tmp_path, "--ibwire-profile", "rex")
    assert "--ibwire-profile: 'rex' is not one of spec, " in refused.stderr


@pytest.mark.slow
def test_files_of_other_programs_are_passed_over_unless_they_are_named(tmp_path: Path) -> None:
    for name, text in FOREIGN.items():
        (tmp_path / name).write_text(text)

    assert "no tests ran" in pytest_in(tmp_path).stdout
    assert "json.view.drill:2:10: " in pytest_in(tmp_path, "json.view.drill").stdout


def test_each_shipped_script_is_seen_to_be_one() -> None:
    from ibwire.pytest_plugin import _is_script

    scripts = sorted((ROOT / "tests" / "conformance").rglob("*.drill"))

    assert len(scripts) > 80
    assert [path for path in scripts if not _is_script(path)] == []


def test_pytest_without_scripts_loads_nothing_of_ibwire_but_the_plug_in() -> None:
    """It is loaded in every run of pytest on a machine that has ibwire."""
    script = "import pytest, ibwire.pytest_plugin, sys; print(*sys.modules)"

    result = subprocess.run(
        [sys.executable, "-c", script],
        env={"PYTHONPATH": f"{ROOT}:{ROOT / 'layers'}", "PATH": ""},
        capture_output=True,
        text=True,
        check=True,
    )

    loaded = {name for name in result.stdout.split() if name.startswith("ibwire")}
    assert loaded == {"ibwire", "ibwire.pytest_plugin"}
    assert not {"numpy", "hypothesis"} & set(result.stdout.split())


FAILING = """
import pytest

pytestmark = pytest.mark.ibwire_pair(mtu=256, faults={"a": [{"drop": {"nth": 2}}]})

@pytest.mark.ibwire_pair(mtu=512)
class TestMarks:
    def test_nearest_mark_wins(self, ibwire_pair):
        ibwire_pair.b.post_recv(600)
        ibwire_pair.a.post_send(length=600)
        ibwire_pair.run()
        assert [len(p.payload) for p in ibwire_pair.packets("a")] == [512, 88, 88]

@pytest.mark.parametrize("ibwire_peer", [{"link": "ib"}, {"link": "rocev1"}], indirect=True)
def test_indirect(ibwire_peer):
    assert ibwire_peer.device.link in ("ib", "rocev1")

def test_fails(ibwire_pair, ibwire_peer):
    ibwire_pair.b.post_recv(600)
    ibwire_pair.a.post_send(length=600)
    ibwire_pair.run()
    ibwire_peer.receive(b"junk")
    raise AssertionError

@pytest.mark.ibwire_peer("rxe")
def test_position(ibwire_peer): ...

@pytest.mark.ibwire_peer(colour="red")
def test_unknown(ibwire_peer): ...
"""


@pytest.mark.slow
def test_marks_parameters_and_failures_of_the_fixtures(tmp_path: Path) -> None:
    (tmp_path / "test_fixtures.py").write_text(FAILING)

    result = pytest_in(tmp_path, "--strict-markers", "--ibwire-captures", "out")

    assert "1 failed, 3 passed, 2 errors" in result.stdout
    assert "packets of ibwire_pair" in result.stdout
    assert "a sent     RC_SEND_MIDDLE psn=1 to 0x22 len=256" in result.stdout
    assert "b sent     RC_ACKNOWLEDGE psn=1 to 0x11 NAK PSN_SEQUENCE_ERROR msn=0" in result.stdout
    assert "options have names, found ('rxe',)" in result.stdout
    assert "no attribute colour" in result.stdout
    path = tmp_path / "out" / "test_fixtures.py-test_fails.pcapng"
    with open_capture(path) as capture:
        frames = [record.data for record in capture.records()]
    assert frames[-1] == b"junk"
    psns = [Packet.parse(frame).bth.psn for frame in frames[:-1]]
    assert psns.count(1) == 3  # lost, named by the NAK, and sent again


@pytest.mark.parametrize("name", ["ibwire_drill", "ibwire_pair", "ibwire_peer"])
def test_fixture_has_a_description(name: str) -> None:
    import ibwire.pytest_plugin

    text = vars(ibwire.pytest_plugin)[name].__doc__
    assert text


@pytest.mark.slow
def test_the_strategies_are_drawn_from_before_the_first_test(tmp_path: Path) -> None:
    (tmp_path / "test_draw.py").write_text(
        "import sys\n"
        "import ibwire.strategies\n"
        "strategies = sys.modules['ibwire.strategies.packets']\n"
        "drawn, original = [], strategies._bth\n"
        "def bth(*arguments, **options):\n"
        "    drawn.append(arguments)\n"
        "    return original(*arguments, **options)\n"
        "strategies._bth = bth\n"
        "def test_drawn():\n"
        "    assert drawn\n"
    )

    run = pytest_in(tmp_path)

    assert run.returncode == 0, run.stdout
