"""Logging in, as those see it who let users in: the protocol and the management API.

They hand over credentials and get a `Login`, which may take its time when somebody outside has to be asked. Who that is, and in
which order, is the configuration's affair (`auth/`); by default nobody is, and the broker's own users are all there are.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from rabbitpy_broker.questions import Question
from rabbitpy_broker.users import User, Users

INTERNAL: Final = "internal"


class Credentials(NamedTuple):
    """`password` is None where a certificate has proved the name; `ip` is where the client is."""

    name: str
    password: str | None
    from_loopback: bool
    ip: str = ""


class Login(Question):
    """An attempt to log in. When it is done, `user` is who it is, by `backend`; or None, and `reason` says why, for the log.

    `is_loopback_only`: it would have been let in from this machine. `asked` is where back ends keep what they have asked.
    """

    def __init__(self, credentials: Credentials) -> None:
        super().__init__()
        self.credentials = credentials
        self.user: User | None = None
        self.backend = ""
        self.reason = ""
        self.is_loopback_only = False
        self.asked: dict[object, Question] = {}


class Authenticator:
    """Lets the broker's own users in."""

    def __init__(self, users: Users) -> None:
        self.users = users

    def log_in(self, credentials: Credentials) -> Login:
        """Begins an attempt."""
        login = Login(credentials)
        self.settle(login, self.users.log_in(credentials.name, credentials.password), INTERNAL)
        return login

    def settle(self, login: Login, user: User | None, backend: str) -> None:
        """Ends an attempt: with this user, if it may come from where it comes from, or with a refusal."""
        name, from_loopback = login.credentials.name, login.credentials.from_loopback
        login.backend = backend
        if user is None:
            login.reason = login.reason or f"user '{name}' - invalid credentials"
        elif self.users.is_loopback_only(user.name) and not from_loopback:
            login.is_loopback_only = True
            login.reason = f"user '{user.name}' can only connect via localhost"
        else:
            login.user = user
        login.finish()
