"""The back ends of the configuration, asked one after the other until one lets somebody in.

Each is asked what it knows by plain calls. One that has to ask somebody else raises AnswerAwaited, and the chain goes on from it
when the answer is there; so a log-in that needs nobody outside is done when `log_in` returns.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from rabbitpy_broker.auth.backend import Backend, Internal, Split
from rabbitpy_broker.authentication import Authenticator, Credentials, Login
from rabbitpy_broker.config import AUTH_BACKENDS, AuthConfig
from rabbitpy_broker.questions import AnswerAwaited
from rabbitpy_broker.users import User, Users


class Chain(Authenticator):
    """Made by `make_chain`."""

    def __init__(self, users: Users, backends: list[Backend], log: Any) -> None:
        super().__init__(users)
        self._backends = backends
        self.log = log

    def log_in(self, credentials: Credentials) -> Login:
        login = Login(credentials)
        self._go_on(login, 0)
        return login

    def _go_on(self, login: Login, position: int) -> None:
        for number, backend in enumerate(self._backends[position:], position):
            try:
                found = backend.log_in(login)
            except AnswerAwaited as awaited:
                awaited.question.when_done(partial(self._go_on, login, number))
                return
            except Exception:  # a fault in one back end must leave nobody waiting, and let nobody in
                self.log.exception("internal error", backend=backend.name)
                found = "internal error"
            if isinstance(found, User):
                self.settle(login, found, backend.name)
                return
            reason = f"{backend.name}: {found}"
            login.reason = f"{login.reason}; {reason}" if login.reason else reason
        self.settle(login, None, "")

    async def stop(self) -> None:
        """Lets go of what the back ends hold."""
        for backend in self._backends:
            await backend.stop()


def make_chain(config: AuthConfig, users: Users, log: Any) -> Chain:
    """Raises ConfigError for keys and certificates that cannot be read, and for a library that is not installed."""
    made: dict[str, Backend] = {}

    def backend(name: str) -> Backend:
        if name not in made:
            made[name] = _make(name, config, users, log)
        return made[name]

    pairs = config.backends()
    steps = [backend(authn) if authn == authz else Split(backend(authn), backend(authz)) for authn, authz in pairs]
    return Chain(users, steps, log)


def _make(name: str, config: AuthConfig, users: Users, log: Any) -> Backend:
    keeps_logins = name == "cache"
    if keeps_logins:
        name = AUTH_BACKENDS[config.auth_cache.cached_backend]
    if name == "internal":
        return Internal(users)
    if name == "http":
        from rabbitpy_broker.auth.http_backend import HttpBackend  # loaded where it is needed

        return HttpBackend(config.auth_http, config.auth_cache.cache_ttl / 1000, log, keeps_logins=keeps_logins)
    from rabbitpy_broker.auth.oauth2 import make_oauth2

    return make_oauth2(config.auth_oauth2, log)
