"""Exchanges: /exchanges, but for publishing and bindings. The default exchange is `amq.default` in a path."""

from __future__ import annotations

from collections.abc import Iterator

from rabbitpy_broker.management.api.acting import act
from rabbitpy_broker.management.api.auth import own_vhosts
from rabbitpy_broker.management.api.errors import no_such, not_found
from rabbitpy_broker.management.api.rates import (
    EXCHANGE,
    WITHOUT_RATES,
    Spans,
    exchange_values,
    message_stats,
)
from rabbitpy_broker.management.api.request import (
    CREATED,
    NO_CONTENT,
    Answer,
    Listing,
    Request,
    Row,
    flag,
    text,
    vhost_or_404,
)
from rabbitpy_broker.management.api.shapes import arguments, exchange_name
from rabbitpy_broker.management.api.state import Api
from rabbitpy_broker.management.definitions_json import table_object
from rabbitpy_broker.protocol.exchange_methods import declare, delete
from rabbitpy_broker.routing.delayed import DelayedExchange
from rabbitpy_broker.routing.exchange import Exchange
from rabbitpy_broker.vhost import VHost

Found = tuple[VHost, Exchange | None]  # None is the default exchange


def each(vhost: VHost) -> Iterator[Found]:
    yield vhost, None
    for exchange in vhost.each_exchange():
        yield vhost, exchange


def find(api: Api, request: Request) -> Found:
    """The exchange that the path names. Raises ApiError 404."""
    vhost = vhost_or_404(api.vhosts, request.names["vhost"])
    name = exchange_name(request.names["exchange"])
    if not name:
        return vhost, None
    exchange = vhost.exchanges.get(name)
    if exchange is None:
        raise not_found()
    return vhost, exchange


def list_all(api: Api, request: Request) -> Listing:
    return _listing(api, request, own_vhosts(api, request))


def list_of_vhost(api: Api, request: Request) -> Listing:
    return _listing(api, request, [vhost_or_404(api.vhosts, request.names["vhost"])])


def _listing(api: Api, request: Request, vhosts: list[VHost]) -> Listing:
    wanted = WITHOUT_RATES if api.is_plain(request) else api.sampler.spans(request.query)
    return Listing(
        (found for vhost in vhosts for found in each(vhost)),
        lambda found: _row(api, found, wanted),
        lambda found: (found[0].name, found[1].name if found[1] else ""),
        lambda found: found[1].name if found[1] else "",
        paged=True,
    )


def _row(api: Api, found: Found, wanted: Spans) -> Row:
    vhost, exchange = found
    row: Row
    if exchange is None:
        routed = vhost.routes.routed
        row = {"name": "", "type": "direct", "durable": True, "auto_delete": False, "internal": False, "arguments": {}}
    else:
        routed = exchange.routed
        row = {
            "name": exchange.name,
            "type": exchange.type,
            "durable": exchange.durable,
            "auto_delete": exchange.auto_delete,
            "internal": exchange.internal,
            "arguments": table_object(exchange.arguments),
        }
        policy = vhost.policies.for_exchange(exchange.name)
        if policy is not None:
            row["policy"] = policy.name
        if isinstance(exchange, DelayedExchange):
            row["messages_delayed"] = exchange.messages_delayed()
    row["vhost"] = vhost.name
    row["user_who_performed_action"] = ""  # not kept
    return row | message_stats(EXCHANGE, exchange_values(routed), api.sampler.of(routed), wanted.msg_rates)


def get_one(api: Api, request: Request) -> Row:
    row = _row(api, find(api, request), api.sampler.spans(request.query))
    return {**row, "incoming": [], "outgoing": []}


def put(api: Api, request: Request) -> Answer:
    vhost = api.vhosts.get(request.names["vhost"])
    if vhost is None:
        raise no_such("vhost_not_found")
    body = request.json()
    name = exchange_name(request.names["exchange"])
    is_new = name not in vhost.exchanges
    act(
        api, request, vhost, declare, "Exchange.Declare", exchange=name, passive=False,
        exchange_type=text(body, "type", "direct"), durable=flag(body, "durable"), auto_delete=flag(body, "auto_delete"),
        internal=flag(body, "internal"), arguments=arguments(body.get("arguments")),
    )  # fmt: skip
    return CREATED if is_new else NO_CONTENT


def remove(api: Api, request: Request) -> Answer:
    vhost, exchange = find(api, request)
    name = exchange.name if exchange else ""
    act(api, request, vhost, delete, "Exchange.Delete", exchange=name, if_unused=request.is_true("if-unused"))
    return NO_CONTENT
