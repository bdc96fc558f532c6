"""The taskiq application of the tests: the worker process and the tests' client both import it.

The environment says which broker. Everything is taskiq-aio-pika's default, but that there is a queue for delays.
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

from taskiq_aio_pika import AioPikaBroker, Queue

broker = AioPikaBroker(os.environ.get("CLIENT_TEST_BROKER"), delay_queue=Queue(name="taskiq.delay"))


@broker.task
async def note(file: str, text: str) -> None:
    """Adds a line to the file."""
    with Path(file).open("a") as notes:
        notes.write(f"{text}\n")


@broker.task
async def run_to_death_once(marker: str, file: str) -> None:
    """Leaves a mark and never ends, for the worker to be killed; when the mark is there, adds a line to the file."""
    if not Path(marker).exists():
        Path(marker).touch()
        await asyncio.sleep(3600)
    with Path(file).open("a") as notes:
        notes.write("again\n")
