"""Requests that the gateway of a daemon with several workers passes on to one of them, or a node of a cluster to another, and
what is said there of who asks.

    X-Rabbitpy-Forwarded: {"peer": "10.0.0.7", "is_encrypted": true, "session": {...}}

The gateway keeps the sessions of browsers: one begins with one worker, whose answer tells the gateway all of it, and every other
worker is told of it with each request. A node has let the user in, and says its name.

What must stay true: this is believed only of what came over a worker's sockets, which its daemon alone can reach, or over a link,
whose other end has shown that it is a node; a session that a worker is told of is there only while its user's password and tags
are those that it began with.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from typing import Final

import msgspec

from rabbitpy_broker.management.api.auth import login
from rabbitpy_broker.management.api.errors import ApiError, bad_request
from rabbitpy_broker.management.api.sessions import Session, ToldSession
from rabbitpy_broker.management.api.state import Api
from rabbitpy_broker.users import User

FORWARDED: Final = "X-Rabbitpy-Forwarded"
BEGUN: Final = "X-Rabbitpy-Session"  # of the answer to a log-in


class Told(msgspec.Struct, frozen=True):
    """What is said of a request; `is_for_all` when one answer is made of those of all. `user` has logged in at another node; "":
    it is to log in here. `vhost` is the one that the request is about; None: nobody takes this node for its owner.
    """

    peer: str
    is_encrypted: bool
    is_for_all: bool = False
    session: ToldSession | None = None
    user: str = ""
    vhost: str | None = None


_decode: Final = msgspec.json.Decoder(Told).decode


def told_of(session: Session) -> str:
    """What the gateway is told of a session that has just begun."""
    user = session.user
    told = ToldSession(session.id, session.csrf, user.name, session.password_hash, session.tags, user.is_ours)
    return header_value(told)


def header_value(told: msgspec.Struct) -> str:
    """JSON of letters that a header may have."""
    return json.dumps(msgspec.to_builtins(told))


def forwarded(headers: Mapping[str, str]) -> Told | None:
    """What is said of a request by whoever is believed; None when it was not passed on. Raises ApiError 400."""
    given = headers.get(FORWARDED.lower())
    if given is None:
        return None
    try:
        return _decode(given)
    except msgspec.MsgspecError:
        raise bad_request("what is said of who asks cannot be read") from None


async def adopt(api: Api, told: Told) -> None:
    """Has the session that the request belongs to be known here; one that is over is not."""
    begun = told.session
    if begun is None or api.sessions.knows(begun.id):
        return
    if begun.is_ours:
        user = api.admin.users.get(begun.name)
    else:
        user = await _logged_in(api, begun.given, told.peer)
    if user is not None and (user.password_hash, user.tags) == (begun.password_hash, begun.tags):
        tags, hashed = begun.tags, begun.password_hash
        api.sessions.adopt(Session(begun.id, begun.csrf, user, hashed, tags, time.monotonic()))


async def _logged_in(api: Api, given: tuple[str, str] | None, peer: str) -> User | None:
    try:
        return None if given is None else await login(api, *given, peer)
    except ApiError:
        return None
