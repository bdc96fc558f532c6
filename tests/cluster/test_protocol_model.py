"""The protocol of replicated vhosts in all orders that small sizes have (model.py says how), and what is broken on purpose."""

from __future__ import annotations

import pickle
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from typing import Any

import pytest

from cluster.model import (
    VHOST,
    Broken,
    ModelSink,
    ModelSnapshot,
    Node,
    Result,
    Scenario,
    World,
    Written,
    explore,
    no_pause,
)
from rabbitpy_broker.cluster import compression, owner_log
from rabbitpy_broker.cluster.checkpoints import Reports, quorum_position
from rabbitpy_broker.cluster.compression import Compression
from rabbitpy_broker.cluster.content import mark, packed
from rabbitpy_broker.cluster.follower import Follower
from rabbitpy_broker.cluster.log import ClusterError, Counting, Entry, Trimmed, Unavailable
from rabbitpy_broker.cluster.memory_engine import Outcome
from rabbitpy_broker.cluster.owner_log import OwnerLog
from rabbitpy_broker.cluster.ownership import Deposed, Owner
from rabbitpy_broker.cluster.writer import Writer

pytestmark = pytest.mark.timeout(3_600)  # in large sizes

UNSURE = (Outcome.LATE, Outcome.DONE_UNTOLD)
ALL = (*UNSURE, Outcome.DROPPED, Outcome.REFUSED)


def owner(*blocks: bytes) -> Callable[[World, Node], Any]:
    """Owns the vhost from the beginning, and publishes."""

    async def program(world: World, node: Node) -> None:
        writer = world.first_owner(node)
        for block in blocks:
            await world.publish(node, writer, block)

    return program


def successor(after: Owner, *blocks: bytes) -> Callable[[World, Node], Any]:
    """Takes over at some time, whether the owner lives or not, and publishes."""

    async def program(world: World, node: Node) -> None:
        while True:
            try:
                writer = await world.successor(node, after)
                break
            except Unavailable:
                await no_pause()
        for block in blocks:
            await world.publish(node, writer, block)

    return program


def trimming_owner(*blocks: bytes) -> Callable[[World, Node], Any]:
    """Owns the vhost; behind each block it reports, leaves a checkpoint, and trims."""

    async def program(world: World, node: Node) -> None:
        writer = world.first_owner(node)
        for block in blocks:
            await world.publish(node, writer, block)
            await world.report(node)
            await world.save(node)
            await world.trim(node, writer, world.nodes)

    return program


def reporting_owner(*blocks: bytes) -> Callable[[World, Node], Any]:
    """Owns the vhost, and trims behind the checkpoints of others."""

    async def program(world: World, node: Node) -> None:
        writer = world.first_owner(node)
        for block in blocks:
            await world.publish(node, writer, block)
            await world.report(node)
            await world.trim(node, writer, world.nodes)
        await world.trim(node, writer, world.nodes)

    return program


async def follow(world: World, node: Node) -> None:
    """Follows, syncs and reports."""
    follower = world.follow(node)
    while True:
        try:
            await follower.read(1.0)
        except Unavailable:
            continue
        except Trimmed as trimmed:
            if not await world.catch_up(node, follower, trimmed.first):
                return
        await world.report(node)


async def follow_once(world: World, node: Node) -> None:
    """Follows until it has read something."""
    follower = world.follow(node)
    try:
        await follower.read_to(2)
    except Trimmed:
        return
    await world.report(node)


async def late_successor(world: World, node: Node) -> None:
    """Was not there all the time, and takes over: from a checkpoint, if it must."""
    follower = world.follow(node)
    while True:
        try:
            writer = await world.successor(node, Owner("A", 1))
            break
        except Trimmed as trimmed:
            if not await world.catch_up(node, follower, trimmed.first):
                return
        except Unavailable:
            continue
    await world.publish(node, writer, b"c")


async def saving_follower(world: World, node: Node) -> None:
    """Follows, and stores what it had at a moment while it reads on."""
    follower = world.follow(node)
    try:
        await follower.read_to(2)
        await world.report(node)
        snapshot = ModelSnapshot(node.sink)
        await follower.read(1.0)
        await world.save(node, snapshot)
        await world.report(node)
    except Trimmed:
        return


def restored(then: Callable[[World, Node], Any]) -> Callable[[World, Node], Any]:
    """Comes back with what its disk has, or nothing; takes a checkpoint if there is one that has more, and does then the rest."""

    async def program(world: World, node: Node) -> None:
        node.follower = None
        follower = world.follow(node)
        await world.catch_up(node, follower, 0)
        await then(world, node)

    return program


def staged_owner(*payloads: bytes) -> Callable[[World, Node], Any]:
    """Owns the vhost from the beginning; its own files get what it publishes behind the log."""

    async def program(world: World, node: Node) -> None:
        log = world.own(node, world.first_owner(node))
        for payload in payloads:
            await world.epoch(node, log, payload)

    return program


def giver(to: str, *payloads: bytes) -> Callable[[World, Node], Any]:
    """Owns the vhost, hands it over, and takes it back where the record says that it has it still."""

    async def program(world: World, node: Node) -> None:
        writer = world.first_owner(node)
        log = world.own(node, writer)
        for payload in payloads:
            await world.epoch(node, log, payload)
        await world.close(node)
        await world.hand_over(node, writer, to)
        await takes_what_is_given(world, node)

    return program


async def takes_what_is_given(world: World, node: Node) -> None:
    """Looks at the record when it likes to, takes over as soon as that has its name, and publishes."""
    while True:
        try:
            owner = await world.record(node).read()
            if owner.node == node.name:
                writer = await world.successor(node, owner)
                break
        except (Unavailable, Deposed):
            continue
    await world.epoch(node, world.own(node, writer), f"{node.name}{writer.term}".encode())


async def takes_when_told(world: World, node: Node) -> None:
    """Follows, and looks at the record when the log says that the vhost is given to it."""
    follower = world.follow(node)
    while follower.given_to != node.name:
        try:
            await follower.read(1.0)
        except Unavailable:
            continue
    await takes_what_is_given(world, node)


def declaring_successor(after: Owner, *payloads: bytes) -> Callable[[World, Node], Any]:
    """Takes over at some time, whether the owner lives or not, and declares and publishes."""

    async def program(world: World, node: Node) -> None:
        while True:
            try:
                writer = await world.successor(node, after)
                break
            except Unavailable:
                await no_pause()
        log = world.own(node, writer)
        for payload in payloads:
            await world.epoch(node, log, payload)

    return program


def declaring_trimmer(*payloads: bytes) -> Callable[[World, Node], Any]:
    """Owns the vhost, declares and publishes; behind each block it reports, leaves a checkpoint, and trims."""

    async def program(world: World, node: Node) -> None:
        writer = world.first_owner(node)
        log = world.own(node, writer)
        for payload in payloads:
            await world.epoch(node, log, payload)
            await world.report(node)
            await world.save(node)
            await world.trim(node, writer, world.nodes)

    return program


async def comes_back(world: World, node: Node) -> None:
    """Takes over behind whoever has it, with the directory that it has."""
    while True:
        try:
            writer = await world.successor(node, await world.record(node).read())
            break
        except Unavailable:
            continue
    await world.epoch(node, world.own(node, writer), b"back")


LONG = b"long"  # of two parts
ONE_PART = 100


def report(result: Result) -> None:
    """`pytest -s` shows it."""
    print(f"\n{result.states} states in {result.runs} runs, of which {result.ends} ended with nothing left to do")


@pytest.mark.parametrize("conditional", [True, False])
def test_owner_and_successor_whatever_becomes_of_their_appends(conditional: bool, cluster_model_full: bool):
    """Unknown outcomes, done and not done, now and later; the owner sleeps anywhere, and wakes behind the fence."""
    scenario = Scenario(
        {"A": owner(b"1", LONG) if cluster_model_full else owner(LONG), "B": successor(Owner("A", 1), b"2")},
        conditional=conditional, faults=2 if cluster_model_full or conditional else 1, kinds=ALL,
    )  # fmt: skip
    result = explore(scenario)
    report(result)
    assert result.states > 1_000
    assert result.ends > 10


@pytest.mark.parametrize("conditional", [True, False])
def test_two_who_take_over_at_once(conditional: bool, cluster_model_full: bool):
    after = Owner("A", 1)
    scenario = Scenario(
        {"A": owner(b"1"), "B": successor(after, b"2"), "C": successor(after, b"3")},
        conditional=conditional, faults=1, kinds=ALL if cluster_model_full else UNSURE,
    )  # fmt: skip
    result = explore(scenario)
    report(result)
    assert result.states > 1_000


@pytest.mark.parametrize("conditional", [True, False])
def test_a_follower_that_crashes_before_and_after_its_sync(conditional: bool, cluster_model_full: bool):
    blocks = (b"1", LONG) if cluster_model_full else (LONG,)
    scenario = Scenario(
        {"A": trimming_owner(*blocks), "B": follow}, conditional=conditional, crashes=("B",), after_crash=follow
    )
    result = explore(scenario)
    report(result)
    assert result.states > 300


@pytest.mark.parametrize("conditional", [True, False])
def test_a_log_that_is_trimmed_in_front_of_its_reader(conditional: bool, cluster_model_full: bool):
    """A node reads, or takes over, while the entries that it wants are trimmed: it has them from a checkpoint, or waits."""
    programs = {"A": trimming_owner(b"1", b"2"), "B": follow, "C": late_successor}
    if not cluster_model_full:
        programs["B"] = follow_once
    result = explore(Scenario(programs, conditional=conditional))
    report(result)
    assert result.states > 1_000


@pytest.mark.parametrize("conditional", [True, False])
def test_checkpoints_of_a_follower_that_crashes_in_the_middle(conditional: bool, cluster_model_full: bool):
    """Its upload is lost, comes late or is whole; the log is trimmed behind what is there, and the owner goes on."""
    blocks = (b"1", b"2") if cluster_model_full else (b"1",)
    scenario = Scenario(
        {"A": reporting_owner(*blocks), "B": saving_follower}, conditional=conditional, crashes=("B",), after_crash=follow_once,
        faults=1, kinds=UNSURE if cluster_model_full else (Outcome.DONE_UNTOLD,),
    )  # fmt: skip
    result = explore(scenario)
    report(result)
    assert result.states > 500


@pytest.mark.parametrize("conditional", [True, False])
def test_a_replica_that_lost_its_disk_takes_over_from_a_checkpoint(conditional: bool, cluster_model_full: bool):
    """It had reported; and it may be killed again while it loads."""
    programs = {"A": trimming_owner(b"1", b"2") if cluster_model_full else trimming_owner(b"1"), "B": follow_once}
    scenario = Scenario(
        programs, conditional=conditional, crashes=("B",), loses=("B",), after_crash=restored(late_successor)
    )
    result = explore(scenario)
    report(result)
    assert result.states > 500


@pytest.mark.parametrize("conditional", [True, False])
def test_an_owner_whose_files_are_behind_the_log(conditional: bool, cluster_model_full: bool):
    """A confirm leaves when the log has it. A kill takes what the files have not yet, and the log gives it back."""
    payloads = (b"1", b"2", b"3") if cluster_model_full else (b"1", b"2")
    scenario = Scenario(
        {"A": staged_owner(*payloads), "B": declaring_successor(Owner("A", 1), b"b")}, conditional=conditional, crashes=("A",),
        after_crash=comes_back, faults=int(cluster_model_full), kinds=UNSURE, max_block=ONE_PART,
    )  # fmt: skip
    result = explore(scenario)
    report(result)
    assert result.states > 500


@pytest.mark.parametrize("conditional", [True, False])
def test_an_owner_whose_blocks_are_compressed(conditional: bool, cluster_model_full: bool, monkeypatch: pytest.MonkeyPatch):
    """In parts, of which a fence may cut off the last one."""
    frames: list[bytes] = []

    class Noting(Compression):
        async def compressed(self, block: bytes) -> bytes | None:
            frame = await super().compressed(block)
            assert frame is not None
            frames.append(frame)
            return frame

    monkeypatch.setattr(compression, "LEAST", 1)
    monkeypatch.setattr(owner_log, "Compression", Noting)
    payloads = (b"1" * 300, b"2" * 300) if cluster_model_full else (b"1" * 300,)
    scenario = Scenario(
        {"A": staged_owner(*payloads), "B": declaring_successor(Owner("A", 1), b"b" * 300)}, conditional=conditional,
        crashes=("A",), after_crash=comes_back, faults=int(cluster_model_full), kinds=UNSURE, max_block=32,
    )  # fmt: skip
    result = explore(scenario)
    report(result)
    assert result.states > 500
    assert all(32 <= len(frame) < 64 for frame in frames), [len(frame) for frame in frames]


@pytest.mark.parametrize("conditional", [True, False])
@pytest.mark.parametrize("crashes", [("A",), ("B",), ()])
def test_a_hand_over_that_is_cut_short(crashes: tuple[str], conditional: bool, cluster_model_full: bool):
    """By a kill of either at any moment; by what does not come to the registry or the log, or comes later; or by a third node."""
    programs = {"A": giver("B", b"1"), "B": takes_when_told if cluster_model_full or not crashes else takes_what_is_given}
    if cluster_model_full:
        programs["C"] = successor(Owner("A", 1), b"c")
    scenario = Scenario(
        programs, conditional=conditional, crashes=crashes, after_crash=takes_what_is_given,
        faults=0 if crashes else 1, kinds=ALL if cluster_model_full else UNSURE, max_block=ONE_PART,
    )  # fmt: skip
    result = explore(scenario)
    report(result)
    assert result.states > 100


@pytest.mark.parametrize("conditional", [True, False])
def test_definitions_of_a_follower_that_crashes(conditional: bool, cluster_model_full: bool):
    """It has what the owner had behind each block, from all that the first one says and what has changed since."""
    payloads = (b"1", b"2", b"3") if cluster_model_full else (b"1", b"2")
    scenario = Scenario(
        {"A": staged_owner(*payloads), "B": follow}, conditional=conditional, crashes=("B",), after_crash=follow,
        faults=int(cluster_model_full), kinds=UNSURE, max_block=ONE_PART,
    )  # fmt: skip
    result = explore(scenario)
    report(result)
    assert result.states > 100


@pytest.mark.parametrize("conditional", [True, False])
def test_definitions_of_a_checkpoint_and_of_what_comes_behind_it(conditional: bool, cluster_model_full: bool):
    """Those of a checkpoint may be ahead of it. Who loads it has what the owner had as soon as another one is there."""
    scenario = Scenario(
        {"A": declaring_trimmer(b"1", b"2") if cluster_model_full else declaring_trimmer(b"1"), "B": follow_once},
        conditional=conditional, crashes=("B",), loses=("B",),
        after_crash=restored(declaring_successor(Owner("A", 1), b"b")), max_block=ONE_PART,
    )  # fmt: skip
    result = explore(scenario)
    report(result)
    assert result.states > 300


# -- what is broken on purpose ------------------------------------------------------------------------------------------------


class AnyPosition(Writer):
    """Confirms wherever its block lands."""

    async def _append(self, piece: bytes) -> bool:
        self.position = await self._log.append(piece, term=self.term) + 1
        return True


class AppendsAgain(Writer):
    """Takes an unknown outcome for "not there"."""

    async def _resolve(self) -> bool:
        return False


class LooksOnly(Writer):
    """Reads the end of the log after an unknown outcome, and takes what is not there for never to come."""

    async def _resolve(self) -> bool:
        expected = self.position
        return expected in await self._read_to(await self._log.end())


class KnowsNoTerms(Follower):
    """Applies whatever it reads."""

    def begin(self) -> None:
        super().begin()
        self._counting = AllCounts(self.sink.term)


class AllCounts(Counting):
    def counts(self, entry: Entry) -> bool:
        self.term = max(self.term, entry.term)
        return True


def trims_its_own(*blocks: bytes) -> Callable[[World, Node], Any]:
    """Trims what it has itself."""

    async def program(world: World, node: Node) -> None:
        writer = world.first_owner(node)
        for block in blocks:
            await world.publish(node, writer, block)
            await world.report(node)
            await world.save(node)
            await world.trim(node, writer, ["A"])

    return program


def trims_without_a_checkpoint(*blocks: bytes) -> Callable[[World, Node], Any]:
    """Trims what a quorum has, though nobody else could begin then."""

    async def program(world: World, node: Node) -> None:
        writer = world.first_owner(node)
        engine = world.servers.connect(node.name)
        for block in blocks:
            await world.publish(node, writer, block)
            await world.report(node)
            reports = await Reports(engine.registry, VHOST).read()
            await engine.log(VHOST).trim(quorum_position(reports, list(world.nodes)))

    return program


async def writes_its_own_first(world: World, node: Node) -> None:
    """Has in its files what the log is only asked to take."""
    writer = world.first_owner(node)
    log = world.own(node, writer)
    await world.to_files(node, Written(packed({}, [b"1"]), writer.position + 1, writer.term))
    await world.epoch(node, log, b"1")


class TellsAll(OwnerLog):
    """Tells of an epoch whatever the writer says."""

    async def _append(self, block: bytes, last: int, done: Callable[[int, Exception | None], None]) -> None:
        with suppress(ClusterError):
            await self.writer.append(block, last)
        done(mark(self.writer.term, self.writer.position + 1), None)


class NeverAll(OwnerLog):
    """Takes it that others have what it had when it took over."""

    def begin(self) -> None:
        self._is_first = False
        super().begin()


class NewestChange(OwnerLog):
    """Says what has changed last."""

    def begin(self) -> None:
        super().begin()
        if isinstance(self._building, list):
            self._building = self._building[-1:]


class TakenLater(ModelSnapshot):
    """Stores what there is when it is stored, under the position that it had."""

    def __init__(self, sink: ModelSink) -> None:
        super().__init__(sink)
        self._sink = sink

    async def parts(self) -> AsyncIterator[bytes]:
        yield pickle.dumps((self._sink.blocks, set(), 0, 0))


async def saves_what_moves(world: World, node: Node) -> None:
    follower = world.follow(node)
    await follower.read_to(2)
    snapshot = TakenLater(node.sink)
    await follower.read(1.0)
    await world.save(node, snapshot)


async def reports_before_it_syncs(world: World, node: Node) -> None:
    follower = world.follow(node)
    reports = Reports(world.servers.connect(node.name).registry, VHOST)
    while True:
        await follower.read(1.0)
        await reports.report(node.name, node.sink.position)
        await node.sink.sync()


FIRST = {"A": owner(b"1", b"2"), "B": successor(Owner("A", 1), b"3")}
BROKEN = {
    "confirms wherever its block is": Scenario(FIRST, conditional=False, writer=AnyPosition),
    "appends again what has an unknown outcome": Scenario(FIRST, faults=1, kinds=UNSURE, writer=AppendsAgain),
    "reads the end after an unknown outcome": Scenario(FIRST, faults=1, kinds=UNSURE, writer=LooksOnly),
    "writes its own file first": Scenario(
        {"A": writes_its_own_first, "B": successor(Owner("A", 1), b"3")}, crashes=("A",), max_block=ONE_PART
    ),
    "tells what the log has not": Scenario(
        {"A": staged_owner(b"1"), "B": successor(Owner("A", 1), b"3")}, max_block=ONE_PART, log=TellsAll
    ),
    "never says all definitions": Scenario(
        {"A": staged_owner(b"1"), "B": declaring_successor(Owner("A", 1), b"b")}, crashes=("A",), after_crash=follow,
        max_block=ONE_PART, log=NeverAll,
    ),
    "does not say all that has changed": Scenario(
        {"A": staged_owner(b"1", b"2", b"3"), "B": follow}, max_block=ONE_PART, log=NewestChange
    ),
    "follows without terms": Scenario(FIRST, conditional=False, follower=KnowsNoTerms),
    "trims what nobody else has": Scenario({"A": trims_its_own(b"1"), "B": follow, "C": follow_once}),
    "trims without a checkpoint": Scenario({"A": trims_without_a_checkpoint(b"1"), "B": follow}),
    "saves what moves": Scenario({"A": owner(b"1", b"2"), "B": saves_what_moves}),
    "reports before it syncs": Scenario(
        {"A": trimming_owner(b"1"), "B": reports_before_it_syncs}, crashes=("B",), after_crash=follow
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_what_is_broken_is_found(name: str):
    with pytest.raises(Broken) as found:
        explore(BROKEN[name])
    assert found.value.__notes__, "the choices that lead there"
