"""The laws of a reliable connection, checked from outside.

Each law is a function that looks at a `Run` and fails an assertion where the law is
broken. It reads what left and arrived at each end, what was posted and completed, and
memory; what a packet with some PSN must be is counted from the work requests by hand.
`ResponderView` and `RequesterView` are what an observer at either end knows at any
moment. Numbers of tables stand here once more, from docs/reference/transport.md, not from the code.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator

from ibwire.base.units import US, Time
from ibwire.fabric.sim import Outcome
from ibwire.rc.profile import Profile
from ibwire.rc.work import WC, WCFlags, WCOpcode, WCStatus, WROpcode
from ibwire_layers import headers as h
from ibwire_layers.packet import Packet
from schedules import (
    ATOMICS,
    TAKES_RECEIVE,
    WORDS,
    WRITES,
    Bad,
    Event,
    Flow,
    Message,
    Run,
    imm_data,
)

Law = Callable[[Run], None]

TAKES_SLOT = frozenset({*ATOMICS, WROpcode.RDMA_READ})
ANSWERED = frozenset({*TAKES_SLOT, WROpcode.FLUSH, WROpcode.ATOMIC_WRITE})
SENDS = TAKES_RECEIVE - WRITES
RESPONSES = range(0x0D, 0x13)
ACKNOWLEDGE, ATOMIC_ACKNOWLEDGE = 0x11, 0x12

OPCODES: dict[WROpcode, tuple[int, int, int, int]] = {
    WROpcode.SEND: (0x00, 0x01, 0x02, 0x04),
    WROpcode.SEND_WITH_IMM: (0x00, 0x01, 0x03, 0x05),
    WROpcode.SEND_WITH_INV: (0x00, 0x01, 0x16, 0x17),
    WROpcode.RDMA_WRITE: (0x06, 0x07, 0x08, 0x0A),
    WROpcode.RDMA_WRITE_WITH_IMM: (0x06, 0x07, 0x09, 0x0B),
    WROpcode.RDMA_READ: (0x0C,) * 4,
    WROpcode.ATOMIC_CMP_AND_SWP: (0x13,) * 4,
    WROpcode.ATOMIC_FETCH_AND_ADD: (0x14,) * 4,
    WROpcode.FLUSH: (0x1C,) * 4,
    WROpcode.ATOMIC_WRITE: (0x1D,) * 4,
}
"""First, middle, last, only (section 2)."""

COMPLETIONS = {
    **dict.fromkeys(SENDS, 0),
    **dict.fromkeys(WRITES, 1),
    WROpcode.RDMA_READ: 2,
    WROpcode.ATOMIC_CMP_AND_SWP: 3,
    WROpcode.ATOMIC_FETCH_AND_ADD: 4,
    WROpcode.BIND_MW: 5,
    WROpcode.LOCAL_INV: 6,
    WROpcode.FLUSH: 8,
    WROpcode.ATOMIC_WRITE: 9,
}
"""Section 12, numbers of verbs.h."""

CREDIT_CODES = (
    0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536,
    2048, 3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768,
)  # fmt: skip
"""Section 7."""

RNR_US = (
    655360, 10, 20, 30, 40, 60, 80, 120, 160, 240, 320, 480, 640, 960, 1280, 1920, 2560, 3840,
    5120, 7680, 10240, 15360, 20480, 30720, 40960, 61440, 81920, 122880, 163840, 245760, 327680,
    491520,
)  # fmt: skip
"""Section 7, in microseconds; rxe has 61410 for code 25."""

SEQUENCE_NAK, INVALID_REQUEST, ACCESS_ERROR, OPERATIONAL_ERROR = 0x60, 0x61, 0x62, 0x63
SILENT = 0
"""A fault that no NAK tells of."""


def psn_of(flow: Flow, packet: Packet) -> int:
    """The PSN of a packet, not wrapped."""
    return flow.unwrap(packet.bth.psn)


def is_request(packet: Packet) -> bool:
    return packet.bth.opcode not in RESPONSES


def syndrome_of(packet: Packet) -> int | None:
    """The AETH syndrome, `None` for a packet without."""
    found = packet.extension(h.AETH)
    return None if found is None else found.syndrome


class ResponderView:
    """What an observer beside the responder knows: a responder of forty lines."""

    def __init__(self, flow: Flow) -> None:
        self.flow = flow
        self.profile = flow.profile(flow.responder)
        self.epsn = flow.psn
        self.completed = 0
        """New messages completed: what the MSN counts."""
        self.buffers = 0
        """Receive requests posted and not taken."""
        self.fault: tuple[int, int] | None = None
        """PSN and syndrome of the NAK that a request must draw; nothing counts after it."""
        self.expected: Counter[int] = Counter()
        """How often a packet with the expected PSN has come, by that PSN."""
        self.refused: Counter[int] = Counter()
        """How often it found no receive request."""
        self.gaps: set[int] = set()
        """Expected PSNs in whose place something newer has come."""
        self.duplicates: Counter[int] = Counter()
        """Older packets by the PSN expected when they came."""
        self.read_starts: set[int] = set()
        """PSNs of the READ requests that have come."""

    def watch(self) -> Iterator[Event]:
        """Every event at the responder; the view is what was known before it."""
        flow = self.flow
        for event in flow.run.history:
            if event.end != flow.responder:
                continue
            yield event
            if event.kind == "receive":
                self.buffers += 1
            elif event.kind == "arrived" and event.packet and is_request(event.packet):
                self._take(event.packet)

    def _take(self, packet: Packet) -> None:
        if self.fault is not None:
            return
        psn = psn_of(self.flow, packet)
        if packet.bth.opcode == 0x0C:
            self.read_starts.add(psn)
        if psn > self.epsn:
            self.gaps.add(self.epsn)
        elif psn < self.epsn:
            self.duplicates[self.epsn] += 1
        else:
            self.expected[psn] += 1
            self._take_expected(psn)

    def _take_expected(self, psn: int) -> None:
        message = self.flow.message_at(psn)
        assert message is not None, f"a request with PSN {psn}, which nothing was posted for"
        opcode = message.work.opcode
        ends = psn + 1 == message.end
        takes = psn == message.start if opcode in SENDS else opcode in TAKES_RECEIVE and ends
        if takes and not self.buffers:
            self.refused[psn] += 1
            return
        self.buffers -= takes
        syndrome = self._fault(message, psn)
        if syndrome is not None:
            self.fault = psn, syndrome
        elif opcode is WROpcode.RDMA_READ:
            self.epsn = message.end
            self.completed += 1
        else:
            self.epsn = psn + 1
            self.completed += ends

    def _fault(self, message: Message, psn: int) -> int | None:
        """What the request must be refused with, `None` for nothing."""
        run, work = self.flow.run, message.work
        if work.opcode in SENDS:
            size = min((psn - message.start + 1) * run.schedule.mtu, work.length)
            if size > run.receive_size:
                return OPERATIONAL_ERROR if self.profile.name == "rxe" else INVALID_REQUEST
            if work.opcode is WROpcode.SEND_WITH_INV and work.bad is Bad.RKEY:
                return SILENT if psn + 1 == message.end else None
            return None
        looked_at = work.length or work.opcode not in (*WRITES, WROpcode.RDMA_READ)
        if work.bad in (Bad.RKEY, Bad.BOUNDS) and looked_at and psn == message.start:
            return ACCESS_ERROR
        return None


class RequesterView:
    """What an observer beside the requester knows."""

    def __init__(self, flow: Flow) -> None:
        self.flow = flow
        self.profile = flow.profile(flow.requester)
        self.una = flow.psn
        """The oldest PSN that is not acknowledged."""
        self.next = flow.psn
        """The first that was never sent."""
        self.following = flow.psn
        """What comes after the last one sent, unless it goes back."""
        self.restarts = 0
        """Times that it went back since the last progress, RNR waits aside."""
        self.excused = 0
        """Times besides for which the reason was there before the progress."""
        self.rnr_psn: int | None = None
        self.rnr_until: Time = 0
        """Until when that one waits."""
        self.told: int | None = None
        """Where a sequence NAK wants it to go on, until it sends something."""
        self.pending = False
        """Whether the next time is such a one: what it was busy with left first."""
        self.lsn = 0
        """The last message that may be started."""
        self.limited = self.profile.name != "rxe"
        """Whether it is a limit: rxe knows no credits."""
        self._zeros = 0

    def watch(self) -> Iterator[Event]:
        """Every event at the requester; the view is what was known before it."""
        flow = self.flow
        for event in flow.run.history:
            if event.end != flow.requester:
                continue
            yield event
            if event.packet is None:
                continue
            if event.kind == "sent" and is_request(event.packet):
                self._send(psn_of(flow, event.packet), event.time)
            elif event.kind == "arrived" and not is_request(event.packet):
                self._take(event.packet, event.time)

    def is_new(self, message: Message, psn: int) -> bool:
        """Whether a packet that is sent now begins its message for the first time."""
        return psn == message.start == self.next

    def _send(self, psn: int, now: Time) -> None:
        message = self.flow.message_at(psn)
        assert message is not None, f"PSN {psn} is sent, which nothing was posted for"
        if psn < self.following:
            if psn == self.rnr_psn and now >= self.rnr_until:
                self.rnr_psn = None
            elif self.pending:
                self.pending = False
                self.excused += 1
            else:
                self.restarts += 1
        is_read = message.work.opcode is WROpcode.RDMA_READ
        self.following = message.end if is_read else psn + 1
        if self.is_new(message, psn) and message.work.opcode not in TAKES_RECEIVE:
            self.lsn += 1
        self.next = max(self.next, self.following)
        self.told = None

    def _take(self, packet: Packet, now: Time) -> None:
        flow = self.flow
        psn = psn_of(flow, packet)
        message = flow.message_at(psn)
        if psn == self.una - 1 and packet.bth.opcode == ACKNOWLEDGE:
            self._take_credits(packet, heeded=True)
        if not self.una <= psn < self.next or message is None:
            return
        before = self.una
        syndrome = syndrome_of(packet)
        is_rnr = syndrome is not None and syndrome >> 5 == 1
        is_rxe = self.profile.name == "rxe"
        if packet.bth.opcode == ACKNOWLEDGE:
            assert syndrome is not None
            if is_rnr and is_rxe:  # of its message it says nothing (rxe_comp.c `check_ack`)
                psn = max(message.start, self.una)
            self._acknowledge(psn if syndrome >> 5 else psn + 1)
        else:
            self._acknowledge(message.start)
            if psn == self.una:
                self.una = psn + 1
        self._take_credits(packet, heeded=self.una != before)
        if self.una != before:
            self.restarts = self.excused = 0
            self.pending = self.told is not None or self.rnr_psn is not None
            # Nothing ends a wait of rxe, but it goes back to what is oldest then.
            self.rnr_psn = self.una if is_rxe and self.rnr_psn is not None else None
        if syndrome == SEQUENCE_NAK:
            self.told = psn
        begins = is_rxe or self.rnr_psn is None  # in rxe each begins the wait anew
        if syndrome is not None and is_rnr and psn == self.una and begins:
            self.rnr_psn = psn
            self.rnr_until = now + rnr_us(syndrome & 31, self.profile) * US

    def _acknowledge(self, end: int) -> None:
        """Everything before `end` has been executed; what is answered by itself stays."""
        for message in self.flow.messages:
            if message.end <= self.una:
                continue
            if message.work.opcode in ANSWERED or end <= self.una:
                return
            self.una = min(end, message.end)

    def _take_credits(self, packet: Packet, *, heeded: bool) -> None:
        """An answer that is not heeded may raise the limit, which makes the laws no stricter."""
        found = packet.extension(h.AETH)
        if found is None or found.syndrome >> 5 or not self.limited:
            return
        if found.syndrome == 0x1F:
            self.limited = False
            return
        granted = CREDIT_CODES[found.syndrome]
        # reference/transport#credits-off: three responses with code 0 and never another one.
        if heeded:
            self._zeros = -1 if granted or self._zeros < 0 else self._zeros + 1
        self.limited = self._zeros < 3
        msn = (found.msn - self.flow.run.schedule.msn) & 0xFFFFFF
        self.lsn = max(self.lsn, msn + granted)


def rnr_us(code: int, profile: Profile) -> int:
    """The least wait after an RNR NAK."""
    return 61410 if profile.name == "rxe" and code == 25 else RNR_US[code]


def views(run: Run) -> Iterator[Flow]:
    """The flows of a run that have something to look at."""
    return (flow for flow in run.flows if flow.works)


# Completions and memory.


def every_work_request_completes_once_and_in_order(run: Run) -> None:
    """No silence: when nothing can happen any more, everything has ended. After an error
    only flushes."""
    assert run.outcome is Outcome.IDLE, f"never comes to rest: {run.outcome}"
    for flow in views(run):
        completions = flow.sent
        failed = [wc for wc in completions if wc.status is not WCStatus.SUCCESS]
        first = failed[0].wr_id if failed else len(flow.works)
        expected = [i for i, work in enumerate(flow.works) if work.signaled or i >= first]

        assert [wc.wr_id for wc in completions] == expected
        assert all(wc.status is WCStatus.WR_FLUSH_ERR for wc in failed[1:])
        if failed and failed[0].status is WCStatus.WR_FLUSH_ERR:
            assert _fails_as_responder(flow)
        for wc in completions:
            if wc.status is WCStatus.SUCCESS:
                work = flow.works[wc.wr_id]
                assert wc.opcode == COMPLETIONS[work.opcode]
                if work.opcode is WROpcode.RDMA_READ:
                    assert wc.byte_len == work.length
        if not failed and not went_down(run):
            # An unsignalled request leaves no completion: that its PSN is acknowledged is known
            # from its successors, or asked here from inside.
            sends = run.ends[flow.requester].qp.sends
            assert not sends.wqes
            assert sends.una == flow.end_psn & 0xFFFFFF


def _fails_as_responder(flow: Flow) -> bool:
    """Whether the requester's end has refused what the other end asked for."""
    (other,) = (each for each in flow.run.flows if each is not flow)
    view = ResponderView(other)
    for _ in view.watch():
        pass
    return view.fault is not None


def went_down(run: Run) -> bool:
    """Whether the run has ended with an error at either end."""
    everything = [wc for event in run.history if (wc := event.wc) is not None]
    return any(wc.status is not WCStatus.SUCCESS for wc in everything)


def receive_requests_complete_in_order_with_the_messages_that_took_them(run: Run) -> None:
    """Exactly once: the nth receive request is the nth message that takes one."""
    for flow in run.flows:
        taking = [message for message in flow.messages if message.work.opcode in TAKES_RECEIVE]
        completions = flow.received
        good = [wc for wc in completions if wc.status is WCStatus.SUCCESS]
        bad = completions[len(good) :]

        assert [wc.wr_id for wc in completions] == list(range(len(completions)))
        assert completions[: len(good)] == good
        assert all(wc.status is WCStatus.WR_FLUSH_ERR for wc in bad[1:])
        assert len(good) <= len(taking)
        assert len(good) >= sum(m.work.opcode in TAKES_RECEIVE for m in _executed(flow))
        for wc, message in zip(good, taking, strict=False):
            _check_received(wc, message, flow.profile(flow.responder))


def _check_received(wc: WC, message: Message, profile: Profile) -> None:
    work = message.work
    is_write = work.opcode in WRITES
    with_imm = work.opcode in (WROpcode.SEND_WITH_IMM, WROpcode.RDMA_WRITE_WITH_IMM)
    assert wc.opcode is (WCOpcode.RECV_RDMA_WITH_IMM if is_write else WCOpcode.RECV)
    assert wc.byte_len == work.length
    assert bool(wc.wc_flags & WCFlags.WITH_IMM) == with_imm
    # rxe hands on the kernel's number for it (rxe `do_complete`, seen on a guest).
    key = WCFlags.IP_CSUM_OK if profile.name == "rxe" else WCFlags.WITH_INV
    expected = key if work.opcode is WROpcode.SEND_WITH_INV else 0
    assert wc.wc_flags & (WCFlags.WITH_INV | WCFlags.IP_CSUM_OK) == expected
    assert not with_imm or wc.imm_data == imm_data(message.index)
    assert wc.solicited == work.solicited


def _executed(flow: Flow) -> list[Message]:
    """The messages that the requester knows to be executed."""
    successes = [wc.wr_id for wc in flow.sent if wc.status is WCStatus.SUCCESS]
    if not flow.failed and not went_down(flow.run):
        return flow.messages
    last = max(successes, default=-1)
    return [message for message in flow.messages if message.index <= last]


def memory_holds_every_message_once_and_nothing_else(run: Run) -> None:
    """Every byte at both ends is what the completed requests made it. Those that ended in
    error may have got any part of the way."""
    for flow in run.flows:
        other = next(each for each in run.flows if each is not flow)
        _check_memory(run, flow.responder, flow, other)


def _check_memory(run: Run, end: str, incoming: Flow, outgoing: Flow) -> None:
    executed, arrived = _executed(outgoing), _executed(incoming)
    expected = bytearray(run.initial[end])
    allowed: list[tuple[int, bytes]] = []
    for message, effects in _effects(incoming):
        for offset, data in effects:
            if message in arrived:
                expected[offset : offset + len(data)] = data
            else:
                allowed.append((offset, data))
    states = _states(outgoing)
    for message in outgoing.messages:
        work = message.work
        pieces = run.own_pieces(message.index, work)
        if work.inline:
            for start, size in pieces:
                expected[start : start + size] = bytes(size)
        if work.opcode not in TAKES_SLOT:
            continue
        for number, state in enumerate(states[message.index :]):
            if work.opcode is WROpcode.RDMA_READ:
                start = run.slot(work.place)
                result = state[start : start + work.length]
            else:
                start = run.word(work.place)
                result = state[start : start + 8]
            done = 0
            for start, size in pieces:
                if message in executed and not number:
                    expected[start : start + size] = result[done : done + size]
                elif work.opcode is WROpcode.RDMA_READ or not number:
                    # A READ that is asked for again may see what was written since.
                    allowed.append((start, bytes(result[done : done + size])))
                done += size
    found = bytes(run.memory(end))
    if found != expected:
        for at, (is_there, should) in enumerate(zip(found, expected, strict=True)):
            assert is_there == should or any(
                offset <= at < offset + len(data) and data[at - offset] == is_there
                for offset, data in allowed
            ), f"byte {at} of {end} is {is_there:#x}, not {should:#x}"


def _states(flow: Flow) -> list[bytearray]:
    """The responder's memory before each work request, and after the last."""
    state = bytearray(flow.run.initial[flow.responder])
    effects = {message.index: each for message, each in _effects(flow)}
    states = [bytearray(state)]
    for index in range(len(flow.works)):
        for offset, data in effects.get(index, ()):
            state[offset : offset + len(data)] = data
        states.append(bytearray(state))
    return states


def _effects(flow: Flow) -> Iterator[tuple[Message, list[tuple[int, bytes]]]]:
    """What each message does to the responder's memory when it is executed."""
    run = flow.run
    words = {
        place: int.from_bytes(run.initial[flow.responder][run.word(place) :][:8], "little")
        for place in range(WORDS)
    }
    taken = 0
    for message in flow.messages:
        work = message.work
        data = run.placed(run.initial[flow.requester], run.own_pieces(message.index, work))
        effects: list[tuple[int, bytes]] = []
        if work.opcode in SENDS:
            done = 0
            size = min(work.length, run.receive_size)
            for start, room in run.pieces(
                run.buffer(taken), run.receive_size, run.schedule.receive_pieces
            ):
                effects.append((start, data[done : min(done + room, size)]))
                done += room
        elif work.opcode in WRITES:
            effects.append((run.slot(work.place), data))
        elif work.opcode in (*ATOMICS, WROpcode.ATOMIC_WRITE):
            word = words[work.place]
            if work.opcode is WROpcode.ATOMIC_FETCH_AND_ADD:
                word = word + work.operand & 0xFFFF_FFFF_FFFF_FFFF
            elif work.opcode is WROpcode.ATOMIC_WRITE:
                word = int.from_bytes(work.operand.to_bytes(8), "little")
            elif word == work.operand:
                word = work.swap
            words[work.place] = word
            effects.append((run.word(work.place), word.to_bytes(8, "little")))
        taken += work.opcode in TAKES_RECEIVE
        if work.opcode not in SENDS and work.bad in (Bad.RKEY, Bad.BOUNDS):
            effects = []
        yield message, effects


def atomics_are_executed_exactly_once(run: Run) -> None:
    """Each number is what the sequence of operations makes it: none twice, none left out but
    those at the end that ended in error, none in part."""
    for flow in views(run):
        states = _states(flow)
        known = max((message.index + 1 for message in _executed(flow)), default=0)
        memory = run.memory(flow.responder)
        for place in range(WORDS):
            start = run.word(place)
            possible = {bytes(state[start : start + 8]) for state in states[known:]}
            assert bytes(memory[start : start + 8]) in possible


def invalidation_happens_with_its_message(run: Run) -> None:
    for flow in views(run):
        executed = {message.index for message in _executed(flow)}
        for index, work in enumerate(flow.works):
            if work.opcode is WROpcode.SEND_WITH_INV and index in executed and not work.bad:
                assert run.windows[flow.requester, index].region is None


def every_request_succeeds(run: Run) -> None:
    """No law of its own: it holds where what is wrong can be mended."""
    for flow in run.flows:
        assert [wc for wc in flow.sent if wc.status is not WCStatus.SUCCESS] == []


LAWS: tuple[Law, ...] = (
    every_work_request_completes_once_and_in_order,
    receive_requests_complete_in_order_with_the_messages_that_took_them,
    memory_holds_every_message_once_and_nothing_else,
    atomics_are_executed_exactly_once,
    invalidation_happens_with_its_message,
)
