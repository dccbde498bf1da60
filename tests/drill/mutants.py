"""Faults by the script that shows each: every script must be able to fail.

`KNOWN` names faults of `mutations.py`; `MUTANTS` are those that only a script is needed for.
"""

from __future__ import annotations

from drill.mutants_of_manager import MANAGER_MUTANTS
from drill.mutants_of_requester import REQUESTER_MUTANTS
from drill.mutants_of_responder import RESPONDER_MUTANTS

MUTANTS = (*RESPONDER_MUTANTS, *REQUESTER_MUTANTS, *MANAGER_MUTANTS)

KNOWN: dict[str, tuple[str, ...]] = {
    "every packet that is ahead draws a NAK": ("sequence/gap-draws-one-nak",),
    "the NAK latch is never released": ("sequence/nak-after-each-gap",),
    "an RNR NAK does not set the latch": ("rnr/tail-is-discarded",),
    "duplicates advance the MSN": ("atomic/flush",),
    "a READ does not advance the MSN": (
        "acks/msn",
        "read/sees-the-write-before",
        "rnr/write-needs-no-receive",
    ),
    "a READ takes one PSN": (
        "duplicates/read",
        "read/more-than-promised",
        "read/next-request-does-not-wait",
    ),
    "the responder compares PSNs as plain integers": (
        "sequence/ahead-region",
        "sequence/behind-region",
    ),
    "a refused packet counts as taken": ("rnr/again-and-again", "rnr/only"),
    "a duplicate is acknowledged with its own PSN": (
        "duplicates/inside-a-message",
        "duplicates/write",
    ),
    "a duplicate is not acknowledged": ("duplicates/inside-a-message",),
    "a responder that has refused goes on answering": (
        "sequence/behind-a-request-that-was-refused",
    ),
    "NAKs carry credits": (
        "access/deregistered",
        "acks/nak-has-the-msn-before",
        "credits/none-in-a-nak",
    ),
    "a WRITE is stored before its R_Key is checked": (
        "access/bad-key",
        "access/partly-valid-write",
    ),
    "every packet of a WRITE goes where the first went": (
        "impairments/overtaken",
        "rnr/write-with-immediate",
        "wrap/gap",
    ),
    "one byte beyond a region may be read": ("access/bounds", "access/memory-window"),
    "a SEND with invalidate invalidates nothing": (
        "access/invalidate-of-a-bad-key",
        "access/invalidated-window",
    ),
    "the newest receive request is taken first": ("completions/queue-overrun",),
    "a receive buffer is filled from where the last one ended": (
        "completions/in-order",
        "duplicates/send",
        "unreliable/resynchronises",
    ),
    "a READ that is asked for again begins with its first byte": (
        "duplicates/read-of-the-rest",
        "wrap/read",
    ),
    "a duplicate atomic is executed again": (
        "atomic/duplicate-of-several",
        "atomic/duplicates-are-not-executed",
        "impairments/everything-twice",
    ),
    "a duplicate atomic is answered with the number of now": ("atomic/duplicate-of-several",),
    "compare and swap are exchanged": ("atomic/compare-swap",),
    "one READ too many is kept": (
        "atomic/flush-that-is-forgotten",
        "atomic/forgotten-result",
        "atomic/promise-that-is-no-power-of-two",
    ),
    "an ACK behind a READ completes it": ("recovery/implied-nak",),
    "a gap in the responses of a READ goes unnoticed": ("recovery/read-gap",),
    "the result of an atomic is stored in the order of the wire": ("requester/atomics",),
    "the requester compares PSNs as plain integers": ("wrap/requester",),
    "a NAK makes the requester begin one packet too late": (
        "recovery/nak-completes-what-is-before",
        "recovery/nak-of-the-first",
        "recovery/sequence-nak",
    ),
    "a READ is asked for again from its first address": ("recovery/read-gap",),
    "a READ is asked for again in its full length": ("recovery/read-gap",),
    "every packet of a message is solicited": ("requester/solicited",),
    "a WRITE without immediate is solicited": ("requester/solicited",),
    "a fence is passed": ("requester/fence",),
    "one READ more than max_rd_atomic is outstanding": (
        "requester/limit-that-is-no-power-of-two",
        "requester/reads-within-the-limit",
    ),
    "padding is the rest, not what is missing": (
        "access/edges-that-are-allowed",
        "read/of-several-packets",
        "read/segmentation",
        "requester/one-packet",
    ),
    "the ICRC is not checked": (
        "address/ipv6",
        "impairments/damaged-on-the-way",
        "silence/wrong-icrc",
        "silence/wrong-icrc-of-an-answer",
    ),
    "the credit code is rounded up": ("credits/granted",),
    "fewer credits than before take what was granted back": ("credits/fewer-than-before",),
    "more credits are promised than there are receive requests": ("credits/granted",),
    "two messages are started beyond the credits": (
        "credits/a-ghost-brings-them",
        "credits/one-message-before-any",
    ),
    "a message beyond the credits is sent whole": ("credits/limited-message",),
    "a message that needs no credit takes one": ("credits/writes-need-none",),
    "the ACK timer is not started": (
        "impairments/late-answer",
        "recovery/late-answer-ends-the-retry",
        "recovery/lost-ack",
        "recovery/read-timeout",
    ),
    "progress does not push the ACK timer back": ("recovery/from-the-oldest-unacknowledged",),
    "progress does not give the retries back": ("recovery/progress-gives-retries-back",),
    "a retry costs nothing": (
        "impairments/everything-lost",
        "recovery/naks-use-up-retries",
        "recovery/retry-count",
    ),
    "the last retry is not made": (
        "impairments/last-retry-arrives",
        "recovery/naks-use-up-retries",
    ),
    "the RNR wait is the one of the code before": (
        "recovery/rnr-in-the-middle",
        "rnr/seven-is-for-ever",
        "rnr/waits-for-the-timer",
    ),
    "an RNR retry costs nothing": ("rnr/retries",),
    "an unsignalled request leaves a completion": ("requester/unsignalled",),
    "an unsignalled request that fails leaves no completion": ("requester/unsignalled-failure",),
    "the newest request is flushed first": (
        "requester/read-takes-its-psns",
        "states/error-flushes",
    ),
}
"""Scripts by the fault of `mutations.py` that they show."""

UNSEEN: dict[str, str] = {
    "a type 2 window serves every queue pair": "a script has one queue pair",
    "a window lies anywhere in its region": "a script binds windows without a work request",
    "the window is not looked at inside a message": "spec has no window that a script reaches",
    "a NAK costs a retry that a timeout has paid already": "what is due leaves at once",
}
"""Faults of `mutations.py` that no script shows, and why."""
