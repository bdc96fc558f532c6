"""The text for a bad frame in a reply: its octets in the form of an Erlang binary, as RabbitMQ prints them."""

from __future__ import annotations

from mypy_extensions import i64


def frame_text(kind: i64, payload: bytes) -> str:
    """A frame's type and its octets, the first 16 of them when there are more."""
    if len(payload) > 16:
        return f"type {kind}, first 16 octets = {octets_text(payload[:16])}"
    return f"type {kind}, all octets = {octets_text(payload)}"


def octets_text(octets: bytes) -> str:
    """<<1,2>>, or <<"ab">> when every octet is printable."""
    if octets and octets.isascii() and octets.decode("ascii").isprintable():
        return '<<"' + octets.decode("ascii") + '">>'
    return "<<" + ",".join([str(octet) for octet in octets]) + ">>"
