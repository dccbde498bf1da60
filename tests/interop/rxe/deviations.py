"""The reasons why Linux rxe 6.1 fails a script.

Packets were seen on the wire and completions reported by the agent; reasons inside the kernel
were read in its source (drivers/infiniband: sw/rxe/rxe_resp.c, core/cm.c and core/cma.c of
Linux 6.1).
"""

import re

REASONS: list[tuple[str, str, str, str]] = [
    # Scripts, cases, the evidence, and why; the first that fits counts.
    (
        r"cm/refused-by-the-manager",
        r"transport",
        r".* reason=CONSUMER_DEFINED",
        "the kernel refuses it with the reason CONSUMER_DEFINED",
    ),
    (
        r"cm/refused-by-the-manager",
        r"MTU",
        r".*: nothing",
        "the kernel does not check the path MTU and passes the request to the application",
    ),
    (
        r"cm/rejected",
        r"consumer",
        r"`> CM_REJ local_comm_id=0 .*: nothing",
        "the kernel forgets a rejected request at once and passes its duplicate to the application",
    ),
    (
        r"cm/too-long",
        r".*",
        r"`cm_event CONNECT_REQUEST`: no event",
        "QP1 goes to ERR on a datagram longer than its receive buffers",
    ),
    (
        r"completions/(full-queues|queue-overrun)",
        r".*",
        r".*: (it did not fail|no event)",
        "queues have more entries than requested, which is allowed",
    ),
    (
        r"completions/reads-that-were-not-promised",
        r".*",
        r".*: it did not fail",
        "the request is accepted although `max_rd_atomic` is 0",
    ),
    (
        r"length/write-against-its-length",
        r"only-zero",
        r"the kernel .*",
        "a WRITE with DMALen 0 is not checked for a key, and its payload then has no memory region",
    ),
    (
        r"requester/local-protection",
        r"key",
        r".* status=LOC_QP_OP_ERR",
        "the request fails with another status",
    ),
    (
        r"states/(drained.*|transitions)",
        r".*",
        r".* SQ_DRAINED.*",
        "SQ_DRAINED is raised without being requested when nothing is outstanding, and not when "
        "the last request completes",
    ),
    (
        r"unreliable/resynchronises",
        r".*",
        r".*: no completion",
        "the message that begins after a gap is dropped too",
    ),
]


def reason_of(script: str, case: str, evidence: str) -> str | None:
    """Why a case fails; `None` for a failure without a known reason.

    evidence: the line that failed, and what came in its place.
    """
    for scripts, cases, evidences, text in REASONS:
        patterns = ((scripts, script), (cases, case), (evidences, evidence))
        if all(re.fullmatch(pattern, given) for pattern, given in patterns):
            return text
    return None
