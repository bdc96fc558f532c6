"""A definitions file is decoded as JSON says, and a long one a slice at a time."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rabbitpy_broker.management.api import definitions
from rabbitpy_broker.management.api.errors import ApiError
from rabbitpy_broker.management.api.request import Request
from rabbitpy_broker.slices import SLICE_STEPS
from rabbitpy_broker.users import User

FEW = 16  # bytes, so that most lists are long
MANY = 20_000

scalars = st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, allow_infinity=False) | st.text()
values = st.recursive(scalars, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=5)


def sent(body: bytes) -> dict[str, Any]:
    """What `body` holds, as the file of a request."""
    user = User("guest", "", "", ())
    return asyncio.run(definitions.sent(Request("POST", {}, {}, {}, body, user, "127.0.0.1")))


@settings(max_examples=50)
@given(st.dictionaries(st.text(), st.lists(values), max_size=4), st.sampled_from([None, 2]))
def test_it_is_what_json_says(file: dict[str, Any], indent: int | None):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(definitions, "LONG", FEW)
        assert sent(json.dumps(file, indent=indent).encode()) == file


@pytest.mark.parametrize("entry", [b"{", b'{"a":}', b'"\xff"', b"1 2", b"]", b"[" * 100_000])
@pytest.mark.parametrize("long", [FEW, definitions.LONG])
def test_what_is_no_json_is_refused(entry: bytes, long: int, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(definitions, "LONG", long)
    for body in (b'{"queues":[%b%b]}' % (b'"entry",' * 10, entry), b"[%b]" % entry, entry, b'{"queues":[]}' + entry):
        with pytest.raises(ApiError) as refused:
            sent(body)
        assert str(refused.value) == "400 bad_request: failed_to_parse_json"


@pytest.mark.parametrize("body", [b"[]", b"null", b"7", b'"text"'])
def test_what_is_no_object_is_refused(body: bytes):
    with pytest.raises(ApiError):
        sent(body)


@pytest.mark.parametrize("body", [b"", b" \r\n\t"])
def test_an_empty_file_has_nothing(body: bytes):
    assert sent(body) == {}


def test_others_have_their_turns_while_a_long_one_is_decoded():
    queues = [{"name": f"q{number}", "vhost": "/", "arguments": {"x-max-length": number}} for number in range(MANY)]
    body = msgspec.json.encode({"queues": queues, "vhosts": []})
    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async def both() -> dict[str, Any]:
        beside = asyncio.create_task(others())
        user = User("guest", "", "", ())
        found = await definitions.sent(Request("POST", {}, {}, {}, body, user, "127.0.0.1"))
        beside.cancel()
        return found

    assert asyncio.run(both()) == {"queues": queues, "vhosts": []}
    assert turns >= MANY // SLICE_STEPS
