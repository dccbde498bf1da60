"""Why Linux rxe 6.1 does not do what a script says, in words.

What it sends was seen on the wire, what its application finds told by the agent; reasons inside
it were read in the source of the kernel (drivers/infiniband: sw/rxe/rxe_resp.c, core/cm.c and
core/cma.c of Linux 6.1).
"""

import re

REASONS: list[tuple[str, str, str, str]] = [
    # Scripts, cases, the evidence, and why; the first that fits counts.
    (
        *(r"cm/refused-by-the-manager", r"transport", r".* reason=CONSUMER_DEFINED"),
        "it is refused, with the reason of an application",
    ),
    (
        *(r"cm/refused-by-the-manager", r"MTU", r".*: nothing"),
        "the manager does not look at the path MTU: the application is asked",
    ),
    (
        *(r"cm/rejected", r"consumer", r"`> CM_REJ local_comm_id=0 .*: nothing"),
        "a request that was refused is forgotten at once: the application is asked again",
    ),
    (
        *(r"cm/too-long", r".*", r"`cm_event CONNECT_REQUEST`: no event"),
        "QP1 goes to ERR for a datagram that does not fit its receives",
    ),
    (
        *(r"completions/(full-queues|queue-overrun)", r".*", r".*: (it did not fail|no event)"),
        "queues have more room than was asked for, as they may",
    ),
    (
        *(r"completions/reads-that-were-not-promised", r".*", r".*: it did not fail"),
        "the limit is no reason to refuse it",
    ),
    (
        *(r"length/write-against-its-length", r"only-zero", r"the kernel .*"),
        "a length of 0 needs no key, and then the payload has no region to go to",
    ),
    (
        *(r"requester/local-protection", r"key", r".* status=LOC_QP_OP_ERR"),
        "the request fails, with another status",
    ),
    (
        *(r"states/(drained.*|transitions)", r".*", r".* SQ_DRAINED.*"),
        "SQ_DRAINED is raised unasked where nothing is under way, and not when the last is done",
    ),
    (
        *(r"unreliable/resynchronises", r".*", r".*: no completion"),
        "the message that begins after a gap is dropped, too",
    ),
]


def reason_of(script: str, case: str, evidence: str) -> str | None:
    """Why a case fails, `None` for what nobody has explained yet.

    Evidence is the line that failed and what came in its place.
    """
    for scripts, cases, evidences, text in REASONS:
        patterns = ((scripts, script), (cases, case), (evidences, evidence))
        if all(re.fullmatch(pattern, given) for pattern, given in patterns):
            return text
    return None
