"""The log: structlog events on standard error or in a file, for people on a terminal and as JSON lines otherwise.

Event names are plain words ("connection closed"), details are fields. No field ever holds a payload or a password.
What comes from a client (names, reasons) is escaped by either renderer, so that no client can forge a line.
Log lines of libraries (asyncio, aiohttp) come out in the same form.

structlog is imported by `configure_log`, as where rich is not installed: it would import that for tracebacks in colours, which
takes a tenth of a second of a start. Those in a daemon's log are plain.
"""

from __future__ import annotations

import contextlib
import io
import logging
import os
import sys
import time
import traceback
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TextIO, cast

from rabbitpy_broker.config import LogConfig
from rabbitpy_broker.errors import ConfigError

if TYPE_CHECKING:
    from structlog.typing import EventDict, Processor

LINES_KEPT: Final = 1_000
TEXT_MAX: Final = 4_000  # letters of a field


@dataclass(frozen=True)
class Line:
    """One line of the log. `at` is in ms since 1970; ids count up from 1."""

    id: int
    at: int
    level: str
    event: str
    fields: dict[str, Any]


class RecentLines:
    """The last lines of the log, kept for who looks at it from afar. Lines may come from any thread."""

    def __init__(self) -> None:
        self.last_id = 0
        self._lines: deque[Line] = deque(maxlen=LINES_KEPT)

    def keep(self, logger: Any, method: str, event: EventDict) -> EventDict:
        """For structlog: keeps a line on its way."""
        fields = {key: _plain(value) for key, value in event.items() if key not in ("event", "exc_info", "level", "timestamp")}
        if event.get("exc_info"):
            fields["exception"] = _trace(event["exc_info"])
        self.last_id += 1
        line = Line(self.last_id, int(time.time() * 1000), str(event.get("level", method)), str(event.get("event", "")), fields)
        self._lines.append(line)
        return event

    def after(self, line_id: int) -> Iterator[Line]:
        """The lines with a greater id that are kept, oldest first."""
        return iter([line for line in list(self._lines) if line.id > line_id])


def _plain(value: Any) -> Any:
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, dict):
        return {str(key): _plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    text = value if isinstance(value, str) else repr(value)
    return text if len(text) <= TEXT_MAX else f"{text[:TEXT_MAX]}..."


def _trace(exc_info: Any) -> str:
    if isinstance(exc_info, BaseException):
        lines = traceback.format_exception(exc_info)
    elif isinstance(exc_info, tuple):
        lines = traceback.format_exception(*exc_info)
    else:
        lines = [traceback.format_exc()]
    return "".join(lines)[-TEXT_MAX:]


class LossyStream:
    """A stream that drops what cannot be written: a full disk under the log must not stop the broker."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        with contextlib.suppress(OSError, ValueError):
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        with contextlib.suppress(OSError, ValueError):
            self._stream.flush()


class LogFile(io.StringIO):
    """A file that the log goes to; `reopen` when it has been moved away. Raises ConfigError when it cannot be opened."""

    def __init__(self, path: str) -> None:
        super().__init__()
        self._path = Path(path).expanduser()
        self._file = self._opened()

    def _opened(self) -> TextIO:
        try:
            fd = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o640)
        except OSError as error:
            raise ConfigError(f"log.file: {self._path} cannot be written: {error.strerror}") from None
        return os.fdopen(fd, "a", buffering=1, encoding="utf-8", errors="replace")

    def reopen(self) -> None:
        """Goes on in a file of the same name, which is made if there is none. Raises ConfigError, then all stays as it is."""
        before, self._file = self._file, self._opened()
        before.close()

    def write(self, text: str) -> int:
        return self._file.write(text)

    def flush(self) -> None:
        self._file.flush()

    def isatty(self) -> bool:
        return False


class NoLog:
    """Takes events and keeps none: for parts that are used without a broker."""

    def info(self, event: str, **fields: object) -> None:
        """Drops it."""


@contextlib.contextmanager
def _without_rich() -> Iterator[None]:
    """The import system says inside that there is no rich."""
    modules = cast(dict[str, Any], sys.modules)
    before = modules.get("rich")
    modules["rich"] = None
    try:
        yield
    finally:
        if before is None:
            del modules["rich"]
        else:
            modules["rich"] = before


def configure_log(config: LogConfig, stream: TextIO | None = None, recent: RecentLines | None = None) -> Any:
    """Sends everything logged from now on to `stream` (standard error), from `config.level` up, and past `recent`.

    Returns a structlog logger.
    """
    with _without_rich():
        import structlog

    stream = stream or sys.stderr
    level = logging.getLevelNamesMapping()[config.level.upper()]
    as_console = config.format == "console" or (config.format == "auto" and stream.isatty())
    shared: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        *([recent.keep] if recent is not None else []),
    ]
    render: list[Processor] = (
        [structlog.dev.ConsoleRenderer(colors=stream.isatty(), repr_native_str=True)]
        if as_console
        else [structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]
    )
    structlog.configure(
        processors=[*shared, *render],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.WriteLoggerFactory(cast(TextIO, LossyStream(stream))),  # a line is one write: others write too
        cache_logger_on_first_use=True,
    )
    _configure_library_logs(max(level, logging.WARNING), stream, shared, render)
    return structlog.get_logger()


def _configure_library_logs(
    level: int,
    stream: TextIO,
    shared: list[Processor],
    render: list[Processor],
) -> None:
    import structlog

    handler = logging.StreamHandler(stream)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[*shared, structlog.stdlib.add_logger_name],
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *render],
        )
    )
    logging.basicConfig(handlers=[handler], level=level, force=True)
