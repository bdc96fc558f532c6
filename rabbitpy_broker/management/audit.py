"""The audit: who changed what through the management API or rabbitpy-ctl, the last of it in memory, all of it in the log.

What must stay true: nothing in it is secret. No password, hash or message gets here: what a body may add to an entry is listed
by name (`api/audit.py`), the rest is left out.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final

TEXT_MAX: Final = 1_000  # letters of a text in the details, and of a path
PARTS_MAX: Final = 50  # of a list or an object in them


@dataclass(frozen=True)
class Entry:
    """One change. `via` is how it came: "basic" and "session" over HTTP, "ctl" from rabbitpy-ctl. `at` is in ms since 1970."""

    id: int
    at: int
    user: str
    peer: str
    via: str
    method: str
    path: str
    status: int
    details: dict[str, Any]


class Audit:
    """Of one broker; keeps the last `size` entries."""

    def __init__(self, size: int, log: Any) -> None:
        self.total = 0  # entries since the start
        self._entries: deque[Entry] = deque(maxlen=size)
        self._log = log

    def note(
        self, user: str, peer: str, via: str, method: str, path: str, status: int = 0, details: dict[str, Any] | None = None
    ) -> None:
        """Something was changed. `details` are cut where they are long."""
        shown = {key: _short(value) for key, value in (details or {}).items()}
        self.total += 1
        entry = Entry(self.total, int(time.time() * 1000), user, peer, via, method, path[:TEXT_MAX], status, shown)
        self._entries.append(entry)
        self._log.info(
            "audit", user=user, peer=peer, via=via, method=method, path=entry.path, status=status, details=shown
        )

    def entries(self, before: int | None = None) -> Iterator[Entry]:
        """The newest first; those older than the one of this id."""
        for entry in reversed(self._entries):
            if before is None or entry.id < before:
                yield entry


def _short(value: Any, depth: int = 4) -> Any:
    if isinstance(value, str):
        return value if len(value) <= TEXT_MAX else f"{value[:TEXT_MAX]}..."
    if isinstance(value, dict | list) and not depth:
        return "..."
    if isinstance(value, dict):
        return {str(key)[:TEXT_MAX]: _short(inner, depth - 1) for key, inner in islice(value.items(), PARTS_MAX)}
    if isinstance(value, list):
        return [_short(inner, depth - 1) for inner in value[:PARTS_MAX]]
    return value
