"""The keys that tokens are signed with: from files of the configuration, and from where the issuer shows them.

Files are read once. The issuer's are fetched when a token names a key that is not known, and again in the background when they
are KEYS_OLD_S old: a key that it shows no longer signs nothing then. Whoever needs keys that are fetched gets AnswerAwaited.

What must stay true: a key is good for the algorithms of its own kind only. So no token that is signed with a public key as if
that were a secret is taken, and none that is not signed.
"""

from __future__ import annotations

import asyncio
import json
import ssl
import time
from pathlib import Path
from typing import Any, Final, NamedTuple

import aiohttp
import jwt
from cryptography.hazmat.primitives.asymmetric import ec, ed448, ed25519, rsa
from cryptography.hazmat.primitives.serialization import load_pem_public_key
from cryptography.x509 import load_pem_x509_certificate

from rabbitpy_broker.config import AuthOauth2
from rabbitpy_broker.errors import ConfigError
from rabbitpy_broker.questions import AnswerAwaited, Question

REFETCH_S: Final = 10.0  # at least, between two fetches: tokens with made-up key names are not to send us on errands
KEYS_OLD_S: Final = 300.0
FETCH_S: Final = 15.0
KEYS_MAX_BYTES: Final = 1_048_576
ALGORITHMS: Final = {
    "RSA": frozenset({"RS256", "RS384", "RS512", "PS256", "PS384", "PS512"}),
    "EC": frozenset({"ES256", "ES384", "ES512", "ES256K"}),
    "OKP": frozenset({"EdDSA"}),
    "oct": frozenset({"HS256", "HS384", "HS512"}),
}


class SigningKey(NamedTuple):
    """A key, and the algorithms that it may be used with."""

    key: Any
    algorithms: frozenset[str]


class Keys:
    """Of one configuration. Raises ConfigError for a file that has no key in it."""

    def __init__(self, config: AuthOauth2, log: Any) -> None:
        self._config = config
        self.log = log
        self._allowed = frozenset(config.algorithms)
        self._own: dict[str, SigningKey] = {}
        for name, file in config.signing_keys.items():
            self._own.update(self._from_file(name, Path(file).expanduser()))
        if config.default_key and not self._is_fetching and config.default_key not in self._own:
            raise ConfigError(f"auth_oauth2.default_key: there is no key '{config.default_key}'")
        self._tls = _client_tls(config)
        self._fetched: dict[str, SigningKey] = {}
        self._fetched_at = -KEYS_OLD_S
        self._question: Question | None = None  # while they are being fetched
        self._task: asyncio.Task[None] | None = None

    @property
    def _is_fetching(self) -> bool:
        return bool(self._config.jwks_url or self._config.issuer)

    def find(self, kid: str) -> SigningKey | None:
        """The key that a token names; "" is the default, or the only one. Raises AnswerAwaited."""
        name = kid or self._config.default_key
        found = self._find(name)
        if self._is_fetching:
            age_s = time.monotonic() - self._fetched_at
            if self._question is None and age_s > (REFETCH_S if found is None else KEYS_OLD_S):
                self._fetch()
            if found is None and self._question is not None:
                raise AnswerAwaited(self._question)
        return found

    def _find(self, name: str) -> SigningKey | None:
        known = {**self._fetched, **self._own}
        if not name and len(known) == 1:
            return next(iter(known.values()))
        return known.get(name)

    # -- files --------------------------------------------------------------------------------------------------------

    def _from_file(self, name: str, file: Path) -> dict[str, SigningKey]:
        """A PEM file has one key or certificate, under the name of the setting; one in JSON has a key or a set, with names."""
        try:
            data = file.read_bytes()
            if not data.lstrip().startswith(b"{"):
                return {name: self._limited(_from_pem(data))}
            content = json.loads(data)
            if "keys" in content:
                return self._from_set(content)
            return {name: self._limited(_from_jwk(content))}
        except OSError as error:
            raise ConfigError(f"auth_oauth2.signing_keys.{name}: {file} cannot be read: {error.strerror}") from None
        except (ValueError, TypeError, KeyError, jwt.PyJWTError) as error:
            raise ConfigError(f"auth_oauth2.signing_keys.{name}: {file} has no key: {error}") from None

    def _from_set(self, content: Any) -> dict[str, SigningKey]:
        """A JWKS. Keys of kinds that we do not know, and those for encryption, are left out."""
        found = {}
        for number, key in enumerate(content["keys"]):
            if key.get("use", "sig") == "sig" and key.get("kty") in ALGORITHMS:
                found[str(key.get("kid", number))] = self._limited(_from_jwk(key))
        return found

    def _limited(self, key: SigningKey) -> SigningKey:
        return SigningKey(key.key, key.algorithms & self._allowed) if self._allowed else key

    # -- the issuer's -------------------------------------------------------------------------------------------------

    def _fetch(self) -> None:
        self._question = Question()
        self._task = asyncio.get_running_loop().create_task(self._fetching(self._question))

    async def _fetching(self, question: Question) -> None:
        try:
            timeout = aiohttp.ClientTimeout(total=FETCH_S)
            connector = aiohttp.TCPConnector(ssl=self._tls)
            async with aiohttp.ClientSession(timeout=timeout, connector=connector) as session:
                url = self._config.jwks_url
                if not url:
                    about = f"{self._config.issuer.rstrip('/')}/.well-known/openid-configuration"
                    url = str((await _get_json(session, about))["jwks_uri"])
                self._fetched = self._from_set(await _get_json(session, url))
        except (aiohttp.ClientError, OSError, TimeoutError, ValueError, TypeError, KeyError, jwt.PyJWTError) as error:
            # Those that are known stay: better an old key than nobody who can log in.
            self.log.warning("auth.keys_not_fetched", reason=str(error) or type(error).__name__)
        finally:
            self._fetched_at = time.monotonic()
            self._question = None
            question.finish()

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)


async def _get_json(session: aiohttp.ClientSession, url: str) -> Any:
    async with session.get(url) as response:
        response.raise_for_status()
        return json.loads(await response.content.read(KEYS_MAX_BYTES))


def _from_pem(data: bytes) -> SigningKey:
    key = load_pem_x509_certificate(data).public_key() if b"BEGIN CERTIFICATE" in data else load_pem_public_key(data)
    if isinstance(key, rsa.RSAPublicKey):
        return SigningKey(key, ALGORITHMS["RSA"])
    if isinstance(key, ec.EllipticCurvePublicKey):
        return SigningKey(key, ALGORITHMS["EC"])
    if isinstance(key, (ed25519.Ed25519PublicKey, ed448.Ed448PublicKey)):
        return SigningKey(key, ALGORITHMS["OKP"])
    raise ValueError("a key for signatures must be RSA, EC, Ed25519 or Ed448")


def _from_jwk(content: dict[str, Any]) -> SigningKey:
    """A key that says its algorithm is good for that one only."""
    kind = ALGORITHMS[str(content["kty"])]
    key = jwt.PyJWK(content)
    algorithms = kind & {str(content["alg"])} if "alg" in content else kind
    return SigningKey(key.key, algorithms)


def _client_tls(config: AuthOauth2) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=config.https.cacertfile or None)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(f"auth_oauth2.https.cacertfile: cannot be loaded: {error}") from None
    if config.https.peer_verification == "verify_none":
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context
