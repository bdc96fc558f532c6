"""Who is let in: credentials, and where they come from."""

from __future__ import annotations

import base64
from types import SimpleNamespace
from typing import Any

import pytest

from rabbitpy_broker.config import ManagementConfig
from rabbitpy_broker.definitions import Definitions
from rabbitpy_broker.management.api.auth import authenticate, is_loopback
from rabbitpy_broker.management.api.errors import ApiError
from rabbitpy_broker.protocol.node import Totals
from rabbitpy_broker.users import Users

ELSEWHERE = "192.0.2.7"


@pytest.fixture
def api() -> Any:
    """What log-ins see of the broker."""
    users = Users(Definitions(None))
    for name in ("guest", "other"):
        users.put_user(name, name, ["management"])
    node = SimpleNamespace(authenticate=users.authenticate, totals=Totals())
    return SimpleNamespace(broker=SimpleNamespace(node=node), config=ManagementConfig())


def basic(credentials: str) -> dict[str, str]:
    return {"authorization": "Basic " + base64.b64encode(credentials.encode()).decode()}


def refused(api: Any, headers: dict[str, str], query: dict[str, str] | None = None, peer: str = "127.0.0.1") -> ApiError:
    with pytest.raises(ApiError) as caught:
        authenticate(api, headers, query or {}, peer)
    return caught.value


@pytest.mark.parametrize(
    ("peer", "local"),
    [
        ("127.0.0.1", True), ("127.9.9.9", True), ("::1", True), ("::ffff:127.0.0.1", True), ("::1%lo", True), ("", False),
        (ELSEWHERE, False), ("::ffff:192.0.2.7", False), ("2001:db8::1", False), ("localhost", False),
    ],
)  # fmt: skip
def test_the_loopback_is_known(peer: str, local: bool) -> None:
    assert is_loopback(peer) is local


def test_a_guest_comes_from_the_machine_itself(api: Any) -> None:
    assert authenticate(api, basic("guest:guest"), {}, "127.0.0.1").name == "guest"
    error = refused(api, basic("guest:guest"), peer=ELSEWHERE)
    assert (error.status, error.headers) == (401, {})
    assert error.body == {"error": "not_authorised", "reason": "User can only log in via localhost"}
    assert refused(api, basic("guest:wrong"), peer=ELSEWHERE).body == {"error": "not_authorized", "reason": "Login failed"}
    assert authenticate(api, basic("other:other"), {}, ELSEWHERE).name == "other"


def test_a_password_may_have_a_colon(api: Any) -> None:
    users = Users(Definitions(None))
    users.put_user("u", "a:b")
    api.broker.node.authenticate = users.authenticate
    assert authenticate(api, basic("u:a:b"), {}, ELSEWHERE).name == "u"


def test_a_download_has_its_credentials_in_the_query(api: Any) -> None:
    given = base64.b64encode(b"other:other").decode()
    assert authenticate(api, {}, {"auth": given}, ELSEWHERE).name == "other"
    assert "WWW-Authenticate" in refused(api, {}).headers


def test_passwords_are_not_taken_where_they_are_switched_off(api: Any) -> None:
    api.config = ManagementConfig(disable_basic_auth=True)
    assert refused(api, basic("other:other")).status == 401


def test_log_ins_are_counted(api: Any) -> None:
    authenticate(api, basic("other:other"), {}, ELSEWHERE)
    refused(api, basic("other:wrong"))
    totals = api.broker.node.totals
    assert (int(totals.authentications_succeeded), int(totals.authentications_failed)) == (1, 1)
