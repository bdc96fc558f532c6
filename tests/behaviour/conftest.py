"""A vhost and a user of a test's own, made and deleted through the broker's command line."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from support import unique


@pytest.fixture
def own_vhost(ctl: Callable[..., str]) -> Iterator[str]:
    """A new vhost that guest may use; it is gone after the test."""
    name = unique("vhost")
    ctl("add_vhost", name)
    ctl("set_permissions", "-p", name, "guest", ".*", ".*", ".*")
    yield name
    ctl("delete_vhost", name)


@pytest.fixture
def own_user(ctl: Callable[..., str], own_vhost: str) -> Iterator[str]:
    """A new user, with the password "secret", that may do anything in `own_vhost`; it is gone after the test."""
    name = unique("user")
    ctl("add_user", name, "secret")
    ctl("set_permissions", "-p", own_vhost, name, ".*", ".*", ".*")
    yield name
    ctl("delete_user", name)
