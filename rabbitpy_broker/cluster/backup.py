"""Backup and restore of a vhost: one file, which has what a checkpoint has (`storage/snapshot.py`).

    back_up        a snapshot of this node's replica, at the end that the log had when it was asked for or behind it
    read_backup    looks at all of a file, and finds out whether it is whole
    unpack         makes the directory of another vhost, which is not replicated, of what the file has
    restore        makes another vhost: its log begins with a fence, and its first checkpoint is what the file has

A restored vhost has a name, an incarnation and a log of its own. Its log is at position 1 of a term above the backup's: so all
numbers of blocks in the journal, which are marks in the log of old (`content.mark`), are below where it begins.

What must stay true: a file of the name is there whole and synced, or as it was before; nothing is made before the whole file
was checked, and the vhost has replicas when everything else is there (making.py).
"""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import tarfile
import time
import zlib
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO, Final, NamedTuple

import msgspec

from rabbitpy_broker.cluster import blocks
from rabbitpy_broker.cluster.checkpoints import Checkpoints, Snapshot
from rabbitpy_broker.cluster.content import mark, unmarked
from rabbitpy_broker.cluster.engine import Engine
from rabbitpy_broker.cluster.log import Refused, ReplicatedLog
from rabbitpy_broker.cluster.log_upkeep import LogUpkeep
from rabbitpy_broker.cluster.member import BECOMING, FORMERLY, Member, Replica
from rabbitpy_broker.cluster.membership import VHostRecord
from rabbitpy_broker.cluster.ownership import Owner, OwnerRecord
from rabbitpy_broker.definitions import Rows, renamed_rows
from rabbitpy_broker.errors import BrokerError
from rabbitpy_broker.storage.files import Disk
from rabbitpy_broker.storage.log_note import NOTE, LogNote, packed_note, unpacked_note
from rabbitpy_broker.storage.restoring import SnapshotError, Unpacking, checked_folder, read_manifest, switch
from rabbitpy_broker.storage.snapshot import DEFINITIONS, MANIFEST, PIECE, Manifest, header, member, padding

PATIENCE_S: Final = 30.0  # for a replica that does not come nearer to the log's end
LOOK_S: Final = 0.05
END: Final = bytes(2 * tarfile.BLOCKSIZE)  # of a tar archive


# -- backup -----------------------------------------------------------------------------------------------------------


class Written(NamedTuple):
    """A backup that was written: where it is in the log, and its size in bytes."""

    position: int
    size: int


async def back_up(engine: Engine, node: str, replica: Replica, path: str) -> Written:
    """Writes what the replica has to the file `path`, which is replaced when all of it is there.

    Ensures: what was confirmed before this was called is in it, and what was acked in a commit that was told is not.

    Raises BrokerError, OSError.
    """
    log = engine.log(replica.record.log_name(replica.name))
    upkeep = await _level_upkeep(replica, await marked_end(log, node))
    async with upkeep.snapshot() as snapshot:
        return Written(snapshot.position, await write_file(path, snapshot.parts()))


async def marked_end(log: ReplicatedLog, node: str) -> int:
    """Behind every entry that any append has returned. An append of the lowest term says so for sure, on each engine: it is
    refused, or counts for nobody; and a fence is no content where it counts. Raises `Unavailable`, `OutcomeUnknown`, `NoSuchLog`.
    """
    try:
        return await log.append(blocks.fence(node), term=0) + 1
    except Refused as refused:
        return refused.end


async def _level_upkeep(replica: Replica, end: int) -> LogUpkeep:
    """Of the replica, when that has everything before `end`. Raises BrokerError, OSError."""
    position, since = -1, time.monotonic()
    while True:
        upkeep = replica.upkeep
        if upkeep is not None and await upkeep.has_all(end):
            return upkeep
        if replica.position > position:
            position, since = replica.position, time.monotonic()
        if replica.task is None or replica.task.done():
            raise BrokerError(f"this node does not follow vhost '{replica.name}'")
        if time.monotonic() - since > PATIENCE_S:
            raise BrokerError(f"this node is at position {position} of the log, which ends at {end}, and comes no nearer")
        await asyncio.sleep(LOOK_S)


async def write_file(path: str, parts: AsyncIterator[bytes]) -> int:
    """Writes a file beside, and renames it when it is whole and synced. Returns its size. Raises OSError, BrokerError.

    One backup at a time is written to a file, by whichever process: who writes holds a lock on what is beside it.
    """
    part = f"{path}.part"
    file = await asyncio.to_thread(_created, path, part)
    size = 0
    try:
        async for piece in parts:
            await asyncio.to_thread(file.write, piece)
            size += len(piece)
        await asyncio.to_thread(_finish, file, part, path)
    except BaseException:
        await asyncio.shield(asyncio.to_thread(_give_up, file, part))
        raise
    return size


def _created(path: str, part: str) -> BinaryIO:
    """What nobody else has, locked."""
    if Path(path).is_dir():
        raise IsADirectoryError(f"{path} is a folder")
    while True:
        _remove_left(path, part)
        try:
            file = os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb")
        except FileExistsError:
            continue
        if _is_locked(file.fileno()) and _is_named(file.fileno(), part):
            return file
        file.close()  # another one has taken it for what a kill has left


def _remove_left(path: str, part: str) -> None:
    """What a kill has left. Raises BrokerError when it is being written."""
    try:
        left = os.open(part, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    try:
        if not _is_locked(left):
            raise BrokerError(f"another backup is being written to {path}")
        if _is_named(left, part):
            Path(part).unlink()
    finally:
        os.close(left)


def _is_locked(file: int) -> bool:
    """Locks it, unless another one has."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _is_named(file: int, path: str) -> bool:
    """Whether it is the one of this name."""
    try:
        return os.path.samestat(os.fstat(file), Path(path).lstat())
    except FileNotFoundError:
        return False


def _give_up(file: BinaryIO, part: str) -> None:
    if _is_named(file.fileno(), part):
        Path(part).unlink()
    with suppress(OSError):  # of a disk that is full
        file.close()


def _finish(file: BinaryIO, part: str, path: str) -> None:
    file.flush()
    os.fsync(file.fileno())
    Path(part).replace(path)
    folder = os.open(Path(path).parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
    file.close()


# -- what a file has --------------------------------------------------------------------------------------------------


class StoredFile(NamedTuple):
    """A file of the vhost's directory: `size` bytes of the backup from `at` on."""

    name: str
    at: int
    size: int


class Backup:
    """A file that was looked at as a whole; made by `read_backup`."""

    def __init__(self, path: str, manifest: Manifest, rows: Rows, next_seq_ids: dict[int, int], files: list[StoredFile]) -> None:
        self.path = path
        self.number = manifest.number
        self.term = unmarked(manifest.number)[0]
        self._manifest = manifest
        self._rows = rows
        self._next_seq_ids = next_seq_ids
        self._files = files

    def metadata(self) -> dict[str, Any]:
        """Of the vhost that was backed up, a JSON object."""
        (row,) = self._rows["vhosts"]
        metadata: dict[str, Any] = json.loads(row[1])
        return {key: value for key, value in metadata.items() if key not in (BECOMING, FORMERLY)}

    def rows(self, vhost: str, metadata: str) -> Rows:
        """The definitions, of another vhost."""
        return renamed_rows(self._rows, vhost, metadata)

    def parts(self, number: int, vhost: str, metadata: str) -> Iterator[bytes]:
        """The snapshot of another vhost, whose log is at `number`. Blocks. Raises OSError, SnapshotError."""
        definitions = msgspec.msgpack.encode(self.rows(vhost, metadata))
        note = packed_note(LogNote(number, self._next_seq_ids))
        told = dict(self._manifest.files)
        gathered = bytearray()
        for name, content in ((DEFINITIONS, definitions), (NOTE, note)):
            told[name] = (len(content), zlib.crc32(content))
            gathered += member(name, content)
        with Path(self.path).open("rb") as source:
            for file in self._files:
                gathered += header(file.name, file.size)
                source.seek(file.at)
                crc = 0
                for piece in _pieces(source, file.size):
                    crc = zlib.crc32(piece, crc)
                    gathered += piece
                    if len(gathered) >= PIECE:
                        yield bytes(gathered)
                        gathered.clear()
                if crc != told[file.name][1]:
                    raise SnapshotError(f"{self.path} was changed while it was read")
                gathered += padding(file.size)
        gathered += member(MANIFEST, msgspec.json.encode(Manifest(number, told)))
        yield bytes(gathered) + END


def read_backup(path: str) -> Backup:
    """Looks at all of the file. Blocks. Raises OSError; SnapshotError with one line for what is no whole backup."""
    with Path(path).open("rb") as source:
        try:
            return _read(path, source)
        except SnapshotError as error:
            raise SnapshotError(f"{path}: {error}") from None


def _read(path: str, source: BinaryIO) -> Backup:
    files: list[StoredFile] = []
    found: dict[str, tuple[int, int]] = {}
    kept = {DEFINITIONS: b"", NOTE: b"", MANIFEST: b""}
    name = ""
    while name != MANIFEST:
        name, size = _next_member(source)
        if name != MANIFEST:
            checked_folder(name)
        at, crc = source.tell(), 0
        for piece in _pieces(source, size):
            crc = zlib.crc32(piece, crc)
            if name in kept:
                kept[name] += piece
        if len(source.read(len(padding(size)))) < len(padding(size)):
            raise SnapshotError("the file ends too early")
        if name not in kept:
            files.append(StoredFile(name, at, size))
        if name != MANIFEST:
            found[name] = (size, crc)
    manifest = read_manifest(kept[MANIFEST])
    if source.read(len(END) + 1) != END:
        raise SnapshotError("the file does not end where it should")
    note = unpacked_note(kept[NOTE])
    if manifest.files != found or manifest.number != note.number:
        raise SnapshotError("what is in the file is not what its manifest says")
    try:
        rows = msgspec.msgpack.decode(kept[DEFINITIONS], type=Rows)
    except msgspec.DecodeError:
        raise SnapshotError("the file has no definitions") from None
    if len(rows.get("vhosts", [])) != 1:
        raise SnapshotError("the file has the definitions of no vhost")
    return Backup(path, manifest, rows, note.next_seq_ids, files)


def _next_member(source: BinaryIO) -> tuple[str, int]:
    """Name and size of the file that comes next."""
    data = source.read(tarfile.BLOCKSIZE)
    if len(data) < tarfile.BLOCKSIZE:
        raise SnapshotError("the file ends before its manifest")
    try:
        info = tarfile.TarInfo.frombuf(data, "utf-8", "strict")
    except (tarfile.HeaderError, ValueError) as error:
        raise SnapshotError(f"no backup of a vhost: {error}") from None
    return info.name, info.size


def _pieces(source: BinaryIO, size: int) -> Iterator[bytes]:
    left = size
    while left:
        piece = source.read(min(PIECE, left))
        if not piece:
            raise SnapshotError("the file ends too early")
        left -= len(piece)
        yield piece


def unpack(disk: Disk, path: str, backup: Backup) -> None:
    """Makes the directory at `path` what the backup has, for a vhost of one node. Blocks. Raises OSError, SnapshotError."""
    disk.remove_tree(path)
    unpacking = Unpacking(disk, path)
    try:
        unpacking.begin()
        for part in backup.parts(backup.number, "", "{}"):  # its definitions are put in their place by the caller
            unpacking.feed(part)
        unpacking.finish()
    finally:
        unpacking.give_up()
    switch(disk, path)
    disk.remove(f"{path}/{NOTE}")
    disk.sync_dir(path)


# -- restore ----------------------------------------------------------------------------------------------------------


class RestoredSnapshot(Snapshot):
    """A backup as the first checkpoint of a new vhost."""

    def __init__(self, backup: Backup, position: int, term: int, vhost: str, metadata: str) -> None:
        self.position = position
        self.term = term
        self._parts = backup.parts(mark(term, position), vhost, metadata)

    async def parts(self) -> AsyncIterator[bytes]:
        while part := await asyncio.to_thread(next, self._parts, b""):
            yield part


async def restore(cluster_member: Member, vhost: str, backup: Backup, record: VHostRecord) -> None:
    """Makes the vhost of this record, which is new, with what the backup has; nodes of the record open it then.

    Raises as `Member.make`, OSError, SnapshotError.
    """
    engine, node, term = cluster_member.engine, cluster_member.node, backup.term + 1

    async def prepare() -> None:
        position = await engine.log(record.log_name(vhost)).append(blocks.fence(node), term=term, expected=0) + 1
        snapshot = RestoredSnapshot(backup, position, term, vhost, record.metadata)
        await Checkpoints(engine.objects, record.incarnation).save(snapshot, node)
        await OwnerRecord(engine.registry, record.incarnation).name_first(Owner("", term))

    await cluster_member.make(vhost, record, prepare)
