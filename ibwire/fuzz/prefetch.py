"""Worker processes that execute the cases of a run before the campaign reaches them.

The result of a history, the cases on one pair of devices, depends only on the settings of
the run, the number of its first case and the choices that the reference has adopted until
then. The campaign accepts a history without differences as a whole; it executes any other
itself, also one that ended a process, and is the only one to judge differences. So a run is
the same with any number of processes.

A plan says which histories come next: each begins after the previous one. When a finding
begins another history, or changes the reference, a new plan is made, and the results of the
old one are discarded.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.connection import Connection as Pipe
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from typing import Self

from ibwire.base.collector import set_collector
from ibwire.base.spawning import safe_path
from ibwire.fuzz.campaign import Campaign, History
from ibwire.fuzz.judge.findings import Finding
from ibwire.fuzz.report import HISTORY
from ibwire.fuzz.run_file import Session, Settings
from ibwire.fuzz.targets.emulator import target
from ibwire.fuzz.watchdog import watchdog

QUEUE_DEPTH = 2
"""Histories a process, at most, that are under way or wait for the campaign."""

POLL_SECONDS = 0.1
"""Seconds between two looks at whether time is up, while a history is waited for."""

MOST_POLLS = 600
"""Such looks, after which a process is given up. The slowest histories take 30."""


@dataclass(frozen=True, slots=True)
class Order:
    """A history to carry out."""

    plan: int
    """Which one it belongs to."""
    first: int
    """Number of its first case."""
    taken: Mapping[str, str]
    """`Report.taken`, with which it begins."""


class Prefetcher:
    """The processes that work ahead of a campaign with these settings; none if jobs is 1."""

    def __init__(self, settings: Settings, jobs: int) -> None:
        self._settings = settings
        self._jobs = jobs
        self._workers: list[_Worker] = []
        self._plan = 0
        self._first = self._next = -1
        """First cases of the history that the campaign comes to, and that is ordered next."""
        self._taken: dict[str, str] = {}
        self._done: dict[int, History] = {}
        """Histories of the plan, by their first case."""

    def __enter__(self) -> Self:
        if self._jobs > 1:
            with _ignoring_interrupts(), safe_path():
                for _ in range(self._jobs):
                    self._workers.append(_Worker(self._settings))
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self._workers:
            worker.process.kill()  # it has nothing that would be lost
        for worker in self._workers:
            worker.end()
        self._workers.clear()

    def advance(
        self, campaign: Campaign, packets: int, is_over: Callable[[], bool]
    ) -> Finding | None:
        """Bring a campaign to the end of a history that is there, or of a case; what is new.

        Arguments are those of `Campaign.one_case`.
        """
        if self._workers and (found := campaign.next_shown(is_over=is_over)) is not None:
            return found  # before the first history, whose reference makes the choices shown
        history = self._come_to(campaign, is_over) if self._workers else None
        # The case in which the budget is spent ends there.
        if history is None or campaign.report.packets + history.packets >= packets:
            return campaign.one_case(packets, is_over=is_over)
        campaign.take_over(history)
        return None

    def _come_to(self, campaign: Campaign, is_over: Callable[[], bool]) -> History | None:
        """The history that the campaign comes to now, if it is clean."""
        if not campaign.begins_history:
            self._collect(0)
            return None
        number, taken = campaign.next_case, campaign.report.taken
        if number != self._first or taken != self._taken:
            self._expect(number, taken)
        looks = 0
        while (worker := self._worker_for(number)) is not None and not is_over():
            self._collect(POLL_SECONDS)
            looks += 1
            if looks == MOST_POLLS:
                self._drop(worker)
        history = self._done.pop(number, None)
        if history is not None and not history.is_clean:
            self._expect(number + history.cases, taken)  # what is seen ends it there
            return None
        self._first += HISTORY
        self._supply()
        return history

    def _expect(self, first: int, taken: Mapping[str, str]) -> None:
        """Make a new plan, of histories from this case on."""
        self._plan += 1
        self._first = self._next = first
        self._taken = dict(taken)
        self._done.clear()
        self._supply()

    def _worker_for(self, number: int) -> _Worker | None:
        """The worker that executes the history of the plan that begins with this case."""
        for worker in self._workers:
            if worker.order and (worker.order.plan, worker.order.first) == (self._plan, number):
                return worker
        return None

    def _supply(self) -> None:
        """Give work to each that has none of this plan."""
        for worker in list(self._workers):
            is_busy = worker.order is not None and worker.order.plan == self._plan
            if is_busy or self._next >= self._first + QUEUE_DEPTH * self._jobs * HISTORY:
                continue
            worker.order = Order(self._plan, self._next, self._taken)
            self._next += HISTORY
            try:
                worker.pipe.send(worker.order)
            except OSError:
                self._drop(worker)

    def _collect(self, seconds: float) -> None:
        """Take what is there by then, and give new work."""
        ready = wait([worker.pipe for worker in self._workers], seconds)
        for worker in [each for each in self._workers if each.pipe in ready]:
            try:
                plan, history = worker.pipe.recv()
            except (EOFError, OSError):
                self._drop(worker)
                continue
            if worker.order and (plan, history.first) == (worker.order.plan, worker.order.first):
                worker.order = None  # else it is at work on another one by now
            if plan == self._plan:
                self._done[history.first] = history
        self._supply()

    def _drop(self, worker: _Worker) -> None:
        """Continue without a process that failed."""
        self._workers.remove(worker)
        worker.end()


class _Worker:
    """A process, from the campaign's side."""

    def __init__(self, settings: Settings) -> None:
        # Not forked: a target made in Python belongs to the process that made it.
        context = get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self.process: BaseProcess = context.Process(
            target=_work, args=(settings, theirs), daemon=True
        )
        self.process.start()
        theirs.close()  # so that the end of the process is noticed
        self.order: Order | None = None
        """What it is at work on; a new one takes the place of the old one."""

    def end(self) -> None:
        """Leave nothing of it."""
        self.process.kill()
        self.process.join()
        self.pipe.close()


@contextmanager
def _ignoring_interrupts() -> Iterator[None]:
    """Let started processes ignore Ctrl-C, which the campaign handles."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


@watchdog()
def _work(settings: Settings, pipe: Pipe) -> None:
    """What such a process does, until the campaign is gone."""
    set_collector()
    try:
        tested, make = target(settings.target), settings.maker()
        while True:
            order: Order = pipe.recv()
            report = Session.new(settings).report
            report.taken = dict(order.taken)
            campaign = Campaign(
                tested.testbed(settings.role),
                make,
                profile=settings.profile,
                first=order.first,
                report=report,
            )
            # The next input is another order, or the end: this history is no longer needed.
            history = campaign.prefetch(pipe.poll)
            if history is not None:
                pipe.send((order.plan, history))
    except Exception:  # the campaign comes to the same case, and reports it
        return
