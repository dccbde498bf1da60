"""`ibwire extcap` and `ibwire wireshark`: what Wireshark asks for, and what it gets.

The lines are those of Wireshark's manual page extcap(4).
"""

import os
import re
import shutil
import stat
import subprocess
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from ibwire.capture import open_capture
from ibwire.cli import main

CAPTURES = Path(__file__).parents[2] / "captures"
COLOURS = Path(__file__).parents[2] / "ibwire" / "report" / "wireshark" / "colorfilters"


def run(*arguments: object) -> Result:
    return CliRunner().invoke(main, [str(each) for each in arguments])


def extcap(*arguments: object) -> list[str]:
    result = run("extcap", *arguments)
    assert result.exit_code == 0, result.output
    return result.stdout.splitlines()


def captured(tmp_path: Path, interface: str, *arguments: object) -> list[list[str]]:
    """Comments of each packet that an interface delivers."""
    path = tmp_path / "fifo"
    extcap("--extcap-interface", interface, "--capture", "--fifo", path, *arguments)
    with open_capture(path) as reader:
        assert reader.format == "pcapng"
        return [list(record.comments) for record in reader.records()]


def program_of_wireshark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A program of its name keeps what it is given."""
    program = tmp_path / "bin" / "wireshark"
    program.parent.mkdir()
    program.write_text(
        f'#!/bin/sh\necho "$1 $2 $3" > {tmp_path}/said\ncp "$4" {tmp_path}/shown\n'
        f'echo "$WIRESHARK_CONFIG_DIR" > {tmp_path}/configuration\n'
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")


def test_a_missing_capture_is_named_before_a_missing_wireshark(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))

    result = run("wireshark", "nosuch.pcap")

    assert (result.exit_code, result.stderr) == (1, "error: nosuch.pcap: no such file\n")


def test_interfaces_are_listed() -> None:
    first, *interfaces = extcap("--extcap-interfaces", "--extcap-version=4.4")

    assert re.fullmatch(r"extcap {version=[\d.]+}{display=ibwire}", first)
    values = [re.findall(r"^interface {value=([\w-]+)}{display=.+}$", line) for line in interfaces]
    assert values == [["ibwire-run"], ["ibwire-drill"], ["ibwire-capture"]]


def test_link_type_is_ethernet() -> None:
    lines = extcap("--extcap-interface", "ibwire-run", "--extcap-dlts")

    assert lines == ["dlt {number=1}{name=EN10MB}{display=Ethernet}"]


def test_dialog_offers_every_shipped_scenario() -> None:
    argument, *values, seed = extcap("--extcap-interface", "ibwire-run", "--extcap-config")

    names = {path.stem for path in (CAPTURES.parent / "ibwire" / "scenarios").glob("*.toml")}
    assert "{call=--scenario}" in argument
    assert "{type=selector}" in argument
    assert {re.search("{value=([^}]+)}", value)[1] for value in values} == names  # type: ignore[index]
    assert sum("{default=true}" in value for value in values) == 1
    assert "{call=--seed}" in seed


def test_scenario_is_captured_at_one_host(tmp_path: Path) -> None:
    packets = captured(tmp_path, "ibwire-run", "--scenario", "one-lost-packet")

    # 8 packets, 6 again, one NAK, one ACK: what `ibwire run` counts, and tests/scenario checks.
    assert len(packets) == 16


def test_scripts_follow_each_other_with_their_lines_as_comments(tmp_path: Path) -> None:
    packets = captured(tmp_path, "ibwire-drill", "--script", "conformance/acks")

    assert len(packets) > 10
    assert all(re.search(r"line \d+", comments[0]) for comments in packets)
    with open_capture(tmp_path / "fifo") as reader:
        times = [record.time_ns for record in reader.records()]
    assert times == sorted(times)
    assert times[-1] > 1_000_000_000


def test_capture_has_its_findings_as_comments(tmp_path: Path) -> None:
    """tshark: packet 19 of this capture is the NAK."""
    packets = captured(tmp_path, "ibwire-capture", "--file", CAPTURES / "drop-one-middle.b.pcap")

    assert any("NAK PSN_SEQUENCE_ERROR" in text for text in packets[18])


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("--extcap-interface", "eth0", "--extcap-dlts"), "is not one of ibwire-run"),
        (("--extcap-interface", "ibwire-run", "--capture"), "--capture needs --fifo"),
        (
            ("--extcap-interface", "ibwire-run", "--capture", "--fifo", "x", "--scenario", "no"),
            "no",
        ),
        (("--extcap-interface", "ibwire-capture", "--capture", "--fifo", "x"), "--file"),
    ],
)
def test_wrong_requests_are_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], reason: str
) -> None:
    monkeypatch.chdir(tmp_path)

    result = run("extcap", *arguments)

    assert result.exit_code in (1, 2)
    assert reason in result.stderr
    assert "Traceback" not in result.output


def test_install_writes_profile_and_program(tmp_path: Path) -> None:
    result = run("wireshark", "--install", "--config", tmp_path / "c", "--extcap", tmp_path / "e")

    assert result.exit_code == 0, result.output
    program = tmp_path / "e" / "ibwire-extcap"
    assert os.stat(program).st_mode & stat.S_IXUSR
    assert (tmp_path / "c" / "profiles" / "ibwire" / "colorfilters").read_bytes() == (
        COLOURS.read_bytes()
    )
    # In a folder with modules of the names that it imports.
    for name in ("ibwire", "click"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('another module')")
    done = subprocess.run(
        [program, "--extcap-interfaces"], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert "{value=ibwire-run}" in done.stdout


@pytest.fixture
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home, and a tshark 4.0 that names only the folder of the system, which can be written."""
    program = tmp_path / "bin" / "tshark"
    program.parent.mkdir()
    program.write_text(f"#!/bin/sh\necho 'Extcap path:         \t{tmp_path}/system'\n")
    program.chmod(0o755)
    for name in ("home", "system"):
        (tmp_path / name).mkdir()
    for name in ("WIRESHARK_EXTCAP_DIR", "WIRESHARK_CONFIG_DIR", "XDG_CONFIG_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    return tmp_path


def files_below(directory: Path) -> list[Path]:
    return sorted(path for path in directory.rglob("*") if path.is_file())


def test_root_installs_into_its_own_folder_and_is_told_of_the_other(
    folders: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)

    result = run("wireshark", "--install")

    assert result.exit_code == 0, result.output
    assert files_below(folders / "system") == []
    assert (folders / "home" / ".local/lib/wireshark/extcap/ibwire-extcap").exists()
    assert "ignores the user's extcap folder when root runs it" in result.stderr
    command = f"ibwire wireshark --install --extcap {folders}/system"
    assert command in result.stderr

    assert run(*command.split()[1:]).exit_code == 0
    assert files_below(folders / "system") == [folders / "system" / "ibwire-extcap"]


def test_folder_of_the_user_is_the_one_that_wireshark_names(
    folders: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two names of folders as tshark 4.2 prints them."""
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    with (folders / "bin" / "tshark").open("w") as file:
        file.write(
            "#!/bin/sh\n"
            f"echo 'Personal Extcap path:\t{folders}/home/own'\n"
            f"echo 'Global Extcap path:\t{folders}/system'\n"
        )

    result = run("wireshark", "--install")

    assert (folders / "home" / "own" / "ibwire-extcap").exists()
    assert files_below(folders / "system") == []
    assert "note" not in result.stderr


def test_uninstall_removes_what_install_wrote(folders: Path) -> None:
    (folders / "home" / ".config" / "wireshark").mkdir(parents=True)
    (folders / "home" / ".config" / "wireshark" / "preferences").write_text("mine\n")
    before = files_below(folders / "home")
    run("wireshark", "--install")
    assert len(files_below(folders / "home")) == len(before) + 3

    result = run("wireshark", "--uninstall")

    assert result.exit_code == 0, result.output
    assert files_below(folders / "home") == before
    assert len(result.stdout.splitlines()) == 3
    assert "nothing to remove" in run("wireshark", "--uninstall").stderr


def test_uninstall_keeps_files_that_are_not_ours(folders: Path) -> None:
    run("wireshark", "--install", "--extcap", folders / "system")
    run("wireshark", "--install")
    profile = folders / "home" / ".config" / "wireshark" / "profiles" / "ibwire"
    program = folders / "home" / ".local/lib/wireshark/extcap/ibwire-extcap"
    (profile / "preferences").write_text("changed\n")
    (profile / "recent").write_text("written by Wireshark\n")
    program.write_text("#!/bin/sh\n# of somebody else\n")

    result = run("wireshark", "--uninstall")

    assert result.exit_code == 0, result.output
    assert result.stdout.splitlines() == [f"removed {profile}/colorfilters"]
    assert f"{profile}/preferences is not as ibwire wrote it" in result.stderr
    assert f"{program} is not as ibwire wrote it" in result.stderr
    assert f"ibwire wireshark --uninstall --extcap {folders}/system" in result.stderr
    assert (profile / "recent").exists()

    run("wireshark", "--uninstall", "--extcap", folders / "system")
    assert files_below(folders / "system") == []


def test_wireshark_is_started_with_the_profile_and_the_comments(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program_of_wireshark(tmp_path, monkeypatch)
    monkeypatch.setenv("WIRESHARK_CONFIG_DIR", str(tmp_path / "config"))

    result = run("wireshark", CAPTURES / "drop-one-middle.b.pcap")

    assert result.exit_code == 0, result.output
    assert (tmp_path / "said").read_text() == "-C ibwire -r\n"
    assert (tmp_path / "config" / "profiles" / "ibwire" / "preferences").exists()
    with open_capture(tmp_path / "shown") as reader:
        comments = [record.comments for record in reader.records()]
    assert any("NAK" in text for text in comments[18])


@pytest.mark.parametrize("before", [None, "elsewhere"])
def test_wireshark_uses_the_configuration_that_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: str | None
) -> None:
    """In the folder that the variable of wireshark(1) names, although it may start elsewhere."""
    program_of_wireshark(tmp_path, monkeypatch)
    monkeypatch.chdir(tmp_path)
    if before is None:
        monkeypatch.delenv("WIRESHARK_CONFIG_DIR", raising=False)
    else:
        monkeypatch.setenv("WIRESHARK_CONFIG_DIR", before)

    result = run("wireshark", "--config", "named", CAPTURES / "drop-one-middle.b.pcap")

    assert result.exit_code == 0, result.output
    assert (tmp_path / "configuration").read_text() == f"{tmp_path / 'named'}\n"
    assert (tmp_path / "named" / "profiles" / "ibwire" / "preferences").exists()


def test_without_wireshark_another_command_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))

    result = run("wireshark", CAPTURES / "drop-one-middle.b.pcap")

    assert result.exit_code == 1
    assert "ibwire export" in result.stderr


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("tshark") is None, reason="tshark not installed")
def test_tshark_understands_the_colour_rules() -> None:
    rules = [line.split("@")[2] for line in COLOURS.read_text().splitlines() if line[0] == "@"]

    assert len(rules) == 10
    for rule in rules:
        command = ["tshark", "-r", str(CAPTURES / "chaos.a.pcap"), "-Y", rule]
        assert subprocess.run(command, capture_output=True, check=False).returncode == 0, rule
