"""What a device on a link has to be left out of, and whose frames are the script's."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from each_case import each_case
from ibwire.base.errors import PeerError
from ibwire.base.node import OPEN, Frame, Grant
from ibwire.base.units import MS, US, S, Time
from ibwire.cli.drill import command
from ibwire.cli.drill_live import DrillTargetOptions
from ibwire.cm.messages import encode
from ibwire.drill import parse
from ibwire.drill.files import write_junit
from ibwire.drill.language.expressions import Scope
from ibwire.drill.language.steps import Impair, is_about_management
from ibwire.drill.packets import Wire
from ibwire.drill.targets.live import Diverted, time_of
from ibwire.drill.targets.manager import offered
from ibwire.drill.targets.target import TooBusy, Unable
from ibwire.drill.targets.ways import ByParameters, _Agent
from ibwire.drill.verdict import Verdict
from ibwire.programs.endpoint import Endpoint
from ibwire.rc.device import gid_of
from ibwire.rc.path import Path as Way
from ibwire.rc.path import ethernet_route, is_v4
from ibwire_layers import cm
from ibwire_layers import headers as h
from ibwire_layers.mad import GSI_QKEY
from ibwire_layers.opcodes import OpCode

# Time.


@each_case(
    ("text", "expected"),
    [
        ("+1us < ACK psn", US),
        ("+10ms silence\n+5ms silence", 15 * MS),
        ("+60ms..269ms > any", 269 * MS),
        ("+60ms.. > any", 60 * MS),
        # 4.096 us * 2 ** 14 (IBA 9.7.6.1.3).
        ("+ack_timeout(14) > any", 67_108_864_000),
        ("for i in 1..3 {\n+1s silence\n}", 3 * S),
        ("+1ms unordered {\n> any\n}", MS),
        # Its value is not known yet.
        ("> ACK psn=?p\n+$p*1ms silence\n+1ms silence", MS),
    ],
)
def test_time_of_a_case_is_what_its_lines_say(text: str, expected: Time) -> None:
    (case,) = parse(text.encode(), "s.drill").cases

    assert time_of(case.steps, Scope("s.drill", {})) == expected


def test_a_skipped_script_has_the_reason_for_virtual_time() -> None:
    assert parse(b"virtual it is too fast\n> any", "s.drill").virtual == "it is too fast"


# Frames.

OWN, PEER, STRANGER = gid_of("10.0.0.9"), gid_of("10.0.0.1"), gid_of("10.0.0.2")
OWN_V6, PEER_V6 = gid_of("fd00::9"), gid_of("fd00::1")
MAC = bytes(6)


class Other:
    """The node behind; it has one frame to send."""

    def __init__(self) -> None:
        self.received: list[Frame] = []
        self.leaving: list[Frame] = [b"of the node"]

    def receive(self, frame: Frame, now: Time, port: int = 0) -> None:
        self.received.append(frame)

    def poll_transmit(self, now: Time, port: int = 0, grant: Grant = OPEN) -> Frame | None:
        return self.leaving.pop() if self.leaving else None

    def poll_timeout(self) -> Time | None:
        return 5

    def handle_timeout(self, now: Time) -> None:
        self.received.append(b"timeout")


ROUTE = ethernet_route(
    source=OWN, destination=PEER, source_mac=bytes(6), destination_mac=bytes(6), source_port=1
)


def frame(qpn: int, source: int = PEER) -> Frame:
    route = ethernet_route(
        source=source,
        destination=OWN if is_v4(source) else OWN_V6,
        source_mac=bytes(6),
        destination_mac=bytes(6),
        source_port=0xC000,
    )
    bth = h.BTH(opcode=OpCode.RC_ACKNOWLEDGE, dest_qp=qpn, psn=5)
    return Way(route).frame(bth.pack() + h.AETH().pack())


def test_what_the_peer_sends_to_queue_pairs_is_the_scripts() -> None:
    diverted = Diverted(Other(), MAC, PEER)

    diverted.receive(frame(0x77), 3)
    diverted.receive(frame(0x78), 4)

    assert list(diverted.outbound) == [(3, frame(0x77)), (4, frame(0x78))]


@pytest.mark.parametrize("source", [PEER, PEER_V6])
def test_a_packet_that_is_cut_off_is_the_scripts_too(source: int) -> None:
    diverted = Diverted(Other(), MAC, source)
    given = frame(0x77, source)[:-20]

    diverted.receive(given, 3)
    diverted.receive(tagged(given), 3)

    assert list(diverted.outbound) == [(3, given), (3, tagged(given))]


def tagged(given: Frame) -> Frame:
    return given[:12] + bytes.fromhex("8100 0005") + given[12:]


@each_case(
    "given",
    [
        frame(1),
        frame(0x77, STRANGER),
        frame(0x77, STRANGER)[:-20],
        frame(0x66),
        b"\x02" + frame(0x77)[1:],
        b"",
        b"\xff" * 60,
        frame(0x77)[:20],
    ],
)
def test_other_frames_go_to_the_node(given: Frame) -> None:
    """QP1, strangers, connections that are over, for others, and what is no RoCEv2 at all."""
    node = Other()
    diverted = Diverted(node, MAC, PEER)
    diverted.former.add(0x66)

    diverted.receive(given, 3)

    assert node.received == [given]
    assert not diverted.outbound


# Connection management.


def message(own_id: int, peer_id: int) -> Frame:
    """A DREP of the device, with its communication ID and ours."""
    route = ethernet_route(
        source=PEER, destination=OWN, source_mac=bytes(6), destination_mac=bytes(6), source_port=1
    )
    bth = h.BTH(opcode=OpCode.UD_SEND_ONLY, dest_qp=1)
    said = encode(cm.DREP(local_comm_id=own_id, remote_comm_id=peer_id), 7)
    return Way(route).frame(bth.pack() + h.DETH(qkey=GSI_QKEY, src_qp=1).pack() + said)


def test_messages_to_qp1_are_the_scripts_when_it_is_about_them() -> None:
    node = Other()
    diverted = Diverted(node, MAC, PEER)
    diverted.is_managed = True

    diverted.receive(message(5, 6), 3)
    diverted.receive(frame(1), 3)
    heard = list(diverted.outbound)
    diverted.forget(0x66)
    diverted.receive(message(5, 6), 4)

    assert heard == [(3, message(5, 6)), (3, frame(1))]
    assert node.received == [message(5, 6)]


def test_messages_about_exchanges_that_are_over_are_the_nodes() -> None:
    """It answers a request to disconnect."""
    node = Other()
    diverted = Diverted(node, MAC, PEER)
    diverted.forget(0x66, {5, 9})
    diverted.is_managed = True

    for ids in ((5, 6), (6, 9), (7, 8), (0, 0)):
        diverted.receive(message(*ids), 3)

    assert node.received == [message(5, 6), message(6, 9)]
    assert [each for _, each in diverted.outbound] == [message(7, 8), message(0, 0)]


@each_case(
    "text", ["< CM_REQ", "> any | CM_REJ", "unordered {\n> CM_REP\n}", "listen", "cm_event nothing"]
)
def test_a_script_is_about_connection_management(text: str) -> None:
    (case,) = parse(text.encode(), "s.drill").cases

    assert is_about_management(case.steps)


def test_a_script_about_data_is_not() -> None:
    text = (
        "qp rq_psn=5\n< WRITE_ONLY psn\n> ACK psn\nunordered {\n> any\n}\nimpair < drop\npoll send"
    )
    (case,) = parse(text.encode(), "s.drill").cases

    assert not is_about_management(case.steps)


def test_a_connection_is_what_requests_and_replies_offer() -> None:
    """A side says from which PSN on it listens; the path MTU is the REQ's (IBA 12.6.5, 12.6.8)."""
    before = Wire(ROUTE, 5, 6, 0xFFFF, 256, 100, 500, 0, 0)
    asked = cm.REQ(local_qpn=7, starting_psn=8, path_packet_payload_mtu=3)

    after = offered(before, asked, from_device=False)
    after = offered(after, cm.REP(local_qpn=9, starting_psn=10), from_device=True)

    assert after == replace(before, peer_qpn=7, sq_psn=8, mtu=1024, rq_psn=10)
    assert offered(before, replace(asked, path_packet_payload_mtu=6), from_device=True).mtu == 256
    assert offered(before, cm.DREQ(), from_device=True) == before
    assert offered(before, None, from_device=True) == before


# Frames that leave.


def test_frames_of_the_script_leave_first() -> None:
    diverted = Diverted(Other(), MAC, PEER)
    diverted.leaving += [b"first", b"second"]

    assert [diverted.poll_transmit(0) for _ in range(4)] == [
        b"first",
        b"second",
        b"of the node",
        None,
    ]


def test_a_flood_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ibwire.drill.targets.live.MAXIMUM_FRAMES", 3)
    diverted = Diverted(Other(), MAC, PEER)

    for _ in range(5):
        diverted.receive(frame(0x77), 0)

    assert len(diverted.outbound) == 3
    assert diverted.is_flooded


def test_timeouts_are_the_nodes() -> None:
    node = Other()
    diverted = Diverted(node, MAC, PEER)
    diverted.handle_timeout(7)

    assert diverted.poll_timeout() == 5
    assert node.received == [b"timeout"]


# Rules.


def impaired(diverted: Diverted, text: str, now: Time = 0) -> None:
    (case,) = parse(text.encode(), "s.drill").cases
    for step in case.steps:
        assert isinstance(step, Impair)
        diverted.way.impair(step, Scope("s.drill", {}), now)


def test_what_a_rule_delays_leaves_when_its_time_has_come() -> None:
    node = Other()
    node.leaving.clear()
    diverted = Diverted(node, MAC, PEER)
    impaired(diverted, "impair < delay=5ns", now=7)

    diverted.way.receive(b"late", 10)
    before = diverted.poll_transmit(10)
    diverted.handle_timeout(5010)

    assert before is None
    assert diverted.poll_transmit(5010) == b"late"


def test_a_delay_wakes_before_the_node_wants_to() -> None:
    node = Other()
    node.poll_timeout = lambda: 9000  # type: ignore[method-assign]
    diverted = Diverted(node, MAC, PEER)
    impaired(diverted, "impair < delay=5ns")

    diverted.way.receive(b"late", 10)

    assert diverted.poll_timeout() == 5010


def test_packets_of_the_peer_pass_the_rules() -> None:
    diverted = Diverted(Other(), MAC, PEER)
    impaired(diverted, "impair > drop nth=1\nimpair > delay=5ns nth=2")

    for now in (10, 20, 30):
        diverted.receive(frame(0x77), now)
    diverted.handle_timeout(5030)

    assert [time for time, _ in diverted.outbound] == [20, 5030]


def test_a_held_packet_arrives_when_no_other_passes_it() -> None:
    diverted = Diverted(Other(), MAC, PEER)
    impaired(diverted, "impair > reorder nth=1 max_delay=5ns")

    diverted.receive(frame(0x77), 10)
    before = len(diverted.outbound)
    diverted.handle_timeout(5011)

    assert before == 0
    assert list(diverted.outbound) == [(5011, frame(0x77))]


def test_rules_end_with_their_connection() -> None:
    diverted = Diverted(Other(), MAC, PEER)
    impaired(diverted, "impair > drop\nimpair < delay=5ns")
    diverted.way.receive(b"late", 10)

    diverted.forget(0x66)
    diverted.receive(frame(0x77), 20)
    diverted.handle_timeout(5010)

    assert list(diverted.outbound) == [(20, frame(0x77))]
    assert diverted.poll_transmit(5010) == b"of the node"


def test_nothing_is_sent_to_another_mac_address_than_the_peers() -> None:
    diverted = Diverted(Other(), MAC, PEER)
    diverted.line.mac = bytes.fromhex("020000000001")
    impaired(diverted, "impair < rewrite ethernet.dst=0x020000000002")

    with pytest.raises(Unable, match="needs a frame to 02:00:00:00:00:02: only the peer"):
        diverted.way.receive(diverted.line.mac + frame(0x77)[6:], 0)

    assert not diverted.leaving


def test_a_flood_that_is_lost_is_not_kept_either(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ibwire.drill.language.impairments.MAXIMUM_UNDER_WAY", 3)
    diverted = Diverted(Other(), MAC, PEER)
    impaired(diverted, "impair > drop")

    for now in range(3):
        diverted.receive(frame(0x77), now)
    with pytest.raises(TooBusy, match="more than 3 packets under way"):
        diverted.receive(frame(0x77), 3)


def test_a_flood_of_one_case_is_none_of_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ibwire.drill.targets.live.MAXIMUM_FRAMES", 1)
    diverted = Diverted(Other(), MAC, PEER)
    for now in range(2):
        diverted.receive(frame(0x77), now)

    diverted.forget(0x77)

    assert not diverted.is_flooded


# Numbers of a connection.


class Link:
    """An endpoint, as far as its numbers go."""

    def psn(self) -> int:
        return 99

    def path_mtu(self) -> int:
        return 1024


class Number:
    number = 0x77


def connected(source: str, *, is_command: bool = False, **given: int) -> tuple[int, ...]:
    endpoint: Endpoint = Link()  # type: ignore[assignment]
    way = ByParameters(source, is_command=is_command)
    with way.connect(endpoint, Number(), given) as found:
        return found.qpn, found.mtu, found.rq_psn, found.sq_psn, found.memory.get("end", 0)


def test_missing_numbers_of_a_file_have_defaults(tmp_path: Path) -> None:
    path = tmp_path / "numbers"
    path.write_text('{"qpn": 5}')

    assert connected(str(path)) == (5, 1024, 99, 0, 0)


def test_a_command_gets_our_end_of_the_connection() -> None:
    text = '{\\"qpn\\": $IBWIRE_QPN, \\"rq_psn\\": $IBWIRE_PSN, \\"va\\": 4096, \\"size\\": 8}'

    assert connected(f'echo "{text}"', is_command=True, rq_psn=1234) == (0x77, 1024, 1234, 0, 4104)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("{", "not JSON"),
        ("[" * 100_000, "not JSON"),
        ("[]", "not a JSON object"),
        ("{}", "qpn, the number of the device's queue pair, is missing"),
        ('{"qpn": 5, "foo": 1}', "'foo' is not one of qpn, peer_qpn, "),
        ('{"qpn": "5"}', "qpn is '5'"),
        ('{"qpn": 16777216}', "qpn is 16777216, not a number below 16777216"),
        ('{"qpn": 5, "va": -1}', "va is -1"),
        ('{"qpn": 5, "mtu": 1000}', "mtu is 1000, not one of .256, 512, 1024, "),
        ('{"qpn": true}', "qpn is True"),
    ],
)
def test_wrong_numbers_are_reported(tmp_path: Path, text: str, reason: str) -> None:
    path = tmp_path / "numbers"
    path.write_text(text)

    with pytest.raises(PeerError, match=reason):
        connected(str(path))


def test_a_source_without_numbers_is_reported(tmp_path: Path) -> None:
    with pytest.raises(PeerError, match="No such file"):
        connected(str(tmp_path / "none"))
    with pytest.raises(PeerError, match="exit status 3"):
        connected("exit 3", is_command=True)


class Deep:
    """A channel to an agent that answers with brackets."""

    peer = "10.0.0.2:18516"
    waiting = b"[" * 100_000 + b"\n"

    def fileno(self) -> int:
        return 0

    def send(self, data: bytes) -> None: ...

    def read(self, size: int) -> bytes | None:
        return self.waiting if size == len(self.waiting) else None


class Waiting(Link):
    def wait(self, done: Callable[[], bool], what: str, **options: object) -> None:
        assert done()


def test_an_answer_that_nests_too_deep_is_that_of_no_agent() -> None:
    agent = _Agent(Waiting(), Deep(), 1.0)

    with pytest.raises(PeerError, match="not an agent"):
        agent.ask({"do": "about"})


# The command.


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (["--dev", "lo"], "--dev and --peer are required"),
        (["--peer", "10.0.0.1"], "--dev and --peer are required"),
        (["--connect", "params"], "requires --params or --params-from"),
        (["--params", "x"], "require --connect params"),
        (["--mtu", "256"], "--mtu requires --connect pingpong"),
        (["--capture", "x", "--device", "10.0.0.1"], "either a recording or a device"),
        (["--hardware-timestamps"], "--hardware-timestamps: --dev and --peer are required"),
        (
            ["--hardware-timestamps", "--dev", "lo", "--peer", "10.0.0.1", "--token", "t"],
            "--hardware-timestamps requires --tap",
        ),
        (["--tolerance", "5", "--limit", "3"], "--tolerance, --limit: --dev and --peer"),
        (["--params-from", "true", "--vlan", "5"], "--vlan, --params-from: --dev and --peer"),
    ],
)
def test_options_that_do_not_fit_are_wrong_usage(
    tmp_path: Path, options: list[str], reason: str
) -> None:
    script = tmp_path / "s.drill"
    script.write_text("+1us silence\n")
    if len(options) == 2 and options[0] in ("--connect", "--params", "--mtu"):
        options = [*options, "--dev", "lo", "--peer", "10.0.0.1"]
    if options[0] == "--capture":
        capture = Path(__file__).parents[2] / "captures" / "drop-one-middle.b.pcap"
        options = ["--capture", str(capture), "--device", "10.77.0.2", "--dev", "lo"]

    result = CliRunner().invoke(command, [str(script), *options])

    assert result.exit_code == 2
    assert reason in result.stderr


@pytest.mark.parametrize(
    ("expectation", "options", "hint"),
    [
        ("> ACKNOWLEDGE psn", [], "more than 20 ms late"),
        ("poll recv", ["--tolerance", "2.5"], "more than 2.5 ms late"),
        ("< WRITE_ONLY psn len=8 ack\n> ACKNOWLEDGE psn+1", [], ""),
    ],
)
def test_where_something_is_missing_on_a_link_it_may_have_been_late(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    expectation: str,
    options: list[str],
    hint: str,
) -> None:
    script = tmp_path / "s.drill"
    script.write_text(f"+1us silence\n{expectation}\n")
    # The emulator takes the place of the device.
    monkeypatch.setattr(DrillTargetOptions, "open", lambda _: nullcontext())

    link = ["--dev", "lo", "--peer", "10.0.0.1"]
    result = CliRunner().invoke(command, [str(script), *link, *options])

    assert result.exit_code == 1
    assert ("--tolerance" in result.stderr) == bool(hint)
    assert hint in result.stderr


def test_junit_has_the_reason_of_a_skipped_case(tmp_path: Path) -> None:
    verdict = Verdict("s.drill", "", "Rule.", "", "spec", skipped="needs < that")

    write_junit(str(tmp_path / "out.xml"), [verdict], [])

    text = (tmp_path / "out.xml").read_text()
    assert 'failures="0" errors="0" skipped="1"' in text
    assert '<skipped message="needs &lt; that" />' in text
