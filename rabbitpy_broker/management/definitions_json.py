"""RabbitMQ's definitions file: everything of a broker but its messages, as JSON; written, and read back.

What is read may come from RabbitMQ 3.10 or from here, of a whole broker or of one vhost (then the entries name no vhost).
An import validates everything before it changes anything, so that a file with a fault in it does nothing. It may be
repeated: queues and exchanges that exist stay as they are, whatever the file says of them, users, permissions, policies
and limits become what the file says, and nothing is deleted. All this is as RabbitMQ does it.

What differs, and why:
- bindings from or to what is neither in the file nor there are left out and counted (RabbitMQ writes bindings to internal
  exchanges, and not the exchanges; here those are written too);
- bytes that are no UTF-8 are written as RabbitMQ writes them, as a text that says so, and become bytes again when read.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from rabbitpy_broker import __version__
from rabbitpy_broker.definitions import CLUSTER_ID, Definitions
from rabbitpy_broker.destination import QUEUE, Destination
from rabbitpy_broker.errors import AmqpError, BrokerError
from rabbitpy_broker.limits import VHOST_LIMITS, check_limits
from rabbitpy_broker.management.admin import DATA_ERROR, Admin, AdminError, check_name, split_tags
from rabbitpy_broker.management.listing import policy_value, scalar
from rabbitpy_broker.management.replicas import PARAMETER, checked, rules_of, wanted_replicas
from rabbitpy_broker.policies import Policies
from rabbitpy_broker.protocol.handshake import RABBITMQ_VERSION
from rabbitpy_broker.queues.arguments import check_arguments, check_properties, with_type
from rabbitpy_broker.queues.clock import Clock
from rabbitpy_broker.queues.deduplication import deduplication
from rabbitpy_broker.queues.queue import Queue
from rabbitpy_broker.queues.queue_settings import CLASSIC, QUEUE_TYPES, queue_type
from rabbitpy_broker.routing.exchange import Exchange
from rabbitpy_broker.routing.resolve import EXCHANGE_TYPES, make_exchange
from rabbitpy_broker.slices import in_slices
from rabbitpy_broker.users import HASHING_ALGORITHM, Users, hash_password
from rabbitpy_broker.vhost import PREDECLARED, REPLY_TO, VHost, check_alternate
from rabbitpy_broker.wire.field_table import FieldTable, field_table

SECTIONS: Final = (
    "users",
    "vhosts",
    "permissions",
    "topic_permissions",
    "parameters",
    "global_parameters",
    "policies",
    "queues",
    "exchanges",
    "bindings",
)
COMMIT_EACH: Final = 1_000  # entries; a hundred thousand in one transaction would stop everybody for a second
BYTES_MARK: Final = "Not UTF-8, base64 is: "

UNDEFINED: Final = "undefined"  # what RabbitMQ calls a default type that nobody has given
_TYPES: Final = " or ".join(QUEUE_TYPES)

Entry = dict[str, Any]


# -- export -------------------------------------------------------------------------------------------------------


def entries(admin: Admin) -> Iterator[tuple[str, Any] | None]:
    """The document in pieces: (key, value) for single values, (section, entry) for each entry of a section.

    (section, None) stands for a section, which may have no entries; None for what is no entry. It is a walk in slices, and
    fits together all the same: what an entry names is an entry, too. For that the vhosts are those of the beginning, and
    bindings come after all queues and exchanges, those between two that are in the document.
    """
    yield "rabbit_version", RABBITMQ_VERSION
    yield "rabbitmq_version", RABBITMQ_VERSION
    yield "product_name", "rabbitpy-broker"
    yield "product_version", __version__
    for section in SECTIONS:
        yield section, None
    vhosts = dict(admin.node.vhosts)
    yield from _users(admin, vhosts)
    for vhost in vhosts.values():
        yield from _vhost(admin, vhost)
    for vhost_name, component, name, value in admin.definitions.parameters():
        if vhost_name in vhosts:
            entry = {"component": component, "name": name, "value": json.loads(value), "vhost": vhost_name}
            yield "parameters", entry
    for name, value in admin.definitions.global_parameters():
        if name == CLUSTER_ID:  # the broker's own, as in RabbitMQ
            continue
        yield "global_parameters", {"name": name, "value": json.loads(value)}


def with_other_vhosts(entries: bytes, of_others: Sequence[bytes]) -> list[bytes]:
    """Encoded entries, and those that other nodes have of vhosts that are in none before: each of `of_others` is a JSON array."""
    known = {entry["name"] for section, entry in msgspec.json.decode(b"[%b]" % entries) if section == "vhosts" and entry}
    found = [entries]
    for others in of_others:
        theirs = [(section, entry) for section, entry in msgspec.json.decode(others) if isinstance(entry, dict)]
        new = {entry["name"] for section, entry in theirs if section == "vhosts"} - known
        known |= new
        found += [
            msgspec.json.encode(one) for one in theirs if one[1].get("name" if one[0] == "vhosts" else "vhost") in new
        ]
    return found


def _users(admin: Admin, vhosts: Collection[str]) -> Iterator[tuple[str, Entry]]:
    for user in admin.users.all():
        yield (
            "users",
            {
                "hashing_algorithm": user.hashing_algorithm,
                "limits": user.limits,
                "name": user.name,
                "password_hash": user.password_hash,
                "tags": list(user.tags),
            },
        )
        for vhost, may in list(user.permissions.items()):
            if vhost not in vhosts:
                continue
            entry = {"configure": may.configure, "read": may.read, "user": user.name, "vhost": vhost, "write": may.write}
            yield "permissions", entry
        for vhost, exchanges in list(user.topic_permissions.items()):
            if vhost not in vhosts:
                continue
            for exchange, topics in list(exchanges.items()):
                entry = {"exchange": exchange, "read": topics.read, "user": user.name, "vhost": vhost, "write": topics.write}
                yield "topic_permissions", entry


def _vhost(admin: Admin, vhost: VHost) -> Iterator[tuple[str, Entry] | None]:
    limits = vhost.limits.given
    metadata = json.loads(admin.definitions.vhost_metadata(vhost.name))
    metadata = {"description": "", "tags": [], **metadata}
    metadata.pop("incarnation", None)  # another one of the name has another
    yield "vhosts", {"limits": limits, "metadata": metadata, "name": vhost.name}
    if limits:
        yield "parameters", {"component": "vhost-limits", "name": "limits", "value": limits, "vhost": vhost.name}
    for policy in vhost.policies.all_operator():
        value = policy_value(policy)
        yield "parameters", {"component": "operator_policy", "name": policy.name, "value": value, "vhost": vhost.name}
    for policy in vhost.policies.all():
        yield "policies", {"name": policy.name, "vhost": vhost.name, **policy_value(policy)}
    shown: set[tuple[str, str]] = set()  # kind and name of what a binding may lead to
    for queue in vhost.each_queue():
        if _is_shared(queue):
            shown.add((queue.kind, queue.name))
            yield "queues", _queue(queue)
        else:
            yield None
    predeclared = {name for name, _ in PREDECLARED}
    for exchange in vhost.each_exchange():
        shown.add((exchange.kind, exchange.name))
        if exchange.name not in predeclared:
            entry = {
                "arguments": table_object(exchange.arguments),
                "auto_delete": exchange.auto_delete,
                "durable": exchange.durable,
                "name": exchange.name,
                "type": exchange.type,
                "vhost": vhost.name,
            }
            yield "exchanges", {**entry, "internal": True} if exchange.internal else entry
    for exchange in vhost.each_exchange():
        if (exchange.kind, exchange.name) in shown:
            yield from _bindings(vhost, exchange, shown)


def _bindings(
    vhost: VHost, exchange: Exchange, shown: Collection[tuple[str, str]]
) -> Iterator[tuple[str, Entry] | None]:
    for binding in exchange.each_binding():
        target = binding.destination
        if (target.kind, target.name) not in shown:
            yield None
            continue
        yield (
            "bindings",
            {
                "arguments": table_object(binding.arguments),
                "destination": target.name,
                "destination_type": target.kind,
                "routing_key": binding.binding_key,
                "source": exchange.name,
                "vhost": vhost.name,
            },
        )


def _is_shared(queue: Queue) -> bool:
    """Exclusive queues, and those behind direct reply-to, are their connections'."""
    return queue.owner is None


def _queue(queue: Queue) -> Entry:
    return {
        "arguments": table_object(queue.arguments),
        "auto_delete": queue.auto_delete,
        "durable": queue.durable,
        "name": queue.name,
        "type": queue_type(queue.arguments),
        "vhost": queue.vhost,
    }


def table_object(table: dict[str, object]) -> dict[str, object]:
    return {key: _json(value) for key, value in table.items()}


def _json(value: object) -> object:
    if isinstance(value, dict):
        return table_object(value)
    if isinstance(value, list):
        return [_json(item) for item in value]
    return scalar(value)


# -- import -------------------------------------------------------------------------------------------------------


class Import:
    """One import. `vhost` is for entries that name none. Raises AdminError for what is no definitions file."""

    def __init__(self, admin: Admin, definitions: dict[str, Any], vhost: str = "/") -> None:
        self._admin = admin
        self._vhost = vhost
        self._imported: dict[str, int] = {}
        self._left_out: list[str] = []
        self._to_apply: set[VHost] = set()
        self._limits: dict[str, dict[str, Any]] = {}  # by vhost
        self._entries: dict[str, list[Entry]] = {}
        for section in SECTIONS:
            found = definitions.get(section, [])
            if not isinstance(found, list) or not all(isinstance(entry, dict) for entry in found):
                raise AdminError(f"{section}: must be a list of objects", DATA_ERROR)
            self._entries[section] = found

    def outcome(self) -> str:
        """What was done."""
        counts = ", ".join(f"{count} {section.replace('_', ' ')}" for section, count in self._imported.items() if count)
        text = f"Imported {counts or 'nothing'}"
        if self._left_out:
            shown = "; ".join(self._left_out[:5]) + ("; ..." if len(self._left_out) > 5 else "")
            text += f". Left out {len(self._left_out)}: {shown}"
        return text

    async def make_replicated(self) -> None:
        """Makes the file's vhosts that are to have replicas and are not there yet, after a look at the whole file.

        To be called before `steps` by whoever can wait. Raises AdminError.
        """
        broker = self._admin.broker
        there = {*self._admin.node.vhosts, *self._admin.node.owned_elsewhere}
        if broker.member is None or all(entry.get("name") in there for entry in self._entries["vhosts"]):
            return
        await in_slices(self.checking())
        for entry in self._entries["vhosts"]:
            metadata = _metadata(entry)
            try:
                count = 0 if entry["name"] in there else wanted_replicas(broker, entry["name"], metadata.get("replicas"))
            except BrokerError as error:
                raise AdminError(str(error), DATA_ERROR) from None
            if count:
                await self._admin.add_replicated_vhost(entry["name"], count, metadata)
            elif entry["name"] not in there:
                await self._admin.check_name(entry["name"])

    def checking(self) -> Iterator[None]:
        """Looks whether all of it could be done, and changes nothing. Raises AdminError, which names the entry."""
        scratch = Definitions(None)
        try:
            yield from self._each(_Rehearsal(self._admin, scratch, self._vhost).checks())
        finally:
            scratch.close()

    def steps(self) -> Iterator[None]:
        """Does it, a step each time it is asked for the next. Raises AdminError, which names the entry."""
        yield from self.checking()
        try:
            for number, _ in enumerate(self._each(self._changes()), 1):
                if number % COMMIT_EACH == 0:
                    self._admin.commit()
                yield
            for vhost in list(self._to_apply):
                yield from vhost.applying_policies()
                self._to_apply.discard(vhost)
            for name, limits in self._limits.items():
                self._admin.vhost(name).limits.set(limits)
        finally:  # what has been done so far is in effect, so it is kept
            for vhost in self._to_apply:
                vhost.apply_policies()
            self._admin.commit()

    def _each(self, sections: dict[str, Callable[[Entry], None]]) -> Iterator[None]:
        for section, act in sections.items():
            self._imported[section] = 0
            for number, entry in enumerate(self._entries[section], 1):
                try:
                    act(entry)
                except (BrokerError, _BadEntry, ValueError, OverflowError) as error:
                    text = error.text if isinstance(error, AmqpError) else str(error)
                    raise AdminError(f"{section}, entry {number} ({_title(entry)}): {text}", DATA_ERROR) from None
                self._imported[section] += 1
                yield

    def _changes(self) -> dict[str, Callable[[Entry], None]]:
        """Limits come last, when all this is done: what is in the file is not measured by them."""
        return {
            "vhosts": self._put_vhost,
            "users": self._put_user,
            "permissions": self._put_permissions,
            "topic_permissions": self._put_topic_permissions,
            "policies": self._put_policy,
            "queues": self._put_queue,
            "exchanges": self._put_exchange,
            "bindings": self._put_binding,
            "parameters": self._put_parameter,
            "global_parameters": self._put_global_parameter,
        }

    def _vhost_of(self, entry: Entry) -> VHost:
        return self._admin.vhost(entry.get("vhost", self._vhost))

    def _put_vhost(self, entry: Entry) -> None:
        metadata, broker = _metadata(entry), self._admin.broker
        if metadata.get("replicas") and entry["name"] not in self._admin.node.vhosts:
            if entry["name"] in broker.node.owned_elsewhere:
                self._admin.vhost(entry["name"])
            if broker.config.cluster.engine:
                raise _BadEntry("has replicas: import it by rabbitpy-ctl or the API, when the nodes run")
            self._left_out.append(f"replicas of vhost '{entry['name']}': the broker is in no cluster")
        self._admin.put_vhost(entry["name"], metadata)
        vhost = self._admin.vhost(entry["name"])
        if "limits" in entry:
            self._limits[vhost.name] = _pairs(entry["limits"])
        vhost.tracing = entry.get("tracing") is True or vhost.tracing

    def _put_user(self, entry: Entry) -> None:
        _put_user(self._admin.users, entry)

    def _put_permissions(self, entry: Entry) -> None:
        vhost = self._vhost_of(entry).name
        self._admin.users.set_permissions(entry["user"], vhost, entry["configure"], entry["write"], entry["read"])

    def _put_topic_permissions(self, entry: Entry) -> None:
        vhost = self._vhost_of(entry).name
        self._admin.users.set_topic_permissions(entry["user"], vhost, entry["exchange"], entry["write"], entry["read"])

    def _put_policy(self, entry: Entry) -> None:
        self._change_policy(entry, entry, operator=False)

    def _change_policy(self, entry: Entry, value: Entry, *, operator: bool) -> None:
        """All policies first, then their queues at once: `steps` sees to that."""
        vhost = self._vhost_of(entry)
        _put_policy(vhost.policies, value, entry["name"], operator=operator)
        self._to_apply.add(vhost)

    def _put_parameter(self, entry: Entry) -> None:
        vhost = self._vhost_of(entry)
        if entry["component"] == "vhost-limits":
            self._limits[vhost.name] = _pairs(entry["value"])
        elif entry["component"] == "operator_policy":
            self._change_policy(entry, _pairs(entry["value"]), operator=True)
        else:
            value = json.dumps(entry["value"])
            self._admin.definitions.put_parameter(vhost.name, entry["component"], entry["name"], value)

    def _put_global_parameter(self, entry: Entry) -> None:
        self._admin.definitions.put_global_parameter(entry["name"], json.dumps(entry["value"]))

    def _put_queue(self, entry: Entry) -> None:
        vhost = self._vhost_of(entry)
        if entry["name"] not in vhost.queues:
            durable, auto_delete = entry.get("durable", True), entry.get("auto_delete", False)
            arguments = _queue_arguments(entry)
            if "type" not in entry:
                arguments = vhost.typed(arguments, durable, False, auto_delete)
            vhost.declare_queue(entry["name"], durable, False, auto_delete, arguments, None)

    def _put_exchange(self, entry: Entry) -> None:
        vhost, name = self._vhost_of(entry), entry["name"]
        if name in vhost.exchanges or not name:
            return
        if name.startswith("amq."):
            self._left_out.append(f"exchange '{name}' in vhost '{vhost.name}': the name is reserved")
            return
        vhost.declare_exchange(
            name,
            entry["type"],
            entry.get("durable", True),
            entry.get("auto_delete", False),
            entry.get("internal", False),
            _table(entry.get("arguments", {})),
        )

    def _put_binding(self, entry: Entry) -> None:
        vhost = self._vhost_of(entry)
        source = vhost.exchanges.get(entry["source"])
        to_queue = entry["destination_type"] == QUEUE
        target: Destination | None = (vhost.queues if to_queue else vhost.exchanges).get(entry["destination"])
        if not entry["source"]:
            return  # every queue is bound to the default exchange
        if source is None or target is None:
            absent = entry["source"] if source is None else entry["destination"]
            self._left_out.append(f"binding of '{entry['source']}' to '{entry['destination']}': no '{absent}'")
            return
        vhost.bind(source, target, entry.get("routing_key", ""), _table(entry.get("arguments", {})))


class _BadEntry(Exception):
    """An entry without a key that it needs, or with one of the wrong type."""


class _Rehearsal:
    """The same as an import, done to users and policies that are thrown away: whatever it raises is raised in time."""

    def __init__(self, admin: Admin, scratch: Definitions, vhost: str) -> None:
        self._vhost = vhost
        self._users = Users(scratch)
        self._policies = Policies(scratch, "")
        for user in admin.users.all():
            self._users.put_user_hash(user.name, "", HASHING_ALGORITHM)
        self._there = admin.node.vhosts
        self._new_vhosts: set[str] = set()
        self._new_exchanges: dict[tuple[str, str], Exchange] = {}
        self._clock = Clock()

    def checks(self) -> dict[str, Callable[[Entry], None]]:
        """By section, in the order of the import."""
        return {
            "vhosts": self._vhost_entry,
            "users": self._user,
            "permissions": self._permissions,
            "topic_permissions": self._topic_permissions,
            "parameters": self._parameter,
            "global_parameters": self._global_parameter,
            "policies": self._policy,
            "queues": self._queue,
            "exchanges": self._exchange,
            "bindings": self._binding,
        }

    def _check_vhost(self, entry: Entry) -> None:
        name = _text(entry, "vhost", self._vhost)
        if name not in self._there and name not in self._new_vhosts:
            raise _BadEntry(f"Virtual host '{name}' does not exist")

    def _vhost_entry(self, entry: Entry) -> None:
        check_name("vhost", _text(entry, "name"))
        _metadata(entry)
        check_limits("limits", VHOST_LIMITS, _pairs(entry.get("limits", {})))
        self._new_vhosts.add(entry["name"])

    def _user(self, entry: Entry) -> None:
        check_name("user", _text(entry, "name"))
        for key in ("password_hash", "password", "hashing_algorithm"):
            _text(entry, key, "")
        _put_user(self._users, entry)

    def _permissions(self, entry: Entry) -> None:
        self._check_vhost(entry)
        texts = [_text(entry, key) for key in ("configure", "write", "read")]
        self._users.set_permissions(_text(entry, "user"), "", *texts)

    def _topic_permissions(self, entry: Entry) -> None:
        self._check_vhost(entry)
        texts = [_text(entry, key) for key in ("exchange", "write", "read")]
        self._users.set_topic_permissions(_text(entry, "user"), "", *texts)

    def _parameter(self, entry: Entry) -> None:
        self._check_vhost(entry)
        component, name = _text(entry, "component"), _text(entry, "name")
        if "value" not in entry:
            raise _BadEntry("has no 'value'")
        if component == "vhost-limits":
            check_limits("limits", VHOST_LIMITS, _pairs(entry["value"]))
        elif component == "operator_policy":
            _put_policy(self._policies, _pairs(entry["value"]), name, operator=True)

    def _global_parameter(self, entry: Entry) -> None:
        name = _text(entry, "name")
        if "value" not in entry:
            raise _BadEntry("has no 'value'")
        if name == PARAMETER:
            rules_of(entry["value"])

    def _policy(self, entry: Entry) -> None:
        self._check_vhost(entry)
        _put_policy(self._policies, entry, _text(entry, "name"), operator=False)

    def _queue(self, entry: Entry) -> None:
        self._check_vhost(entry)
        name, vhost = _text(entry, "name"), entry.get("vhost", self._vhost)
        _check_amqp_name(name)
        if not name or name.startswith(REPLY_TO):
            raise _BadEntry("no name for a queue")
        _flags(entry, "durable", "auto_delete")
        arguments = _queue_arguments(entry)
        kind = str(arguments.get("x-queue-type", CLASSIC))
        if kind not in QUEUE_TYPES:
            raise _BadEntry(f"queues of type '{kind}' do not exist here: make it {_TYPES}, or take it out of the file")
        if vhost not in self._there or name not in self._there[vhost].queues:
            check_arguments(name, vhost, arguments)
            if kind != CLASSIC:
                check_properties(name, vhost, entry.get("durable", True), False, entry.get("auto_delete", False))

    def _exchange(self, entry: Entry) -> None:
        self._check_vhost(entry)
        _check_amqp_name(_text(entry, "name"))
        _flags(entry, "durable", "auto_delete", "internal")
        if _text(entry, "type") not in EXCHANGE_TYPES:
            raise _BadEntry(f"invalid exchange type '{entry['type']}'")
        arguments = _table(entry.get("arguments", {}))
        place = (entry.get("vhost", self._vhost), entry["name"])
        if self._exchange_at(*place) is not None:
            return
        exchange = make_exchange(entry["type"], entry["name"], True, False, False, arguments)
        check_alternate(exchange.name, place[0], arguments)
        deduplication(arguments, f"exchange '{exchange.name}' in vhost '{place[0]}'", self._clock)
        self._new_exchanges[place] = exchange

    def _exchange_at(self, vhost: str, name: str) -> Exchange | None:
        there = self._there[vhost].exchanges.get(name) if vhost in self._there else None
        return self._new_exchanges.get((vhost, name)) if there is None else there

    def _binding(self, entry: Entry) -> None:
        self._check_vhost(entry)
        for key in ("source", "destination"):
            _check_amqp_name(_text(entry, key))
        _check_amqp_name(_text(entry, "routing_key", ""))
        if _text(entry, "destination_type") not in ("queue", "exchange"):
            raise _BadEntry("destination_type must be queue or exchange")
        arguments = _table(entry.get("arguments", {}))
        source = self._exchange_at(entry.get("vhost", self._vhost), entry["source"])
        if source is not None:
            source.check_binding(entry.get("routing_key", ""), arguments)


def _put_user(users: Users, entry: Entry) -> None:
    """With a hash, a password, or neither: then no password is the user's."""
    tags = entry.get("tags", [])
    if isinstance(tags, str):  # as versions before 3.9 wrote them
        tags = split_tags(tags)
    if not isinstance(tags, list) or not all(isinstance(tag, str) for tag in tags):
        raise _BadEntry("'tags' must be a list of texts, or one with commas")
    algorithm = entry.get("hashing_algorithm", HASHING_ALGORITHM)
    hashed = entry.get("password_hash")
    if hashed is None:
        algorithm = HASHING_ALGORITHM
        hashed = hash_password(entry["password"]) if entry.get("password") else ""
    users.put_user_hash(entry["name"], hashed, algorithm, tags)
    if "limits" in entry:
        limits = _pairs(entry["limits"])
        users.clear_limits(entry["name"])
        users.set_limits(entry["name"], limits)


def _put_policy(policies: Policies, value: Entry, name: str, *, operator: bool) -> None:
    pattern, definition = _text(value, "pattern"), _pairs(value.get("definition"))
    apply_to, priority = _text(value, "apply-to", "all"), value.get("priority", 0)
    if not isinstance(priority, int) or isinstance(priority, bool):
        raise _BadEntry("'priority' must be a whole number")
    put = policies.set_operator if operator else policies.set
    put(name, pattern, apply_to, priority, definition)


def _metadata(entry: Entry) -> dict[str, Any]:
    """What RabbitMQ 3.10 calls so; before, description and tags stood beside the name."""
    metadata = entry.get("metadata", {})
    if not isinstance(metadata, dict):
        raise _BadEntry("'metadata' must be an object")
    beside = {key: entry[key] for key in ("description", "tags", "default_queue_type") if key in entry}
    metadata = {"description": "", "tags": [], **beside, **metadata}
    kind = metadata.get("default_queue_type", UNDEFINED)
    if kind != UNDEFINED and kind not in QUEUE_TYPES:
        raise _BadEntry(f"queues of type '{kind}' do not exist here: make the default type {_TYPES}, or leave it out")
    if "replicas" in metadata:
        checked(metadata["replicas"])
    return metadata


def _queue_arguments(entry: Entry) -> FieldTable:
    """A queue's; with the type that stands beside them, if they have none and it is not the usual one."""
    arguments, kind = _table(entry.get("arguments", {})), _text(entry, "type", CLASSIC)
    return arguments if kind == CLASSIC or "x-queue-type" in arguments else with_type(arguments, kind)


def _pairs(value: Any) -> dict[str, Any]:
    """An object; RabbitMQ writes some as a list of [key, value]."""
    if isinstance(value, dict):
        return value
    if isinstance(value, list) and all(
        isinstance(pair, list) and len(pair) == 2 and isinstance(pair[0], str) for pair in value
    ):
        return dict(value)
    raise _BadEntry("an object is expected where none is")


def _text(entry: Entry, key: str, default: str | None = None) -> str:
    value = entry.get(key, default)
    if not isinstance(value, str):
        raise _BadEntry(f"has no '{key}'" if value is None else f"'{key}' must be a text")
    return value


def _flags(entry: Entry, *keys: str) -> None:
    for key in keys:
        if not isinstance(entry.get(key, False), bool):
            raise _BadEntry(f"'{key}' must be true or false")


def _check_amqp_name(name: str) -> None:
    if len(name.encode("utf-8")) > 255:
        raise _BadEntry("a name has at most 255 bytes")


def _table(arguments: Any) -> FieldTable:
    return field_table({key: _value(value) for key, value in _pairs(arguments).items()})


def _value(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _value(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_value(item) for item in value]
    if isinstance(value, str) and value.startswith(BYTES_MARK):
        try:
            return base64.b64decode(value.removeprefix(BYTES_MARK), validate=True)
        except binascii.Error:
            return value
    return value


def _title(entry: Entry) -> str:
    """What an entry is called in an error."""
    keys = ("name", "user", "exchange", "source", "destination", "vhost")
    return ", ".join(f"{key} '{entry[key]}'" for key in keys if isinstance(entry.get(key), str)) or "without a name"


def load_file(admin: Admin, file: Path) -> str:
    """Imports a file; returns what was done. Raises AdminError."""
    try:
        definitions = msgspec.json.decode(file.read_bytes())
    except OSError as error:
        raise AdminError(f"cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise AdminError(f"no JSON: {error}") from None
    if not isinstance(definitions, dict):
        raise AdminError("no JSON object")
    importing = Import(admin, definitions)
    for _ in importing.steps():
        pass
    return importing.outcome()
