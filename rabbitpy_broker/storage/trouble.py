"""The trouble with the disk of one store: told once when it begins, and once when it is over.

What must stay true: the host has been told the reason while there is one, and "" since there is none.
"""

from __future__ import annotations

from typing import Any

from rabbitpy_broker.storage.sync import StoreHost


class Trouble:
    """`epoch`, `scatter` and `streams` (their scatter): why the last one failed, "" when it did not.

    `log` is a structlog logger. `is_over`: what fails from now on is not the disk's fault, since the vhost is another node's.
    """

    def __init__(self, folder: str, host: StoreHost | None, log: Any) -> None:
        self.epoch = ""
        self.scatter = ""
        self.streams = ""
        self.is_over = False
        self.host = host
        self._folder = folder
        self.log = log

    def epoch_failed(self, reason: str) -> None:
        """Or, with "", has not."""
        before = self.epoch or self.scatter or self.streams
        self.epoch = reason
        self._tell(before)

    def scatter_failed(self, reason: str) -> None:
        """Or, with "", has not."""
        before = self.epoch or self.scatter or self.streams
        self.scatter = reason
        self._tell(before)

    def streams_failed(self, reason: str) -> None:
        """Or, with "", has not."""
        before = self.epoch or self.scatter or self.streams
        self.streams = reason
        self._tell(before)

    def _tell(self, before: str) -> None:
        now = self.epoch or self.scatter or self.streams
        if bool(now) == bool(before) or self.is_over:
            return
        if now:
            self.log.error("disk failed", folder=self._folder, error=now)
        else:
            self.log.warning("disk works again", folder=self._folder)
        if self.host is not None:
            self.host.disk_trouble(now)
