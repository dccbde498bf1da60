"""Holds the sentences of a story against the truth of the wire."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

from ibwire.base.units import MS
from ibwire.connections.opcode_sets import ACKNOWLEDGE
from ibwire.diagnosis.story import Story
from ibwire_layers.psn import MASK
from wire_truth import Sent, Truth

Check = Callable[..., None]
"""Takes the judge, the match of the sentence, and what the sentence is about."""

Checks = list[tuple[re.Pattern[str], Check]]
"""For each sentence its check."""


def table(entries: dict[str, Check]) -> Checks:
    return [(re.compile(pattern), check) for pattern, check in entries.items()]


class Breach(Exception):
    """A sentence is wrong."""


def psn_range(text: str) -> tuple[int, int]:
    """The first and the last of `PSN 5` or `PSNs 5-9`."""
    numbers = [int(each) for each in re.findall(r"\d+", text)]
    return numbers[0], numbers[-1]


def number(text: str) -> int:
    return int(text.replace(",", ""))


PSNS = r"(?P<psns>PSNs? [\d-]+)"
COUNT = r"(?P<n>[\d,]+)"
TIME = r"[\d.]+ [a-z]+"
AFTER = "lost, damaged or delayed after this point"


class Judge:
    def __init__(self, truth: Truth, story: Story) -> None:
        self.truth = truth
        self.story = story
        connection = story.connection
        addresses = {"10.0.0.1": "a", "10.0.0.2": "b"}
        self.end = {
            letter: addresses[connection.ends[index].address] for index, letter in enumerate("AB")
        }

    @property
    def has_identifications(self) -> bool:
        """Whether every packet names its place in the sequence of its sender. Without it a packet
        that is lost and retransmitted by a timer leaves no trace before this point."""
        return self.truth.scenario.profiles[0] == "rxe"

    def lost_before_silence(self, sender: str) -> bool:
        """Whether the last of several frames was lost: when a timer repeats it, that is the first
        that is seen, and a sender may leave out identifications while it is silent."""
        mine = [each for each in self.truth.sent if each.sender == sender]
        return any(
            one.is_lost_before and other.time - one.time > MS for one, other in pairwise(mine)
        )

    def lost_first(self, sender: str) -> bool:
        """Whether the first frame of an end was lost before this point."""
        return next((e.is_lost_before for e in self.truth.sent if e.sender == sender), False)

    # What happened.

    def of(self, sender: str, text: str, *, responses: bool = False) -> list[Sent]:
        """The requests, or the responses with data, that a letter sent with these PSNs."""
        first, last = psn_range(text)
        width = last - first & MASK
        return [
            each
            for each in self.truth.sent
            if each.sender == self.end[sender]
            and each.is_response == responses
            and not (responses and each.packet.bth.opcode in ACKNOWLEDGE)
            and (each.psn - first & MASK) <= width
        ]

    def frame(self, number: int | str) -> Sent:
        """A frame of the capture."""
        return self.truth.by_number[int(number)]

    def may_be(self, sent: Sent, check: Callable[[Sent], bool]) -> bool:
        """Whether it holds for a frame, or another one that looks the same."""
        if self.has_identifications:
            return check(sent)
        return any(check(e) for e in self.truth.sent if e.captured and e.packet == sent.packet)

    def is_captured_before(self, sent: Sent, other: Sent) -> bool:
        """Whether a frame passed the point of capture, undamaged, before another one."""
        if not sent.captured or not other.captured or sent.is_damaged_before:
            return False
        return sent.captured[0] < other.captured[0]

    def arrives_by(self, sent: Sent, other: Sent) -> bool:
        """Whether a frame arrived, or should have, before its receiver sent another one."""
        return sent.time + self.truth.scenario.delay < other.time

    # Sentences.

    def steps(self, checks: Checks) -> Iterator[str]:
        for described in self.story.incidents:
            for step in described.steps:
                yield from self._judged(step.text, checks, step, described)

    def _judged(self, text: str, checks: Checks, *rest: Any) -> Iterator[str]:
        for pattern, check in checks:
            match = pattern.fullmatch(text)
            if match is None:
                continue
            try:
                check(self, match, *rest)
            except Breach as breach:
                yield f"{text!r}: {breach}"
            return
        yield f"{text!r}: no check knows this sentence"

    def rest(self, checks: Checks) -> Iterator[str]:
        """What is said of times without incidents."""
        for entry in self.story._entries():
            if entry.title or any(
                entry.text == step.text for each in self.story.incidents for step in each.steps
            ):
                continue
            yield from self._judged(entry.text, checks, entry)

    def verdict(self, checks: Checks) -> Iterator[str]:
        text = self.story.verdict
        for sentence in re.split(r"(?<=[.;:]) (?=[A-Z]|at least)", text):
            yield from self._judged(sentence, checks)

    def counts(self) -> Iterator[str]:
        connection = self.story.connection
        for direction in (0, 1):
            sender = self.end["AB"[direction]]
            found = connection.to_json(direction)
            for name, true in self.true_counts(sender).items():
                said = found[name]
                is_open = name in found["not_observable"] or not self.has_identifications
                if name in ("lost_packets", "retransmitted_packets"):
                    is_open |= self.lost_before_silence(sender)
                    is_open |= self.lost_first(sender)  # nothing shows it
                if said > true or (said != true and not is_open):
                    more = " or more" if is_open else ""
                    yield f"flows: {sender} {name} {said}{more}, not {true}"
            if connection.directions[direction].restarts:
                yield f"flows: {sender} restarted"

    def true_counts(self, sender: str) -> dict[str, int]:
        """The counts of a direction as the capture should show them."""
        sent = [each for each in self.truth.sent if each.sender == sender]
        damaged = sum(len(each.captured) for each in sent if each.is_damaged_before)
        mine = [n for n, each in self.truth.by_number.items() if each.sender == sender]
        copies = [
            number
            for number in self.truth.was_copied
            if number in mine
            and not self.frame(number).is_damaged_before
            # With one packet nothing shows yet that IP identifications count up.
            and (
                not self.has_identifications
                or any(n < number and self.frame(n) is not self.frame(number) for n in mine)
            )
        ]
        return {
            "lost_packets": sum(each.is_lost_before for each in sent),
            "icrc_bad": damaged,
            "duplicate_packets": len(copies),
            "retransmitted_packets": sum(
                each.is_again for each in sent if each.captured and not each.is_damaged_before
            ),
        }


def must(condition: object, why: str) -> None:
    if not condition:
        raise Breach(why)
