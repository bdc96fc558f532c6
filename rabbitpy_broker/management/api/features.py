"""What RabbitMQ has and this broker need not: feature flags, extensions, plugins. The answers are constant."""

from __future__ import annotations

from typing import Final

from rabbitpy_broker.management.api.errors import bad_request
from rabbitpy_broker.management.api.nodes import check_node
from rabbitpy_broker.management.api.request import NO_CONTENT, Answer, Request, Row
from rabbitpy_broker.management.api.state import Api
from rabbitpy_broker.protocol.handshake import RABBITMQ_VERSION
from rabbitpy_broker.users import hash_password

FLAGS: Final = (  # RabbitMQ 3.10's; clients ask for some before they start
    "classic_mirrored_queue_version", "drop_unroutable_metric", "empty_basic_get_metric", "implicit_default_bindings",
    "maintenance_mode_status", "quorum_queue", "stream_queue", "user_limits", "virtual_host_metadata",
)  # fmt: skip

SAME_OF_ALL: Final = {"doc_url": "", "stability": "stable", "provided_by": "rabbit"}


def flags(api: Api, request: Request) -> list[Row]:
    return [
        {"name": name, "desc": name.replace("_", " "), "state": "enabled", **SAME_OF_ALL} for name in FLAGS
    ]


def enable_flag(api: Api, request: Request) -> Answer:
    if request.names["name"] not in FLAGS:
        raise bad_request("unsupported")
    return NO_CONTENT


def extensions(api: Api, request: Request) -> list[Row]:
    return [{"javascript": "dispatcher.js"}]


def version(api: Api, request: Request) -> str:
    return RABBITMQ_VERSION


def nothing(api: Api, request: Request) -> list[Row]:
    return []


def done(api: Api, request: Request) -> Answer:
    """There is nothing to do."""
    return NO_CONTENT


def auth(api: Api, request: Request) -> Row:
    return {"enable_uaa": False, "uaa_client_id": "", "uaa_location": ""}


def attempts(api: Api, request: Request) -> list[Row]:
    check_node(api, request)
    if request.names.get("by") == "source":
        return []
    return [_attempts(api, protocol, *counts) for protocol, counts in _log_ins(api).items()]


def _log_ins(api: Api) -> dict[str, tuple[int, int]]:
    """Those that failed and that succeeded, by protocol."""
    totals = api.broker.node.totals
    return {
        "amqp091": (int(totals.authentications_failed), int(totals.authentications_succeeded)),
        "http": (int(totals.http_authentications_failed), int(totals.http_authentications_succeeded)),
    }


def _attempts(api: Api, protocol: str, failed: int, succeeded: int) -> Row:
    failed_before, succeeded_before = api.log_ins_before.get(protocol, (0, 0))
    return {
        "protocol": protocol,
        "auth_attempts": failed - failed_before + succeeded - succeeded_before,
        "auth_attempts_failed": failed - failed_before,
        "auth_attempts_succeeded": succeeded - succeeded_before,
    }


def forget_attempts(api: Api, request: Request) -> Answer:
    """Here they begin anew; /metrics goes on counting."""
    check_node(api, request)
    api.log_ins_before = _log_ins(api)
    return NO_CONTENT


def hashed(api: Api, request: Request) -> Row:
    return {"ok": hash_password(request.names["password"])}
