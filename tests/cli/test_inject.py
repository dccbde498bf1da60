"""`ibwire inject`: into captures, and what it says beforehand; no packet leaves here."""

import json
import re
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from ibwire.capture import open_capture
from ibwire.cli import capture_estimate, main
from ibwire.traffic.builder import Builder
from ibwire.traffic.stream import Stream
from ibwire_layers.packet import CrcStatus, Packet

ALL_OPS = Path(__file__).parents[2] / "captures" / "rcx-all-ops.pcap"
PLAIN = ("--src", "10.0.0.1", "--dst", "10.0.0.2", "--qpn", "0x11")


def inject(*arguments: object) -> Result:
    return CliRunner().invoke(main, ["inject", *map(str, arguments)])


def records_of(path: Path) -> list[tuple[int, bytes]]:
    with open_capture(path) as capture:
        return [(record.time_ns, record.data) for record in capture.records()]


@pytest.mark.parametrize("suffix", ["pcap", "pcapng", "pcap.gz"])
def test_the_plain_form_writes_the_packets_of_the_builder(suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"out.{suffix}"

    result = inject(
        "-o", path, *PLAIN, "--verb", "write", "--size", 1024, "--mtu", 1024, "--count", 300
    )

    made = Stream(qpns=((0x11, 1),), src="10.0.0.1", dst="10.0.0.2", size=1024)
    block = next(Builder([made]).blocks(300))
    assert result.exit_code == 0
    assert result.stdout == f"{path}: 300 packets, {300 * 1098} bytes\n"
    assert [data for _, data in records_of(path)] == [row.tobytes() for row in block.frames]


@pytest.mark.parametrize(
    "limits",
    [("--count", 10**12), ("--time", "100000000s", "--rate", "1Mpps")],
    ids=["count", "time"],
)
def test_capture_that_does_not_fit_on_the_disk_is_refused_at_once(
    limits: tuple[object, ...], tmp_path: Path
) -> None:
    """A message of 1 KiB is 1098 bytes on the wire, and a record of pcap has 16 more."""
    path = tmp_path / "out.pcap"

    result = inject("-o", path, *PLAIN, "--verb", "write", "--size", 1024, "--mtu", 1024, *limits)

    packets = {"--count": 10**12, "--time": 10**14}[str(limits[0])]
    size = packets * (1098 + 16) / 2**40
    assert result.exit_code == 1
    assert f"{path}: would not fit on the disk: some {packets:,} packets, " in result.stderr
    said = re.search(r"packets, ([\d.,]+) TiB, ", result.stderr)
    assert said is not None
    assert float(said[1].replace(",", "")) == pytest.approx(size, rel=1e-3)
    assert not path.exists()


def test_long_capture_is_announced_before_it_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(capture_estimate, "FEW", 5000)
    monkeypatch.setattr(capture_estimate, "ANNOUNCED_BYTES", 1 << 20)
    path = tmp_path / "out.pcap"

    result = inject("-o", path, *PLAIN, "--verb", "write", "--size", 1024, "--count", 6000)

    assert result.exit_code == 0
    said = re.match(rf"{path}: some 6,000 packets, ([\d.]+) MiB, \d+ seconds\n", result.stderr)
    assert said is not None
    assert float(said[1]) == pytest.approx(path.stat().st_size / 2**20, abs=0.1)
    assert len(records_of(path)) == 6000


def test_times_in_a_capture_are_those_of_the_rate(tmp_path: Path) -> None:
    path = tmp_path / "out.pcap"

    inject("-o", path, *PLAIN, "--time", "1ms", "--rate", "10kpps")

    assert [time for time, _ in records_of(path)] == [100_000 * n for n in range(10)]


def test_without_a_rate_times_are_those_of_a_wire_of_100_gigabits(tmp_path: Path) -> None:
    path = tmp_path / "out.pcap"

    inject("-o", path, *PLAIN, "--count", 3)

    # 1098 bytes at 100 Gb/s are 87.84 ns.
    assert [time for time, _ in records_of(path)] == [0, 88, 176]


def test_bursts_and_pauses_are_in_the_times(tmp_path: Path) -> None:
    path = tmp_path / "out.pcap"

    inject("-o", path, *PLAIN, "--count", 5, "--rate", "1Mpps", "--burst", 2)
    bursts = [time for time, _ in records_of(path)]
    inject("-o", path, *PLAIN, "--count", 5, "--rate", "1Mpps", "--on", "2us", "--off", "8us")

    assert bursts == [0, 0, 2000, 2000, 4000]
    assert [time for time, _ in records_of(path)] == [0, 1000, 10_000, 11_000, 20_000]


def test_a_result_may_be_an_object(tmp_path: Path) -> None:
    path = tmp_path / "out.pcap"

    result = inject("-o", path, *PLAIN, "--count", 2, "--json")

    assert json.loads(result.stdout) == {"output": str(path), "packets": 2, "bytes": 2 * 1098}


def test_a_stream_file_and_options_go_together(tmp_path: Path) -> None:
    file, path = tmp_path / "streams.toml", tmp_path / "out.pcap"
    file.write_text(
        'src = "10.0.0.1"\ndst = "10.0.0.2"\ncount = 1000\n'
        "[[stream]]\nqpn = 1\nweight = 3\n[[stream]]\nqpn = 2\nverb = 'send'\n"
    )

    inject("-o", path, "--stream", file, "--count", 8, "--dscp", 5)

    packets = [Packet.parse(data) for _, data in records_of(path)]
    assert [packet.bth.dest_qp for packet in packets].count(1) == 6
    assert len(packets) == 8
    assert {packet.route.ip.dscp for packet in packets} == {5}


def test_a_dry_run_shows_the_first_and_last_packets_and_writes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "out.pcap"

    result = inject("-o", path, "--dry-run", *PLAIN, "--count", 5000, "--psn", "0xfffffe")

    lines = result.stdout.splitlines()
    assert lines[:3] == [
        f"would write {path}:",
        "  RC write of 1024 bytes (a packet each, path MTU 1024), 10.0.0.1 > 10.0.0.2, QP 0x11, "
        "PSN from 16777214",
        "  5000 packets, as fast as possible",
    ]
    assert [line.split()[7] for line in lines[4:9]] == [
        f"psn={psn}" for psn in (0xFFFFFE, 0xFFFFFF, 0, 1, 2)
    ]
    assert lines[9] == "   ..."
    assert [line.split()[0] for line in lines[10:13]] == ["4998", "4999", "5000"]
    assert lines[-1] == "of 2000 packets checked: ICRC good in 2000, no malformed"
    assert not path.exists()


def test_a_dry_run_says_what_is_wrong_with_packets_that_are_wrong_on_purpose() -> None:
    bad = inject("--dry-run", *PLAIN, "--count", 4, "--icrc", "wrong")
    odd = inject("--dry-run", *PLAIN, "--count", 4, "--fields", "ip.len=24")

    assert "ICRC bad in 4" in bad.stdout
    assert "4 malformed" in odd.stdout


def test_too_many_packets_are_not_built_to_show_the_last() -> None:
    result = inject("--dry-run", *PLAIN, "--count", 10**12)

    assert "too many packets to show the last of them" in result.stdout
    assert result.exit_code == 0


def test_cnps_are_a_verb(tmp_path: Path) -> None:
    path = tmp_path / "cnp.pcap"

    inject("-o", path, *PLAIN, "--verb", "cnp", "--rate", "20kpps", "--count", 3, "--dscp", 48)

    for _, data in records_of(path):
        packet = Packet.parse(data)
        assert (packet.bth.opcode, packet.bth.becn, packet.bth.psn) == (0x81, 1, 0)
        assert len(data) == 14 + 60  # an IPv4 total length of 60 (reference/wire-formats#cnp)
        assert packet.icrc_status() is CrcStatus.GOOD


@pytest.mark.parametrize(
    ("arguments", "status", "text"),
    [
        ([*PLAIN, "--count", 1], 2, "--dev IFACE, -o FILE or --dry-run is required"),
        (["--dev", "x", "-o", "y", *PLAIN], 2, "--dev and -o exclude each other"),
        (["--dry-run", *PLAIN], 2, "--count or time is required"),
        (["--dry-run", *PLAIN[:4], "--count", 1], 2, "--qpn is required"),
        (["--dry-run", "--qpn", 1, "--count", 1], 2, "--dst is required"),
        (["--dry-run", "--dst", "10.0.0.2", "--qpn", 1, "--count", 1], 2, "--src: '' is not"),
        (["--dry-run", *PLAIN, "--count", "x"], 2, "--count: 'x' is not a number"),
        (["--dry-run", *PLAIN, "--count", 1, "--mtu", 1000], 2, "--mtu: 1000 is not one of"),
        (["--dry-run", *PLAIN, "--count", 1, "--va-step", 1], 2, "--va-window: 0 is not room"),
        (
            ["--dry-run", *PLAIN, "--count", 1, "--fields", "a.b=1"],
            2,
            "a.b: 'a.b' is not the name of a header",
        ),
        (["--dry-run", *PLAIN, "--count", 1, "--rate", "fast"], 2, "--rate: 'fast' is not a rate"),
        (["--dry-run", *PLAIN, "--count", 1, "--burst", 2], 2, "--burst: 2 is not possible"),
        (["-o", "out.pcap", *PLAIN, "--time", "1s"], 2, "--rate: 'max' is not limited"),
        (["-o", "out.txt", *PLAIN, "--count", 1], 1, "ends neither in .pcap nor"),
        (["-o", "/nowhere/out.pcap", *PLAIN, "--count", 1], 1, "/nowhere/out.pcap"),
        (
            ["--dry-run", "--stream", "/dev/zero"],
            2,
            "/dev/zero: it is too long: more than 65536 bytes",
        ),
        (["--dry-run", "--stream", "nowhere.toml"], 2, "nowhere.toml: No such file"),
        (["--dev", "no-such0", *PLAIN, "--count", 1], 1, "no-such0: no such interface"),
        ([*PLAIN, "pfc", "--prio", 3, "--time", "1s"], 2, "write options after pfc"),
        (["pfc", "--dry-run", "--time", "1s"], 2, "one of --prio N,... and --global"),
        (["pfc", "--dry-run", "--prio", "9", "--time", "1s"], 2, "9 is not a priority"),
        (["pfc", "--dry-run", "--prio", "1"], 2, "--time is required"),
        (["pfc", "--dry-run", "--prio", "1", "--time", "5"], 2, "--time: '5' is not a time"),
        (["pfc", "--dry-run", "--prio", "1", "--time", "1s", "--on", "1"], 2, "'1' is not a time"),
        (["replay", "--dry-run", "nowhere.pcap"], 1, "nowhere.pcap"),
        (["replay", "--dry-run", ALL_OPS, "--qpn", "5"], 2, "--qpn: '5' is not OLD=NEW"),
        (["replay", "--dry-run", ALL_OPS, "--address", "1=2"], 2, "is not an IP address"),
        (["replay", "--dry-run", ALL_OPS, "--mac", "1=2"], 2, "is not a MAC address"),
        (["replay", "--dry-run", ALL_OPS, "--where", "bth.psm == 1"], 2, "bth.psm"),
        (["replay", "--dry-run", ALL_OPS, "--where", "bth.psn == 1"], 1, "50 not selected"),
        (["replay", "--dry-run", ALL_OPS, "--scale", "-1"], 2, "--scale: -1.0 is not"),
        (["replay", "--dry-run", ALL_OPS, "--psn-start", "x"], 2, "'x' is not a number"),
    ],
    ids=str,
)
def test_what_cannot_be_done_is_a_sentence(
    arguments: list[object], status: int, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    result = inject(*arguments)

    assert result.exit_code == status
    assert text in result.stderr
    assert "Traceback" not in result.stderr
    assert not list(tmp_path.iterdir())


def test_a_wrong_stream_file_is_pointed_at(tmp_path: Path) -> None:
    file = tmp_path / "streams.toml"
    file.write_text('src = "10.0.0.1"\ndst = "10.0.0.2"\ncount = 1\nqpn = 1\nmtu = 1000\n')

    result = inject("--dry-run", "--stream", file)

    assert result.exit_code == 2
    assert f"{file}:5:7: mtu: 1000 is not one of" in result.stderr


def test_a_storm_ends_with_a_resume(tmp_path: Path) -> None:
    path = tmp_path / "pfc.pcap"

    result = inject("pfc", "-o", path, "--prio", "3,4", "--time", "1ms", "--refresh", "400us")

    assert result.exit_code == 0
    found = records_of(path)
    assert [time for time, _ in found] == [0, 400_000, 800_000, 1_000_000]
    assert [data[18:28].hex() for _, data in found] == [
        *["000000000000ffffffff"] * 3,
        "00000000000000000000",
    ]
    assert {data[16:18].hex() for _, data in found} == {"0018"}


def test_a_schedule_of_storms_may_be_a_file(tmp_path: Path) -> None:
    file, path = tmp_path / "storms.toml", tmp_path / "pfc.pcap"
    file.write_text("time = '1s'\n[[storm]]\npriorities = 3\nrefresh = '1ms'\n")

    inject("pfc", "-o", path, "--storms", file, "--time", "2ms")

    assert len(records_of(path)) == 3


def test_a_replay_keeps_the_times_scales_them_or_has_a_rate(tmp_path: Path) -> None:
    path = tmp_path / "out.pcap"

    def times(*more: object) -> list[int]:
        assert inject("replay", ALL_OPS, "-o", path, *more).exit_code == 0
        return [time for time, _ in records_of(path)]

    recorded = times()
    assert recorded[:2] == [0, 4_857_000]
    assert times("--scale", 2) == [2 * time for time in recorded]
    assert times("--rate", "1kpps") == [1_000_000 * n for n in range(50)]
    assert times("--rate", "max")[-1] < 2000


def test_a_replay_is_rebound_marked_and_damaged_as_asked(tmp_path: Path) -> None:
    path, plan = tmp_path / "out.pcap", tmp_path / "plan.toml"
    plan.write_text("[[faults]]\ndrop = { nth = 2 }\n")

    result = inject(
        "replay",
        ALL_OPS,
        "-o",
        path,
        "--plan",
        plan,
        "--ce",
        "100%",
        "--address",
        "10.77.0.1=192.0.2.1",
        "--qpn",
        "0x66=0x2a",
        "--psn-start",
        "0x66=7",
        "--mac",
        "02:00:00:00:00:01=02:00:00:00:00:09",
    )

    assert result.exit_code == 0
    packets = [Packet.parse(data) for _, data in records_of(path)]
    assert len(packets) == 49
    assert packets[0].bth.psn == 7
    assert 0x66 not in {packet.bth.dest_qp for packet in packets}
    assert {packet.icrc_status() for packet in packets} == {CrcStatus.GOOD}


def test_faults_happen_to_streams_at_their_times(tmp_path: Path) -> None:
    """A packet a millisecond, PSNs from 0."""
    path, plan = tmp_path / "out.pcap", tmp_path / "plan.toml"
    plan.write_text(
        "[[faults]]\ndrop = { psn = [2, 3] }\n"
        "[[faults]]\nduplicate = { psn = 4, delay = '1500us' }\n"
        "[[faults]]\nmark_ecn = { psn = 5 }\n"
    )

    result = inject("-o", path, *PLAIN, "--count", 7, "--rate", "1kpps", "--plan", plan)

    assert result.exit_code == 0
    records = records_of(path)
    packets = [Packet.parse(data) for _, data in records]
    assert [time // 1000 for time, _ in records] == [0, 1000, 4000, 5000, 5500, 6000]
    assert [packet.bth.psn for packet in packets] == [0, 1, 4, 5, 4, 6]
    # The second byte of the IPv4 header ends with ECN: ECT(0), or CE.
    assert [data[15] & 3 for _, data in records] == [2, 2, 2, 3, 2, 2]
    assert {packet.icrc_status() for packet in packets} == {CrcStatus.GOOD}


def test_a_plan_needs_packets_that_end_and_nobody_who_answers(tmp_path: Path) -> None:
    plan = tmp_path / "plan.toml"
    plan.write_text("[[faults]]\ndrop = { nth = 2 }\n")

    endless = inject("--dry-run", *PLAIN, "--time", "1s", "--plan", plan)
    answered = inject("--dev", "none", *PLAIN, "--count", 1, "--listen", "--plan", plan)

    assert (endless.exit_code, answered.exit_code) == (2, 2)
    assert "give --count too" in endless.stderr
    assert "use ibwire tap" in answered.stderr


def test_a_wrong_plan_is_pointed_at(tmp_path: Path) -> None:
    plan = tmp_path / "plan.toml"
    plan.write_text("[[faults]]\ndrop = { nht = 2 }\n")

    result = inject("replay", "--dry-run", ALL_OPS, "--plan", plan)

    assert result.exit_code == 2
    assert f"{plan}:2:10: faults[0].drop.nht: unknown" in result.stderr
