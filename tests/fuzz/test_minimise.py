"""Cases made shorter: they still show what they showed, and hold nothing else."""

from __future__ import annotations

from collections.abc import Callable

from hypothesis import given

from fuzz.cases import cases
from ibwire.fuzz.case import Case, Connect, Connection, Packet, Post, Receive, Step, Wait
from ibwire.fuzz.minimise import MAXIMUM_STEPS, condense, minimise
from ibwire.rc.work import WROpcode

WRITE, READ = 0x0A, 0x0C
ODD = Packet(
    WRITE,
    length=300,
    at=9,
    fields={"bth.pkey": 7, "bth.se": 1},
    pad=2,
    more=4,
    cut=200,
    icrc=5,
    held=True,
)


def has_odd_pkey(case: Case) -> bool:
    return any(isinstance(step, Packet) and "bth.pkey" in step.fields for step in case.steps)


def test_only_what_is_needed_stays() -> None:
    noise = [Packet(READ), Receive(4), Post(0, 8), Wait(10**9)] * 10
    case = Case(Connection(mtu=1024, rq_psn=7, receives=0), (*noise, ODD, *noise))

    short = minimise(case, has_odd_pkey)

    assert short.connection == Connection()
    assert short.steps == (Packet(WRITE, fields={"bth.pkey": 7}),)


def test_what_belongs_together_stays_together() -> None:
    def shows(case: Case) -> bool:
        opcodes = [step.opcode for step in case.steps if isinstance(step, Packet)]
        return opcodes.count(WRITE) >= 2 and READ in opcodes[: opcodes.index(WRITE)]

    case = Case(steps=(Packet(READ), Packet(0), Packet(WRITE), Packet(0), Packet(WRITE), Packet(0)))

    assert [step.opcode for step in minimise(case, shows).steps] == [READ, WRITE, WRITE]


def test_what_is_not_wrong_any_more_is_not_called_so() -> None:
    wrong = {"bth.pkey": 7, "aeth.syndrome": 3}
    for odd, why in (
        (Packet(WRITE, fields=wrong, why="bth.pkey"), ""),
        (Packet(WRITE, fields=wrong, why="syndrome"), ""),
        (Packet(WRITE, fields=wrong, why="P_Key"), ""),
        (Packet(WRITE, icrc=5, why="ICRC"), ""),
        (Packet(WRITE, cut=20, why="cut"), ""),
        (Packet(WRITE, fields=wrong, why="gap"), "gap"),
    ):
        case = Case(steps=(odd,))

        assert minimise(case, lambda each: bool(each.steps)).steps == (Packet(WRITE, why=why),)


def test_a_packet_of_rc_is_not_said_to_have_the_number_of_a_wrong_receive_queue() -> None:
    write = Packet(5 << 5 | WRITE, fields={"xrceth.xrc_srq": 0}, why="shared receive queue")
    case = Case(Connection(service="XRC_RECV"), (write,))

    plain = minimise(case, lambda each: bool(each.steps))
    needed = minimise(case, lambda each: each.steps == (write,))

    assert plain.steps == (Packet(WRITE),)
    assert needed.steps == (write,)


def test_an_attribute_that_matters_stays() -> None:
    case = Case(Connection(mtu=1024, timeout=8), (Packet(READ),))

    short = minimise(case, lambda each: each.connection.mtu > 256)

    assert short.connection == Connection(mtu=1024)


def test_a_long_message_goes_as_a_whole_beside_one_step() -> None:
    """Its packets are more than half of the case, and none can go alone."""
    message = [Packet(6), Packet(7), Packet(7), Packet(8)]

    def shows(case: Case) -> bool:
        opcodes = [step.opcode for step in case.steps if isinstance(step, Packet)]
        return opcodes in ([*(step.opcode for step in message), READ], [READ])

    assert minimise(Case(steps=(*message, Packet(READ))), shows).steps == (Packet(READ),)


def test_a_message_in_one_packet_is_of_its_queue_pair_and_may_ask_for_no_ack() -> None:
    first, last, only = 0, 2, 4

    def shows(case: Case) -> bool:
        """Whether the last packet of a message of the second queue pair asks for no ACK."""
        steps = [step for step in case.steps if isinstance(step, Packet)]
        is_whole = [step.opcode for step in steps] in ([first, last], [only])
        is_of_second = all(step.pair == 1 for step in steps)
        return is_whole and is_of_second and steps[-1].fields.get("bth.ack_req") == 0

    steps = Packet(first, length=256, pair=1), Packet(last, pair=1, fields={"bth.ack_req": 0})
    short = minimise(Case(Connection(pairs=2), steps), shows)

    assert [step.opcode for step in short.steps if isinstance(step, Packet)] == [only]


def test_requests_before_a_wrap_go_with_their_psns() -> None:
    """What is left has the PSNs that it had: the case begins later."""

    def shows(case: Case) -> bool:
        writes = [step for step in case.steps if isinstance(step, Packet) and step.opcode == WRITE]
        return bool(writes) and case.connection.rq_psn + len(case.steps) == 1 << 24

    before = [Packet(WRITE)] * 5
    case = Case(Connection(rq_psn=(1 << 24) - 6), (*before, Packet(WRITE)))

    short = minimise(case, shows)

    assert short.connection.rq_psn == 0xFFFFFF
    assert short.steps == (Packet(WRITE),)


@given(cases)
def test_it_shows_the_same_and_is_not_longer(case: Case) -> None:
    def shows(each: Case) -> bool:
        return sum(isinstance(step, Packet) for step in each.steps) >= 1

    case = case.with_steps([*case.steps, Packet(READ)])
    short = minimise(case, shows)

    assert shows(short)
    assert len(short.steps) == 1


def test_many_steps_go_at_once() -> None:
    """Half of them, half of the rest, and so on: a long case needs few trials."""
    noise = [Packet(READ)] * 512

    short = minimise(Case(steps=(*noise, Packet(WRITE, fields={"bth.pkey": 7}))), has_odd_pkey, 40)

    assert short.steps == (Packet(WRITE, fields={"bth.pkey": 7}),)


def test_the_trials_are_counted() -> None:
    tried = 0

    def shows(case: Case) -> bool:
        nonlocal tried
        tried += 1
        return len(case.steps) > 32 and has_odd_pkey(case)

    minimise(Case(steps=(ODD,) * 64), shows, 20)

    assert tried == 20


def test_steps_are_counted_too() -> None:
    """What is long is tried less often: it takes as long as it has steps."""
    carried_out = 0

    def shows(case: Case) -> bool:
        nonlocal carried_out
        carried_out += len(case.steps)
        return len(case.steps) == 2000

    steps = tuple(Packet(READ, length=number) for number in range(2000))
    short = minimise(Case(steps=steps), shows)

    assert len(short.steps) == 2000
    assert MAXIMUM_STEPS <= carried_out <= MAXIMUM_STEPS + 2000


def test_when_time_is_up_the_case_is_as_short_as_it_has_become() -> None:
    tried: list[Case] = []

    def shows(case: Case) -> bool:
        tried.append(case)
        return has_odd_pkey(case)

    noise = [Packet(READ)] * 64
    case = Case(steps=(*noise, Packet(WRITE, fields={"bth.pkey": 7})))
    short = minimise(case, shows, is_over=lambda: len(tried) == 2)

    assert len(tried) == 2
    assert short == [case, *filter(has_odd_pkey, tried)][-1]
    assert len(short.steps) < len(case.steps)


# Several connections.

FOUND = Packet(WRITE, fields={"bth.pkey": 7})


def many(count: int, steps: list[Step]) -> Case:
    """As many connections with these steps, all of them different, and then what is found."""
    case = Case(Connection(rq_psn=1), tuple(steps))
    for number in range(1, count):
        case = case.with_steps([*case.steps, Connect(Connection(rq_psn=1 + number)), *steps])
    return case.with_steps([*case.steps, Connect(Connection(mtu=512)), FOUND])


def connections(case: Case) -> int:
    return 1 + sum(isinstance(step, Connect) for step in case.steps)


def counting(shows: Callable[[Case], bool]) -> tuple[Callable[[Case], bool], list[int]]:
    """The same, and the steps of each case that was tried."""
    tried: list[int] = []

    def counted(case: Case) -> bool:
        tried.append(len(case.steps))
        return shows(case)

    return counted, tried


NOISE: list[Step] = [Packet(0), Packet(READ), Wait(5), Packet(6), Post(0, 8), Receive(1), ODD]


def test_connections_that_leak_are_all_that_stays() -> None:
    """Of 200 it takes 150; a case has 1,600 steps, and they are not tried one by one."""
    shows, tried = counting(lambda case: connections(case) > 150 and has_odd_pkey(case))
    short = minimise(many(200, NOISE), shows)

    assert [type(step) for step in short.steps] == [Connect] * 150 + [Packet]
    assert len({step.connection for step in short.steps if isinstance(step, Connect)}) == 1
    assert sum(tried) < 50_000


def test_packets_that_leak_are_all_that_stays() -> None:
    """As many trials as needed, on one connection."""

    def leaks(case: Case) -> bool:
        opcodes = [step.opcode for step in case.steps if isinstance(step, Packet)]
        return opcodes.count(READ) >= 70 and case.steps[-1] == FOUND

    shows, tried = counting(leaks)
    short = minimise(many(200, NOISE), shows)

    assert short.steps == (Packet(READ),) * 70 + (FOUND,)
    assert sum(tried) < 50_000


def test_connections_that_are_not_needed_go_and_nothing_else() -> None:
    shows, tried = counting(lambda case: connections(case) > 2 and ODD in case.steps)
    few = condense(many(100, NOISE), shows)

    assert connections(few) == 3
    assert few.steps[-1] == FOUND
    assert sum(tried) < 2000


def test_that_there_were_connections_is_tried_before_what_was_done_on_them() -> None:
    """Two cases of 1,200 steps and a few of 150; of each kind of steps it would be many more."""
    shows, tried = counting(lambda case: connections(case) > 150)
    few = condense(many(200, NOISE), shows)

    assert [type(step) for step in few.steps] == [Connect] * 150 + [Packet]
    assert sum(tried) < 11_000


def test_what_several_kinds_of_packets_do_is_done_by_one_of_them() -> None:
    """Each takes a place in a table of 40, and three kinds of them are needed to fill it."""

    def fills(case: Case) -> bool:
        return sum(isinstance(step, Packet) and step.opcode != WRITE for step in case.steps) >= 40

    few = condense(many(13, [Packet(0), Packet(READ), Packet(6), Packet(1)]), fills)

    assert len(few.steps) == 42
    assert len({step.opcode for step in few.steps[:40] if isinstance(step, Packet)}) == 1


def test_a_case_with_one_connection_is_not_condensed() -> None:
    case = Case(steps=(ODD, FOUND))

    assert condense(case, lambda each: False) == case


def test_of_equal_steps_one_is_tried() -> None:
    """Whichever of them goes, what is left is the same."""
    shows, tried = counting(lambda case: len(case.steps) == 100)
    minimise(Case(steps=(Packet(READ),) * 100), shows, elsewhere=False)

    assert len([size for size in tried if size < 100]) < 30


def test_a_case_that_is_enough_is_made_no_shorter() -> None:
    """The last half of it, which is looked at first."""
    noise = [Packet(READ)] * 8
    looked: list[int] = []

    def is_enough(case: Case) -> bool:
        looked.append(len(case.steps))
        return True

    case = Case(Connection(mtu=1024), (*noise, ODD, *noise))
    short = minimise(case, has_odd_pkey, is_enough=is_enough)

    assert short == Case(steps=(ODD, *noise))
    assert looked == [9]


def test_a_packet_gets_its_right_length_if_another_does_not_matter() -> None:
    short_first = Packet(0, length=40, fields={"bth.pkey": 7})
    short_atomic = Packet(0x1D, length=3, fields={"bth.pkey": 7, "reth.dma_len": 3})

    for packet, right in (
        (short_first, short_first.altered(length=256)),
        (short_atomic, Packet(0x1D, length=8, fields={"bth.pkey": 7})),
    ):
        assert minimise(Case(steps=(packet,)), has_odd_pkey).steps == (right,)


def test_immediate_data_go_where_they_do_not_matter() -> None:
    case = Case(steps=(Post(int(WROpcode.SEND_WITH_IMM)), ODD.altered(opcode=0x0B)))

    def shows(shorter: Case) -> bool:
        return any(isinstance(step, Post) for step in shorter.steps) and has_odd_pkey(shorter)

    post, packet = minimise(case, shows).steps
    assert isinstance(post, Post)
    assert isinstance(packet, Packet)
    assert (post.opcode, packet.opcode) == (WROpcode.SEND, WRITE)


def test_a_request_goes_together_with_its_response() -> None:
    """Without one of them, the other answers or is answered by something else."""
    first, second = Post(int(WROpcode.RDMA_READ), 8), Post(int(WROpcode.SEND))
    responses = Packet(0x10, ("una", 0)), Packet(0x11, ("una", 0))

    def shows(case: Case) -> bool:
        posts = [each for each in case.steps if isinstance(each, Post)]
        packets = [each for each in case.steps if isinstance(each, Packet)]
        is_answered = len(posts) == len(packets)
        return is_answered and posts[-1:] == [second] and case.steps[-1] == responses[1]

    case = Case(steps=(first, second, *responses))

    assert minimise(case, shows).steps == (second, responses[1])


def test_waits_are_joined() -> None:
    def waits_long(case: Case) -> bool:
        return sum(step.time for step in case.steps if isinstance(step, Wait)) >= 60

    case = Case(steps=(Wait(30), Wait(30), Wait(1)))

    assert minimise(case, waits_long).steps == (Wait(60),)


def test_the_few_steps_that_are_needed_are_found_by_bisection() -> None:
    """Two of 60 before the last: not each group of those that are left is tried."""

    def needs_both(case: Case) -> bool:
        opcodes = [step.opcode for step in case.steps if isinstance(step, Packet)]
        return 1 in opcodes and 2 in opcodes[opcodes.index(1) :] and has_odd_pkey(case)

    noise = [Packet(0), Packet(READ, length=8), Packet(6), Packet(7)] * 5
    shows, tried = counting(needs_both)
    case = Case(steps=(*noise, Packet(1), *noise, Packet(2), *noise, FOUND))
    short = minimise(case, shows, elsewhere=False)

    assert short.steps == (Packet(1, length=256), Packet(2), FOUND)  # a MIDDLE has the path MTU
    assert len(tried) < 30


def test_the_odd_attribute_that_is_needed_is_found_by_bisection() -> None:
    """One of 11: the usual value of the others is not tried for each by itself."""
    odd = Connection(1024, 7, 9, 1, 2, 3, 4, 5, 6, 3, 2)
    shows, tried = counting(lambda case: case.connection.timeout == odd.timeout)
    short = minimise(Case(odd, (Packet(READ),)), shows, elsewhere=False)

    assert short.connection == Connection(timeout=odd.timeout)
    assert len(tried) < 10


def test_a_read_in_several_responses_becomes_one_in_a_single_response() -> None:
    first, middle, last, only = 13, 14, 15, 16
    read = Post(int(WROpcode.RDMA_READ), 1024, pair=1)
    answers = [Packet(each, ("una", 0), 256, pair=1) for each in (first, middle, middle, last)]
    beside = Post(int(WROpcode.SEND))
    connection = Connection(pairs=2)

    def completes(case: Case) -> bool:
        """Whether the READ has all of its bytes, with a request of another queue pair meanwhile."""
        length, got, is_beside = 0, 0, False
        for step in case.steps:
            if isinstance(step, Post) and step.pair == 1:
                length = step.length
            elif isinstance(step, Post):
                is_beside = bool(length)
            elif isinstance(step, Packet):
                got += step.length
        return is_beside and 0 < length == got

    case = Case(connection, (read, *answers[:2], beside, *answers[2:]))
    short = minimise(case, completes)

    assert [step.opcode for step in short.steps if isinstance(step, Packet)] == [only]


def test_a_write_whose_last_packet_is_refused_becomes_one_of_one_packet() -> None:
    write, nak = Post(int(WROpcode.RDMA_WRITE), 600), Packet(17, ("una", 2))

    def refuses_the_last(case: Case) -> bool:
        """Whether the response is to the last packet of the WRITE."""
        posts = [step for step in case.steps if isinstance(step, Post)]
        packets = [step for step in case.steps if isinstance(step, Packet)]
        last = -(-posts[0].length // case.connection.mtu) - 1 if posts else -1
        return [each.psn for each in packets] == [("una", max(last, 0))] and last >= 0

    short = minimise(Case(Connection(), (write, nak)), refuses_the_last)

    assert [type(step) for step in short.steps] == [Post, Packet]
    assert short.steps[1].psn == ("una", 0)
