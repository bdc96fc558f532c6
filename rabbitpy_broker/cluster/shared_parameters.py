"""Global parameters that all nodes of a cluster have (shared_table.py has how), the name and the id of the cluster among them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from rabbitpy_broker.cluster.registry import Registry
from rabbitpy_broker.cluster.shared_table import SharedTable
from rabbitpy_broker.definitions import Definitions

NONE: Final = b"deleted"  # which is no JSON


class SharedParameters(SharedTable[str]):
    """A value is JSON; "" stands for none. `changed` is called with the name of what another node has changed."""

    prefix = "global-parameter/"
    deleted = ""

    def __init__(
        self,
        registry: Registry,
        definitions: Definitions,
        commit: Callable[[], None],
        changed: Callable[[str], None],
        log: Any,
    ) -> None:
        super().__init__(registry, commit, log)
        self._definitions = definitions
        self._changed = changed

    def values(self) -> dict[str, str]:
        return dict(self._definitions.global_parameters())

    def value(self, name: str) -> str:
        return self.values().get(name, self.deleted)

    def take(self, name: str, value: str) -> None:
        if value:
            self._definitions.put_global_parameter(name, value)
        else:
            self._definitions.delete_global_parameter(name)
        self._changed(name)

    def encoded(self, value: str) -> bytes:
        return value.encode() or NONE

    def decoded(self, value: bytes) -> str:
        return "" if value == NONE else value.decode()

    def say_not_shared(self, error: str) -> None:
        self.log.warning("global parameters are not shared", error=error)

    def say_lost(self, name: str) -> None:
        self.log.warning("global parameter changed on two nodes", name=name)
