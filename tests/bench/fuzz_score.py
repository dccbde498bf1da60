"""Score of the fuzzer: which mutants it finds, how soon, and what it finds in error.

python tests/bench/fuzz_score.py [TABLE ...] [--only NAME] [--seeds N] [--packets N] [--jobs N]

A table is in the format of tests/mutants/table.toml: each mutant replaces a snippet of a module
by another one. `[mutant.fuzz]`, which names the rule and the side at fault, may be left out.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from math import inf
from pathlib import Path

import click

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from mutants.engine import StaleMutant
from mutants.score import (
    CAP,
    GENERATORS,
    SHORT,
    Alarms,
    Score,
    Total,
    false_alarms,
    score,
    sooner,
    total,
)
from mutants.table import OWN_TABLES, TABLE, read_mutants

FAILED = 1
WRONG_USAGE = 2

CLEAN_PACKETS = 1_000_000


class Seeds(click.ParamType[tuple[int, ...]]):
    """A number of seeds from 1 on, or the seeds themselves: `5`, `3,` or `7,9`."""

    name = "seeds"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[int, ...]:
        """The seeds."""
        if isinstance(value, tuple):
            return value
        text = str(value)
        try:
            numbers = tuple(int(each) for each in text.split(",") if each)
        except ValueError:
            numbers = ()
        if "," not in text and numbers:
            numbers = tuple(range(1, numbers[0] + 1)) if numbers[0] < 100 else ()
        if not numbers:
            self.fail(f"{text!r}: a number of seeds from 1 to 99, or seeds such as 7,9")
        return numbers


@click.command()
@click.argument("tables", nargs=-1, type=click.Path(path_type=Path), metavar="[TABLE]...")
@click.option(
    "--seeds",
    type=Seeds(),
    default="5",
    show_default=True,
    help="How many, from 1 on; or which, with a comma: 7,9.",
)
@click.option(
    "--packets",
    "--cap",
    "cap",
    type=click.IntRange(min=1),
    default=CAP,
    show_default=True,
    help="Packets in a role after which a mutant counts as not found.",
)
@click.option("--jobs", type=click.IntRange(1, 256), help="Processes; one a processor by default.")
@click.option(
    "--generator",
    "generator",
    type=click.Choice([*GENERATORS, "all"]),
    help="Ours; what it is measured by: single messages made of blocks; the same with paths of "
    "several messages and a probe after each; or all three. Default: all, with TABLE stateful.",
)
@click.option(
    "--clean-packets",
    type=click.IntRange(min=0),
    help="Packets to each profile without a mutant, where nothing may be found. Default: "
    f"{CLEAN_PACKETS}, with TABLE 0.",
)
@click.option("--only", multiple=True, metavar="NAME", help="One mutant. [all]")
@click.option("--json", "as_json", is_flag=True, help="One object a result, one for each total.")
def command(
    tables: tuple[Path, ...],
    seeds: tuple[int, ...],
    cap: int,
    jobs: int | None,
    generator: str | None,
    clean_packets: int | None,
    only: tuple[str, ...],
    as_json: bool,
) -> None:
    """Measure the fuzzer against the mutants of tables; by default of all in tests/mutants.

    For each mutant: packets until the first finding (median of the seeds, `-` if most of
    them find nothing), packets of the shortest case, whether the saved cases replay; with
    several generators also which faults another one than the first finds sooner. A mutant
    is looked for in its own role, then in the other role of a queue pair. Then the profiles
    without a fault. Exit status 1 when something is found in those, or a case does not replay;
    2 when a table cannot be read or a mutant does not fit the code.

    \b
    python tests/bench/fuzz_score.py --only icrc-ignored --clean-packets 0
    python tests/bench/fuzz_score.py tests/mutants/interactions.toml --seeds 1
    """
    processes = jobs or os.cpu_count() or 1
    usual = "stateful" if tables else "all"
    chosen = [generator or usual] if (generator or usual) != "all" else list(GENERATORS)
    wanted = _wanted(tables or OWN_TABLES, only)
    try:
        scores: list[Score] = []
        if not as_json:
            heads = "".join(f"{name:>10}" for name in chosen)
            click.echo(f"{'fault':42}{'role':11}{heads}  shortest case")
        for table, names in wanted.items():
            results = score(names, chosen, table=table, seeds=seeds, cap=cap, jobs=processes)
            scores += _print_scores(results, chosen, as_json)
    except StaleMutant as error:
        click.echo(f"error: {error}", err=True)
        sys.exit(WRONG_USAGE)
    totals = {name: total([each for each in scores if each.generator == name]) for name in chosen}
    _print_totals(totals, as_json)
    for name in chosen[1:]:
        _print_sooner(sooner(scores, chosen[0], name), name, totals[name].found, as_json)
    is_wrong = any(each.replayed < each.findings for each in totals.values())
    if clean_packets is None:
        clean_packets = 0 if tables else CLEAN_PACKETS
    if clean_packets:
        same = false_alarms(clean_packets, jobs=processes)
        is_wrong |= _print_alarms(same, as_json) > 0
        _print_alarms(false_alarms(cap, reference="spec", jobs=processes), as_json)
    if is_wrong:
        sys.exit(FAILED)


def _wanted(tables: Sequence[Path], only: Sequence[str]) -> dict[Path, list[str]]:
    """The mutants to measure of each table: of our own those that are for the fuzzer."""
    wanted: dict[Path, list[str]] = {}
    for table in tables:
        try:
            mutants = read_mutants(table)
        except (OSError, ValueError, KeyError, TypeError, AssertionError) as error:
            raise click.BadParameter(f"{table}: {error!r}", param_hint="TABLE") from None
        is_own = table.resolve() == TABLE
        names = [name for name, each in mutants.items() if each.fuzz is not None or not is_own]
        wanted[table] = [name for name in names if not only or name in only]
    known = {name for names in wanted.values() for name in names}
    for name in only:
        if name not in known:
            raise click.BadParameter(f"no mutant {name!r}", param_hint="--only")
    return wanted


def _print_scores(results: Iterable[Score], chosen: Sequence[str], as_json: bool) -> list[Score]:
    """One row per fault, as soon as it is known."""
    scores: list[Score] = []
    for each in results:
        scores.append(each)
        if as_json:
            click.echo(
                json.dumps({"kind": "score", "median": _finite(each.median), **asdict(each)})
            )
        elif each.generator == chosen[-1]:
            _print_row(scores[-len(chosen) :])
    return scores


def _print_row(row: Sequence[Score]) -> None:
    packets = "".join(f"{each.median:>10,.0f}" if each.is_found else f"{'-':>10}" for each in row)
    findings = row[0].findings
    shortest = ", ".join(str(each.minimised) for each in findings)
    lost = sum(not each.replays for each in findings)
    note = f"  {lost} do not replay" if lost else ""
    missed = len(row[0].trials) - len(findings)
    if missed and findings:
        note += f"  {missed} of {len(row[0].trials)} seeds find nothing"
    click.echo(f"{row[0].fault:42}{row[0].role:11}{packets}  {shortest}{note}")


def _print_totals(totals: dict[str, Total], as_json: bool) -> None:
    if as_json:
        for name, each in totals.items():
            click.echo(json.dumps({"kind": "total", "generator": name, **asdict(each)}))
        return
    click.echo("")
    for name, each in totals.items():
        click.echo(
            f"{name}: {each.found} of {each.faults} found ({_percent(each.found, each.faults)}), "
            f"{each.by_crash} of them by a crash; of {each.findings} findings "
            f"{_percent(each.short, each.findings)} with at most {SHORT} packets, "
            f"{_percent(each.replayed, each.findings)} replay, "
            f"{_percent(each.ruled, each.findings)} name the rule; "
            f"found by each seed: {', '.join(map(str, each.by_seed))}"
        )
    (first, ours), *others = totals.items()
    for name, each in others:
        if each.found:
            click.echo(f"{first} finds {ours.found / each.found:.2f} times as many as {name}")


def _print_sooner(
    found: Sequence[tuple[Score, Score]], other: str, count: int, as_json: bool
) -> None:
    """Say which of the faults that another generator finds it finds sooner, by the median."""
    if as_json:
        faults = {own.fault: [_finite(own.median), each.median] for own, each in found}
        click.echo(json.dumps({"kind": "sooner", "generator": other, "faults": faults}))
        return
    click.echo(f"{other} is sooner on {len(found)} of {count}")
    for own, each in found:
        first = f"after {own.median:,.0f}" if own.is_found else "not found"
        click.echo(f"  {own.fault}: after {each.median:,.0f} packets, {own.generator} {first}")


def _print_alarms(results: Iterable[Alarms], as_json: bool) -> int:
    """Say what was found without a fault; how much that is."""
    count = 0
    for each in results:
        count += len(each.findings)
        if as_json:
            click.echo(json.dumps({"kind": "clean", **asdict(each)}))
            continue
        of = "" if each.profile == each.reference else f" held against {each.reference}"
        what = f"{len(each.findings)} findings, {len(each.choices)} allowed choices"
        click.echo(f"{each.profile}{of}, {each.role}: {each.packets:,} packets, {what}")
        for text in each.findings:
            click.echo(f"  finding: {text}")
        for text in each.choices:
            click.echo(f"  allowed: {text}")
    return count


def _percent(part: int, whole: int) -> str:
    return f"{part / whole:.0%}" if whole else "-"


def _finite(number: float) -> float | None:
    return None if number == inf else number


if __name__ == "__main__":
    command()
