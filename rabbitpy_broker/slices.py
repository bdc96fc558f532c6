"""Walks over all queues, connections or bindings that do not hold the loop: a slice of the walk, then everybody else's turn.

    async for part in slices(steps):   what the steps of a walk give, as many at a time as make a slice
    await in_slices(steps)             the same, when only what the steps do matters

A walk is an iterator that does its work from one step to the next, and its steps are small: one queue, one line. While it
waits for its next slice, anything may come and go. So whoever writes one begins with what there is, and asks each when it is
its turn whether it still is (`VHost.each_queue`): what is there all the while comes once, what goes before its turn does not
come, what comes later may be left out.

What must stay true: a slice has no more than SLICE_STEPS steps, and begins none when SLICE_S have passed.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterable, Iterator
from typing import Final, TypeVar

T = TypeVar("T")

SLICE_S: Final = 0.002
SLICE_STEPS: Final = 1_000
REST_S: Final = 0.008  # between the slices of what nobody waits for: four fifths of the time are everybody else's


def next_slice(steps: Iterator[T]) -> tuple[list[T], bool]:
    """What the next steps give, and whether there are more."""
    ends_at = time.perf_counter() + SLICE_S
    taken: list[T] = []
    for step in steps:
        taken.append(step)
        if len(taken) >= SLICE_STEPS or time.perf_counter() >= ends_at:
            return taken, True
    return taken, False


async def slices(steps: Iterable[T], rest_s: float = 0.0) -> AsyncIterator[list[T]]:
    """All that the steps give, a slice at a time; between two slices the loop has its turn, and `rest_s` besides."""
    walk = iter(steps)
    taken, more = next_slice(walk)
    while more:
        yield taken
        await asyncio.sleep(rest_s)
        taken, more = next_slice(walk)
    yield taken


async def in_slices(steps: Iterable[object], rest_s: float = 0.0) -> None:
    """Takes all steps."""
    async for _ in slices(steps, rest_s):
        pass
