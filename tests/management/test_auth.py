"""Who is let in: credentials, and where they come from."""

from __future__ import annotations

import asyncio
import base64
from types import SimpleNamespace
from typing import Any

import pytest

from rabbitpy_broker.authentication import Authenticator
from rabbitpy_broker.config import Config, ManagementConfig, ManagementCors
from rabbitpy_broker.definitions import Definitions
from rabbitpy_broker.management.api.auth import authenticate, check_origin, is_loopback
from rabbitpy_broker.management.api.errors import ApiError
from rabbitpy_broker.management.api.sessions import Sessions
from rabbitpy_broker.management.api.throttle import FAILURES_FREE, Throttle
from rabbitpy_broker.protocol.node import Totals
from rabbitpy_broker.users import Users

ELSEWHERE = "192.0.2.7"


@pytest.fixture
def api() -> Any:
    """What log-ins see of the broker."""
    users = Users(Definitions(None))
    for name in ("guest", "other"):
        users.put_user(name, name, ["management"])
    log = SimpleNamespace(warning=lambda *_, **__: None)
    node = SimpleNamespace(authenticator=Authenticator(users), totals=Totals(), users=users, log=log)
    return SimpleNamespace(
        broker=SimpleNamespace(node=node, config=Config()),
        config=ManagementConfig(),
        sessions=Sessions(users, 3600, "cookie"),
        throttle=Throttle(),
    )


def basic(credentials: str) -> dict[str, str]:
    return {"authorization": "Basic " + base64.b64encode(credentials.encode()).decode()}


async def refused(
    api: Any, headers: dict[str, str], query: dict[str, str] | None = None, peer: str = "127.0.0.1"
) -> ApiError:
    with pytest.raises(ApiError) as caught:
        await authenticate(api, headers, query or {}, peer)
    return caught.value


async def name_of(api: Any, headers: dict[str, str], query: dict[str, str] | None = None, peer: str = ELSEWHERE) -> str:
    user, _ = await authenticate(api, headers, query or {}, peer)
    return user.name


@pytest.mark.parametrize(
    ("peer", "local"),
    [
        ("127.0.0.1", True), ("127.9.9.9", True), ("::1", True), ("::ffff:127.0.0.1", True), ("::1%lo", True), ("", False),
        (ELSEWHERE, False), ("::ffff:192.0.2.7", False), ("2001:db8::1", False), ("localhost", False),
    ],
)  # fmt: skip
def test_the_loopback_is_known(peer: str, local: bool) -> None:
    assert is_loopback(peer) is local


async def test_a_guest_comes_from_the_machine_itself(api: Any) -> None:
    assert await name_of(api, basic("guest:guest"), peer="127.0.0.1") == "guest"
    error = await refused(api, basic("guest:guest"), peer=ELSEWHERE)
    assert (error.status, error.headers) == (401, {})
    assert error.body == {"error": "not_authorised", "reason": "User can only log in via localhost"}
    wrong = await refused(api, basic("guest:wrong"), peer=ELSEWHERE)
    assert wrong.body == {"error": "not_authorized", "reason": "Login failed"}
    assert await name_of(api, basic("other:other")) == "other"


async def test_a_password_may_have_a_colon(api: Any) -> None:
    users = Users(Definitions(None))
    users.put_user("u", "a:b")
    api.broker.node.authenticator = Authenticator(users)
    assert await name_of(api, basic("u:a:b")) == "u"


async def test_a_download_has_its_credentials_in_the_query(api: Any) -> None:
    given = base64.b64encode(b"other:other").decode()
    assert await name_of(api, {}, {"auth": given}) == "other"
    assert "WWW-Authenticate" in (await refused(api, {})).headers


async def test_passwords_are_not_taken_where_they_are_switched_off(api: Any) -> None:
    api.config = ManagementConfig(disable_basic_auth=True)
    assert (await refused(api, basic("other:other"))).status == 401


async def test_log_ins_are_counted(api: Any) -> None:
    await name_of(api, basic("other:other"))
    await refused(api, basic("other:wrong"))
    totals = api.broker.node.totals
    assert (int(totals.http_authentications_succeeded), int(totals.http_authentications_failed)) == (1, 1)


async def test_who_guesses_gets_few_tries_and_others_do_not_wait(api: Any) -> None:
    for _ in range(FAILURES_FREE):
        await refused(api, basic("other:wrong"))
    guesses = [asyncio.create_task(refused(api, basic("other:wrong"))) for _ in range(30)]
    await asyncio.sleep(0)
    assert await name_of(api, basic("guest:guest"), peer="127.0.0.1") == "guest"
    assert await name_of(api, basic("other:other"), peer=ELSEWHERE) == "other"
    assert not any(guess.done() and guess.result().status == 401 for guess in guesses)
    statuses = [error.status for error in await asyncio.gather(*guesses)]
    assert statuses.count(429) == 10
    assert statuses.count(401) == 20


async def test_a_session_ends_with_what_it_began_with(api: Any) -> None:
    users = api.broker.node.users

    async def who(session: Any) -> str:
        return await name_of(api, {"cookie": f"x=1; cookie={session.id}"})

    first = api.sessions.begin(users.get("other"))
    assert await who(first) == "other"
    users.change_password("other", "new")
    assert "WWW-Authenticate" not in (await refused(api, {"cookie": f"cookie={first.id}"})).headers
    second = api.sessions.begin(users.get("other"))
    users.set_tags("other", ["administrator"])
    await refused(api, {"cookie": f"cookie={second.id}"})
    third = api.sessions.begin(users.get("other"))
    assert await who(third) == "other"
    users.delete_user("other")
    users.put_user("other", "new", ["administrator"])
    await refused(api, {"cookie": f"cookie={third.id}"})
    fourth = api.sessions.begin(users.get("other"))
    fourth.used -= 3601
    await refused(api, {"cookie": f"cookie={fourth.id}"})


@pytest.mark.parametrize(
    ("method", "headers", "passes"),
    [
        ("PUT", {}, True),
        ("PUT", {"origin": "http://here:1"}, True),
        ("PUT", {"origin": "https://proxy", "sec-fetch-site": "same-origin"}, True),
        ("PUT", {"sec-fetch-site": "none"}, True),
        ("PUT", {"origin": "http://here:2"}, False),
        ("PUT", {"origin": "null"}, False),
        ("PUT", {"sec-fetch-site": "same-site"}, False),
        ("PUT", {"origin": "http://here:1", "sec-fetch-site": "cross-site"}, False),
        ("POST", {"origin": "https://friend", "sec-fetch-site": "cross-site", "content-type": "text/plain"}, True),
    ],
)
def test_other_sites_are_told_from_this_one(api: Any, method: str, headers: dict[str, str], passes: bool) -> None:
    api.config = ManagementConfig(cors=ManagementCors(allow_origins=("https://friend",)))
    if passes:
        check_origin(api, method, {"host": "here:1", **headers})
    else:
        with pytest.raises(ApiError):
            check_origin(api, method, {"host": "here:1", **headers})


@pytest.mark.parametrize(
    ("kind", "passes"),
    [("application/json", True), ("", False), ("text/plain; charset=utf-8", False), ("multipart/form-data", False)],
)
def test_where_all_sites_may_ask_none_uses_a_remembered_password(api: Any, kind: str, passes: bool) -> None:
    """A browser sends a form to any site, with the password that it remembers, and asks nobody before."""
    api.config = ManagementConfig(cors=ManagementCors(allow_origins=("*",)))
    headers = {"origin": "https://evil", "sec-fetch-site": "cross-site", "content-type": kind}
    if passes:
        check_origin(api, "POST", headers)
    else:
        with pytest.raises(ApiError):
            check_origin(api, "POST", headers)
    check_origin(api, "PUT", headers)
