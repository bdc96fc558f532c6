"""The segments of an event journal as whoever reads it sees them: which there are, and how many records each has.

Nothing here holds a file open between two calls: the broker goes on writing, and removes the oldest.

What must stay true: a position that was given out once is followed by the same records ever after, for records are only
ever appended; a segment gets no more records once there is a later one.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from rabbitpy_broker.events.layout import (
    HEADER_SIZE,
    NAMES_SUFFIX,
    RECORD_SIZE,
    SUFFIX,
    Header,
    names_name,
    segment_name,
    unpack_header,
)
from rabbitpy_broker.pipeline.errors import PipelineError


class Position(NamedTuple):
    """The record that is read next: `record` counts from 0 in its segment."""

    segment: int
    record: int


class Range(NamedTuple):
    """Records `first` up to, not including, `end` of one segment."""

    segment: int
    first: int
    end: int


def numbers(folder: Path) -> list[int]:
    """The segments that are there, in order. Raises PipelineError when there is no such folder."""
    try:
        stems = [entry.name.removesuffix(SUFFIX) for entry in folder.iterdir() if entry.name.endswith(SUFFIX)]
    except OSError as error:
        raise PipelineError(f"{folder}: {error.strerror}") from None
    return sorted(int(stem) for stem in stems if stem.isdecimal())


def header(folder: Path, number: int) -> Header:
    """Raises OSError, or PipelineError when it is no segment."""
    path = folder / segment_name(number)
    with path.open("rb") as file:
        data = file.read(HEADER_SIZE)
    try:
        return unpack_header(data)
    except ValueError as error:
        raise PipelineError(f"{path}: {error}") from None


def count(folder: Path, number: int) -> int:
    """Whole records of a segment, so far. Raises OSError."""
    return max(0, (folder / segment_name(number)).stat().st_size - HEADER_SIZE) // RECORD_SIZE


def begin(folder: Path) -> Position:
    """The first record that there is."""
    found = numbers(folder)
    return Position(found[0], 0) if found else Position(0, 0)


def end(folder: Path) -> Position:
    """Behind the last record that there is now."""
    for number in reversed(numbers(folder)):
        try:
            return Position(number, count(folder, number))
        except FileNotFoundError:  # it went meanwhile, and those before it did
            continue
    return Position(0, 0)


def advance(folder: Path, start: Position, limit: int | None) -> Position:
    """The position at most `limit` records behind `start`."""
    position = start
    left = limit
    for number in numbers(folder):
        if number < start.segment:
            continue
        first = position.record if number == position.segment else 0
        try:
            there = count(folder, number) - first
        except FileNotFoundError:
            continue
        taken = there if left is None else min(there, left)
        if taken > 0 or number > position.segment:
            position = Position(number, first + max(0, taken))
        if left is not None:
            left -= max(0, taken)
            if left == 0:
                break
    return position


def ranges(folder: Path, start: Position, end: Position, at_most: int) -> Iterator[Range]:
    """The records between two positions, in pieces of `at_most`; without those that are gone."""
    for number in numbers(folder):
        if not start.segment <= number <= end.segment:
            continue
        first = start.record if number == start.segment else 0
        last = end.record if number == end.segment else count(folder, number)
        while first < last:
            yield Range(number, first, min(last, first + at_most))
            first += at_most


def names(folder: Path) -> Iterator[dict[str, Any]]:
    """Every name of every segment, with `boot`; an id stands in several segments. What is being written is left out."""
    boots: dict[int, int] = {}
    for number in numbers(folder):
        try:
            boots[number] = header(folder, number).boot
            text = (folder / names_name(number)).read_text(encoding="utf-8")
        except FileNotFoundError:
            continue
        for line in text.splitlines(keepends=True):
            if line.endswith("\n"):
                yield {"boot": boots[number], **json.loads(line)}


__all__ = ["NAMES_SUFFIX", "Position", "Range", "advance", "begin", "count", "end", "header", "names", "numbers", "ranges"]
