"""A request as handlers see it, and what they answer: nothing of HTTP's library.

Bodies are read as leniently as RabbitMQ reads them: the content type is ignored, nothing, `null` and `undefined` are `{}`, a
flag may be a text.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from rabbitpy_broker.management.api.errors import bad_request, key_missing, not_found
from rabbitpy_broker.management.api.kept_rows import Make, Sharing
from rabbitpy_broker.management.api.sessions import Session
from rabbitpy_broker.users import User
from rabbitpy_broker.vhost import VHost

Row = dict[str, Any]
DIGITS_MAX: Final = 30


@dataclass
class Request:
    """`names` has what stands for the variables of the path, decoded. Header names are in lower case.

    `user` is who asks: nobody for what needs no login. `peer` is the address of the other side. `session` is that of the
    cookie, None for whoever sent a password. `is_forwarded` says that the gateway of a daemon with several workers, or another
    node, passes it on, `is_for_all` that one answer is made of those of all. `details` is what a handler of a write would have
    the audit say, too.
    """

    method: str
    names: dict[str, str]
    query: Mapping[str, str]
    headers: Mapping[str, str]
    body: bytes
    user: User
    peer: str
    session: Session | None = None
    is_encrypted: bool = False
    is_forwarded: bool = False
    is_for_all: bool = False
    details: Row = field(default_factory=dict)

    def has_tag(self, *tags: str) -> bool:
        return any(tag in self.user.tags for tag in tags)

    @property
    def is_monitor(self) -> bool:
        return self.has_tag("administrator", "monitoring")

    @property
    def is_administrator(self) -> bool:
        return self.has_tag("administrator")

    def is_true(self, name: str) -> bool:
        """Whether the query says name=true."""
        return self.query.get(name) == "true"

    def json(self) -> Row:
        """The object in the body. Raises ApiError 400."""
        text = self.body.strip()
        if text in (b"", b"null", b"undefined"):
            return {}
        try:
            value = msgspec.json.decode(text)
        except (ValueError, RecursionError):
            raise bad_request("not_json") from None
        if isinstance(value, str):
            raise bad_request("invalid payload: the request body JSON-decoded to a string. Is the input doubly-JSON-encoded?")
        if not isinstance(value, dict):
            raise bad_request("not_json")
        return value


def need(body: Row, *keys: str) -> list[Any]:
    """The values of keys that must be there. Raises ApiError 400."""
    for key in keys:
        if key not in body:
            raise key_missing(key)
    return [body[key] for key in keys]


def flag(body: Row, key: str, default: bool = False) -> bool:
    """true, false, or the same as a text. Raises ApiError 400."""
    value = body.get(key, default)
    if value is True or value == "true":
        return True
    if value is False or value == "false":
        return False
    raise bad_request(["not_boolean", value])


def whole(text: str) -> int | None:
    """The number that a text of digits is; None for any other text, and for more digits than any number here has."""
    return int(text) if text.isascii() and text.isdigit() and len(text) <= DIGITS_MAX else None


def integer(value: Any) -> int:
    """A whole number, or the same as a text. Raises ApiError 400."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    number = whole(value.removeprefix("-")) if isinstance(value, str) else None
    if number is not None:
        return -number if value.startswith("-") else number
    raise bad_request(["not_integer", value])


def text(body: Row, key: str, default: str | None = None) -> str:
    """A text. Raises ApiError 400."""
    value = body.get(key, default)
    if value is None:
        raise key_missing(key)
    if not isinstance(value, str):
        raise bad_request(["not_string", value])
    return value


@dataclass
class Answer:
    """An answer that is more than 200 and a JSON value. `body` None is an empty one."""

    status: int = 200
    body: Any = None
    headers: dict[str, str] = field(default_factory=dict)

    def parts(self) -> list[bytes]:
        """The body's bytes. A list of bytes is what it is; any other value is encoded."""
        body = self.body
        if body is None:
            return []
        return body if isinstance(body, list) and body and isinstance(body[0], bytes) else [msgspec.json.encode(body)]


CREATED = Answer(201)
NO_CONTENT = Answer(204)


@dataclass
class Stream:
    """An answer that goes on: each part is written when it comes, until they end or the client has gone.

    The parts are closed (`aclose`) when the client has gone, so whoever makes them may clean up in a `finally`. None says
    only that there is nothing yet: it is the moment to notice that nobody listens. With `is_shared`, long parts are objects that
    the answers of others have as well.
    """

    content_type: str
    parts: AsyncGenerator[bytes | None, None]
    headers: dict[str, str] = field(default_factory=dict)
    is_shared: bool = False


@dataclass
class Made:
    """The JSON of an answer that is made a slice at a time, when it is its turn to be made, as lists are."""

    parts: AsyncIterator[bytes]


@dataclass
class MadeForAll:
    """The same of a list that may be given again to others: `pieces` makes the JSON of its rows, each with `kept_rows.BETWEEN`
    behind it, when nobody has it yet.
    """

    sharing: Sharing
    pieces: Callable[[], Awaitable[list[bytes]]]


@dataclass
class Listing:
    """An answer that is made a slice at a time: a row of each item that there is, as `paging.py` has it.

    `key` gives what items are ordered by when nobody asks for another order, and `name` what a filter looks at; both are asked
    of every item, `row` only of those that are shown. None for an item that has gone meanwhile. `part` makes a row of which only
    the fields of these names count, where that costs less. What `order` gives is equal while there are the same items, and is
    asked for before and after they are walked: then their order by `key` is found once for many requests. `make` makes
    the JSON of a row, as `kept_rows.py` has it, where that costs less; `values` give single fields of an item without its row, by
    name. `node` is named in each row that names none, unless it is "".
    """

    items: Iterator[Any]
    row: Callable[[Any], Row | None]
    key: Callable[[Any], Any] | None = None
    name: Callable[[Any], str] | None = None
    paged: bool = False
    part: Callable[[Any, frozenset[str]], Row | None] | None = None
    sharing: Sharing | None = None
    order: Callable[[], object] | None = None
    make: Make | None = None
    values: Mapping[str, Callable[[Any], Any]] = field(default_factory=dict)
    node: str = ""

    def rows(self, items: Iterable[Any], names: frozenset[str] | None) -> Iterator[Row]:
        """Of those that are there; None is all fields."""
        part = self.part
        for item in items:
            row = self.row(item) if names is None or part is None else part(item, names)
            if row is not None:
                yield row


def vhost_or_404(vhosts: Mapping[str, VHost], name: str) -> VHost:
    vhost = vhosts.get(name)
    if vhost is None:
        raise not_found()
    return vhost
