"""The schedule of delayed messages against a sorted list: by time, and at equal times in the order of adding."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from rabbitpy_broker.queues.delay_schedule import DelaySchedule
from rabbitpy_broker.storage.place import Place

# Near each other, across the borders of buckets, and years apart.
times = st.one_of(st.integers(1, 20), st.integers(1_000, 1_060), st.integers(1, 10_000), st.integers(1, 1 << 45))


def place(number: int, due: int) -> Place:
    made = Place(number, None, 0)
    made.expiry = due
    return made


def numbers(places: list[Place]) -> list[int]:
    return [int(one.seq_id) for one in places]


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("add"), times),
            st.tuples(st.just("take"), times, st.integers(1, 5), st.integers(0, 5)),
            st.tuples(st.just("look"), st.integers(1, 30)),
        ),
        max_size=120,
    )
)
def test_any_history_gives_what_a_sorted_list_gives(history: list[tuple[str, ...]]) -> None:
    schedule = DelaySchedule()
    waiting: list[tuple[int, int]] = []
    now = 0
    for number, (what, *arguments) in enumerate(history):
        if what == "add":
            due = max(arguments[0], now + 1)
            schedule.add(place(number, due))
            waiting.append((due, number))
        elif what == "take":
            now = max(now, arguments[0])
            _, limit, again = arguments
            expected = [one for one in sorted(waiting) if one[0] <= now][:limit]
            taken = schedule.take(now, limit)
            assert numbers(taken) == [number for _, number in expected]
            back = taken[len(taken) - min(again, len(taken)) :]
            schedule.put_back(back)
            for one in expected[: len(expected) - len(back)]:
                waiting.remove(one)
        else:
            upcoming = numbers(schedule.upcoming(arguments[0]))
            assert upcoming == [number for _, number in sorted(waiting)][: len(upcoming)]
        assert schedule.count == len(waiting) == len(schedule.all())
        assert schedule.next_ms() == (min(waiting)[0] if waiting else 0)
    schedule.clear()
    assert schedule.next_ms() == 0
    assert schedule.all() == []


def test_upcoming_are_those_that_are_taken_next() -> None:
    schedule = DelaySchedule()
    dues = [5_000 + random.Random(7).randrange(1_000) for _ in range(100)]
    for number, due in enumerate(dues):
        schedule.add(place(number, due))
    assert schedule.next_ms() == min(dues)
    upcoming = schedule.upcoming(40)
    assert len(upcoming) == 40
    assert schedule.take(max(dues), 40) == upcoming


def test_many_at_one_time_are_taken_in_parts() -> None:
    schedule = DelaySchedule()
    many = 20_000
    for number in range(many):
        schedule.add(place(number, 7))
    taken: list[int] = []
    while schedule.next_ms():
        part = schedule.take(7, 1_024)
        assert len(part) <= 1_024
        taken.extend(numbers(part))
    assert taken == list(range(many))
