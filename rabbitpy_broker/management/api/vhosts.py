"""Vhosts: /vhosts, and what is done to a whole one."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, Final

from rabbitpy_broker.errors import BrokerError
from rabbitpy_broker.management.admin import split_tags
from rabbitpy_broker.management.api.auth import visible_vhosts
from rabbitpy_broker.management.api.errors import ApiError, bad_request
from rabbitpy_broker.management.api.rates import (
    DELIVERED,
    LENGTHS,
    PUBLISHED,
    TRAFFIC,
    VHOST,
    Spans,
    message_stats,
    stats,
)
from rabbitpy_broker.management.api.request import (
    CREATED,
    NO_CONTENT,
    Answer,
    Listing,
    Request,
    Row,
    flag,
    integer,
    need,
    vhost_or_404,
)
from rabbitpy_broker.management.api.state import Api
from rabbitpy_broker.management.clustering import replication_of
from rabbitpy_broker.management.definitions_json import UNDEFINED
from rabbitpy_broker.management.replicas import checked, wanted_replicas
from rabbitpy_broker.queues.queue_settings import QUEUE_TYPES
from rabbitpy_broker.vhost import VHost

PROTECTED: Final = "protected_from_deletion"  # a key of a vhost's metadata


def list_all(api: Api, request: Request) -> Listing:
    wanted, plain = api.sampler.spans(request.query), api.is_plain(request)
    return Listing(
        iter(visible_vhosts(api, request)),
        lambda vhost: _row(api, vhost, wanted, plain=plain),
        lambda vhost: vhost.name,
        lambda vhost: vhost.name,
        paged=True,
    )


def _row(api: Api, vhost: VHost, wanted: Spans, *, plain: bool) -> Row:
    metadata = _metadata(api, vhost.name)
    row: Row = {
        "name": vhost.name,
        "description": metadata["description"],
        "tags": metadata["tags"],
        "default_queue_type": metadata.get("default_queue_type", "undefined"),
        "metadata": metadata,
        "tracing": vhost.tracing,
        "cluster_state": {api.node_name: "running"},
    }
    replication = replication_of(api.broker, vhost.name)
    if replication is not None:
        row["replication"] = {key: value for key, value in replication.row().items() if key != "name"}
        row["cluster_state"] = {one.node: "running" if one.running else "stopped" for one in replication.replicas}
    if plain:
        return row
    series, values = api.sampler.of(vhost.name), api.sampler.vhost_values(vhost)
    row |= stats(VHOST, values, series, wanted.lengths, LENGTHS)
    row |= stats(VHOST, values, series, wanted.data_rates, TRAFFIC)
    return row | message_stats(VHOST, values, series, wanted.msg_rates, (*PUBLISHED, *DELIVERED))


def _metadata(api: Api, name: str) -> dict[str, Any]:
    found = json.loads(api.broker.definitions.vhost_metadata(name))
    return {"description": "", "tags": [], **(found if isinstance(found, dict) else {})}


def get_one(api: Api, request: Request) -> Row:
    vhost = vhost_or_404(api.vhosts, request.names["vhost"])
    return _row(api, vhost, api.sampler.spans(request.query), plain=api.is_plain(request))


def _description(given: Any) -> str:
    if not isinstance(given, str | None):
        raise bad_request("description must be a string")
    return given or ""


def _tags(given: Any) -> list[str]:
    if isinstance(given, str):
        return split_tags(given)
    if not isinstance(given, list | None) or not all(isinstance(tag, str) for tag in given or ()):
        raise bad_request("tags must be a string or a list of strings")
    return given or []


def _queue_type(given: Any) -> str:
    """Empty for none, as clients send it that have a field for it."""
    if given not in (None, "", UNDEFINED, *QUEUE_TYPES):
        raise bad_request("invalid_queue_type")
    return "" if given in (None, "") else str(given)


METADATA: Final[dict[str, Callable[[Any], Any]]] = {
    "description": _description, "tags": _tags, "default_queue_type": _queue_type,
}  # fmt: skip


async def put(api: Api, request: Request) -> Answer:
    """Whoever makes a vhost may do everything in it."""
    name, body = request.names["vhost"], request.json()
    tracing = flag(body, "tracing") if "tracing" in body else None
    is_new = name not in api.vhosts
    kept = {} if is_new else _metadata(api, name)
    given: Row = {key: check(body[key]) for key, check in METADATA.items() if key in body}
    is_there = not is_new or name in api.broker.node.owned_elsewhere or await api.broker.is_used(name)
    if is_there and not given and tracing is None and "replicas" not in body:
        return NO_CONTENT
    metadata: Row = {"description": "", "tags": []}
    metadata |= kept
    metadata |= given
    if not metadata.get("default_queue_type"):
        metadata.pop("default_queue_type", None)
    if not await _made_with_replicas(api, name, metadata, body.get("replicas"), is_new=is_new):
        api.admin.put_vhost(name, metadata)
    if is_new:
        if api.admin.users.get(request.user.name) is request.user:  # what others may do is not ours to say
            api.admin.users.set_permissions(request.user.name, name, ".*", ".*", ".*")
    if tracing is not None:
        api.admin.set_tracing(name, tracing)
    api.admin.commit()
    return CREATED if is_new else NO_CONTENT


async def _made_with_replicas(api: Api, name: str, metadata: Row, given: Any, *, is_new: bool) -> bool:
    """Whether a new vhost is one with replicas, which then is made and open here; one that is there gets them, or gives them up.

    Raises ApiError, AdminError.
    """
    try:
        if not is_new:
            before = int(metadata.get("replicas", 0))
            if given is None or checked(given) == before:
                return False
            if given and before:
                raise bad_request("the vhost is there, with another number of replicas")
            await (api.admin.replicate_vhost(name, replicas=given) if given else api.admin.unreplicate_vhost(name))
            return False
        count = 0 if name in api.broker.node.owned_elsewhere else wanted_replicas(api.broker, name, given)
    except BrokerError as error:
        raise bad_request(str(error)) from None
    if count:
        await api.admin.add_replicated_vhost(name, count, metadata)
    else:
        await api.admin.check_name(name)
    return count > 0


def protect(api: Api, request: Request) -> Answer:
    return _set_protection(api, request, on=True)


def unprotect(api: Api, request: Request) -> Answer:
    return _set_protection(api, request, on=False)


def _set_protection(api: Api, request: Request, *, on: bool) -> Answer:
    """RabbitMQ 4's, kept in the metadata of the vhost."""
    name = vhost_or_404(api.vhosts, request.names["vhost"]).name
    api.admin.put_vhost(name, {**_metadata(api, name), PROTECTED: on})
    api.admin.commit()
    return NO_CONTENT


async def remove(api: Api, request: Request) -> Answer:
    name = request.names["vhost"]
    if name not in api.broker.node.owned_elsewhere:
        vhost_or_404(api.vhosts, name)
    if _metadata(api, name).get(PROTECTED) is True:
        raise ApiError(412, "precondition_failed", f"vhost '{name}' is protected from deletion")
    await api.admin.delete_vhost(name)
    return NO_CONTENT


async def transfer(api: Api, request: Request) -> Answer:
    """Without a node it is the one that is furthest along."""
    name = request.names["vhost"]
    if name not in api.broker.node.owned_elsewhere:
        vhost_or_404(api.vhosts, name)
    node = request.json().get("node", "")
    if not isinstance(node, str):
        raise bad_request("node is not a string")
    await api.admin.transfer_vhost(name, node)
    return NO_CONTENT


def move(api: Api, request: Request) -> Answer:
    """With several workers it is their gateway that moves a vhost: it asks before, as a dry run, and after, of its new worker."""
    number = integer(need(request.json(), "worker")[0])
    if request.is_true("dry_run") and request.is_forwarded:
        return NO_CONTENT
    vhost_or_404(api.vhosts, request.names["vhost"])
    if number != (0 if api.broker.sockets is None else api.broker.sockets.number):
        raise bad_request("the broker has one worker (see the setting workers)")
    return NO_CONTENT


def start(api: Api, request: Request) -> Answer:
    """Each runs as long as the broker does."""
    node, vhost = request.names["node"], request.names["vhost"]
    if node != api.node_name:
        raise bad_request(f"Request to node {node} failed with nodedown")
    if vhost not in api.vhosts:
        raise bad_request(f'Request to node {node} failed with {{no_such_vhost,<<"{vhost}">>}}')
    return NO_CONTENT
