"""Permissions and topic permissions, of all, of a vhost, of a user, of both."""

from __future__ import annotations

from collections.abc import Iterator

from rabbitpy_broker.management.admin import AdminError
from rabbitpy_broker.management.api.errors import bad_request, not_found
from rabbitpy_broker.management.api.request import (
    CREATED,
    NO_CONTENT,
    Answer,
    Listing,
    Request,
    Row,
    need,
    vhost_or_404,
)
from rabbitpy_broker.management.api.state import Api
from rabbitpy_broker.management.api.users import user_or_404
from rabbitpy_broker.users import User


def _rows(api: Api, user: str | None = None, vhost: str | None = None) -> Iterator[Row]:
    for each in api.admin.users.all():
        for name, may in list(each.permissions.items()):
            if user in (None, each.name) and vhost in (None, name):
                yield {"user": each.name, "vhost": name, "configure": may.configure, "write": may.write, "read": may.read}


def _topic_rows(api: Api, user: str | None = None, vhost: str | None = None) -> Iterator[Row]:
    for each in api.admin.users.all():
        for name, exchanges in list(each.topic_permissions.items()):
            if user in (None, each.name) and vhost in (None, name):
                for exchange, may in exchanges.items():
                    yield {"user": each.name, "vhost": name, "exchange": exchange, "write": may.write, "read": may.read}


def _listing(rows: Iterator[Row]) -> Listing:
    return Listing(rows, lambda row: row, lambda row: (row["vhost"], row["user"]))


def list_all(api: Api, request: Request) -> Listing:
    return _listing(_rows(api))


def list_topic(api: Api, request: Request) -> Listing:
    return _listing(_topic_rows(api))


def list_of_vhost(api: Api, request: Request) -> Listing:
    return _listing(_rows(api, vhost=vhost_or_404(api.vhosts, request.names["vhost"]).name))


def list_topic_of_vhost(api: Api, request: Request) -> Listing:
    return _listing(_topic_rows(api, vhost=vhost_or_404(api.vhosts, request.names["vhost"]).name))


def list_of_user(api: Api, request: Request) -> Listing:
    return _listing(_rows(api, user=user_or_404(api, request).name))


def list_topic_of_user(api: Api, request: Request) -> Listing:
    return _listing(_topic_rows(api, user=user_or_404(api, request).name))


def _found(api: Api, request: Request) -> User:
    """The user of the path, if it may enter the vhost of the path. Raises ApiError 404."""
    user = user_or_404(api, request)
    if not _is_there(api, request.names["vhost"]) or request.names["vhost"] not in user.permissions:
        raise not_found()
    return user


def _is_there(api: Api, vhost: str) -> bool:
    """Whether there is such a vhost, here or at another node of the cluster."""
    return vhost in api.vhosts or vhost in api.broker.node.owned_elsewhere


def _check_both(api: Api, request: Request) -> None:
    if not _is_there(api, request.names["vhost"]) or api.admin.users.get(request.names["user"]) is None:
        raise bad_request("vhost_or_user_not_found")


def get_one(api: Api, request: Request) -> Row:
    return next(_rows(api, _found(api, request).name, request.names["vhost"]))


def put(api: Api, request: Request) -> Answer:
    _check_both(api, request)
    user, vhost = request.names["user"], request.names["vhost"]
    patterns = need(request.json(), "configure", "write", "read")
    is_new = vhost not in user_or_404(api, request).permissions
    try:
        api.admin.set_permissions(user, *_texts(patterns), vhost=vhost)
    except AdminError as error:
        raise bad_request(["invalid_regexp", str(error)]) from None
    return CREATED if is_new else NO_CONTENT


def _texts(patterns: list[object]) -> list[str]:
    for pattern in patterns:
        if not isinstance(pattern, str):
            raise bad_request(["not_string", pattern])
    return [str(pattern) for pattern in patterns]


def remove(api: Api, request: Request) -> Answer:
    api.admin.clear_permissions(_found(api, request).name, vhost=request.names["vhost"])
    return NO_CONTENT


def _topic_found(api: Api, request: Request) -> list[Row]:
    """Raises ApiError 404 when there are none."""
    rows = list(_topic_rows(api, request.names["user"], request.names["vhost"]))
    if not _is_there(api, request.names["vhost"]) or not rows:
        raise not_found()
    return rows


def get_topic(api: Api, request: Request) -> list[Row]:
    return _topic_found(api, request)


def put_topic(api: Api, request: Request) -> Answer:
    _check_both(api, request)
    exchange, *patterns = _texts(need(request.json(), "exchange", "write", "read"))
    user, vhost = request.names["user"], request.names["vhost"]
    is_new = vhost not in user_or_404(api, request).topic_permissions
    try:
        api.admin.set_topic_permissions(user, exchange, *patterns, vhost=vhost)
    except AdminError as error:
        raise bad_request(["invalid_regexp", str(error)]) from None
    return CREATED if is_new else NO_CONTENT


def remove_topic(api: Api, request: Request) -> Answer:
    """Of one exchange where the path names one, else all in the vhost."""
    _topic_found(api, request)
    exchange = request.names.get("exchange")
    api.admin.clear_topic_permissions(request.names["user"], exchange, vhost=request.names["vhost"])
    return NO_CONTENT
