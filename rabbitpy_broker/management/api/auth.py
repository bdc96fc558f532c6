"""Who asks, from where, and what for: credentials, sessions, other sites, and one function for each class of routes that says
who may use them.

Each raises `ApiError` with RabbitMQ's status and reason for whoever may not. A vhost that there is not is the handlers' to
tell: whether that is 404 or something else differs from route to route.
"""

from __future__ import annotations

import base64
import binascii
import ipaddress
from collections.abc import Callable, Mapping
from typing import Final
from urllib.parse import unquote, urlsplit

from rabbitpy_broker.authentication import Credentials
from rabbitpy_broker.management.answers import answered
from rabbitpy_broker.management.api.errors import ApiError, login_failed, no_credentials, not_authorised
from rabbitpy_broker.management.api.request import Request
from rabbitpy_broker.management.api.sessions import Session
from rabbitpy_broker.management.api.state import Api
from rabbitpy_broker.users import BackendFault, User
from rabbitpy_broker.vhost import VHost

MANAGEMENT_TAGS: Final = ("administrator", "monitoring", "policymaker", "management")


def is_loopback(peer: str) -> bool:
    """Whether an address is of this machine."""
    try:
        address = ipaddress.ip_address(peer.partition("%")[0])
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return address.is_loopback or (mapped is not None and mapped.is_loopback)


def credentials(api: Api, headers: Mapping[str, str], query: Mapping[str, str]) -> tuple[str, str] | None:
    """Name and password of the header, or of `?auth=` where a browser downloads; a token has no name. None without.

    Raises ApiError 400 and 401.
    """
    scheme, _, given = headers.get("authorization", "").partition(" ")
    if not scheme and "auth" in query:
        scheme, given = "basic", query["auth"]
    if not scheme:
        return None
    if scheme.lower() == "bearer" and api.broker.config.auth.takes_tokens():
        return "", given.strip()
    if scheme.lower() != "basic" or api.config.disable_basic_auth:
        raise login_failed()
    try:
        name, colon, password = base64.b64decode(unquote(given), validate=True).decode("utf-8").partition(":")
    except (binascii.Error, ValueError):
        raise ApiError(400) from None
    if not colon:
        raise ApiError(400)
    return name, password


def authorization(name: str, password: str) -> str:
    """The header that `credentials` reads."""
    return f"Basic {base64.b64encode(f'{name}:{password}'.encode()).decode()}" if name else f"Bearer {password}"


async def authenticate(
    api: Api, headers: Mapping[str, str], query: Mapping[str, str], peer: str
) -> tuple[User, Session | None]:
    """Who asks: the user of a password or a token or, without one, that of the session. Raises ApiError 400, 401 and 429."""
    given = credentials(api, headers, query)
    if given is not None:
        return await login(api, *given, peer), None
    session = api.sessions.find(headers.get("cookie", ""))
    if session is not None:
        return session.user, session
    raise login_failed(ask=False) if _is_script(api, headers) else no_credentials()


def _is_script(api: Api, headers: Mapping[str, str]) -> bool:
    """Whether a page asks that has a way of its own to log in: then the browser is not to open its own."""
    return (
        "x-csrf-token" in headers
        or api.sessions.cookie in headers.get("cookie", "")
        or headers.get("accept") == "text/event-stream"
        or headers.get("sec-fetch-dest") == "empty"
    )


async def login(api: Api, name: str, password: str, peer: str) -> User:
    """The user with that password or token. Raises ApiError 401 and 429."""
    node = api.broker.node
    await api.throttle.wait(peer, name)
    attempt = node.authenticator.log_in(Credentials(name, password, is_loopback(peer), peer))
    await answered(attempt)
    if attempt.user is not None:
        node.totals.http_authentications_succeeded += 1
        return attempt.user
    node.totals.http_authentications_failed += 1
    node.log.warning("auth.login_failed", user=name, mechanism="HTTP", reason=attempt.reason)
    if attempt.is_loopback_only:
        raise not_authorised("User can only log in via localhost")
    api.throttle.failed(peer, name)
    raise login_failed()


def check_origin(api: Api, method: str, headers: Mapping[str, str]) -> None:
    """A browser that has a password or a session must not use it for another site's script. Tools send neither header.

    Raises ApiError 403.
    """
    origin, site = headers.get("origin"), headers.get("sec-fetch-site")
    if origin is not None and is_allowed_origin(api, origin):
        foreign = origin not in api.config.cors.allow_origins and _is_sent_unasked(method, headers)
    elif site is None:
        foreign = origin is not None and urlsplit(origin).netloc != headers.get("host")
    else:
        foreign = site not in ("same-origin", "none")
    if foreign:
        raise ApiError(403, "forbidden", "the request comes from another site")


def is_allowed_origin(api: Api, origin: str) -> bool:
    """Whether the settings name this site, or all."""
    allowed = api.config.cors.allow_origins
    return "*" in allowed or origin in allowed


def _is_sent_unasked(method: str, headers: Mapping[str, str]) -> bool:
    """Whether a browser sends this to any site, with the password that it remembers, before it asks whether it may."""
    kind = headers.get("content-type", "").partition(";")[0].strip().lower()
    return method == "POST" and kind in ("", "text/plain", "application/x-www-form-urlencoded", "multipart/form-data")


def check_token(request: Request) -> None:
    """A write of a session needs what only the pages of this site know. Raises ApiError 403."""
    session = request.session
    if session is not None and not session.knows(request.headers.get("x-csrf-token", "")):
        raise ApiError(403, "forbidden", "X-CSRF-Token is missing or wrong")


# -- classes of routes ----------------------------------------------------------------------------------------------


def may_enter(user: User, vhost: str) -> bool:
    """Raises AnswerAwaited; whoever serves the request asks again then."""
    try:
        return user.may_enter(vhost)
    except BackendFault:
        return False


def nobody(api: Api, request: Request) -> None:
    """No login is needed."""


def management(api: Api, request: Request) -> None:
    """Anybody who may use the API at all."""
    if not request.has_tag(*MANAGEMENT_TAGS):
        raise not_authorised("Not management user")


def monitor(api: Api, request: Request) -> None:
    management(api, request)
    if not request.is_monitor:
        raise not_authorised("Not monitor user")


def administrator(api: Api, request: Request) -> None:
    management(api, request)
    if not request.is_administrator:
        raise not_authorised("Not administrator user")


def of_vhost(api: Api, request: Request) -> None:
    """Administrators, and whoever may enter the vhost, if the path names one that there is."""
    management(api, request)
    if not request.is_administrator:
        _enter(api, request, "User not authorised to access virtual host")


def inside_vhost(api: Api, request: Request) -> None:
    """Whoever may enter the vhost; nobody may enter one that there is not."""
    management(api, request)
    _enter(api, request, "User not authorised to access virtual host")
    if request.names["vhost"] not in api.vhosts:
        raise not_authorised("Access refused.")


def of_vhost_or_monitor(api: Api, request: Request) -> None:
    """Whoever may enter the vhost, and who may see them all."""
    management(api, request)
    if not request.is_monitor:
        _enter(api, request, "User not authorised to access virtual host")


def policymaker(api: Api, request: Request) -> None:
    """Administrators, and policymakers in their vhosts."""
    management(api, request)
    if request.is_administrator:
        return
    if not request.has_tag("policymaker"):
        raise not_authorised("User not authorised to access object")
    _enter(api, request, "User not authorised to access object")


def _enter(api: Api, request: Request, reason: str) -> None:
    vhost = request.names.get("vhost")
    if vhost is not None and vhost in api.vhosts and not may_enter(request.user, vhost):
        raise not_authorised(reason)


Check = Callable[[Api, Request], None]


# -- what lists show ------------------------------------------------------------------------------------------------


def own_vhosts(api: Api, request: Request) -> list[VHost]:
    """Those that the user may enter, or the one that the header X-Vhost names, if it is one of them; an empty one names none."""
    only = request.headers.get("x-vhost") or None
    return [
        vhost
        for name, vhost in list(api.vhosts.items())
        if may_enter(request.user, name) and (only is None or only == name)
    ]


def visible_vhosts(api: Api, request: Request) -> list[VHost]:
    """Those whose name and totals the user may know: its own, or all for who monitors."""
    return list(api.vhosts.values()) if request.is_monitor else own_vhosts(api, request)


def sees_connections_of(request: Request, user: str) -> bool:
    return request.is_monitor or request.user.name == user
