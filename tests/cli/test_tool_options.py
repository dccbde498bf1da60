"""Command lines of perftest and of ibv_*_pingpong: accepted, or refused with the reason."""

from __future__ import annotations

from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

from each_case import each_case
from ibwire.cli import main
from ibwire.cli import tool_options as module
from ibwire.cli.tool_options import InterfaceName, MessageSize


def run(line: str) -> Result:
    return CliRunner().invoke(main, line.split())


@each_case(
    ("line", "reason"),
    [
        ("perf write -a --dev lo", "-a is not supported: a run has one size; start both ends once"),
        ("perf ib_send_bw -z -d lo 127.0.0.1", "-z is not supported: parameters are exchanged"),
        ("perf ib_read_bw --reversed -d lo", "--reversed is not supported: the client sends; "),
        ("perf ib_send_bw -R -c UD -d lo", "-R requires -c RC: without it UD queue pairs are conn"),
        ("perf ib_send_bw --run_infinitely -d lo", "-D sets a duration"),
        ("perf ib_write_bw --rate_limit=10 -d lo", "ibwire inject has --rate"),
        ("perf ib_write_bw -d lo --connect a b", "--connect and HOST are the same: use one of"),
        ("pingpong -q 4 -d lo", "-q is not supported: it is an option of ibv_srq_pingpong"),
    ],
)
def test_unsupported_option_is_refused_with_the_reason(line: str, reason: str) -> None:
    result = run(line)

    assert result.exit_code == 2, result.output
    assert f"{reason}" in result.stderr


@pytest.mark.slow
def test_options_that_change_nothing_on_the_wire_are_accepted_with_a_note() -> None:
    """The host is reached: there is no server at it."""
    line = "perf ib_write_bw --via udp -d lo -x 3 -F -I 0 -Q 10 -l 4 -s 64K -p 1 127.0.0.1"

    result = run(line)

    assert result.exit_code == 1
    assert "error: 127.0.0.1 port 1: connection refused" in result.stderr
    for option in ("-x", "-F", "-I", "-Q", "-l"):
        assert f"note: {option} has no effect here\n" in result.stderr


@pytest.mark.parametrize(("text", "size"), [("64K", 65536), ("0x100", 256), ("1M", 1 << 20)])
def test_size_has_the_forms_of_perftest(text: str, size: int) -> None:
    assert MessageSize(1, 1 << 26).convert(text, None, None) == size


@each_case("text", ["64M1", "65537K", "0", "-1", "K", ""])
def test_other_sizes_are_wrong_usage(text: str) -> None:
    with pytest.raises(click.BadParameter):
        MessageSize(1, 1 << 26).convert(text, None, None)


def test_rdma_device_stands_for_its_interface(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = tmp_path / "mlx5_0/ports/1/gid_attrs/ndevs"
    names.mkdir(parents=True)
    (names / "0").write_text("eth7\n")
    monkeypatch.setattr(module, "RDMA_DEVICES", tmp_path)

    found = [InterfaceName().convert(name, None, None) for name in ("mlx5_0", "lo", "other")]

    assert found == ["eth7", "lo", "other"]
