"""What the compiled package keeps of freed messages and places for the next ones (FREE_LIST in setup.py)."""

from __future__ import annotations

import gc
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Final

import pytest

from rabbitpy_broker.build_info import is_compiled
from rabbitpy_broker.message import NO_RESEND, Message, StoreEntry
from rabbitpy_broker.queues.msg_status import MsgStatus

KEPT: Final = 1_024 if is_compiled() else 0
MANY: Final = 5_000
SOME: Final = 20  # blocks of memory that something else may have taken

Make = Callable[[], object]


@pytest.fixture(autouse=True)
def no_collection() -> Iterator[None]:
    """Nothing that others have left behind is freed while blocks are counted."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def new_message() -> Message:
    return Message(b"", b"", 0, False)


def new_status() -> MsgStatus:
    return MsgStatus(1, None)


KINDS: Final[list[Make]] = [new_message, new_status]


def blocks_of(make: Make, count: int) -> tuple[int, int]:
    """Of memory: what so many objects take, and what of it is not given back when they are freed."""
    held: list[object] = [None] * count
    before = sys.getallocatedblocks()
    for at in range(count):
        held[at] = make()
    taken = sys.getallocatedblocks() - before
    held.clear()
    return taken, sys.getallocatedblocks() - before


@pytest.mark.parametrize("make", KINDS)
def test_the_next_ones_are_made_of_those_that_were_freed(make: Make):
    blocks_of(make, MANY)
    taken, left = blocks_of(make, MANY)
    assert MANY - KEPT - SOME <= taken <= (MANY - KEPT) * (1 if KEPT else 3) + SOME
    assert -SOME <= left <= SOME


@pytest.mark.parametrize("make", KINDS)
def test_no_more_are_kept_than_that(make: Make):
    _, left = blocks_of(make, 20 * MANY)
    assert left <= KEPT + SOME


def test_one_that_is_made_of_another_has_nothing_of_it():
    message = Message(b"address", b"content", 3, True)
    message.has_bcc, message.expiration, message.waiter = True, 7, NO_RESEND
    message.stored = message.stored_transient = StoreEntry(b"id", 3)
    status = MsgStatus(5, message, 4)
    status.unacked = status.owes = status.light = status.redelivered = True
    status.priority, status.since_s, status.swept, status.delivery_tag, status.expiry = 3, 4, 5, 6, 7
    status.due()
    del message, status
    message, status = new_message(), new_status()
    assert (message.has_bcc, message.expiration, message.waiter) == (False, -1, None)
    assert (message.stored, message.stored_transient, message.persistent) == (None, None, False)
    assert (status.message, status.unacked, status.owes, status.light, status.redelivered) == (None, *[False] * 4)
    assert (status.priority, status.since_s, status.swept, status.delivery_tag, status.expiry) == (0, 0, 0, 0, 0)
    assert (status.held_by, status.stored, status.where) == (None, None, 0)


def test_what_they_point_at_is_let_go_of():
    content = bytes(100)
    before = sys.getrefcount(content)
    statuses = [MsgStatus(number, Message(content, content, 0, False)) for number in range(MANY)]
    assert sys.getrefcount(content) == before + 2 * MANY
    del statuses
    assert sys.getrefcount(content) == before


CHAIN: Final = """
from rabbitpy_broker.message import Message, StoreEntry

made = [Message(b"", b"", 0, False) for _ in range(20_000)]
neighbours = made[1::2]
del made[1::2]
full = [Message(b"", b"", 0, False) for _ in range(3_000)]
del full
for message, before in zip(made[1:], made):
    message.stored = StoreEntry(b"", 0)
    message.stored.message = before
last = made.pop()
del made, message, before
del last
print(sum((one.waiter, one.stored, one.stored_transient) == (None, None, None) for one in neighbours))
"""


def test_a_chain_that_is_freed_writes_to_nothing_else():
    """What is freed far down in it waits, and is not to be noted where only what the cyclic collector knows has room for it."""
    done = subprocess.run([sys.executable, "-P", "-c", CHAIN], capture_output=True, text=True, timeout=60, check=False)
    assert (done.stdout, done.returncode) == ("10000\n", 0)


def test_a_long_chain_of_them_is_freed_within_the_bound():
    """Each lets go of the next one while it is being freed itself."""
    blocks_of(new_message, MANY)
    before = sys.getallocatedblocks()
    first = new_message()
    for _ in range(20 * MANY):
        entry = StoreEntry(b"", 0)
        entry.message = first
        first = new_message()
        first.stored = entry
    del first, entry
    assert sys.getallocatedblocks() - before <= SOME
