"""Definitions: what is committed is there after a crash, what is not is not, and nothing is lost when a commit fails."""

from __future__ import annotations

import os
import signal
import sqlite3
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from rabbitpy_broker import definitions as definitions_module
from rabbitpy_broker.definitions import SCHEMA_VERSION, Definitions, DefinitionsError
from rabbitpy_broker.errors import StartError

TABLE = b"\x01xI\x00\x00\x00\x07"
WORK_ID = 0xFEDC_BA98_7654_3210  # more than SQLite's signed integers hold


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "definitions.sqlite"


@pytest.fixture
def definitions(path: Path) -> Iterator[Definitions]:
    opened = Definitions(path)
    yield opened
    opened.close()


def fill(definitions: Definitions) -> None:
    """One of everything in vhost "/", and a second vhost with the same names."""
    for vhost in ("/", "other"):
        definitions.add_vhost(vhost)
        definitions.put_exchange(vhost, "orders", "topic", False, True, TABLE)
        definitions.put_exchange(vhost, "copies", "fanout", True, False, b"")
        definitions.put_queue(vhost, "work", True, TABLE, WORK_ID)
        definitions.put_binding(vhost, "orders", "queue", "work", "a.*", TABLE)
        definitions.put_binding(vhost, "orders", "queue", "work", "a.*", b"")
        definitions.put_binding(vhost, "orders", "exchange", "copies", "#", b"")
        definitions.put_binding(vhost, "copies", "queue", "work", "", b"")
        definitions.put_permission("anna", vhost, ".*", "^w", "")
        definitions.put_topic_permission("anna", vhost, "orders", "^w", "^r")
        definitions.put_policy(vhost, False, "same", "^w", "queues", -1, '{"max-length":1}')
        definitions.put_policy(vhost, True, "same", "", "all", 2, '{"expires":1}')
        definitions.put_vhost_limits(vhost, '{"max-queues":5}')
        definitions.put_parameter(vhost, "shovel", "s", '{"a":1}')
    definitions.put_user("anna", "hash", "rabbit_password_hashing_sha256", "administrator,monitoring")
    definitions.put_user_limits("anna", '{"max-channels":5}')
    definitions.put_global_parameter("cluster_name", '"rabbit"')


def contents(definitions: Definitions) -> dict[str, list[object]]:
    """Everything, for comparison."""
    everything: dict[str, list[object]] = {
        "vhosts": list(definitions.vhosts()),
        "users": list(definitions.users()),
        "permissions": list(definitions.permissions()),
        "topic permissions": list(definitions.topic_permissions()),
        "user limits": list(definitions.user_limits()),
        "parameters": list(definitions.parameters()),
        "global parameters": list(definitions.global_parameters()),
    }
    for vhost in ("/", "other"):
        everything[f"exchanges {vhost}"] = list(definitions.exchanges(vhost))
        everything[f"queues {vhost}"] = list(definitions.queues(vhost))
        everything[f"bindings {vhost}"] = list(definitions.bindings(vhost))
        everything[f"policies {vhost}"] = list(definitions.policies(vhost))
        everything[f"vhost {vhost}"] = [definitions.vhost_metadata(vhost), definitions.vhost_limits(vhost)]
    return everything


def test_what_is_put_comes_back_with_its_types(definitions: Definitions) -> None:
    fill(definitions)
    assert definitions.vhosts() == ["/", "other"]
    assert definitions.exchanges("/") == [
        ("copies", "fanout", True, False, b""),
        ("orders", "topic", False, True, TABLE),
    ]
    assert definitions.queues("/") == [("work", True, TABLE, WORK_ID)]
    assert definitions.queues("/")[0][1] is True
    assert definitions.bindings("/") == [
        ("copies", "queue", "work", "", b""),
        ("orders", "exchange", "copies", "#", b""),
        ("orders", "queue", "work", "a.*", b""),
        ("orders", "queue", "work", "a.*", TABLE),
    ]
    assert definitions.users() == [
        ("anna", "hash", "rabbit_password_hashing_sha256", "administrator,monitoring")
    ]
    assert definitions.permissions() == [("anna", "/", ".*", "^w", ""), ("anna", "other", ".*", "^w", "")]
    assert definitions.topic_permissions() == [
        ("anna", "/", "orders", "^w", "^r"),
        ("anna", "other", "orders", "^w", "^r"),
    ]
    assert definitions.policies("/") == [
        (False, "same", "^w", "queues", -1, '{"max-length":1}'),
        (True, "same", "", "all", 2, '{"expires":1}'),
    ]
    assert definitions.policies("/")[0][0] is False
    assert definitions.vhost_limits("/") == '{"max-queues":5}'
    assert definitions.user_limits() == [("anna", '{"max-channels":5}')]
    assert definitions.parameters() == [("/", "shovel", "s", '{"a":1}'), ("other", "shovel", "s", '{"a":1}')]
    assert definitions.global_parameters() == [("cluster_name", '"rabbit"')]


def test_what_was_never_put_is_empty(definitions: Definitions) -> None:
    definitions.add_vhost("/")
    assert definitions.vhost_metadata("/") == definitions.vhost_limits("/") == "{}"
    assert definitions.vhost_metadata("absent") == "{}"
    assert definitions.policies("/") == definitions.parameters() == definitions.global_parameters() == []


def test_adding_a_vhost_again_changes_its_metadata_only(definitions: Definitions) -> None:
    fill(definitions)
    before = contents(definitions)
    definitions.add_vhost("/", '{"description":"main"}')
    assert definitions.vhost_metadata("/") == '{"description":"main"}'
    assert contents(definitions) == {**before, "vhost /": ['{"description":"main"}', '{"max-queues":5}']}


def test_each_policy_parameter_and_limit_is_deleted_by_its_key(definitions: Definitions) -> None:
    fill(definitions)
    definitions.delete_policy("/", True, "same")
    definitions.delete_vhost_limits("/")
    definitions.delete_user_limits("anna")
    definitions.delete_parameter("/", "shovel", "s")
    definitions.delete_global_parameter("cluster_name")
    definitions.delete_topic_permission("anna", "/", "orders")
    assert definitions.policies("/") == [(False, "same", "^w", "queues", -1, '{"max-length":1}')]
    assert len(definitions.policies("other")) == 2
    assert definitions.vhost_limits("/") == "{}"
    assert definitions.vhost_limits("other") == '{"max-queues":5}'
    assert definitions.user_limits() == definitions.global_parameters() == []
    assert definitions.parameters() == [("other", "shovel", "s", '{"a":1}')]
    assert definitions.topic_permissions() == [("anna", "other", "orders", "^w", "^r")]


def test_any_name_is_kept_exactly(definitions: Definitions) -> None:
    names = sorted(["", "ü" * 100, "a\x00b", "a", "A", "  ", "'; DROP TABLE queues; --", "\U0001f407"])
    for name in names:
        definitions.put_queue("/", name, False, b"", 0)
    assert [name for name, *_ in definitions.queues("/")] == names


def test_putting_twice_replaces(definitions: Definitions) -> None:
    definitions.put_queue("/", "work", False, b"", 1)
    definitions.put_queue("/", "work", True, TABLE, WORK_ID)
    assert definitions.queues("/") == [("work", True, TABLE, WORK_ID)]


def test_deleting_a_queue_deletes_the_bindings_to_it(definitions: Definitions) -> None:
    fill(definitions)
    definitions.delete_queue("/", "work")
    assert definitions.queues("/") == []
    assert definitions.bindings("/") == [("orders", "exchange", "copies", "#", b"")]
    assert len(definitions.bindings("other")) == 4


def test_deleting_an_exchange_deletes_the_bindings_from_it_and_to_it(definitions: Definitions) -> None:
    fill(definitions)
    definitions.delete_exchange("/", "copies")
    assert [name for name, *_ in definitions.exchanges("/")] == ["orders"]
    assert definitions.bindings("/") == [
        ("orders", "queue", "work", "a.*", b""),
        ("orders", "queue", "work", "a.*", TABLE),
    ]


def test_a_queue_of_the_name_of_an_exchange_keeps_its_bindings(definitions: Definitions) -> None:
    definitions.put_binding("/", "amq.direct", "queue", "same", "", b"")
    definitions.put_binding("/", "amq.direct", "exchange", "same", "", b"")
    definitions.delete_exchange("/", "same")
    assert definitions.bindings("/") == [("amq.direct", "queue", "same", "", b"")]


def test_one_binding_is_deleted_by_all_that_it_is(definitions: Definitions) -> None:
    fill(definitions)
    definitions.delete_binding("/", "orders", "queue", "work", "a.*", TABLE)
    assert ("orders", "queue", "work", "a.*", b"") in definitions.bindings("/")
    assert ("orders", "queue", "work", "a.*", TABLE) not in definitions.bindings("/")


def test_deleting_a_vhost_deletes_all_in_it_and_nothing_else(definitions: Definitions) -> None:
    fill(definitions)
    definitions.delete_vhost("other")
    assert definitions.vhosts() == ["/"]
    assert (
        definitions.exchanges("other") == definitions.queues("other") == definitions.bindings("other") == []
    )
    assert definitions.permissions() == [("anna", "/", ".*", "^w", "")]
    assert definitions.topic_permissions() == [("anna", "/", "orders", "^w", "^r")]
    assert definitions.policies("other") == []
    assert definitions.vhost_limits("other") == "{}"
    assert definitions.parameters() == [("/", "shovel", "s", '{"a":1}')]
    assert len(definitions.bindings("/")) == 4
    assert len(definitions.policies("/")) == 2


def test_deleting_a_user_deletes_its_permissions_and_limits(definitions: Definitions) -> None:
    fill(definitions)
    definitions.delete_permission("anna", "other")
    assert definitions.permissions() == [("anna", "/", ".*", "^w", "")]
    definitions.delete_user("anna")
    assert definitions.users() == definitions.permissions() == []
    assert definitions.topic_permissions() == definitions.user_limits() == []


def test_dirty_says_whether_a_commit_is_due(definitions: Definitions) -> None:
    assert not definitions.dirty
    definitions.add_vhost("/")
    assert definitions.dirty
    definitions.commit()
    assert not definitions.dirty


def test_everything_is_there_after_a_clean_close(path: Path, definitions: Definitions) -> None:
    fill(definitions)
    before = contents(definitions)
    definitions.close()
    reopened = Definitions(path)
    assert contents(reopened) == before
    reopened.close()


def test_in_memory_works_without_a_file() -> None:
    definitions = Definitions(None)
    fill(definitions)
    definitions.commit()
    assert len(definitions.bindings("/")) == 4
    definitions.close()


CRASHING_WRITER = """
import os, signal, sys
from rabbitpy_broker.definitions import Definitions
definitions = Definitions(sys.argv[1])
definitions.add_vhost("/")
for number in range(50):
    definitions.put_queue("/", f"committed-{number}", False, b"", 1)
    definitions.put_binding("/", "amq.direct", "queue", f"committed-{number}", "k", b"")
definitions.commit()
definitions.delete_queue("/", "committed-0")
definitions.put_queue("/", "uncommitted", False, b"", 1)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_crash_loses_what_was_not_committed_and_nothing_else(path: Path) -> None:
    crashed = subprocess.run(
        [sys.executable, "-P", "-c", CRASHING_WRITER, os.fspath(path)], check=False, timeout=30
    )
    assert crashed.returncode == -signal.SIGKILL
    definitions = Definitions(path)
    names = sorted(f"committed-{number}" for number in range(50))
    assert [name for name, *_ in definitions.queues("/")] == names
    assert [destination for _, _, destination, _, _ in definitions.bindings("/")] == names
    definitions.close()


def test_a_failed_commit_keeps_everything_for_the_next(path: Path, definitions: Definitions) -> None:
    definitions.add_vhost("before")
    definitions.commit()
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")  # somebody holds the write lock
    definitions.put_queue("/", "first", False, b"", 1)
    with pytest.raises(DefinitionsError, match="locked"):
        definitions.commit()
    assert definitions.dirty
    definitions.put_queue("/", "second", False, b"", 1)
    other.execute("ROLLBACK")
    other.close()
    definitions.commit()
    assert not definitions.dirty
    assert [name for name, *_ in definitions.queues("/")] == ["first", "second"]


def test_a_full_disk_fails_the_commit_as_a_whole(path: Path) -> None:
    """SQLite's own page limit gives the same error as a full disk."""
    definitions = Definitions(path)
    pages = definitions._db.execute("PRAGMA page_count").fetchone()[0]
    definitions._db.execute(f"PRAGMA max_page_count = {pages + 2}")
    definitions.put_queue("/", "small", False, b"", 1)
    definitions.put_queue("/", "large", False, bytes(100_000), 1)
    with pytest.raises(DefinitionsError, match="full"):
        definitions.commit()
    reader = sqlite3.connect(path)
    assert reader.execute("SELECT name FROM queues").fetchall() == []
    reader.close()
    definitions._db.execute(f"PRAGMA max_page_count = {pages + 1000}")
    definitions.commit()
    assert [name for name, *_ in definitions.queues("/")] == ["large", "small"]
    definitions.close()


def test_every_commit_is_synced(definitions: Definitions) -> None:
    assert definitions._db.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    assert definitions._db.execute("PRAGMA synchronous").fetchone() == (2,)  # FULL


def test_nobody_else_may_read_the_files(path: Path, definitions: Definitions) -> None:
    definitions.put_user("anna", "hash", "rabbit_password_hashing_sha256", "")
    definitions.commit()
    files = list(path.parent.iterdir())
    assert path in files
    assert [stat.S_IMODE(file.stat().st_mode) for file in files] == [0o600] * len(files)


@pytest.mark.parametrize("queue_id", [0, 1, 2**63 - 1, 2**63, 2**64 - 1])
def test_a_queue_id_has_64_bits_without_a_sign(definitions: Definitions, queue_id: int) -> None:
    definitions.put_queue("/", "work", False, b"", queue_id)
    assert definitions.queues("/") == [("work", False, b"", queue_id)]


def test_queues_of_a_file_from_before_queue_ids_get_one_each(path: Path) -> None:
    with sqlite3.connect(path) as database:
        for statement in definitions_module._MIGRATIONS[0]:
            database.execute(statement)
        database.executemany("INSERT INTO queues VALUES ('/', ?, 1, ?)", [(f"q{number}", TABLE) for number in range(20)])
        database.execute("PRAGMA user_version = 1")
    database.close()
    definitions = Definitions(path)
    queues = definitions.queues("/")
    assert [(name, auto_delete, raw) for name, auto_delete, raw, _ in queues] == sorted(
        (f"q{number}", True, TABLE) for number in range(20)
    )
    queue_ids = {queue_id for *_, queue_id in queues}
    assert len(queue_ids) == 20
    assert max(queue_ids) < 2**64
    assert max(queue_ids) > 2**32
    definitions.close()
    reopened = Definitions(path)
    assert reopened.queues("/") == queues
    reopened.close()


def test_a_file_from_before_policies_keeps_what_it_has(path: Path) -> None:
    with sqlite3.connect(path) as database:
        for statement in (*definitions_module._MIGRATIONS[0], *definitions_module._MIGRATIONS[1]):
            database.execute(statement)
        database.execute("INSERT INTO vhosts VALUES ('/')")
        database.execute("INSERT INTO exchanges VALUES ('/', 'orders', 'topic', 0, 1, ?)", (TABLE,))
        database.execute("INSERT INTO queues VALUES ('/', 'work', 1, ?, ?)", (TABLE, f"{WORK_ID:016x}"))
        database.execute("INSERT INTO bindings VALUES ('/', 'orders', 'queue', 'work', 'a.*', ?)", (TABLE,))
        database.execute("INSERT INTO users VALUES ('anna', 'hash', 'rabbit_password_hashing_md5', 'monitoring')")
        database.execute("INSERT INTO permissions VALUES ('anna', '/', '.*', '^w', '')")
        database.execute("PRAGMA user_version = 2")
    database.close()
    definitions = Definitions(path)
    assert definitions.vhosts() == ["/"]
    assert definitions.vhost_metadata("/") == definitions.vhost_limits("/") == "{}"
    assert definitions.exchanges("/") == [("orders", "topic", False, True, TABLE)]
    assert definitions.queues("/") == [("work", True, TABLE, WORK_ID)]
    assert definitions.bindings("/") == [("orders", "queue", "work", "a.*", TABLE)]
    assert definitions.users() == [("anna", "hash", "rabbit_password_hashing_md5", "monitoring")]
    assert definitions.permissions() == [("anna", "/", ".*", "^w", "")]
    assert definitions.policies("/") == definitions.topic_permissions() == definitions.user_limits() == []
    fill(definitions)
    before = contents(definitions)
    definitions.close()
    reopened = Definitions(path)
    assert contents(reopened) == before
    reopened.close()


def test_a_file_of_a_newer_version_is_refused(path: Path) -> None:
    Definitions(path).close()
    with sqlite3.connect(path) as database:
        database.execute(f"PRAGMA user_version = {SCHEMA_VERSION + 1}")
    database.close()
    with pytest.raises(
        StartError, match=f"written by a newer rabbitpy-broker: their schema is version {SCHEMA_VERSION + 1}"
    ):
        Definitions(path)


def test_a_file_that_is_no_database_is_refused(path: Path) -> None:
    path.write_bytes(b"no database at all, but long enough to have a header " * 20)
    with pytest.raises(StartError, match=r"cannot read the definitions .*: file is not a database"):
        Definitions(path)


def test_a_file_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StartError, match="cannot open the definitions"):
        Definitions(tmp_path / "absent" / "definitions.sqlite")
