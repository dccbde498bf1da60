"""Every rule finds what breaks it, and nothing in the same conversation as it should be."""

from connections.talk import Talk
from each_case import each_case
from examples import sampled
from ibwire.rules.catalogue import FAMILIES, RULES
from rules.broken_rules import CONVERSATIONS, Conversation
from rules.check_frames import grave, ids, judge

ELSEWHERE = {
    "reads.outstanding": "test_rules_captures: what may be outstanding, only the CM says",
    "cm.rejected": "test_rules_captures: a REJ of a connection manager",
    "cm.unanswered": "test_rules_captures: a REQ that is sent twice",
    "constant.reserved": "test_rules_constant: the bits break integrity.byte-4 as well",
}
"""Rules that are tested with captures."""

NAMES = [f"{rule} {conversation.__name__}" for rule, conversation in CONVERSATIONS]


def frames(conversation: Conversation, broken: bool) -> list[tuple[int, bytes]]:
    talk = Talk()
    conversation(talk, broken)
    return talk.frames


@each_case(("rule", "conversation"), CONVERSATIONS, ids=NAMES)
def test_a_broken_law_is_found_and_nothing_else(rule: str, conversation: Conversation) -> None:
    before = ids(judge(frames(conversation, False)))
    found = ids(judge(frames(conversation, True)))

    assert found - before == {rule}


@each_case(("rule", "conversation"), sampled(CONVERSATIONS, 3, are_tuples=True), ids=NAMES)
def test_the_same_conversation_with_the_law_kept_is_not_blamed(
    rule: str, conversation: Conversation
) -> None:
    found = judge(frames(conversation, False))

    assert rule not in ids(found)
    assert grave(found) == []


def test_every_rule_is_broken_somewhere() -> None:
    assert {rule for rule, _ in CONVERSATIONS} | ELSEWHERE.keys() == RULES.keys()


def test_every_rule_belongs_to_a_family_and_says_where_it_comes_from() -> None:
    assert {rule.family for rule in RULES.values()} == FAMILIES.keys()
    assert all(rule.sentence.endswith(".") for rule in RULES.values())
    assert all(rule.section.startswith("IBA ") for rule in RULES.values())
    assert all(rule.source for rule in RULES.values())
