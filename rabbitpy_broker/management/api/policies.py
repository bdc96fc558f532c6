"""Policies and operator policies, parameters and global parameters, limits."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Final

from rabbitpy_broker.erlang_text import erlang_text
from rabbitpy_broker.limits import LimitError
from rabbitpy_broker.management.admin import AdminError
from rabbitpy_broker.management.api.auth import own_vhosts
from rabbitpy_broker.management.api.errors import bad_request, invalid, no_such, not_found
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
from rabbitpy_broker.management.listing import policy_value
from rabbitpy_broker.policies import Policy
from rabbitpy_broker.vhost import VHost

LIMITS: Final = "vhost-limits"
OPERATOR: Final = "operator_policy"


def _row(vhost: VHost, policy: Policy) -> Row:
    return {"vhost": vhost.name, "name": policy.name, **policy_value(policy)}


def _policies(vhost: VHost, *, operator: bool) -> list[Policy]:
    return vhost.policies.all_operator() if operator else vhost.policies.all()


def _listing(vhosts: list[VHost], *, operator: bool) -> Listing:
    rows = (_row(vhost, policy) for vhost in vhosts for policy in _policies(vhost, operator=operator))
    return Listing(rows, lambda row: row, lambda row: row["priority"])


def _one_vhost(api: Api, request: Request) -> list[VHost]:
    return [vhost_or_404(api.vhosts, request.names["vhost"])]


def list_all(api: Api, request: Request) -> Listing:
    return _listing(own_vhosts(api, request), operator=False)


def list_of_vhost(api: Api, request: Request) -> Listing:
    return _listing(_one_vhost(api, request), operator=False)


def list_operator(api: Api, request: Request) -> Listing:
    return _listing(own_vhosts(api, request), operator=True)


def list_operator_of_vhost(api: Api, request: Request) -> Listing:
    return _listing(_one_vhost(api, request), operator=True)


def _find(api: Api, request: Request, *, operator: bool) -> tuple[VHost, Policy]:
    """Raises ApiError 404."""
    vhost = vhost_or_404(api.vhosts, request.names["vhost"])
    for policy in _policies(vhost, operator=operator):
        if policy.name == request.names["name"]:
            return vhost, policy
    raise not_found()


def get_one(api: Api, request: Request) -> Row:
    return _row(*_find(api, request, operator=False))


def get_operator(api: Api, request: Request) -> Row:
    return _row(*_find(api, request, operator=True))


async def put(api: Api, request: Request) -> Answer:
    return await _put(api, request, operator=False)


async def put_operator(api: Api, request: Request) -> Answer:
    return await _put(api, request, operator=True)


async def _put(api: Api, request: Request, *, operator: bool) -> Answer:
    vhost = api.vhosts.get(request.names["vhost"])
    if vhost is None:
        raise no_such("vhost_not_found")
    return await _set_policy(api, vhost, request.names["name"], request.json(), operator=operator)


async def _set_policy(api: Api, vhost: VHost, name: str, body: Row, *, operator: bool) -> Answer:
    pattern, definition = need(body, "pattern", "definition")
    priority, apply_to = body.get("priority", 0), body.get("apply-to", "all")
    if not isinstance(priority, int) or isinstance(priority, bool):
        raise invalid(f"priority should be a number, actually was {erlang_text(priority)}")
    if not isinstance(definition, dict) or not isinstance(pattern, str) or not isinstance(apply_to, str):
        raise invalid("a policy has a pattern, and an object as its definition")
    is_new = all(policy.name != name for policy in _policies(vhost, operator=operator))
    set_it = api.admin.set_operator_policy if operator else api.admin.set_policy
    try:
        await set_it(name, pattern, json.dumps(definition), vhost=vhost.name, priority=priority, apply_to=apply_to)
    except AdminError as error:
        raise invalid(str(error)) from None
    return CREATED if is_new else NO_CONTENT


async def remove(api: Api, request: Request) -> Answer:
    vhost, policy = _find(api, request, operator=False)
    await api.admin.clear_policy(policy.name, vhost=vhost.name)
    return NO_CONTENT


async def remove_operator(api: Api, request: Request) -> Answer:
    vhost, policy = _find(api, request, operator=True)
    await api.admin.clear_operator_policy(policy.name, vhost=vhost.name)
    return NO_CONTENT


# -- parameters ------------------------------------------------------------------------------------------------------


def _parameters(api: Api, vhosts: list[VHost]) -> Iterator[Row]:
    """Limits and operator policies are parameters too; those of components that are not here may come from an import."""
    kept = api.broker.definitions.parameters()
    for vhost in vhosts:
        if vhost.limits.given:
            yield {"vhost": vhost.name, "component": LIMITS, "name": "limits", "value": dict(vhost.limits.given)}
        for policy in vhost.policies.all_operator():
            yield {"vhost": vhost.name, "component": OPERATOR, "name": policy.name, "value": policy_value(policy)}
        for name_of_vhost, component, name, value in kept:
            if name_of_vhost == vhost.name:
                yield {"vhost": vhost.name, "component": component, "name": name, "value": json.loads(value)}


def list_parameters(api: Api, request: Request) -> Listing:
    component = request.names.get("component")
    vhosts = _one_vhost(api, request) if "vhost" in request.names else own_vhosts(api, request)
    rows = (row for row in _parameters(api, vhosts) if component in (None, row["component"]))
    return Listing(rows, lambda row: row, lambda row: (row["vhost"], row["component"], row["name"]))


def get_parameter(api: Api, request: Request) -> Row:
    names = request.names
    for row in _parameters(api, _one_vhost(api, request)):
        if (row["component"], row["name"]) == (names["component"], names["name"]):
            return row
    raise not_found()


async def put_parameter(api: Api, request: Request) -> Answer:
    names = request.names
    vhost = api.vhosts.get(names["vhost"])
    if vhost is None:
        raise no_such("vhost_not_found")
    (value,) = need(request.json(), "value")
    component = names["component"]
    if component == OPERATOR and isinstance(value, dict):
        return await _set_policy(api, vhost, names["name"], value, operator=True)
    if component != LIMITS or not isinstance(value, dict):
        raise invalid(f"component {component} not found")
    is_new = not vhost.limits.given
    try:
        api.admin.set_vhost_limits(json.dumps(value), vhost=vhost.name)
    except AdminError as error:
        raise invalid(str(error)) from None
    return CREATED if is_new else NO_CONTENT


async def remove_parameter(api: Api, request: Request) -> Answer:
    row = get_parameter(api, request)
    if row["component"] == LIMITS:
        api.admin.clear_vhost_limits(vhost=row["vhost"])
    elif row["component"] == OPERATOR:
        await api.admin.clear_operator_policy(row["name"], vhost=row["vhost"])
    else:
        api.broker.definitions.delete_parameter(row["vhost"], row["component"], row["name"])
        api.admin.commit()
    return NO_CONTENT


def _globals(api: Api) -> dict[str, Any]:
    return {name: json.loads(value) for name, value in api.broker.definitions.global_parameters()}


def list_globals(api: Api, request: Request) -> Listing:
    rows = ({"name": name, "value": value} for name, value in _globals(api).items())
    return Listing(rows, lambda row: row, lambda row: row["name"])


def get_global(api: Api, request: Request) -> Row:
    name, found = request.names["name"], _globals(api)
    if name not in found:
        raise not_found()
    return {"name": name, "value": found[name]}


def put_global(api: Api, request: Request) -> Answer:
    (value,) = need(request.json(), "value")
    is_new = request.names["name"] not in _globals(api)
    api.admin.set_global_parameter(request.names["name"], json.dumps(value))
    return CREATED if is_new else NO_CONTENT


def remove_global(api: Api, request: Request) -> Answer:
    get_global(api, request)
    api.admin.clear_global_parameter(request.names["name"])
    return NO_CONTENT


# -- limits ----------------------------------------------------------------------------------------------------------


def list_vhost_limits(api: Api, request: Request) -> list[Row]:
    vhosts = _one_vhost(api, request) if "vhost" in request.names else own_vhosts(api, request)
    return [{"vhost": vhost.name, "value": dict(vhost.limits.given)} for vhost in vhosts if vhost.limits.given]


def put_vhost_limit(api: Api, request: Request) -> Answer:
    vhost = api.vhosts.get(request.names["vhost"])
    if vhost is None:
        raise no_such("vhost_not_found")
    (value,) = need(request.json(), "value")
    try:
        vhost.limits.set({**vhost.limits.given, request.names["name"]: value})
    except LimitError as error:
        raise invalid(str(error)) from None
    api.admin.commit()
    return NO_CONTENT


def remove_vhost_limit(api: Api, request: Request) -> Answer:
    vhost = vhost_or_404(api.vhosts, request.names["vhost"])
    left = {name: value for name, value in vhost.limits.given.items() if name != request.names["name"]}
    if left:
        vhost.limits.set(left)
    else:
        vhost.limits.clear()
    api.admin.commit()
    return NO_CONTENT


def list_user_limits(api: Api, request: Request) -> list[Row]:
    users = [user_or_404(api, request)] if "user" in request.names else api.admin.users.all()
    return [{"user": user.name, "value": dict(user.limits)} for user in users if user.limits]


def put_user_limit(api: Api, request: Request) -> Answer:
    name = request.names["user"]
    if api.admin.users.get(name) is None:
        raise bad_request(["no_such_user", name])
    (value,) = need(request.json(), "value")
    try:
        api.admin.users.set_limits(name, {request.names["name"]: value})
    except LimitError as error:
        raise bad_request(str(error)) from None
    api.admin.commit()
    return NO_CONTENT


def remove_user_limit(api: Api, request: Request) -> Answer:
    api.admin.clear_user_limits(user_or_404(api, request).name, request.names["name"])
    return NO_CONTENT
