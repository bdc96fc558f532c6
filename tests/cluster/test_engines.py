"""Which engine a URL names, and what is said when it cannot be had."""

from __future__ import annotations

import sys

import pytest

from rabbitpy_broker.cluster.engines import engine_for
from rabbitpy_broker.errors import ConfigError


async def test_a_url_names_its_engine():
    for scheme in ("postgresql", "postgres"):
        assert type(engine_for(f"{scheme}://user@one,two/database")).__name__ == "PostgresEngine"
    assert type(engine_for("kafka://one,two/prefix")).__name__ == "KafkaEngine"


def test_an_engine_without_its_library_says_what_to_install(monkeypatch: pytest.MonkeyPatch):
    for name in [name for name in sys.modules if name.startswith("rabbitpy_broker.cluster.postgres")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "asyncpg", None)
    with pytest.raises(ConfigError, match=r"^the engine postgresql needs asyncpg: pip install 'rabbitpy-broker\[cluster\]'$"):
        engine_for("postgresql://one/database")


def test_an_unknown_engine_is_refused():
    with pytest.raises(ConfigError, match="there is no engine for 'mysql'"):
        engine_for("mysql://one/database")
