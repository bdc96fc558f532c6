"""A broker that runs elsewhere, named by its URL: what of `Broker` can be had from RabbitMQ, so that the same tests run on it.

Vhosts are made by the management API. What only a broker in this process can do (its clock, trouble, assertions about what was
published) raises unittest.SkipTest, so that a test which needs it is skipped, and says why.
"""

from __future__ import annotations

import base64
import http.client
import json
from collections.abc import Sequence
from typing import Any, Final, NoReturn
from unittest import SkipTest
from urllib.parse import quote, unquote, urlsplit

from rabbitpy_broker.errors import BrokerError

AMQP_PORT: Final = 5672
MANAGEMENT_PORT: Final = 15_672
TIMEOUT_S: Final = 10.0


class ManagementError(BrokerError):
    """The management API refuses, or is not there."""


class Management:
    """RabbitMQ's management API at `url`, http://user:password@host:port."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._is_tls = parts.scheme == "https"
        self._host = parts.hostname or "127.0.0.1"
        self._port = parts.port or MANAGEMENT_PORT
        self._prefix = parts.path.rstrip("/")
        user, password = unquote(parts.username or "guest"), unquote(parts.password or "guest")
        self._authorization = "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()

    def ask(self, method: str, path: Sequence[str], body: object = None) -> Any:
        """What it answers. Raises ManagementError."""
        where = "/".join(quote(part, safe="") for part in path)
        kind = http.client.HTTPSConnection if self._is_tls else http.client.HTTPConnection
        connection = kind(self._host, self._port, timeout=TIMEOUT_S)
        headers = {"Authorization": self._authorization, "Content-Type": "application/json"}
        try:
            connection.request(method, f"{self._prefix}/api/{where}", json.dumps(body or {}), headers)
            answer = connection.getresponse()
            text = answer.read()
        except OSError as error:
            raise ManagementError(f"no management API at {self._host}:{self._port}: {error}") from None
        finally:
            connection.close()
        if answer.status >= http.client.BAD_REQUEST:
            raise ManagementError(f"{method} {where}: {answer.status} {text.decode(errors='replace')}")
        return json.loads(text) if text else None


class ExternalBroker:
    """See the top of this file. `management_url` "" means port 15672 of the same host."""

    def __init__(self, url: str, management_url: str = "") -> None:
        parts = urlsplit(url)
        self.host = parts.hostname or "127.0.0.1"
        self.port = parts.port or AMQP_PORT
        self._scheme = parts.scheme or "amqp"
        self._user, self._password = parts.username or "guest", parts.password or "guest"
        self.vhost = unquote(parts.path[1:]) or "/"
        self.management_url = management_url or f"http://{self._user}:{self._password}@{self.host}:{MANAGEMENT_PORT}"
        self._management = Management(self.management_url)

    @property
    def url(self) -> str:
        """Of `vhost`."""
        return self.url_of(self.vhost)

    def url_of(self, vhost: str, user: str = "", password: str = "") -> str:
        """The URL with another vhost."""
        login = f"{user or self._user}:{password or self._password}"
        return f"{self._scheme}://{login}@{self.host}:{self.port}/{quote(vhost, safe='')}"

    def add_vhost(self, name: str, user: str = "") -> None:
        """Adds a vhost in which the user may do everything. Raises ManagementError."""
        self._management.ask("PUT", ["vhosts", name])
        everything = {"configure": ".*", "write": ".*", "read": ".*"}
        self._management.ask("PUT", ["permissions", name, unquote(user or self._user)], everything)

    def delete_vhost(self, name: str) -> None:
        """Deletes a vhost with all that is in it. Raises ManagementError."""
        self._management.ask("DELETE", ["vhosts", name])

    def report(self, vhost: str | None = None) -> str:
        """What is left in the queues, and who consumes, as the management API knows it: a few seconds ago."""
        where = self.vhost if vhost is None else vhost
        lines = [
            f"queue {queue['name']!r}: {queue.get('messages_ready', '?')} ready, "
            f"{queue.get('messages_unacknowledged', '?')} unacked, {queue.get('consumers', '?')} consumers"
            for queue in self._management.ask("GET", ["queues", where])
        ]
        lines += [
            f"consumer {consumer['consumer_tag']!r} of {consumer['channel_details'].get('name', '?')} at queue "
            f"{consumer['queue']['name']!r}"
            for consumer in self._management.ask("GET", ["consumers", where])
        ]
        return "\n".join(lines) or "no queues"

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("_"):
            raise AttributeError(name)
        raise SkipTest(f"amqp_broker.{name} needs the broker in this process; --amqp-url names another one")
