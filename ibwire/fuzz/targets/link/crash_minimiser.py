"""The shortest case that crashes a device, found by crashing it again.

A case that crashes the device costs a restart, any other almost nothing. So short cases are
tried first: the last steps of the last case, then more of it, then the case before it, and
last all cases since the device was last seen alive.

A device may crash in a case only because of what was tried on it before. So the result is
tried on a freshly started device, and if it survives, all is repeated with every crash
required to happen twice.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from ibwire.base.errors import LinkError, PeerError, VerbsError
from ibwire.drill.targets.target import Unable
from ibwire.fuzz.case import Case, CaseError, Connect, Connection, Step
from ibwire.fuzz.condense import joined
from ibwire.fuzz.judge.comparison import Comparison
from ibwire.fuzz.minimise import minimise
from ibwire.fuzz.targets.link.liveness import ALIVE, Dead, Death
from ibwire.fuzz.targets.link.verbs_link import VerbsLink

LAST = (1, 2, 3)
"""Numbers of last steps of a case that are tried alone: usually they suffice."""

TRIALS = 150
"""Cases that a device executes at most."""

DEATHS = 32
"""Of them, in which it crashes."""

Begin = Callable[[Connection], Comparison]
"""Makes a new connection, and a comparison on it."""


class CrashSearch:
    """Trials of cases that crash a device in the same way again.

    A device that does not come back can be tried only if something restarts it. is_over:
    whether time is up.
    """

    def __init__(
        self, link: VerbsLink, begin: Begin, wanted: Dead, is_over: Callable[[], bool]
    ) -> None:
        self.best: Case | None = None
        """The shortest case so far that crashes the device, if it has crashed again."""
        self.original: Case | None = None
        """The original case, as it was executed."""
        self.is_done = False
        """Whether the search came to its end: what it has not seen does not come again."""
        self._link = link
        self._begin = begin
        self._wanted = wanted
        self._is_over = is_over
        self._deaths = 0
        self._tried = 0
        """Cases since the device was started."""
        self._is_certain = False
        """Whether the best was the first that was tried on a device."""
        self._is_careful = False
        """Whether a death must be seen on a device on which nothing else was tried."""

    def run(self, suspects: Sequence[Case]) -> None:
        """Look for the shortest case among those that were carried out one after the other.

        When the device is not brought back it is given up, and the best is what it was.
        """
        try:
            self._look_for_shortest(suspects)
            is_doubtful = self.best is not None and not self._is_certain and not self._is_over()
            if self.best is not None and is_doubtful and not self._dies(self.best, anew=True):
                self.best = self.original = None
                self._is_careful = True
                self._look_for_shortest(suspects)
            self.is_done = self._deaths < DEATHS and not self._is_over()
        except (LinkError, PeerError) as error:
            self._link.lost = str(error)

    def _look_for_shortest(self, suspects: Sequence[Case]) -> None:
        case = self._found(suspects)
        if case is None:
            return
        plain = replace(case, connection=Connection())
        if case.connection != plain.connection and self._kills(plain):
            case = plain
        minimise(case, self._kills, TRIALS, is_over=self._is_over, elsewhere=False)

    def _found(self, suspects: Sequence[Case]) -> Case | None:
        for case in reversed(suspects):
            ends = [case.steps[-count:] for count in LAST if count < len(case.steps)]
            for steps in (*ends, case.steps):
                end = case.with_steps(steps)
                if self._kills(end):
                    self.original = case
                    return end
        together = joined(list(suspects[:-1]), suspects[-1])
        if len(suspects) == 1 or not self._kills(together):
            return None
        self.original = together
        return together

    def _kills(self, case: Case) -> bool:
        if self._deaths >= DEATHS or self._is_over() or not self._dies(case):
            return False
        if self._is_careful and self._tried > 1 and not self._dies(case):
            return False
        self.best = case
        # After harm to other connections the device is not restarted.
        self._is_certain = self._tried == 1 or self._is_careful or not self._wanted.is_end
        return True

    def _dies(self, case: Case, *, anew: bool = False) -> bool:
        """Whether a case crashes the device; raises `LinkError`, `PeerError` if it is not there."""
        link = self._link
        if anew or link.liveness.has_ended:
            self._tried = 0
        link.begin(anew=anew)
        self._tried += 1
        what = carry_out(link, self._begin, case).what
        dies = what == self._wanted or (what.is_end and self._wanted.is_end)
        self._deaths += dies
        return dies


def carry_out(link: VerbsLink, begin: Begin, case: Case) -> Death:
    """Execute a case to its end, whatever the device responds, and see what is dead then."""
    death = ALIVE
    try:
        for part in _parts(case):
            comparison = begin(part.connection)
            for step in part.steps:
                comparison.step(step)
    except CaseError:
        pass  # it cannot be carried out: what was, was
    except (LinkError, PeerError, Unable, VerbsError) as error:
        death = Death(Dead.CONNECTION, str(error))
    finally:
        link.disconnect()
    found = link.liveness.examine()
    return found if found.what else death


def _parts(case: Case) -> list[Case]:
    """The cases that one of several connections is made of."""
    connection = case.connection
    parts: list[Case] = []
    steps: list[Step] = []
    for step in (*case.steps, None):
        if step is None or isinstance(step, Connect):
            parts.append(replace(case, connection=connection, steps=tuple(steps)))
            steps = []
        else:
            steps.append(step)
        if isinstance(step, Connect):
            connection = step.connection
    return parts
