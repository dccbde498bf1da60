"""The page in a browser: headless Chromium loads it, and a script uses it as a reader would."""

import json
import re
import shutil
import subprocess
from html import unescape
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from ibwire.capture import PcapngWriter, open_capture
from ibwire.cli.report import command

CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))),
    None,
)
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed"),
]

DARK = "--blink-settings=preferredColorScheme=0"

WATCH = """<script>
const errors = [];
addEventListener("error", (event) => errors.push(`${event.message}`));
addEventListener("securitypolicyviolation", (event) => errors.push(`refused ${event.blockedURI}`));
</script>"""

USE = """<script>addEventListener("load", async () => {
  const found = {};
  const all = (query) => [...document.querySelectorAll(query)];
  const one = (query) => document.querySelector(query);
  const plot = one("#plot");
  const settled = () => new Promise((done) => setTimeout(done, 400));
  for (let tries = 0; !window.Plotly && tries < 100; tries++) await settled();
  await settled();
  try { await (async () => { SCRIPT })(); } catch (error) { errors.push(`${error.stack}`); }
  found.errors = errors;
  found.requests = performance.getEntriesByType("resource").map((each) => each.name);
  const result = document.createElement("pre");
  result.id = "result";
  result.textContent = JSON.stringify(found);
  document.body.append(result);
});</script>"""


def browse(directory: Any, capture: Any, script: Any, *options: Any) -> Any:
    """What a script found on the page about a capture."""
    page = directory / "page.html"
    result = CliRunner().invoke(command, [str(capture), "-o", str(page)])
    assert result.exit_code == 0, result.output
    text = page.read_text(encoding="utf-8").replace("<head>", f"<head>{WATCH}", 1)
    head, _, tail = text.rpartition("</body>")
    page.write_text(f"{head}{USE.replace('SCRIPT', script)}</body>{tail}", encoding="utf-8")
    run = subprocess.run(
        [
            CHROMIUM,
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            "--no-first-run",
            f"--user-data-dir={directory / 'profile'}",
            "--virtual-time-budget=30000",
            "--window-size=1300,900",
            "--disable-background-networking",
            *options,
            "--dump-dom",
            page.as_uri(),
        ],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    found = re.search(r'<pre id="result">(.*?)</pre>', run.stdout, re.S)
    assert found, run.stdout[-500:]
    return json.loads(unescape(found[1]))


@pytest.fixture(scope="module")
def used(captures: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A reader clicks a packet of the events, switches the theme, hides a kind of event, sorts."""
    return browse(
        tmp_path_factory.mktemp("used"),
        captures / "chaos.b.pcap",
        """
        const rows = all("#events tbody tr");
        found.events = rows.length;
        found.headline = one("#headline .badge").textContent;
        found.timed = all("#story .event").length;
        found.panels = plot.layout.annotations.map((each) => each.text);
        found.names = plot.data.map((each) => each.name);
        found.text = plot.data.find((each) => each.name === "NAK").text[0];
        found.light = plot.layout.paper_bgcolor;
        found.wide = document.documentElement.scrollWidth <= innerWidth;
        const nak = rows.find((each) => each.dataset.number === "14");
        nak.querySelector("a").click();
        await settled();
        found.range = plot.layout.xaxis.range;
        found.psns = plot.layout.yaxis.range;
        found.shapes = plot.layout.shapes.length;
        found.picked = one("#picked").textContent;
        found.row = one("#events tr.picked").dataset.number;
        const steady = all("#story a").find((each) => each.textContent === "10");
        steady.click();
        await settled();
        found.steady = plot.layout.xaxis.range;
        one("#kinds button").click();
        found.left = rows.filter((each) => !each.hidden).length;
        one("#theme").click();
        await settled();
        found.dark = plot.layout.paper_bgcolor;
        found.button = one("#theme").textContent;
        """,
    )


def test_the_page_draws_itself_without_errors_or_network(used: Any) -> None:
    assert used["errors"] == []
    assert used["requests"] == []
    assert used["wide"]


def test_headline_and_timeline_are_shown(used: Any) -> None:
    assert used["headline"] == "degraded"
    assert used["timed"] > 10


def test_every_panel_and_every_kind_of_mark_is_drawn(used: Any) -> None:
    assert [title.split(" ")[0].rstrip(":") for title in used["panels"]] == [
        "PSN",
        "Message",
        "Goodput",
    ]
    names = {"request", "request, retransmitted", "NAK", "lost (never seen here)"}
    assert names <= set(used["names"])
    assert used["text"] == "NAK"


def test_a_click_on_an_event_shows_its_place(used: Any) -> None:
    """tshark: packet 14 is a NAK of PSN 16777154 at 187.374 ms."""
    (first, last), (low, high) = used["range"], used["psns"]

    assert first < 187.374 < last
    assert last - first < 40
    assert low < 16777154 < high
    assert used["shapes"] == 2
    assert used["row"] == "14"
    assert "frame.number == 14" in used["picked"]


def test_a_packet_without_an_event_is_found_in_the_plot(used: Any) -> None:
    """tshark: packet 10 came at 183.592 ms."""
    assert used["steady"][0] < 183.592 < used["steady"][1]
    assert used["steady"] != used["range"]


def test_a_kind_of_event_can_be_hidden(used: Any) -> None:
    assert used["events"] - used["left"] == 4  # lost packets, as wire.json has them


def test_the_switch_changes_the_plot_with_the_page(used: Any) -> None:
    assert (used["light"], used["dark"]) == ("rgb(255, 255, 255)", "rgb(28, 32, 39)")
    assert used["button"] == "Light"


COMMENT = "</script><script>window.pwned=1</script><img src=x onerror=window.pwned=1>"

NAME = "<img src=x onerror=window.pwned=1>.pcapng"


@pytest.fixture(scope="module")
def hostile(captures: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Several connections and a hostile comment, seen where dark is preferred; rows are sorted."""
    directory = tmp_path_factory.mktemp("hostile")
    with (
        PcapngWriter(directory / NAME) as writer,
        open_capture(captures / "cm-ucmatose.pcap") as reader,
    ):
        for record in reader.records():
            comments = (COMMENT,) if record.number == 1 else ()
            writer.write(record.data, record.time_ns, record.wire_len, comments=comments)
    return browse(
        directory,
        directory / NAME,
        """
        found.pwned = window.pwned === undefined ? "no" : "yes";
        found.images = all("img").length;
        found.title = one("#title").textContent;
        found.comment = one("#comments tbody tr").cells[1].textContent;
        found.background = plot.layout.paper_bgcolor;
        const heading = () =>
          all("#table th button").find((each) => each.textContent === "packets");
        const packets = () => all("#table tbody tr").map((row) => Number(row.cells[5].textContent));
        heading().click();
        found.down = packets();
        heading().click();
        found.up = packets();
        const last = all("#table tbody tr.link").at(-1);
        last.click();
        found.number = last.dataset.connection;
        found.name = one("#name").textContent;
        """,
        DARK,
    )


def test_hostile_names_and_comments_are_shown_as_text(hostile: Any) -> None:
    assert hostile["errors"] == []
    assert (hostile["pwned"], hostile["images"]) == ("no", 0)
    assert (hostile["title"], hostile["comment"]) == (NAME, COMMENT)


def test_the_theme_of_the_system_is_followed(hostile: Any) -> None:
    assert hostile["background"] == "rgb(28, 32, 39)"


def test_rows_can_be_sorted_and_opened(hostile: Any) -> None:
    assert hostile["down"] == sorted(hostile["down"], reverse=True) != hostile["up"]
    assert hostile["up"] == sorted(hostile["up"])
    assert hostile["name"].startswith(f"Connection {hostile['number']}:")


def test_a_connection_without_packets_has_no_plot(captures: Path, tmp_path: Path) -> None:
    """The only messages about it are a REQ and a REJ: captures/index.toml."""
    found = browse(
        tmp_path,
        captures / "cm-reject.pcap",
        """
        found.badge = one("#headline .badge").textContent;
        found.hidden = plot.hidden;
        one("#table tbody tr:not(.picked)").click();
        await settled();
        found.shown = !plot.hidden && plot.data.length > 0;
        """,
    )

    assert found["errors"] == []
    assert found["badge"] == "cm-rejected(invalid-service-id)"
    assert found["hidden"]
    assert found["shown"]
