"""Where a message would go, and why: POST /route. Nothing is published, and nothing is remembered.

The answer is a tree. An exchange has a step for each destination that its bindings choose, or one to its alternate; a queue says
what it would do with the message, and where the message would go from there if it died.

What must stay true: the queues of the answer are those that a publish would find now, but where chance decides.
"""

from __future__ import annotations

from typing import Any, Final

from rabbitpy_broker.destination import EXCHANGE, QUEUE, Destination
from rabbitpy_broker.errors import AmqpError
from rabbitpy_broker.management.api.auth import may_enter
from rabbitpy_broker.management.api.errors import bad_request, no_such, not_authorised
from rabbitpy_broker.management.api.moves import made
from rabbitpy_broker.management.api.properties import header_payload
from rabbitpy_broker.management.api.request import Request, Row, flag, text, vhost_or_404
from rabbitpy_broker.management.api.shapes import exchange_name
from rabbitpy_broker.management.api.state import Api
from rabbitpy_broker.management.definitions_json import table_object
from rabbitpy_broker.message import Message
from rabbitpy_broker.protocol.access import Access
from rabbitpy_broker.queues.dead_letter import address_of
from rabbitpy_broker.queues.queue import Queue
from rabbitpy_broker.queues.queue_settings import queue_type
from rabbitpy_broker.routing.delayed import DelayedExchange
from rabbitpy_broker.routing.exchange import Binding, Exchange
from rabbitpy_broker.routing.resolve import make_exchange
from rabbitpy_broker.users import User
from rabbitpy_broker.vhost import VHost
from rabbitpy_broker.wire.content_header import ContentHeader
from rabbitpy_broker.wire.delay_header import delay_ms
from rabbitpy_broker.wire.edit_header import blind_keys, raw_headers, shown_header, split_table, texts
from rabbitpy_broker.wire.field_table import FieldTable
from rabbitpy_broker.wire.properties import EXPIRATION, short_property

BINDINGS_SHOWN: Final = 20  # of one step
NODES_MAX: Final = 2_000
ASKED_MAX: Final = 1_000  # bindings that are asked why they hold
DEATHS_DEEP: Final = 4  # dead-letter exchanges in a row


def simulate(api: Api, request: Request) -> Row:
    body = request.json()
    name = text(body, "vhost", "/")
    vhost = vhost_or_404(api.vhosts, name)
    if not may_enter(request.user, name):
        raise not_authorised("Access refused.")
    exchange = exchange_name(text(body, "exchange", ""))
    key = text(body, "routing_key", "")
    properties = body.get("properties", {})
    if not isinstance(properties, dict):
        raise bad_request("properties must be an object")
    if "headers" in body:
        properties = {**properties, "headers": body["headers"]}
    size = body.get("payload_bytes", 0)
    if not isinstance(size, int) or isinstance(size, bool) or not 0 <= size < 1 << 31:
        raise bad_request(["not_natural", "payload_bytes"])
    if len(key.encode()) > 255 or len(exchange.encode()) > 255:
        raise bad_request(["not_string", "routing_key"])
    message = made(header_payload(properties, size), b"", address_of(exchange, key))
    message.body_size = size
    return Simulation(request.user, vhost, message).run(exchange, key, mandatory=flag(body, "mandatory"))


class Simulation:
    """Of one message in one vhost."""

    def __init__(self, user: User, vhost: VHost, message: Message) -> None:
        self._user = user
        self._vhost = vhost
        self._message = message
        self._header = ContentHeader(shown_header(message))
        self._nodes = 0
        self._asked = 0
        self._queues: dict[str, None] = {}

    def run(self, exchange: str, key: str, *, mandatory: bool) -> Row:
        keys = [key, *self._further_keys()]
        refused = self._refused(exchange, keys)
        if exchange and exchange not in self._vhost.exchanges:
            raise no_such(f"no exchange '{exchange}' in vhost '{self._vhost.name}'")
        tree = self._from(exchange, keys, self._queues, set(), 0)
        found = list(self._queues)
        return {
            "vhost": self._vhost.name,
            "exchange": exchange,
            "routing_keys": keys,
            "allowed": not refused,
            "refusal": refused or None,
            "routed": bool(found),
            "queues": found,
            "returned": mandatory and not found,
            "truncated": self._nodes > NODES_MAX,
            "tree": tree,
        }

    def _further_keys(self) -> list[str]:
        headers = split_table(raw_headers(self._message.header_payload()))
        return [*texts(headers.get("CC", b"")), *blind_keys(self._message)]

    def _refused(self, exchange: str, keys: list[str]) -> str:
        """Why the user who asks may not publish this; "" if it may."""
        access = Access(self._user, self._vhost)
        try:
            access.check("write", "exchange", exchange)
            found = self._vhost.exchanges.get(exchange)
            if found is not None and found.internal:
                return f"cannot publish to internal exchange '{exchange}' in vhost '{self._vhost.name}'"
            for key in keys if found is not None else ():
                assert found is not None, "kept by: there are no keys otherwise"
                access.check_topic("write", found, key)
        except AmqpError as error:
            return error.text
        return ""

    # -- exchanges ------------------------------------------------------------------------------------------------

    def _from(self, exchange: str, keys: list[str], found: dict[str, None], asked: set[Exchange], deep: int) -> Row:
        """The tree from an exchange on, by name; `found` gets the queues."""
        if not exchange:
            return self._default(keys, found, deep)
        source = self._vhost.exchanges.get(exchange)
        if source is None:
            return {"kind": "exchange", "name": exchange, "missing": True, "steps": []}
        asked.add(source)
        return self._exchange(source, keys, found, asked, deep)

    def _default(self, keys: list[str], found: dict[str, None], deep: int) -> Row:
        steps: list[Row] = []
        for key in dict.fromkeys(keys):
            queue = self._vhost.routes.addressed(key)
            if queue is None:
                steps.append({"reason": f"no queue has the name '{key}'", "to": None})
            else:
                steps.append({"reason": f"the queue's name is the routing key '{key}'", "to": self._queue(queue, found, deep)})
        return {"kind": "exchange", "name": "", "type": "direct", "steps": steps}

    def _exchange(self, source: Exchange, keys: list[str], found: dict[str, None], asked: set[Exchange], deep: int) -> Row:
        self._nodes += 1
        policy = self._vhost.policies.for_exchange(source.name)
        node: Row = {
            "kind": "exchange", "name": source.name, "type": source.type, "internal": source.internal,
            "policy": policy.name if policy is not None else None, "steps": [], "bindings": source.binding_count(),
        }  # fmt: skip
        seen = source.deduplication
        if seen is not None and deep == 0 and seen.is_duplicate(ContentHeader(self._message.header_payload())):
            node["note"] = "it has the identity of one that came before, and goes nowhere"
            return node
        router = source
        if isinstance(source, DelayedExchange):
            wait_ms = int(delay_ms(self._header.headers()))
            if wait_ms > 0:
                node["delay_ms"] = wait_ms
                node["note"] = f"it waits here for {wait_ms} ms first"
            router = source.inner
        matched = [one for one in self._matched(router, keys) if one.name not in self._vhost.reply_queues]
        by_destination = self._bindings_to(source, set(matched))
        for destination in matched:
            if self._nodes > NODES_MAX:
                break
            node["steps"].append(self._step(router, destination, by_destination.get(destination, []), keys, found, asked, deep))
        if not matched:
            self._alternate(source, node, keys, found, asked, deep)
        return node

    def _matched(self, source: Exchange, keys: list[str]) -> list[Destination]:
        """As `resolve` asks an exchange; of one where chance decides all that could be chosen."""
        found: dict[Destination, None] = {}
        if source.type == "x-random":
            return list(dict.fromkeys(binding.destination for binding in source.bindings()))
        source.match(keys[0], self._header, found)
        if source.by_each_key:
            for further in keys[1:]:
                source.match(further, self._header, found)
        return list(found)

    @staticmethod
    def _bindings_to(source: Exchange, wanted: set[Destination]) -> dict[Destination, list[Binding]]:
        found: dict[Destination, list[Binding]] = {}
        for binding in source.bindings():
            if binding.destination in wanted:
                found.setdefault(binding.destination, []).append(binding)
        return found

    def _step(
        self,
        source: Exchange,
        destination: Destination,
        bindings: list[Binding],
        keys: list[str],
        found: dict[str, None],
        asked: set[Exchange],
        deep: int,
    ) -> Row:
        holding = [(binding, why) for binding in bindings if (why := self._why(source, binding, keys))]
        reasons = list(dict.fromkeys(why for _, why in holding))
        step: Row = {
            "reason": "; ".join(reasons[:3]) or "the exchange chooses it",
            "bindings": [
                {"routing_key": binding.binding_key, "arguments": table_object(binding.arguments)}
                for binding, _ in holding[:BINDINGS_SHOWN]
            ],
            "bindings_count": len(holding),
        }
        if isinstance(destination, Exchange):
            if destination in asked:
                step["to"] = {"kind": "exchange", "name": destination.name, "again": True, "steps": []}
            else:
                asked.add(destination)
                step["to"] = self._exchange(destination, keys, found, asked, deep)
        elif isinstance(destination, Queue):
            step["to"] = self._queue(destination, found, deep)
        return step

    def _why(self, source: Exchange, binding: Binding, keys: list[str]) -> str:
        """Why a binding holds, asked of an exchange with this binding alone; "" when it does not."""
        if source.type == "x-random":
            return f"by chance, one of {source.binding_count()} bindings"
        if source.type == "x-consistent-hash":
            return f"its share of the hash ring (weight '{binding.binding_key}')"
        if source.type == "fanout":
            return "a fanout exchange chooses all"
        self._asked += 1
        if self._asked > ASKED_MAX:
            return ""
        for key in keys if source.by_each_key else keys[:1]:
            alone = make_exchange(source.type, source.name, False, False, False, FieldTable())
            alone.bind(Destination(QUEUE, "alone"), binding.binding_key, binding.arguments, False)
            found: dict[Destination, None] = {}
            alone.match(key, self._header, found)
            if found:
                return _reason(source.type, binding, key)
        return ""

    def _alternate(
        self, source: Exchange, node: Row, keys: list[str], found: dict[str, None], asked: set[Exchange], deep: int
    ) -> None:
        if not source.alternate:
            node["note"] = node.get("note", "no binding holds, and there is no alternate exchange")
            return
        by = "argument" if "alternate-exchange" in source.arguments else "policy"
        step: Row = {"reason": f"no binding holds: to the alternate exchange (by {by})", "bindings": [], "bindings_count": 0}
        alternate = self._vhost.exchanges.get(source.alternate)
        if alternate is not None and alternate in asked:
            step["to"] = {"kind": EXCHANGE, "name": alternate.name, "again": True, "steps": []}
        else:
            step["to"] = self._from(source.alternate, keys, found, asked, deep)
        node["steps"].append(step)

    # -- queues ---------------------------------------------------------------------------------------------------

    def _queue(self, queue: Queue, found: dict[str, None], deep: int) -> Row:
        self._nodes += 1
        again = queue.name in found
        found[queue.name] = None
        kind = queue_type(queue.arguments)
        policy, operator_policy = self._vhost.policies.for_queue(queue.name, kind)
        outcome, notes = self._outcome(queue)
        node: Row = {
            "kind": "queue", "name": queue.name, "type": kind, "durable": queue.durable,
            "policy": policy.name if policy else None, "operator_policy": operator_policy.name if operator_policy else None,
            "consumers": int(queue.consumer_count), "messages_ready": int(queue.ready_count()),
            "outcome": outcome, "notes": notes, "again": again,
        }  # fmt: skip
        exchange = queue.settings.dead_letter_exchange
        if exchange is not None and not again:
            node["dead_letter"] = self._dead_letter(queue, exchange, deep)
        return node

    def _outcome(self, queue: Queue) -> tuple[str, list[str]]:
        """What the queue would do: keep, refuse, drop; and what there is to say."""
        notes: list[str] = []
        settings = queue.settings
        refusal = queue.refusal(self._message)
        if refusal:
            outcome = "refuse" if "full" in refusal else "drop"
            return outcome, [f"the queue {refusal}"]
        full = queue.max_length
        if full.any and not full.rejects and full.would_exceed(queue.backing, self._message.body_size):
            notes.append("the queue is full: its oldest message goes")
        ttl = int(settings.message_ttl)
        own = short_property(self._message.header_payload(), EXPIRATION)
        if own is not None and own.isdigit():
            ttl = int(own) if ttl < 0 else min(ttl, int(own))
        if ttl >= 0 and not queue.stream:
            notes.append(f"it expires after {ttl} ms" if ttl else "it expires at once, unless a consumer is ready")
        if not queue.durable:
            notes.append("the queue goes with the broker")
        elif not self._message.persistent and not queue.quorum and not queue.stream:
            notes.append("the message is transient: it does not survive a restart")
        if settings.delivery_limit >= 0:
            notes.append(f"it may come back {int(settings.delivery_limit)} times")
        return "keep", notes

    def _dead_letter(self, queue: Queue, exchange: str, deep: int) -> Row:
        settings = queue.settings
        key = settings.dead_letter_routing_key
        keys = [key] if key is not None else [self._first_key(), *self._further_keys()]
        reasons = ["rejected"]
        if settings.message_ttl >= 0 or short_property(self._message.header_payload(), EXPIRATION) is not None:
            reasons.append("expired")
        if queue.max_length.any:
            reasons.append("maxlen")
        if settings.delivery_limit >= 0:
            reasons.append("delivery_limit")
        by = "argument" if "x-dead-letter-exchange" in queue.arguments else "policy"
        node: Row = {"exchange": exchange, "routing_keys": keys, "reasons": reasons, "by": by, "queues": [], "tree": None}
        if deep < DEATHS_DEEP and self._nodes <= NODES_MAX:
            found: dict[str, None] = {}
            node["tree"] = self._from(exchange, keys, found, set(), deep + 1)
            node["queues"] = list(found)
        return node

    def _first_key(self) -> str:
        split = 1 + self._message.address[0]
        return self._message.address[split + 1 :].decode("utf-8")


def _reason(kind: str, binding: Binding, key: str) -> str:
    if kind == "direct":
        return f"the binding key is the routing key '{key}'"
    if kind == "topic":
        return f"'{binding.binding_key}' matches the routing key '{key}'"
    if kind == "headers":
        return f"the headers fulfil x-match '{_match_of(binding.arguments)}'"
    return "the binding holds"


def _match_of(arguments: dict[str, Any]) -> Any:
    return arguments.get("x-match", "all")


