"""The damage that a store finds: told in the log, counted, and kept aside.

A file with damage is copied to `damaged/`, once, before anything writes to it again.
"""

from __future__ import annotations

import os
from typing import Any

from rabbitpy_broker.storage.files import Disk
from rabbitpy_broker.storage.finding import Finding
from rabbitpy_broker.storage.segment import Damage


class DamageLog:
    """Of the store in `folder`. `found` is all damage since the start; `log` is a structlog logger."""

    def __init__(self, disk: Disk, folder: str, log: Any) -> None:
        self.disk = disk
        self.folder = folder
        self.log = log
        self.found: list[Damage] = []

    def keep_aside(self, path: str, data: bytes) -> None:
        """Copies a damaged file, once, to where nobody writes. Raises OSError."""
        folder = f"{self.folder}/damaged"
        inside, name = os.path.split(path)
        copy = f"{folder}/{os.path.basename(inside)}-{name}"
        if self.disk.exists(copy):
            return
        self.disk.make_dir(folder)
        file = self.disk.open(copy, create=True)
        try:
            file.write_at(0, data)
        finally:
            file.close()

    def file_damaged(self, damage: list[Damage]) -> None:
        """Found by a start."""
        self.found.extend(damage)
        for one in damage:
            self.log.error("file damaged", path=one.path, offset=one.offset, size=one.size, reason=one.reason)

    def segment_damaged(self, queue_id: int, path: str, damage: list[Damage], lost: int) -> None:
        """Found when a segment was read; `lost` of its messages are not in the message store."""
        self.found.extend(damage)
        for one in damage:
            self.log.error(
                "segment damaged",
                path=one.path,
                offset=one.offset,
                size=one.size,
                reason=one.reason,
                queue_id=f"{queue_id:016x}",
            )
        if lost:
            self.log.error("messages lost", path=path, messages=lost, reason="not in the message store")

    def stream_damaged(self, findings: list[Finding]) -> None:
        """Found by a start in a stream's files; the files stay as they are."""
        for one in findings:
            self.found.append(Damage(one.path, int(one.offset), -1, one.text))
            self.log.error("stream damaged", path=one.path, offset=int(one.offset), reason=one.text)

    def message_lost(self, path: str, seq_id: int) -> None:
        """Found by a start: the message store does not have a message."""
        self.log.error("messages lost", path=path, messages=1, seq_id=seq_id, reason="not in the message store")

    def messages_lost(self, path: str, messages: int) -> None:
        """A segment had fewer than it should."""
        self.log.error("messages lost", path=path, messages=messages, reason="damaged segment")

    def message_unreadable(self, path: str, seq_id: int) -> None:
        """A message is dropped, because what the disk has of it is damaged."""
        self.log.error("messages lost", path=path, messages=1, reason="damaged", seq_id=seq_id)

    def message_damaged(self, path: str, error: str) -> None:
        """Found when a message was to be handed out."""
        self.log.error("message damaged", path=path, error=error)

    def queue_unreadable(self, path: str, error: str) -> None:
        """The disk does not give what it should have, now."""
        self.log.error("queue cannot be read", path=path, error=error)
