"""Waiting for answers from outside, where that is done by coroutines."""

from __future__ import annotations

import asyncio

from rabbitpy_broker.questions import Question


async def answered(question: Question) -> None:
    """Returns when the question is answered."""
    if not question.is_done:
        done = asyncio.Event()
        question.when_done(done.set)
        await done.wait()
