"""The properties of a message as JSON, and JSON as the properties of a message."""

from __future__ import annotations

from typing import Any, Final

from rabbitpy_broker.management.api.errors import bad_request
from rabbitpy_broker.management.api.shapes import arguments
from rabbitpy_broker.management.definitions_json import table_object
from rabbitpy_broker.wire.field_table import decode_table
from rabbitpy_broker.wire.properties import DELIVERY_MODE, HEADERS, PRIORITY, TIMESTAMP, property_end

CLASS_BASIC: Final = 60
PROPERTIES: Final[dict[str, int]] = {  # and their flags
    "content_type": 0x8000,
    "content_encoding": 0x4000,
    "headers": 0x2000,
    "delivery_mode": 0x1000,
    "priority": 0x0800,
    "correlation_id": 0x0400,
    "reply_to": 0x0200,
    "expiration": 0x0100,
    "message_id": 0x0080,
    "timestamp": 0x0040,
    "type": 0x0020,
    "user_id": 0x0010,
    "app_id": 0x0008,
    "cluster_id": 0x0004,
}
_SIZES: Final = {int(DELIVERY_MODE): 1, int(PRIORITY): 1, int(TIMESTAMP): 8}  # bytes, of those that are numbers


def header_payload(properties: Any, body_size: int) -> bytes:
    """The payload of a content header frame. What is no property is left out. Raises ApiError 400."""
    if properties == []:
        properties = {}
    if not isinstance(properties, dict):
        raise bad_request("properties must be an object")
    flags, parts = 0, []
    for name, bit in PROPERTIES.items():
        if name in properties:
            flags |= bit
            parts.append(_encoded(name, bit, properties[name]))
    head = CLASS_BASIC.to_bytes(2, "big") + bytes(2) + body_size.to_bytes(8, "big")
    return head + flags.to_bytes(2, "big") + b"".join(parts)


def _encoded(name: str, bit: int, value: Any) -> bytes:
    if bit == HEADERS:
        table = arguments(value).raw
        return len(table).to_bytes(4, "big") + table
    size = _SIZES.get(bit)
    if size is not None:
        if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 1 << 8 * size:
            raise bad_request(["not_int", name])
        return value.to_bytes(size, "big")
    raw = value.encode("utf-8") if isinstance(value, str) else None
    if raw is None or len(raw) > 255:
        raise bad_request(["not_string", name])
    return bytes([len(raw)]) + raw


def properties_of(payload: bytes) -> Any:
    """An object; of a message without any the empty list that RabbitMQ has there."""
    flags = int.from_bytes(payload[12:14], "big")
    at = 14
    found: dict[str, Any] = {}
    for name, bit in PROPERTIES.items():
        if not flags & bit:
            continue
        end = int(property_end(payload, bit, at))
        if bit == HEADERS:
            found[name] = table_object(decode_table(payload, at)[0])
        elif bit in _SIZES:
            found[name] = int.from_bytes(payload[at:end], "big")
        else:
            found[name] = payload[at + 1 : end].decode("utf-8", "replace")
        at = end
    return found or []
