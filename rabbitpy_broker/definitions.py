"""What must outlive the broker besides messages, in SQLite: vhosts with their limits, exchanges, queues, bindings and
policies, users with their limits and permissions, parameters.

Only durable things come here; the caller decides what is durable. Names, flags, the bytes of argument tables and the
text of JSON values are kept as they are: this file knows nothing of what they mean. A queue_id has 64 bits without a
sign, which SQLite's integers have; it is kept as 16 hexadecimal digits.

A change is noted down as an SQL statement and nothing else, so a declare in the middle of a turn costs no IO and cannot
fail. `commit` runs all that was noted in one transaction; the broker calls it once a turn, before any output of that
turn is written. What must stay true:
- when `commit` returns, every change made before it is on disk (WAL with synchronous=FULL syncs at each commit);
- when `commit` raises, none of them is, all of them are kept in order, and the next `commit` tries them again;
- therefore no statement can be refused for what is in the tables: each is an upsert or a delete by key, there are no
  foreign keys, and running one twice is the same as running it once. What hangs on a deleted thing is deleted by
  further statements beside it. Deletes name columns of the key alone: so statements that are run again in their order,
  from any of them to the last, leave what was there. Followers of a vhost depend on it (`take_changes`);
- a reader sees what was changed before: reading commits first. Once the broker runs, nothing is read but what belongs
  to a vhost that is just being made.

The schema's version is SQLite's user_version. To change the schema, append the statements that lead there to
`_MIGRATIONS`; what is in the list already is never edited, because there are files that were made by it.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
from typing import Any, Final

from rabbitpy_broker.errors import BrokerError, StartError

FILE_NAME: Final = "definitions.sqlite"
CLUSTER_ID: Final = "internal_cluster_id"  # a global parameter; made by the broker
CLUSTER_NAME: Final = "cluster_name"

_OFFSETS: Final = "stream-offset:"  # and the name of the stream
_LOCK_WAIT_SECONDS: Final = 0.5  # for somebody's sqlite3 shell that writes; the loop stands still meanwhile

# Keys are whole rows of the tables themselves (WITHOUT ROWID); the index finds the bindings of a destination that goes.
_MIGRATIONS: Final[tuple[tuple[str, ...], ...]] = (
    (
        "CREATE TABLE vhosts (name TEXT NOT NULL PRIMARY KEY) WITHOUT ROWID",
        """CREATE TABLE exchanges (
            vhost TEXT NOT NULL, name TEXT NOT NULL, type TEXT NOT NULL, auto_delete INTEGER NOT NULL,
            internal INTEGER NOT NULL, arguments BLOB NOT NULL, PRIMARY KEY (vhost, name)) WITHOUT ROWID""",
        """CREATE TABLE queues (
            vhost TEXT NOT NULL, name TEXT NOT NULL, auto_delete INTEGER NOT NULL, arguments BLOB NOT NULL,
            PRIMARY KEY (vhost, name)) WITHOUT ROWID""",
        """CREATE TABLE bindings (
            vhost TEXT NOT NULL, source TEXT NOT NULL, destination_kind TEXT NOT NULL, destination TEXT NOT NULL,
            binding_key TEXT NOT NULL, arguments BLOB NOT NULL,
            PRIMARY KEY (vhost, source, destination_kind, destination, binding_key, arguments)) WITHOUT ROWID""",
        "CREATE INDEX bindings_by_destination ON bindings (vhost, destination_kind, destination)",
        """CREATE TABLE users (
            name TEXT NOT NULL PRIMARY KEY, password_hash TEXT NOT NULL, hashing_algorithm TEXT NOT NULL,
            tags TEXT NOT NULL) WITHOUT ROWID""",
        """CREATE TABLE permissions (
            user TEXT NOT NULL, vhost TEXT NOT NULL, configure TEXT NOT NULL, write TEXT NOT NULL, read TEXT NOT NULL,
            PRIMARY KEY (user, vhost)) WITHOUT ROWID""",
    ),
    (
        "ALTER TABLE queues ADD COLUMN queue_id TEXT NOT NULL DEFAULT ''",
        "UPDATE queues SET queue_id = lower(hex(randomblob(8)))",
    ),
    (
        "ALTER TABLE vhosts ADD COLUMN metadata TEXT NOT NULL DEFAULT '{}'",
        """CREATE TABLE policies (
            vhost TEXT NOT NULL, operator INTEGER NOT NULL, name TEXT NOT NULL, pattern TEXT NOT NULL,
            apply_to TEXT NOT NULL, priority INTEGER NOT NULL, definition TEXT NOT NULL,
            PRIMARY KEY (vhost, operator, name)) WITHOUT ROWID""",
        """CREATE TABLE topic_permissions (
            user TEXT NOT NULL, vhost TEXT NOT NULL, exchange TEXT NOT NULL, write TEXT NOT NULL, read TEXT NOT NULL,
            PRIMARY KEY (user, vhost, exchange)) WITHOUT ROWID""",
        "CREATE TABLE vhost_limits (vhost TEXT NOT NULL PRIMARY KEY, limits TEXT NOT NULL) WITHOUT ROWID",
        "CREATE TABLE user_limits (user TEXT NOT NULL PRIMARY KEY, limits TEXT NOT NULL) WITHOUT ROWID",
        """CREATE TABLE parameters (
            vhost TEXT NOT NULL, component TEXT NOT NULL, name TEXT NOT NULL, value TEXT NOT NULL,
            PRIMARY KEY (vhost, component, name)) WITHOUT ROWID""",
        "CREATE TABLE global_parameters (name TEXT NOT NULL PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID",
        """CREATE TABLE delay_queues (
            vhost TEXT NOT NULL, exchange TEXT NOT NULL, queue_id TEXT NOT NULL,
            PRIMARY KEY (vhost, exchange)) WITHOUT ROWID""",
    ),
    (
        "CREATE TABLE open_deletions (vhost TEXT NOT NULL PRIMARY KEY) WITHOUT ROWID",
    ),
)
# What a vhost's rows are told by in each table. Permissions are their users'.
_OF_VHOST: Final = {
    "exchanges": "vhost", "queues": "vhost", "bindings": "vhost", "policies": "vhost", "vhost_limits": "vhost",
    "parameters": "vhost", "delay_queues": "vhost", "vhosts": "name",
}  # fmt: skip
_WITH_MESSAGES: Final = ("queues", "delay_queues")
SCHEMA_VERSION: Final = len(_MIGRATIONS)

Rows = dict[str, list[list[Any]]]  # by table
Change = tuple[str, list[Any] | dict[str, Any]]  # of the table: a row as it is from now on; or columns by which rows are gone


def renamed_rows(rows: Rows, vhost: str, metadata: str) -> Rows:
    """What `Definitions.rows_of` gave, as the rows of a vhost of another name, with this metadata."""
    others = {table: [[vhost, *row[1:]] for row in found] for table, found in rows.items() if table != "vhosts"}
    return {**others, "vhosts": [[vhost, metadata]]}


class DefinitionsError(BrokerError):
    """A commit failed, and what it should have written is kept for the next one; or reading failed."""


class Definitions:
    """The definitions in the file at `path`; None keeps them in memory, for embedding in tests.

    `lock_wait_s`: how long somebody else who writes the file is waited for.

    `dirty` says whether a commit is due. Raises StartError when the file cannot be used.
    """

    def __init__(self, path: str | os.PathLike[str] | None, lock_wait_s: float = _LOCK_WAIT_SECONDS) -> None:
        self.dirty = False
        self.changes = 0  # noted since it was opened
        self._pending: list[tuple[str, tuple[object, ...]]] = []
        self._kept: dict[str, list[Change]] = {}  # of vhosts whose changes somebody takes
        where = ":memory:" if path is None else os.fspath(path)
        try:
            if path is not None:
                # Password hashes are for nobody else; SQLite gives its other files the mode of this one.
                os.close(os.open(where, os.O_RDWR | os.O_CREAT, 0o600))
            # No implicit transactions; and a broker may be made in one thread and run in another, one at a time.
            self._db = sqlite3.connect(
                where, timeout=lock_wait_s, isolation_level=None, check_same_thread=False
            )
        except OSError as error:
            raise StartError(f"cannot open the definitions {where}: {error.strerror}") from None
        except sqlite3.Error as error:
            raise StartError(f"cannot open the definitions {where}: {error}") from None
        try:
            self._db.execute("PRAGMA journal_mode = WAL")
            self._db.execute("PRAGMA synchronous = FULL")
            self._migrate(where)
            self._open_deletions = {vhost for (vhost,) in self._db.execute("SELECT vhost FROM open_deletions")}
        except sqlite3.Error as error:
            self._db.close()
            raise StartError(f"cannot read the definitions {where}: {error}") from None
        except StartError:
            self._db.close()
            raise

    def _migrate(self, where: str) -> None:
        version = self._db.execute("PRAGMA user_version").fetchone()[0]
        if version > SCHEMA_VERSION:
            raise StartError(
                f"the definitions {where} were written by a newer rabbitpy-broker: their schema is version {version}, "
                f"this one knows versions up to {SCHEMA_VERSION}"
            )
        if version < SCHEMA_VERSION:
            self._db.execute("BEGIN IMMEDIATE")
            for statements in _MIGRATIONS[version:]:
                for statement in statements:
                    self._db.execute(statement)
            self._db.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
            self._db.execute("COMMIT")

    # -- writing --------------------------------------------------------------------------------------------------

    def commit(self) -> None:
        """Makes every change so far durable. Raises DefinitionsError; then nothing is lost and it may be called again."""
        if not self._pending:
            return
        try:
            self._db.execute("BEGIN IMMEDIATE")
            for statement, values in self._pending:
                self._db.execute(statement, values)
            self._db.execute("COMMIT")
        except sqlite3.Error as error:
            # Some errors (a full disk is one) have ended the transaction already.
            with contextlib.suppress(sqlite3.Error):
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")
            raise DefinitionsError(f"definitions could not be written: {error}") from error
        self._pending.clear()
        self.dirty = False

    def close(self) -> None:
        """Commits and closes. Raises DefinitionsError, closed all the same."""
        try:
            self.commit()
        finally:
            self._db.close()

    def _note(self, statement: str, *values: object) -> None:
        self._pending.append((statement, values))
        self.dirty = True
        self.changes += 1

    def _put(self, table: str, *row: object) -> None:
        """A row of a vhost, which its first column tells."""
        marks = ", ".join("?" * len(row))
        self._note(f"INSERT OR REPLACE INTO {table} VALUES ({marks})", *row)  # noqa: S608 -- our own names
        kept = self._kept.get(str(row[0]))
        if kept is not None:
            kept.append((table, list(row)))

    def _remove(self, table: str, vhost: str, **columns: object) -> None:
        """The rows of a vhost that have these values."""
        key = {_OF_VHOST[table]: vhost, **columns}
        where = " AND ".join(f"{column} = ?" for column in key)
        self._note(f"DELETE FROM {table} WHERE {where}", *key.values())  # noqa: S608 -- our own names
        kept = self._kept.get(vhost)
        if kept is not None:
            kept.append((table, columns))
            if table in _WITH_MESSAGES:
                self._note("INSERT OR REPLACE INTO open_deletions VALUES (?)", vhost)
                self._open_deletions.add(vhost)

    def _rows(self, query: str, *values: object) -> list[Any]:
        self.commit()
        try:
            return self._db.execute(query, values).fetchall()
        except sqlite3.Error as error:
            raise DefinitionsError(f"definitions could not be read: {error}") from error

    # -- vhosts ---------------------------------------------------------------------------------------------------

    def vhosts(self) -> list[str]:
        return [name for (name,) in self._rows("SELECT name FROM vhosts ORDER BY name")]

    def vhost_metadata(self, name: str) -> str:
        """What `add_vhost` was given, a JSON object; an empty one for a vhost that is absent."""
        rows = self._rows("SELECT metadata FROM vhosts WHERE name = ?", name)
        return rows[0][0] if rows else "{}"

    def add_vhost(self, name: str, metadata: str = "{}") -> None:
        """Adds a vhost, or changes the metadata of the one there is."""
        self._put("vhosts", name, metadata)

    def delete_vhost(self, name: str) -> None:
        """Deletes the vhost and all that is in it; permissions on it, its policies, limits and parameters too."""
        for table in _OF_VHOST:
            self._remove(table, name)
        self._note("DELETE FROM topic_permissions WHERE vhost = ?", name)
        self._note("DELETE FROM permissions WHERE vhost = ?", name)
        self.close_deletions(name)

    def rows_of(self, vhost: str) -> Rows:
        """All that stands here of a vhost, but for permissions on it: for `replace_rows` elsewhere."""
        return {
            table: [list(row) for row in self._rows(f"SELECT * FROM {table} WHERE {key} = ?", vhost)]  # noqa: S608 -- ours
            for table, key in _OF_VHOST.items()
        }

    def replace_rows(self, vhost: str, rows: Rows) -> None:
        """Has of the vhost what another's `rows_of` had, and nothing else."""
        for table in _OF_VHOST:
            self._remove(table, vhost)
            for row in rows.get(table, []):
                self._put(table, *row)

    def take_changes(self, vhost: str) -> list[Change]:
        """What has changed in the vhost since the last call, in order, for `change_rows` elsewhere; all of it is on disk.

        The first call has nothing: changes are kept from then on, until `forget_changes`. Raises DefinitionsError; then the
        next call has them.
        """
        self.commit()
        changes = self._kept.get(vhost, [])
        self._kept[vhost] = []
        return changes

    def forget_changes(self, vhost: str) -> None:
        """Nobody takes them any more."""
        self._kept.pop(vhost, None)

    def is_deletion_open(self, vhost: str) -> bool:
        """Whether a queue was deleted while changes were kept, and nobody has said since that this stands elsewhere, too."""
        return vhost in self._open_deletions

    def settle_deletions(self, vhost: str) -> None:
        """All changes that were taken stand elsewhere; those that are still to be taken do not."""
        if vhost in self._open_deletions and not any(
            table in _WITH_MESSAGES and isinstance(what, dict) for table, what in self._kept.get(vhost, [])
        ):
            self.close_deletions(vhost)

    def close_deletions(self, vhost: str) -> None:
        """Forgets them: on disk with the next commit, for which this is no reason."""
        if vhost in self._open_deletions:
            self._open_deletions.discard(vhost)
            self._pending.append(("DELETE FROM open_deletions WHERE vhost = ?", (vhost,)))

    def change_rows(self, vhost: str, changes: list[Change]) -> None:
        """Changes what another's `take_changes` has told."""
        for table, what in changes:
            if isinstance(what, dict):
                self._remove(table, vhost, **what)
            else:
                self._put(table, *what)

    def vhost_limits(self, vhost: str) -> str:
        """The limits of a vhost as `put_vhost_limits` was given them; "{}" when it was not."""
        rows = self._rows("SELECT limits FROM vhost_limits WHERE vhost = ?", vhost)
        return rows[0][0] if rows else "{}"

    def put_vhost_limits(self, vhost: str, limits: str) -> None:
        self._put("vhost_limits", vhost, limits)

    def delete_vhost_limits(self, vhost: str) -> None:
        self._remove("vhost_limits", vhost)

    # -- exchanges ------------------------------------------------------------------------------------------------

    def exchanges(self, vhost: str) -> list[tuple[str, str, bool, bool, bytes]]:
        """(name, type, auto_delete, internal, arguments) of each."""
        rows = self._rows(
            "SELECT name, type, auto_delete, internal, arguments FROM exchanges WHERE vhost = ? ORDER BY name",
            vhost,
        )
        return [
            (name, kind, bool(auto_delete), bool(internal), raw)
            for name, kind, auto_delete, internal, raw in rows
        ]

    def put_exchange(
        self, vhost: str, name: str, type: str, auto_delete: bool, internal: bool, arguments: bytes
    ) -> None:
        self._put(
            "exchanges",
            vhost, name, type, auto_delete, internal, arguments,
        )  # fmt: skip

    def delete_exchange(self, vhost: str, name: str) -> None:
        """Deletes the exchange and the bindings from it and to it."""
        self._remove("bindings", vhost, source=name)
        self._delete_incoming(vhost, "exchange", name)
        self._remove("exchanges", vhost, name=name)
        self._remove("delay_queues", vhost, exchange=name)

    def delay_queues(self, vhost: str) -> dict[str, int]:
        """The queue_id of what keeps an exchange's delayed messages, by the exchange's name."""
        rows = self._rows("SELECT exchange, queue_id FROM delay_queues WHERE vhost = ?", vhost)
        return {exchange: int(digits, 16) for exchange, digits in rows}

    def put_delay_queue(self, vhost: str, exchange: str, queue_id: int) -> None:
        self._put("delay_queues", vhost, exchange, f"{queue_id:016x}")

    # -- queues ---------------------------------------------------------------------------------------------------

    def queues(self, vhost: str) -> list[tuple[str, bool, bytes, int]]:
        """(name, auto_delete, arguments, queue_id) of each."""
        rows = self._rows(
            "SELECT name, auto_delete, arguments, queue_id FROM queues WHERE vhost = ? ORDER BY name", vhost
        )
        return [(name, bool(auto_delete), raw, int(digits, 16)) for name, auto_delete, raw, digits in rows]

    def put_queue(self, vhost: str, name: str, auto_delete: bool, arguments: bytes, queue_id: int) -> None:
        self._put(
            "queues",
            vhost, name, auto_delete, arguments, f"{queue_id:016x}",
        )  # fmt: skip

    def delete_queue(self, vhost: str, name: str) -> None:
        """Deletes the queue and the bindings to it."""
        self._delete_incoming(vhost, "queue", name)
        self._remove("queues", vhost, name=name)

    # -- bindings -------------------------------------------------------------------------------------------------

    def bindings(self, vhost: str) -> list[tuple[str, str, str, str, bytes]]:
        """(source, destination_kind, destination, binding_key, arguments) of each; the kind is "queue" or "exchange"."""
        return self._rows(
            "SELECT source, destination_kind, destination, binding_key, arguments FROM bindings WHERE vhost = ? "
            "ORDER BY source, destination_kind, destination, binding_key, arguments",
            vhost,
        )

    def put_binding(
        self,
        vhost: str,
        source: str,
        destination_kind: str,
        destination: str,
        binding_key: str,
        arguments: bytes,
    ) -> None:
        self._put(
            "bindings",
            vhost, source, destination_kind, destination, binding_key, arguments,
        )  # fmt: skip

    def delete_binding(
        self,
        vhost: str,
        source: str,
        destination_kind: str,
        destination: str,
        binding_key: str,
        arguments: bytes,
    ) -> None:
        self._remove(
            "bindings", vhost, source=source, destination_kind=destination_kind, destination=destination,
            binding_key=binding_key, arguments=arguments,
        )  # fmt: skip

    def _delete_incoming(self, vhost: str, destination_kind: str, destination: str) -> None:
        self._remove("bindings", vhost, destination_kind=destination_kind, destination=destination)

    # -- policies -------------------------------------------------------------------------------------------------

    def policies(self, vhost: str) -> list[tuple[bool, str, str, str, int, str]]:
        """(operator, name, pattern, apply_to, priority, definition) of each; `operator` is an operator policy's."""
        rows = self._rows(
            "SELECT operator, name, pattern, apply_to, priority, definition FROM policies WHERE vhost = ? "
            "ORDER BY operator, name",
            vhost,
        )
        return [(bool(operator), *rest) for operator, *rest in rows]

    def put_policy(
        self, vhost: str, operator: bool, name: str, pattern: str, apply_to: str, priority: int, definition: str
    ) -> None:
        self._put(
            "policies",
            vhost, operator, name, pattern, apply_to, priority, definition,
        )  # fmt: skip

    def delete_policy(self, vhost: str, operator: bool, name: str) -> None:
        self._remove("policies", vhost, operator=operator, name=name)

    # -- parameters -----------------------------------------------------------------------------------------------

    def parameters(self) -> list[tuple[str, str, str, str]]:
        """(vhost, component, name, value) of each parameter of the vhosts."""
        return self._rows(
            "SELECT vhost, component, name, value FROM parameters WHERE component NOT LIKE 'stream-offset:%' "
            "ORDER BY vhost, component, name"
        )

    def put_parameter(self, vhost: str, component: str, name: str, value: str) -> None:
        self._put("parameters", vhost, component, name, value)

    def delete_parameter(self, vhost: str, component: str, name: str) -> None:
        self._remove("parameters", vhost, component=component, name=name)

    # Offsets of streams are kept among the parameters: each stream has a component of its own, so that what it has goes with it.

    def offsets(self, vhost: str) -> list[tuple[str, str, int]]:
        """(stream, reference, offset) of each offset that is stored."""
        rows = self._rows(
            "SELECT component, name, value FROM parameters WHERE vhost = ? AND component LIKE 'stream-offset:%' "
            "ORDER BY component, name",
            vhost,
        )
        return [(component.removeprefix(_OFFSETS), name, int(value)) for component, name, value in rows]

    def put_offset(self, vhost: str, stream: str, reference: str, offset: int) -> None:
        self.put_parameter(vhost, _OFFSETS + stream, reference, str(offset))

    def delete_offset(self, vhost: str, stream: str, reference: str) -> None:
        self.delete_parameter(vhost, _OFFSETS + stream, reference)

    def delete_offsets(self, vhost: str, stream: str) -> None:
        """Of a stream that goes."""
        self._remove("parameters", vhost, component=_OFFSETS + stream)

    def global_parameters(self) -> list[tuple[str, str]]:
        """(name, value) of each."""
        return self._rows("SELECT name, value FROM global_parameters ORDER BY name")

    def put_global_parameter(self, name: str, value: str) -> None:
        self._note("INSERT OR REPLACE INTO global_parameters VALUES (?, ?)", name, value)

    def delete_global_parameter(self, name: str) -> None:
        self._note("DELETE FROM global_parameters WHERE name = ?", name)

    # -- users ----------------------------------------------------------------------------------------------------

    def users(self) -> list[tuple[str, str, str, str]]:
        """(name, password_hash, hashing_algorithm, tags) of each; the tags are separated by commas."""
        return self._rows("SELECT name, password_hash, hashing_algorithm, tags FROM users ORDER BY name")

    def put_user(self, name: str, password_hash: str, hashing_algorithm: str, tags: str) -> None:
        self._note(
            "INSERT OR REPLACE INTO users VALUES (?, ?, ?, ?)", name, password_hash, hashing_algorithm, tags
        )

    def delete_user(self, name: str) -> None:
        """Deletes the user, its limits and its permissions."""
        self._note("DELETE FROM user_limits WHERE user = ?", name)
        self._note("DELETE FROM topic_permissions WHERE user = ?", name)
        self._note("DELETE FROM permissions WHERE user = ?", name)
        self._note("DELETE FROM users WHERE name = ?", name)

    def permissions(self) -> list[tuple[str, str, str, str, str]]:
        """(user, vhost, configure, write, read) of each."""
        return self._rows("SELECT user, vhost, configure, write, read FROM permissions ORDER BY user, vhost")

    def put_permission(self, user: str, vhost: str, configure: str, write: str, read: str) -> None:
        self._note(
            "INSERT OR REPLACE INTO permissions VALUES (?, ?, ?, ?, ?)", user, vhost, configure, write, read
        )

    def delete_permission(self, user: str, vhost: str) -> None:
        self._note("DELETE FROM permissions WHERE user = ? AND vhost = ?", user, vhost)

    def topic_permissions(self) -> list[tuple[str, str, str, str, str]]:
        """(user, vhost, exchange, write, read) of each."""
        return self._rows(
            "SELECT user, vhost, exchange, write, read FROM topic_permissions ORDER BY user, vhost, exchange"
        )

    def put_topic_permission(self, user: str, vhost: str, exchange: str, write: str, read: str) -> None:
        self._note(
            "INSERT OR REPLACE INTO topic_permissions VALUES (?, ?, ?, ?, ?)", user, vhost, exchange, write, read
        )

    def delete_topic_permission(self, user: str, vhost: str, exchange: str) -> None:
        self._note(
            "DELETE FROM topic_permissions WHERE user = ? AND vhost = ? AND exchange = ?", user, vhost, exchange
        )

    def user_limits(self) -> list[tuple[str, str]]:
        """(user, limits) of each user that has any."""
        return self._rows("SELECT user, limits FROM user_limits ORDER BY user")

    def put_user_limits(self, user: str, limits: str) -> None:
        self._note("INSERT OR REPLACE INTO user_limits VALUES (?, ?)", user, limits)

    def delete_user_limits(self, user: str) -> None:
        self._note("DELETE FROM user_limits WHERE user = ?", user)
