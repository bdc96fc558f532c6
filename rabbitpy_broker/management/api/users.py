"""Users, and who is asking: /users, /whoami."""

from __future__ import annotations

from typing import Any

from rabbitpy_broker.management.admin import check_name, split_tags
from rabbitpy_broker.management.api.errors import bad_request, not_found
from rabbitpy_broker.management.api.request import CREATED, NO_CONTENT, Answer, Listing, Request, Row, need
from rabbitpy_broker.management.api.state import Api
from rabbitpy_broker.users import HASHING_ALGORITHM, User, UserError, hash_password


def user_or_404(api: Api, request: Request) -> User:
    user = api.admin.users.get(request.names["user"])
    if user is None:
        raise not_found()
    return user


def _row(user: User) -> Row:
    return {
        "name": user.name,
        "password_hash": user.password_hash,
        "hashing_algorithm": user.hashing_algorithm,
        "tags": list(user.tags),
        "limits": dict(user.limits),
    }


def _listing(users: list[User]) -> Listing:
    return Listing(iter(users), _row, lambda user: user.name)


def list_all(api: Api, request: Request) -> Listing:
    return _listing(api.admin.users.all())


def list_without_permissions(api: Api, request: Request) -> Listing:
    return _listing([user for user in api.admin.users.all() if not user.permissions])


def get_one(api: Api, request: Request) -> Row:
    return _row(user_or_404(api, request))


def whoami(api: Api, request: Request) -> Row:
    return {"name": request.user.name, "tags": list(request.user.tags)}


def put(api: Api, request: Request) -> Answer:
    name, body, users = request.names["user"], request.json(), api.admin.users
    check_name("user", name)
    password, hashed = body.get("password"), body.get("password_hash")
    if password is not None and hashed is not None:
        raise bad_request("both_password_and_password_hash_are_provided")
    algorithm = str(body.get("hashing_algorithm", HASHING_ALGORITHM))
    tags = _tags(body)
    permissions = body.get("permissions", {})
    if not isinstance(permissions, dict) or not all(isinstance(may, dict) for may in permissions.values()):
        raise bad_request("permissions must be an object of objects")
    try:
        if password is not None:
            hashed = hash_password(str(password), algorithm) if password != "" else ""
        is_new = users.get(name) is None
        users.put_user_hash(name, str(hashed or ""), algorithm, tags)
        for vhost, may in permissions.items():
            if vhost in api.vhosts:
                users.set_permissions(name, vhost, *(str(may.get(key, "")) for key in ("configure", "write", "read")))
    except (UserError, KeyError) as error:
        raise bad_request(str(error)) from None
    finally:
        api.admin.commit()
    return CREATED if is_new else NO_CONTENT


def _tags(body: dict[str, Any]) -> list[str]:
    """A list, a text with commas or, as of old, `administrator: true`."""
    tags = body.get("tags")
    if tags is None:
        if "administrator" not in body:
            raise bad_request("tags_not_present")
        return ["administrator"] if body["administrator"] in (True, "true") else []
    if isinstance(tags, str):
        return split_tags(tags)
    if isinstance(tags, list) and all(isinstance(tag, str) for tag in tags):
        return [tag for tag in tags if tag]
    raise bad_request("tags must be a list of texts, or a text with commas")


def remove(api: Api, request: Request) -> Answer:
    api.admin.delete_user(user_or_404(api, request).name)
    return NO_CONTENT


def remove_several(api: Api, request: Request) -> Answer:
    (names,) = need(request.json(), "users")
    if not isinstance(names, list):
        raise bad_request("users must be a list")
    for name in names:
        if not isinstance(name, str) or api.admin.users.get(name) is None:
            raise bad_request(["no_such_user", name])
    for name in dict.fromkeys(names):
        api.admin.delete_user(name)
    return NO_CONTENT
