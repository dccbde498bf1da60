"""Score of the fuzzer: which mutants it finds, how soon, and what it finds in error.

PYTHONPATH=tests python tests/bench/fuzz_score.py [--only NAME] [--seeds N] [--jobs N]
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from math import inf

import click

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
    total,
)
from mutants.table import FUZZED

FAILED = 1
WRONG_USAGE = 2

CLEAN_PACKETS = 1_000_000


@click.command()
@click.option("--seeds", type=click.IntRange(1, 99), default=5, show_default=True)
@click.option(
    "--cap",
    type=click.IntRange(min=1),
    default=CAP,
    show_default=True,
    help="Packets after which a mutant counts as not found.",
)
@click.option("--jobs", type=click.IntRange(1, 256), help="Processes; one a processor by default.")
@click.option(
    "--generator",
    "generator",
    type=click.Choice([*GENERATORS, "all"]),
    default="all",
    show_default=True,
    help="Ours; what it is measured by: single messages made of blocks; the same with paths of "
    "several messages and a probe after each; or all three.",
)
@click.option(
    "--clean-packets",
    type=click.IntRange(min=0),
    default=CLEAN_PACKETS,
    show_default=True,
    help="Packets to each profile without a mutant, where nothing may be found.",
)
@click.option("--only", multiple=True, metavar="NAME", help="One mutant. [all]")
@click.option("--json", "as_json", is_flag=True, help="One object a result, one for each total.")
def command(
    seeds: int,
    cap: int,
    jobs: int | None,
    generator: str,
    clean_packets: int,
    only: tuple[str, ...],
    as_json: bool,
) -> None:
    """Measure the fuzzer against the mutants of tests/mutants/table.toml.

    For each mutant: packets until the first finding (median of the seeds, `-` if most of
    them find nothing), packets of the shortest case, whether the saved cases replay. Then
    the profiles without a fault. Exit status 1 when something is found in those, or a
    case does not replay; 2 when a mutant does not fit the code.

    \b
    PYTHONPATH=tests python tests/bench/fuzz_score.py --only icrc-ignored --clean-packets 0
    """
    processes = jobs or os.cpu_count() or 1
    chosen = list(GENERATORS) if generator == "all" else [generator]
    try:
        results = score(_names(only), chosen, seeds=seeds, cap=cap, jobs=processes)
        scores = _print_scores(results, chosen, as_json)
    except StaleMutant as error:
        click.echo(f"error: {error}", err=True)
        sys.exit(WRONG_USAGE)
    totals = {name: total([each for each in scores if each.generator == name]) for name in chosen}
    _print_totals(totals, as_json)
    is_wrong = any(each.replayed < each.findings for each in totals.values())
    if clean_packets:
        same = false_alarms(clean_packets, jobs=processes)
        is_wrong |= _print_alarms(same, as_json) > 0
        _print_alarms(false_alarms(cap, reference="spec", jobs=processes), as_json)
    if is_wrong:
        sys.exit(FAILED)


def _names(only: Sequence[str]) -> list[str]:
    for name in only:
        if name not in FUZZED:
            raise click.BadParameter(f"no mutant {name!r}", param_hint="--only")
    return list(dict.fromkeys(only)) or list(FUZZED)


def _print_scores(results: Iterable[Score], chosen: Sequence[str], as_json: bool) -> list[Score]:
    """One row per fault, as soon as it is known."""
    scores: list[Score] = []
    if not as_json:
        heads = "".join(f"{name:>10}" for name in chosen)
        click.echo(f"{'fault':42}{'role':11}{heads}  shortest case")
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
            f"{_percent(each.replayed, each.findings)} replay"
        )
    (first, ours), *others = totals.items()
    for name, each in others:
        if each.found:
            click.echo(f"{first} finds {ours.found / each.found:.2f} times as many as {name}")


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
