"""A follower's directory stored and restored: what it was at one moment, whatever it does since, and wherever the power goes."""

from __future__ import annotations

import random
import tarfile
from io import BytesIO

import pytest

from rabbitpy_broker.storage.restoring import SnapshotError, restored_definitions, switch
from storage.faulty_disk import MemoryDisk, at_random
from storage.followed_world import QUEUES, Owner, World, check_contents, opened, unpacked


def busy_world(seed: int) -> World:
    """With messages in the journal and in segments, some of them acked."""
    world = World()
    go_on(world, random.Random(seed), 12)
    return world


def go_on(world: World, rng: random.Random, steps: int) -> None:
    for _ in range(steps):
        queue_id = rng.choice(QUEUES)
        world.publish(queue_id, rng.randint(1, 12), rng.choice((8, 900, 5_000)))
        world.fetch(queue_id, rng.randint(0, 10))
        world.ack(queue_id, [rng.randint(0, 12) for _ in range(5)])
        world.epoch()
        world.follow(3)
        world.follower_ticks()
        world.crank_follower(rng.randint(0, 6))


def check_restored(world: World, disk: MemoryDisk, position: int) -> None:
    is_restored, node = opened(disk)
    assert is_restored
    assert node.position == position
    check_contents(Owner(node.store, [], 1), world.said(position))


@pytest.mark.parametrize("seed", range(12))
def test_it_has_what_there_was(seed: int):
    """Though segments grow and go, and the journal's files are written over, before it is read."""
    world = busy_world(seed)
    position, job = world.snapshot()
    go_on(world, random.Random(seed), 15)
    disk = MemoryDisk()
    unpacked(disk, job.parts())
    check_restored(world, disk, position)
    world.check_disk()
    job.remove()
    assert not world.follower.disk.exists("/v/checkpoint")


def test_one_of_a_directory_that_was_opened_anew_has_nothing_of_the_next():
    """It ends with an error, and the next one is as whole as if it had not been."""
    world = busy_world(1)
    _, old = world.snapshot()
    world.follower.disk.remove_tree("/v/checkpoint")
    go_on(world, random.Random(1), 5)
    position, new = world.snapshot()
    with pytest.raises(OSError, match="opened anew"):
        b"".join(old.parts())
    old.remove()
    disk = MemoryDisk()
    unpacked(disk, new.parts())
    check_restored(world, disk, position)


@pytest.mark.parametrize("size", [1, 700])
def test_parts_of_any_size(size: int):
    world = busy_world(1)
    position, job = world.snapshot()
    whole = b"".join(job.parts())
    disk = MemoryDisk()
    unpacked(disk, [whole[at : at + size] for at in range(0, len(whole), size)])
    check_restored(world, disk, position)


def test_it_is_a_tar_archive():
    _, job = busy_world(1).snapshot()
    with tarfile.open(fileobj=BytesIO(b"".join(job.parts()))) as archive:
        names = archive.getnames()
    assert names[0] == "definitions"
    assert names[-1] == "manifest"
    assert "log_position" in names
    assert any(name.startswith("journal/") for name in names)
    assert any(name.endswith(".segment") for name in names)


@pytest.mark.parametrize("seed", range(3))
def test_a_power_cut_leaves_the_old_directory_or_the_new_one(seed: int):
    """After any operation of loading and switching. Until all is there it is the old one, and from then on the new one."""
    rng = random.Random(seed)
    world = busy_world(seed)
    before = world.follower.position
    disk = world.follower.disk.kill()
    go_on(world, rng, 5)
    position, job = world.snapshot()
    unpacked(disk, job.parts())
    complete = len(disk.log)
    assert restored_definitions(disk, "/v") is not None
    switch(disk, "/v")
    counts = sorted({*rng.sample(range(complete), 40), *range(complete, len(disk.log) + 1)})
    for count in counts:
        cut = disk.after(count).crash(at_random(rng))
        is_restored, node = opened(cut, is_sound=False)
        if count < complete - 3:
            assert not is_restored
        expected = position if is_restored or node.position == position else before
        if complete <= count:
            assert expected == position
        assert node.position == expected
        check_contents(Owner(node.store, [], 1), world.said(expected))


@pytest.mark.parametrize("spoil", ["cut", "flipped", "no manifest"])
def test_what_is_not_whole_is_not_taken(spoil: str):
    world = busy_world(2)
    _, job = world.snapshot()
    whole = b"".join(job.parts())
    if spoil == "cut":
        whole = whole[: len(whole) // 2]
    elif spoil == "flipped":
        at = len(whole) // 2
        whole = whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :]
    else:
        at = whole.index(b"manifest")
        whole = whole[:at] + bytes(1024)
    disk = MemoryDisk()
    with pytest.raises(SnapshotError):
        unpacked(disk, [whole])
    assert restored_definitions(disk, "/v") is None
    assert not disk.exists("/v/restoring")
