"""`ibwire fabric traffic`: data over a fabric, counters, captures, deadlocks."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from each_case import each_case
from ibwire.cli import fabric_traffic, main
from ibwire.dissect import read
from ibwire.fabric.infiniband import Subnet
from ibwire.fabric.infiniband.network import set_limits


def traffic(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["fabric", "traffic", *arguments])


def test_transfers_arrive_at_the_rate_of_the_link() -> None:
    """4xEDR is 100 Gb/s; both hosts send at the same time."""
    result = traffic("star2", "--size", "50000", "--json")

    rows = [json.loads(line) for line in result.stdout.splitlines()]
    assert result.exit_code == 0
    assert [(row["node"], row["to"], row["status"]) for row in rows] == [
        ("node-0[1]", "node-1[1]", "arrived"),
        ("node-1[1]", "node-0[1]", "arrived"),
    ]
    assert all(85 < row["gbps"] < 99.4 for row in rows)


def test_a_deadlock_is_named_and_ends_with_status_1() -> None:
    result = traffic("ring:switches=5,hosts=1", "--shift", "2", "--buffer", "132", "--size", "50K")

    assert result.exit_code == 1
    assert "not ended" in result.stdout
    sentence = result.stderr.strip()
    assert sentence.startswith("deadlock: sw0[")
    assert sentence.count("waits for") == 5


def test_a_transfer_that_needs_longer_than_the_time_is_named() -> None:
    """50 KB need 4 us at 100 Gb/s."""
    result = traffic("star2", "--flow", "node-0:node-1", "--size", "50K", "--time", "2us")

    assert result.exit_code == 1
    assert result.stderr == "1 transfer has not ended in 0.002 ms; --time gives more\n"


def test_what_stopped_is_named_without_a_deadlock(monkeypatch: pytest.MonkeyPatch) -> None:
    def without_arbitration(subnet: Subnet, **given: int) -> None:
        set_limits(subnet, **given)
        for name in ("node-0", "node-1"):
            subnet.nodes[name].ports[1].arbitration.update(dict.fromkeys((1, 2, 3, 4), bytes(64)))

    monkeypatch.setattr(fabric_traffic, "set_limits", without_arbitration)

    result = traffic("star2", "--size", "50K")

    assert result.exit_code == 1
    assert result.stderr == (
        "2 transfers have not ended, and nothing moves any more: "
        "packets wait at node-0[1], node-1[1]\n"
    )


def test_up_down_has_no_deadlock() -> None:
    result = traffic(
        "ring:switches=5,hosts=1", "--shift", "2", "--buffer", "132", "--size", "20K",
        "--routing", "updn",
    )  # fmt: skip

    assert (result.exit_code, result.stderr) == (0, "")


def test_counters_are_those_of_both_ends_of_a_link() -> None:
    """13 packets of 4096 bytes: 12 words of headers in all but the first and ACK; see the sums."""
    result = traffic("star2", "--flow", "node-0:node-1", "--size", "50K", "--counters", "--json")

    rows = {(row["node"], row["port"]): row for row in map(json.loads, result.stdout.splitlines())}
    # LRH 8, BTH 12, RETH 16 once, 4096 of data, ICRC 4: 1030 words, and 4 of the RETH.
    last = 51200 - 12 * 4096
    expected = 12 * 1030 + 4 + (8 + 12 + last + 4) // 4
    assert rows["node-0", 1]["xmit_data"] == expected
    assert rows["sw0", 1]["rcv_data"] == rows["sw0", 2]["xmit_data"] == expected
    assert rows["node-1", 1]["rcv_pkts"] == 13


def test_a_capture_has_packets_and_flow_control_packets(tmp_path: Path) -> None:
    file = tmp_path / "c.pcapng"

    result = traffic(
        "star2", "--flow", "node-0:node-1", "--size", "50K", "--capture", str(file),
        "--tap", "sw0[1]",
    )  # fmt: skip

    assert result.exit_code == 0
    (columns,) = list(read(str(file)))
    data = columns.valid("lrh.pktlen") if "lrh.pktlen" in columns else columns.valid("bth.psn")
    assert data.sum() == 13 + 1  # and an ACK
    assert columns.valid("infiniband_link.fccl").sum() >= 4


def test_a_capture_of_all_links_has_each_packet_once_for_each_link(tmp_path: Path) -> None:
    """The counters of the ports say how many packets have passed."""
    file = tmp_path / "c.pcapng"
    arguments = ("star2", "--flow", "node-0:node-1", "--size", "50K", "--sm", "own")

    counted = traffic(*arguments, "--capture", str(file), "--tap", "all", "--counters", "--json")

    rows = [json.loads(line) for line in counted.stdout.splitlines()]
    packets = sum(row["xmit_pkts"] for row in rows)
    (columns,) = list(read(str(file)))
    is_flow_control = columns.valid("infiniband_link.fccl")
    assert is_flow_control.sum() > 0
    assert (~is_flow_control).sum() == packets
    assert packets > 2 * (13 + 1)


@pytest.mark.slow
def test_links_with_retry_repeat_what_is_damaged_or_interrupted() -> None:
    """100 KB are 800,000 bits on each of two links, of which at 5e-6 about 8 are damaged."""
    disturbed = ("star2", "--flow", "node-0:node-1", "--size", "100K", "--json",
                 "--errors", "5e-6", "--interrupt", "sw0[1]:2us:1us", "--time", "9s")  # fmt: skip

    plain, repeated = (
        json.loads(traffic(*disturbed, *options).stdout) for options in ((), ("--retry",))
    )
    counters = traffic(*disturbed, "--retry", "--counters")

    assert (plain["status"], repeated["status"]) == ("arrived", "arrived")
    assert plain["retransmitted"] > 0
    assert repeated["retransmitted"] == 0
    rows = [json.loads(line) for line in counters.stdout.splitlines()]
    assert sum(row["symbol_errors"] for row in rows) > 2
    recovered = [(row["node"], row["port"]) for row in rows if row["link_recoveries"]]
    assert sorted(recovered) == [("node-0", 1), ("sw0", 1)]


def test_adaptive_switches_use_more_ports() -> None:
    """Three hosts of a leaf send to hosts that its table has at one spine."""
    flows = ["--flow", "node-0-0:node-1-0", "--flow", "node-0-1:node-2-0", "--flow",
             "node-0-2:node-3-0"]  # fmt: skip
    used = []
    for options in ([], ["--adaptive"]):
        result = traffic(
            "fattree:ports=8", *flows, "--size", "40K", "--counters", "--json", *options
        )
        rows = [json.loads(line) for line in result.stdout.splitlines()]
        ups = [row for row in rows if row["node"] == "leaf0" and row["port"] > 4]
        used.append(sum(row["xmit_pkts"] >= 5 for row in ups))
    assert used[0] < used[1]


@pytest.mark.parametrize(
    "wrong", [["--tap", "sw0[99]"], ["--flow", "node-0"], ["--to", "nobody"], ["--lanes", "15"]]
)
def test_a_wrong_argument_keeps_an_existing_capture(wrong: list[str], tmp_path: Path) -> None:
    file = tmp_path / "c.pcapng"
    file.write_text("an earlier capture")

    result = traffic("star2", "--capture", str(file), *wrong)

    assert result.exit_code in (1, 2)
    assert file.read_text() == "an earlier capture"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["star2", "--flow", "node-0"], "--flow node-0: expected FROM:TO"),
        (["star2", "--flow", "node-0:node-9"], "'node-9'"),
        (["star2", "--flow", "node-0:sw0"], "an adapter with a link"),
        (["star2", "--to", "node-1[7]"], "port of node-1: 7"),
        (["star2", "--tap", "sw0[1]"], "--tap needs --capture FILE"),
        (["star2", "--tap", "sw0", "--capture", "c.pcapng"], "sw0: expected NODE[PORT]"),
        (["star2", "--tap", f"sw0[{'9' * 5000}]", "--capture", "c.pcapng"], "expected NODE[PORT]"),
        (["star2", "--interrupt", "sw0[1]"], "expected NODE[PORT]:AT:FOR"),
        (["star2", "--interrupt", "sw0[1]:1us:x"], "sw0[1]:1us:x: "),
        (["star2", "--interrupt", "sw0[1]:1us:0us"], "duration: 0 is not above 0"),
        (["star2", "--interrupt", "sw9[1]:1us:1us"], "'sw9'"),
        (
            ["star2", "--errors", "1"],
            "'1' is not a bit error rate: a number 0 or above and below 1",
        ),
        (["star2", "--errors", "x"], "'x' is not a bit error rate"),
        (["star2", "--size", "10", "--message", "3"], "a divisor of the size 10"),
        (["star2", "--size", "5000", "--message", "1"], "at most 4096 messages"),
        (["torus:size=8x8", "--size", "60M"], "give a smaller --message"),
        (["star:hosts=1", "--routing", "dor", "--time", "x"], "'x'"),
    ],
)
def test_wrong_arguments_are_sentences(
    arguments: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    result = traffic(*arguments)

    assert result.exit_code in (1, 2)
    assert message in result.stderr
    assert "Traceback" not in result.output


@pytest.mark.parametrize("arguments", [["--flow", "node-1:node-1"], ["--shift", "2"]])
def test_a_host_that_would_send_to_itself_is_refused(arguments: list[str]) -> None:
    """star2 has two hosts, so the second further is the same one."""
    result = traffic("star2", *arguments)

    assert result.exit_code == 2
    assert "would send to itself" in result.stderr


def test_the_subnet_manager_brings_the_fabric_up_before_data_are_sent(tmp_path: Path) -> None:
    """6 packets of 4096 bytes at 96.97 Gb/s need 2.1 us, plus the way; the manager took longer."""
    file = tmp_path / "c.pcapng"

    result = traffic(
        "star2", "--sm", "own", "--sm-host", "node-1", "--size", "24K", "--json",
        "--flow", "node-0:node-1", "--capture", str(file), "--tap", "node-0[1]",
    )  # fmt: skip

    assert result.exit_code == 0
    assert re.fullmatch(
        r"note: node-1\[1\] has brought the fabric up in 0\.\d+ ms, with \d+ MADs\n", result.stderr
    )
    (row,) = map(json.loads, result.stdout.splitlines())
    assert 2 < row["time_us"] < 4
    (columns,) = list(read(str(file)))
    lanes = columns["lrh.vl"][columns.valid("lrh.vl")]
    assert {0, 15} <= set(lanes.tolist())


def test_a_capture_beside_a_subnet_manager_has_what_each_adapter_sends(tmp_path: Path) -> None:
    file = tmp_path / "c.pcapng"

    result = traffic("star2", "--sm", "own", "--size", "24K", "--capture", str(file))

    assert result.exit_code == 0
    (columns,) = list(read(str(file)))
    senders = columns["lrh.slid"][columns.valid("bth.psn") & (columns["lrh.vl"] == 0)]
    assert len(set(senders.tolist())) == 2


def test_an_interruption_of_a_link_that_is_not_active_is_reported() -> None:
    twice = ("--interrupt", "sw0[1]:1us:1us")

    result = traffic("star2", "--size", "100K", *twice, *twice)

    assert result.exit_code == 0
    assert result.stderr == (
        "warning: sw0[1] was not interrupted at 1 us: its link is not Active\n"
    )


@each_case(
    ("arguments", "message"),
    [
        (("--sm-host", "node-0"), "--sm-host needs --sm own"),
        (("--sm", "own", "--hoq-life", "3"), "--hoq-life does not go with --sm own"),
        (("--sm", "own", "--time", "1us"), "has not brought the fabric up in 0.001 ms"),
        (("--sm", "own", "--sm-host", "sw0"), "'sw0' is not an adapter with a link"),
        (("--sm", "own", "--sm-host", "sw0[1]"), "'sw0[1]' is not an adapter with a link"),
    ],
)
def test_what_the_subnet_manager_needs_is_named(arguments: tuple[str, ...], message: str) -> None:
    result = traffic("star2", *arguments)

    assert result.exit_code > 0
    assert message in result.output


SCENARIO = """\
topology = "star2"

[traffic]
size = "20 KiB"
retry = true

[[flow]]
from = "node-0"
to = "node-1"
operation = "send"
message = "4 KiB"

[[flow]]
from = "node-1"
to = "node-0"

[[fault]]
link = "sw0[2]"
at = "1us"
for = "2us"

[expect]
success = "all"
retransmitted = 0
time = "< 3us"
deadlock = false
"""


def test_a_topology_in_toml_may_have_flows_faults_and_expectations(tmp_path: Path) -> None:
    """20 KiB need 1.7 us and the way; the link has no signal for 2 us and repeats what was lost."""
    file = tmp_path / "x.toml"
    file.write_text(SCENARIO)

    result = traffic(str(file), "--seed", "3", "--json")
    without = traffic(str(file), "--flow", "node-0:node-1", "--json")

    rows = [json.loads(line) for line in result.stdout.splitlines()]
    assert [(row["node"], row["to"], row["bytes"]) for row in rows] == [
        ("node-0[1]", "node-1[1]", 20480), ("node-1[1]", "node-0[1]", 20480),
    ]  # fmt: skip
    assert result.exit_code == 1
    words = [line.split("  ")[:2] for line in result.stderr.splitlines()]
    assert words == [
        ["pass", "wrong == 0"], ["pass", "unfinished == 0"], ["pass", "success == all"],
        ["pass", "retransmitted == 0"], ["FAIL", "time < 3us"], ["pass", "deadlock == false"],
    ]  # fmt: skip
    assert len(without.stdout.splitlines()) == 1


def test_flows_of_the_command_line_stand_for_all_transfers_of_a_file(tmp_path: Path) -> None:
    file = tmp_path / "x.toml"
    file.write_text('topology = "star2"\n[traffic]\nshift = 1\nto = "node-1"\nsize = 100\n')

    result = traffic(str(file), "--flow", "node-1:node-0", "--json")

    (row,) = (json.loads(line) for line in result.stdout.splitlines())
    assert (row["node"], row["to"], row["bytes"]) == ("node-1[1]", "node-0[1]", 100)


def test_a_message_of_the_command_line_is_not_blamed_on_the_file(tmp_path: Path) -> None:
    file = tmp_path / "x.toml"
    file.write_text('topology = "star2"\n[traffic]\nmessage = 10\n')

    result = traffic(str(file), "--message", "7")

    assert result.exit_code == 2
    assert result.stderr == "error: message: 7 is not a divisor of the size 1048576\n"


def test_a_deadlock_may_be_expected(tmp_path: Path) -> None:
    file = tmp_path / "x.toml"
    file.write_text(
        'topology = "ring:switches=5,hosts=1"\n'
        '[traffic]\nshift = 2\nbuffer = 132\nsize = "50 KiB"\n[expect]\ndeadlock = true\n'
    )

    result = traffic(str(file))

    assert result.exit_code == 0
    assert "pass  deadlock == true  (is true)" in result.stderr


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[traffic]\nsize = 0", "x.toml:3:8: traffic.size"),
        ("[traffic]\nsise = 5", "unknown"),
        ("[traffic]\nlanes = 3", "x.toml:3:9: traffic.lanes: is 3, not one of 1, 2, 4, 8"),
        ("[traffic]\nmessage = 3000", "x.toml:3:11: traffic.message: 3000 is not a divisor"),
        ('[traffic]\nto = "node-9"', "x.toml:3:6: traffic.to: 'node-9' is not"),
        ('[traffic]\nsm = "own"\nsm_host = "x"', "x.toml:4:11: traffic.sm_host: 'x' is not"),
        ('[[flow]]\nfrom = "node-0"\nto = "x"', "x.toml:4:6: flow[0].to: 'x' is not"),
        (
            '[[flow]]\nfrom = "node-0"\nto = "node-1"\nsize = 100\nmessage = 30',
            "x.toml:6:11: flow[0].message: 30 is not a divisor of the size 100",
        ),
        ('[[flow]]\nfrom = "node-0"', "a flow needs to"),
        ('[[fault]]\nlink = "sw0[9]"\nat = "1us"', "x.toml:3:8"),
        ('[[fault]]\nlink = "sw0[1]"', "either at"),
        ('[[fault]]\nlink = "sw0[1]"\nerrors = 0.1\nfor = "1us"', "for"),
        ("[expect]\ndeadlock = 1", "is true or false"),
        ("[expect]\npauses = 1", "pauses"),
        ("[expect]\nqueue.max = 1", "queue.max: is a metric of ibwire run, not of an InfiniBand"),
    ],
)
def test_a_mistake_in_the_traffic_of_a_file_has_its_place(
    text: str, message: str, tmp_path: Path
) -> None:
    file = tmp_path / "x.toml"
    file.write_text(f'topology = "star2"\n{text}\n')

    result = traffic(str(file))

    assert result.exit_code == 2
    assert "x.toml:" in result.output
    assert message in result.output


def test_options_of_a_file_that_do_not_go_together_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "x.toml"
    file.write_text('topology = "star2"\n[traffic]\nsm = "own"\nhoq_life = 3\n')

    result = traffic(str(file))

    assert result.exit_code == 2
    assert "--hoq-life does not go with --sm own" in result.output


def test_a_fault_without_an_end_outlives_one_with_an_end(tmp_path: Path) -> None:
    """The first one would bring the link up again after 11 ms."""
    file = tmp_path / "x.toml"
    file.write_text(
        'topology = "star2"\n[traffic]\nsize = "100 kB"\ntime = "12 ms"\n'
        '[[fault]]\nlink = "sw0[1]"\nat = "1 us"\nfor = "11 ms"\n'
        '[[fault]]\nlink = "node-0[1]"\nat = "2 us"\n[expect]\nunfinished = 2\nmessages = 2\n'
    )

    result = traffic(str(file))

    assert "pass  unfinished == 2" in result.stderr
    assert result.exit_code == 0


def test_the_host_of_the_manager_in_a_file_does_not_matter_without_one(tmp_path: Path) -> None:
    file = tmp_path / "x.toml"
    file.write_text('topology = "star2"\n[traffic]\nsm = "own"\nsm_host = "node-1"\nsize = 100\n')

    result = traffic(str(file), "--sm", "none")

    assert result.exit_code == 0
    assert not result.stderr
