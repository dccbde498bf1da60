"""Why Linux rxe 6.1 does not do what a script says, in words.

What it sends was seen on the wire, what its application finds told by the agent; reasons inside
it were read in the source of the kernel (drivers/infiniband/sw/rxe/rxe_resp.c of Linux 6.1).
"""

import re

_REASONS: list[tuple[str, str, str, str]] = [
    # Scripts, cases, the evidence, and why; the first that fits counts.
    (
        *(r".*", r".*", r"`event (QP_REQ_ERR|QP_ACCESS_ERR|COMM_EST)`: no event"),
        "all is right but the event: rxe raises none for it",
    ),
    (r"(access|atomic)/flush.*", r".*", r".*: nothing", "Linux 6.1 knows no FLUSH"),
    (r"atomic/write.*", r".*", r".*: nothing", "Linux 6.1 knows no ATOMIC WRITE"),
    (
        *(r"access/invalidate-of-a-bad-key", r".*", r"`\+10ms silence`: ACKNOWLEDGE .*"),
        "the packet is acknowledged, though its message is not taken",
    ),
    (
        *(r"access/invalidated-window", r".*", r".* flags=5"),
        "the flag of the completion has the kernel's number, which libibverbs calls IP_CSUM_OK",
    ),
    (
        *(r"access/memory-window", r"before|behind", r".*: READ_RESPONSE_ONLY .*"),
        "the bounds of the region count, not those of the window",
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
        *(r"length/too-large-a-message", r".*", r".* NAK REMOTE_ACCESS_ERROR .*"),
        "the length is compared with the region before it is compared with the largest",
    ),
    (
        *(r"length/write-against-its-length", r"first - only", r".*: ACKNOWLEDGE psn .100. ACK .*"),
        "a FIRST with all that its RETH announces is taken",
    ),
    (
        *(r"length/write-against-its-length", r"only - zero", r"the kernel .*"),
        "a length of 0 needs no key, and then the payload has no region to go to",
    ),
    (
        *(r"length/write-that-ends-wrong", r"imm", r".* status=REM_INV_REQ_ERR"),
        "the receive request that would have been used ends as the message does",
    ),
    (
        *(r"read/with-a-payload", r".*", r".*: (READ_RESPONSE_ONLY|ATOMIC_ACKNOWLEDGE) .*"),
        "a payload where none belongs is passed over",
    ),
    (
        *(r"recovery/bad-responses", r".*", r"`poll send .*status=SUCCESS .*"),
        "neither kind nor order of responses is checked: a READ succeeds that has not come",
    ),
    (
        *(r"recovery/bad-responses", r"longer", r"`poll send .* status=LOC_PROT_ERR"),
        "the request fails, with another status",
    ),
    (
        *(r"recovery/(bad-responses|read-that-goes-on)", r".*", r"`poll send .*: no completion"),
        "the length of a response is not checked: the request waits for more",
    ),
    (
        *(r"requester/local-protection", r"key", r".* status=LOC_QP_OP_ERR"),
        "the request fails, with another status",
    ),
    (
        *(r"requester/reserved-syndromes", r"0x40|0x5f", r"`poll send .* status=SUCCESS .*"),
        "the syndrome counts as an acknowledgement",
    ),
    (
        *(r"requester/what-was-never-asked", r"far|next", r"`poll send nothing`: .*=SUCCESS .*"),
        "what acknowledges PSNs that were not sent yet acknowledges all that were",
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
    for scripts, cases, evidences, text in _REASONS:
        patterns = ((scripts, script), (cases, case), (evidences, evidence))
        if all(re.fullmatch(pattern, given) for pattern, given in patterns):
            return text
    return None
