"""The life of a connection, as a table: which method may come in which state, who handles it, what state is next.

    header -> starting -> tuning -> opening -> running

Nothing else moves a connection on. Until tune-ok frames are limited to `initial_frame_max`, and a fault is answered by
connection.close only from `opening` on, and for a refused login to clients that ask for it: before that the peer has not shown
that it speaks AMQP; it hears nothing more and is hung up on after three seconds, as RabbitMQ does.
"""

from __future__ import annotations

import platform
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from rabbitpy_broker.errors import (
    ACCESS_REFUSED,
    CHANNEL_ERROR,
    COMMAND_INVALID,
    NOT_ALLOWED,
    SYNTAX_ERROR,
    AmqpError,
    ChannelClosed,
    ConnectionClosed,
)
from rabbitpy_broker.users import User
from rabbitpy_broker.vhost import VHost
from rabbitpy_broker.wire import methods
from rabbitpy_broker.wire.field_table import FieldTable, decode_table

if TYPE_CHECKING:
    from rabbitpy_broker.protocol.connection import Connection

PROTOCOL_HEADER: Final = b"AMQP\x00\x00\x09\x01"
FRAME_MIN_SIZE: Final = 4096
UNLIMITED_FRAME: Final = 0x7FFFFFFF
LOCALES: Final = b"en_US"

CAPABILITIES: Final[dict[str, object]] = {
    "publisher_confirms": True,
    "exchange_exchange_bindings": True,
    "basic.nack": True,
    "consumer_cancel_notify": True,
    "connection.blocked": True,
    "consumer_priorities": True,
    "authentication_failure_close": True,
    "per_consumer_qos": True,
    "direct_reply_to": True,
}


def server_properties(version: str, cluster_name: str) -> dict[str, object]:
    """What connection.start says of us.

    Clients go by `product` and `version`: kombu, and Celery with it, takes basic.qos in RabbitMQ's meaning only where
    the product is "RabbitMQ". So these two name what we speak like, and the others who we are.
    """
    return {
        "capabilities": CAPABILITIES,
        "cluster_name": cluster_name,
        "copyright": "Copyright (c) the rabbitpy-broker authors",
        "information": f"rabbitpy-broker {version}, licensed under the Apache License 2.0",
        "platform": f"rabbitpy-broker {version}, Python {platform.python_version()}",
        "product": "RabbitMQ",
        "version": RABBITMQ_VERSION,
    }


RABBITMQ_VERSION: Final = "3.10.8"


# -- authentication -----------------------------------------------------------------------------------------------


def _plain(connection: Connection, response: bytes) -> User | None:
    """RFC 4616: authorization id, user, password, each behind a NUL; the first is ignored."""
    parts = response.split(b"\x00")
    if len(parts) != 3:
        raise ConnectionClosed(SYNTAX_ERROR, "malformed PLAIN response")
    return _check_password(connection, parts[1], parts[2])


def _amqplain(connection: Connection, response: bytes) -> User | None:
    """RabbitMQ's AMQPLAIN: LOGIN and PASSWORD in a field table without its length."""
    try:
        table, _ = decode_table(len(response).to_bytes(4, "big") + response, 0)
    except ValueError as error:
        raise ConnectionClosed(SYNTAX_ERROR, f"malformed AMQPLAIN response: {error}") from None
    login, password = table.get("LOGIN"), table.get("PASSWORD")
    if not isinstance(login, str) or not isinstance(password, str):
        raise ConnectionClosed(SYNTAX_ERROR, "malformed AMQPLAIN response")
    return _check_password(connection, login.encode("utf-8"), password.encode("utf-8"))


def _check_password(connection: Connection, name: bytes, password: bytes) -> User | None:
    try:
        login, secret = name.decode("utf-8"), password.decode("utf-8")
    except UnicodeDecodeError:
        return None
    user = connection.node.authenticate(login, secret, connection.loopback)
    if user is None:
        connection.node.totals.authentications_failed += 1
        connection.log.warning("authentication failed", user=login, mechanism=connection.mechanism)
    else:
        connection.node.totals.authentications_succeeded += 1
    return user


# A mechanism answers with the user, or None for a refusal; EXTERNAL (the TLS peer's name) would be one more line.
MECHANISMS: Final[dict[str, Callable[[Connection, bytes], User | None]]] = {
    "PLAIN": _plain,
    "AMQPLAIN": _amqplain,
}


# -- the states ---------------------------------------------------------------------------------------------------


def protocol_header(connection: Connection, header: bytes) -> None:
    """The first eight octets. A wrong header gets the right one back, and is hung up on (spec 4.2.2)."""
    if header != PROTOCOL_HEADER:
        connection.out.write(PROTOCOL_HEADER)
        connection.log.warning("bad protocol header", header=header.hex())
        connection.terminate("bad protocol header")
        connection.hang_up()
        return
    start = methods.make("Connection.Start", version_major=0, version_minor=9)
    start.server_properties = connection.node.server_properties
    start.mechanisms = " ".join(MECHANISMS)
    start.locales = LOCALES.decode("ascii")
    connection.state = "starting"
    connection.send(start)


def _start_ok(connection: Connection, method: Any) -> str:
    properties: FieldTable = method.client_properties
    connection.client_properties = properties
    capabilities = properties.get("capabilities")
    if isinstance(capabilities, dict):
        connection.capabilities = capabilities
    name = properties.get("connection_name")
    if isinstance(name, str):
        connection.client_name = name
    connection.mechanism = method.mechanism
    mechanism = MECHANISMS.get(method.mechanism)
    if mechanism is None:
        raise ConnectionClosed(COMMAND_INVALID, f"unknown authentication mechanism '{method.mechanism}'")
    user = mechanism(connection, method.response)
    if user is None:
        connection.error_index = 0
        raise ConnectionClosed(
            ACCESS_REFUSED,
            f"Login was refused using authentication mechanism {method.mechanism}. "
            "For details see the broker logfile.",
        )
    connection.user = user
    limits = connection.node.limits
    tune = methods.make("Connection.Tune")
    tune.channel_max = limits.channel_max
    tune.frame_max = limits.frame_max
    tune.heartbeat = limits.heartbeat
    connection.send(tune)
    return "tuning"


def _tune_ok(connection: Connection, method: Any) -> str:
    limits = connection.node.limits
    _check_negotiated("frame_max", method.frame_max, FRAME_MIN_SIZE, limits.frame_max)
    _check_negotiated("channel_max", method.channel_max, 0, limits.channel_max)
    connection.channel_max = method.channel_max
    connection.frame_max = method.frame_max
    connection.frame_limit = connection.frame_max or UNLIMITED_FRAME
    connection.heartbeat = method.heartbeat
    return "opening"


def _check_negotiated(field: str, chosen: int, lowest: int, offered: int) -> None:
    """A client may choose at most what was offered; 0 is unlimited on both sides."""
    if 0 < chosen < lowest:
        raise ConnectionClosed(
            NOT_ALLOWED, f"negotiated {field} = {chosen} is lower than the minimum allowed value ({lowest})"
        )
    if offered and (chosen == 0 or chosen > offered):
        raise ConnectionClosed(
            NOT_ALLOWED, f"negotiated {field} = {chosen} is higher than the maximum allowed value ({offered})"
        )


def _open(connection: Connection, method: Any) -> str:
    node, user, name = connection.node, connection.user, method.virtual_host
    assert user is not None, "kept by: _start_ok"
    limit = node.limits.connection_max
    if limit and len(node.open_connections) >= limit:
        raise ConnectionClosed(
            NOT_ALLOWED,
            f"access to vhost '{name}' refused for user '{user.name}': node connection limit ({limit}) is reached",
        )
    vhost = node.vhosts.get(name)
    if vhost is None:
        raise ConnectionClosed(NOT_ALLOWED, f"vhost {name} not found")
    _check_connection_limits(vhost, user)
    if user.permissions.get(name) is None:
        raise ConnectionClosed(NOT_ALLOWED, f"access to vhost '{name}' refused for user '{user.name}'")
    connection.vhost = vhost
    node.open_connections[connection] = None
    vhost.connections += 1
    user.connections += 1
    node.totals.connections_opened += 1
    connection.log.info(
        "connection opened",
        user=user.name,
        vhost=name,
        client_name=connection.client_name,
        client_product=connection.client_properties.get("product"),
        tls=connection.tls,
    )
    connection.send(methods.make("Connection.OpenOk", known_hosts=""))
    connection.opened()
    return "running"


def _check_connection_limits(vhost: VHost, user: User) -> None:
    """Raises 530 when the vhost or the user has as many connections as it may have."""
    limit: int = vhost.limits.max_connections
    if 0 <= limit <= int(vhost.connections):
        text = f"access to vhost '{vhost.name}' refused for user '{user.name}': connection limit ({limit}) is reached"
        raise ConnectionClosed(NOT_ALLOWED, text)
    limit = user.max_connections
    if 0 <= limit <= user.connections:
        text = f"connection refused for user '{user.name}': user connection limit ({limit}) is reached"
        raise ConnectionClosed(NOT_ALLOWED, text)


def _update_secret(connection: Connection, method: Any) -> str:
    """A new password or token. Passwords are checked at login only, so there is nothing to renew but our answer."""
    connection.send(methods.make("Connection.UpdateSecretOk"))
    return "running"


def _close(connection: Connection, method: Any) -> str:
    connection.terminate(f"closed by client: {method.reply_code} {method.reply_text}")
    connection.send(methods.make("Connection.CloseOk"))
    if not connection.closing:  # else its answer to our own close is still to come
        connection.await_close()
    return connection.state


def _close_ok(connection: Connection, method: Any) -> str:
    if not connection.closing:
        raise ConnectionClosed(CHANNEL_ERROR, f"unexpected method in connection state {connection.state}")
    connection.hang_up()
    return connection.state


Handler = Callable[["Connection", Any], str]

TABLE: Final[dict[str, dict[str, Handler]]] = {
    "starting": {"Connection.StartOk": _start_ok},
    "tuning": {"Connection.TuneOk": _tune_ok},
    "opening": {"Connection.Open": _open},
    "running": {"Connection.UpdateSecret": _update_secret},
}
ALWAYS: Final[dict[str, Handler]] = {"Connection.Close": _close, "Connection.CloseOk": _close_ok}


def take_method(connection: Connection, method: Any) -> None:
    """A method on channel 0."""
    name: str = method.name
    handler = TABLE[connection.state].get(name) or ALWAYS.get(name)
    if handler is None:
        raise ConnectionClosed(CHANNEL_ERROR, f"unexpected method in connection state {connection.state}")
    try:
        connection.state = handler(connection, method)
    except ChannelClosed as error:
        raise ConnectionClosed(error.code, error.text) from None


def may_send_close(connection: Connection, error: AmqpError) -> bool:
    """Whether connection.close is sent for an error in the present state, or the socket is just closed."""
    if connection.state == "header":
        return False
    if connection.state == "tuning":
        return False
    if connection.state == "starting":
        return error.code == ACCESS_REFUSED and connection.capabilities.get("authentication_failure_close") is True
    return True
