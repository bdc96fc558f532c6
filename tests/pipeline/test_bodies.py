"""Bodies as columns: what decodes, what does not and why, and that nothing stops the rest."""

from __future__ import annotations

import base64
import bz2
import json
import pickle
import zlib
from functools import partial
from gzip import compress
from typing import Any

import msgspec
import pytest

pytest.importorskip("pyspark")
pytest.importorskip("pyarrow")

from rabbitpy_broker.pipeline.bodies import decode_one

TASK = {"task": "shop.tasks.ship", "id": "4711", "lang": "py"}
gzip = partial(compress, mtime=0)  # or two processes would collect other tests
MSGPACK = msgspec.msgpack.encode
ENVELOPE = {
    "body": base64.b64encode(b'{"a": 1}').decode(),
    "content-encoding": "utf-8",
    "content-type": "application/json",
    "headers": {},
    "properties": {"body_encoding": "base64", "delivery_tag": "x"},
}


@pytest.mark.parametrize(
    ("body", "content_type", "encoding", "headers", "expected"),
    [
        (b'{"a": 1.0}', "application/json", None, {}, ("json", '{"a": 1.0}', None)),
        (b"[18446744073709551617]", "application/vnd.api+json; a=b", None, {}, ("json", "[18446744073709551617]", None)),
        (MSGPACK({"a": [1, b"\xff"], 2: None}), "application/msgpack", None, {}, ("msgpack", '{"a":[1,"/w=="],"2":null}', None)),
        (b"plain", "text/plain", None, {}, ("text", None, "plain")),
        ("grün".encode("latin-1"), "text/plain; charset=latin-1", None, {}, ("text", None, "grün")),
        ("grün".encode(), "text/plain", "utf-8", {}, ("text", None, "grün")),
        (b"\x00\xff", "application/octet-stream", None, {}, ("binary", None, None)),
        (b"\x00\xff", "image/png", None, {}, ("binary", None, None)),
        (b"\xfe\xff", None, None, {}, ("binary", None, None)),
        (b" [1]", None, None, {}, ("json", " [1]", None)),
        (b"{no json", None, None, {}, ("text", None, "{no json")),
        (b"", None, None, {}, ("text", None, "")),
        (gzip(b'{"a": 1}'), "application/json", "gzip", {}, ("json", '{"a": 1}', None)),
        (zlib.compress(b"[1]"), "application/json", "utf-8", {"compression": "application/x-gzip"}, ("json", "[1]", None)),
        (bz2.compress(b"[]"), "application/json", None, {"compression": "application/x-bz2"}, ("json", "[]", None)),
        (b'[[1], {"k": 2}, {"chord": null}]', "application/json", "utf-8", TASK,
         ("celery", '{"task":"shop.tasks.ship","id":"4711","args":[1],"kwargs":{"k":2},"embed":{"chord":null}}', None)),
        (MSGPACK([[1], {}, {}]), "application/x-msgpack", "binary", TASK,
         ("celery", '{"task":"shop.tasks.ship","id":"4711","args":[1],"kwargs":{},"embed":{}}', None)),
        (json.dumps(ENVELOPE).encode(), "application/json", None, {}, ("json", '{"a": 1}', None)),
    ],
)  # fmt: skip
def test_what_decodes(body: bytes, content_type: str | None, encoding: str | None, headers: dict[str, Any], expected: Any):
    found, reason = decode_one(body, content_type, encoding, headers)
    assert (found.codec, found.json, found.text, reason) == (*expected, None)


def test_celery_s_first_protocol_carries_all_in_the_body():
    body = b'{"task": "t", "id": "1", "args": [], "kwargs": {}}'
    found, reason = decode_one(body, "application/json", "utf-8", {}, codec="celery")
    assert reason is None and json.loads(found.json or "") == json.loads(body)


@pytest.mark.parametrize(
    ("body", "content_type", "encoding", "headers", "reason"),
    [
        (b'{"a": 1', "application/json", None, {}, "no JSON: Input data was truncated"),
        (b'{"a": 1]', "application/json", None, {}, "no JSON: JSON is malformed"),
        (b'{"a": NaN}', "application/json", None, {}, "no JSON: JSON is malformed"),
        (b'"\xff"', "application/json", None, {}, "no JSON: "),
        (b"[" * 100_000, "application/json", None, {}, "nested too deeply"),
        (b"\xc1", "application/msgpack", None, {}, "no MessagePack: "),
        (b"\xff\xfe", "text/plain", None, {}, "no utf-8 at byte 0"),
        (b"x", "text/plain; charset=klingon", None, {}, "charset 'klingon' is not known"),
        (b"no gzip", "application/json", "gzip", {}, "compressed data are damaged"),
        (gzip(b"[]")[:-4], "application/json", "gzip", {}, "compressed data are cut off"),
        (gzip(bytes(2_000)), "text/plain", "gzip", {}, "more than 1000 bytes when decompressed"),
        (b"x", "application/json", None, {"compression": "application/zstd"}, "compression 'application/zstd' is not known"),
        (pickle.dumps([[], {}, {}]), "application/x-python-serialize", "binary", TASK, "pickle is not loaded"),
        (b"- 1", "application/x-yaml", "utf-8", TASK, "there is no codec for application/x-yaml"),
        (b"[1, 2]", "application/json", "utf-8", TASK, "no task of Celery"),
        (json.dumps({**ENVELOPE, "body": "=!"}).encode(), "application/json", None, {}, "whose body is no base64"),
        (json.dumps({**ENVELOPE, "body": 1}).encode(), "application/json", None, {}, "whose body is no text"),
    ],
)
def test_what_does_not_decode_says_why(
    body: bytes, content_type: str, encoding: str | None, headers: dict[str, Any], reason: str
):
    found, told = decode_one(body, content_type, encoding, headers, limit=1_000 if "1000" in reason else 1 << 26)
    assert told is not None and reason in told
    assert found.json is None and found.text is None


def test_a_batch_keeps_every_row_and_every_column(spark: Any):
    from rabbitpy_broker.pipeline.bodies import decode

    rows = [
        (bytearray(b"[1]"), "application/json", None, {"h": "x"}, 1),
        (bytearray(b"[1"), "application/json", None, None, 2),
        (None, None, None, {}, 3),
    ]
    schema = "body BINARY, content_type STRING, content_encoding STRING, headers MAP<STRING, STRING>, offset BIGINT"
    found = decode(spark.createDataFrame(rows, schema)).orderBy("offset").collect()
    assert [row.offset for row in found] == [1, 2, 3]
    assert [(row.codec, row.json, row.text) for row in found] == [
        ("json", "[1]", None), ("json", None, None), ("text", None, ""),
    ]  # fmt: skip
    assert [row.reason is None for row in found] == [True, False, True]
    assert bytes(found[1].body) == b"[1" and found[0].headers == {"h": "x"}
