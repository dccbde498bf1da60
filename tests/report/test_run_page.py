"""The page of a run: its data, and what a browser makes of it."""

import json
import math
import re
import shutil
import subprocess
from collections.abc import Iterator
from html import unescape
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

pytest.importorskip("pyarrow.parquet", reason="pyarrow not installed")

from each_case import each_case
from ibwire.cli import main
from ibwire.report.run_directory import read_run
from ibwire.report.run_figures import distribution
from ibwire.report.run_page import content

SCENARIO = """\
# Four hosts </script> send to one.
limit = "5ms"

[topology]
kind = "star"
hosts = 5

[cc]
set = "hpcc"

[[switch]]
buffer = "512 KiB"

[[flow]]
from = "h*"
to = "h0"
size = "128 KiB"

[expect]
first_ce = "> 1us"
pauses = 0
"""

CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))),
    None,
)


def invoke(*arguments: object) -> Result:
    result = CliRunner().invoke(main, [str(each) for each in arguments])
    assert not result.exception or isinstance(result.exception, SystemExit), result.exception
    return result


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that does not meet an expectation."""
    place = tmp_path_factory.mktemp("run")
    (place / "s.toml").write_text(SCENARIO)
    assert invoke("run", place / "s.toml", "-o", place / "incast").exit_code == 1
    return place / "incast"


@pytest.fixture(scope="module")
def data(directory: Path) -> dict[str, Any]:
    return content(read_run(str(directory)))


def values(part: object) -> Iterator[object]:
    """Every number, text and `None` in the data."""
    if isinstance(part, dict):
        for each in part.values():
            yield from values(each)
    elif isinstance(part, list | tuple):
        for each in part:
            yield from values(each)
    else:
        yield part


def test_page_is_one_small_file_without_numbers_that_are_none(
    directory: Path, data: dict[str, Any], tmp_path: Path
) -> None:
    page = tmp_path / "page.html"

    assert invoke("report", directory, "-o", page).exit_code == 0

    text = page.read_text()
    assert len(text) < 1_500_000
    assert "Four hosts </script>" not in text
    assert "\\u003c/script\\u003e" in text
    assert all(math.isfinite(each) for each in values(data) if isinstance(each, float))


def test_expectations_and_totals_are_those_of_the_run(
    directory: Path, data: dict[str, Any]
) -> None:
    summary = json.loads((directory / "run.json").read_text())

    assert not data["passed"]
    shown = {each["expected"]: each["passed"] for each in data["expectations"]}
    assert shown["pauses == 0"] is False
    actual = {each["expected"]: each["actual"] for each in data["expectations"]}
    first = summary["metrics"]["first_ce_ps"]
    assert actual["first_ce > 1us"] == ("never" if first is None else f"{first / 1e6:.6g} us")
    tiles = {name: value for name, value, _ in data["tiles"]}
    assert tiles["flows complete"] == "4 of 4"
    assert tiles["CE marks received"] == f"{summary['metrics']['ce_marked']:,}"


def test_hottest_link_is_that_of_the_receiver(data: dict[str, Any]) -> None:
    first = data["links"][0]

    assert (first["from"], first["to"]) == ("s0", "h0")
    assert first["load"] > 0.9
    # 4 x 128 packets of 1106 bytes of line time, and a RETH of each flow.
    assert first["bytes"] >= 4 * (128 * 1106 + 16)
    drawn = {(link["a"], link["b"]): link for link in data["topology"]["links"]}
    busiest = max(drawn.values(), key=lambda link: max(link["there"], link["back"]))
    assert {busiest["a"], busiest["b"]} == {"s0", "h0"}
    levels = {node["name"]: node["level"] for node in data["topology"]["nodes"]}
    assert levels == {"s0": 1, **{f"h{number}": 0 for number in range(5)}}


def test_time_line_has_queues_and_pauses_within_the_traffic(data: dict[str, Any]) -> None:
    titles = [each["text"] for each in data["times"]["layout"]["annotations"]]
    traces = data["times"]["data"]

    assert titles[0].startswith("Queues of switch ports")
    assert titles[-1].startswith("Pauses")
    held = [each for each in traces if each["meta"]["role"] == "pause"]
    assert sorted(each["name"] for each in held) == [f"h{n} → s0 P3" for n in range(1, 5)]
    low, high = data["times"]["layout"]["xaxis"]["range"]
    times = [x for each in traces for x in each["x"] if x is not None]
    assert low < min(times) <= max(times) < high
    assert max(times) > 0.5 * high


def test_distribution_has_the_share_of_flows_that_are_faster() -> None:
    figure = distribution("x", [4.0, 1.0, None, 2.0, 3.0], str)

    assert figure is not None
    assert figure["data"][0]["x"] == [1.0, 2.0, 3.0, 4.0]
    assert figure["data"][0]["y"] == [0.25, 0.5, 0.75, 1.0]
    assert 3 <= len(figure["layout"]["xaxis"]["tickvals"]) <= 8
    assert distribution("x", [1.0], str) is None


@each_case("spread", [1.0001, 1.3, 3, 20, 500, 1e6, 1e12])
def test_ticks_are_few_and_inside(spread: float) -> None:
    figure = distribution("x", [7.0, 7.0 * spread], str)

    assert figure is not None
    axis = figure["layout"]["xaxis"]
    low, high = (10**each for each in axis["range"])
    assert 1 <= len(axis["tickvals"]) <= 8
    assert all(low * 0.999 <= each <= high * 1.001 for each in axis["tickvals"])


@pytest.mark.parametrize(
    ("name", "text", "reason"),
    [
        ("run.json", "{", "cannot be read"),
        ("run.json", "[]", "does not describe a run"),
        ("run.json", '{"kind": "ibwire run", "format": 99}', "is of another version of ibwire"),
        ("flows.parquet", "no table", "cannot be read"),
        ("queues.parquet", None, "cannot be read"),
    ],
)
def test_directory_that_is_damaged_is_a_sentence(
    directory: Path, tmp_path: Path, name: str, text: str | None, reason: str
) -> None:
    shutil.copytree(directory, tmp_path / "run")
    if text is None:
        (tmp_path / "run" / name).unlink()
    else:
        (tmp_path / "run" / name).write_text(text)

    result = invoke("report", tmp_path / "run", "-o", tmp_path / "x.html")

    assert result.exit_code == 3
    assert f"{name}: {reason}" in result.stderr
    assert not (tmp_path / "x.html").exists()


def test_another_directory_is_none_of_a_run(tmp_path: Path) -> None:
    result = invoke("report", tmp_path, "-o", tmp_path / "x.html")

    assert result.exit_code == 3
    assert "is a directory without run.json, so not one of `ibwire run -o`" in result.stderr


def test_run_is_not_mixed_with_captures(directory: Path, captures: Path) -> None:
    result = invoke("report", directory, captures / "chaos.b.pcap", "-o", "x.html")

    assert result.exit_code == 2
    assert "has a page of its own" in result.stderr


USE = """<script>addEventListener("load", async () => {
  const errors = window.errors, found = { errors };
  const settled = () => new Promise((done) => setTimeout(done, 400));
  for (let tries = 0; !window.Plotly && tries < 100; tries++) await settled();
  await settled();
  const boxes = (query) => [...document.querySelectorAll(query)]
    .map((each) => each.getBoundingClientRect());
  const overlap = (one, other) => one.left < other.right && other.left < one.right
    && one.top < other.bottom && other.top < one.bottom;
  const pairs = (all) => all.flatMap((one, index) => all.slice(index + 1)
    .filter((other) => overlap(one, other))).length;
  found.texts = document.body.innerText;
  found.wide = document.documentElement.scrollWidth <= innerWidth;
  found.names = pairs(boxes("#network svg text"));
  found.titles = pairs(boxes("#times .annotation-text"));
  found.ticks = pairs(boxes("#times .xtick text"));
  found.light = document.querySelector("#times .plot").layout.paper_bgcolor;
  document.getElementById("theme").click();
  await settled();
  found.dark = document.querySelector("#times .plot").layout.paper_bgcolor;
  const result = document.createElement("pre");
  result.id = "result";
  result.textContent = JSON.stringify(found);
  document.body.append(result);
});</script>"""

WATCH = """<script>window.errors = [];
addEventListener("error", (event) => errors.push(`${event.message}`));
addEventListener("securitypolicyviolation", (event) => errors.push(`refused ${event.blockedURI}`));
</script>"""


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed")
@pytest.mark.parametrize("width", [1300, 500])
def test_browser_draws_it_without_errors_and_overlaps(
    directory: Path, tmp_path: Path, width: int
) -> None:
    page = tmp_path / "page.html"
    invoke("report", directory, "-o", page)
    head, _, tail = page.read_text().replace("<head>", f"<head>{WATCH}", 1).rpartition("</body>")
    page.write_text(f"{head}{USE}</body>{tail}")

    run = subprocess.run(
        [
            CHROMIUM,
            *("--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run"),
            *(f"--user-data-dir={tmp_path / 'profile'}", "--virtual-time-budget=30000"),
            *(f"--window-size={width},900", "--dump-dom", page.as_uri()),
        ],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )

    found = re.search(r'<pre id="result">(.*?)</pre>', run.stdout, re.S)
    assert found, run.stdout[-500:]
    used = json.loads(unescape(found[1]))
    assert used["errors"] == []
    assert used["wide"]
    assert not re.search(r"\b(NaN|undefined|Infinity)\b", used["texts"])
    assert (used["names"], used["titles"], used["ticks"]) == (0, 0, 0)
    assert used["light"] != used["dark"]
