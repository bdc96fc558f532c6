"""Bodies as columns: what a message says, decoded, or the reason why it cannot be.

To the columns of a message come

  codec    json, msgpack, celery, text or binary: what it was taken for
  json     of json, msgpack and celery: the value as JSON text
  text     of text: the text
  reason   why it did not decode; null when it did

`auto` takes a message for what it says that it is: Celery by the headers `task` and `id`, else content_type; without one,
JSON where a body parses as an object or an array, text where it is UTF-8, binary otherwise. A body of a kind that has
been named either by the message or by whoever asks must be of that kind: what is not is for the quarantine.

kombu's envelopes (a JSON object with `body`, `content-type` and `properties`, the body in base64) are opened first; so is
compression (content_encoding gzip or deflate, kombu's header `compression`). Pickle is never loaded: it runs what it is
told to. Nothing here may stop the other rows: whatever a body is, it ends as a row with a reason.

What must stay true: the message itself is in the row as it came, whatever became of its body.
"""

from __future__ import annotations

import base64
import binascii
import bz2
import math
import zlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import msgspec
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.types import StringType, StructType

CODECS: Final = ("auto", "json", "msgpack", "celery", "text", "binary")
ADDED: Final = ("codec", "json", "text", "reason")
MAX_DECODED_BYTES: Final = 64 * 1024 * 1024

_JSON: Final = msgspec.json.Decoder()
_MSGPACK: Final = msgspec.msgpack.Decoder()


class Undecodable(Exception):
    """The text is the reason."""


class Decoded:
    """What a body was made into: one of `json` and `text`, or neither for binary."""

    __slots__ = ("codec", "json", "text")

    def __init__(self, codec: str, json: str | None = None, text: str | None = None) -> None:
        self.codec = codec
        self.json = json
        self.text = text


def decode(messages: DataFrame, codec: str = "auto", max_decoded_bytes: int = MAX_DECODED_BYTES) -> DataFrame:
    """The messages, with the columns that this file's top tells. They must have body, content_type, content_encoding
    and headers (as a map); all others pass through. Works on streams.
    """
    assert codec in CODECS, codec
    schema = StructType([*messages.schema.fields])
    for name in ADDED:
        schema = schema.add(name, StringType())
    return messages.mapInArrow(_decoder(codec, max_decoded_bytes), schema)


def _decoder(codec: str, limit: int) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield _decode_batch(batch, codec, limit)

    return run


def _decode_batch(batch: pa.RecordBatch, codec: str, limit: int) -> pa.RecordBatch:
    columns = [batch.column(name).to_pylist() for name in ("body", "content_type", "content_encoding", "headers")]
    made: dict[str, list[str | None]] = {name: [] for name in ADDED}
    for body, content_type, encoding, headers in zip(*columns, strict=True):
        found, reason = decode_one(body or b"", content_type, encoding, dict(headers or ()), codec, limit)
        made["codec"].append(found.codec)
        made["json"].append(found.json)
        made["text"].append(found.text)
        made["reason"].append(reason)
    arrays = [*batch.columns, *(pa.array(made[name], pa.string()) for name in ADDED)]
    return pa.RecordBatch.from_arrays(arrays, names=[*batch.schema.names, *ADDED])


def decode_one(
    body: bytes,
    content_type: str | None,
    encoding: str | None,
    headers: Mapping[str, str | None],
    codec: str = "auto",
    limit: int = MAX_DECODED_BYTES,
) -> tuple[Decoded, str | None]:
    """One message: what it was made into, and null or the reason why it was not."""
    kind = _kind(content_type, headers) if codec == "auto" else codec
    try:
        plain = _decompressed(body, encoding, headers, limit)
        if kind:
            return _READERS[kind](plain, content_type, encoding, headers, limit), None
        return _guessed(plain, limit), None
    except Undecodable as error:
        return Decoded(kind or "binary"), str(error)
    except RecursionError:
        return Decoded(kind or "binary"), "nested too deeply"


def _kind(content_type: str | None, headers: Mapping[str, str | None]) -> str:
    """What a message says that it is; "" when it says nothing."""
    if headers.get("task") and headers.get("id"):
        return "celery"
    main = (content_type or "").partition(";")[0].strip().lower()
    if main == "application/json" or main.endswith("+json"):
        return "json"
    if main in {"application/msgpack", "application/x-msgpack", "application/vnd.msgpack"}:
        return "msgpack"
    if main.startswith("text/"):
        return "text"
    return "" if not main or main == "application/octet-stream" else "binary"


def _guessed(body: bytes, limit: int) -> Decoded:
    if body.lstrip()[:1] in {b"{", b"["}:
        try:
            return _from_json(body, None, None, {}, limit)
        except Undecodable:
            pass
    try:
        return Decoded("text", text=body.decode("utf-8"))
    except UnicodeDecodeError:
        return Decoded("binary")


# -- compression ------------------------------------------------------------------------------------------------------


def _decompressed(body: bytes, encoding: str | None, headers: Mapping[str, str | None], limit: int) -> bytes:
    how = (headers.get("compression") or encoding or "").lower()
    if how in {"application/x-gzip", "gzip", "deflate", "zlib"}:
        return _inflated(zlib.decompressobj(wbits=47), body, limit)  # either header
    if how in {"application/x-bz2", "bzip2"}:
        return _inflated(bz2.BZ2Decompressor(), body, limit)
    if headers.get("compression"):
        raise Undecodable(f"compression {headers['compression']!r} is not known")
    return body


def _inflated(stream: Any, body: bytes, limit: int) -> bytes:
    try:
        plain: bytes = stream.decompress(body, limit + 1)
    except (zlib.error, OSError) as error:
        raise Undecodable(f"compressed data are damaged: {error}") from None
    if len(plain) > limit:
        raise Undecodable(f"more than {limit} bytes when decompressed")
    if not stream.eof:
        raise Undecodable("compressed data are cut off")
    return plain


# -- codecs -----------------------------------------------------------------------------------------------------------


def _from_json(
    body: bytes, content_type: str | None, encoding: str | None, headers: Mapping[str, str | None], limit: int
) -> Decoded:
    value = _parsed(body, _JSON, "JSON")
    if isinstance(value, dict) and {"body", "content-type", "properties"} <= value.keys():
        return _from_envelope(value, limit)
    # The text as it came: numbers keep all their digits. Of a key that stands twice JSON's readers take the last.
    return Decoded("json", json=body.decode("utf-8"))


def _from_msgpack(
    body: bytes, content_type: str | None, encoding: str | None, headers: Mapping[str, str | None], limit: int
) -> Decoded:
    return Decoded("msgpack", json=_as_json(_parsed(body, _MSGPACK, "MessagePack")))


def _from_text(
    body: bytes, content_type: str | None, encoding: str | None, headers: Mapping[str, str | None], limit: int
) -> Decoded:
    charset = (content_type or "").lower().partition("charset=")[2].partition(";")[0].strip(" \"'")
    name = charset or (encoding if encoding and encoding.lower() not in _NO_CHARSETS else "utf-8")
    try:
        return Decoded("text", text=body.decode(name))
    except LookupError:
        raise Undecodable(f"charset {name!r} is not known") from None
    except UnicodeDecodeError as error:
        raise Undecodable(f"no {name} at byte {error.start}") from None


def _from_binary(
    body: bytes, content_type: str | None, encoding: str | None, headers: Mapping[str, str | None], limit: int
) -> Decoded:
    return Decoded("binary")


def _from_celery(
    body: bytes, content_type: str | None, encoding: str | None, headers: Mapping[str, str | None], limit: int
) -> Decoded:
    """A task: {"task", "id", "args", "kwargs", "embed"} of protocol 2, or the object that protocol 1 sends."""
    value = _serialized(body, content_type)
    if isinstance(value, list) and len(value) == 3:
        args, kwargs, embed = value
        value = {"args": args, "kwargs": kwargs, "embed": embed}
    elif not (isinstance(value, dict) and {"task", "id"} <= value.keys()):
        raise Undecodable("no task of Celery: neither [args, kwargs, embed] nor an object with task and id")
    names = {name: headers[name] for name in ("task", "id") if headers.get(name)}
    return Decoded("celery", json=_as_json({**names, **value}))


def _from_envelope(value: dict[str, Any], limit: int) -> Decoded:
    properties = value["properties"] if isinstance(value["properties"], dict) else {}
    body = value["body"]
    if not isinstance(body, str):
        raise Undecodable("an envelope of kombu whose body is no text")
    if properties.get("body_encoding") == "base64":
        try:
            raw = base64.b64decode(body, validate=True)
        except binascii.Error as error:
            raise Undecodable(f"an envelope of kombu whose body is no base64: {error}") from None
    else:
        raw = body.encode("utf-8")
    inner = value.get("headers")
    headers = {name: str(one) for name, one in inner.items()} if isinstance(inner, dict) else {}
    found, reason = decode_one(raw, _str(value["content-type"]), _str(value.get("content-encoding")), headers, "auto", limit)
    if reason is not None:
        raise Undecodable(reason)
    return found


def _serialized(body: bytes, content_type: str | None) -> Any:
    main = (content_type or "application/json").partition(";")[0].strip().lower()
    if main == "application/json":
        return _parsed(body, _JSON, "JSON")
    if main in {"application/x-msgpack", "application/msgpack"}:
        return _parsed(body, _MSGPACK, "MessagePack")
    if main in {"application/x-python-serialize", "application/pickle"}:
        raise Undecodable("pickle is not loaded: it runs what it is told to")
    raise Undecodable(f"there is no codec for {main}")


def _parsed(body: bytes, decoder: Any, name: str) -> Any:
    try:
        return decoder.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Undecodable(f"no {name}: {error}") from None


def _as_json(value: Any) -> str:
    try:
        return msgspec.json.encode(_plain(value)).decode("utf-8")
    except (TypeError, ValueError, OverflowError) as error:
        raise Undecodable(f"not expressible as JSON: {error}") from None


def _plain(value: Any) -> Any:
    """Bytes as UTF-8 or base64, keys as text, what JSON has no number for as null."""
    if isinstance(value, dict):
        return {key if isinstance(key, str) else str(_plain(key)): _plain(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(one) for one in value]
    if isinstance(value, bytes):
        try:
            return value.decode("utf-8")
        except UnicodeDecodeError:
            return base64.b64encode(value).decode("ascii")
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, msgspec.msgpack.Ext):
        raise Undecodable(f"MessagePack's extension type {value.code} is not known")
    return value


def _str(value: Any) -> str | None:
    return value if isinstance(value, str) else None


_NO_CHARSETS: Final = {"binary", "gzip", "deflate", "zlib", "bzip2"}
_READERS: Final[dict[str, Callable[..., Decoded]]] = {
    "json": _from_json,
    "msgpack": _from_msgpack,
    "celery": _from_celery,
    "text": _from_text,
    "binary": _from_binary,
}
