"""The engine that a URL names. What each needs is an extra, and is imported when it is asked for."""

from __future__ import annotations

from rabbitpy_broker.cluster.engine import Engine
from rabbitpy_broker.errors import ConfigError


def engine_for(url: str) -> Engine:
    """The engine of a URL, not started: `postgresql://user@host,host,host/database` or `kafka://host,host,host`.

    Raises `ConfigError` if there is none for it, or if its library is not installed.
    """
    scheme = url.partition(":")[0]
    try:
        if scheme in ("postgresql", "postgres", "kafka"):
            import zstandard  # noqa: F401 -- what all logs need (compression.py)
        if scheme in ("postgresql", "postgres"):
            from rabbitpy_broker.cluster.postgres.engine import PostgresEngine

            return PostgresEngine(url)
        if scheme == "kafka":
            from rabbitpy_broker.cluster.kafka.engine import KafkaEngine

            return KafkaEngine(url)
    except ModuleNotFoundError as exc:
        raise ConfigError(f"the engine {scheme} needs {exc.name}: pip install 'rabbitpy-broker[cluster]'") from exc
    raise ConfigError(f"there is no engine for {scheme!r}: use a URL that begins with postgresql:// or kafka://")
