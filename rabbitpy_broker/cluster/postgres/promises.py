"""Settings of a PostgreSQL server with which an append that returned could be lost: an engine refuses to start with them.

Durable on a quorum means: on the disk of the primary and of so many standbys that together they are a majority of all servers.
Who promotes a standby then needs a majority of the servers to find one that has everything.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final, NamedTuple

SETTINGS: Final = ("fsync", "full_page_writes", "synchronous_commit", "synchronous_standby_names")
OLDEST: Final = 130000  # PostgreSQL 13
STANDBYS: Final = re.compile(
    r"""\s*(?:(?:(?:ANY|FIRST)\s+)?(?P<count>\d+)\s*\((?P<counted>.*)\)|(?P<listed>.*))\s*""", re.IGNORECASE | re.DOTALL
)
NAME: Final = re.compile(r'"(?:[^"]|"")*"|[^\s,]+')


class Standbys(NamedTuple):
    """How many standbys must confirm, and the names of those that may; `*` is any."""

    needed: int
    names: list[str]


def standbys(setting: str) -> Standbys:
    """What `synchronous_standby_names` says: `ANY 1 (a, b)`, `FIRST 1 (a, b)`, `1 (a, b)` or `a, b`."""
    found = STANDBYS.fullmatch(setting)
    assert found is not None
    names = NAME.findall(found["counted"] if found["count"] else found["listed"])
    return Standbys(int(found["count"] or 1) if names else 0, names)


def broken_promise(version: int, settings: Mapping[str, str]) -> str | None:
    """One line that says which setting is wrong and what it should be, or None."""
    if version < OLDEST:
        return f"the server's version is {version // 10000}: use PostgreSQL 13 or newer"
    for name in ("fsync", "full_page_writes"):
        if settings[name] != "on":
            return f"{name} is {settings[name]} on the server, a crash would lose what was confirmed: set {name} = on"
    if settings["synchronous_commit"] not in ("on", "remote_apply"):
        return (
            f"synchronous_commit is {settings['synchronous_commit']}, which confirms before a standby has synced: "
            "take it out of the URL, or set it to on"
        )
    setting = settings["synchronous_standby_names"]
    needed, names = standbys(setting)
    if needed == 0:
        return "synchronous_standby_names is empty on the server, so that only the primary has what was confirmed: " + ADVICE
    if "*" in names:
        return f"synchronous_standby_names is {setting!r}, which counts any server that connects: " + ADVICE
    if len(names) < 2:
        return f"synchronous_standby_names is {setting!r}, which names fewer than two standbys: " + ADVICE
    if 2 * (needed + 1) <= len(names) + 1:
        return (
            f"synchronous_standby_names is {setting!r}, with which less than a majority of the {len(names) + 1} servers has "
            f"what was confirmed: set it to 'ANY {(len(names) + 1) // 2} ({', '.join(names)})'"
        )
    return None


ADVICE: Final = "set it to 'ANY 1 (one, other)', with the application_name of two standbys"
