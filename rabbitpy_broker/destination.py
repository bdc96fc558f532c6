"""The destination of a binding: a queue or an exchange.

`incoming` holds every binding that ends here, so that deleting the destination costs its own bindings and not a walk
over every exchange. Only `Exchange.bind` and `Exchange.unbind` write to it.
"""

from __future__ import annotations

from typing import Final

QUEUE: Final = "queue"
EXCHANGE: Final = "exchange"


class Destination:
    """`kind` is QUEUE or EXCHANGE; names are unique per vhost and kind."""

    def __init__(self, kind: str, name: str) -> None:
        self.kind = kind
        self.name = name
        self.incoming: dict[object, None] = {}  # Binding -> None, in the order they were made
