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
    totals = api.broker.node.totals
    failed, succeeded = int(totals.authentications_failed), int(totals.authentications_succeeded)
    if request.names.get("by") == "source":
        return []
    return [
        {
            "protocol": "amqp091",
            "auth_attempts": failed + succeeded,
            "auth_attempts_failed": failed,
            "auth_attempts_succeeded": succeeded,
        }
    ]


def forget_attempts(api: Api, request: Request) -> Answer:
    check_node(api, request)
    return NO_CONTENT


def hashed(api: Api, request: Request) -> Row:
    return {"ok": hash_password(request.names["password"])}
