"""The page about a capture: what it holds, that it is bounded, and that nothing in it is markup.

PSNs, packet numbers and times of drop-one-middle.a.pcap are tshark's; its wire.json
says that one packet was lost behind this point. Of chaos.b.pcap it says what was lost.
"""

import base64
import gzip
import json
import random
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from each_case import each_case
from ibwire.capture import PcapngWriter, open_capture
from ibwire.cli import main
from ibwire.connections.connection import Connection, End
from ibwire.connections.events import FlowEvent, FlowEventKind
from ibwire.dissect import Columns
from ibwire.report.figures import main_range, plotly_script
from ibwire.report.html import Closer, page
from ibwire.report.page_survey import Survey
from ibwire.report.series import EVENTS, Bins, Point, Series, Thinned, round_step
from ibwire_layers.opcodes import OpCode, Service

HOSTILE = (
    "</script><script>window.pwned=1</script><!--<img src=x onerror=window.pwned=1>&amp;\u2028"
)


def content(path: Path, most: int = 12) -> Any:
    survey = Survey(str(path))
    for reading in (survey, None):
        reading = reading or (closer := Closer(survey.finish(), most))  # type: ignore[assignment]
        with open_capture(path) as reader:
            for batch in reader.batches():
                reading.take(Columns(batch, str(path)))
    return json.loads(embedded("".join(page(closer.finish()))))


def embedded(text: str) -> Any:
    """The object in the page, as a browser finds it: up to the first end of the element."""
    return re.search(r'<script type="application/json" id="data">(.*?)</script', text, re.S)[1]  # type: ignore[index]


def write_commented(source: Any, target: Any, comment: Any) -> None:
    with PcapngWriter(target) as writer, open_capture(source) as reader:
        for record in reader.records():
            comments = (comment,) if record.number == 3 else ()
            writer.write(record.data, record.time_ns, record.wire_len, comments=comments)


@pytest.fixture(scope="module")
def lost(captures: Path) -> Any:
    return content(captures / "drop-one-middle.a.pcap")


@pytest.fixture(scope="module")
def chaos(captures: Path) -> Any:
    return content(captures / "chaos.b.pcap")


# What the page says.


def test_events_stand_at_their_packets_with_time_and_psn(lost: Any) -> None:
    (nak, resend) = lost["connections"]["1"]["events"]

    assert (nak["kind"], nak["number"], nak["time"]) == ("nak", 20, 0.318254)
    assert nak["place"] == [pytest.approx(318.254), "y", 103]
    assert (resend["kind"], resend["number"]) == ("retransmission", 21)
    assert "7 requests retransmitted from here to packet 27" in resend["text"]
    assert "NAK in packet 20" in resend["text"]


def test_each_packet_sent_again_is_a_point_with_its_cause(lost: Any) -> None:
    figure = lost["connections"]["1"]["figure"]
    (trace,) = (trace for trace in figure["data"] if trace["meta"]["role"] == "retransmission")
    words = [lost["words"][int(index)] for index in trace["text"]]

    assert words == ["WRITE MIDDLE, retransmitted: NAK"] * 6 + ["WRITE LAST, retransmitted: NAK"]


def test_psns_that_wrap_around_are_counted_on(chaos: Any) -> None:
    """wire.json: PSN 16777154 was lost before the wrap, 30 behind it."""
    lost = [each for each in chaos["connections"]["1"]["events"] if each["kind"] == "lost"]

    assert [each["place"][2] for each in lost][:3] == [16777154, 16777196, (1 << 24) + 30]


def test_totals_are_those_of_the_wire(chaos: Any, captures: Path) -> None:
    wire = json.loads((captures / "chaos.wire.json").read_text())
    actions = [each["act"] for each in wire["actions"] if each["dir"] == "ab"]
    totals = {name: count for name, count, _ in chaos["totals"]}

    # Responses of B that were seen once may have been lost: `flows` says `?` for its direction.
    assert totals["lost before this point"] == f">={actions.count('loss')}"
    assert totals["duplicates"] == str(actions.count("dup"))
    assert totals["wrong ICRC"] == str(actions.count("corrupt"))


def test_totals_that_cannot_be_counted_are_not_zero(captures: Path) -> None:
    """Nothing of the responder is in the capture: `flows` says lost `?` (captures/index.toml)."""
    found = content(captures / "retry-exceeded.pcap")
    totals = {name: count for name, count, _ in found["totals"]}

    assert totals["lost before this point"] == totals["missing after this point"] == "?"
    assert totals["NAKs"] == totals["RNR NAKs"] == "?"
    assert totals["timeouts"] == ">=3"
    assert totals["wrong ICRC"] == totals["CNPs"] == "0"


def test_the_table_of_connections_marks_what_the_totals_mark(captures: Path) -> None:
    (row,) = content(captures / "retry-exceeded.pcap")["rows"]
    assert row["marks"]["lost"] == row["marks"]["naks"] == "?"
    assert row["marks"]["timeouts"] == ">=3"
    (row,) = [r for r in content(captures / "rcx-all-ops.pcap")["rows"] if r["service"] == "RC"]
    assert row["marks"] == {}


def test_findings_have_the_notes_of_check_about_the_status(captures: Path) -> None:
    path = captures / "retry-exceeded.pcap"
    checked = CliRunner().invoke(main, ["check", "--json", str(path)]).stdout.splitlines()

    found = content(path)["findings"]

    assert [each["text"] for each in found] == [json.loads(line)["text"] for line in checked]
    assert found[0]["text"].startswith("retry-exceeded: ")


def test_totals_without_problems_are_zero(captures: Path) -> None:
    found = content(captures / "cm-rping.pcap")

    assert {count for _, count, _ in found["totals"]} == {"0"}


def test_findings_name_packets_whose_places_are_known(chaos: Any) -> None:
    numbers = {number for each in chaos["findings"] for number in each["numbers"]}

    assert numbers
    assert numbers == set(map(int, chaos["spots"]))
    for connection, _, axis, _ in chaos["spots"].values():
        assert (connection, axis) == (1, "y")


def test_congestion_has_a_lane_of_its_own(captures: Path) -> None:
    figure = content(captures / "ecn-ce.b.pcap")["connections"]["1"]["figure"]
    (lane,) = (trace for trace in figure["data"] if trace["meta"]["role"] == "ce")

    # tshark -Y 'ip.dsfield.ecn == 3' counts 11.
    assert lane["y"] == ["CE A → B"] * 11


def test_the_filter_is_that_of_the_connection(lost: Any) -> None:
    assert lost["connections"]["1"]["filter"].startswith("ip.addr == 10.77.0.1 and ip.addr == ")
    assert "infiniband.bth.destqp == 0x000083" in lost["connections"]["1"]["filter"]


def test_datagrams_are_drawn_without_loss(captures: Path) -> None:
    found = content(captures / "ud-pingpong.pcap")

    assert all(not each["events"] for each in found["connections"].values())
    assert all(each["figure"]["data"] for each in found["connections"].values())


def test_a_capture_without_rdma_says_so(tmp_path: Path) -> None:
    path = tmp_path / "empty.pcapng"
    PcapngWriter(path).close()

    found = content(path)
    assert found["connections"] == {}
    assert "no RDMA packets" in found["problems"][0]


def test_connections_beyond_the_limit_have_a_row_and_no_plot(captures: Path) -> None:
    found = content(captures / "cm-ucmatose.pcap", most=1)

    assert len(found["rows"]) > 1
    assert len(found["connections"]) == 1
    assert "--connections" in found["remarks"][0]


# Nothing from a capture is markup.


def test_comments_and_names_stay_text(captures: Path, tmp_path: Path) -> None:
    path = tmp_path / "<img src=x onerror=alert(1)>.pcapng"
    write_commented(captures / "drop-one-middle.a.pcap", path, HOSTILE)

    found = content(path)
    assert found["comments"] == [[3, HOSTILE]]
    assert found["capture"] == path.name


def test_the_page_ends_scripts_only_where_it_means_to(captures: Path, tmp_path: Path) -> None:
    path = tmp_path / "hostile.pcapng"
    write_commented(captures / "drop-one-middle.a.pcap", path, HOSTILE)
    survey = Survey(str(path))
    with open_capture(path) as reader:
        for batch in reader.batches():
            survey.take(Columns(batch, str(path)))
    text = "".join(page(Closer(survey.finish(), 1).finish()))

    assert text.count("</script") == text.count("<script") == 3
    assert "<img" not in embedded(text)
    assert "pwned" in embedded(text)


def test_a_name_that_is_no_unicode_can_be_written() -> None:
    survey = Survey("caf\udce9.pcap")

    assert "".join(page(Closer(survey.finish(), 1).finish())).encode()


def test_the_library_is_in_the_page_compressed() -> None:
    script = gzip.decompress(base64.b64decode(plotly_script())).decode()

    assert "Licensed under the MIT license" in script
    assert "window.Plotly = Plotly" in script


@pytest.mark.parametrize("name", ["chaos.b.pcap", "loss-both-2pc.a.pcap", "cm-ucmatose.pcap"])
def test_a_page_is_small(captures: Path, name: str) -> None:
    survey = Survey(name)
    with open_capture(captures / name) as reader:
        for batch in reader.batches():
            survey.take(Columns(batch, name))

    text = "".join(page(Closer(survey.finish(), 12).finish()))
    assert len(text.encode()) < 1_000_000


@each_case(
    ("heights", "expected"),
    [
        ([5], (5, 5)),
        ([1, 2, 3, 4], (1, 4)),
        ([*range(100, 150), 9_000_000], (100, 149)),
        ([7, *range(16_000_000, 16_000_100), 16_777_215], (16_000_000, 16_000_099)),
        ([*range(50), *range(5000, 5050)], (0, 5049)),  # two halves: neither is left out
        ([*range(100), 130], (0, 130)),  # near enough
        ([*range(0, 1000, 10), 1300], (0, 1300)),  # a quarter of the span
        ([*range(0, 1_000_000, 1000)], (0, 999_000)),
    ],
)
def test_few_values_far_away_do_not_flatten_a_plot(
    heights: list[int], expected: tuple[int, int]
) -> None:
    assert main_range(np.array(heights)) == expected


def test_headline_is_the_verdict_of_the_worst_connection(captures: Path) -> None:
    """The requester gave up: captures/index.toml."""
    found = content(captures / "retry-exceeded.pcap")

    headline = found["headline"]
    assert (headline["badge"]["text"], headline["badge"]["level"]) == ("retry-exceeded", "failed")
    assert headline["text"] == found["connections"]["1"]["verdict"] != ""
    assert found["rows"][0]["status"] == found["connections"]["1"]["badge"] == headline["badge"]


def test_story_has_its_times_and_packets_apart(lost: Any) -> None:
    """tshark: packet 20 is the NAK, at 0.318254 s."""
    timed = [each for each in lost["connections"]["1"]["story"] if "time" in each]

    (nak,) = (each for each in timed if each["packets"] == "#20")
    assert nak["time"] == "0.318254"
    assert nak["text"].startswith("B: NAK")
    assert not any("  " in each["text"] for each in timed)


# What is kept is bounded.


@given(st.integers(0, 1 << 32), st.integers(1, 1500), st.integers(1, 60))
def test_thinning_keeps_few_real_points_and_every_extreme(
    seed: int, count: int, columns: int
) -> None:
    # Drawn from a seed, because Hypothesis hardly ever makes lists so long by itself.
    draw = random.Random(seed)
    values = [(draw.randrange(-50, 1100), draw.randrange(1 << 24)) for _ in range(count)]
    thinned = Thinned(0, 1000, columns)
    given_points = [
        Point(time, value, number, "") for number, (time, value) in enumerate(values, 1)
    ]
    for point in given_points:
        thinned.add(point)
    kept = thinned.points()

    assert thinned.count == len(values)
    assert set(kept) <= set(given_points)
    assert thinned.is_thinned or kept == given_points
    assert len(kept) <= max(2 * (columns + 1), 400)
    heights = [value for _, value in values]
    assert min(point.value for point in kept) == min(heights)
    assert max(point.value for point in kept) == max(heights)


@given(
    st.integers(0, 1 << 32),
    st.integers(1, 30),
    st.lists(st.integers(1, 900), min_size=1, max_size=4),
)
def test_many_points_at_once_are_thinned_as_one_after_the_other(
    seed: int, columns: int, sizes: list[int]
) -> None:
    draw = random.Random(seed)
    one, other = Thinned(0, 1000, columns), Thinned(0, 1000, columns)
    for size in sizes:
        rows = [(draw.randrange(-50, 1100), draw.randrange(40), draw.random()) for _ in range(size)]
        words = [str(word) for *_, word in rows]
        times, values, numbers = (
            np.array(each, np.int64)
            for each in ([time for time, *_ in rows], [value for _, value, _ in rows], range(size))
        )
        other.add_many(times, values, numbers, words.__getitem__)
        for number, (time, value, word) in enumerate(rows):
            one.add(Point(time, value, number, str(word)))

    assert other.count == one.count
    assert other.points() == one.points()


@given(
    st.integers(0, 10**10),
    st.lists(
        st.tuples(st.integers(-10, 10**10), st.integers(0, 10**10), st.integers(0, 1 << 31)),
        max_size=20,
    ),
)
def test_bins_hold_what_was_put_in_and_are_few(
    span: int, messages: list[tuple[int, int, int]]
) -> None:
    bins = Bins(0, span)
    for begin, lasts, size in messages:
        begin = min(begin, span)
        bins.spread(max(begin, 0), min(max(begin, 0) + lasts, span), size)
        bins.add(begin, size)

    assert len(bins.bytes) <= 481
    assert sum(bins.bytes) == pytest.approx(2 * sum(size for *_, size in messages))


@given(st.integers(1, 1 << 70))
def test_a_round_step_is_the_next_that_is_not_smaller(size: int) -> None:
    step = round_step(size)

    assert size <= step < max(size * 2.5, 2)
    assert str(step).rstrip("0") in ("1", "2", "5")


def test_events_are_kept_up_to_a_limit_for_each_kind() -> None:
    connection = Connection(1, (End("a", 1), End("b", 2)), Service.RC)
    series = Series(connection, 100)
    for number in range(1, EVENTS + 101):
        series.event(
            FlowEvent(FlowEventKind.REORDERED, 1, 0, number, number, opcode=OpCode.RC_SEND_ONLY)
        )
    series.event(FlowEvent(FlowEventKind.NAK, 1, 0, 9999, 9999))

    assert len(series.events) == EVENTS + 1
    assert series.left_out() == {FlowEventKind.REORDERED: 100}


def test_loss_of_responses_is_shown_with_the_requests_that_they_answer(captures: Path) -> None:
    """wire.json of drop-read-response: a response of B's was lost on its way to A."""
    wire = json.loads((captures / "drop-read-response.wire.json").read_text())
    (action,) = wire["actions"]
    found = content(captures / "drop-read-response.a.pcap")["connections"]["1"]
    (lost,) = (each for each in found["events"] if each["kind"] == "lost")

    assert action["dir"] == "ba"
    assert lost["way"] == "B → A"
    assert lost["place"][1:] == ["y", action["psn"]]


def test_naks_go_from_the_responder_to_the_requester(captures: Path) -> None:
    """tshark: 10.77.0.2, which is B, sends packets 205, 226, 236 and 382."""
    found = content(captures / "loss-both-2pc.a.pcap")["connections"]["1"]
    ways = {each["number"]: each["way"] for each in found["events"] if each["kind"] == "nak"}

    assert ways == dict.fromkeys((205, 226, 236, 382), "B → A")


def test_retransmitted_packets_are_counted_for_each_direction(chaos: Any) -> None:
    """`ibwire flows` has 98 packets from A and 72 from B."""
    (text,) = (name for name, _, _ in chaos["totals"] if name.startswith("retransmitted"))

    assert text == "retransmitted (98 A → B, 72 B → A)"
