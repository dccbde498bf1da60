"""What Linux rxe makes of the conformance scripts, as the table of docs/conformance-rxe.md.

    PYTHONPATH=tests python -m interop.rxe.conformance

carries them out on guests and writes the table anew; a test compares it with what guests do.
"""

import json
import os
import re
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from ibwire.drill.agent.agent_server import PORT, TOKEN_VARIABLE, new_token
from interop.rxe.boot import DEVICE, Guest, GuestError
from interop.rxe.deviations import reason_of
from interop.rxe.peers import Peers
from interop.rxe.wire import THEIRS

ROOT = Path(__file__).parents[3]
SCRIPTS = ROOT / "tests" / "conformance"
PAGE = ROOT / "docs" / "conformance-rxe.md"
AGENT = [
    ROOT / "ibwire" / "drill" / "agent" / name
    for name in ("agent.py", "agent_server.py", "agent_cm.py")
]

LIMIT = 10
"""Seconds of a case: what takes longer is left out."""

FATAL = ("length/write-against-its-length", "cm/too-long")
"""Scripts that rxe, or its QP1, does not survive: they come last, each on a separate guest."""

TOLERANCE = 20
"""Milliseconds that the guest may be late."""

FURTHER_TOLERANCES = (40, 20, 60)
"""When a case is carried out again. More helps where the guest is slow; less where silence and
what must not come add up to a timeout of 67 ms, after which rxe sends again."""

MOST_GUESTS = 10
"""That may be lost in a run."""

PATIENCE = 1500.0
"""Seconds for a run of all scripts."""


class Outcome(NamedTuple):
    """What came of a case."""

    result: str
    """`pass`, `fail` or `skip`."""
    evidence: str = ""
    """The line that failed and what came, or why it was not carried out."""


class Case(NamedTuple):
    """A case of a script."""

    script: str
    """Below the directory of scripts, without `.drill`."""
    name: str


class _Run(NamedTuple):
    """A command to start."""

    scripts: Sequence[str]
    case: str | None = None
    version: int = 4
    tolerance: int = TOLERANCE


def scripts() -> list[str]:
    """All of them."""
    return sorted(_name(path) for path in SCRIPTS.rglob("*.drill"))


def measure(names: Sequence[str]) -> dict[Case, Outcome]:
    """Run scripts; when the kernel of a guest does not survive one, another guest follows.

    Scripts that fail for an unknown reason are repeated: rxe retransmits requests that were not
    lost (reference/habits#rxe-ack-timer), and a guest may be busy.
    """
    found: dict[Case, Outcome] = {}
    harmless = [name for name in names if name not in FATAL]
    runs = deque([_Run(harmless)] if harmless else [])
    last = [_Run([name]) for name in FATAL if name in names]
    tolerances = list(FURTHER_TOLERANCES)
    for _ in range(MOST_GUESTS):
        if not runs and not last:
            break
        with Peers() as peers:
            start_agent(peers.guest)
            is_there = True
            while is_there and (runs or last):
                run = runs.popleft() if runs else last.pop()
                cases, is_there = _drill(peers, run)
                # A crash in the last case of a run shows only here.
                panic = _panic(peers)
                is_there = is_there and panic is None
                missing = [case for case in cases if cases[case].evidence.startswith("not run")]
                done = {case: cases[case] for case in cases if case not in missing}
                other = {case.script for case in done if "IPv6" in done[case].evidence}
                if other:
                    runs.append(_Run(sorted(other), version=6))
                if not is_there:
                    assert done, f"no guest to begin with: {cases[missing[0]].evidence}"
                    fatal = list(done)[-1]
                    done[fatal] = Outcome("fail", panic or _HANGS)
                    runs += _again(fatal, missing)
                # With another tolerance a case may be left out; what it was before counts then.
                found |= {
                    case: outcome
                    for case, outcome in done.items()
                    if outcome.result != "skip" or case not in found
                }
                if not runs and tolerances:
                    runs += _further_chances(found, tolerances.pop(0))
    assert not [*runs, *last], f"{MOST_GUESTS} guests were lost"
    return found


def start_agent(guest: Guest) -> None:
    """Have the agent wait on a guest, with the token that programs started here show."""
    token = os.environ.setdefault(TOKEN_VARIABLE, new_token())
    for file in AGENT:
        guest.check(f"cat >/tmp/{file.name} <<'END'\n{file.read_text()}\nEND")
    guest.start(f"{TOKEN_VARIABLE}={token} python3 /tmp/agent.py --device {DEVICE}")
    guest.wait_for_port(PORT)


def _drill(peers: Peers, run: _Run) -> tuple[dict[Case, Outcome], bool]:
    """What came of a run, and whether the guest is still there."""
    paths = [str(SCRIPTS / f"{name}.drill") for name in run.scripts]
    options = ["--case", run.case] if run.case else []
    options += ["--tolerance", str(run.tolerance), "--limit", str(LIMIT), "--profile", "rxe"]
    place = ["--dev", peers.port, "--peer", THEIRS[run.version]]
    ended = peers.start("-m", "ibwire", "drill", *paths, *options, *place, "--json").wait(PATIENCE)
    assert ended.status in (0, 1), ended
    *cases, whole = map(json.loads, ended.output.splitlines())
    found = {Case(_name(Path(told["script"])), told["case"]): _outcome(told) for told in cases}
    return found, whole["lost"] is None


def _outcome(told: Mapping[str, object]) -> Outcome:
    if told["skipped"]:
        return Outcome("skip", str(told["skipped"]))
    failure = told["failure"]
    if not isinstance(failure, dict):
        return Outcome("pass")
    got = re.sub(r" at [0-9.]+ us", "", failure["got"])
    # Addresses and keys are others in each run.
    got = re.sub(r"0x[0-9a-f]{6,}", "0x…", got)
    if any(detail.startswith("it came at ") for detail in failure["details"]):
        got = "too early or too late"
    text = " ".join(failure["text"].split())
    return Outcome("fail", f"`{text}`: {got}")


def _again(fatal: Case, missing: Sequence[Case]) -> list[_Run]:
    """What is left after a guest was lost."""
    rest = [case.name for case in missing if case.script == fatal.script]
    runs = [_Run([fatal.script], f"{fatal.script}.drill [{name}]") for name in rest]
    others = sorted({case.script for case in missing} - {fatal.script})
    return [*runs, _Run(others)] if others else runs


def _further_chances(found: Mapping[Case, Outcome], tolerance: int) -> list[_Run]:
    unexplained = [
        case
        for case, outcome in found.items()
        if outcome.result == "fail" and reason_of(*case, outcome.evidence) is None
    ]
    return [
        _Run(
            [case.script],
            f"{case.script}.drill [{case.name}]",
            6 if case.script in _ON_IPV6 else 4,
            tolerance,
        )
        for case in unexplained
    ]


def _panic(peers: Peers) -> str | None:
    """How the guest was lost, `None` if it was not."""
    try:
        peers.guest.run("true")
    except GuestError as error:
        place = re.search(r"RIP: \S+?:(\w+)\S* \[(\w+)\]", str(error))
        return f"the kernel panics in {place[1]} of {place[2]}" if place else "the kernel is gone"
    return None


def _name(path: Path) -> str:
    return str(path.relative_to(SCRIPTS).with_suffix(""))


# The table.


def page(found: Mapping[Case, Outcome]) -> str:
    """The table as it stands in the documents."""
    by_script = _by_script(found)
    rows = [_row(script, cases) for script, cases in by_script.items()]
    counts = Counter(outcome.result for outcome in found.values())
    whole = sum(_is_passed(cases) for cases in by_script.values())
    summary = (
        f"{whole} of {len(by_script)} scripts pass in every case that was run. Of "
        f"{len(found)} cases {counts['pass']} pass, {counts['fail']} fail and "
        f"{counts['skip']} are left out."
    )
    return "\n".join(
        [_HEAD, summary, "", "| script | cases | reason |", "|---|---|---|", *rows, ""]
    )


def _by_script(found: Mapping[Case, Outcome]) -> dict[str, dict[Case, Outcome]]:
    by_script: dict[str, dict[Case, Outcome]] = {}
    for case, outcome in sorted(found.items()):
        by_script.setdefault(case.script, {})[case] = outcome
    return by_script


def differing(found: Mapping[Case, Outcome]) -> list[str]:
    """Scripts whose rows are not those of the page."""
    written = PAGE.read_text(encoding="utf-8").splitlines()
    return sorted(
        script for script, cases in _by_script(found).items() if _row(script, cases) not in written
    )


def _is_passed(cases: Mapping[Case, Outcome]) -> bool:
    results = {outcome.result for outcome in cases.values()}
    return "pass" in results and "fail" not in results


def _row(script: str, cases: Mapping[Case, Outcome]) -> str:
    counts = Counter(outcome.result for outcome in cases.values())
    told = [f"{counts[result]} {result}" for result in ("pass", "fail", "skip") if counts[result]]
    if counts["pass"] == len(cases):
        told = ["pass"]
    why: dict[str, list[str]] = {}
    for case, outcome in cases.items():
        if outcome.result == "fail":
            reason = reason_of(*case, outcome.evidence) or "unexplained"
            why.setdefault(f"{reason}: {outcome.evidence}", []).append(case.name)
        elif outcome.result == "skip":
            why.setdefault(f"left out: {outcome.evidence}", []).append(case.name)
    texts = []
    for text, names in why.items():
        where = "" if len(names) == len(cases) else f"{', '.join(names)}: "
        texts.append(f"{where}{text}".replace("|", "\\|"))
    return f"| {script} | {', '.join(told)} | {'<br>'.join(texts)} |"


_ON_IPV6 = ("address/ipv6", "cm/over-ipv6")

_HANGS = "the kernel does not come back from a call"

_HEAD = """\
# Conformance scripts on Linux rxe

The results of the scripts in `tests/conformance` for Soft-RoCE (rxe) of Linux 6.1, run with
`ibwire drill --profile rxe` and the agent in a virtual machine (see "A device on a link" in
[drill.md](drill.md)). A script passes if rxe does what it says, with the deviations that its
`on rxe` blocks name. For a failure the table gives the reason, the script line, and what came
instead. [reference/habits.md](reference/habits.md) describes the deviations of rxe.

`make interop` runs the scripts and compares the results with this page;
`PYTHONPATH=tests python -m interop.rxe.conformance` writes it again.
"""


if __name__ == "__main__":
    measured = measure(scripts())
    PAGE.write_text(page(measured), encoding="utf-8")
