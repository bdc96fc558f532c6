"""Which settings of PostgreSQL are refused, and that the line says what to change."""

from __future__ import annotations

import pytest

from rabbitpy_broker.cluster.postgres.connections import hosts, session_settings
from rabbitpy_broker.cluster.postgres.promises import broken_promise, standbys

GOOD = {
    "fsync": "on",
    "full_page_writes": "on",
    "synchronous_commit": "on",
    "synchronous_standby_names": "ANY 1 (a, b)",
}


@pytest.mark.parametrize(
    "setting, needed, names",
    [
        ("", 0, []),
        ("a", 1, ["a"]),
        ("a, b", 1, ["a", "b"]),
        ("2 (a, b, c)", 2, ["a", "b", "c"]),
        ("ANY 1 (a, b)", 1, ["a", "b"]),
        ("any 2(a,b,c)", 2, ["a", "b", "c"]),
        ("FIRST 1 (a, b)", 1, ["a", "b"]),
        ('ANY 1 ("node-1", "x ""y"" , z")', 1, ['"node-1"', '"x ""y"" , z"']),
        (" ANY 1 (*) ", 1, ["*"]),
    ],
)
def test_the_standbys_that_must_confirm(setting: str, needed: int, names: list[str]):
    assert standbys(setting) == (needed, names)


@pytest.mark.parametrize(
    "setting", ["ANY 1 (a, b)", "FIRST 1 (a, b)", "a, b", "ANY 2 (a, b)", "ANY 2 (a, b, c)", "ANY 2 (a, b, c, d)"]
)
def test_a_majority_that_confirms_is_accepted(setting: str):
    assert broken_promise(150018, {**GOOD, "synchronous_standby_names": setting}) is None


@pytest.mark.parametrize(
    "name, value, advice",
    [
        ("fsync", "off", "set fsync = on"),
        ("full_page_writes", "off", "set full_page_writes = on"),
        ("synchronous_commit", "off", "set it to on"),
        ("synchronous_commit", "local", "set it to on"),
        ("synchronous_commit", "remote_write", "set it to on"),
        ("synchronous_standby_names", "", "set it to 'ANY 1 (one, other)'"),
        ("synchronous_standby_names", "a", "set it to 'ANY 1 (one, other)'"),
        ("synchronous_standby_names", "ANY 1 (*)", "set it to 'ANY 1 (one, other)'"),
        ("synchronous_standby_names", "ANY 1 (a, b, c)", "set it to 'ANY 2 (a, b, c)'"),
        ("synchronous_standby_names", "FIRST 1 (a, b, c, d)", "set it to 'ANY 2 (a, b, c, d)'"),
    ],
)
def test_a_setting_that_breaks_the_promise_is_refused_in_one_line(name: str, value: str, advice: str):
    said = broken_promise(150018, {**GOOD, name: value})
    assert said is not None
    assert name in said
    assert advice in said
    assert "\n" not in said


def test_a_server_that_is_too_old_is_refused():
    assert broken_promise(120022, GOOD) == "the server's version is 12: use PostgreSQL 13 or newer"


def test_the_servers_of_a_url():
    assert hosts("postgresql://user:p%40ss@one:5433,two,[::1]:5434,[fe80::2]/database?sslmode=require") == [
        ("one", 5433), ("two", 5432), ("::1", 5434), ("fe80::2", 5432),
    ]  # fmt: skip
    assert hosts("postgresql:///database") == [(None, None)]


def test_what_a_url_says_of_its_session_goes_before_ours():
    assert session_settings("postgresql://one/x")["synchronous_commit"] == "on"
    assert "synchronous_commit" not in session_settings("postgresql://one/x?synchronous_commit=local")
