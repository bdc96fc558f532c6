"""Backups of the vhosts that are on this node alone: written from an open vhost, and made into one that there is not.

What must stay true: a vhost is in `under_way` while files of its directory are read for a backup, and in `restoring` until it is
open.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from typing import Final

from rabbitpy_broker.cluster.backup import Backup, Written, unpack, write_file
from rabbitpy_broker.cluster.directory import take_snapshot
from rabbitpy_broker.cluster.owner_log import AwaitedEpoch
from rabbitpy_broker.errors import BrokerError
from rabbitpy_broker.hosted_vhosts import VHostBroker
from rabbitpy_broker.management.admin import REPLICATED
from rabbitpy_broker.management.managed import PlainBackups
from rabbitpy_broker.storage.log_note import NOTE

ACKS_S: Final = 5.0  # what was acked before is waited for, no longer


class BrokerBackups(PlainBackups):
    """Those of this broker's vhosts."""

    def __init__(self, broker: VHostBroker) -> None:
        super().__init__()
        self._broker = broker
        self._one = asyncio.Lock()  # holds the threads of all vhosts

    async def back_up(self, name: str, path: str) -> Written:
        self.under_way.append(name)
        try:
            async with self._one:
                return await self._write(name, path)
        finally:
            self.under_way.remove(name)

    async def _write(self, name: str, path: str) -> Written:
        broker = self._broker
        if name not in broker.node.vhosts:
            raise BrokerError(f"vhost '{name}' was deleted")
        vhost = broker.node.vhosts[name]
        store = vhost.store
        acked = AwaitedEpoch()
        if store.journal.wait_for_acks(acked):  # what was purged a moment ago comes back in no copy
            with contextlib.suppress(TimeoutError):  # of a vhost that is deleted meanwhile, or whose disk does not answer
                await asyncio.wait_for(acked.there, ACKS_S)

        def number() -> int:
            return int(store.journal.files.number)

        snapshot = await take_snapshot(
            store, broker.threads, number, vhost.next_seq_ids, lambda: broker.definitions.rows_of(name)
        )
        try:
            await asyncio.to_thread(store.disk.remove, f"{store.path}/{NOTE}")  # it is for followers
            return Written(0, await write_file(path, snapshot.parts()))
        finally:
            await snapshot.remove()

    async def restore(self, name: str, backup: Backup) -> None:
        broker = self._broker
        if name in broker.deleting or name in self.restoring:
            raise BrokerError(f"vhost '{name}' is being deleted or restored")
        self.restoring.add(name)
        path = broker.vhost_path(name)
        metadata = {key: value for key, value in backup.metadata().items() if key not in REPLICATED}
        try:
            await asyncio.to_thread(unpack, broker.make_disk(), path, backup)
            broker.definitions.replace_rows(name, backup.rows(name, json.dumps(metadata)))
            broker.load_vhost(name)
            broker.commit()
        except (BrokerError, OSError):
            if name not in broker.node.vhosts:
                broker.definitions.delete_vhost(name)
                broker.abandon_starting()
                await broker.remove_folder(path)
            raise
        finally:
            self.restoring.discard(name)
