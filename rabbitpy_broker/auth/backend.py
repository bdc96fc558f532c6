"""What an authentication back end is, to the chain that asks one after the other."""

from __future__ import annotations

from typing import Final

from rabbitpy_broker.authentication import Login
from rabbitpy_broker.users import User, Users

# RabbitMQ's names, which stand in the texts that clients see.
HTTP: Final = "rabbit_auth_backend_http"
OAUTH2: Final = "rabbit_auth_backend_oauth2"


class Backend:
    """Knows users. Each method answers with a user, or with the reason for the log why not; both may raise AnswerAwaited, and are
    called again then.
    """

    name: str

    def log_in(self, login: Login) -> User | str:
        """Who has these credentials."""
        raise NotImplementedError

    def authorize(self, login: Login, name: str) -> User | str:
        """The user of this name, whom another back end has let in, with the rights that it has here."""
        raise NotImplementedError

    async def stop(self) -> None:
        """Lets go of what it holds."""


class Internal(Backend):
    """The broker's own users."""

    name = "internal"

    def __init__(self, users: Users) -> None:
        self._users = users

    def log_in(self, login: Login) -> User | str:
        name, password = login.credentials.name, login.credentials.password
        return self._users.log_in(name, password) or f"user '{name}' - invalid credentials"

    def authorize(self, login: Login, name: str) -> User | str:
        return self._users.get(name) or f"user '{name}' has no rights here: it is none of the broker's own users"


class Split(Backend):
    """One back end says who somebody is, another one what they may do."""

    def __init__(self, authn: Backend, authz: Backend) -> None:
        self.name = f"{authn.name}, {authz.name}"
        self._authn = authn
        self._authz = authz

    def log_in(self, login: Login) -> User | str:
        found = self._authn.log_in(login)
        return self._authz.authorize(login, found.name) if isinstance(found, User) else found

    async def stop(self) -> None:
        await self._authn.stop()
        await self._authz.stop()
