"""The laws of what a reliable connection puts on the wire, checked as those in `laws.py`."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

from ibwire.base.units import ETHERNET_OVERHEAD, GBPS, S
from ibwire.rc.work import WCStatus, WROpcode
from ibwire_layers import headers as h
from ibwire_layers.packet import CrcStatus, Packet, RoCEv2Route
from laws import (
    ACKNOWLEDGE,
    ANSWERED,
    ATOMIC_ACKNOWLEDGE,
    CREDIT_CODES,
    LAWS,
    OPCODES,
    SEQUENCE_NAK,
    SILENT,
    TAKES_SLOT,
    Law,
    RequesterView,
    ResponderView,
    is_request,
    psn_of,
    syndrome_of,
    views,
    went_down,
)
from schedules import (
    ATOMICS,
    CARRIES_DATA,
    SLOTS,
    TAKES_RECEIVE,
    WRITES,
    Bad,
    Flow,
    Message,
    Run,
    Schedule,
    imm_data,
)


def every_frame_is_a_right_packet(run: Run) -> None:
    """Good ICRC, legal fields, padding of zeros, and the same bytes when it is built again."""
    for event in run.history:
        packet = event.packet
        if event.kind != "sent" or packet is None:
            continue
        bth, route = packet.bth, packet.route
        peer = "b" if event.end == "a" else "a"
        profile = run.flows[0].profile(event.end)

        assert packet.build() == event.frame
        assert packet.icrc_status() is CrcStatus.GOOD
        assert isinstance(route, RoCEv2Route)
        assert route.udp.dst_port == 4791
        assert bth.tver == 0
        assert bth.pad_count == -len(packet.payload) % 4
        assert packet.padding == bytes(bth.pad_count)
        assert bth.pkey == 0xFFFF
        assert bth.mig_req == (0 if profile.name == "rxe" else 1)
        assert bth.dest_qp == run.ends[peer].qp.number
        reserved = 0x10 if profile.name == "hns" and is_request(packet) else 0
        assert (bth.fecn, bth.becn, bth.resv6a, bth.resv7) == (0, 0, reserved, 0)
        _check_size(packet, run.schedule.mtu)


def _check_size(packet: Packet, mtu: int) -> None:
    """Payload against position (section 2)."""
    size, opcode = len(packet.payload), packet.bth.opcode
    if opcode in (0x00, 0x01, 0x06, 0x07, 0x0D, 0x0E):
        assert size == mtu
    elif opcode in (0x02, 0x03, 0x16, 0x08, 0x09, 0x0F):
        assert 1 <= size <= mtu
    elif opcode in (0x04, 0x05, 0x17, 0x0A, 0x0B, 0x10):
        assert size <= mtu
    elif opcode == 0x1D:
        assert size == 8
    else:
        assert opcode in (0x0C, 0x11, 0x12, 0x13, 0x14, 0x1C), f"opcode {opcode:#x}"
        assert size == 0


def every_request_says_what_its_psn_stands_for(run: Run) -> None:
    """Whenever a PSN is sent, it is the same piece of the same message: opcode, headers and
    payload; of a READ, all that is left of it from there."""
    for flow in views(run):
        for event in run.history:
            packet = event.packet
            if (
                (event.end, event.kind) == (flow.requester, "sent")
                and packet
                and is_request(packet)
            ):
                psn = psn_of(flow, packet)
                message = flow.message_at(psn)
                assert message is not None
                _check_request(flow, message, psn - message.start, packet)


def _check_request(flow: Flow, message: Message, index: int, packet: Packet) -> None:
    run, work, bth = flow.run, message.work, packet.bth
    mtu = run.schedule.mtu
    is_first, is_last = index == 0, index + 1 == message.count
    first, middle, last, only = OPCODES[work.opcode]
    if is_first:
        assert bth.opcode == (only if is_last else first)
    else:
        assert bth.opcode == (last if is_last else middle)
    data = run.placed(run.initial[flow.requester], run.own_pieces(message.index, work))
    reth, imm = packet.extension(h.RETH), packet.extension(h.ImmDt)
    peer = run.ends[flow.responder].mr
    va = peer.iova + run.slot(work.place)
    if work.bad is Bad.BOUNDS:
        va = peer.iova + peer.length - max(work.length, 1) + 1
    if work.opcode in CARRIES_DATA:
        assert packet.payload == data[index * mtu : (index + 1) * mtu]
        assert bth.se == (is_last and work.solicited and work.opcode in TAKES_RECEIVE)
        assert bth.ack_req or not is_last
    else:
        assert bth.ack_req
        assert not bth.se
    if work.opcode in WRITES and is_first:
        assert reth is not None
        assert (reth.va, reth.dma_len) == (va, work.length)
    elif work.opcode is WROpcode.RDMA_READ:
        assert reth is not None
        assert (reth.va, reth.dma_len) == (va + index * mtu, work.length - index * mtu)
    elif work.opcode in ATOMICS:
        atomic = packet.extension(h.AtomicETH)
        assert atomic is not None
        assert atomic.va == peer.iova + run.word(work.place)
        swaps = work.opcode is WROpcode.ATOMIC_CMP_AND_SWP
        numbers = (work.swap, work.operand) if swaps else (work.operand, 0)
        assert (atomic.swap, atomic.compare) == numbers
    elif work.opcode is WROpcode.ATOMIC_WRITE:
        assert reth is not None
        assert (reth.va, reth.dma_len) == (peer.iova + run.word(work.place), 8)
        assert packet.payload == work.operand.to_bytes(8)
    if imm is not None:
        assert imm.imm_data == imm_data(message.index)


def requests_stay_between_the_oldest_unacknowledged_and_the_next(run: Run) -> None:
    """New PSNs follow each other without a gap, and no PSN is sent that is acknowledged."""
    for flow in views(run):
        view = RequesterView(flow)
        for event in view.watch():
            if event.kind != "sent" or not event.packet or not is_request(event.packet):
                continue
            psn = psn_of(flow, event.packet)
            assert view.una <= psn <= view.next
            if view.profile.name == "rxe":
                assert psn <= view.una + 128
            assert psn - view.una < 1 << 23


def who_goes_back_goes_to_the_oldest_unacknowledged(run: Run) -> None:
    """After a timeout, a NAK, a lost answer or an RNR wait alike."""
    for flow in views(run):
        view = RequesterView(flow)
        for event in view.watch():
            if event.kind == "sent" and event.packet and is_request(event.packet):
                psn = psn_of(flow, event.packet)
                assert psn >= view.following or psn == view.una


def responses_answer_only_what_was_asked(run: Run) -> None:
    """No response PSN outside what has arrived; ACK PSNs never go back (but in rxe)."""
    for flow in run.flows:
        view = ResponderView(flow)
        newest = flow.psn - 1
        for event in view.watch():
            packet = event.packet
            if event.kind != "sent" or packet is None or is_request(packet):
                continue
            psn = psn_of(flow, packet)
            syndrome = syndrome_of(packet)
            if packet.bth.opcode != ACKNOWLEDGE:
                assert flow.psn <= psn < view.epsn
            elif syndrome == SEQUENCE_NAK:
                assert psn in view.gaps
            elif syndrome is not None and syndrome >> 5 == 1:
                assert view.refused[psn]
            elif syndrome is not None and syndrome >> 5:
                assert (psn, syndrome) == view.fault
            else:
                assert psn < view.epsn
                if view.profile.name != "rxe":
                    assert psn >= newest
                    newest = psn
            assert not packet.bth.se
            assert not packet.bth.ack_req


def msn_counts_the_new_messages_that_are_complete(run: Run) -> None:
    """In every AETH: SEND and WRITE with their last packet, READs at acceptance, duplicates
    never. A response says how many there are when it leaves; rxe, which makes it before it looks
    at the next request, how many there were then, and at least those up to its own PSN: an ACK
    counts the packet of that PSN, a NAK does not."""
    for flow in run.flows:
        view = ResponderView(flow)
        counts = {flow.psn: 0}
        for event in view.watch():
            counts[view.epsn] = view.completed
            packet = event.packet
            if event.kind != "sent" or packet is None or is_request(packet):
                continue
            aeth = packet.extension(h.AETH)
            if aeth is None:
                continue
            said = (aeth.msn - run.schedule.msn) & 0xFFFFFF
            if view.profile.name == "rxe":
                psn = psn_of(flow, packet)
                next_psn = psn if syndrome_of(packet) == SEQUENCE_NAK else psn + 1
                least = max((count for at, count in counts.items() if at <= next_psn), default=0)
                assert least <= said <= view.completed
            else:
                assert said == view.completed


def a_gap_draws_one_sequence_nak(run: Run) -> None:
    """One between two packets with the expected PSN. In spec and rdmavt none after an RNR NAK;
    in rdmavt a duplicate allows one more."""
    for flow in run.flows:
        view = ResponderView(flow)
        naks: Counter[int] = Counter()
        not_ready: set[int] = set()
        for event in view.watch():
            if event.kind != "sent" or event.packet is None or is_request(event.packet):
                continue
            psn = psn_of(flow, event.packet)
            syndrome = syndrome_of(event.packet) or 0
            if syndrome == SEQUENCE_NAK:
                naks[psn] += 1
                name = view.profile.name
                more = {"rxe": view.expected, "rdmavt": view.duplicates}.get(name, Counter())
                assert naks[psn] <= 1 + more[psn]
                assert psn not in not_ready or more[psn]
            elif syndrome >> 5 == 1:
                not_ready.add(psn)


def every_gap_draws_a_sequence_nak(run: Run) -> None:
    """The responder never keeps silent about the first packet that is ahead, while it lives;
    unless the missing packet comes while the NAK still waits for the line, and it is no rxe."""
    for flow in run.flows:
        view = ResponderView(flow)
        answered: set[int] = set()
        rate = run.schedule.rates_gbps["ab".index(flow.responder)] * GBPS
        line_free = 0
        for event in view.watch():
            packet = event.packet
            if packet is None:
                continue
            if event.kind == "sent":
                bits = 8 * (len(event.frame) + ETHERNET_OVERHEAD)
                line_free = event.time + bits * S // rate
                if not is_request(packet) and syndrome_of(packet) == SEQUENCE_NAK:
                    answered.add(psn_of(flow, packet))
            elif event.kind == "arrived" and is_request(packet):
                fills_gap = psn_of(flow, packet) == view.epsn in view.gaps
                if fills_gap and event.time <= line_free and view.profile.name != "rxe":
                    answered.add(view.epsn)
        answered |= {psn for psn in view.refused if view.refused[psn]}
        assert went_down(run) or view.gaps <= answered


def reads_are_answered_piece_by_piece(run: Run) -> None:
    """Every PSN that a READ reserved is one response with its own piece; what was never written
    arrives as it was."""
    for flow in run.flows:
        view = ResponderView(flow)
        answered: set[int] = set()
        for event in view.watch():
            packet = event.packet
            if event.kind != "sent" or packet is None or packet.bth.opcode not in range(0x0D, 0x11):
                continue
            psn = psn_of(flow, packet)
            answered.add(psn)
            message = flow.message_at(psn)
            assert message is not None
            assert message.work.opcode in ANSWERED - ATOMICS
            is_read = message.work.opcode is WROpcode.RDMA_READ
            begins = psn == message.start or (
                psn in view.read_starts and view.profile.name != "rxe"
            )
            ends = psn + 1 == message.end
            possible = {(True, True): {0x10}, (True, False): {0x0D}}.get((begins, ends), set())
            if not begins or (psn != message.start and _follows(view, psn)):
                possible = possible | {0x0F if ends else 0x0E}
            assert packet.bth.opcode in possible
            length = message.work.length if is_read else 0
            start = (psn - message.start) * run.schedule.mtu
            assert len(packet.payload) == min(run.schedule.mtu, length - start)
            if message.work.place == SLOTS - 1 and is_read:
                start += run.slot(message.work.place)
                initial = run.initial[flow.responder]
                assert packet.payload == initial[start : start + len(packet.payload)]
        if not flow.failed and flow.works:
            for message in flow.messages:
                if message.work.opcode is WROpcode.RDMA_READ:
                    assert answered >= set(range(message.start, message.end))


def _follows(view: ResponderView, psn: int) -> bool:
    """Whether an answer that began earlier in the same READ goes on at this PSN."""
    message = view.flow.message_at(psn)
    assert message is not None
    return any(message.start <= start < psn for start in view.read_starts)


def an_atomic_is_answered_alike_each_time(run: Run) -> None:
    for flow in run.flows:
        originals: dict[int, int] = {}
        for event in run.history:
            packet = event.packet
            if event.kind != "sent" or event.end != flow.responder or packet is None:
                continue
            if packet.bth.opcode == ATOMIC_ACKNOWLEDGE:
                found = packet.extension(h.AtomicAckETH)
                assert found is not None
                original = found.orig
                assert originals.setdefault(packet.bth.psn, original) == original


def outstanding_reads_and_atomics_stay_within_the_limit(run: Run) -> None:
    """The requester never has more than max_rd_atomic; the responder keeps no more than
    max_dest_rd_atomic (asked from inside: what is kept without use cannot be seen)."""
    for flow in views(run):
        view = RequesterView(flow)
        for event in view.watch():
            if event.kind != "sent" or not event.packet or not is_request(event.packet):
                continue
            psn = psn_of(flow, event.packet)
            message = flow.message_at(psn)
            if message and message.work.opcode in TAKES_SLOT and view.is_new(message, psn):
                waiting = [m for m in _started(flow, psn) if m.end > view.una]
                assert len(waiting) < run.schedule.max_rd_atomic
        kept = run.ends[flow.responder].qp.responder.resources
        assert len(kept) <= run.schedule.max_dest_rd_atomic


def a_fence_waits_for_reads_and_atomics(run: Run) -> None:
    for flow in views(run):
        view = RequesterView(flow)
        for event in view.watch():
            if event.kind != "sent" or not event.packet or not is_request(event.packet):
                continue
            psn = psn_of(flow, event.packet)
            message = flow.message_at(psn)
            if message and message.work.fence and view.is_new(message, psn):
                assert all(each.end <= view.una for each in _started(flow, psn))


def _started(flow: Flow, psn: int) -> list[Message]:
    """The READs and atomics before a PSN."""
    return [m for m in flow.messages if m.work.opcode in TAKES_SLOT and m.start < psn]


# Credits.


def credits_are_the_receive_requests_that_wait(run: Run) -> None:
    """Every positive AETH has the largest code that promises no more; rxe has 0x1f."""
    for flow in run.flows:
        view = ResponderView(flow)
        for event in view.watch():
            if event.kind != "sent" or event.packet is None or is_request(event.packet):
                continue
            syndrome = syndrome_of(event.packet)
            if syndrome is None or syndrome >> 5 or view.fault:
                continue
            if view.profile.name == "rxe":
                assert syndrome == 0x1F
            else:
                assert CREDIT_CODES[syndrome] <= view.buffers
                assert CREDIT_CODES[syndrome + 1] > view.buffers


def at_most_one_message_is_started_beyond_the_credits(run: Run) -> None:
    """SSN at most LSN + 1; and of that one, in spec, a single packet until there is an answer."""
    for flow in views(run):
        view = RequesterView(flow)
        limited: int | None = None
        for event in view.watch():
            if event.kind != "sent" or not event.packet or not is_request(event.packet):
                continue
            psn = psn_of(flow, event.packet)
            message = flow.message_at(psn)
            assert message is not None
            if not view.limited or message.work.opcode not in TAKES_RECEIVE or psn != view.next:
                continue
            if psn == message.start:
                assert message.ssn <= view.lsn + 1
                limited = message.ssn if message.ssn > view.lsn else None
                if limited is not None:
                    assert event.packet.bth.ack_req or view.profile.limited_message
            elif message.ssn == limited and not view.profile.limited_message:
                assert view.una > message.start or message.ssn <= view.lsn


def the_credit_limit_never_goes_back(run: Run) -> None:
    """Asked from inside."""
    for limits in run.limits.values():
        for before, after in pairwise(limits):
            assert (after - before) & 0xFFFFFF < 1 << 23


def credits_never_run_out_where_receives_wait(run: Run) -> None:
    """With live credits only a message beyond them is refused: one at a time."""
    for flow in views(run):
        if flow.profile(flow.responder).name == "rxe" or run.schedule.credits_say_zero:
            continue
        view = RequesterView(flow)
        beyond: set[int] = set()
        for event in view.watch():
            packet = event.packet
            if packet is None:
                continue
            psn = psn_of(flow, packet)
            if event.kind == "sent" and is_request(packet) and view.limited:
                message = flow.message_at(psn)
                if message and view.is_new(message, psn) and message.ssn > view.lsn:
                    beyond |= set(range(message.start, message.end))
            elif event.kind == "arrived" and (syndrome_of(packet) or 0) >> 5 == 1:
                assert psn in beyond or not view.limited


# Retries.


def a_requester_goes_back_no_more_than_it_may(run: Run) -> None:
    """Restarts without progress are at most retry_cnt (7 is for ever in rxe); failing so is only
    for a requester without credits."""
    retries = run.schedule.retry_cnt
    for flow in views(run):
        view = RequesterView(flow)
        endless = view.profile.name == "rxe" and retries == 7
        for event in view.watch():
            assert endless or view.restarts <= retries
            if event.wc is not None and event.wc.status is WCStatus.RETRY_EXC_ERR:
                assert not endless
                assert view.restarts + view.excused >= retries


def an_rnr_nak_is_waited_out(run: Run) -> None:
    """The refused packet comes no earlier than the table says, and before it nothing new (rxe
    goes on with what was queued)."""
    for flow in views(run):
        view = RequesterView(flow)
        for event in view.watch():
            if event.kind != "sent" or not event.packet or not is_request(event.packet):
                continue
            if view.rnr_psn is None or event.time >= view.rnr_until:
                continue
            psn = psn_of(flow, event.packet)
            assert view.profile.name == "rxe"
            assert psn != view.rnr_psn or psn == view.told  # it was on its way already


def a_fatal_nak_is_for_a_request_that_deserves_it(run: Run) -> None:
    """Right code and PSN, and everything after it meets silence."""
    for flow in run.flows:
        view = ResponderView(flow)
        told = False
        for event in view.watch():
            if event.kind != "sent" or event.packet is None or is_request(event.packet):
                continue
            assert not told, "an answer after a fatal NAK"
            syndrome = syndrome_of(event.packet) or 0
            if syndrome >> 5 == 3 and syndrome != SEQUENCE_NAK:
                assert view.fault == (psn_of(flow, event.packet), syndrome)
                told = True
        assert told == (view.fault is not None and view.fault[1] != SILENT)


ALL_LAWS: tuple[Law, ...] = (
    *LAWS,
    every_frame_is_a_right_packet,
    every_request_says_what_its_psn_stands_for,
    requests_stay_between_the_oldest_unacknowledged_and_the_next,
    who_goes_back_goes_to_the_oldest_unacknowledged,
    responses_answer_only_what_was_asked,
    msn_counts_the_new_messages_that_are_complete,
    a_gap_draws_one_sequence_nak,
    every_gap_draws_a_sequence_nak,
    reads_are_answered_piece_by_piece,
    an_atomic_is_answered_alike_each_time,
    outstanding_reads_and_atomics_stay_within_the_limit,
    a_fence_waits_for_reads_and_atomics,
    credits_are_the_receive_requests_that_wait,
    at_most_one_message_is_started_beyond_the_credits,
    the_credit_limit_never_goes_back,
    credits_never_run_out_where_receives_wait,
    a_requester_goes_back_no_more_than_it_may,
    an_rnr_nak_is_waited_out,
    a_fatal_nak_is_for_a_request_that_deserves_it,
)


def nothing_is_sent_twice(run: Run) -> None:
    """No law of its own: it holds where nothing is lost or refused."""
    for flow in views(run):
        view = RequesterView(flow)
        for event in view.watch():
            if event.kind == "sent" and event.packet and is_request(event.packet):
                assert psn_of(flow, event.packet) == view.next


def check(schedule: Schedule) -> Run:
    """Carry a schedule out and hold it against every law."""
    run = Run(schedule)
    for law in ALL_LAWS:
        law(run)
    return run
