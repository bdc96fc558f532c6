"""The tables in PostgreSQL, in a schema of their own that is made and brought up to date by the first engine that connects.

    log       name, highest term, position of the next entry       trimmed    position of a log's first entry
    block     one row for each entry, its key the log and the position      deleted    logs whose entries are still to be removed
    object, object_part    large objects in parts of a MiB          lease      nodes, and when each was alive last
    registry, registry_head    names with values and versions; the last version

`trimmed` is apart from `log` because a row of `log` is locked by each append until the standbys have confirmed it. Blocks and
parts are stored as they come, uncompressed and out of line.

To change a table: append statements to FORMATS as the next format. What an older broker cannot use any more must not be done to
the tables while it runs: it finds the newer format at its start, and refuses.
"""

from __future__ import annotations

from typing import Any, Final

from rabbitpy_broker.errors import StartError

LOCK: Final = 0x7261626269747079  # an advisory lock: one engine at a time looks at the schema
FORMATS: Final = (
    """
    CREATE TABLE rabbitpy.log (
        id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, name text NOT NULL UNIQUE,
        term bigint NOT NULL DEFAULT 0, next bigint NOT NULL DEFAULT 0
    ) WITH (fillfactor = 20);
    CREATE TABLE rabbitpy.trimmed (log bigint PRIMARY KEY, first bigint NOT NULL DEFAULT 0) WITH (fillfactor = 20);
    CREATE TABLE rabbitpy.deleted (log bigint PRIMARY KEY);
    CREATE TABLE rabbitpy.block (
        log bigint, position bigint, term bigint NOT NULL, block bytea NOT NULL, PRIMARY KEY (log, position)
    ) WITH (autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_insert_scale_factor = 1);
    CREATE TABLE rabbitpy.object (
        id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, name text NOT NULL, size bigint NOT NULL DEFAULT 0,
        complete boolean NOT NULL DEFAULT false, made timestamptz NOT NULL DEFAULT now()
    );
    CREATE UNIQUE INDEX ON rabbitpy.object (name) WHERE complete;
    CREATE TABLE rabbitpy.object_part (
        object bigint, number integer, part bytea NOT NULL, PRIMARY KEY (object, number)
    );
    ALTER TABLE rabbitpy.block ALTER block SET STORAGE EXTERNAL;
    ALTER TABLE rabbitpy.object_part ALTER part SET STORAGE EXTERNAL;
    CREATE TABLE rabbitpy.registry (name text PRIMARY KEY, value bytea NOT NULL, version bigint NOT NULL);
    CREATE TABLE rabbitpy.registry_head (version bigint NOT NULL);
    INSERT INTO rabbitpy.registry_head VALUES (0);
    CREATE TABLE rabbitpy.lease (node text PRIMARY KEY, ends timestamptz NOT NULL, info bytea NOT NULL) WITH (fillfactor = 20);
    """,
)


async def bring_up_to_date(connection: Any) -> None:
    """Makes the schema, or what is missing in it. Raises `StartError` if it is newer than we are."""
    async with connection.transaction():
        await connection.execute("SELECT pg_advisory_xact_lock($1)", LOCK)
        there = await connection.fetchval("SELECT to_regclass('rabbitpy.format') IS NOT NULL")
        if not there:
            await connection.execute("CREATE SCHEMA IF NOT EXISTS rabbitpy")
            await connection.execute("CREATE TABLE rabbitpy.format (version integer NOT NULL)")
            await connection.execute("INSERT INTO rabbitpy.format VALUES (0)")
        version = await connection.fetchval("SELECT version FROM rabbitpy.format")
        if version > len(FORMATS):
            raise StartError(
                f"postgresql: the schema rabbitpy has format {version}, this broker knows {len(FORMATS)}: use a newer one"
            )
        for statements in FORMATS[version:]:
            await connection.execute(statements)
        if version < len(FORMATS):
            await connection.execute("UPDATE rabbitpy.format SET version = $1", len(FORMATS))
