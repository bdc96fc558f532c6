"""Asking the management API of another process by HTTP, and what is kept of its answer: nothing of who is asked, or where.

What must stay true: whatever keeps somebody from answering is NoAnswer, and nothing else is.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final
from urllib.parse import quote, urlencode

import aiohttp
import msgspec
from yarl import URL

from rabbitpy_broker.errors import BrokerError

UNNAMED: Final = ("User-Agent", "Accept", "Accept-Encoding", "Content-Type")  # headers that nobody has given


class NoAnswer(BrokerError):
    """Who is asked does not answer."""


@dataclass
class Reply:
    """What has been answered."""

    status: int
    headers: Mapping[str, str]
    parts: list[bytes]

    @cached_property
    def body(self) -> bytes:
        """All of it; of a long list its parts will do, which nobody has to copy at once."""
        return b"".join(self.parts)

    def json(self) -> Any:
        """The value in the body. Raises msgspec.DecodeError."""
        return msgspec.json.decode(self.body)


def session_of(connector: aiohttp.BaseConnector, connect_s: float) -> aiohttp.ClientSession:
    """One that passes answers on as they are."""
    return aiohttp.ClientSession(
        connector=connector,
        cookie_jar=aiohttp.DummyCookieJar(),
        auto_decompress=False,
        timeout=aiohttp.ClientTimeout(total=None, connect=connect_s, sock_connect=connect_s),
        skip_auto_headers=UNNAMED,
    )


async def opened(
    session: aiohttp.ClientSession, method: str, path: str, headers: Mapping[str, str], body: Any = None
) -> aiohttp.ClientResponse:
    """The beginning of an answer, whose rest is the caller's to read and to release. `path` is as it stands in a request's first
    line. Raises NoAnswer.
    """
    try:
        url = URL(f"http://other{path}", encoded=True)
        return await session.request(method, url, headers=headers, data=body, allow_redirects=False)
    except (OSError, aiohttp.ClientError, TimeoutError) as error:
        raise NoAnswer(str(error) or type(error).__name__) from None


async def whole(
    session: aiohttp.ClientSession,
    method: str,
    path: str,
    headers: Mapping[str, str],
    body: Any = None,
    *,
    within_s: float | None = None,
) -> Reply:
    """A whole answer, not compressed. Raises NoAnswer, also when it takes longer than `within_s`."""
    try:
        async with asyncio.timeout(within_s):
            response = await opened(session, method, path, {**headers, "Accept-Encoding": "identity"}, body)
            async with response:
                parts = [part async for part in response.content.iter_any()]
                return Reply(response.status, response.headers, parts)
    except TimeoutError:
        raise NoAnswer(f"it has not answered within {within_s} s") from None
    except (OSError, aiohttp.ClientError) as error:
        raise NoAnswer(str(error)) from None


def path_to(*segments: str, query: Mapping[str, str] | None = None) -> str:
    """A path below /api of decoded segments."""
    path = "/".join(quote(segment, safe="") for segment in segments)
    return f"{path}?{urlencode(query)}" if query else path
