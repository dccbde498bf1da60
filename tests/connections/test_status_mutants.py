"""Each rule of the status is noticed by a test when it is wrong."""

from collections.abc import Callable
from functools import partial
from inspect import unwrap
from typing import NamedTuple

import pytest

from connections import test_status as tests
from ibwire.connections.ending import Trouble
from mutants.engine import applied
from mutants.table import Mutant, Patch


class Wrong(NamedTuple):
    """A rule that is wrong, and the test that fails then."""

    name: str
    module: str
    old: str
    new: str
    noticed_by: Callable[[], None]


def judged(expected: str, **given: object) -> Callable[[], None]:
    test = unwrap(tests.test_status_follows_from_the_evidence)  # of one case
    return partial(test, expected, given)


STATUS, TRACKER = "connections/status.py", "connections/tracker.py"
OPEN_REQUESTS = "connections/open_requests.py"
TRACKED = "connections/tracked_requests.py"

WRONG = [
    Wrong(
        "trouble is ignored",
        STATUS,
        "    if troubles:\n",
        "    if False:\n",
        judged("unresolved", trouble=Trouble.NAK),
    ),
    Wrong(
        "a failure counts less than open trouble",
        STATUS,
        "    if any(each.retries_exceeded for each in both):\n",
        "    if False:\n",
        judged("retry-exceeded", trouble=Trouble.RETRANSMITTED, retries_exceeded=1),
    ),
    Wrong(
        "every silent end is unanswered",
        STATUS,
        "    if Trouble.RETRANSMITTED in troubles and is_alone",
        "    if troubles and is_alone",
        judged("unresolved", trouble=Trouble.REQUESTS_MISSING, other_packets=0),
    ),
    Wrong(
        "a resumed READ shows no response",
        STATUS,
        " and not any(e.resumed_reads for e in both)",
        "",
        judged("unresolved", trouble=Trouble.RETRANSMITTED, other_packets=0, resumed_reads=1),
    ),
    Wrong(
        "a reset during trouble is forgotten",
        STATUS,
        "    if any(each.cut_short for each in both):\n",
        "    if False:\n",
        tests.test_a_reset_during_trouble_is_unresolved,
    ),
    Wrong(
        "a sequence NAK is fatal",
        STATUS,
        "if name != SEQUENCE_NAK]",
        "]",
        judged("recovered", naks={"psn_sequence_error": 1}),
    ),
    Wrong(
        "losses of UC are repaired",
        STATUS,
        "        return Status.DEGRADED if missing else Status.OK\n",
        "        return Status.RECOVERED if missing else Status.OK\n",
        tests.test_a_lost_packet_of_uc_degrades_the_connection,
    ),
    Wrong(
        "one disturbance degrades",
        STATUS,
        "disturbances >= MANY and",
        "disturbances and",
        judged("recovered", retransmissions=2, disturbances=2, retransmitted=50),
    ),
    Wrong(
        "the share does not count",
        STATUS,
        "and retransmitted >= SHARE * packets",
        "",
        judged("recovered", retransmissions=3, disturbances=3, retransmitted=1),
    ),
    Wrong(
        "marks are fine",
        STATUS,
        "    if any(each.marked or each.cnps for each in both):\n",
        "    if any(each.cnps for each in both):\n",
        judged("degraded", marked=1),
    ),
    Wrong(
        "responses to a duplicate are trouble",
        STATUS,
        "    if not all(each.packets for each in both):\n        #",
        "    if True:\n        #",
        judged("ok", retransmitted=1),
    ),
    Wrong(
        "a NAK is no disturbance",
        "connections/naks.py",
        "    requests.disturb(psn + 1, packet)\n    event,",
        "    event,",
        tests.test_an_rnr_nak_at_the_end_is_open,
    ),
    Wrong(
        "a retransmission is no disturbance",
        "connections/retransmissions.py",
        "    requests.disturb(requests.next, packet)\n",
        "",
        tests.test_a_retransmission_of_what_was_acknowledged_here_is_open,
    ),
    Wrong(
        "a gap is no disturbance",
        TRACKER,
        "            self.unseen.miss_requests(self.next, psn, packet)\n"
        "            self.disturb(psn, packet)\n",
        "            self.unseen.miss_requests(self.next, psn, packet)\n",
        tests.test_a_missing_request_is_open,
    ),
    Wrong(
        "missing responses are no disturbance",
        TRACKER,
        "            self.refusals.add(first, packet, cause)\n"
        "            self.disturb(psn, packet)\n",
        "            self.refusals.add(first, packet, cause)\n",
        tests.test_a_missing_read_response_is_open,
    ),
    Wrong(
        "a disturbance never ends",
        TRACKER,
        "        if self.disturbed_end and status is not UNKNOWN and not is_nak:\n",
        "        if False:\n",
        tests.test_a_retransmission_is_open_until_it_is_answered,
    ),
    Wrong(
        "a NAK ends a disturbance",
        TRACKER,
        "is not UNKNOWN and not is_nak:\n",
        "is not UNKNOWN:\n",
        tests.test_a_nak_at_the_end_is_open,
    ),
    Wrong(
        "one direction never goes on",
        TRACKED,
        "        if not self.connection.is_paired and not self.unseen.requests:\n",
        "        if False:\n",
        tests.test_requests_of_one_direction_go_on_after_a_retransmission,
    ),
    Wrong(
        "silence is no trouble",
        OPEN_REQUESTS,
        "    return Trouble.SILENCE if waits else None\n",
        "    return None\n",
        tests.test_silence_is_trouble_after_twice_the_timeout_where_it_was_seen,
    ),
    Wrong(
        "a timeout that was seen does not count",
        OPEN_REQUESTS,
        "    return 2 * run.waited_ns + GIVE_UP_NS\n",
        "    return UNANSWERED_NS\n",
        tests.test_silence_is_trouble_after_twice_the_timeout_where_it_was_seen,
    ),
    Wrong(
        "what is damaged at the end is forgotten",
        OPEN_REQUESTS,
        "        return Trouble.DAMAGED\n",
        "        return None\n",
        tests.test_a_request_damaged_at_the_end_is_open,
    ),
    Wrong(
        "a failed requester still waits",
        OPEN_REQUESTS,
        "    trouble = None if is_failed else _trouble(requests, silence)\n",
        "    trouble = _trouble(requests, silence)\n",
        tests.test_a_failed_requester_is_not_unresolved,
    ),
    Wrong(
        "counts come before the status",
        "connections/ranking.py",
        "        connection.status.status.severity,\n",
        "",
        tests.test_worst_connection_is_first_whatever_it_cost,
    ),
    Wrong(
        "ICMP counts although responses follow",
        "connections/unreachable.py",
        "(connection.directions[1 - direction].last_ns or 0) >= self.time_ns",
        "False",
        tests.test_a_host_that_answers_an_older_request_refuses_nothing,
    ),
    Wrong(
        "ICMP counts although its packet was acknowledged",
        "connections/unreachable.py",
        "(self.psn - first & MASK) < count",
        "count > 0",
        tests.test_an_icmp_message_about_an_acknowledged_packet_says_nothing_of_a_later_one,
    ),
]


@pytest.mark.parametrize("wrong", WRONG, ids=lambda wrong: wrong.name)
def test_a_wrong_rule_is_noticed(wrong: Wrong) -> None:
    mutant = Mutant(wrong.name, (Patch(wrong.module, wrong.old, wrong.new),))
    wrong.noticed_by()

    with applied(mutant), pytest.raises(AssertionError):
        wrong.noticed_by()
