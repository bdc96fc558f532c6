"""Every method there is, to bytes and back, and compared with pamqp's own reading."""

from __future__ import annotations

import pamqp.frame
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pamqp import commands

from rabbitpy_broker.wire.field_table import encode_table
from rabbitpy_broker.wire.methods import decode_method, encode_method, make

METHODS = tuple(commands.INDEX_MAPPING.values())
ARGUMENTS = {
    "bit": st.booleans(),
    "octet": st.integers(0, 255),
    "short": st.integers(0, 2**16 - 1),
    "long": st.integers(0, 2**32 - 1),
    "longlong": st.integers(0, 2**63 - 1),
    "shortstr": st.text(max_size=20),
    "longstr": st.text(max_size=20).map(str.encode),
    "table": st.dictionaries(
        st.text(max_size=5), st.integers(0, 2**31 - 1) | st.text(max_size=5), max_size=3
    ),
}


def arguments(cls) -> st.SearchStrategy[dict[str, object]]:
    return st.fixed_dictionaries({name: ARGUMENTS[cls.amqp_type(name)] for name in cls.attributes()})


def encoded(cls, values) -> bytes:
    """The payload of a method, written by hand from the table of its arguments."""
    parts = [cls.index.to_bytes(4, "big")]
    bits: list[bool] = []
    for name in cls.attributes():
        kind, value = cls.amqp_type(name), values[name]
        if kind == "bit":
            bits.append(value)
            continue
        if bits:
            parts.append(bytes([sum(bit << at for at, bit in enumerate(bits))]))
            bits = []
        if kind == "shortstr":
            parts.append(bytes([len(value.encode())]) + value.encode())
        elif kind == "longstr":
            parts.append(len(value).to_bytes(4, "big") + value)
        elif kind == "table":
            parts.append(encode_table(value))
        else:
            parts.append(value.to_bytes({"octet": 1, "short": 2, "long": 4, "longlong": 8}[kind], "big"))
    if bits:
        parts.append(bytes([sum(bit << at for at, bit in enumerate(bits))]))
    return b"".join(parts)


@pytest.mark.parametrize("cls", METHODS, ids=lambda cls: cls.name)
@settings(max_examples=15)
@given(data=st.data(), channel=st.integers(0, 65535))
def test_every_method_goes_to_bytes_and_back(cls, data, channel):
    values = data.draw(arguments(cls))
    payload = encoded(cls, values)
    method = decode_method(payload)
    assert type(method) is cls
    assert {name: getattr(method, name) for name in cls.attributes()} == values
    for name in cls.attributes():
        if (
            cls.amqp_type(name) == "longstr"
        ):  # bytes when they come, as they may be a password; text when they go
            setattr(method, name, values[name].decode())
    frame = encode_method(channel, method)
    assert frame == b"\x01" + channel.to_bytes(2, "big") + len(payload).to_bytes(4, "big") + payload + b"\xce"


@pytest.mark.parametrize("cls", METHODS, ids=lambda cls: cls.name)
@settings(max_examples=15)
@given(data=st.data())
def test_damaged_methods_are_decoded_or_are_a_value_error(cls, data):
    payload = bytearray(encoded(cls, data.draw(arguments(cls))))
    del payload[data.draw(st.integers(4, len(payload))) :]
    if len(payload) > 4:
        payload[data.draw(st.integers(4, len(payload) - 1))] = data.draw(st.integers(0, 255))
    try:
        method = decode_method(bytes(payload))
    except ValueError:
        return
    assert type(method) is cls


@pytest.mark.parametrize("index", (0, 0x000A0000, 0x003C00FF, 0xFFFFFFFF))
def test_an_unknown_method_is_a_key_error(index):
    with pytest.raises(KeyError):
        decode_method(index.to_bytes(4, "big"))


def test_what_is_made_by_name_is_read_by_pamqp():
    made = make("Queue.DeclareOk", queue="q", message_count=3, consumer_count=2)
    _, channel, read = pamqp.frame.unmarshal(encode_method(7, made))
    assert (channel, dict(read)) == (7, {"queue": "q", "message_count": 3, "consumer_count": 2})
