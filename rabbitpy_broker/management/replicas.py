"""How many replicas a vhost gets that is made without a number of them.

The first of these that says something counts:

    what who makes it says                        --replicas, "replicas" in the API and in definitions files
    the global parameter `vhost_replicas`         [{"pattern": "^prod", "replicas": 3}, ...]: the first that fits the name
    the setting `cluster.default_replicas`

0 is a vhost of this node alone. A broker that is in no cluster makes no others.
"""

from __future__ import annotations

import json
import re
from typing import Any, Final

import msgspec

from rabbitpy_broker.errors import BrokerError
from rabbitpy_broker.management.managed import ManagedBroker

PARAMETER: Final = "vhost_replicas"
REPLICAS_MAX: Final = 99


class _Rule(msgspec.Struct, forbid_unknown_fields=True):
    """Vhosts in whose names the regular expression is found have so many replicas."""

    pattern: str
    replicas: int


def rules_of(value: object) -> list[_Rule]:
    """What the global parameter says. Raises BrokerError."""
    try:
        rules = msgspec.convert(value, list[_Rule])
        for rule in rules:
            re.compile(rule.pattern)
            checked(rule.replicas)
    except (msgspec.ValidationError, re.error) as error:
        raise BrokerError(f"{PARAMETER}: {error}") from None
    return rules


def checked(replicas: object) -> int:
    """A number of replicas. Raises BrokerError."""
    if not isinstance(replicas, int) or isinstance(replicas, bool) or not 0 <= replicas <= REPLICAS_MAX:
        raise BrokerError(f"replicas: must be a number from 0 to {REPLICAS_MAX}")
    return replicas


def wanted_replicas(broker: ManagedBroker, vhost: str, given: Any = None) -> int:
    """Of a new vhost; `given` is what who makes it says. Raises BrokerError."""
    if given is not None:
        return checked(given)
    if broker.member is None:
        return 0
    for name, value in broker.definitions.global_parameters():
        if name == PARAMETER:
            for rule in rules_of(json.loads(value)):
                if re.search(rule.pattern, vhost):
                    return rule.replicas
    return broker.config.cluster.default_replicas
