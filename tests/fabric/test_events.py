"""The queue of future events: by time, by when they were scheduled, by their numbers."""

from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st

from ibwire.fabric import events
from ibwire.fabric.events import EventQueue
from ibwire.fabric.line import Event, Station

STATION = Station(node=type("Idle", (), {"receive": 0, "poll_timeout": 0, "handle_timeout": 0})())


# Inside a slot of time, and around the limits between slots.
LIMIT = 1 << events.SLOT
TIMES = st.sampled_from(
    [0, 1, LIMIT - 1, LIMIT, LIMIT, LIMIT + 1, 2 * LIMIT, 40 * LIMIT, 100 * LIMIT]
)


def event(time: int, since: int, order: int) -> Event:
    return time, since, order, STATION, None, None


def drained(queue: EventQueue) -> list[Event]:
    found = []
    while queue:
        first = queue.first()
        assert queue.pop(first[0] - 1) is None
        assert queue.pop(first[0]) == first
        found.append(first)
    assert queue.pop() is None
    return found


@example([(time * LIMIT, 1, False) for time in (100, 40, 100)])
@example([(time * LIMIT, 1, False) for time in (100, 101, 40, 102, 101, 100)])
@given(st.lists(st.tuples(TIMES, st.integers(0, 3), st.booleans())))
def test_events_come_in_order_however_they_are_added_and_taken(moves: list[Any]) -> None:
    queue, waiting = EventQueue(), list[Event]()
    for time, since, takes in moves:
        if takes and waiting:
            waiting.sort(key=lambda each: each[:3])
            assert queue.pop() == waiting.pop(0)
        else:
            if since:
                order = queue.schedule(time, since, STATION)
            else:
                order = queue.next_order()
                queue.push(event(time, since, order))
            waiting.append(event(time, since, order))
        assert len(queue) == len(waiting) == len(list(queue))

    assert drained(queue) == sorted(waiting, key=lambda each: each[:3])
    assert not queue


@given(st.lists(st.tuples(TIMES, st.booleans())))
def test_only_the_given_events_are_removed(chosen: list[tuple[int, bool]]) -> None:
    queue = EventQueue()
    made = [(event(time, 0, queue.next_order()), goes) for time, goes in chosen]
    for each, _ in made:
        queue.push(each)

    queue.remove([each for each, goes in made if goes])

    kept = [each for each, goes in made if not goes]
    assert len(queue) == len(kept)
    assert drained(queue) == sorted(kept, key=lambda each: each[:3])


@given(st.lists(st.tuples(TIMES, st.integers(0, 3), st.booleans())))
def test_heap_of_compiled_code_gives_the_same_order(moves: list[Any]) -> None:
    heap, waiting = list[events.Entry](), list[Event]()
    for order, (time, since, takes) in enumerate(moves):
        if takes and waiting:
            waiting.sort(key=lambda each: each[:3])
            assert events.pop_entry(heap).event() == waiting.pop(0)
        else:
            waiting.append(event(time, since, order))
            events.push_entry(heap, events.Entry(waiting[-1]))

    assert [events.pop_entry(heap).event()[:3] for _ in waiting] == sorted(
        each[:3] for each in waiting
    )
    assert not heap
