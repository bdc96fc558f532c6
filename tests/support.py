"""What the behaviour tests share: polling, the texts of closes, and unique names.

A reply text on the wire is the name of its code, ` - `, and a sentence. The tests name the code and the sentence; the
name of the code is added here, and the whole text is compared.
"""

from __future__ import annotations

import contextlib
import time
import uuid
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import pika
import pika.exceptions
import pytest

T = TypeVar("T")

CODE_NAMES = {
    311: "CONTENT_TOO_LARGE",
    312: "NO_ROUTE",
    320: "CONNECTION_FORCED",
    402: "INVALID_PATH",
    403: "ACCESS_REFUSED",
    404: "NOT_FOUND",
    405: "RESOURCE_LOCKED",
    406: "PRECONDITION_FAILED",
    501: "FRAME_ERROR",
    502: "SYNTAX_ERROR",
    503: "COMMAND_INVALID",
    504: "CHANNEL_ERROR",
    505: "UNEXPECTED_FRAME",
    506: "RESOURCE_ERROR",
    530: "NOT_ALLOWED",
    540: "NOT_IMPLEMENTED",
    541: "INTERNAL_ERROR",
}


def eventually(predicate: Callable[[], T], timeout: float = 30.0, interval: float = 0.01) -> T:
    """Returns the first true value of `predicate`; fails when `timeout` seconds pass without one."""
    deadline = time.monotonic() + timeout
    while True:
        value = predicate()
        if value:
            return value
        if time.monotonic() > deadline:
            pytest.fail(f"not true within {timeout} s; last value {value!r}")
        time.sleep(interval)


def unique(prefix: str = "test") -> str:
    """A name nobody else on a shared broker uses."""
    return f"{prefix}-{uuid.uuid4().hex[:12]}"


def full_text(code: int, text: str) -> str:
    """The reply text as it stands on the wire."""
    return f"{CODE_NAMES[code]} - {text}"


def assert_closed(exc: Any, code: int, text: str) -> None:
    """`exc` is a close by the broker (pika's exception) with exactly this code and text."""
    assert (exc.reply_code, exc.reply_text) == (code, full_text(code, text))


@contextlib.contextmanager
def closes_channel(code: int, text: str) -> Iterator[None]:
    """The block ends in a channel.close by the broker with exactly this code and text."""
    with pytest.raises(pika.exceptions.ChannelClosedByBroker) as caught:
        yield
    assert_closed(caught.value, code, text)


@contextlib.contextmanager
def closes_connection(code: int, text: str) -> Iterator[None]:
    """The block ends in a connection.close by the broker with exactly this code and text."""
    with pytest.raises(pika.exceptions.ConnectionClosedByBroker) as caught:
        yield
    assert_closed(caught.value, code, text)
