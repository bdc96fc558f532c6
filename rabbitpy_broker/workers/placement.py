"""Which worker has which vhost: by a hash of its name, or where the fewest are, or where an operator has put it.

What was decided otherwise than by the hash is kept in the data directory, so that a start finds each vhost where it was. With
fewer workers than before, the vhosts of those that are not there any more are placed anew.

What must stay true: a vhost is with one worker, and the file says so before that worker opens it.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

from rabbitpy_broker.errors import StartError

FILE_NAME: Final = "placement.json"


def by_name(vhost: str, workers: int) -> int:
    """The worker that a vhost has by its name; the same on each machine and at each start."""
    return int.from_bytes(hashlib.blake2b(vhost.encode(), digest_size=8).digest()) % workers


class Placement:
    """The table. `by_load`: a new vhost goes where the fewest are. Workers are numbered from 0. Raises StartError."""

    def __init__(self, folder: Path, workers: int, *, by_load: bool) -> None:
        self._file = folder / FILE_NAME
        self._workers = workers
        self._by_load = by_load
        self._kept = {vhost: number for vhost, number in self._read().items() if number < workers}
        self._placed: dict[str, int] = {}

    def _read(self) -> dict[str, int]:
        try:
            kept = json.loads(self._file.read_text())
        except FileNotFoundError:
            return {}
        except (OSError, ValueError) as error:
            raise StartError(f"cannot read {self._file}: {error}") from None
        if not isinstance(kept, dict) or not all(type(number) is int and number >= 0 for number in kept.values()):
            raise StartError(f"{self._file} is damaged; without it vhosts are placed by their names")
        return kept

    def load(self, vhosts: Iterable[str]) -> None:
        """Places those that there are."""
        for vhost in vhosts:
            self.place(vhost)

    def table(self) -> Mapping[str, int]:
        return self._placed

    def of_worker(self, number: int) -> list[str]:
        return sorted(vhost for vhost, owner in self._placed.items() if owner == number)

    def place(self, vhost: str) -> int:
        """The worker of a vhost; one is chosen for a new one."""
        number = self._placed.get(vhost)
        if number is None:
            number = self._kept.get(vhost)
            if number is None:
                number = self._choose(vhost)
            self.put(vhost, number)
        return number

    def _choose(self, vhost: str) -> int:
        if not self._by_load:
            return by_name(vhost, self._workers)
        count = Counter(self._placed.values())
        return min(range(self._workers), key=lambda number: (count[number], number))

    def put(self, vhost: str, number: int) -> None:
        """This worker has it from now on. Raises OSError, and then nothing has changed."""
        kept = {**self._kept, vhost: number}
        if not self._by_load and number == by_name(vhost, self._workers):
            del kept[vhost]
        self._keep(kept)
        self._placed[vhost] = number

    def forget(self, vhost: str) -> None:
        self._placed.pop(vhost, None)
        self._keep({kept: number for kept, number in self._kept.items() if kept != vhost})

    def _keep(self, kept: dict[str, int]) -> None:
        """Raises OSError, and then nothing has changed on the disk."""
        if kept == self._kept:
            return
        made = self._file.with_suffix(".new")
        with made.open("w") as file:
            json.dump(kept, file)
            file.flush()
            os.fsync(file.fileno())
        made.replace(self._file)
        self._kept = kept
        folder = os.open(self._file.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
