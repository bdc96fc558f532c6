"""How much of a queue a follower leaves in its journal."""

from __future__ import annotations

from rabbitpy_broker.storage.queue_index import QueueIndex
from storage.followed_world import Node, World

KEPT = 25  # more than an owner leaves in its journal, and less than a follower


def index_of(node: Node) -> QueueIndex:
    index = node.store.journal.users[1]
    assert isinstance(index, QueueIndex)
    return index


def published(count: int) -> World:
    world = World()
    world.publish(1, count, 8)
    world.epoch()
    world.follow(1)
    world.crank_follower(20)
    return world


def test_more_stays_in_the_journal_than_at_the_owner():
    world = published(KEPT)
    assert index_of(world.leader).journal_live == 0
    assert index_of(world.follower).journal_live == KEPT


def test_what_is_acked_soon_is_written_once():
    world = published(KEPT)
    world.fetch(1, KEPT)
    world.ack(1, range(KEPT))
    world.epoch()
    world.follow(1)
    world.follower_ticks()
    world.crank_follower(20)
    assert index_of(world.follower).journal_live == 0
    assert not index_of(world.follower).segments.has_files


def test_what_is_too_much_is_moved_on():
    world = published(2 * KEPT)
    assert index_of(world.follower).journal_live == 0
    assert index_of(world.follower).segments.has_files
    world.check_disk()


def test_a_queue_that_idles_lets_go_of_the_journal():
    world = published(KEPT)
    for _ in range(2):
        world.follower_ticks()
        world.crank_follower(20)
    assert index_of(world.follower).journal_live == 0


def test_an_owner_moves_on_what_it_kept_as_a_follower():
    world = published(KEPT)
    world.take_over()
    assert index_of(world.leader).journal_live == KEPT
    world.publish(1, 1, 8)
    world.epoch()
    assert index_of(world.leader).journal_live == 0
