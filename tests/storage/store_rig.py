"""A message store on a disk in RAM, with what the queue indexes on that disk would refer to.

The rig plays the journal: `begin`, `write` and `settle` are the three steps of an epoch, `epoch` all of them. `durable`
is what the indexes on disk refer to, msg_id -> count, since the last settled epoch; `may_be_durable` is what they may
refer to as well when an epoch's block has been written and nobody has been told.
"""

from __future__ import annotations

from typing import Any

from rabbitpy_broker.message import Message, StoreEntry
from rabbitpy_broker.storage.message_store import MessageStore
from rabbitpy_broker.storage.store_writer import Flush
from storage.faulty_disk import CrankedThreads, MemoryDisk

FOLDER = "/vhost/store"
LIMIT = 1_000


def message(number: int, size: int) -> Message:
    """A message of which every byte tells which one it is."""
    body = (b"%08d" % number + bytes((number * 31 + at * 7) % 251 for at in range(size)))[:size]
    header = b"\x00\x3c\x00\x00" + len(body).to_bytes(8, "big") + b"\x00\x00"
    content = len(header).to_bytes(4, "big") + header + b"\xce"
    framed = b"\x03\x00\x00" + len(body).to_bytes(4, "big") + body + b"\xce"
    return Message(b"\x00\x01q", content + framed, len(content), True)


class Log:
    """Remembers what was logged: (level, event, fields)."""

    def __init__(self) -> None:
        self.lines: list[tuple[str, str, dict[str, Any]]] = []

    def warning(self, event: str, **fields: Any) -> None:
        self.lines.append(("warning", event, fields))

    def error(self, event: str, **fields: Any) -> None:
        self.lines.append(("error", event, fields))

    def events(self) -> list[str]:
        return [event for _, event, _ in self.lines]


class Rig:
    def __init__(
        self, disk: MemoryDisk | None = None, limit: int = LIMIT, transient: bool = False, cache: int = 0
    ) -> None:
        self.disk = disk or MemoryDisk()
        self.limit = limit
        self.cache = cache
        self.transient = transient
        self.contents: dict[bytes, bytes] = {}
        self.durable: dict[bytes, int] = {}
        self.may_be_durable: dict[bytes, int] | None = None
        self.flush: Flush | None = None
        self._open()

    def _open(self) -> None:
        self.threads = CrankedThreads()
        self.log = Log()
        self.flush = None
        self.store = MessageStore(
            self.disk,
            self.threads,
            FOLDER,
            self.limit,
            self.transient,
            self.log,
            cache_limit_bytes=self.cache,
        )

    # -- messages ---------------------------------------------------------------------------------------------------------

    def publish(self, number: int, size: int = 100, times: int = 1) -> StoreEntry:
        published = message(number, size)
        for _ in range(times):
            entry = self.store.publish(published)
        self.contents[entry.msg_id] = published.content
        return entry

    def read(self, entry: StoreEntry) -> Message:
        """Reads and compares."""
        found = self.store.read(entry)
        assert found.content == self.contents[entry.msg_id]
        assert found.address == b"\x00\x01q"
        assert found.persistent
        return found

    def live(self) -> list[StoreEntry]:
        return list(self.store.index.values())

    # -- epochs -----------------------------------------------------------------------------------------------------------

    def begin(self) -> None:
        self._begun = {entry.msg_id: int(entry.ref_count) for entry in self.live()}
        self.flush = self.store.begin_flush()

    def write(self) -> None:
        """Raises OSError."""
        if self.flush is not None:
            self.flush.run()
        self.may_be_durable = self._begun

    def settle(self, ok: bool = True) -> None:
        if self.flush is not None:
            self.store.flush_settled(self.flush, ok)
            self.flush = None
        if ok:
            self.durable = self._begun
            self.may_be_durable = None
            self.store.settled()

    def epoch(self) -> bool:
        self.begin()
        try:
            self.write()
        except OSError:
            self.settle(False)
            return False
        self.settle()
        return True

    # -- restarts ---------------------------------------------------------------------------------------------------------

    def recover(self, disk: MemoryDisk, refs: dict[bytes, int], lost: tuple[bytes, ...] = ()) -> None:
        """Starts anew on what a crash has left, with indexes that refer to `refs`, all there, and `lost`, all damaged."""
        self.disk = disk
        self._open()
        self.recovery = self.store.recover_by_scan()
        for msg_id, count in refs.items():
            for _ in range(count):
                assert self.recovery.add_ref(msg_id) is not None, "an index refers to a message that is lost"
        for msg_id in lost:
            assert self.recovery.add_ref(msg_id) is None
        self.store.recovered(self.recovery)
        assert lost or not [line for line in self.log.lines if line[0] == "error"], (
            "a crash is taken for damage"
        )
        self.durable = dict(refs)
        self.may_be_durable = None
        self.check_all()

    def restart(self) -> None:
        """Stops cleanly and starts anew."""
        assert self.epoch()
        terms = self.store.save_terms()
        self._open()
        assert self.store.load_terms(terms)
        self.check_all()

    def check_all(self) -> None:
        """Reads every message."""
        self.store.check()
        assert {entry.msg_id: entry.ref_count for entry in self.live()} == self.durable
        for entry in self.live():
            self.read(entry)

    # -- files ------------------------------------------------------------------------------------------------------------

    def files(self) -> list[str]:
        return [name for name in self.disk.list_dir(FOLDER) if name != "damaged"]

    def flip(self, name: str, offset: int) -> None:
        """Damages a byte, whatever it is."""
        file = self.disk.open(f"{FOLDER}/{name}")
        (byte,) = file.read_at(offset, 1)
        file.close()
        self.overwrite(name, offset, bytes([byte ^ 0xFF]))

    def overwrite(self, name: str, offset: int, data: bytes) -> None:
        """Damages a file, safely."""
        file = self.disk.open(f"{FOLDER}/{name}")
        file.write_at(offset, data)
        file.sync()
        file.close()
