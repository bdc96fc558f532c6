"""A definitions file against the broker: what an import would add and change, what is here alone. Nothing is changed.

Of what both have, the fields that the file names are compared. Hashes of passwords are compared and not shown.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from typing import Any, Final

import msgspec

from rabbitpy_broker.management.admin import AdminError, split_tags
from rabbitpy_broker.management.api import definitions
from rabbitpy_broker.management.api.definitions import OF_VHOST
from rabbitpy_broker.management.api.errors import bad_request, no_such
from rabbitpy_broker.management.api.request import Answer, Made, Request, Row
from rabbitpy_broker.management.api.state import Api
from rabbitpy_broker.management.definitions_json import SECTIONS, Import, entries
from rabbitpy_broker.slices import in_slices, slices

SHOWN_MAX: Final = 2_000  # of each list
HASH: Final = "(hash)"
KEYS: Final = {  # what tells an entry of a section from all others
    "users": ("name",),
    "vhosts": ("name",),
    "permissions": ("vhost", "user"),
    "topic_permissions": ("vhost", "user", "exchange"),
    "parameters": ("vhost", "component", "name"),
    "global_parameters": ("name",),
    "policies": ("vhost", "name"),
    "queues": ("vhost", "name"),
    "exchanges": ("vhost", "name"),
    "bindings": ("vhost", "source", "destination_type", "destination", "routing_key", "arguments"),
}
LEFT: Final = ("queues", "exchanges", "bindings")  # an import leaves those that exist as they are
DEFAULTS: Final[dict[str, Row]] = {
    "exchanges": {"internal": False, "arguments": {}},
    "queues": {"arguments": {}},
    "users": {"limits": {}},
    "bindings": {"arguments": {}},
}


class Diff:
    """Grows entry by entry: first those of the file, then those of the broker."""

    def __init__(self, vhost: str | None) -> None:
        self._vhost = vhost
        self._given: dict[tuple[str, str], Row] = {}
        self.add: list[Row] = []
        self.change: list[Row] = []
        self.only_here: list[Row] = []
        self.same = 0

    def read(self, file: Row) -> Iterator[None]:
        for section in SECTIONS if self._vhost is None else OF_VHOST:
            for entry in file.get(section, []):
                self._given[section, self._place(section, entry)] = entry
                yield

    def meet(self, section: str, here: Row) -> None:
        """An entry that the broker has."""
        if self._vhost is not None and (section not in OF_VHOST or here.get("vhost") != self._vhost):
            return
        given = self._given.pop((section, self._place(section, here)), None)
        key = self._key(section, here)
        if given is None:
            self.only_here.append({"kind": section, "key": key, "from": _shown(here)})
            return
        one, other = _normal(section, here), _normal(section, given)
        differing = [name for name, value in other.items() if name != "vhost" and one.get(name) != value]
        if not differing:
            self.same += 1
            return
        self.change.append(
            {
                "kind": section,
                "key": key,
                "from": _shown({name: one.get(name) for name in differing}),
                "to": _shown({name: other[name] for name in differing}),
                "applied": section not in LEFT,
            }
        )

    def finish(self) -> None:
        """What is left of the file is new."""
        for (section, _), entry in self._given.items():
            self.add.append({"kind": section, "key": self._key(section, entry), "to": _shown(entry)})

    def _key(self, section: str, entry: Row) -> Row:
        normal = _normal(section, entry)
        return {name: normal.get(name, self._vhost or "/" if name == "vhost" else None) for name in KEYS[section]}

    def _place(self, section: str, entry: Row) -> str:
        return json.dumps(self._key(section, entry), sort_keys=True, default=str)

    def answer(self) -> Row:
        lists = {"add": self.add, "change": self.change, "only_here": self.only_here}
        return {
            **{name: found[:SHOWN_MAX] for name, found in lists.items()},
            "counts": {name: len(found) for name, found in lists.items()},
            "same": self.same,
        }


def _normal(section: str, entry: Row) -> Row:
    found = {**DEFAULTS.get(section, {}), **entry}
    if section == "users" and isinstance(found.get("tags"), str):
        found["tags"] = split_tags(found["tags"])
    if found.get("arguments") == []:
        found["arguments"] = {}
    return found


def _shown(entry: Row) -> Row:
    return {name: HASH if name in ("password", "password_hash") and value else value for name, value in entry.items()}


async def of_all(api: Api, request: Request) -> Made:
    return await _compared(api, request, None)


async def of_vhost(api: Api, request: Request) -> Made:
    if request.names["vhost"] not in api.vhosts:
        raise no_such("vhost_not_found")
    return await _compared(api, request, request.names["vhost"])


async def _compared(api: Api, request: Request, vhost: str | None) -> Made:
    return Made(_made(api, await _checked(api, await definitions.sent(request), vhost), vhost))


async def _checked(api: Api, file: Row, vhost: str | None) -> Row:
    """The file, if an import would take it. Raises ApiError 400."""
    if vhost is None:
        definitions.check_vhosts(file)
    else:
        file = {key: value for key, value in file.items() if key in OF_VHOST}
    try:
        await in_slices(Import(api.admin, file, vhost or "/").checking())
    except AdminError as error:
        raise bad_request(str(error)) from None
    return file


async def _made(api: Api, file: Row, vhost: str | None) -> AsyncIterator[bytes]:
    diff = Diff(vhost)
    await in_slices(diff.read(file))
    async for part in slices(entries(api.admin)):
        for entry in part:
            if entry is not None and entry[0] in SECTIONS and entry[1] is not None:
                value: Any = entry[1]
                diff.meet(entry[0], value)
    diff.finish()
    yield msgspec.json.encode(diff.answer())


async def post_all(api: Api, request: Request) -> Answer | Made:
    """An import, or with `?dry_run=true` what it would do."""
    return await of_all(api, request) if request.is_true("dry_run") else await definitions.post_all(api, request)


async def post_of_vhost(api: Api, request: Request) -> Answer | Made:
    return await of_vhost(api, request) if request.is_true("dry_run") else await definitions.post_of_vhost(api, request)
