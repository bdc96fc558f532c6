"""The session of a browser: /session, and /login, which RabbitMQ's pages ask."""

from __future__ import annotations

import time
from urllib.parse import parse_qs

from rabbitpy_broker.management.api.auth import authorization, check_token, login, management
from rabbitpy_broker.management.api.errors import ApiError, login_failed
from rabbitpy_broker.management.api.forwarded import BEGUN, told_of
from rabbitpy_broker.management.api.request import Answer, Request, Row, text
from rabbitpy_broker.management.api.sessions import Session
from rabbitpy_broker.management.api.state import Api


def _row(api: Api, session: Session) -> Row:
    left_s = session.used + api.sessions.idle_s - time.monotonic()
    return {
        "name": session.user.name,
        "tags": list(session.tags),
        "csrf": session.csrf,
        "expires": int((time.time() + left_s) * 1000),
        "idle_s": int(api.sessions.idle_s),
        "read_only": api.config.read_only,
        "rates": api.sampler.kept.rates,
    }


def _path(api: Api) -> str:
    return f"{api.config.path_prefix}/"


async def begin(api: Api, request: Request) -> Answer:
    """A browser logs in. The password is right once, and not needed any more."""
    body = request.json()
    try:
        request.user = await login(api, text(body, "username"), text(body, "password"), request.peer)
    except ApiError as error:
        error.headers.pop("WWW-Authenticate", None)  # the page asks for another one
        raise
    management(api, request)
    before = api.sessions.find(request.headers.get("cookie", ""))
    if before is not None:
        api.sessions.end(before)
    session = api.sessions.begin(request.user)
    if api.broker.member is not None and not request.user.is_ours:
        session.given = authorization(body["username"], body["password"])
    headers = {"Set-Cookie": api.sessions.set_cookie(session, _path(api), secure=request.is_encrypted)}
    if request.is_forwarded:
        session.is_adopted = True
        headers[BEGUN] = told_of(session)
    return Answer(200, _row(api, session), headers)


def show(api: Api, request: Request) -> Row:
    return _row(api, _own(api, request))


def end(api: Api, request: Request) -> Answer:
    request.session = _own(api, request)
    check_token(request)
    api.sessions.end(request.session)
    return Answer(204, None, {"Set-Cookie": api.sessions.clear_cookie(_path(api))})


def _own(api: Api, request: Request) -> Session:
    """Raises ApiError 401 without one."""
    session = api.sessions.find(request.headers.get("cookie", ""))
    if session is None:
        raise login_failed(ask=False)
    return session


async def check(api: Api, request: Request) -> Answer:
    """Whether a name and a password would do."""
    form = parse_qs(request.body.decode("utf-8", "replace"))
    names, passwords = form.get("username", []), form.get("password", [])
    if len(names) != 1 or len(passwords) != 1:
        raise login_failed()
    request.user = await login(api, names[0], passwords[0], request.peer)
    management(api, request)
    return Answer(200, "ok")
