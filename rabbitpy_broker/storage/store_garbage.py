"""The garbage of a message store: which bytes in its files nobody refers to, and when they are given back to the disk.

A file of pure garbage is removed, in a thread. When more than half of all bytes are garbage, two files that stand next to
each other are merged into one (compaction.py), and then go like all garbage.

What must stay true:
  - an index on disk never refers to a message that is not: so a file goes only when every removal of a message in it
    was part of an epoch that is settled. `StoreFile.unsettled_bytes` counts the others;
  - a file that is written to or compacted (`is_current`, `is_busy`) stays;
  - one compaction is under way at a time.
"""

from __future__ import annotations

from typing import Any

from mypy_extensions import i64

from rabbitpy_broker.message import StoreEntry
from rabbitpy_broker.storage.compaction import Compaction, CompactionHost, choose_pair
from rabbitpy_broker.storage.files import Disk
from rabbitpy_broker.storage.store_file import RECORD_HEAD, StoreFile
from rabbitpy_broker.storage.store_folder import StoreFolder
from rabbitpy_broker.storage.sync import Threads


class Removal:
    """Removes files of pure garbage, in a thread. The next start tries those again that cannot be removed."""

    def __init__(self, disk: Disk, log: Any) -> None:
        self._disk = disk
        self._log = log
        self.paths: list[str] = []

    def run(self) -> None:
        for path in self.paths:
            self._disk.remove(path)

    def done(self, error: Exception | None) -> None:
        if error is not None:
            self._log.warning("message store file not removed", error=str(error))


class StoreGarbage(CompactionHost):
    """Of one message store; `index` is the store's own. `compactions` counts those that ended well."""

    def __init__(
        self, folder: StoreFolder, threads: Threads, index: dict[bytes, StoreEntry], log: Any
    ) -> None:
        self.folder = folder
        self.compactions: i64 = 0
        self._threads = threads
        self._index = index
        self._log = log
        # removed since the last epoch began / in the epoch under way: file_num -> bytes
        self._removed: dict[int, int] = {}
        self._removed_in_epoch: dict[int, int] = {}
        self._removed_bytes: i64 = 0
        self.look_again_at: i64 = 0  # of _removed_bytes: looking for files to merge costs a walk over all files
        self._compaction: Compaction | None = None
        self._is_stopping = False

    def add(self, file: StoreFile, size: i64) -> None:
        """A message of `size` bytes in this file is garbage from now on; the caller has seen to `valid_bytes`."""
        size += RECORD_HEAD
        self._removed_bytes += size
        if not self.folder.transient:
            file.unsettled_bytes += size
            self._removed[file.file_num] = self._removed.get(file.file_num, 0) + size

    # -- epochs -----------------------------------------------------------------------------------------------------------

    def begin_epoch(self) -> None:
        """The removals of until now are part of the epoch that begins."""
        for file_num, size in self._removed.items():
            self._removed_in_epoch[file_num] = self._removed_in_epoch.get(file_num, 0) + size
        self._removed = {}

    def settled(self) -> None:
        """The epoch is on disk: messages that were removed before it began will not come back."""
        files: list[StoreFile] = []
        for file_num, size in self._removed_in_epoch.items():
            file = self.folder.files[file_num]
            file.unsettled_bytes -= size
            files.append(file)
        self._removed_in_epoch = {}
        self.remove_files(files)
        self.compact_if_due()

    # -- files ------------------------------------------------------------------------------------------------------------

    def files_closed(self, files: list[StoreFile]) -> None:
        """These were current and are not any more."""
        self.look_again_at = 0
        self.remove_files(files)

    def remove_files(self, files: list[StoreFile]) -> None:
        """Removes those files that nobody can ask for any more.

        Ensures: a file that goes has no message that an index in memory or on disk may refer to.
        Assumes: `valid_bytes` and `unsettled_bytes` are up to date.
        """
        removal: Removal | None = None
        for file in files:
            if file.valid_bytes > 0 or file.unsettled_bytes > 0 or file.is_busy or file.is_current:
                continue
            if self.folder.drop(file):
                if removal is None:
                    removal = Removal(self.folder.disk, self._log)
                removal.paths.append(self.folder.path_of(file.file_num))
        if removal is not None:
            self._threads.run(removal.run, removal.done)

    # -- compaction -------------------------------------------------------------------------------------------------------

    def compact_if_due(self) -> None:
        """Begins a compaction when there is none, more than half of all is garbage, and two files can be merged."""
        if self._compaction is not None or self._is_stopping or self._removed_bytes < self.look_again_at:
            return
        folder = self.folder
        self.look_again_at = self._removed_bytes + folder.file_size_limit_bytes // 8
        closed = [file for file in folder.files.values() if not file.is_current]
        pair = choose_pair(closed, folder.file_size_limit_bytes)
        if not pair:
            return
        target = folder.new_file()
        target.position = pair[0].position
        self._compaction = Compaction(folder, self._threads, self._index, pair, target, self, self._log)
        self._compaction.start()

    def compacted(self, compaction: Compaction) -> None:
        assert compaction is self._compaction, "kept by: compact_if_due"
        self._compaction = None
        self.remove_files([*compaction.sources, compaction.target])
        if compaction.ok:
            self.compactions += 1
            self.look_again_at = 0
            self.compact_if_due()

    def stop_compacting(self) -> None:
        """A compaction ends after the step that it is at, and none begins any more."""
        self._is_stopping = True
        if self._compaction is not None:
            self._compaction.cancel()

    def is_compacting(self) -> bool:
        """True while a thread works on a compaction."""
        return self._compaction is not None

    def unsettled(self) -> dict[int, int]:
        """Bytes that were removed and whose epoch is not settled, by file_num."""
        found = dict(self._removed)
        for file_num, size in self._removed_in_epoch.items():
            found[file_num] = found.get(file_num, 0) + size
        return found
