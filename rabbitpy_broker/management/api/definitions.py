"""Definitions as a file: /definitions, of the whole broker or of one vhost, to and fro."""

from __future__ import annotations

import re
from collections.abc import Iterator
from email import message_from_bytes
from email.policy import HTTP
from typing import Any, Final

from rabbitpy_broker.management.admin import AdminError
from rabbitpy_broker.management.api.errors import bad_request, no_such
from rabbitpy_broker.management.api.raw_json import decoded, entries, fields
from rabbitpy_broker.management.api.request import NO_CONTENT, Answer, Request, Row
from rabbitpy_broker.management.api.state import Api
from rabbitpy_broker.management.definitions_json import SECTIONS, Import
from rabbitpy_broker.management.definitions_json import entries as defined
from rabbitpy_broker.slices import in_slices, slices

OF_VHOST: Final = ("parameters", "policies", "queues", "exchanges", "bindings")
IN_VHOSTS: Final = (*OF_VHOST, "permissions", "topic_permissions")
LONG: Final = 64 << 10  # bytes; what is shorter is decoded at once


async def get_all(api: Api, request: Request) -> Answer:
    """Of `?download=NAME` a browser makes a file."""
    return _download(request, await _collected(api, None))


async def get_of_vhost(api: Api, request: Request) -> Answer:
    vhost = request.names["vhost"]
    if vhost not in api.vhosts:
        raise bad_request("vhost_not_found")
    return _download(request, await _collected(api, vhost))


async def _collected(api: Api, vhost: str | None) -> Row:
    found: Row = {}
    async for part in slices(defined(api.admin)):
        for entry in part:
            if entry is None:  # a step that came upon nothing
                continue
            key, value = entry
            if key not in SECTIONS:
                found[key] = value
            elif value is None:
                found[key] = []
            elif vhost is None or value.get("vhost") == vhost:
                found[key].append(value)
    for exchange in found["exchanges"]:
        exchange.setdefault("internal", False)
    if vhost is None:
        return found
    of_vhost: Row = {key: value for key, value in found.items() if key not in SECTIONS}
    for section in OF_VHOST:
        of_vhost[section] = found[section] if section == "policies" else [_without_vhost(entry) for entry in found[section]]
    return of_vhost


def _without_vhost(entry: Row) -> Row:
    return {key: value for key, value in entry.items() if key != "vhost"}


def _download(request: Request, body: Row) -> Answer:
    name = request.query.get("download")
    if name is None:
        return Answer(200, body)
    safe = re.sub(r"[^\w.\- ]", "_", name)
    return Answer(200, body, {"Content-Disposition": f'attachment; filename="{safe}"'})


async def post_all(api: Api, request: Request) -> Answer:
    definitions = await sent(request)
    check_vhosts(definitions)
    return await _import(api, definitions, "/")


def check_vhosts(definitions: dict[str, Any]) -> None:
    """A file for the whole broker names the vhost of each entry. Raises ApiError 400."""
    for section in IN_VHOSTS:
        for entry in _list(definitions.get(section)):
            if isinstance(entry, dict) and "vhost" not in entry:
                raise bad_request(["no_such_vhost", "undefined"])


async def post_of_vhost(api: Api, request: Request) -> Answer:
    vhost = request.names["vhost"]
    if vhost not in api.vhosts:
        raise no_such("vhost_not_found")
    return await _import(api, {key: value for key, value in (await sent(request)).items() if key in OF_VHOST}, vhost)


async def _import(api: Api, definitions: dict[str, Any], vhost: str) -> Answer:
    async with api.changing:
        try:
            importing = Import(api.admin, definitions, vhost)
            await importing.make_replicated()
            await in_slices(importing.steps())
        except AdminError as error:
            raise bad_request(str(error)) from None
    return NO_CONTENT


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


async def sent(request: Request) -> dict[str, Any]:
    """The file in the body, or in the part `file` of a form; a long one is decoded in slices. Raises ApiError 400."""
    body = request.body
    content_type = request.headers.get("content-type", "")
    if content_type.startswith("multipart/form-data"):
        body = _part(content_type, body)
    found: dict[str, Any] = {}
    try:
        await in_slices(_decoding(body, found))
    except (ValueError, RecursionError):
        raise bad_request("failed_to_parse_json") from None
    return found


def _decoding(body: bytes, found: dict[str, Any]) -> Iterator[None]:
    """Decodes an object into `found`, long lists in it an entry a step. Raises msgspec.DecodeError, RecursionError."""
    if not body.strip():
        return
    for key, value in fields(body).items():
        text = memoryview(value)
        if text.nbytes > LONG and text[0] == ord("["):
            values = found[key] = []
            yield
            for entry in entries(value):
                values.append(decoded(entry))
                yield
        else:
            found[key] = decoded(value)
            yield


def _part(content_type: str, body: bytes) -> bytes:
    form = message_from_bytes(b"Content-Type: " + content_type.encode("latin-1") + b"\r\n\r\n" + body, policy=HTTP)
    for part in form.iter_parts():
        if part.get_param("name", header="content-disposition") == "file":
            payload = part.get_payload(decode=True)
            return payload if isinstance(payload, bytes) else b""
    raise bad_request("the form has no part `file`")
