"""What a campaign needs of a target: where cases are executed, and what is alive there."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Protocol

from ibwire.fuzz.case import Case, CaseError, Connection, Role
from ibwire.fuzz.judge.choices import CHOICES, Choice
from ibwire.fuzz.judge.comparison import Comparison, Difference
from ibwire.fuzz.judge.findings import Finding
from ibwire.fuzz.judge.naming import NEEDED, Name
from ibwire.fuzz.judge.witness import Witness
from ibwire.fuzz.report import Postponed, Report, RunState
from ibwire.fuzz.stepper import Stepper
from ibwire.fuzz.vocabulary.vocabularies import Vocabulary
from ibwire.rc.profile import Profile


@dataclass(frozen=True, slots=True)
class Confirmed:
    """A difference that was seen again."""

    case: Case
    """The case to judge."""
    bucket: str
    """The name of the difference, if nothing explains it."""
    original: Case
    """The case as it was executed."""
    difference: Difference | None = None
    """That of the case on new devices; `None` if it is not known."""
    is_postponed: bool = False
    """Whether it was examined later than it was seen."""


EXPLAINING = 4
"""One packet in so many may be sent, or time for it be spent, to explain what was found."""

MINIMUM_PACKETS = 4_000
"""A shorter run may spend as much on explaining as one of this length: most findings come first."""

STEPS_PER_PACKET = 4
"""Steps of cases that are carried out again in the time that a packet of the run takes, which is
also made and whose coverage is counted."""


@dataclass(frozen=True, slots=True)
class Crash:
    """What a device does not survive."""

    bucket: str
    case: Case
    original: Case
    difference: Difference
    rule: str


class Testbed(ABC):
    """Where the cases of one vocabulary are carried out on a target.

    The methods here are right for a target that is always there; an empty one has nothing to do
    then (B027).
    """

    vocabulary: Vocabulary
    choices: Sequence[Choice] = CHOICES
    """Those that the target may make otherwise than the reference."""
    witnesses: Sequence[Witness] = ()
    """The cases that show the choices of the target."""
    without_witness: Collection[str] = ()
    """Choices whose witnesses the target cannot be given."""
    is_deterministic = False
    """Whether the target always makes a choice in the same way, as in the witnesses."""
    failures: tuple[type[Exception], ...] = ()
    """What is raised when the device does not do its part."""

    def __init__(self) -> None:
        self.history: list[Case] = []
        """Cases on the same devices, or since the device was last seen alive."""
        self.explained = 0
        """What cases that were carried out again have cost, in steps that take as long; 0 for a
        target on which all differences are explained."""

    def explains_too_much(self, report: Report) -> bool:
        """Whether more than a share of all time went to cases that were carried out again.

        A difference is then postponed. It is later counted for a finding if its case, as it is, has
        the name of that.
        """
        steps = max(report.packets, MINIMUM_PACKETS) * STEPS_PER_PACKET
        return self.explained * EXPLAINING > self.explained + steps

    def finding_of(
        self, state: RunState, case: Case, difference: Difference, *, needs_connection: bool
    ) -> str:
        """The finding whose name a case has, although it may be longer than it need be.

        needs_connection: whether the case needs whatever is unusual about its connection.
        """
        case = case.with_steps(case.steps[: difference.step + 1])
        name = self.name_of(state, case, difference, "")
        is_sure = needs_connection or name.group not in NEEDED
        return (state.report.bucket_of(name.keys) or "") if is_sure else ""

    @property
    def lost(self) -> str:
        """Why the target is abandoned; empty while it can be used."""
        return ""

    @lost.setter  # noqa: B027
    def lost(self, reason: str) -> None:
        """Give the target up."""

    @property
    def sent(self) -> int:
        """Packets that a device on a link was sent, for whatever reason; 0 for an emulator."""
        return 0

    @property
    def is_fresh(self) -> bool:
        """Whether the next case is carried out on new devices."""
        return False

    def reset(self) -> None:
        """Carry the next case out on new devices."""
        self.history.clear()

    def begin_case(self, state: RunState) -> None:  # noqa: B027
        """Be ready for a case; raises one of `failures` when the device is not there."""

    def placed(self, case: Case) -> Case:
        """A case as it is for a device at the place of the target."""
        return case

    def stepper(self, made: Stepper, number: int) -> Stepper:
        """The stepper of a case with only those steps that the target can be given."""
        return made

    @abstractmethod
    def connect(self, connection: Connection, profile: Profile) -> Comparison:
        """The comparison for the next case of a run."""

    def end_case(self, state: RunState, found: Finding | None, *, is_last: bool) -> None:  # noqa: B027
        """Check the device after a case; raises one of `failures`."""

    def leave(self) -> None:  # noqa: B027
        """End what the case has left open."""

    def refuse(self, error: CaseError) -> None:
        """Count a case that cannot be carried out, or raise the error."""
        raise error

    @abstractmethod
    def confirm(
        self, state: RunState, case: Case, difference: Difference, before: str
    ) -> Confirmed | None:
        """See whether a difference comes again. before: state before the last step."""

    def confirm_postponed(self, state: RunState, postponed: Postponed) -> Confirmed | None:
        """See whether a difference comes again for which there was no time before."""
        return None

    @abstractmethod
    def replay(self, case: Case, profile: Profile) -> Difference | None:
        """Carry a case out on a new connection."""

    def is_endless(self, case: Case, profile: Profile) -> bool:
        """Whether a device that has not come back does not do so again, with more time."""
        return True

    @abstractmethod
    def name_of(self, state: RunState, case: Case, left: Difference, bucket: str) -> Name:
        """The name of a difference in the last step of a minimised case."""

    @abstractmethod
    def shorten(
        self, state: RunState, case: Case, difference: Difference, profile: Profile
    ) -> Case:
        """A shorter case that shows the same difference from this reference."""

    def diagnose(self, state: RunState, reason: str) -> Crash | None:
        """What has crashed the device, when one of `failures` was raised."""
        return None

    def note_crash(self, finding: Finding, *, is_new: bool) -> None:  # noqa: B027
        """Take note of a crash, so that it is not looked for again."""

    def shows_only_crashes(self, case: Case) -> bool:
        """Whether of a case only a crash can be seen."""
        return False

    def crash_after(self, state: RunState, case: Case, reason: str) -> Difference | None:
        """How a case has crashed the device, when one of `failures` was raised in it."""
        return None

    def crash_in(self, state: RunState, case: Case) -> Difference | None:
        """How a case crashes the device, carried out to its end whatever the device answers."""
        return None

    def check(self, difference: Difference | None) -> None:  # noqa: B027
        """Check the device after a single case; raises one of `failures`."""


class Target(Protocol):
    """A device under test, as the command line names it."""

    @property
    def name(self) -> str:
        """`emu:rxe`, `live:192.0.2.7`."""
        ...

    @property
    def place(self) -> str:
        """Options of `ibwire drill` that select the link; empty for an emulator."""
        ...

    @property
    def options(self) -> str:
        """Options of `ibwire fuzz` that select it."""
        ...

    @property
    def role(self) -> Role:
        """What of it is attacked by default."""
        ...

    def testbed(self, role: Role) -> Testbed:
        """Where a role of it is attacked; raises `CaseError` for a role that it cannot have."""
        ...

    def comparison(self, case: Case, profile: Profile) -> Comparison:
        """The reference and the device, with the connection of a case."""
        ...

    def fulfils(self, text: str) -> bool:
        """Whether a drill script passes on it; raises `CannotSay` where none can be run."""
        ...
