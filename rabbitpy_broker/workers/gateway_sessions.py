"""The sessions of browsers in a daemon with several workers: kept here, and told to each worker with each request.

A session begins with one worker, which looks at the password; what that worker tells of it is kept here, with the moment of its
last use. Whether password and tags are still the same is each worker's to see. What must stay true: one that has not been used
for `idle_s` is over everywhere, and there are never more than SESSIONS_MAX, of which the longest unused goes first.
"""

from __future__ import annotations

import time
from collections import OrderedDict

import msgspec

from rabbitpy_broker.management.api.sessions import SESSIONS_MAX, ToldSession

_decode = msgspec.json.Decoder(ToldSession).decode


class GatewaySessions:
    """Of one daemon."""

    def __init__(self, idle_s: float) -> None:
        self._idle_s = idle_s
        self._sessions: OrderedDict[str, tuple[ToldSession, float]] = OrderedDict()  # with when each was used last

    def begin(self, told: str, given: tuple[str, str]) -> None:
        """What a worker says of a session that has just begun, and the name and password that it began with. The latter are kept
        only where a worker could not know the user without them.
        """
        session = _decode(told)
        if not session.is_ours:
            session = msgspec.structs.replace(session, given=given)
        self._sessions[session.id] = session, time.monotonic()
        while len(self._sessions) > SESSIONS_MAX:
            self._sessions.popitem(last=False)

    def find(self, cookies: str) -> ToldSession | None:
        """The session that a request's cookies name, which is thereby used."""
        for id_ in _values(cookies):
            found = self._sessions.get(id_)
            if found is None:
                continue
            session, used = found
            now = time.monotonic()
            if now - used > self._idle_s:
                del self._sessions[id_]
                continue
            self._sessions[id_] = session, now
            self._sessions.move_to_end(id_)
            return session
        return None

    def end(self, session: ToldSession) -> None:
        self._sessions.pop(session.id, None)


def _values(cookies: str) -> list[str]:
    """An id is long and random, so that the cookie's name need not be known. Other sites of this host may have set anything."""
    return [part.strip().partition("=")[2] for part in cookies.split(";")]
