"""A message store after a crash: what a scan has found is applied. Thrown away when the start is over.

    read     scans the files, and has them synced: what a killed broker had written and not synced is relied on now
    add_ref  for each reference that the recovered indexes have
    finish   mends the files, and removes what no index refers to

What must stay true: nothing is changed before the scan is whole, so a start that is cut short begins again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mypy_extensions import i64

from rabbitpy_broker.message import StoreEntry
from rabbitpy_broker.storage.files import Disk, DiskFile
from rabbitpy_broker.storage.store_file import (
    DAMAGED_FOLDER,
    RECORD_HEAD,
    WINDOW_BYTES,
    close_quietly,
    file_header,
    file_path,
)
from rabbitpy_broker.storage.store_folder import StoreFolder
from rabbitpy_broker.storage.store_scan import ScannedFile, StoreScan


class StoreRecovery:
    """Of one message store; `index` is the store's own, and empty."""

    def __init__(self, folder: StoreFolder, index: dict[bytes, StoreEntry], log: Any) -> None:
        self.folder = folder
        self.scan = StoreScan(folder.disk, folder.path, index)
        self._index = index
        self._log = log

    def read(self, progress: Callable[[int], None] | None) -> None:
        """Raises OSError and StartError."""
        folder = self.folder
        self.scan.read(progress)
        for num, found in self.scan.files.items():
            folder.files[num] = found.file
            folder.next_file_num = max(folder.next_file_num, num + 1)
        for path in self.scan.leftovers:
            folder.disk.remove(path)
        folder.disk.sync_names([found.path for found in self.scan.files.values()], [folder.path])

    def add_ref(self, msg_id: bytes) -> StoreEntry | None:
        """A recovered index refers to this message; None when it is not there."""
        return self.scan.add_ref(msg_id)

    def finish(self) -> int:
        """After all `add_ref`: forgets what no index refers to. Returns how many messages those were. Raises OSError.

        Ensures: every file is sound and has a message that is referred to; of a damaged one a copy is kept aside.
        Assumes: nothing was written to the store since `read`.
        """
        folder = self.folder
        for found in self.scan.files.values():
            if not found.is_sound():
                self._mend(found)
        dropped = self.scan.garbage()
        for entry in dropped:
            del self._index[entry.msg_id]
            folder.files[entry.file_num].valid_bytes -= RECORD_HEAD + entry.size
        for file in list(folder.files.values()):
            if file.valid_bytes == 0:
                del folder.files[file.file_num]
                folder.disk.remove(folder.path_of(file.file_num))
        return len(dropped)

    def _mend(self, found: ScannedFile) -> None:
        missed = self.scan.missed
        opened = self.folder.disk.open(found.path)
        try:
            if missed:
                self._keep_aside(found, opened)
            for place in found.places():
                at, size = int(place.offset), int(place.size)
                if missed:
                    self._log.error("message store damaged", file=found.path, offset=at, bytes=size)
                else:
                    self._log.warning("message store: torn records cut", file=found.path, offset=at, bytes=size)
            for msg_id in found.damaged:
                if msg_id in missed:
                    self._log.error("message damaged", file=found.path, msg_id=msg_id.hex())
            if found.is_header_damaged:
                opened.write_at(0, file_header(found.file, self.folder.transient))
            if found.is_cut_off():
                opened.truncate(found.file.total_bytes)
            opened.sync()
        finally:
            close_quietly(opened)

    def _keep_aside(self, found: ScannedFile, opened: DiskFile) -> None:
        disk = self.folder.disk
        folder = f"{self.folder.path}/{DAMAGED_FOLDER}"
        disk.make_dir(folder)
        copy = file_path(folder, found.file.file_num)
        if not disk.exists(copy) or disk.size(copy) != found.size:
            _copy_file(disk, opened, found.size, copy)


def _copy_file(disk: Disk, source: DiskFile, size: i64, path: str) -> None:
    copy = disk.open(path, create=True)
    try:
        at: i64 = 0
        while at < size:
            copy.write_at(at, source.read_at(at, min(WINDOW_BYTES, size - at)))
            at += WINDOW_BYTES
    finally:
        close_quietly(copy)
