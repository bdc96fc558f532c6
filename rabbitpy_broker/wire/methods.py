"""Methods to and from bytes, all but the hot ones, which `wire/encoder.py` and `protocol/connection.py` handle in place.

pamqp knows every method, its arguments and their types. The fields are walked here and not by pamqp's own `unmarshal`,
because field tables must keep their wire types (`field_table.py`) and because pamqp checks names against rules that
RabbitMQ does not have. Every malformed method is a ValueError.
"""

from __future__ import annotations

from typing import Any

from pamqp import base, commands, encode

from rabbitpy_broker.wire.field_table import decode_table, encode_table

Method = Any  # a pamqp command object: its attributes are the method's arguments

_MAPPING: dict[int, type[base.Frame]] = commands.INDEX_MAPPING
_BY_NAME: dict[str, type[base.Frame]] = {cls.name: cls for cls in _MAPPING.values()}


def make(name: str, **arguments: object) -> Method:
    """A method by its name, "Queue.DeclareOk"; arguments not given are to be set before it is encoded."""
    cls = _BY_NAME[name]
    method = cls.__new__(cls)
    for argument, value in arguments.items():
        setattr(method, argument, value)
    return method


def decode_method(payload: bytes) -> Method:
    """The method of a method frame's payload. Raises KeyError for an unknown one, ValueError for a malformed one."""
    index = int.from_bytes(payload[:4], "big")
    cls = _MAPPING[index]
    method = cls.__new__(cls)
    pos, bits, bit = 4, 0, 8
    for name in cls.attributes():
        kind = cls.amqp_type(name)
        value: object
        if kind == "bit":
            if bit == 8:
                bits, pos = _unsigned(payload, pos, 1)
                bit = 0
            value = bool(bits >> bit & 1)
            bit += 1
        else:
            bit = 8
            value, pos = _decode_argument(payload, pos, kind)
        setattr(method, name, value)
    if pos != len(payload):
        raise ValueError("octets are left behind the method's arguments")
    return method


def _decode_argument(payload: bytes, pos: int, kind: str) -> tuple[object, int]:
    if kind == "shortstr":
        size, pos = _unsigned(payload, pos, 1)
        raw, pos = _take(payload, pos, size)
        return raw.decode("utf-8"), pos
    if kind == "longstr":
        size, pos = _unsigned(payload, pos, 4)
        return _take(payload, pos, size)
    if kind == "table":
        return decode_table(payload, pos)
    return _unsigned(payload, pos, _WIDTHS[kind])


_WIDTHS = {"octet": 1, "short": 2, "long": 4, "longlong": 8}


def _unsigned(payload: bytes, pos: int, width: int) -> tuple[int, int]:
    raw, end = _take(payload, pos, width)
    return int.from_bytes(raw, "big"), end


def _take(payload: bytes, pos: int, size: int) -> tuple[bytes, int]:
    end = pos + size
    if end > len(payload):
        raise ValueError("method arguments are cut off")
    return payload[pos:end], end


def encode_method(channel: int, method: Method) -> bytes:
    """A whole method frame. Texts and tables must fit their fields: the broker only sends what it took or made."""
    parts = [method.index.to_bytes(4, "big")]
    bits, bit = 0, 0
    for name in method.attributes():
        kind = method.amqp_type(name)
        value = getattr(method, name)
        if kind == "bit":
            bits |= int(bool(value)) << bit
            bit += 1
            continue
        if bit:
            parts.append(bytes([bits]))
            bits, bit = 0, 0
        parts.append(encode_table(value) if kind == "table" else encode.by_type(value, kind))
    if bit:
        parts.append(bytes([bits]))
    payload = b"".join(parts)
    return b"\x01" + channel.to_bytes(2, "big") + len(payload).to_bytes(4, "big") + payload + b"\xce"
