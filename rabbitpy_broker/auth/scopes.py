"""The scopes of a token: what its owner may do, as RabbitMQ reads it.

  configure:VHOST/NAME          write:VHOST/NAME          read:VHOST/NAME          the last may have /KEY behind it
  tag:TAG

VHOST, NAME and KEY are patterns, in which `*` stands for any text; a slash, a percent sign or an asterisk that is meant is
written as in a URL. Without a KEY it is `*`: every routing key. Before each stands the prefix of the resource server; what has
another prefix is not for us. Whoever has any permission in a vhost may enter it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final, NamedTuple
from urllib.parse import unquote

OPERATIONS: Final = ("configure", "write", "read")


class _Scope(NamedTuple):
    operation: str
    vhost: re.Pattern[str]
    name: re.Pattern[str]
    key: re.Pattern[str]


class Scopes:
    """Those of one token. `tags` are the user's."""

    def __init__(self, scopes: Iterable[str], prefix: str) -> None:
        self._scopes: list[_Scope] = []
        tags: list[str] = []
        for text in scopes:
            kind, _, rest = text.removeprefix(prefix).partition(":")
            if not text.startswith(prefix) or not rest:
                continue
            if kind == "tag":
                tags.append(rest)
            elif kind in OPERATIONS:
                parts = rest.split("/")
                if len(parts) in (2, 3):
                    vhost, name, key = [_pattern(part) for part in [*parts, "*"][:3]]
                    self._scopes.append(_Scope(kind, vhost, name, key))
        self.tags = tuple(dict.fromkeys(tags))

    def may_enter(self, vhost: str) -> bool:
        return any(scope.vhost.fullmatch(vhost) for scope in self._scopes)

    def may(self, operation: str, vhost: str, name: str) -> bool:
        """With an exchange or a queue."""
        return any(self._matching(operation, vhost, name))

    def may_use_key(self, operation: str, vhost: str, exchange: str, key: str) -> bool:
        return any(scope.key.fullmatch(key) for scope in self._matching(operation, vhost, exchange))

    def _matching(self, operation: str, vhost: str, name: str) -> Iterable[_Scope]:
        for scope in self._scopes:
            if scope.operation == operation and scope.vhost.fullmatch(vhost) and scope.name.fullmatch(name):
                yield scope


def _pattern(text: str) -> re.Pattern[str]:
    """Asterisks in a row are one, so that no pattern takes long."""
    parts = re.split(r"\*+", text)
    return re.compile(".*".join(re.escape(unquote(part)) for part in parts), re.DOTALL)
