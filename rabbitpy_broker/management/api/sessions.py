"""Sessions: who has logged in with a browser, so that no script there ever sees a password.

A session is a random id in a cookie that scripts cannot read, and a token that only the site's own scripts know: a write
needs both. The broker keeps them in memory; a restart ends them all.

What must stay true: a session is its user's only while password and tags are those that it began with; one that has not
been used for `idle_s` is over; there are never more than SESSIONS_MAX, of which the longest unused goes first.
"""

from __future__ import annotations

import secrets
import time
from collections import OrderedDict
from dataclasses import dataclass
from typing import Final

import msgspec

from rabbitpy_broker.users import User, Users

SESSIONS_MAX: Final = 1_000
ID_BYTES: Final = 32


@dataclass
class Session:
    """`used` is of `time.monotonic`. `given` is the Authorization header that other nodes are shown of whom a back end outside
    knows.
    """

    id: str
    csrf: str
    user: User
    password_hash: str
    tags: tuple[str, ...]
    used: float
    given: str = ""
    is_adopted: bool = False  # a gateway keeps it, and knows when it was used last

    def is_of(self, user: User | None) -> bool:
        """Whether its user is still who has logged in: not deleted and made anew, with the same password and tags."""
        return user is self.user and user.password_hash == self.password_hash and user.tags == self.tags

    def knows(self, token: str) -> bool:
        """Whether this is the token for writes."""
        return secrets.compare_digest(token.encode("utf-8", "surrogateescape"), self.csrf.encode())


class ToldSession(msgspec.Struct, frozen=True):
    """`given` is the name and the password that whoever is known to a back end outside only has logged in with."""

    id: str
    csrf: str
    name: str
    password_hash: str
    tags: tuple[str, ...]
    is_ours: bool
    given: tuple[str, str] | None = None


class Sessions:
    """Of one broker. `cookie` is the cookie's name, of this broker alone: cookies know no ports."""

    def __init__(self, users: Users, idle_s: float, cookie: str) -> None:
        self.idle_s = idle_s
        self.cookie = cookie
        self._users = users
        self._sessions: OrderedDict[str, Session] = OrderedDict()  # the longest unused first

    def begin(self, user: User) -> Session:
        """A session of a user that has just shown its password."""
        session = Session(
            secrets.token_urlsafe(ID_BYTES),
            secrets.token_urlsafe(ID_BYTES),
            user,
            user.password_hash,
            user.tags,
            time.monotonic(),
        )
        self._keep(session)
        return session

    def adopt(self, session: Session) -> None:
        """One that was begun with another worker of the same daemon."""
        session.is_adopted = True
        self._keep(session)

    def knows(self, id_: str) -> bool:
        """Whether a session goes on here."""
        session = self._sessions.get(id_)
        return session is not None and self.is_alive(session)

    def _keep(self, session: Session) -> None:
        self._sessions[session.id] = session
        while len(self._sessions) > SESSIONS_MAX:
            self._sessions.popitem(last=False)

    def find(self, cookies: str) -> Session | None:
        """The session that a request's cookies name, which is thereby used."""
        session = self._sessions.get(_value(cookies, self.cookie))
        if session is None or not self.is_alive(session):
            return None
        session.used = time.monotonic()
        self._sessions.move_to_end(session.id)
        return session

    def is_alive(self, session: Session) -> bool:
        """Whether it goes on; one that is over is forgotten."""
        user = session.user
        known = self._users.get(user.name) if user.is_ours else user
        alive = session.id in self._sessions and session.is_of(known) and not user.expired(time.time())
        if alive and (session.is_adopted or time.monotonic() - session.used <= self.idle_s):
            return True
        self.end(session)
        return False

    def end(self, session: Session) -> None:
        self._sessions.pop(session.id, None)

    def cookie_of(self, session: ToldSession) -> str:
        """What a browser that has this session would send."""
        return f"{self.cookie}={session.id}"

    def set_cookie(self, session: Session, path: str, *, secure: bool) -> str:
        """The header that gives a browser the session."""
        return f"{self.cookie}={session.id}; Path={path}; HttpOnly; SameSite=Strict{'; Secure' if secure else ''}"

    def clear_cookie(self, path: str) -> str:
        """The header that takes it away."""
        return f"{self.cookie}=; Path={path}; Max-Age=0; HttpOnly; SameSite=Strict"


def _value(cookies: str, name: str) -> str:
    """"" where there is none. What other sites of this host have set may be no cookie that Python knows."""
    for part in cookies.split(";"):
        key, _, value = part.strip().partition("=")
        if key == name:
            return value
    return ""
