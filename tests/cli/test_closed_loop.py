"""Options of `ibwire inject` for responses that exclude others."""

from click.testing import CliRunner

from each_case import each_case
from ibwire.cli.inject import command

PLAIN = "--dry-run --src 10.0.0.1 --dst 10.0.0.2 --qpn 0x11 --count 10"


@each_case(
    ("options", "reason"),
    [
        ("--window 0", "--window: '0' is not packets from 1"),
        ("--window 5,x", "--window: '5,x' is not packets from 1"),
        ("--window 4 --size 8KiB", "--window: 4 is not 8 or more"),
        ("--window 4 --service uc --verb send", "whose packets request no acknowledgement"),
        ("--window 4 --ack-every 0", "whose packets request no acknowledgement"),
        ("--on-cnp half", "--on-cnp: 0.5 is not possible without a rate"),
        ("--on-cnp 1.5 --rate 1kpps", "--on-cnp: '1.5' is not half or a number between 0 and 1"),
        ("--recovery 1s --window 4", "--recovery: '1s' is not valid without --on-cnp"),
        ("--stall-timeout 1s --listen", "--stall-timeout: '1s' is not valid without --window"),
        ("--window 4 --stall-timeout 0s", "--stall-timeout: '0s' is not longer than 0"),
        ("--window 4,2 --ack-every 3", "--window: 2 is not 3 or more"),
        ("--listen --qpn 0..0x400", "at most 1024 that wait for responses"),
    ],
)
def test_invalid_options_are_wrong_usage(options: str, reason: str) -> None:
    result = CliRunner().invoke(command, f"{PLAIN} {options}")

    assert result.exit_code == 2
    assert reason in result.output


def test_response_options_require_an_interface() -> None:
    arguments = f"{PLAIN} -o out.pcap --listen".replace("--dry-run ", "")

    result = CliRunner().invoke(command, arguments)

    assert result.exit_code == 2
    assert "--listen, --window, --on-nak and --on-cnp require --dev" in result.output


def test_a_dry_run_allows_a_window() -> None:
    result = CliRunner().invoke(command, f"{PLAIN} --window 4 --on-nak goback")

    assert result.exit_code == 0, result.output
