"""Policies: what an operator asks of the queues and exchanges whose names match a pattern, as RabbitMQ has it.

At most one policy applies to a queue or an exchange: of those whose pattern is found in its name and whose apply-to fits,
the one of the highest priority; among equals the first by name (RabbitMQ leaves that open). Queues have an operator
policy beside it, chosen in the same way. The two together are the effective definition: all keys of both, and where both
have one, the smaller number.

What must stay true:
- a `Policy` never changes; who changes which there are has the vhost apply them (`VHost.applying_policies`);
- what is in `Policies` is in the definitions, and gets to the disk with the next commit;
- a policy with a key that a queue's type does not know does not apply to that queue, as in RabbitMQ.

The texts of `PolicyError` are what rabbitmqctl prints. A pattern is searched in names only, so what users.py says of bad
regular expressions holds here too.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from typing import Final

from rabbitpy_broker.definitions import Definitions
from rabbitpy_broker.erlang_text import erlang_pairs, erlang_text
from rabbitpy_broker.errors import BrokerError, StartError
from rabbitpy_broker.queues.queue_settings import CLASSIC, CONFIRM_MODES, QUORUM, STREAM
from rabbitpy_broker.queues.stream_start import is_age

ALL: Final = "all"
QUEUES: Final = "queues"
EXCHANGES: Final = "exchanges"
_OF_STREAMS: Final = frozenset(("initial-cluster-size", "max-age", "stream-max-segment-size-bytes"))
# Keys that keep a policy from queues of a type.
_FOREIGN: Final = {
    CLASSIC: _OF_STREAMS | {"queue-leader-locator", "target-group-size"},
    QUORUM: _OF_STREAMS
    | {
        "ha-mode",
        "ha-params",
        "ha-promote-on-failure",
        "ha-promote-on-shutdown",
        "ha-sync-batch-size",
        "ha-sync-mode",
        "queue-master-locator",
        "queue-mode",
    },
    STREAM: frozenset(
        (
            "confirm-mode",
            "dead-letter-exchange",
            "dead-letter-routing-key",
            "dead-letter-strategy",
            "delivery-limit",
            "expires",
            "ha-mode",
            "ha-params",
            "ha-promote-on-failure",
            "ha-promote-on-shutdown",
            "ha-sync-batch-size",
            "ha-sync-mode",
            "max-in-memory-bytes",
            "max-in-memory-length",
            "max-length",
            "message-ttl",
            "overflow",
            "queue-master-locator",
            "queue-mode",
        )
    ),
}
# apply-to -> the type of the queues that it is for; RabbitMQ has these since 3.12.
_APPLY_TO_TYPE: Final = {"classic_queues": CLASSIC, "quorum_queues": QUORUM, "streams": STREAM}
OPERATOR_KEYS: Final = frozenset(
    (
        "delivery-limit",
        "expires",
        "max-in-memory-bytes",
        "max-in-memory-length",
        "max-length",
        "max-length-bytes",
        "message-ttl",
    )
)


class PolicyError(BrokerError):
    """A policy that cannot be, or one to be cleared that is not there."""


# -- what a definition may hold -----------------------------------------------------------------------------------


def _is_number(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _is_limit(value: object) -> bool:
    """-1 frees of a limit that there is otherwise."""
    return value == -1 or _is_number(value)


def _is_positive(value: object) -> bool:
    return _is_number(value) and value != 0


def _is_name(value: object) -> bool:
    return isinstance(value, str)


def _is_age(value: object) -> bool:
    return isinstance(value, str) and is_age(value)


def _anything(value: object) -> bool:
    return True


def _one_of(*choices: object) -> Callable[[object], bool]:
    # The types too: true is no 1.
    return lambda value: any(value == choice and type(value) is type(choice) for choice in choices)


# Key -> whether it may have this value, and how a value that it may not have is called. RabbitMQ's keys for mirrors and
# for the place of a queue in a cluster are taken with any value: they ask for nothing here.
_KEYS: Final[dict[str, tuple[Callable[[object], bool], str]]] = {
    "alternate-exchange": (_is_name, "is not a valid alternate exchange name"),
    "confirm-mode": (_one_of(*CONFIRM_MODES), f"is not a valid confirm-mode value, expected {' or '.join(CONFIRM_MODES)}"),
    "dead-letter-exchange": (_is_name, "is not a valid dead letter exchange name"),
    "dead-letter-routing-key": (_is_name, "is not a valid dead letter routing key"),
    "dead-letter-strategy": (_one_of("at-most-once", "at-least-once"), "is not a valid dead letter strategy"),
    "delivery-limit": (_is_limit, "is not a valid delivery limit"),
    "expires": (_is_positive, "is not a valid queue expiry"),
    "ha-mode": (_anything, ""),
    "ha-params": (_anything, ""),
    "ha-promote-on-failure": (_anything, ""),
    "ha-promote-on-shutdown": (_anything, ""),
    "ha-sync-batch-size": (_anything, ""),
    "ha-sync-mode": (_anything, ""),
    "initial-cluster-size": (_is_number, "is not a valid cluster size"),
    "max-age": (_is_age, "is not a valid max age"),
    "max-in-memory-bytes": (_is_number, "is not a valid maximum memory in bytes"),
    "max-in-memory-length": (_is_number, "is not a valid maximum memory in bytes"),
    "max-length": (_is_number, "is not a valid maximum length"),
    "max-length-bytes": (_is_number, "is not a valid maximum length in bytes"),
    "message-ttl": (_is_number, "is not a valid message TTL"),
    "overflow": (_one_of("drop-head", "reject-publish", "reject-publish-dlx"), "is not a valid overflow value"),
    "queue-leader-locator": (
        _one_of("client-local", "balanced", "random", "least-leaders"),
        "is not a valid queue leader locator value",
    ),
    "queue-master-locator": (_anything, ""),
    "queue-mode": (_one_of("default", "lazy"), "is not a valid queue-mode value"),
    "queue-version": (_one_of(1, 2), "is not a valid queue-version value"),
    "stream-max-segment-size-bytes": (_is_number, "is not a valid segment size"),
    "target-group-size": (_is_number, "is not a valid target group size"),
}


def _check_definition(definition: dict[str, object], operator: bool) -> None:
    allowed = OPERATOR_KEYS if operator else _KEYS.keys()
    unknown = {key: value for key, value in definition.items() if key not in allowed}
    if unknown:
        raise _invalid(f"{erlang_pairs(unknown)} are not recognised policy settings")
    if not definition:
        raise _invalid("no policy provided")
    for key in sorted(definition):
        may_be, complaint = _KEYS[key]
        if not may_be(definition[key]):
            raise _invalid(f"{erlang_text(definition[key])} {complaint}")


def _invalid(text: str) -> PolicyError:
    return PolicyError(f"Validation failed\n\n{text}")


# -- policies -----------------------------------------------------------------------------------------------------


class Policy:
    """One policy. `definition` has JSON values. Raises PolicyError for a pattern that is no regular expression."""

    __slots__ = ("_search", "apply_to", "definition", "name", "operator", "pattern", "priority")

    def __init__(
        self, name: str, pattern: str, apply_to: str, priority: int, definition: dict[str, object], operator: bool
    ) -> None:
        try:
            self._search = re.compile(pattern).search
        except re.error as error:
            text = f'{{"{error.msg}",{error.pos or 0}}}'
            raise _invalid(f"pattern should be regular expression but is invalid: {text}") from None
        except (OverflowError, RecursionError) as error:
            raise _invalid(f"pattern should be regular expression but is invalid: {error}") from None
        self.name = name
        self.pattern = pattern
        self.apply_to = apply_to
        self.priority = priority
        self.definition = definition
        self.operator = operator

    def __repr__(self) -> str:
        return f"Policy({self.name!r})"

    def applies_to_exchange(self, name: str) -> bool:
        """Whether it applies to the exchange of that name."""
        return self.apply_to in (ALL, EXCHANGES) and self._search(name) is not None

    def applies_to_queue(self, name: str, queue_type: str) -> bool:
        """Whether it applies to the queue of that name and type."""
        if self.apply_to not in (ALL, QUEUES) and _APPLY_TO_TYPE.get(self.apply_to) != queue_type:
            return False
        return _FOREIGN[queue_type].isdisjoint(self.definition) and self._search(name) is not None


class Policies:
    """The policies and operator policies of one vhost. Raises StartError when one of them cannot be used."""

    def __init__(self, definitions: Definitions, vhost: str) -> None:
        self._definitions = definitions
        self._vhost = vhost
        self._policies: dict[str, Policy] = {}
        self._operator_policies: dict[str, Policy] = {}
        for operator, name, pattern, apply_to, priority, definition in definitions.policies(vhost):
            try:
                policy = Policy(name, pattern, apply_to, priority, json.loads(definition), operator)
            except PolicyError as error:
                raise StartError(f"policy '{name}' of vhost '{vhost}': {error}") from None
            self._named(operator)[name] = policy
        self._sort()

    def _named(self, operator: bool) -> dict[str, Policy]:
        return self._operator_policies if operator else self._policies

    def _sort(self) -> None:
        self._by_priority = _by_priority(self._policies.values())
        self._operator_by_priority = _by_priority(self._operator_policies.values())

    # -- asking -------------------------------------------------------------------------------------------------------

    def for_queue(self, name: str, queue_type: str = CLASSIC) -> tuple[Policy | None, Policy | None]:
        """The policy and the operator policy that apply."""
        return _first(self._by_priority, name, queue_type), _first(self._operator_by_priority, name, queue_type)

    def for_exchange(self, name: str) -> Policy | None:
        """The policy that applies; operator policies have nothing for exchanges."""
        for policy in self._by_priority:
            if policy.applies_to_exchange(name):
                return policy
        return None

    def effective(self, name: str, queue_type: str = CLASSIC) -> dict[str, object]:
        """What the policy and the operator policy of a queue make together; empty without any."""
        policy, operator_policy = self.for_queue(name, queue_type)
        merged = dict(policy.definition) if policy is not None else {}
        if operator_policy is not None:
            for key, highest in operator_policy.definition.items():
                value = merged.get(key, highest)
                assert isinstance(value, int), "kept by: _check_definition"
                assert isinstance(highest, int), "kept by: _check_definition"
                merged[key] = min(value, highest) if min(value, highest) >= 0 else max(value, highest)
        return merged

    def all(self) -> list[Policy]:
        """The policies that are not operator policies."""
        return list(self._policies.values())

    def all_operator(self) -> list[Policy]:
        return list(self._operator_policies.values())

    # -- changes ------------------------------------------------------------------------------------------------------

    def set(self, name: str, pattern: str, apply_to: str, priority: int, definition: dict[str, object]) -> None:
        """Makes a policy, or another of the one of that name. Raises PolicyError, then nothing has changed."""
        self._set(name, pattern, apply_to, priority, definition, False)

    def set_operator(
        self, name: str, pattern: str, apply_to: str, priority: int, definition: dict[str, object]
    ) -> None:
        """Like `set`, for an operator policy, which knows numbers only."""
        self._set(name, pattern, apply_to, priority, definition, True)

    def clear(self, name: str) -> None:
        """Raises PolicyError when there is none of that name."""
        self._clear(name, False)

    def clear_operator(self, name: str) -> None:
        """Raises PolicyError when there is none of that name."""
        self._clear(name, True)

    def _set(
        self, name: str, pattern: str, apply_to: str, priority: int, definition: dict[str, object], operator: bool
    ) -> None:
        policy = Policy(name, pattern, apply_to, priority, definition, operator)
        if apply_to not in (ALL, QUEUES, EXCHANGES, *_APPLY_TO_TYPE):
            raise _invalid(f"apply-to '{apply_to}' unrecognised; should be 'queues', 'exchanges' or 'all'")
        _check_definition(definition, operator)
        if not -(1 << 63) <= priority < 1 << 63:
            raise _invalid(f"priority should be a number, actually was {priority}")
        self._named(operator)[name] = policy
        text = json.dumps(definition)
        self._definitions.put_policy(self._vhost, operator, name, pattern, apply_to, priority, text)
        self._sort()

    def _clear(self, name: str, operator: bool) -> None:
        if self._named(operator).pop(name, None) is None:
            raise PolicyError("Parameter does not exist")
        self._definitions.delete_policy(self._vhost, operator, name)
        self._sort()


def _by_priority(policies: Iterable[Policy]) -> list[Policy]:
    return sorted(policies, key=lambda policy: (-policy.priority, policy.name))


def _first(policies: list[Policy], name: str, queue_type: str) -> Policy | None:
    for policy in policies:
        if policy.applies_to_queue(name, queue_type):
            return policy
    return None
