"""Definitions of a vhost that go to a log as changes: whoever applies its blocks has what the owner had, on disk and in memory.

Changes are random, and so are the ends of blocks, kills of the follower and of the owner, and checkpoints of the owner. A kill of
the follower has it apply blocks again; what it has of definitions is then ahead. The owner's are always ahead of its log.
"""

from __future__ import annotations

from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from rabbitpy_broker.cluster.content import packed, unpacked
from rabbitpy_broker.definitions import Definitions
from rabbitpy_broker.durable_queues import DurableQueues
from rabbitpy_broker.wire.field_table import encode_table

VHOST, OTHER = "v", "w"
ARGUMENTS: list[dict[str, Any]] = [
    {}, {"x-max-priority": 2}, {"x-queue-type": "stream"}, {"x-queue-type": "quorum"}, {"x-max-length": 3}
]  # fmt: skip
names = st.sampled_from(["a", "b", "c"])
kinds = st.sampled_from(["queue", "exchange"])


def raw(arguments: dict[str, Any]) -> bytes:
    return encode_table(arguments)[4:]


def shown(queues: DurableQueues) -> tuple[Any, ...]:
    """All of it that can be compared."""
    return (
        {name: (queue.auto_delete, queue.arguments.raw, queue.queue_id) for name, queue in queues.queues.items()},
        queues.delay_queues,
        {queue_id: type(maker) for queue_id, maker in queues.makers.items()},
        {queue_id: (kept.max_length_bytes, kept.max_age_ms) for queue_id, kept in queues.streams.items()},
    )


class CopiedDefinitions(RuleBasedStateMachine):
    @initialize()
    def begin(self) -> None:
        self.owner, self.copy = Definitions(None), Definitions(None)
        self.copy.put_queue(VHOST, "of a former owner", False, b"", 99)
        self.copied = DurableQueues(self.copy, VHOST)
        self.blocks: list[bytes] = []
        self.had: list[dict[str, Any]] = [{}]  # by position
        self.newest_id = 0
        self.take_over()

    def take_over(self) -> None:
        """An owner's first block."""
        self.owner.take_changes(VHOST)
        self._append(packed(self.owner.rows_of(VHOST), []))
        self.position = 0
        self.ahead = 0

    def _append(self, block: bytes) -> None:
        self.blocks.append(block)
        self.had.append(self.owner.rows_of(VHOST))

    # -- changes --------------------------------------------------------------------------------------------------------------

    @rule(name=names, arguments=st.sampled_from(ARGUMENTS), auto_delete=st.booleans())
    def declare_queue(self, name: str, arguments: dict[str, Any], auto_delete: bool) -> None:
        self.newest_id += 1000
        self.owner.put_queue(VHOST, name, auto_delete, raw(arguments), self.newest_id)

    @rule(name=names)
    def delete_queue(self, name: str) -> None:
        self.owner.delete_queue(VHOST, name)
        self.owner.delete_offsets(VHOST, name)

    @rule(name=names)
    def declare_exchange(self, name: str) -> None:
        self.newest_id += 1000
        self.owner.put_exchange(VHOST, name, "x-delayed-message", False, False, b"")
        self.owner.put_delay_queue(VHOST, name, self.newest_id)

    @rule(name=names)
    def delete_exchange(self, name: str) -> None:
        self.owner.delete_exchange(VHOST, name)

    @rule(source=names, kind=kinds, destination=names, key=names)
    def bind(self, source: str, kind: str, destination: str, key: str) -> None:
        self.owner.put_binding(VHOST, source, kind, destination, key, b"")

    @rule(source=names, kind=kinds, destination=names, key=names)
    def unbind(self, source: str, kind: str, destination: str, key: str) -> None:
        self.owner.delete_binding(VHOST, source, kind, destination, key, b"")

    @rule(name=names, size=st.integers(1, 3), operator=st.booleans())
    def set_policy(self, name: str, size: int, operator: bool) -> None:
        self.owner.put_policy(VHOST, operator, name, name, "streams", 0, f'{{"max-length-bytes": {size}}}')

    @rule(name=names, operator=st.booleans())
    def clear_policy(self, name: str, operator: bool) -> None:
        self.owner.delete_policy(VHOST, operator, name)

    @rule(name=names, offset=st.integers(0, 5))
    def store_offset(self, name: str, offset: int) -> None:
        self.owner.put_offset(VHOST, name, "reader", offset)

    @rule(limit=st.integers(0, 3))
    def limit(self, limit: int) -> None:
        self.owner.put_vhost_limits(VHOST, f'{{"max-queues": {limit}}}')

    @rule()
    def lift_limits(self) -> None:
        self.owner.delete_vhost_limits(VHOST)

    @rule(name=names)
    def change_metadata(self, name: str) -> None:
        self.owner.add_vhost(VHOST, f'{{"description": "{name}"}}')

    @rule(name=names)
    def change_another_vhost(self, name: str) -> None:
        self.owner.put_queue(OTHER, name, False, b"", 7)

    # -- the log --------------------------------------------------------------------------------------------------------------

    @rule()
    def block(self) -> None:
        changes = self.owner.take_changes(VHOST)
        if changes:
            self._append(packed(changes, []))

    @rule(count=st.integers(1, 4))
    def follow(self, count: int) -> None:
        """Several blocks are applied in one commit."""
        changes: list[Any] | None = []
        for block in self.blocks[self.position : self.position + count]:
            definitions, _ = unpacked(block)
            assert definitions is not None
            if isinstance(definitions, list):
                self.copy.change_rows(VHOST, definitions)
                if changes is not None:
                    changes += definitions
            else:
                self.copy.replace_rows(VHOST, definitions)
                changes = None
            self.position += 1
        if changes is None:
            self.copied = DurableQueues(self.copy, VHOST)
        else:
            before = {*self.copied.makers, *self.copied.streams}
            touched = self.copied.change(changes)
            assert before ^ {*self.copied.makers, *self.copied.streams} <= touched

    @rule(back=st.integers(1, 3))
    def kill_follower(self, back: int) -> None:
        """Its definitions are on disk, and ahead of where it begins again."""
        self.ahead = max(self.ahead, self.position)
        self.position = max(0, self.position - back)
        self.copied = DurableQueues(self.copy, VHOST)

    @rule(back=st.integers(0, 3))
    def load_checkpoint_of_owner(self, back: int) -> None:
        """Whose definitions are ahead of its files, and have what the log has not."""
        self.position = max(1, len(self.blocks) - back)
        self.ahead = len(self.blocks) + 1
        self.copy.replace_rows(VHOST, self.owner.rows_of(VHOST))
        self.copied = DurableQueues(self.copy, VHOST)

    @rule()
    def take_over_by_the_follower(self) -> None:
        """The owner is killed with changes that the log has not; it follows, and they are gone."""
        self.follow(len(self.blocks))
        self.owner.forget_changes(VHOST)
        self.owner, self.copy = self.copy, self.owner
        self.copied = DurableQueues(self.copy, VHOST)
        self.blocks, self.had = [], [{}]
        self.take_over()

    @invariant()
    def has_what_the_owner_had(self) -> None:
        if not hasattr(self, "position"):
            return
        if self.position and self.position >= self.ahead:
            assert sorted_rows(self.copy.rows_of(VHOST)) == sorted_rows(self.had[self.position])
        assert shown(self.copied) == shown(DurableQueues(self.copy, VHOST))

    def teardown(self) -> None:
        self.follow(len(self.blocks))
        self.has_what_the_owner_had()


def sorted_rows(rows: dict[str, list[list[Any]]]) -> dict[str, list[list[Any]]]:
    return {table: sorted(found, key=repr) for table, found in rows.items()}


TestCopiedDefinitions = CopiedDefinitions.TestCase
TestCopiedDefinitions.settings = settings(deadline=None, stateful_step_count=40, suppress_health_check=list(HealthCheck))
