"""Bindings, by where they are looked at from: all, those of a vhost, of a queue, of either end of an exchange, of two ends.

A `properties_key` names one of the bindings between two ends: the quoted routing key, `~` for an empty one, and behind a `~` a
digest of the arguments where there are any.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import unquote_plus

from rabbitpy_broker.destination import EXCHANGE, QUEUE, Destination
from rabbitpy_broker.durable_queues import NO_ARGUMENTS
from rabbitpy_broker.management.api.acting import act
from rabbitpy_broker.management.api.auth import own_vhosts
from rabbitpy_broker.management.api.errors import no_such, not_found
from rabbitpy_broker.management.api.request import NO_CONTENT, Answer, Listing, Request, Row, vhost_or_404
from rabbitpy_broker.management.api.shapes import arguments, exchange_name, quoted
from rabbitpy_broker.management.api.state import Api
from rabbitpy_broker.management.definitions_json import table_object
from rabbitpy_broker.protocol import exchange_methods, queue_methods
from rabbitpy_broker.routing.exchange import Binding
from rabbitpy_broker.vhost import VHost
from rabbitpy_broker.wire.field_table import FieldTable

KINDS: Final = {"q": QUEUE, "e": EXCHANGE}  # as paths have them


@dataclass(frozen=True)
class Ends:
    """One binding."""

    vhost: str
    source: str
    kind: str
    destination: str
    key: str
    arguments: FieldTable

    def properties_key(self) -> str:
        if not self.arguments:
            return quoted(self.key) or "~"
        items = sorted((key, self.arguments.types.get(key, ""), str(value)) for key, value in self.arguments.items())
        digest = hashlib.blake2b(repr(items).encode("utf-8", "replace"), digest_size=6).digest()
        return f"{quoted(self.key)}~{base64.urlsafe_b64encode(digest).decode('ascii')}"

    def order(self) -> tuple[str, ...]:
        return self.vhost, self.source, self.kind, self.destination, self.key, self.properties_key()

    def row(self) -> Row:
        return {
            "source": self.source,
            "vhost": self.vhost,
            "destination": self.destination,
            "destination_type": self.kind,
            "routing_key": self.key,
            "arguments": table_object(self.arguments),
            "properties_key": self.properties_key(),
        }


def _of(vhost: VHost, bindings: Iterable[Any]) -> Iterator[Ends]:
    for binding in bindings:
        assert isinstance(binding, Binding), "kept by: Exchange.bind"
        target = binding.destination
        if target.kind == QUEUE and target.name in vhost.reply_queues:  # somebody watches the exchange
            continue
        yield Ends(vhost.name, binding.source.name, target.kind, target.name, binding.binding_key, binding.arguments)


def _default(vhost: VHost, queues: Iterable[str]) -> Iterator[Ends]:
    """Every queue is bound to the default exchange by its name."""
    for name in list(queues):
        yield Ends(vhost.name, "", QUEUE, name, name, NO_ARGUMENTS)


def _each(vhost: VHost) -> Iterator[Ends]:
    yield from _default(vhost, vhost.queues)
    for exchange in vhost.each_exchange():
        yield from _of(vhost, exchange.each_binding())


def _between(vhost: VHost, source: str, kind: str, destination: str) -> Iterator[Ends]:
    if not source:
        yield from _default(vhost, [destination] if kind == QUEUE and destination in vhost.queues else [])
        return
    target: Destination | None = (vhost.queues if kind == QUEUE else vhost.exchanges).get(destination)
    for binding in list(target.incoming) if target is not None else []:
        if isinstance(binding, Binding) and binding.source.name == source:
            yield from _of(vhost, [binding])


def _listing(found: Iterator[Ends]) -> Listing:
    return Listing(found, Ends.row, Ends.order)


def list_all(api: Api, request: Request) -> Listing:
    return _listing(ends for vhost in own_vhosts(api, request) for ends in _each(vhost))


def list_of_vhost(api: Api, request: Request) -> Listing:
    return _listing(_each(vhost_or_404(api.vhosts, request.names["vhost"])))


def list_of_queue(api: Api, request: Request) -> Listing:
    vhost = vhost_or_404(api.vhosts, request.names["vhost"])
    queue = vhost.queues.get(request.names["queue"])
    if queue is None:
        raise not_found()
    return _listing(ends for part in (_default(vhost, [queue.name]), _of(vhost, list(queue.incoming))) for ends in part)


def list_of_source(api: Api, request: Request) -> Listing:
    vhost = vhost_or_404(api.vhosts, request.names["vhost"])
    name = exchange_name(request.names["exchange"])
    if not name:
        return _listing(_default(vhost, vhost.queues))
    exchange = vhost.exchanges.get(name)
    return _listing(_of(vhost, exchange.bindings() if exchange is not None else []))


def list_of_destination(api: Api, request: Request) -> Listing:
    vhost = vhost_or_404(api.vhosts, request.names["vhost"])
    exchange = vhost.exchanges.get(exchange_name(request.names["exchange"]))
    return _listing(_of(vhost, list(exchange.incoming) if exchange is not None else []))


def _named(api: Api, request: Request) -> tuple[VHost | None, str, str, str]:
    """Vhost, source, kind and destination of the path. Raises ApiError 404."""
    kind = KINDS.get(request.names["kind"])
    if kind is None:
        raise not_found()
    destination = request.names["destination"]
    if kind == EXCHANGE:
        destination = exchange_name(destination)
    return api.vhosts.get(request.names["vhost"]), exchange_name(request.names["source"]), kind, destination


def list_between(api: Api, request: Request) -> Listing:
    vhost, source, kind, destination = _named(api, request)
    return _listing(_between(vhost, source, kind, destination) if vhost is not None else iter(()))


def _find(api: Api, request: Request) -> tuple[VHost, Ends]:
    """The binding that the path names; its key may be quoted once or twice there. Raises ApiError 404."""
    vhost, source, kind, destination = _named(api, request)
    wanted = request.names["props"]
    for ends in _between(vhost, source, kind, destination) if vhost is not None else ():
        key = ends.properties_key()
        if vhost is not None and (wanted == key or unquote_plus(wanted) == unquote_plus(key)):
            return vhost, ends
    raise not_found()


def get_one(api: Api, request: Request) -> Row:
    return _find(api, request)[1].row()


def post(api: Api, request: Request) -> Answer:
    vhost, source, kind, destination = _named(api, request)
    if vhost is None:
        raise no_such("vhost_not_found")
    body = request.json()
    ends = Ends(vhost.name, source, kind, destination, str(body.get("routing_key", "")), arguments(body.get("arguments")))
    _bind(api, request, vhost, ends, "Bind")
    return Answer(201, None, {"Location": f"{quoted(destination)}/{quoted(ends.properties_key()).replace('%7E', '~')}"})


def remove(api: Api, request: Request) -> Answer:
    vhost, ends = _find(api, request)
    _bind(api, request, vhost, ends, "Unbind")
    return NO_CONTENT


def _bind(api: Api, request: Request, vhost: VHost, ends: Ends, what: str) -> None:
    given: dict[str, Any] = {"routing_key": ends.key, "arguments": ends.arguments}
    if ends.kind == QUEUE:
        handler = queue_methods.HANDLERS[f"Queue.{what}"]
        act(api, request, vhost, handler, f"Queue.{what}", queue=ends.destination, exchange=ends.source, **given)
    else:
        handler = exchange_methods.HANDLERS[f"Exchange.{what}"]
        act(api, request, vhost, handler, f"Exchange.{what}", destination=ends.destination, source=ends.source, **given)
