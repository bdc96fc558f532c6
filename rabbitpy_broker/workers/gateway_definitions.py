"""Definitions files in a daemon with several workers: one file of what all have, and one file given to all.

A file that is imported is taken apart: users and global parameters for the first worker, which keeps them for all, and the rest
for the worker of its vhost. Every part is looked at by its worker before any is imported. What must stay true: what one broker
would not have imported is not imported, and a file that is written has everything, or is none.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from rabbitpy_broker.management.api.asking import NoAnswer, Reply, path_to
from rabbitpy_broker.management.api.definitions import check_vhosts, sent
from rabbitpy_broker.management.api.differences import Diff
from rabbitpy_broker.management.api.errors import ApiError
from rabbitpy_broker.management.api.paging import Columns
from rabbitpy_broker.management.api.request import NO_CONTENT, Answer, Row
from rabbitpy_broker.management.definitions_json import SECTIONS
from rabbitpy_broker.slices import in_slices
from rabbitpy_broker.workers.fleet import Fleet
from rabbitpy_broker.workers.gateway_front import Asked, Front, as_answer, kept_headers

WHOLE: Final = ("users", "global_parameters")  # kept for the whole daemon


def united(files: list[Row]) -> Row:
    """One file of those of all workers; what is the whole daemon's is the first one's."""
    found = {key: value for key, value in files[0].items() if key not in SECTIONS}
    for section in SECTIONS:
        parts = [files[0]] if section in WHOLE else files
        found[section] = [entry for part in parts for entry in part.get(section, [])]
    return found


class Split:
    """A file taken apart. `new` are the vhosts that it makes, which have a worker from now on; `forget` if it is not imported.

    `parts` are by the numbers of the workers; entries of a vhost that there is not are for the first, which has words for them.
    """

    def __init__(self, fleet: Fleet, file: Mapping[str, Any], first: int, vhost: str = "/") -> None:
        self._fleet = fleet
        placed = dict(fleet.placed())
        self.new: list[str] = []
        for entry in _entries(file, "vhosts"):
            name = entry.get("name")
            if isinstance(name, str) and name not in placed:
                placed[name] = fleet.place(name)
                self.new.append(name)
        self.whole: Row = {section: file[section] for section in WHOLE if section in file}
        self.parts: dict[int, Row] = {first: {}}
        for section in SECTIONS:
            if section in WHOLE:
                continue
            for entry in _entries(file, section):
                name = entry.get("name") if section == "vhosts" else entry.get("vhost", vhost)
                number = placed.get(name, first) if isinstance(name, str) else first
                self.parts.setdefault(number, {}).setdefault(section, []).append(entry)
            if section in file and not isinstance(file[section], list):
                self.parts[first][section] = file[section]

    def forget(self) -> None:
        for name in self.new:
            self._fleet.forget(name)


def _entries(file: Mapping[str, Any], section: str) -> list[Row]:
    found = file.get(section)
    return [entry for entry in found if isinstance(entry, dict)] if isinstance(found, list) else []


# -- of the management API -------------------------------------------------------------------------------------------


async def _collected(front: Front, asked: Asked) -> Row:
    replies = await front.ask_all(asked, path_to("definitions"), needs_all=True)
    return united([reply.json() for _, reply in replies])


async def get_all(front: Front, asked: Asked) -> Answer:
    body = await _collected(front, asked)
    answer = as_answer(asked, Columns(asked.light()).of(body))
    if "download" in asked.query:
        path = path_to("definitions", query={"download": asked.query["download"], "columns": "rabbit_version"})
        named = await front.ask(asked, front.first(), "GET", path)
        answer.headers["Content-Disposition"] = named.headers["Content-Disposition"]
    return answer


async def post_all(front: Front, asked: Asked) -> Answer | Reply:
    if asked.query.get("dry_run") == "true":
        return await diff(front, asked)
    file = await _checked_file(front, asked)
    if isinstance(file, Reply):
        return file
    if front.config.management.read_only:
        raise ApiError(403, "read_only", "the management API is read-only")
    first = front.first()
    split = Split(front.fleet, file, first.number)
    try:
        refused = await _rehearsed(front, asked, split)
    except (ApiError, NoAnswer):
        split.forget()
        raise
    if refused is not None:
        split.forget()
        return refused
    try:
        refused = await _imported(front, asked, split)
    finally:
        await front.fleet.tell(-1)
    if refused is not None:
        return refused
    return Answer(NO_CONTENT.status, None, dict(asked.base))


async def _checked_file(front: Front, asked: Asked) -> Row | Reply:
    """The file that was sent, once a worker has said that whoever sent it may do what administrators may."""
    body = await asked.body()
    reply = await front.ask(asked, front.first(), "POST", path_to("permissions", "test"), b"{}")
    if reply.status not in (200, 400):  # 400 to whoever may: it asks for nothing
        return reply
    asked.base = kept_headers(reply.headers)
    file = await sent(asked.light(body))
    check_vhosts(file)
    return file


async def _rehearsed(front: Front, asked: Asked, split: Split) -> Reply | None:
    """What a worker says to a part that it would not take."""
    path = path_to("definitions", query={"dry_run": "true"})
    for number, part in split.parts.items():
        reply = await _post(front, asked, number, path, {**part, **split.whole})
        if reply.status >= 300:
            return reply
    return None


async def _imported(front: Front, asked: Asked, split: Split) -> Reply | None:
    first = front.first().number
    if split.whole:
        reply = await _post(front, asked, first, path_to("definitions"), split.whole)
        if reply.status >= 300:
            return reply
        await front.fleet.tell(first)
    for number, part in split.parts.items():
        if not part:
            continue
        reply = await _post(front, asked, number, path_to("definitions"), part)
        if reply.status >= 300:
            return reply
    return None


async def _post(front: Front, asked: Asked, number: int, path: str, part: Row) -> Reply:
    """Raises ApiError 503 when that worker does not run."""
    vhost = next((name for name, where in front.fleet.placed().items() if where == number), "")
    ours = dataclasses.replace(asked, headers={**_without_type(asked.headers), "Content-Type": "application/json"})
    return await front.ask(ours, front.member(number, vhost), "POST", path, msgspec.json.encode(part))


def _without_type(headers: Mapping[str, str]) -> dict[str, str]:
    """A file may come in a form; its parts do not."""
    return {key: value for key, value in headers.items() if key.lower() != "content-type"}


async def diff(front: Front, asked: Asked) -> Answer | Reply:
    """A file against what all workers have, after each has looked at its part."""
    file = await _checked_file(front, asked)
    if isinstance(file, Reply):
        return file
    split = Split(front.fleet, file, front.first().number)
    try:
        refused = await _rehearsed(front, asked, split)
    finally:
        split.forget()
    if refused is not None:
        return refused
    found = Diff(None)
    await in_slices(found.read(file))
    here = await _collected(front, asked)
    for section in SECTIONS:
        for entry in here[section]:
            found.meet(section, entry)
    found.finish()
    return as_answer(asked, found.answer())
