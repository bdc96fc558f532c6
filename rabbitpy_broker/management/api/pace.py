"""A walk over many that does not hold the loop: a slice of it, then everybody else's turn."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterable
from typing import TypeVar

from rabbitpy_broker.management.admin import SLICE_S

T = TypeVar("T")


async def slices(steps: Iterable[T], rest_s: float = 0.0) -> AsyncIterator[list[T]]:
    """All that the steps give, some at a time; between two slices the loop has its turn, and `rest_s` besides."""
    taken: list[T] = []
    ends_at = time.perf_counter() + SLICE_S
    for step in steps:
        taken.append(step)
        if time.perf_counter() >= ends_at:
            yield taken
            taken = []
            await asyncio.sleep(rest_s)
            ends_at = time.perf_counter() + SLICE_S
    yield taken


async def gathered(steps: Iterable[T]) -> list[T]:
    """All of them in one list."""
    found: list[T] = []
    async for part in slices(steps):
        found += part
    return found
