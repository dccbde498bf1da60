"""What the commands of `ibwire fuzz` have in common: targets, budgets, cases that are read."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import click

from ibwire.base.errors import CaptureError, OutputError, ScriptError
from ibwire.base.output import check_writable
from ibwire.capture.pcap import MAGICS
from ibwire.capture.pcapng import SECTION_MAGIC
from ibwire.fuzz.campaign import Campaign
from ibwire.fuzz.case import Case, CaseError, RunsAway
from ibwire.fuzz.judge.comparison import Difference
from ibwire.fuzz.judge.profiles import profile_of
from ibwire.fuzz.run_file import NAME, load
from ibwire.fuzz.saved import parse_case
from ibwire.fuzz.targets.emulator import DEFAULT, is_python, target
from ibwire.fuzz.targets.testbed import Target
from ibwire.fuzz.vocabulary.queue_pair.reading import MAXIMUM_SIZE
from ibwire.fuzz.vocabulary.vocabularies import role_of, vocabulary_for
from ibwire.rc.profile import Profile

FOUND = 1
UNREADABLE = 2
INTERRUPTED = 130
"""As a shell reports SIGINT."""


@dataclass(frozen=True, slots=True)
class Budget:
    """The limits of a run; `None` is no limit, and at least one is given."""

    packets: int | None
    seconds: float | None


class BudgetType(click.ParamType[Budget]):
    """Packets, a time, or both: `100kpkt`, `10min`, `1Mpkt,1h`."""

    name = "budget"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> Budget:
        """The budget; anything but numbers with units is wrong usage."""
        if isinstance(value, Budget):
            return value
        packets: int | None = None
        seconds: float | None = None
        for text in str(value).split(","):
            found = _BUDGET.fullmatch(text.strip())
            if found is None:
                self.fail(
                    f"{text!r} is not a budget such as 100kpkt, 10min or 1Mpkt,1h", param, ctx
                )
            number = float(found["number"])
            if found["time"]:
                again, seconds = seconds is not None, number * _TIMES[found["time"]]
            else:
                again, packets = packets is not None, int(number * _SIZES[found["size"] or ""])
            if again:
                self.fail(f"{value} says the same thing twice", param, ctx)
        if not (packets is None or packets >= 1) or not (seconds is None or seconds > 0):
            self.fail(f"{value} is nothing", param, ctx)
        return Budget(packets, seconds)


class Unreadable(click.ClickException):
    """A file or a name on the command line that is not what it should be."""

    exit_code = UNREADABLE


@contextmanager
def complaints() -> Iterator[None]:
    """Errors of cases, tables and files as messages."""
    try:
        yield
    except (CaseError, ScriptError) as error:
        raise Unreadable(str(error)) from None
    except RunsAway as error:  # the reference: a target that does is a finding
        raise Unreadable(f"the reference does not come to rest: {error}") from None
    except CaptureError as error:
        raise click.ClickException(str(error)) from None
    except OSError as error:
        raise click.ClickException(f"{error.filename}: {error.strerror}") from None


def require_writable(path: str) -> None:
    """End with wrong usage now for a file that cannot be written, and not when all is done."""
    try:
        check_writable(path)
    except OutputError as error:
        raise click.UsageError(str(error)) from None


case_option = click.option(
    "--case",
    "wanted",
    metavar="TEXT",
    help="Of a script with a table, the case whose name contains TEXT.",
)


def read_case(path: Path, wanted: str | None = None) -> Case:
    """A case in a file; raises `CaseError`. wanted: which case of the table of a script."""
    try:
        with path.open("rb") as file:
            content = file.read(MAXIMUM_SIZE + 1)
    except OSError as error:
        raise CaseError(f"{path}: {error.strerror}") from None
    if content[:4] in (*MAGICS, SECTION_MAGIC):
        reason = (
            "a capture; expected a case, which is a drill script, such as case.drill of a finding"
        )
        raise CaseError(f"{path}: {reason}")
    return parse_case(content, str(path), wanted)


def open_target(name: str | None, saved: Path | None = None) -> Target:
    """The target that is named, else the one of the run that a directory belongs to."""
    if name is None and saved is not None:
        for directory in (saved, saved.parent):
            if (directory / NAME).is_file():
                return saved_target(load(directory).settings.target, is_named=False)
    return target(name or DEFAULT)


def saved_target(name: str, *, is_named: bool) -> Target:
    """The target of a run; Python code only where the user names it.

    Raises `CaseError` for a Python target that only a file names: opening it would run code.
    """
    if is_python(name) and not is_named:
        raise CaseError(f"the target of this run is Python code; to run it, give --target {name}")
    return target(name)


def judge(case: Case, tested: Target, path: Path) -> tuple[Campaign, Profile, Difference | None]:
    """A case against a target: the reference that makes its choices, and what differs then.

    path: where it was read. Raises `CaseError` for a case that fits no connection.
    """
    try:
        profile_of(case.profile, case.choices)
        role = role_of(case)
        make = vocabulary_for(role).generators(0, role, ())
        campaign = Campaign(tested.testbed(role), make, profile=case.profile)
        return campaign, *campaign.judge.judged_alone(case)
    except CaseError as error:
        raise CaseError(f"{path}: {error}") from None


_BUDGET = re.compile(
    r"(?P<number>\d{1,15}(?:\.\d{1,6})?) ?(?:(?P<time>s|min|h)|(?P<size>[kMG])?(?:pkt)?)"
)
_TIMES = {"s": 1, "min": 60, "h": 3600}
_SIZES = {"": 1, "k": 1000, "M": 10**6, "G": 10**9}
