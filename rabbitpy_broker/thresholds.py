"""The alarms' limits, as they are given: so many bytes, or a share of the memory. And how sizes are written.

Here are the texts of the command line, with rabbitmqctl's complaints; settings are read by `config.py`. What must stay
true: whether a number is bytes or a share is said beside it, never guessed from its size.
"""

from __future__ import annotations

import os
import re
from typing import Final, NamedTuple

from rabbitpy_broker.errors import BrokerError

# As RabbitMQ reads them: a bare letter and "iB" count in 1024, "B" in 1000.
UNIT_BYTES: Final = {
    "": 1, "b": 1,
    "k": 2**10, "kib": 2**10, "kb": 10**3,
    "m": 2**20, "mib": 2**20, "mb": 10**6,
    "g": 2**30, "gib": 2**30, "gb": 10**9,
    "t": 2**40, "tib": 2**40, "tb": 10**12,
}  # fmt: skip

LARGEST: Final = (1 << 63) - 1  # bytes, as other programs can read them
_NUMBER: Final = re.compile(r"[-+]?[0-9]+(\.[0-9]+)?([eE][-+]?[0-9]+)?")
_SIZE: Final = re.compile(r"\s*([-+]?[0-9]{1,30})(.*)", re.DOTALL)


class BadThreshold(BrokerError):
    """A limit that cannot be read; `code` is the exit code for it."""

    def __init__(self, text: str, code: int = os.EX_DATAERR) -> None:
        super().__init__(text)
        self.code = code


class Threshold(NamedTuple):
    """One of the two is None."""

    relative: float | None = None  # to the memory that there is
    absolute: int | None = None  # bytes

    def bytes_of(self, memory_bytes: int) -> int:
        """The limit, where there is so much memory."""
        limit = (self.relative or 0) * memory_bytes if self.absolute is None else self.absolute
        return int(min(limit, LARGEST))

    def setting(self) -> dict[str, float]:
        """As RabbitMQ's status has it."""
        return {key: value for key, value in self._asdict().items() if value is not None}


def memory_threshold(mark: str, size: str | None) -> Threshold:
    """The arguments of set_vm_memory_high_watermark: a fraction, or "absolute" and a size. Raises BadThreshold."""
    if mark == "absolute":
        if size is None:
            raise BadThreshold("not enough arguments.", os.EX_USAGE)
        return Threshold(absolute=_memory_size(size))
    if size is not None:
        raise BadThreshold("too many arguments.", os.EX_USAGE)
    fraction = _number(mark)
    if not 0 <= fraction <= 1:
        raise BadThreshold("Bad argument: The threshold should be a fraction between 0.0 and 1.0")
    return Threshold(relative=fraction)


def disk_threshold(limit: str, factor: str | None) -> Threshold:
    """The arguments of set_disk_free_limit: a size, or "mem_relative" and a factor. Raises BadThreshold.

    A size below 0 is no limit, like 0.
    """
    if limit == "mem_relative":
        if factor is None:
            raise BadThreshold("not enough arguments.", os.EX_USAGE)
        if _number(factor) < 0:
            raise BadThreshold("Bad argument.")
        return Threshold(relative=_number(factor))
    if factor is not None:
        raise BadThreshold("too many arguments.", os.EX_USAGE)
    match = _SIZE.fullmatch(limit)
    if match is None or _unit(match[2]) is None:
        raise BadThreshold("Bad argument.")
    return Threshold(absolute=_size(match))


def _memory_size(size: str) -> int:
    match = _SIZE.fullmatch(size)
    if match is None:
        raise BadThreshold("Bad argument.")
    if match[2].startswith("."):
        raise BadThreshold("Bad argument: The threshold should be an integer.")
    if _unit(match[2]) is None:
        raise BadThreshold("Bad argument: Invalid units.")
    if int(match[1]) < 0:
        raise BadThreshold("Bad argument.")
    return _size(match)


def _number(text: str) -> float:
    if _NUMBER.fullmatch(text) is None:
        raise BadThreshold("Bad argument.")
    number = float(text)
    if number == float("inf"):  # of so many digits that no float has it
        raise BadThreshold("Bad argument.")
    return number


def _unit(text: str) -> int | None:
    return UNIT_BYTES.get(text.strip().lower())


def _size(match: re.Match[str]) -> int:
    return min(int(match[1]) * (_unit(match[2]) or 1), LARGEST)
