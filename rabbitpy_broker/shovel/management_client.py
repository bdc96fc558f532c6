"""The management HTTP API of a broker, RabbitMQ's or ours, as a migration asks it."""

from __future__ import annotations

import json
import ssl
from types import TracebackType
from typing import Any, Final, Self
from urllib.parse import quote, unquote, urlsplit

import aiohttp

from rabbitpy_broker.errors import BrokerError

TIMEOUT_S: Final = 120.0
OURS: Final = "rabbitpy-broker"


class ManagementError(BrokerError):
    """The API refuses, or cannot be reached; `status` is 0 then."""

    def __init__(self, text: str, status: int = 0) -> None:
        super().__init__(text)
        self.status = status


class Management:
    """One API, at http[s]://[user:password@]host:port. It is an asynchronous context manager."""

    def __init__(self, url: str, user: str, password: str) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"not a management URL: {url}")
        self._base = f"{parts.scheme}://{parts.hostname}:{parts.port or 15672}{parts.path.rstrip('/')}/api"
        user, password = unquote(parts.username or user), unquote(parts.password or password)
        self._headers = {"Authorization": aiohttp.BasicAuth(user, password).encode()}
        self._tls = ssl.create_default_context() if parts.scheme == "https" else None
        self._session: aiohttp.ClientSession | None = None
        self.shown = f"{parts.scheme}://{parts.hostname}:{parts.port or 15672}"
        self.overview: dict[str, Any] = {}

    async def __aenter__(self) -> Self:
        """Raises ManagementError when nobody answers, or the login is refused."""
        self._session = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=TIMEOUT_S), headers=self._headers)
        try:
            self.overview = await self.get("overview")
        except BaseException:
            await self._session.close()
            raise
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._session is not None:
            await self._session.close()

    def is_ours(self) -> bool:
        """True for a rabbitpy-broker, which can try an import without doing it."""
        return str(self.overview.get("product_name", "")) == OURS

    async def get(self, path: str) -> Any:
        """The answer to a GET below /api. Raises ManagementError."""
        return await self._ask("GET", path, None)

    async def post(self, path: str, body: object) -> Any:
        """The answer to a POST below /api; None when it is empty. Raises ManagementError."""
        return await self._ask("POST", path, body)

    async def _ask(self, method: str, path: str, body: object) -> Any:
        assert self._session is not None, "kept by: __aenter__"
        data = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": "application/json"}
        try:
            async with self._session.request(
                method, f"{self._base}/{path}", data=data, headers=headers, ssl=self._tls or True
            ) as answer:
                text = await answer.text()
        except (TimeoutError, aiohttp.ClientError, OSError) as error:
            raise ManagementError(f"{self.shown} does not answer: {error or type(error).__name__}") from error
        if answer.status >= 400:
            raise ManagementError(_reason(text) or f"{method} {path}: HTTP status {answer.status}", answer.status)
        return json.loads(text) if text else None


def _reason(text: str) -> str:
    try:
        answer = json.loads(text)
    except ValueError:
        return text[:200]
    return str(answer.get("reason", "")) if isinstance(answer, dict) else ""


def part(name: str) -> str:
    """A name as a part of a path."""
    return quote(name, safe="")
