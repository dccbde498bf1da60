"""`ibwire report`: where it writes, how it ends, and what it refuses."""

from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from ibwire.cli import main


def run(*arguments: object, **options: Any) -> Result:
    return CliRunner().invoke(main, ["report", *map(str, arguments)], **options)


@pytest.fixture
def capture(captures: Path) -> Path:
    return captures / "drop-one-middle.a.pcap"


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("name", "page"),
    [
        ("trace.pcap", "trace.html"),
        ("trace.a.pcapng", "trace.a.html"),
        ("TRACE.PCAP", "TRACE.html"),
        ("trace", "trace.html"),
        (".pcap", ".pcap.html"),
    ],
)
def test_the_page_is_called_after_the_capture(
    capture: Path, here: Path, name: str, page: str
) -> None:
    (here / "elsewhere").mkdir()
    (here / "elsewhere" / name).write_bytes(capture.read_bytes())

    result = run(here / "elsewhere" / name)
    assert result.exit_code == 0, result.output
    assert [path.name for path in here.iterdir() if path.is_file()] == [page]
    assert "<!doctype html>" in (here / page).read_text()


def test_standard_input_and_output_will_do(capture: Path) -> None:
    result = run("-", "-o", "-", input=capture.read_bytes())

    assert result.exit_code == 0
    assert result.stdout.startswith("<!doctype html>")


def test_the_capture_itself_is_never_written_over(capture: Path, here: Path) -> None:
    copy = here / "trace.pcap"
    copy.write_bytes(capture.read_bytes())
    (here / "link.html").symlink_to(copy)

    for output in (copy, here / "link.html"):
        result = run(copy, "-o", output)
        assert result.exit_code == 2
        assert f"{output}: cannot be written: it is also an input" in result.output
    assert copy.read_bytes() == capture.read_bytes()


def test_a_damaged_capture_gives_a_page_and_status_3(capture: Path, here: Path) -> None:
    broken = here / "broken.pcap"
    broken.write_bytes(capture.read_bytes()[:-7])

    result = run(broken)
    assert result.exit_code == 3
    assert "broken.pcap: byte" in result.stderr
    assert "The capture is damaged" in (here / "broken.html").read_text()


@pytest.mark.parametrize("data", [None, b"# no capture\n"])
def test_what_cannot_be_read_at_all_gives_no_page(here: Path, data: bytes | None) -> None:
    if data is not None:
        (here / "notes.pcap").write_bytes(data)

    result = run("notes.pcap")
    assert result.exit_code == 3
    assert "notes.pcap" in result.stderr
    assert not (here / "notes.html").exists()


def test_a_directory_that_does_not_exist_is_named(capture: Path, here: Path) -> None:
    result = run(capture, "-o", here / "nowhere" / "page.html")

    assert result.exit_code == 1
    assert "cannot be written: no such file or directory" in result.output


def test_a_pause_is_as_long_as_the_link_speed_says(here: Path) -> None:
    """One PFC frame, 65,535 quanta of 512 bits: 335.5 us at 100 Gb/s (IEEE 802.3 31B.2)."""
    from capture.handmade import pcap_header, pcap_record

    frame = bytes.fromhex("0180c2000001 020000000001 8808 0101 0008 0000 0000 0000 ffff")
    (here / "pfc.pcap").write_bytes(pcap_header() + pcap_record(frame + bytes(34)))

    result = run("pfc.pcap", "--link-rate", "100G")
    assert result.exit_code == 0, result.output
    assert '"paused":335539' in (here / "pfc.html").read_text()
