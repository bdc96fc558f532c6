"""A migration: everything of one broker, taken over by another, in this order:

    plan           the source's definitions, and which of them the target does not take, each with the target's reason
    definitions    what it takes
    messages       of each chosen queue, by a shovel, and of each stream, by a copy; some at a time
    verification   counts of each queue, and its first messages; of a stream some of all parts

Nothing is done before the plan is known, and the plan alone is the dry run. Nothing is deleted at the source but the messages
that the target has confirmed, and of streams nothing, so a migration that was cut short is begun again with the same command: it
takes up what is left.

What must stay true: a queue's messages are moved only when the target has the queue.
"""

from __future__ import annotations

import asyncio
import copy
import hashlib
import json
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Final, NamedTuple

from rabbitpy_broker.management.definitions_json import SECTIONS
from rabbitpy_broker.shovel.management_client import Management, ManagementError, part
from rabbitpy_broker.shovel.peer import ChannelUser, Peer, PeerClosed, Url
from rabbitpy_broker.shovel.shovel import Queue, Shovel, ShovelError, Tally, Target, queue_at
from rabbitpy_broker.shovel.stream_copy import Places, StreamCopy

BASE: Final = ("vhosts",)  # what other entries cannot be tried without
HEAD: Final = "&truncate=4096&encoding=base64&state=ready"
SAVE_S: Final = 1.0
SAMPLE: Final = 10  # messages at the head of a queue that are compared
# What RabbitMQ 3.10 lets a policy set. It refuses a whole file for one other key.
RABBITMQ_POLICY_KEYS: Final = frozenset(
    {
        "alternate-exchange",
        "consumer-timeout",
        "dead-letter-exchange",
        "dead-letter-routing-key",
        "dead-letter-strategy",
        "delivery-limit",
        "expires",
        "federation-upstream",
        "federation-upstream-pattern",
        "federation-upstream-set",
        "ha-mode",
        "ha-params",
        "ha-promote-on-failure",
        "ha-promote-on-shutdown",
        "ha-sync-batch-size",
        "ha-sync-mode",
        "max-age",
        "max-in-memory-bytes",
        "max-in-memory-length",
        "max-length",
        "max-length-bytes",
        "message-ttl",
        "overflow",
        "queue-leader-locator",
        "queue-master-locator",
        "queue-mode",
        "queue-version",
        "stream-max-segment-size-bytes",
    }
)

Entry = dict[str, Any]


class Refusal(NamedTuple):
    """A definition that the target does not take."""

    section: str
    vhost: str
    name: str
    reason: str


class QueueToMove(NamedTuple):
    """A queue of the source, as it was when the plan was made. `skipped`: why its messages stay; "" when they go."""

    vhost: str
    name: str
    kind: str
    messages: int
    unacked: int
    consumers: int
    skipped: str


class Plan:
    """What is to be done."""

    def __init__(self, definitions: Entry, refusals: list[Refusal], queues: list[QueueToMove]) -> None:
        self.definitions = definitions
        self.refusals = refusals
        self.queues = queues

    def to_move(self) -> list[QueueToMove]:
        """The queues whose messages go."""
        return [queue for queue in self.queues if not queue.skipped]


class Moved(NamedTuple):
    """What has become of a queue. `verified`: None where it cannot be said, with the reason in `note`."""

    queue: QueueToMove
    tally: Tally
    error: str
    verified: bool | None
    note: str


# -- plan ---------------------------------------------------------------------------------------------------------


async def make_plan(
    source: Management, target: Management, wanted: Callable[[str, str], bool], *, with_definitions: bool = True
) -> Plan:
    """What a migration of the queues for which `wanted(vhost, name)` holds would do. Raises ManagementError."""
    definitions = await source.get("definitions")
    refusals: list[Refusal] = []
    if with_definitions:
        definitions = {section: list(definitions.get(section, [])) for section in SECTIONS}
        refusals = await (_tried if target.is_ours() else _looked_up)(target, definitions)
        refusals += _without(definitions, refusals)
    else:
        definitions = {}
    refused = {(one.vhost, one.name): one.reason for one in refusals if one.section == "queues"}
    queues: list[QueueToMove] = []
    for row in await source.get("queues?columns=vhost,name,type,exclusive,messages,messages_unacknowledged,consumers"):
        queue = _queue(row, refused)
        if wanted(queue.vhost, queue.name):
            queues.append(queue)
    return Plan(definitions, refusals, queues)


def _queue(row: Entry, refused: dict[tuple[str, str], str]) -> QueueToMove:
    vhost, name = row["vhost"], row["name"]
    kind = str(row.get("type", "classic"))
    skipped = ""
    if (vhost, name) in refused:
        skipped = f"the target does not take the queue: {refused[vhost, name]}"
    elif row.get("exclusive"):
        skipped = "exclusive: it goes with its connection"
    counts = [int(row.get(key) or 0) for key in ("messages", "messages_unacknowledged", "consumers")]
    return QueueToMove(vhost, name, kind, counts[0], counts[1], counts[2], skipped)


async def _tried(target: Management, definitions: Entry) -> list[Refusal]:
    """By trying: halves of what is refused are tried until single entries are left, which tell their reasons."""
    base = {section: definitions[section] for section in BASE}
    found: list[Refusal] = []
    known = copy.copy(base)
    for section in SECTIONS:
        if section in BASE or section == "bindings":
            continue
        entries = definitions[section]
        refused = await _refused(target, known, section, entries)
        found += [Refusal(section, str(entry.get("vhost", "")), _name(entry), reason) for entry, reason in refused]
        gone = {id(entry) for entry, _ in refused}
        known[section] = [entry for entry in entries if id(entry) not in gone]
    return found


async def _refused(target: Management, known: Entry, section: str, entries: list[Entry]) -> list[tuple[Entry, str]]:
    if not entries:
        return []
    try:
        await target.post("definitions?dry_run=true", {**known, section: entries})
    except ManagementError as error:
        if error.status != 400:
            raise
        if len(entries) == 1:
            return [(entries[0], str(error))]
    else:
        return []
    half = len(entries) // 2
    return [
        *await _refused(target, known, section, entries[:half]),
        *await _refused(target, known, section, entries[half:]),
    ]


async def _looked_up(target: Management, definitions: Entry) -> list[Refusal]:
    """By what RabbitMQ says of itself: it has no dry run."""
    types = {one["name"] for one in target.overview.get("exchange_types", [])}
    plugins = {"x-random", "x-consistent-hash", "x-delayed-message", "x-super-stream"}
    found: list[Refusal] = []
    for exchange in definitions["exchanges"]:
        kind = exchange["type"]
        if kind not in types:
            hint = "; a plugin of it may" if kind in plugins else ""
            found.append(Refusal("exchanges", exchange["vhost"], exchange["name"], f"it has no exchange type {kind}{hint}"))
    for policy in definitions["policies"]:
        strange = sorted(set(policy["definition"]) - RABBITMQ_POLICY_KEYS)
        if strange:
            found.append(Refusal("policies", policy["vhost"], policy["name"], f"it knows no policy of {', '.join(strange)}"))
    for parameter in definitions["parameters"]:
        if parameter["component"] not in ("vhost-limits", "operator_policy"):
            reason = f"it may have no component {parameter['component']}"
            found.append(Refusal("parameters", parameter["vhost"], parameter["name"], reason))
    return found


def _without(definitions: Entry, refusals: Iterable[Refusal]) -> list[Refusal]:
    """Takes what is refused out of `definitions`; returns what goes with it, the bindings."""
    gone = {(one.section, one.vhost, one.name) for one in refusals}
    for section in SECTIONS:
        if section != "bindings":
            definitions[section] = [
                entry for entry in definitions[section] if (section, str(entry.get("vhost", "")), _name(entry)) not in gone
            ]
    followed: list[Refusal] = []
    kept: list[Entry] = []
    for binding in definitions["bindings"]:
        vhost = binding["vhost"]
        to = "queues" if binding["destination_type"] == "queue" else "exchanges"
        if ("exchanges", vhost, binding["source"]) in gone or (to, vhost, binding["destination"]) in gone:
            name = f"{binding['source']} -> {binding['destination']}"
            followed.append(Refusal("bindings", vhost, name, "what it binds is not taken"))
        else:
            kept.append(binding)
    definitions["bindings"] = kept
    return followed


def _name(entry: Entry) -> str:
    return str(entry.get("name") or entry.get("user") or "")


# -- doing it -----------------------------------------------------------------------------------------------------


class Migration:
    """Carries a plan out. `rate`: messages a second in all, 0: no limit. `state`: a file of what was moved so far, over all
    runs. `on_move(queue, tally)` is told now and then.
    """

    def __init__(
        self,
        source: tuple[Url, Management],
        target: tuple[Url, Management],
        *,
        rate: float = 0.0,
        parallel: int = 4,
        prefetch: int = 1_000,
        patience_s: float = 30.0,
        state: Path | None = None,
        on_move: Callable[[QueueToMove, Tally], None] | None = None,
    ) -> None:
        self.source, self.source_api = source
        self.target, self.target_api = target
        self.rate = rate
        self.parallel = parallel
        self.prefetch = prefetch
        self.patience_s = patience_s
        self.state = State(state)
        self.on_move = on_move

    async def apply(self, plan: Plan) -> None:
        """The definitions. Raises ManagementError."""
        if plan.definitions:
            await self.target_api.post("definitions", plan.definitions)

    async def move(self, plan: Plan) -> list[Moved]:
        """The messages. What goes wrong with a queue stands in its row; the others go on."""
        gate = asyncio.Semaphore(self.parallel)
        share = self.rate / max(1, min(self.parallel, len(plan.to_move())))

        async def one(queue: QueueToMove) -> Moved:
            async with gate:
                return await self._move(queue, share)

        return list(await asyncio.gather(*(one(queue) for queue in plan.to_move())))

    async def _move(self, queue: QueueToMove, rate: float) -> Moved:
        return await (self._copy_stream if queue.kind == "stream" else self._move_queue)(queue, rate)

    async def _copy_stream(self, queue: QueueToMove, rate: float) -> Moved:
        copied = StreamCopy(
            self.source._replace(vhost=queue.vhost),
            queue.name,
            self.target._replace(vhost=queue.vhost),
            self.state.places(queue),
            lambda places: self.state.keep_places(queue, places),
            prefetch=self.prefetch,
            rate=rate,
            patience_s=self.patience_s,
            on_move=lambda tally: self._told(queue, tally),
        )
        self.state.running(queue, copied.tally)
        try:
            await copied.run()
            verified, note = await copied.verify()
        except (ShovelError, PeerClosed, OSError) as failed:
            return Moved(queue, copied.tally, str(failed) or type(failed).__name__, None, "")
        finally:
            self.state.save()
        return Moved(queue, copied.tally, "", verified, note)

    async def _move_queue(self, queue: QueueToMove, rate: float) -> Moved:
        shovel = Shovel(
            self.source._replace(vhost=queue.vhost),
            queue.name,
            Target(self.target._replace(vhost=queue.vhost), queue=queue.name),
            prefetch=self.prefetch,
            rate=rate,
            patience_s=self.patience_s,
            on_move=lambda tally: self._told(queue, tally),
        )
        self.state.running(queue, shovel.tally)
        try:
            before = (await self._at_target(queue)).message_count
            sample = await self._head(queue) if before == 0 else []
            await shovel.run()
            verified, note = await self._verify(queue, shovel.tally, before, sample)
        except (ShovelError, ManagementError, PeerClosed, OSError) as failed:
            return Moved(queue, shovel.tally, str(failed) or type(failed).__name__, None, "")
        finally:
            self.state.save()
        return Moved(queue, shovel.tally, "", verified, note)

    def _told(self, queue: QueueToMove, tally: Tally) -> None:
        self.state.moved()
        if self.on_move is not None:
            self.on_move(queue, tally)

    # -- verification ---------------------------------------------------------------------------------------------

    async def _verify(self, queue: QueueToMove, tally: Tally, before: int, sample: list[str]) -> tuple[bool | None, str]:
        found = await self._at_target(queue)
        if found.consumer_count:
            return None, "it has consumers at the target, so nothing can be counted"
        expected = before + tally.moved
        if found.message_count < expected:
            counts = f"{found.message_count} messages at the target where {expected} are due"
            return False, f"{counts}: is it limited, or do messages expire?"
        if sample and self.target_api.is_ours():
            page = await self.target_api.get(f"queues/{part(queue.vhost)}/{part(queue.name)}/messages?limit={len(sample)}{HEAD}")
            if [_digest(item) for item in page["items"]] != sample:
                return False, "the first messages at the target are not those of the source"
            return True, f"{found.message_count} messages, the first {len(sample)} compared"
        return True, f"{found.message_count} messages"

    async def _at_target(self, queue: QueueToMove) -> Queue:
        """What the target's broker itself says of the queue; its statistics may lag behind."""
        peer = await Peer.connect(self.target._replace(vhost=queue.vhost), "migrate")
        try:
            return await queue_at(await peer.channel(ChannelUser()), queue.name)
        finally:
            await peer.close()

    async def _head(self, queue: QueueToMove) -> list[str]:
        """The digests of the source's first messages, if it shows them without taking them."""
        if not self.source_api.is_ours() or queue.messages == 0:
            return []
        path = f"queues/{part(queue.vhost)}/{part(queue.name)}/messages?limit={SAMPLE}{HEAD}"
        page = await self.source_api.get(path)
        return [_digest(item) for item in page["items"]]


def _digest(item: Entry) -> str:
    """Of what a move keeps of a message."""
    kept = [item["routing_key"], item["payload_bytes"], item["payload"], item["properties"]]
    return hashlib.blake2b(json.dumps(kept, sort_keys=True).encode(), digest_size=16).hexdigest()


class State:
    """The file of what was moved, by queue: messages, how many of them may be at the target twice, and of a stream which offset
    there is which of the source. It is written about once a second; what a killed command had on its way is not in it.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._before: dict[str, Entry] = {}
        self._now: dict[str, Tally] = {}
        self._places: dict[str, Places] = {}
        self._written = 0.0
        if path is not None and path.exists():
            self._before = json.loads(path.read_text(encoding="utf-8"))

    def running(self, queue: QueueToMove, tally: Tally) -> None:
        """A shovel of this run."""
        self._now[_key(queue)] = tally

    def places(self, queue: QueueToMove) -> Places:
        """What `keep_places` was told of this stream, in an earlier run."""
        found: Places = self._before.get(_key(queue), {}).get("places", [])
        return found

    def keep_places(self, queue: QueueToMove, places: Places) -> None:
        """Which offset of a stream is which of the source: in the file when this returns."""
        self._places[_key(queue)] = [list(place) for place in places]
        self.save()

    def moved(self) -> None:
        """Something has moved."""
        if self._path is not None and time.monotonic() - self._written > SAVE_S:
            self.save()

    def save(self) -> None:
        """Writes the file."""
        if self._path is None:
            return
        self._written = time.monotonic()
        new = self._path.with_suffix(self._path.suffix + ".new")
        new.write_text(json.dumps(self._queues(), indent=1, sort_keys=True), encoding="utf-8")
        new.replace(self._path)

    def _queues(self) -> dict[str, Entry]:
        queues = {name: dict(entry) for name, entry in self._before.items()}
        for name, tally in self._now.items():
            entry = queues.setdefault(name, {"moved": 0, "doubtful": 0})
            entry["moved"] += tally.moved
            entry["doubtful"] += tally.doubtful
        for name, places in self._places.items():
            queues.setdefault(name, {"moved": 0, "doubtful": 0})["places"] = places
        return queues

    def total(self, key: str) -> int:
        """Over all queues and runs: `moved` or `doubtful`."""
        return sum(entry[key] for entry in self._queues().values())


def _key(queue: QueueToMove) -> str:
    return f"{part(queue.vhost)}/{part(queue.name)}"
