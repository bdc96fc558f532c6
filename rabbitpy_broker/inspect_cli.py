"""The commands that look at a stopped data directory: `check` says whether it is sound, `dump` prints a queue's messages.

Both take the directory's lock, so that no broker changes it meanwhile, and write nothing else: files are opened for
reading only, and the definitions are read from a copy, because SQLite would bring its own files up to date.

What is asked for goes to standard output, progress and complaints to standard error.
"""

from __future__ import annotations

import base64
import contextlib
import math
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import msgspec
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from rabbitpy_broker import data_dir, definitions
from rabbitpy_broker.definitions import Definitions
from rabbitpy_broker.errors import StartError
from rabbitpy_broker.message import Message
from rabbitpy_broker.queues.arguments import highest_lane
from rabbitpy_broker.queues.priority_queue import lane_id
from rabbitpy_broker.storage.files import Disk, DiskFile
from rabbitpy_broker.storage.finding import Finding
from rabbitpy_broker.storage.inspection import Counts, Inspection, LivePlace, bytes_to_read
from rabbitpy_broker.storage.stream_check import StreamMessage
from rabbitpy_broker.storage.vhost_store import StoreSettings, vhost_folder
from rabbitpy_broker.wire.field_table import decode_table

CLEAN: Final = 0
DAMAGED: Final = 1

LINES_MAX: Final = 1_000  # findings of a vhost that are printed; a lost file may have thousands

_COLUMNS: Final = ("queues", "messages", "bytes", "segments", "journal files", "stored messages", "garbage")

# The properties in the order of their flags, from the highest bit down (spec 4.2.6.1).
_PROPERTIES: Final = (
    "content_type",
    "content_encoding",
    "headers",
    "delivery_mode",
    "priority",
    "correlation_id",
    "reply_to",
    "expiration",
    "message_id",
    "timestamp",
    "type",
    "user_id",
    "app_id",
    "cluster_id",
)


# -- the directory ----------------------------------------------------------------------------------------------------


class ReadOnlyDisk(Disk):
    """A write to one of its files raises OSError."""

    def open(self, path: str, create: bool = False) -> DiskFile:
        return DiskFile(path, os.open(path, os.O_RDONLY | os.O_CLOEXEC))


class StoppedDirectory:
    """A data directory and what its definitions say.

    `queues` has vhost -> queue -> queue_ids: one, or one for each priority, the highest first. `streams` has vhost -> stream ->
    its queue_id, `hidden` the queue_ids of delayed message exchanges by vhost.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.queues: dict[str, dict[str, list[int]]] = {}
        self.streams: dict[str, dict[str, int]] = {}
        self.hidden: dict[str, list[int]] = {}
        with tempfile.TemporaryDirectory(prefix="rabbitpy-") as folder:
            self._read_definitions(Path(folder))

    def _read_definitions(self, folder: Path) -> None:
        for name in (definitions.FILE_NAME, f"{definitions.FILE_NAME}-wal"):
            with contextlib.suppress(FileNotFoundError):
                shutil.copyfile(self.path / name, folder / name)
        copy = Definitions(folder / definitions.FILE_NAME)
        try:
            for vhost in copy.vhosts():
                self.queues[vhost] = {}
                self.streams[vhost] = {}
                for name, _, raw, queue_id in copy.queues(vhost):
                    arguments = decode_table(len(raw).to_bytes(4, "big") + raw, 0)[0]
                    if arguments.get("x-queue-type") == "stream":
                        self.streams[vhost][name] = queue_id
                    else:
                        lanes = range(highest_lane(arguments), -1, -1)
                        self.queues[vhost][name] = [lane_id(queue_id, priority) for priority in lanes]
                self.hidden[vhost] = list(copy.delay_queues(vhost).values())
        finally:
            copy.close()

    def store_path(self, vhost: str) -> str:
        return str(self.path / "vhosts" / vhost_folder(vhost))

    def stray_stores(self) -> list[str]:
        """Folders of stores of vhosts that the definitions do not have."""
        known = {self.store_path(vhost) for vhost in self.queues}
        found = [f"{self.path}/vhosts/{name}" for name in Disk().list_dir(f"{self.path}/vhosts")]
        return [folder for folder in found if folder not in known]


@contextlib.contextmanager
def _stopped(path: Path) -> Iterator[StoppedDirectory]:
    """The directory, locked. Raises BrokerError when it cannot be looked at."""
    names = (data_dir.LOCK_NAME, data_dir.FORMAT_NAME, definitions.FILE_NAME)
    if not any((path / name).exists() for name in names):
        raise StartError(f"{path} is no data directory")
    lock = data_dir.lock_data_dir(path)
    try:
        ours = data_dir.KNOWN_FORMAT
        found = data_dir._read_format(path, ours)
        if found > ours:
            raise StartError(
                f"{path} was written by a newer rabbitpy-broker: format {found}, this one knows {ours}"
            )
        yield StoppedDirectory(path)
    except BrokenPipeError:  # nobody reads what is printed: click ends the program
        raise
    except OSError as error:
        raise StartError(f"cannot read {path}: {error}") from None
    finally:
        lock.release()


class _Bar:
    """A progress bar on a terminal, from the second second on."""

    def __init__(self, text: str, total: int) -> None:
        self._text = text
        self._total = total
        self._done = 0
        self._began = time.monotonic()
        self._console = Console(stderr=True)
        self._progress: Progress | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._progress is not None:
            self._progress.stop()

    def advance(self, size: int) -> None:
        self._done += size
        if self._progress is None and self._console.is_terminal and time.monotonic() - self._began > 1.0:
            columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
            self._progress = Progress(*columns, console=self._console, transient=True)
            self._progress.add_task(self._text, total=self._total)
            self._progress.start()
        if self._progress is not None:
            task = self._progress.task_ids[0]
            self._progress.update(task, completed=self._done, total=max(self._total, self._done))


# -- check ------------------------------------------------------------------------------------------------------------


def check(path: Path) -> int:
    """Walks over the whole directory and prints what is wrong, and a table. Returns the exit code; raises BrokerError."""
    rows: list[tuple[str, Counts]] = []
    damaged = 0
    with _stopped(path) as directory:
        disk = ReadOnlyDisk()
        total = sum(bytes_to_read(disk, directory.store_path(vhost)) for vhost in directory.queues)
        with _Bar("checking", total) as bar:
            for vhost, queues in directory.queues.items():
                inspection = Inspection(
                    disk, directory.store_path(vhost), StoreSettings().segment_entry_count, bar.advance
                )
                lanes = [queue_id for queue_ids in queues.values() for queue_id in queue_ids]
                streams = directory.streams[vhost].values()
                inspection.check(lanes + directory.hidden[vhost], streams)
                inspection.counts.queues = len(queues) + len(streams)
                damaged += _print_findings(inspection.findings)
                rows.append((vhost, inspection.counts))
        for folder in directory.stray_stores():
            _print(f"note: {folder}: the store of a vhost without definition")
    _print_table(rows)
    _print(f"{path}: damaged in {damaged} places" if damaged else f"{path}: sound")
    return DAMAGED if damaged else CLEAN


def _print(line: str) -> None:
    sys.stdout.write(line + "\n")


def _line(finding: Finding) -> str:
    where = f" at {finding.offset}" if finding.offset >= 0 else ""
    return f"{'damage' if finding.is_damage else 'note'}: {finding.path}{where}: {finding.text}"


def _print_findings(findings: list[Finding]) -> int:
    """Damage first. Returns how much of it there is."""
    findings = sorted(findings, key=lambda finding: not finding.is_damage)
    for finding in findings[:LINES_MAX]:
        _print(_line(finding))
    if len(findings) > LINES_MAX:
        _print(f"and {len(findings) - LINES_MAX} more")
    return sum(finding.is_damage for finding in findings)


def _print_table(rows: list[tuple[str, Counts]]) -> None:
    table = Table("vhost")
    for name in _COLUMNS:
        table.add_column(name, justify="right")
    for vhost, counts in rows:
        table.add_row(vhost, *[f"{getattr(counts, name.replace(' ', '_')):,}" for name in _COLUMNS])
    console = Console()
    if not console.is_terminal:
        console = Console(width=160)  # nobody's window ends at 80 there
    sys.stdout.flush()
    console.print(table)


# -- dump -------------------------------------------------------------------------------------------------------------


def dump(path: Path, vhost: str, queue: str) -> int:
    """Prints the live messages of a queue as JSON lines. Returns the exit code; raises BrokerError."""
    with _stopped(path) as directory:
        if vhost not in directory.queues:
            raise StartError(f"no vhost {vhost!r} in {path}")
        stream_id = directory.streams[vhost].get(queue)
        if queue not in directory.queues[vhost] and stream_id is None:
            raise StartError(f"no durable queue {queue!r} in vhost {vhost!r} of {path}")
        disk, store = ReadOnlyDisk(), directory.store_path(vhost)
        with _Bar("reading", bytes_to_read(disk, store)) as bar:
            # A bar would stand between the lines.
            progress = None if sys.stdout.isatty() else bar.advance
            inspection = Inspection(disk, store, StoreSettings().segment_entry_count, progress)
            if stream_id is not None:
                for one in inspection.stream_messages(stream_id):
                    sys.stdout.buffer.write(stream_line(one))
            for queue_id in directory.queues[vhost].get(queue, []):
                for place, message in inspection.messages(queue_id):
                    if message is not None:
                        sys.stdout.buffer.write(json_line(place, message, inspection.requeues(queue_id, place.seq_id)))
            sys.stdout.buffer.flush()
    damage = [finding for finding in inspection.findings if finding.is_damage]
    for finding in damage[:LINES_MAX]:
        sys.stderr.write(_line(finding) + "\n")
    return DAMAGED if damage else CLEAN


def json_line(place: LivePlace, message: Message, requeues: int) -> bytes:
    """One message as a line of JSON. `requeues`: how often it came back, where that is kept."""
    exchange, routing_key = _short_strings(message.address)
    fields: dict[str, object] = {
        "seq_id": place.seq_id,
        "exchange": exchange,
        "routing_key": routing_key,
        "redelivered": place.redelivered,
        **({"delivery_count": requeues} if requeues else {}),
        "persistent": message.persistent,
        "expiry": place.expiry or None,
    }
    return _line_of(fields, message)


def stream_line(one: StreamMessage) -> bytes:
    """One message of a stream as a line of JSON."""
    exchange, routing_key = _short_strings(one.message.address)
    fields: dict[str, object] = {
        "offset": one.offset,
        "timestamp_ms": one.timestamp_ms,
        "exchange": exchange,
        "routing_key": routing_key,
    }
    return _line_of(fields, one.message)


def _line_of(fields: dict[str, object], message: Message) -> bytes:
    """These, and what a message says itself."""
    body = message.body()
    try:
        text, encoding = body.decode(), "utf-8"
    except UnicodeDecodeError:
        text, encoding = base64.b64encode(body).decode(), "base64"
    own = {"properties": decode_properties(message.header_payload()), "body_encoding": encoding, "body": text}
    return msgspec.json.encode({**fields, **own}) + b"\n"


def _short_strings(address: bytes) -> tuple[object, object]:
    """Exchange and routing key."""
    end = 1 + address[0]
    return _json_safe(address[1:end]), _json_safe(address[end + 1 : end + 1 + address[end]])


def decode_properties(payload: bytes) -> dict[str, object]:
    """The properties of a header payload, those that are there, as values that JSON has."""
    flags = int.from_bytes(payload[12:14], "big")
    found: dict[str, object] = {}
    at = 14
    for number, name in enumerate(_PROPERTIES):
        if not flags & 0x8000 >> number:
            continue
        if name == "headers":
            end = at + 4 + int.from_bytes(payload[at : at + 4], "big")
            try:
                found[name] = _json_safe(decode_table(payload, at)[0])
            except ValueError:  # a key that is not UTF-8
                found[name] = _json_safe(payload[at:end], text=False)
        elif name in {"delivery_mode", "priority"}:
            end = at + 1
            found[name] = payload[at]
        elif name == "timestamp":
            end = at + 8
            found[name] = int.from_bytes(payload[at:end], "big")
        else:
            end = at + 1 + payload[at]
            found[name] = _json_safe(payload[at + 1 : end])
        at = end
    return found


def _json_safe(value: object, text: bool = True) -> object:
    """Bytes become text, or an object with their base64; decimals and what is no number in JSON become text."""
    if isinstance(value, bytes):
        if text:
            with contextlib.suppress(UnicodeDecodeError):
                return value.decode()
        return {"base64": base64.b64encode(value).decode()}
    if isinstance(value, dict):
        return {key: _json_safe(inner, text=False) for key, inner in value.items()}
    if isinstance(value, list):
        return [_json_safe(inner, text=False) for inner in value]
    if isinstance(value, Decimal) or (isinstance(value, float) and not math.isfinite(value)):
        return str(value)
    return value
