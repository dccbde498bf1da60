"""Sweeps: one row a run, continued after an interrupt, the same wherever the runs are done."""

import shlex
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

pq = pytest.importorskip("pyarrow.parquet", reason="pyarrow not installed")

from ibwire.base.errors import WorkError  # noqa: E402
from ibwire.base.toml_settings import parse_setting  # noqa: E402
from ibwire.base.work import one_by_one  # noqa: E402
from ibwire.cli import main, sweep  # noqa: E402
from ibwire.scenario import load, run  # noqa: E402

SCENARIO = """\
[[wire.faults.a]]
drop = 0.05

[[workload]]
count = 8
size = 2048

[expect]
success = "all"
"""

GRID = "sweep s.toml --set workload.size=1KiB,3KiB --set connection.mtu=256,1024 --seeds 2"


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("s.toml").write_text(SCENARIO)
    return tmp_path


def invoke(line: str) -> Result:
    result = CliRunner().invoke(main, shlex.split(line))
    assert not result.exception or isinstance(result.exception, SystemExit), result.exception
    return result


def rows(path: str) -> list[dict[str, Any]]:
    found = pq.read_table(path).to_pylist()
    assert isinstance(found, list)
    return found


@pytest.fixture(scope="module")
def grid(tmp_path_factory: pytest.TempPathFactory) -> tuple[Result, bytes]:
    """The sweep of the grid: how it ended, and its file."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("grid"))
        Path("s.toml").write_text(SCENARIO)
        result = invoke(f"{GRID} -o r.parquet --show retransmitted")
        return result, Path("r.parquet").read_bytes()


def test_each_row_has_what_a_run_of_its_own_measures(grid: tuple[Result, bytes]) -> None:
    result, content = grid
    assert result.exit_code == 0
    Path("r.parquet").write_bytes(content)

    found = rows("r.parquet")
    assert [(row["workload.size"], row["connection.mtu"], row["seed"]) for row in found] == [
        (size, mtu, seed) for size in ("1KiB", "3KiB") for mtu in (256, 1024) for seed in (1, 2)
    ]
    for row in found:
        names = ("workload.size", "connection.mtu")
        settings = [parse_setting(f"{name}={row[name]}") for name in names]
        metrics = run(load("s.toml", settings), row["seed"]).metrics
        assert row["retransmitted"] == metrics["retransmitted"]
        assert row["goodput_bps"] == metrics["goodput"]
        assert row["time_ps"] == metrics["time"]
        assert (row["error"], row["passed"], row["unmet"]) == (None, True, None)
    assert len({row["retransmitted"] for row in found}) > 3


def test_seeds_begin_with_that_of_the_scenario() -> None:
    Path("s.toml").write_text(f"seed = 40\n{SCENARIO}")

    invoke("sweep s.toml --seeds 3 -o r.parquet")

    assert [row["seed"] for row in rows("r.parquet")] == [40, 41, 42]


def test_run_that_fails_is_a_row_with_its_error() -> None:
    result = invoke("sweep s.toml --set connection.mtu=1024,77 -o r.parquet")

    good, bad = rows("r.parquet")
    assert result.exit_code == 1
    assert (good["error"], good["passed"], good["messages"]) == (None, True, 8)
    expected = "s.toml: connection.mtu, which was set: 77 is not one of 256, 512, 1024, 2048, 4096"
    assert (bad["error"], bad["passed"], bad["messages"]) == (expected, False, None)
    assert "first: --set connection.mtu=77 --seed 1" in result.stdout


def test_expectation_that_is_not_met_is_in_the_row() -> None:
    result = invoke("sweep s.toml --set expect.retransmitted=0 -o r.parquet")

    (row,) = rows("r.parquet")
    assert result.exit_code == 1
    assert (row["passed"], row["unmet"]) == (False, "retransmitted == 0")
    assert "1 run: not met: retransmitted == 0" in result.stdout


def test_internal_error_of_one_run_leaves_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    from ibwire.scenario import sweep as module

    def failing(scenario: Any, seed: int) -> Any:
        if seed == 2:
            raise KeyError("nothing")
        return run(scenario, seed)

    monkeypatch.setattr(module, "run", failing)

    assert invoke("sweep s.toml --seeds 3 -o r.parquet").exit_code == 1

    errors = [row["error"] for row in rows("r.parquet")]
    assert errors[0] is errors[2] is None
    assert errors[1].startswith("internal error: KeyError: 'nothing'")


def stopping(error: BaseException, after: int) -> Callable[..., Iterator[Any]]:
    """Work that an error ends after some runs."""

    def work(task: Any, items: Sequence[Any], *, in_order: bool = True) -> Iterator[Any]:
        for number, result in enumerate(one_by_one(task, items)):
            if number == after:
                raise error
            yield result

    return work


def test_interrupted_sweep_keeps_its_rows_and_is_continued(
    grid: tuple[Result, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(sweep, "one_by_one", stopping(KeyboardInterrupt(), 3))
        interrupted = invoke(f"{GRID} -o r.parquet")

    assert interrupted.exit_code == 130
    assert "r.parquet has 3 of 8 runs: the same command does the others" in interrupted.stderr
    assert len(rows("r.parquet")) == 3

    continued = invoke(f"{GRID} -o r.parquet")

    assert "3 of 8 runs are there already" in continued.stderr
    assert Path("r.parquet").read_bytes() == grid[1]


def test_killed_process_keeps_the_rows_of_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweep, "one_by_one", stopping(WorkError("a process was killed"), 2))

    result = invoke(f"{GRID} -o r.parquet")

    assert (result.exit_code, len(rows("r.parquet"))) == (1, 2)
    assert "error: a process was killed" in result.stderr.lower()


def test_rows_that_are_there_are_not_run_again(monkeypatch: pytest.MonkeyPatch) -> None:
    invoke("sweep s.toml --set workload.size=0.5,1KiB --seeds 2 -o r.parquet")
    before = rows("r.parquet")
    monkeypatch.setattr(sweep, "one_by_one", stopping(AssertionError("it runs"), 0))

    result = invoke("sweep s.toml --set workload.size=0.50,1KiB --seeds 2 -o r.parquet")

    assert result.exit_code == 1  # 0.5 is no number of bytes
    assert rows("r.parquet") == before


def test_more_seeds_and_values_are_added() -> None:
    invoke("sweep s.toml --set workload.size=1KiB --seeds 2 -o r.parquet")

    invoke("sweep s.toml --set workload.size=2KiB,1KiB --seeds 3 -o r.parquet")

    found = [(row["workload.size"], row["seed"]) for row in rows("r.parquet")]
    assert found == [(size, seed) for size in ("2KiB", "1KiB") for seed in (1, 2, 3)]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ("text", "has no runs of a sweep"),
        ("scenario", "has runs of another scenario, or of this one before a change"),
        ("keys", "has runs of other keys"),
        ("flows", "has runs of another scenario, or of this one before a change"),
        ("table", "has runs of another version of ibwire"),
    ],
)
def test_file_of_anything_else_is_left_alone(change: str, reason: str) -> None:
    line = "sweep s.toml --set workload.size=1KiB -o r.parquet"
    if change == "flows":
        Path("s.toml").write_text("[topology]\nhosts = 2\n[[flow]]\nfile = 'x.cm'\n")
        Path("x.cm").write_text("0->1 start 0 size 5\n")
        line = "sweep s.toml --set flow.mtu=1024 -o r.parquet"
    assert invoke(line).exit_code == 0
    if change == "flows":
        Path("x.cm").write_text("0->1 start 0 size 6\n")
    elif change == "text":
        Path("r.parquet").write_text("notes")
    elif change == "scenario":
        Path("s.toml").write_text(f"{SCENARIO}time = '<1s'\n")
    elif change == "keys":
        line = line.replace("workload.size=1KiB", "wire.rate=10G")
    else:
        pq.write_table(pq.read_table("r.parquet").replace_schema_metadata({}), "r.parquet")
    before = Path("r.parquet").read_bytes()

    result = invoke(line)

    assert result.exit_code == 1
    assert f"r.parquet: {reason}" in result.stderr
    assert Path("r.parquet").read_bytes() == before


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ("--set wire.rte=1G", "wire.rte, which was set: unknown; did you mean rate?"),
        ("--set wire.rate", "Invalid value for --set: 'wire.rate' is not KEY=VALUE"),
        (
            "--set wire.rate=1G,1G",
            "'wire.rate=1G,1G' is not KEY=VALUE,VALUE,... with each value once",
        ),
        ("--set wire.rate=1G --set wire.rate=2G", "wire.rate twice"),
        ("--seeds 1000 --set wire.delay=" + ",".join(f"{n}ns" for n in range(1001)), "1,001,000"),
        ("--show goodputt", "no metric 'goodputt'; did you mean goodput?"),
        ("--set seed=1,2", "seed is set by --seeds"),
        ("--jobs 2 --ray local", "exclude each other"),
        ("-o r.csv", "use .parquet"),
    ],
)
def test_wrong_usage_is_a_sentence(options: str, reason: str) -> None:
    result = invoke(f"sweep s.toml {options}")

    assert result.exit_code == 2
    assert reason in result.stderr


def test_metric_of_a_connection_can_be_shown() -> None:
    two = "[[connection]]\nname = 'x.y'\n[[connection]]\nname = 'z'\n"
    Path("s.toml").write_text(f"{two}{SCENARIO}")

    result = invoke("sweep s.toml -o r.parquet --show x.y.time --show z.naks.sequence")

    (row,) = rows("r.parquet")
    shown = result.stdout.splitlines()[1].split()
    assert float(shown[1]) == pytest.approx(row["x.y.time_ps"] / 1e6, rel=0.001)
    assert int(shown[3]) == row["z.naks.sequence"]


def test_table_has_the_mean_of_each_combination_within_80_columns(
    grid: tuple[Result, bytes],
) -> None:
    result, content = grid
    Path("r.parquet").write_bytes(content)

    lines = result.stdout.splitlines()
    found = rows("r.parquet")
    means = [
        (found[at]["retransmitted"] + found[at + 1]["retransmitted"]) / 2 for at in (0, 2, 4, 6)
    ]
    assert lines[0].split() == ["size", "mtu", "runs", "retransmitted"]
    assert [float(line.split()[3].replace(",", "")) for line in lines[1:5]] == pytest.approx(
        means, rel=0.01
    )
    assert all(len(line) <= 80 for line in invoke(f"{GRID} -o r.parquet").stdout.splitlines())


@pytest.mark.slow
def test_processes_come_to_the_same_bytes() -> None:
    invoke(f"{GRID} -o one.parquet")

    invoke(f"{GRID} -o two.parquet --jobs 2")

    assert Path("one.parquet").read_bytes() == Path("two.parquet").read_bytes()


@pytest.mark.slow
def test_cluster_comes_to_the_same_bytes() -> None:
    pytest.importorskip("ray", reason="ray not installed")
    invoke(f"{GRID} -o one.parquet")

    invoke(f"{GRID} -o two.parquet --ray local")

    assert Path("one.parquet").read_bytes() == Path("two.parquet").read_bytes()


def test_run_takes_the_settings_of_a_row() -> None:
    result = invoke("run s.toml --set workload.count=7 --seed 3")

    assert result.exit_code == 0
    assert "messages" in result.stdout
    assert "seed 3" in result.stdout
    assert any(line.split() == ["messages", "7"] for line in result.stdout.splitlines())
