"""What two brokers' answers to the same requests must have in common (`scenario.py` has the requests).

This broker may say more than RabbitMQ, and says all of a thing from its first moment, where RabbitMQ waits for its statistics:
so RabbitMQ's keys must be among ours, with values of the same types, and null stands for any.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

CLIENTS_LOOK_AT = ("status", "error", "www-authenticate", "access-control-allow-origin", "content-type")


NOT_COMPARED = {
    ".backing_queue_status.delta[]": "a place in the file, or nothing for a queue with priorities",
    ".listeners[].socket_opts": "of RabbitMQ's sockets",
}


def differences(theirs: dict[str, Any], ours: dict[str, Any]) -> list[str]:
    """In words; none when the answers are alike."""
    if theirs["status"] == 500:  # RabbitMQ's fault, and not to be ours
        return [f"status: {ours['status']}"] if ours["status"] >= 500 else []
    found = [f"{key}: {theirs.get(key)!r}, ours {ours.get(key)!r}" for key in CLIENTS_LOOK_AT if theirs.get(key) != ours.get(key)]
    if "location" in theirs and theirs["location"].partition("~")[0] != ours.get("location", "").partition("~")[0]:
        found.append(f"location: {theirs['location']}, ours {ours.get('location')}")
    if not found and theirs["status"] < 400:
        found += shapes("", theirs.get("body"), ours.get("body"))
    return found


def shapes(path: str, theirs: Any, ours: Any) -> Iterator[str]:
    """Where the shape of a body has not what RabbitMQ's has."""
    if path in NOT_COMPARED or theirs == ours or "null" in (theirs, ours) or (theirs in ([], {}) and ours in ([], {})):
        return
    if isinstance(theirs, dict) and isinstance(ours, dict):
        for key, inner in theirs.items():
            name = key.rstrip("?")
            mine = ours.get(name, ours.get(name + "?"))
            if mine is not None:
                yield from shapes(f"{path}.{name}", inner, mine)
            elif key == name:
                yield f"{path}.{name} is missing"
    elif isinstance(theirs, list) and isinstance(ours, list):
        if theirs and ours:
            yield from shapes(f"{path}[]", theirs[0], ours[0])
        elif theirs:
            yield f"{path} is an empty list"
    elif not (isinstance(theirs, str) and isinstance(ours, str) and set(ours.split("|")) <= set(theirs.split("|"))):
        yield f"{path}: {theirs}, ours {ours}"
