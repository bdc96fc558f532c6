"""What would happen: a policy that is not set yet, and what a user may do. Nothing is changed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from rabbitpy_broker.definitions import Definitions
from rabbitpy_broker.management.api.auth import may_enter
from rabbitpy_broker.management.api.errors import bad_request, invalid, no_such, not_authorised
from rabbitpy_broker.management.api.request import Request, Row, flag, need, text
from rabbitpy_broker.management.api.state import Api
from rabbitpy_broker.policies import Policies, Policy, PolicyError
from rabbitpy_broker.queues.queue_settings import queue_type
from rabbitpy_broker.slices import in_slices
from rabbitpy_broker.vhost import VHost

SHOWN_MAX: Final = 500
UNNAMED: Final = "(new policy)"


async def of_policy(api: Api, request: Request) -> Row:
    """Which queues and exchanges would have other settings with a policy, or without it (`delete`)."""
    body = request.json()
    vhost = api.vhosts.get(text(body, "vhost"))
    if vhost is None:
        raise no_such("vhost_not_found")
    if not request.is_administrator and not may_enter(request.user, vhost.name):
        raise not_authorised("User not authorised to access object")
    preview = _Preview(vhost, text(body, "name", UNNAMED), operator=flag(body, "operator"))
    if flag(body, "delete"):
        preview.clear()
    else:
        pattern, definition = need(body, "pattern", "definition")
        if not isinstance(definition, dict) or not isinstance(pattern, str):
            raise invalid("a policy has a pattern, and an object as its definition")
        priority = body.get("priority", 0)
        if not isinstance(priority, int) or isinstance(priority, bool):
            raise invalid("priority should be a number")
        preview.set(pattern, text(body, "apply-to", "all"), priority, definition)
    await in_slices(preview.steps())
    return preview.answer()


class _Preview:
    """The policies of a vhost as they are, and as they would be."""

    def __init__(self, vhost: VHost, name: str, *, operator: bool) -> None:
        self._vhost = vhost
        self._name = name
        self._operator = operator
        self._scratch = Definitions(None)
        self._after = Policies(self._scratch, vhost.name)
        self._after._policies = dict(vhost.policies._policies)
        self._after._operator_policies = dict(vhost.policies._operator_policies)
        self._after._sort()
        self._changed: list[Row] = []
        self._count = 0
        self._matched = 0
        self._unchanged = 0

    def set(self, pattern: str, apply_to: str, priority: int, definition: Row) -> None:
        """Raises ApiError 400."""
        change = self._after.set_operator if self._operator else self._after.set
        try:
            change(self._name, pattern, apply_to, priority, definition)
        except PolicyError as error:
            raise invalid(str(error)) from None

    def clear(self) -> None:
        """Raises ApiError 400."""
        try:
            (self._after.clear_operator if self._operator else self._after.clear)(self._name)
        except PolicyError as error:
            raise bad_request(str(error)) from None

    def steps(self) -> Iterator[None]:
        before = self._vhost.policies
        try:
            for queue in self._vhost.each_queue():
                kind = queue_type(queue.arguments)
                was, now = before.for_queue(queue.name, kind), self._after.for_queue(queue.name, kind)
                if was != now:
                    self._compare(
                        "queue", queue.name, was[self._operator], now[self._operator],
                        before.effective(queue.name, kind), self._after.effective(queue.name, kind),
                    )  # fmt: skip
                yield
            for exchange in [] if self._operator else self._vhost.each_exchange():
                one, other = before.for_exchange(exchange.name), self._after.for_exchange(exchange.name)
                if one != other:
                    self._compare("exchange", exchange.name, one, other, _definition(one), _definition(other))
                yield
        finally:
            self._scratch.close()

    def _compare(self, kind: str, name: str, was: Policy | None, now: Policy | None, one: Row, other: Row) -> None:
        self._matched += 1
        if one == other:
            self._unchanged += 1
            return
        self._count += 1
        if len(self._changed) < SHOWN_MAX:
            policy = {"from": was.name if was else None, "to": now.name if now else None}
            row = {"kind": kind, "vhost": self._vhost.name, "name": name, "policy": policy, "from": one, "to": other}
            self._changed.append(row)

    def answer(self) -> Row:
        return {
            "matched": self._matched,
            "changed": self._changed,
            "unchanged": self._unchanged,
            "truncated": self._count > len(self._changed),
        }


def _definition(policy: Policy | None) -> Row:
    return {} if policy is None else policy.definition


def of_permissions(api: Api, request: Request) -> Row:
    """What a user may do with a queue or an exchange, and with a routing key of it."""
    body = request.json()
    name, vhost, resource = text(body, "user"), text(body, "vhost"), text(body, "name")
    user = api.admin.users.get(name)
    if user is None or vhost not in api.vhosts:
        raise bad_request("vhost_or_user_not_found")
    given: Any = user.permissions.get(vhost)
    kind = text(body, "kind", "queue")
    if kind not in ("queue", "exchange"):
        raise bad_request("kind must be queue or exchange")
    row: Row = {"user": name, "vhost": vhost, "name": resource, "enter": given is not None, "topic": None}
    row |= {operation: given is not None and given.may(operation, resource) for operation in ("configure", "write", "read")}
    row["patterns"] = None
    if given is not None:
        row["patterns"] = {"configure": given.configure, "write": given.write, "read": given.read}
    if kind == "exchange" and "routing_key" in body:
        key = text(body, "routing_key")
        row["topic"] = {operation: user.may_use_key(vhost, operation, resource, key) for operation in ("write", "read")}
    return row
