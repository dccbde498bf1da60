"""What a case shows: what each of its steps is about, and what led to the last one.

The reference carries the steps out. A scene has what a name needs to know of it: the state of
every queue pair before the last step, and what came before.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice, zip_longest

from ibwire.fuzz.case import (
    Case,
    Connect,
    Connection,
    Mad,
    Packet,
    Pause,
    Post,
    Receive,
    Step,
    Wait,
    length_of,
)
from ibwire.fuzz.judge.comparison import Difference, Kind, apply, count_of_others
from ibwire.fuzz.judge.effects import (
    GAP_NAK,
    extra_frame,
    first_frame,
    has_same_kind,
    missing_frame,
    parsed,
)
from ibwire.fuzz.judge.findings import PARTS_OF_COMPLETION, verdict
from ibwire.fuzz.judge.forgetful import ignores_credits_of_data, takes_credits_back
from ibwire.fuzz.judge.request_names import (
    AFTER_ERROR,
    AHEAD,
    INVALIDATE,
    NOT_READY,
    headers,
    request,
)
from ibwire.fuzz.judge.response_names import about as response
from ibwire.fuzz.judge.response_names import is_repeated
from ibwire.fuzz.judge.subject import SGE_LIST, About
from ibwire.fuzz.sge_sizes import sges_in_words, sizes_of_sges
from ibwire.fuzz.targets.emulated_device import (
    PEER_QPN,
    RECEIVES,
    SENDS,
    Emulation,
    is_empty_piece,
)
from ibwire.fuzz.vocabulary.binding import Binding, emulated_binding
from ibwire.fuzz.vocabulary.queue_pair.encoding import number_of
from ibwire.rc.plan import PLANS
from ibwire.rc.profile import Profile
from ibwire.rc.work import WCStatus, WROpcode
from ibwire_layers import syndrome as aeth
from ibwire_layers.headers import AETH
from ibwire_layers.opcodes import INFO, Operation, Position
from ibwire_layers.packet import Packet as WholePacket
from ibwire_layers.psn import HALF, MASK
from ibwire_layers.syndrome import AckKind

Owners = dict[tuple[int, int], int]
"""The number of the queue pair of each work request that waits, by queue and number."""

ENOUGH = 2
"""Earlier steps of one kind that a minimised case takes at most, unless their number matters."""

SHORT = 10
"""Steps of a case that may be taken to need each of them."""


class Scene:
    """The last step of a case and what led to it.

    reference: at the end before that step. profile: its own.
    """

    def __init__(
        self, reference: Emulation, case: Case, difference: Difference, profile: Profile
    ) -> None:
        self.reference = reference
        self._case, self._profile = case, profile
        self.connection = last_connection(case, difference.step)
        self.service = self.connection.service
        self.is_reliable = self.connection.is_reliable
        self.difference = difference
        self.subjects: list[tuple[Step, About]] = []
        """Each step, and what it is about."""
        self.situation: About | None = None
        """What else the queue pair is doing when the last packet arrives."""
        self.last_psn = 0
        """The PSN of the last packet."""
        self.is_discarded = False
        """Whether the last packet has a fault in its headers: whatever it is, it is discarded."""
        self.next_psns: list[int] = []
        """The PSN of the next new packet of each queue pair's requester before the last step."""
        self.timeouts: list[int] = []
        """How often the ACK timer of each queue pair has expired in the waits just before the last
        step: a packet or request before those may have changed it.
        """
        self.uses_all_retries = False
        """Whether the ACK timer of a queue pair has expired as often before the last step as it may
        for one request.
        """
        self._timeouts_so_far = 0
        """How often the ACK timer of a queue pair has expired before the last step at most."""
        self.waiting: list[bool] = []
        """Whether each queue pair waits after an RNR NAK before the last step."""
        self.owners: Owners = {}
        """The queue pair of each work request before the last step, by queue and number."""
        self.posted: dict[int, str] = {}
        """The operation of each posted request of the last connection, by its number."""
        self._taken: dict[tuple[int, int], Operation] = {}
        """The operation of each request taken on this connection, by queue pair and PSN."""
        self._unpolled = 0, 0
        """Completions of sends and of receives before the last step that are polled after it."""
        self._filled: tuple[int, int] | None = None
        """The number of the receive request that the message under way fills before the last step,
        and the bytes in it.
        """
        self._unsent: set[tuple[int, int | None]] = set()
        """PSN and NAK of each response that waits before the last step."""
        self.is_unstored = self.is_beyond = False
        """Whether memory was to be written and is as it was; whether the reverse."""
        content = self._walk()
        changed = count_of_others(content, reference.memory) if content else 0
        self.is_dropped = self.is_unstored and difference.size == changed
        """Whether no byte was written of those that were to be: misplaced ones differ besides."""
        self.stores_nothing = bool(content) and reference.memory == content
        """Whether memory differs although none was to be written."""

    def _walk(self) -> bytes:
        """Go through the steps; returns the memory before the last one where memory differs."""
        reference, difference, case = self.reference, self.difference, self._case
        content = b""
        received: About | None = None
        binding = emulated_binding(case.connection.version)
        timeouts: list[int] = []
        for number, each in enumerate(walk(reference, case, difference.step)):
            if number < difference.step:
                timeouts = _timeouts(reference, each, timeouts)
            if isinstance(each, Post):
                self.posted[reference.posted] = WROpcode(each.opcode).name
            elif isinstance(each, Connect):
                self.posted.clear()
            step = _at_its_pair(reference, _as_arrived(reference, binding, each))
            about = _about(reference, step, received)
            if about is AHEAD and isinstance(step, Packet) and self._is_refused(step):
                about = BEHIND_REFUSED
            about = self._without_original(step, about)
            if isinstance(step, Packet | Connect):
                received = about if isinstance(step, Packet) else None
            self.subjects.append((step, about))
            if number == difference.step:
                self._keep_state(step, timeouts)
                if difference.kind is Kind.MEMORY:
                    content = bytes(reference.memory)
                    self.is_unstored = _is_as_before(reference.memory, difference.got)
                    self.is_beyond = _is_as_before(reference.memory, difference.expected, 1)
            reference.prepare(each)

        reference.prepare(self.step)
        return content

    def _keep_state(self, step: Step, timeouts: list[int]) -> None:
        """Keep the state of the queue pairs before the last step. timeouts: before the waits."""
        reference = self.reference
        before = timeouts or [0] * len(reference.pairs)
        self.situation = _situation(reference, step)
        self.next_psns = [qp.sends.next_psn for qp in reference.pairs]
        self.timeouts = [
            qp.counters.timeouts - count for qp, count in zip(reference.pairs, before, strict=True)
        ]
        retries = max(qp.counters.timeouts for qp in reference.pairs)
        self._timeouts_so_far = retries
        self.uses_all_retries = 0 < self.connection.retry_cnt <= retries
        self.waiting = [qp.sends.timers.rnr is not None for qp in reference.pairs]
        self.owners = owners_in(reference)
        receives = reference.qp.receives
        if receives.current is not None:
            self._filled = receives.current.wr_id, receives.filled
        self._unpolled = reference.unpolled
        self._unsent = {(each.psn, each.syndrome) for each in reference.qp.responder.replies}
        if isinstance(step, Packet):
            self.last_psn = reference.psn(step.psn[0]) + step.psn[1] & MASK
            self.is_discarded = headers(reference, step) is not None

    def _without_original(self, step: Step, about: About) -> About:
        """What a step is about, which is no duplicate if its PSN is that of a request of the case
        that has another operation.
        """
        if isinstance(step, Connect):
            self._taken.clear()
        operation = _operation(step)
        if not isinstance(step, Packet) or operation is None or "bth.psn" in step.fields:
            return about
        psn = self.reference.psn(step.psn[0]) + step.psn[1] & MASK
        place = step.pair % self.connection.pairs, psn
        if not step.psn[1] and step.psn[0] == "expected" and not about.is_wrong:
            self._taken[place] = operation
        other = self._taken.get(place, operation)
        if other is operation or not about.rule.endswith("#duplicate-write"):
            return about
        return replace(about, what=f"a {operation.name} with an old PSN", detail="")

    def _is_refused(self, step: Packet) -> bool:
        """Whether the last packet at the expected PSN has found no receive request."""
        for each, about in reversed(self.subjects):
            if isinstance(each, Connect):
                return False  # what was refused was on the connection before
            if isinstance(each, Packet) and each.pair == step.pair and about is not AHEAD:
                return about in (NOT_READY, BEHIND_REFUSED)
        return False

    @property
    def step(self) -> Step:
        """The last one."""
        return self.subjects[-1][0]

    @property
    def about(self) -> About:
        """What it is about."""
        return self.subjects[-1][1]

    @property
    def of_connection(self) -> Sequence[tuple[Step, About]]:
        """The steps on the connection of the last one, and what each is about."""
        places = [
            at for at, (each, _) in enumerate(self.subjects[:-1]) if isinstance(each, Connect)
        ]
        return self.subjects[places[-1] + 1 :] if places else self.subjects

    @property
    def earlier(self) -> Sequence[Step]:
        """The steps before it."""
        return [step for step, _ in self.subjects[:-1]]

    @property
    def breaks_another_pair(self) -> bool:
        """Whether a queue pair beside that of the last step has gone to the error state."""
        pairs = self.reference.pairs
        return any(
            qp.responder.failed or not qp.accepts_requests
            for qp in pairs
            if qp is not self.reference.qp
        )

    @property
    def held(self) -> Packet | None:
        """The packet before the last step, if it is answered together with that."""
        before = self.earlier[-1] if self.earlier else None
        return before if isinstance(before, Packet) and before.held else None

    @property
    def storing(self) -> Packet | None:
        """The last response before a posted request that stores what the request may send."""
        if not isinstance(self.step, Post) or not self.is_short:
            return None
        found = [
            each for each in self.earlier if isinstance(each, Packet) and stores_response(each)
        ]
        return found[-1] if found else None

    @property
    def sges_in_use(self) -> str:
        """What has several SGEs in the case and may matter for the last step; empty for nothing."""
        info = INFO.get(self.step.opcode) if isinstance(self.step, Packet) else None
        is_response = info is not None and info.is_response
        if self.connection.sges > 1 and info is not None and not is_response:
            return "receives"
        lists = [each for each, _ in self.subjects if isinstance(each, Post) and each.sges > 1]
        if not lists:
            return ""
        is_stored = isinstance(self.step, Packet) and stores_response(self.step)
        if is_stored and any(PLANS[WROpcode(each.opcode)].is_answered for each in lists):
            return "responses"
        return "requests"

    @property
    def earlier_completion(self) -> Difference | None:
        """The completion of a held packet alone, if it is the first that differs."""
        difference = self.difference
        if self.held is None or difference.kind is not Kind.COMPLETION:
            return None
        left = list(self._unpolled)
        for expected, got in zip(difference.expected, difference.got, strict=False):
            assert isinstance(expected, tuple)
            queue = expected[0]
            if not left[queue]:
                return None
            left[queue] -= 1
            if expected != got:
                step = difference.step - 1
                return replace(difference, step=step, expected=[expected], got=[got])
        return None

    @property
    def earlier_nak(self) -> Difference | None:
        """The NAK of a held packet that has no reason, if it is the first answer that differs."""
        difference = self.difference
        is_wrong = len(self.subjects) < ENOUGH or self.subjects[-2][1].is_wrong
        if self.held is None or difference.kind is not Kind.ANSWER or is_wrong:
            return None
        for expected, got in zip_longest(difference.expected, difference.got):
            if expected == got:
                continue
            if not isinstance(got, bytes) or verdict(got) == GAP_NAK:
                return None
            packet = parsed(got)
            is_nak = packet is not None and _nak_of(packet) is not None
            is_due = isinstance(expected, bytes) and self.is_about_earlier(expected)
            if not is_nak or is_due or not self.is_about_earlier(got):
                return None
            step = difference.step - 1
            return replace(difference, step=step, expected=[], got=[got], beside=((), ()))
        return None

    @property
    def earlier_response(self) -> Difference | None:
        """The response to a held packet that is wrong and is dropped, if it is the first answer
        that differs: one of a kind that the last packet draws none of.
        """
        difference, held = self.difference, self.held
        if held is None or difference.kind is not Kind.ANSWER or not self.subjects[-2][1].is_wrong:
            return None
        if extra_frame(difference) is not None:
            return None  # it is one too many, whatever the last packet is
        kinds = [_ANSWERED_BY.get(_operation(each)) for each in (held, self.step)]
        for expected, got in zip_longest(difference.expected, difference.got):
            if expected == got:
                continue
            packet = parsed(got) if isinstance(got, bytes) else None
            info = None if packet is None else INFO.get(packet.bth.opcode)
            kind = None if info is None else info.operation
            is_due = isinstance(expected, bytes) and self.is_about_earlier(expected)
            if kind is None or kind != kinds[0] or kind == kinds[1] or is_due:
                return None
            step = difference.step - 1
            return replace(difference, step=step, expected=[], got=[got], beside=((), ()))
        return None

    def is_about_earlier(self, frame: bytes) -> bool:
        """Whether a response is to a request before the last packet, which came before it left."""
        if self.held is None:
            return False
        packet = parsed(frame)
        if packet is None:
            return False
        if (packet.bth.psn, _nak_of(packet)) in self._unsent:
            return True
        if verdict(frame) == GAP_NAK:
            return False  # which names the PSN that is expected
        return 0 < self.last_psn - packet.bth.psn & MASK < HALF

    @property
    def is_answered_from(self) -> int | None:
        """The queue pair of the peer that the first missing, wrong or extra answer is for."""
        difference = self.difference
        frame = missing_frame(difference) or extra_frame(difference) or first_frame(difference)
        packet = None if frame is None else parsed(frame)
        return None if packet is None else packet.bth.dest_qp

    @property
    def is_retransmission(self) -> bool:
        """Whether what differs is a packet that was sent before."""
        frame = first_frame(self.difference)
        return frame is not None and has_same_kind(self.difference) and self.is_sent_before(frame)

    def is_sent_before(self, frame: bytes) -> bool:
        """Whether a packet is a request that was sent before the last step."""
        packet = parsed(frame)
        form = None if packet is None else INFO.get(packet.bth.opcode)
        if packet is None or form is None or form.is_response:
            return False
        return (self.next_psns[self.sender(frame)] - 1 - packet.bth.psn & MASK) < HALF

    def retransmissions(self, frame: bytes) -> int:
        """How often a device has retransmitted a request: before the last step, where only
        timeouts count, and then.
        """
        return self.timeouts[self.sender(frame)] + self.difference.got.count(frame)

    def sender(self, frame: bytes) -> int:
        """The number of the queue pair that sends a frame."""
        # The frames of a device on a link have other numbers than this reference.
        packet = parsed(frame)
        pair = -1 if packet is None else packet.bth.dest_qp - PEER_QPN
        if 0 <= pair < len(self.next_psns):
            return pair
        return self.reference.pairs.index(self.reference.qp)

    @property
    def completes_incomplete(self) -> bool:
        """Whether a device of UC completes a message without its end, because another begins."""
        info = INFO.get(self.step.opcode) if isinstance(self.step, Packet) else None
        if self.service != "UC" or self._filled is None or info is None:
            return False
        if info.position not in _BEGINS or self.difference.kind is not Kind.COMPLETION:
            return False
        number, size = self._filled
        return any(
            isinstance(each, tuple)
            and each not in self.difference.expected
            and each[:3] == (RECEIVES, number, WCStatus.SUCCESS)
            and each[_BYTE_LEN] == size
            for each in self.difference.got
        )

    @property
    def fails_abandoned(self) -> bool:
        """Whether a device of UC ends a receive request in error that goes back to its queue."""
        difference = self.difference
        if self.service != "UC" or self.connection.srq or difference.kind is not Kind.COMPLETION:
            return False
        return not difference.expected and all(
            isinstance(each, tuple)
            and each[0] == RECEIVES
            and each[2] not in (WCStatus.SUCCESS, WCStatus.WR_FLUSH_ERR)
            for each in difference.got
        )

    @property
    def is_of_limited_message(self) -> bool:
        """Whether the packet that differs is of the one message that may begin without credits, or
        is of another one, behind that.
        """
        extra = extra_frame(self.difference)
        frame = extra or first_frame(self.difference)
        packet = None if frame is None else parsed(frame)
        if frame is None or packet is None or not self.is_reliable:
            return False
        sends = self.reference.pairs[self.sender(frame)].sends
        is_held_back = any(not each.started for each in sends.wqes) and sends.timers.rnr is None
        if extra is not None and sends.credits.limited and is_held_back:
            return True
        return any(
            each.limited and packet.bth.psn - each.first_psn & MASK < each.packets
            for each in sends.wqes
            if each.started
        )

    @property
    def goes_on_after_the_end(self) -> bool:
        """Whether a queue pair retransmits that has given up all of its requests."""
        frame = extra_frame(self.difference)
        packet = None if frame is None else parsed(frame)
        if packet is None:
            return False
        pair = packet.bth.dest_qp - PEER_QPN
        pairs = self.reference.pairs
        own = pairs[pair : pair + 1] if 0 <= pair < len(pairs) else pairs
        return not any(qp.sends.wqes for qp in own)

    @property
    def limit_of_requests(self) -> str:
        """The rule of what holds requests back that a minimised case has, if it has any."""
        pair = self.step.pair if isinstance(self.step, Packet | Post) else 0
        before = [each for each in self.earlier if isinstance(each, Post) and each.pair == pair]
        if any(each.opcode == WROpcode.LOCAL_INV for each in before):
            return LOCAL_INVALIDATE.rule
        if any(each.fence for each in before):
            return FENCE
        limit = self.connection.max_rd_atomic
        posted = sum(
            isinstance(step, Post) and step.opcode in _LIMITED and step.pair == pair
            for step, _ in self.subjects
        )
        is_limited = limit != Connection().max_rd_atomic or (self.is_reliable and posted > limit)
        return _READ_LIMIT if is_limited else ""

    @property
    def invalidates_locally(self) -> bool:
        """Whether the case needs a local invalidate before its last step, a request."""
        step = self.step
        info = INFO.get(step.opcode) if isinstance(step, Packet) else None
        is_request = info is not None and not info.is_response
        return is_request and self.is_short and LOCAL_INVALIDATE in [a for _, a in self.subjects]

    @property
    def waits_beside(self) -> bool:
        """Whether another queue pair than that of the last step waits after an RNR NAK, and that
        one does not.
        """
        own = self.reference.pairs.index(self.reference.qp)
        return any(self.waiting) and not self.waiting[own]

    @property
    def ignores_credits(self) -> bool:
        """Whether the device ignores the credits of responses with data."""
        if not self.is_reliable:
            return False
        return ignores_credits_of_data(self._case, self.difference, self._profile)

    @property
    def takes_credits_back(self) -> bool:
        """Whether the device lets a response with fewer credits lower its limit: one that
        acknowledges something.
        """
        if not self.is_reliable or any(is_repeated(about) for _, about in self.subjects):
            return False
        return takes_credits_back(self._case, self.difference, self._profile)

    @property
    def acknowledging(self) -> About | None:
        """What the response is about after which only the rest of a message is retransmitted."""
        expected, got = self.difference.expected, self.difference.got
        count = len(got) if self.difference.kind is Kind.ANSWER else 0
        if not 0 < count < len(expected) or list(expected[-count:]) != list(got):
            return None
        if not all(isinstance(each, bytes) and self.is_sent_before(each) for each in expected):
            return None
        last = self.subjects[-2:-1]
        is_right = bool(last) and isinstance(last[0][0], Packet) and expected[0] not in got
        return last[0][1] if is_right else None

    @property
    def sends_after_its_end(self) -> bool:
        """Whether the device goes on with its own requests, where that packet has ended all."""
        frame = extra_frame(self.difference)
        if frame is None or not self.reference.qp.responder.failed:
            return False
        if self.reference.pairs[self.sender(frame)] is not self.reference.qp:
            return False
        packet = parsed(frame)
        info = None if packet is None else INFO.get(packet.bth.opcode)
        return info is not None and not info.is_response

    @property
    def ends_another_request(self) -> bool:
        """Whether a device ends an earlier request in error for what is wrong with a posted one."""
        if self.difference.kind is not Kind.COMPLETION or self.about.rule != WRONG_LKEY.rule:
            return False
        return any(
            isinstance(each, tuple)
            and each not in self.difference.expected
            and each[2] not in (WCStatus.SUCCESS, WCStatus.WR_FLUSH_ERR)
            and each[:2] in self.owners
            and each[0] == SENDS
            for each in self.difference.got
        )

    @property
    def has_wrong(self) -> bool:
        """Whether the case has anything of which the specification allows one treatment alone."""
        return any(about.is_wrong for _, about in self.subjects)

    @property
    def is_short(self) -> bool:
        """Whether the case may be taken to need whatever it has."""
        return len(self.subjects) <= SHORT

    @property
    def ignored(self) -> About | None:
        """What an earlier packet is about that has no effect on a right device.

        A short case needs each of its packets: then it had an effect.
        """
        if not self.is_short:
            return None
        return next((about for _, about in self.of_connection[:-1] if about.is_ignored), None)

    @property
    def has_rnr_nak(self) -> bool:
        """Whether the device has received an RNR NAK."""
        return any(about.rule.endswith(("#rnr-wait", "#rnr-place")) for _, about in self.subjects)

    @property
    def ends_with_ack_timer(self) -> bool:
        """Whether a completion differs in a wait in which the ACK timer expires behind the wait
        after an RNR NAK.
        """
        step, now = self.step, self.reference.now
        if not isinstance(step, Wait) or self.difference.kind is not Kind.COMPLETION:
            return False
        return any(
            timers.rnr is not None and wait is not None and timers.rnr - now + wait <= step.time
            for timers, wait in (
                (each.sends.timers, each.sends.ack_wait) for each in self.reference.pairs
            )
        )

    @property
    def rnr_naks(self) -> int:
        """The RNR NAKs that the device has received."""
        rules = [about.rule for step, about in self.subjects if isinstance(step, Packet)]
        return sum(each.endswith(("#rnr-wait", "#rnr-place")) for each in rules)

    @property
    def rnr_naks_as_retries(self) -> bool:
        """Whether a case needs so many RNR NAKs that with the timeouts they are all retries."""
        implied = sum(about.implies_nak for _, about in self.subjects[:-1])
        count = self.rnr_naks + self._timeouts_so_far + implied
        return self.rnr_naks > ENOUGH and 0 < self.connection.retry_cnt <= count

    @property
    def limits_retries(self) -> bool:
        """Whether the connection has another number of retries than usual, and not none."""
        return self.connection.retry_cnt not in (0, 7)

    @property
    def repeated_fault(self) -> About | None:
        """What is wrong with so many of the earlier packets that their number matters."""
        faults = Counter(
            about
            for step, about in self.of_connection[:-1]
            if isinstance(step, Packet) and about.is_wrong
        )
        return next((about for about, count in faults.most_common(1) if count > ENOUGH), None)

    @property
    def repeats_invalidate(self) -> bool:
        """Whether the case needs a SEND with invalidate before its last step, which is one, too."""
        abouts = [about for _, about in self.subjects]
        return self.is_short and abouts[-1].rule == INVALIDATE.rule and abouts[-1] in abouts[:-1]

    @property
    def before(self) -> About | None:
        """What the packet before the last one was about, of the same queue pair."""
        step = self.step
        found = [
            about
            for each, about in self.of_connection[:-1]
            if isinstance(each, Packet) and isinstance(step, Packet) and each.pair == step.pair
        ]
        return found[-1] if found else None

    @property
    def is_wrong_elsewhere(self) -> bool:
        """Whether only packets to other queue pairs than that of the last step are wrong."""
        wrong = {
            step.pair
            for step, about in self.subjects
            if about.is_wrong and isinstance(step, Packet | Post)
        }
        own = self.step.pair if isinstance(self.step, Packet | Post) else 0
        return bool(wrong) and own not in wrong

    @property
    def sges_of_sent(self) -> int:
        """The SGEs of the request of several whose packets differ, if the device sends them new.

        0 for none, and where what they send may have been stored by a packet.
        """
        frame = first_frame(self.difference)
        packet = None if frame is None else parsed(frame)
        form = None if packet is None else INFO.get(packet.bth.opcode)
        if frame is None or form is None or form.is_response or self.is_sent_before(frame):
            return 0
        steps = [step for step, _ in self.subjects]
        stored = any(isinstance(each, Packet) and _may_store(each) for each in steps)
        counts = [each.sges for each in steps if isinstance(each, Post)]
        return 0 if stored or max(counts, default=0) < 2 else max(counts)

    @property
    def has_long_read(self) -> bool:
        """Whether a READ that takes several PSNs came before."""
        mtu = self.connection.mtu
        lengths = [
            step.fields.get("reth.dma_len", 0)
            for step in self.earlier
            if isinstance(step, Packet) and _is_read(step)
        ]
        return any(isinstance(each, int) and each > mtu for each in lengths)


def _nak_of(packet: WholePacket) -> int | None:
    """The syndrome of a NAK or RNR NAK; `None` for another response."""
    header = packet.extension(AETH)
    is_nak = header is not None and aeth.kind(header.syndrome) is not AckKind.ACK
    return header.syndrome if header is not None and is_nak else None


def _operation(step: Step) -> Operation | None:
    info = INFO.get(step.opcode) if isinstance(step, Packet) else None
    return None if info is None else info.operation


def stores_response(packet: Packet) -> bool:
    """Whether a packet is a response whose data are stored."""
    info = INFO.get(packet.opcode)
    return info is not None and info.operation in _STORED_RESPONSES


def _may_store(packet: Packet) -> bool:
    """Whether a packet may let a device write into its memory."""
    info = INFO.get(packet.opcode)
    if info is None or info.operation is Operation.ATOMIC_ACKNOWLEDGE:
        return True
    return info.operation is not Operation.ACKNOWLEDGE and not (
        info.is_response and not packet.length
    )


_ANSWERED_BY: dict[Operation | None, Operation] = {
    Operation.READ: Operation.READ_RESPONSE,
    Operation.FLUSH: Operation.READ_RESPONSE,
    Operation.ATOMIC_WRITE: Operation.READ_RESPONSE,
    Operation.COMPARE_SWAP: Operation.ATOMIC_ACKNOWLEDGE,
    Operation.FETCH_ADD: Operation.ATOMIC_ACKNOWLEDGE,
}
"""The response that a request draws, other than an ACK."""

_STORED_RESPONSES = (Operation.READ_RESPONSE, Operation.ATOMIC_ACKNOWLEDGE)


def _is_read(packet: Packet) -> bool:
    info = INFO.get(packet.opcode)
    return info is not None and info.operation is Operation.READ


def last_connection(case: Case, last: int) -> Connection:
    """The connection on which a step is."""
    made = [step.connection for step in case.steps[: last + 1] if isinstance(step, Connect)]
    return made[-1] if made else case.connection


def _timeouts(reference: Emulation, step: Step, known: list[int]) -> list[int]:
    """How often the ACK timer of each queue pair has expired before the newest step but waits.

    known: before this step; empty for never, and for new queue pairs.
    """
    if isinstance(step, Wait):
        return known
    if isinstance(step, Connect):
        return []
    return [qp.counters.timeouts for qp in reference.pairs]


def owners_in(reference: Emulation) -> Owners:
    """The queue pair of each work request that waits, by queue and number."""
    found: Owners = {}
    for number, qp in enumerate(reference.pairs):
        receives = qp.receives
        waiting = [*receives.waiting, *([receives.current] if receives.current else [])]
        found |= {(RECEIVES, each.wr_id): number for each in waiting}
        found |= {(SENDS, each.wr.wr_id): number for each in qp.sends.wqes}
    return found


def _situation(reference: Emulation, step: Step) -> About | None:
    """What else the queue pair does while a packet arrives: it waits, or is inside a message."""
    if not isinstance(step, Packet) or not reference.connection.is_reliable:
        return None
    info, sends = INFO.get(step.opcode), reference.qp.sends
    if info is not None and info.is_response:
        return INSIDE if reference.under_way is not None else None
    if sends.timers.rnr is not None:
        return DURING_RNR
    return OWN_REQUESTS if any(each.started for each in sends.wqes) else None


def _is_as_before(memory: bytearray, found: Sequence[object], size: int = 8) -> bool:
    """Whether the bytes that differ are those of before the step."""
    first, content = found
    assert isinstance(first, int)
    assert isinstance(content, bytes)
    return content[:size] == bytes(memory[first : first + len(content)])[:size]


# What each step is about.


def walk(reference: Emulation, case: Case, last: int) -> Iterator[Step]:
    """Each step of a case up to the last one, before the reference carries it out."""
    binding = emulated_binding(case.connection.version)
    for step in case.steps[: last + 1]:
        reference.prepare(step)
        yield step
        _advance(reference, binding, step)


def bring_to(reference: Emulation, case: Case, last: int) -> None:
    """Let a reference carry out the steps of a case before one, and be about that."""
    next(islice(walk(reference, case, last), last, None))


def _about(reference: Emulation, step: Step, received: About | None) -> About:
    if reference.qp.responder.failed and not isinstance(step, Connect | Wait):
        return AFTER_ERROR
    if isinstance(step, Wait) and all(qp.responder.failed for qp in reference.pairs):
        return AFTER_ERROR
    if isinstance(step, Packet):
        psn = reference.psn(step.psn[0]) + step.psn[1] & MASK
        about = headers(reference, step) or response(reference, step, psn)
        return about or request(reference, step)
    if isinstance(step, Wait):
        return _waiting(reference) or received or TIME
    if isinstance(step, Post):
        return _posted(step)
    return STEPS.get(type(step), TIME)


def _as_arrived(reference: Emulation, binding: Binding, step: Step) -> Step:
    """A packet as one of the opcode that it has on the wire, with the headers of that."""
    if not isinstance(step, Packet) or isinstance(step, Mad) or "bth.opcode" not in step.fields:
        return step
    frame = binding.frame(step, reference.psn(step.psn[0]), reference.symbols)
    packet = parsed(frame)
    if packet is None or packet.bth.opcode not in INFO:
        return step
    outer = {name: value for name, value in step.fields.items() if _is_outer(name)}
    inner = {
        f"{header.KEY}.{entry.name}": number
        for header in packet.extensions
        for entry in header.FIELDS
        if isinstance(number := getattr(header, entry.name), int)
    }
    return step.altered(
        opcode=int(packet.bth.opcode), length=len(packet.payload), fields={**outer, **inner}
    )


def _at_its_pair(reference: Emulation, step: Step) -> Step:
    """A packet to another queue pair of the connection as one of that, which `qp` is then."""
    if not isinstance(step, Packet) or isinstance(step, Mad) or "bth.dest_qp" not in step.fields:
        return step
    number = number_of(step.fields["bth.dest_qp"], reference.symbols)
    pair = next((i for i, qp in enumerate(reference.pairs) if qp.number == number), None)
    if pair is None:
        return step
    base, offset = step.psn
    psn = reference.psn(base) + offset
    reference.focus(pair)
    rest = {name: value for name, value in step.fields.items() if name != "bth.dest_qp"}
    return step.altered(pair=pair, psn=(base, psn - reference.psn(base)), fields=rest)


def _is_outer(name: str) -> bool:
    """Whether a field is of a header that every packet has, but for its opcode."""
    return name.partition(".")[0] in _OUTER and name != "bth.opcode"


def _posted(step: Post) -> About:
    """What a send request is about: what is unusual about it."""
    if step.opcode == WROpcode.LOCAL_INV:
        return LOCAL_INVALIDATE
    if step.wrong_lkey:
        is_empty = is_empty_piece(length_of(step), step.sges, step.wrong_lkey)
        return EMPTY_WRONG_LKEY if is_empty else WRONG_LKEY
    if step.fence:
        return About("with a fence", FENCE, False)
    if step.sges > 1:
        words = sges_in_words(sizes_of_sges(length_of(step), step.sges))
        return About(f"with {step.sges} SGEs", SGE_LIST, False, detail=f"with {words}")
    return STEPS[Post]


def _waiting(reference: Emulation) -> About | None:
    """What the device waits for, on any of its queue pairs."""
    if any(qp.sends.timers.rnr is not None for qp in reference.pairs):
        return RNR_WAIT
    return ACK_WAIT if any(qp.sends.wqes for qp in reference.pairs) else None


def _advance(reference: Emulation, binding: Binding, step: Step) -> None:
    if isinstance(step, Pause):
        reference.receive(binding.pause(step))
    elif isinstance(step, Packet):
        psn = reference.psn(step.psn[0])
        reference.receive(binding.frame(step, psn, reference.symbols))
        if step.held:
            return
    elif isinstance(step, Wait):
        reference.wait(step.time)
    else:
        apply(reference, step)
    reference.answers()
    reference.completions()
    reference.details()
    reference.events()


_TRANSPORT = "docs/reference/transport.md#"
_WIRE = "docs/reference/wire-formats.md#"
_OUTER = ("eth", "ip", "udp", "bth")
_BEGINS = (Position.FIRST, Position.ONLY)
_BYTE_LEN = PARTS_OF_COMPLETION.index("byte_len")
FENCE = f"IBA 10.8.3.3; {_TRANSPORT}fence"
_LIMITED = (
    WROpcode.RDMA_READ,
    WROpcode.ATOMIC_CMP_AND_SWP,
    WROpcode.ATOMIC_FETCH_AND_ADD,
    WROpcode.ATOMIC_WRITE,
)
"""Requests that count against `max_rd_atomic`."""

_READ_LIMIT = f"IBA 9.7.3.1; {_TRANSPORT}read-limit"
WRONG_LKEY = About("a wrong L_Key", f"IBA 10.6; {_TRANSPORT}memory-access", False)
LOCAL_INVALIDATE = About("", f"IBA 10.8.3.3; {_TRANSPORT}local-invalidate", False)
EMPTY_WRONG_LKEY = About("an SGE of 0 bytes with a wrong L_Key", SGE_LIST, False)
BEHIND_REFUSED = About("a request behind a refused one", f"IBA 9.7.5.2.8; {_TRANSPORT}rnr-tail")
INSIDE = About("while a request is being received", f"IBA 9.7.6; {_TRANSPORT}responses")
DURING_RNR = About(
    "during the wait after an RNR NAK",
    f"IBA 9.7.5.2.8; {_TRANSPORT}rnr-wait",
    group="during the wait after an RNR NAK",
)
OWN_REQUESTS = About(
    "while its own requests are unanswered", f"IBA 9.7.5.1; {_TRANSPORT}response-priority"
)
RNR_WAIT = About("the wait after an RNR NAK", f"IBA 9.7.5.2.8; {_TRANSPORT}rnr-wait", False)
ACK_WAIT = About("the ACK timer", f"IBA 9.7.6.1.3; {_TRANSPORT}ack-timeout", False)
TIME = About("", f"IBA 9.7.6; {_TRANSPORT}go-back-n", False)
STEPS: dict[type, About] = {
    Post: About("", f"IBA 9.7.2; {_TRANSPORT}segmentation", False),
    Receive: About("", f"IBA 9.7.7.2; {_TRANSPORT}credits-granted", False),
    Pause: About("", f"IEEE 802.1Q 36; {_WIRE}pfc", False),
    Connect: About("", f"IBA 10.3.1; {_TRANSPORT}qp-reset", False),
}
