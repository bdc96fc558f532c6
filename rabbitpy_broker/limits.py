"""How many connections, channels and queues a vhost or a user may have.

Limits are RabbitMQ's: a JSON object such as {"max-queues": 100}; a negative number, or none given, is no limit, 0 allows
nothing. They are asked for when something is opened or declared; what is open already stays, even under a lower limit.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Final

from rabbitpy_broker.definitions import Definitions
from rabbitpy_broker.erlang_text import erlang_pairs, erlang_text
from rabbitpy_broker.errors import BrokerError

NO_LIMIT: Final = -1
VHOST_LIMITS: Final = ("max-connections", "max-queues")
USER_LIMITS: Final = ("max-connections", "max-channels")


class LimitError(BrokerError):
    """A limit that there is not, or a value that is none; the text is RabbitMQ's."""


class VHostLimits:
    """The limits of one vhost, changed in place. Without a `max_queues` the configured limit counts."""

    def __init__(self, definitions: Definitions, vhost: str) -> None:
        self._definitions = definitions
        self._vhost = vhost
        self._keep(json.loads(definitions.vhost_limits(vhost)))

    def _keep(self, given: dict[str, int]) -> None:
        self.given = given
        self.max_connections = given.get("max-connections", NO_LIMIT)
        self.max_queues = given.get("max-queues")

    def set(self, limits: Mapping[str, object]) -> None:
        """These limits and no other. Raises LimitError, then nothing has changed."""
        try:
            self._keep(check_limits("limits", VHOST_LIMITS, limits))
        except LimitError as error:
            raise LimitError(f"Validation failed\n\n{error}") from None
        self._definitions.put_vhost_limits(self._vhost, json.dumps(self.given))

    def clear(self) -> None:
        """Takes all limits away; no error when there was none."""
        self._keep({})
        self._definitions.delete_vhost_limits(self._vhost)


def check_limits(what: str, allowed: Sequence[str], limits: Mapping[str, object]) -> dict[str, int]:
    """The limits, if each is one of those allowed and its value an integer. Raises LimitError."""
    unknown = {name: value for name, value in limits.items() if name not in allowed}
    if unknown:
        raise LimitError(f"Unrecognised terms {erlang_pairs(unknown)} in {what}")
    checked: dict[str, int] = {}
    for name, value in limits.items():
        if not isinstance(value, int) or isinstance(value, bool):
            raise LimitError(f"{name} should be a number, actually was {erlang_text(value)}")
        checked[name] = value
    return checked
