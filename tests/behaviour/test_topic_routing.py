"""Topic exchanges: `*` is one word, `#` is any number of words, an empty word is a word."""

from __future__ import annotations

from collections.abc import Callable

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel

Maker = Callable[..., str]

MATCHES = [
    ("a.b.c", "a.b.c", True),
    ("a.b.c", "a.b", False),
    ("a.b", "a.b.c", False),
    ("a.*.c", "a.b.c", True),
    ("a.*.c", "a.c", False),
    ("a.*.c", "a.b.b.c", False),
    ("a.*.c", "a..c", True),
    ("*", "a", True),
    ("*", "a.b", False),
    ("*", "", False),
    ("*.*", "a.b", True),
    ("*.*", ".", True),
    ("*.b", ".b", True),
    ("#", "", True),
    ("#", "a", True),
    ("#", "a.b.c.d", True),
    ("#.a", "a", True),
    ("#.a", "b.c.a", True),
    ("#.a", "a.b", False),
    ("a.#", "a", True),
    ("a.#", "a.b.c", True),
    ("a.#", "ab", False),
    ("a.#", "b.a", False),
    ("a.#.b", "a.b", True),
    ("a.#.b", "a.x.y.b", True),
    ("a.#.b", "a.x.y", False),
    ("#.#", "", True),
    ("#.#", "a", True),
    ("#.*", "", False),
    ("#.*", "a", True),
    ("*.#", "a.b.c", True),
    ("*.#", "", False),
    ("*.#.*", "a", False),
    ("*.#.*", "a.b", True),
    ("#.b.#", "b", True),
    ("#.b.#", "a.b.c.b", True),
    ("#.b.#", "a.c", False),
    ("*.b.#", "a.b", True),
    ("", "", True),
    ("", "a", False),
    ("a.", "a.", True),
    ("a.", "a", False),
    ("a..b", "a..b", True),
    ("a.*.b", "a.*.b", True),
    ("a.#.b", "a.#.b", True),
    ("ab*", "abc", False),
    ("a#", "a.b", False),
    ("A.b", "a.b", False),
    ("grün.*", "grün.größer", True),
    ("#.#.#.#.#.#.#.#.end", "a.b.c.d.e.f.g.h.i.j.end", True),
    ("#.#.#.#.#.#.#.#.end", "a.b.c.d.e.f.g.h.i.j.k", False),
]


@pytest.fixture
def channel(connection: pika.BlockingConnection) -> BlockingChannel:
    """In confirm mode: what was published has reached its queues when basic_publish returns."""
    channel = connection.channel()
    channel.confirm_delivery()
    return channel


def count(channel: BlockingChannel, queue: str) -> int:
    return int(channel.queue_declare(queue, passive=True).method.message_count)


@pytest.mark.parametrize(
    "pattern, key, matches", MATCHES, ids=[f"{p or 'empty'}-{k or 'empty'}" for p, k, _ in MATCHES]
)
def test_pattern(
    channel: BlockingChannel, exchange: Maker, queue: Maker, pattern: str, key: str, matches: bool
) -> None:
    source, name = exchange("topic"), queue()
    channel.queue_bind(name, source, pattern)
    channel.basic_publish(source, key, b"x")
    assert count(channel, name) == (1 if matches else 0)


def test_queue_with_several_matching_patterns_gets_one_copy(
    channel: BlockingChannel, exchange: Maker, queue: Maker
) -> None:
    source, name = exchange("topic"), queue()
    for pattern in ("#", "a.*", "*.b", "a.b", "#.b", "a.#"):
        channel.queue_bind(name, source, pattern)
    channel.basic_publish(source, "a.b", b"x")
    assert count(channel, name) == 1


def test_removed_pattern_no_longer_matches_and_the_others_still_do(
    channel: BlockingChannel, exchange: Maker, queue: Maker
) -> None:
    source = exchange("topic")
    patterns = ["a.b.c", "a.*.c", "a.#", "#.c", "#"]
    queues = [queue() for _ in patterns]
    for name, pattern in zip(queues, patterns, strict=True):
        channel.queue_bind(name, source, pattern)
    for removed in range(len(patterns)):
        channel.queue_unbind(queues[removed], source, patterns[removed])
        channel.basic_publish(source, "a.b.c", b"x")
    # the queue whose pattern went at step n has seen the n messages before it
    assert [count(channel, name) for name in queues] == [0, 1, 2, 3, 4]


def test_removing_one_of_two_matching_patterns_keeps_the_queue(
    channel: BlockingChannel, exchange: Maker, queue: Maker
) -> None:
    source, name = exchange("topic"), queue()
    channel.queue_bind(name, source, "a.*")
    channel.queue_bind(name, source, "a.#")
    channel.queue_unbind(name, source, "a.*")
    channel.basic_publish(source, "a.b", b"x")
    assert count(channel, name) == 1


def test_deleted_queue_takes_its_patterns_with_it(
    channel: BlockingChannel, exchange: Maker, queue: Maker
) -> None:
    source, goes, stays = exchange("topic"), queue(), queue()
    channel.queue_bind(goes, source, "a.#")
    channel.queue_bind(stays, source, "a.#")
    channel.queue_delete(goes)
    channel.queue_declare(goes)
    channel.basic_publish(source, "a.b", b"x")
    assert (count(channel, goes), count(channel, stays)) == (0, 1)


def test_hundred_queues_on_one_pattern_all_get_the_message(
    channel: BlockingChannel, exchange: Maker, queue: Maker
) -> None:
    source, names = exchange("topic"), [queue() for _ in range(120)]
    for name in names:
        channel.queue_bind(name, source, "news.#")
    channel.basic_publish(source, "news.sport.local", b"x")
    assert sum(count(channel, name) for name in names) == 120


def test_hundred_patterns_route_to_their_own_queues(
    channel: BlockingChannel, exchange: Maker, queue: Maker
) -> None:
    source, names = exchange("topic"), [queue() for _ in range(100)]
    for number, name in enumerate(names):
        channel.queue_bind(name, source, f"sensor.{number}.*")
    for number in range(100):
        channel.basic_publish(source, f"sensor.{number}.temperature", b"%d" % number)
    for number, name in enumerate(names):
        assert channel.basic_get(name, auto_ack=True)[2] == b"%d" % number
        assert count(channel, name) == 0
