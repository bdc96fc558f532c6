"""What whoever manages a broker sees of it, and may ask of it. `Broker` keeps what stands here."""

from __future__ import annotations

from collections.abc import Sequence

from rabbitpy_broker.alarms import Alarms
from rabbitpy_broker.config import Config
from rabbitpy_broker.definitions import Definitions
from rabbitpy_broker.net.transport import Clients
from rabbitpy_broker.protocol.connection import Connection
from rabbitpy_broker.protocol.node import Node
from rabbitpy_broker.thresholds import Threshold


class ManagedBroker:
    """`addresses`, `tls_addresses` and `metrics_address` are the bound ones, HOST:PORT; the last is "" without metrics."""

    config: Config
    definitions: Definitions
    node: Node
    alarms: Alarms
    clients: Clients
    memory_threshold: Threshold
    addresses: list[str]
    tls_addresses: list[str]
    metrics_address: str
    management_addresses: list[tuple[str, str]]  # protocol, http or https, and address
    ready: bool  # clients are taken

    def add_vhost(self, name: str, metadata: str) -> None:
        """Adds a vhost that there is not. Raises StartError or DefinitionsError, then there is still none; and BrokerError
        while one of that name is being deleted.
        """
        raise NotImplementedError

    async def delete_vhost(self, name: str) -> None:
        """Deletes a vhost with all that is in it: connections first, its folder last. Returns when it is gone.

        From the commit on there is no way back: what a crash leaves of the folder is removed at the next start. Raises
        DefinitionsError; then all is gone but the folder, which goes at the next start.
        """
        raise NotImplementedError

    def close_connections(self, connections: Sequence[Connection], reason: str) -> None:
        """Closes connections from our side."""
        raise NotImplementedError

    def commit(self) -> None:
        """Makes what was changed in the definitions durable. Raises DefinitionsError; then it is tried again each turn."""
        raise NotImplementedError

    def set_memory_threshold(self, threshold: Threshold) -> None:
        """Sets the limit of the memory alarm, and looks at once."""
        raise NotImplementedError

    def check_alarms(self) -> None:
        """Reads memory and disk; tells every connection when an alarm comes or goes. Raises OSError."""
        raise NotImplementedError
