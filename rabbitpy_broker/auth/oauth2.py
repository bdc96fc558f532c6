"""The OAuth 2 back end: the password is a token (JWT), which says who somebody is and what they may do until it expires.

Nobody is asked but for keys (`keys.py`). The name that a client gives is ignored: the token has one. Refusals have RabbitMQ's
words; they stand in the log, since a client hears only that it was refused.

What must stay true: a token counts only when its signature, audience, issuer and times are right, each time that one is handed
in; after its end its user may do nothing.
"""

from __future__ import annotations

import time
from typing import Any, Final, NamedTuple

try:
    import jwt

    from rabbitpy_broker.auth.keys import Keys
except ModuleNotFoundError as missing:
    if missing.name not in ("jwt", "cryptography"):
        raise
    LACKING = str(missing.name)
else:
    LACKING = ""

from rabbitpy_broker.auth.backend import OAUTH2, Backend
from rabbitpy_broker.auth.scopes import Scopes
from rabbitpy_broker.authentication import Login
from rabbitpy_broker.config import AuthOauth2
from rabbitpy_broker.errors import ConfigError
from rabbitpy_broker.users import HASHING_ALGORITHM, BackendFault, User, UserError

INVALID: Final = "provided token is invalid"


class Refused(UserError):
    """The token does not count; the text says why."""


class Token(NamedTuple):
    """What a token says. `expires` is in seconds since 1970; None is never."""

    name: str
    scopes: Scopes
    expires: int | None


class TokenUser(User):
    """Somebody with a token: one connection's, or one request's."""

    __slots__ = ("_expires", "_reader", "_scopes")
    is_ours = False

    def __init__(self, reader: TokenReader, token: Token) -> None:
        super().__init__(token.name, "", HASHING_ALGORITHM, token.scopes.tags)
        self._reader = reader
        self._scopes = token.scopes
        self._expires = token.expires

    def may_enter(self, vhost: str) -> bool:
        self._check_time()
        return self._scopes.may_enter(vhost)

    def may(self, vhost: str, operation: str, kind: str, name: str) -> bool:
        self._check_time()
        return self._scopes.may(operation, vhost, name or "amq.default")

    def may_use_key(self, vhost: str, operation: str, exchange: str, key: str) -> bool:
        self._check_time()
        return self._scopes.may_use_key(operation, vhost, exchange, key)

    def _check_time(self) -> None:
        reason = self.expired(time.time())
        if reason:
            raise BackendFault(OAUTH2, f'"{reason}"')

    def expired(self, now: float) -> str:
        if self._expires is None or now < self._expires:
            return ""
        return f"Provided JWT token has expired at timestamp {self._expires} (validated at {int(now)})"

    def update_secret(self, secret: str) -> None:
        """Raises UserError, and AnswerAwaited: then it is called again."""
        token = self._reader.read(secret)
        if token.name != self.name:
            raise Refused(f"the new token is for the user '{token.name}'")
        self._scopes, self._expires, self.tags = token.scopes, token.expires, token.scopes.tags
        self.version += 1


class TokenReader:
    """Says what a token says, if it counts."""

    def __init__(self, config: AuthOauth2, keys: Keys) -> None:
        self._config = config
        self._keys = keys
        self._prefix = config.scope_prefix or f"{config.resource_server_id}."

    def read(self, text: str) -> Token:
        """Raises Refused, and AnswerAwaited."""
        claims = self._verified(text)
        expires = claims.get("exp")
        return Token(self._name(claims), Scopes(self._scopes(claims), self._prefix), None if expires is None else int(expires))

    def _verified(self, text: str) -> dict[str, Any]:
        """What is said in a token that counts."""
        config = self._config
        try:
            kid = jwt.get_unverified_header(text).get("kid", "")
            key = self._keys.find(kid)
            if key is None:
                raise Refused("key_not_found")
            claims: dict[str, Any] = jwt.decode(
                text,
                key.key,
                algorithms=list(key.algorithms),
                audience=config.resource_server_id,
                issuer=config.issuer or None,
                options={"verify_aud": config.verify_aud, "verify_iss": bool(config.issuer), "verify_iat": False},
            )
        except jwt.ExpiredSignatureError:
            claims = jwt.decode(text, options={"verify_signature": False})
            expires, now = claims.get("exp"), int(time.time())
            raise Refused(f"Provided JWT token has expired at timestamp {expires} (validated at {now})") from None
        except (jwt.PyJWTError, ValueError, TypeError) as error:
            raise Refused(f"{INVALID}: {error}") from None
        return claims

    def _name(self, claims: dict[str, Any]) -> str:
        for claim in (*self._config.preferred_username_claims, "sub", "client_id"):
            name = claims.get(claim)
            if isinstance(name, str) and name:
                return name
        return "unknown"

    def _scopes(self, claims: dict[str, Any]) -> list[str]:
        found = _texts(claims.get("scope"))
        additional = claims.get(self._config.additional_scopes_key) if self._config.additional_scopes_key else None
        if isinstance(additional, dict):  # by resource server
            additional = additional.get(self._config.resource_server_id)
            return found + [f"{self._prefix}{scope}" for scope in _texts(additional)]
        return found + _texts(additional)


def _texts(value: object) -> list[str]:
    """Scopes stand in a list, or in a text with blanks between."""
    if isinstance(value, str):
        return value.split()
    return [one for one in value if isinstance(one, str)] if isinstance(value, list) else []


class Oauth2Backend(Backend):
    """Lets owners of tokens in. Made by `make_oauth2`."""

    name = "oauth2"

    def __init__(self, reader: TokenReader, keys: Keys) -> None:
        self._reader = reader
        self._keys = keys

    def log_in(self, login: Login) -> User | str:
        password = login.credentials.password
        if password is None:
            return "a certificate is no token"
        try:
            return TokenUser(self._reader, self._reader.read(password))
        except Refused as refused:
            return f"Authentication using an OAuth 2/JWT token failed: {refused}"

    def authorize(self, login: Login, name: str) -> User | str:
        found = self.log_in(login)
        if isinstance(found, User):
            found.name = name
        return found

    async def stop(self) -> None:
        await self._keys.stop()


def make_oauth2(config: AuthOauth2, log: Any) -> Oauth2Backend:
    """Raises ConfigError."""
    if LACKING:
        text = f"auth_backends: oauth2 needs the library {LACKING}: pip install 'rabbitpy-broker[oauth2]'"
        raise ConfigError(text)
    keys = Keys(config, log)
    return Oauth2Backend(TokenReader(config, keys), keys)
