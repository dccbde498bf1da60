"""`ibwire drill`: what it prints, and how it ends."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from ibwire.cli import main
from ibwire.drill import Verdict, run

RIGHT = "// Right.\n+1us < WRITE_ONLY psn ack len=8\n> ACK psn\n"
WRONG = "// Wrong.\nsection IBA 9\n+1us < WRITE_ONLY psn ack len=8\n> ACK psn+1\n"


def drill(*arguments: object) -> Result:
    return CliRunner().invoke(main, ["drill", *map(str, arguments)])


@pytest.fixture
def scripts(tmp_path: Path) -> Path:
    (tmp_path / "deep").mkdir()
    (tmp_path / "right.drill").write_text(RIGHT)
    (tmp_path / "deep" / "wrong.drill").write_text(WRONG)
    (tmp_path / "notes.txt").write_text("not a script")
    return tmp_path


def test_all_passed_is_one_line_and_status_0(scripts: Path) -> None:
    result = drill(scripts / "right.drill")

    assert result.exit_code == 0
    assert result.stdout == "1 script, 1 case, profile spec: all passed\n"


def test_a_directory_is_searched_and_a_failure_is_explained(scripts: Path) -> None:
    result = drill(scripts)

    assert result.exit_code == 1
    lines = result.stdout.splitlines()
    assert lines[0] == f"FAIL  {scripts}/deep/wrong.drill:4: > ACK psn+1"
    assert lines[1] == "  expected  ACKNOWLEDGE psn=psn+1 (101)"
    assert lines[-1] == "2 scripts, 2 cases, profile spec: 1 failed"


def test_a_script_named_twice_runs_once(scripts: Path) -> None:
    result = drill(scripts / "right.drill", scripts / "right.drill")

    assert result.stdout.startswith("1 script, 1 case")


def test_json_has_an_object_a_case_and_one_for_the_run(scripts: Path) -> None:
    first, second, last = map(json.loads, drill(scripts, "--json").stdout.splitlines())

    assert (first["passed"], first["failure"]["line"], first["section"]) == (False, 4, "IBA 9")
    assert (second["passed"], second["failure"], second["rule"]) == (True, None, "Right.")
    assert last == {
        "kind": "run",
        "profile": "spec",
        "scripts": 2,
        "cases": 2,
        "failed": 1,
        "skipped": 0,
        "unreadable": 0,
        "errors": 0,
        "lost": None,
        "deaths": 0,
    }


def test_excluded_cases_are_left_out(scripts: Path) -> None:
    rest = drill(scripts, "--exclude", "wrong.drill")
    nothing = drill(scripts, "--exclude", "wrong.drill", "--exclude", "right")

    assert (rest.exit_code, rest.stdout) == (
        0,
        "2 scripts, 1 case, profile spec: all passed\n",
    )
    assert nothing.exit_code == 2
    assert "error: --exclude leaves no case\n" in nothing.stderr


def test_a_case_is_wanted_and_not_excluded(scripts: Path) -> None:
    result = drill(scripts, "--case", "right", "--exclude", "right")

    assert result.exit_code == 2
    assert "error: no case has 'right' in its name, or --exclude leaves it out\n" in result.stderr


def test_a_bad_script_does_not_keep_the_others_from_running(scripts: Path) -> None:
    (scripts / "bad.drill").write_text("nonsense\n")

    result = drill(scripts)

    assert result.exit_code == 2
    assert f"error: {scripts}/bad.drill:1:1: nonsense is not an event" in result.stderr
    assert result.stdout.splitlines()[-1] == (
        "3 scripts, 2 cases, profile spec: 1 failed, 1 script cannot be read"
    )


ROWS = """cases what, number {
  optional, 0
  large, 0x10000
  wrong, 1
}
>? any ?q
+1us < WRITE_ONLY psn pkey=$number
> ACK $q
"""


def test_a_mistake_in_a_case_does_not_keep_the_others_from_running(scripts: Path) -> None:
    (scripts / "rows.drill").write_text(ROWS)

    result = drill(scripts / "rows.drill", "--junit", scripts / "out.xml")

    assert result.exit_code == 2
    assert result.stderr == (
        f"error: {scripts}/rows.drill:7:23: pkey is 0x10000, which does not fit 16 bits "
        "(case large)\n"
    )
    assert result.stdout.count("got       $q has no value: what was to set it did not come") == 2
    assert result.stdout.splitlines()[-1] == (
        "1 script, 2 cases, profile spec: 2 failed, 1 case cannot be carried out"
    )
    junit = (scripts / "out.xml").read_text()
    assert 'name="large">\n    <error message=' in junit


def test_a_script_that_cannot_be_opened_is_reported(scripts: Path) -> None:
    (scripts / "link.drill").symlink_to(scripts / "nowhere")

    result = drill(scripts)

    assert result.exit_code == 2
    assert f"error: {scripts}/link.drill: No such file or directory" in result.stderr
    assert "3 scripts, 2 cases" in result.stdout


def test_an_interrupted_run_tells_what_it_has(
    scripts: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*arguments: object) -> Verdict:
        if "right" in str(arguments[0]):
            raise KeyboardInterrupt
        return run(*arguments)

    monkeypatch.setattr("ibwire.cli.drill.run", interrupted)

    result = drill(scripts, "--junit", scripts / "out.xml")

    assert result.exit_code == 130
    assert result.stdout.splitlines()[-1] == (
        "2 scripts, 2 cases, profile spec: 1 failed, 1 not run"
    )
    assert result.stderr == "error: interrupted; the other cases did not run\n"
    junit = (scripts / "out.xml").read_text()
    assert junit.count("<testcase") == 2
    assert junit.count('<skipped message="not run: interrupted" />') == 1


def test_what_was_wrong_or_not_wanted_is_not_left_of_an_interrupted_run(
    scripts: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (scripts / "rows.drill").write_text(ROWS)
    cases = iter(range(3))

    def interrupted(*arguments: object) -> Verdict:
        if next(cases) == 2:
            raise KeyboardInterrupt
        return run(*arguments)

    monkeypatch.setattr("ibwire.cli.drill.run", interrupted)

    result = drill(scripts, "--case", "rows.drill")

    assert result.exit_code == 130
    assert result.stdout.splitlines()[-1] == (
        "3 scripts, 2 cases, profile spec: 1 failed, 1 not run, 1 case cannot be carried out"
    )


def test_output_holds_a_capture_of_each_failure(scripts: Path, tmp_path: Path) -> None:
    result = drill(scripts, "-o", tmp_path / "failures", "--junit", tmp_path / "out.xml")

    assert result.exit_code == 1
    assert [path.name for path in (tmp_path / "failures").iterdir()] == ["wrong.pcapng"]
    assert (tmp_path / "out.xml").read_text().count("<testcase") == 2


def test_scripts_of_the_same_name_have_captures_of_their_own(scripts: Path) -> None:
    (scripts / "right.drill").rename(scripts / "wrong.drill")
    (scripts / "wrong.drill").write_text(WRONG + "> any\n")

    drill(scripts, "-o", scripts / "out")

    names = {path.name for path in (scripts / "out").iterdir()}
    assert names == {"wrong.pcapng", "wrong-2.pcapng"}


def test_verbose_shows_the_time_line_of_what_passes(scripts: Path) -> None:
    lines = drill("-v", scripts / "right.drill").stdout.splitlines()

    assert lines[0] == f"pass  {scripts}/right.drill"
    assert lines[3] == "           1.000     3  > ACKNOWLEDGE psn (100) ACK credits=0 msn=1"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "Missing argument 'PATHS...'"),
        (["nowhere.drill"], "no such script or directory: nowhere.drill\n"),
        (["conformance/ack"], "conformance/ack; did you mean conformance/acks?"),
        (["{scripts}/notes.txt", "--profile", "mine"], "'mine' is not one of"),
        (["{scripts}", "--case", "none such"], "no case has 'none such' in its name"),
        (["{scripts}/empty"], "no *.drill file in"),
    ],
)
def test_wrong_usage_is_reported(scripts: Path, arguments: list[str], message: str) -> None:
    (scripts / "empty").mkdir()

    result = drill(*(argument.format(scripts=scripts) for argument in arguments))

    assert result.exit_code == 2
    assert message in result.stderr


@pytest.mark.parametrize("option", ["--junit", "-o"])
def test_an_output_that_cannot_be_written_is_reported_at_the_start(
    scripts: Path, option: str
) -> None:
    place = scripts / "right.drill" / "out"

    result = drill(scripts / "right.drill", option, place)

    assert result.exit_code == 2
    assert result.stdout == ""
    assert f"{place}: cannot be written: not a directory" in result.stderr


def test_results_are_printed_also_when_their_file_is_full(scripts: Path) -> None:
    result = drill(scripts / "right.drill", "--junit", "/dev/full")

    assert result.exit_code == 1
    assert result.stdout == "1 script, 1 case, profile spec: all passed\n"
    assert result.stderr == "error: /dev/full: cannot be written: no space left on device\n"


def test_a_capture_that_cannot_be_written_ends_the_run_with_what_there_is(scripts: Path) -> None:
    (scripts / "out" / "wrong.pcapng").mkdir(parents=True)

    result = drill(scripts, "-o", scripts / "out", "--junit", scripts / "out.xml")

    assert result.exit_code == 1
    assert result.stdout.splitlines()[-1] == (
        "2 scripts, 2 cases, profile spec: 1 failed, 1 not run"
    )
    assert result.stderr.endswith(": is a directory; the other cases did not run\n")
    assert (scripts / "out.xml").read_text().count("<testcase") == 2


def test_what_is_no_file_below_a_directory_is_passed_over(scripts: Path) -> None:
    (scripts / "loop.drill").symlink_to(scripts / "loop.drill")
    (scripts / "sub.drill").mkdir()

    result = drill(scripts)

    assert result.exit_code == 2
    assert f"error: {scripts}/loop.drill: Too many levels of symbolic links" in result.stderr
    assert result.stdout.splitlines()[-1].startswith("3 scripts, 2 cases")


def test_a_profile_is_the_devices(scripts: Path) -> None:
    reserved = "on rxe {\n+1us < OPCODE_0x1F psn\n+1us silence\n} otherwise {\nstate ERR\n}\n"
    (scripts / "reserved.drill").write_text(reserved)

    assert drill(scripts / "reserved.drill", "--profile", "rxe").exit_code == 0
    assert drill(scripts / "reserved.drill").exit_code == 1
