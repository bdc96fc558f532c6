"""The handshake: who we are, who may log in, and what both sides agree on (spec 2.2.4).

There is one function for each method that leads on (life.py has the order). It notes in the session what the peer says,
and answers. A fault is raised, and ends the session.
"""

from __future__ import annotations

import platform
from collections.abc import Callable
from typing import Any, Final

from rabbitpy_broker.authentication import Credentials
from rabbitpy_broker.errors import (
    ACCESS_REFUSED,
    COMMAND_INVALID,
    CONNECTION_FORCED,
    NOT_ALLOWED,
    SYNTAX_ERROR,
    ConnectionClosed,
)
from rabbitpy_broker.protocol.session import Session
from rabbitpy_broker.questions import AnswerAwaited
from rabbitpy_broker.users import BackendFault, User, UserError
from rabbitpy_broker.vhost import VHost
from rabbitpy_broker.wire import methods
from rabbitpy_broker.wire.field_table import FieldTable, decode_table

PROTOCOL_HEADER: Final = b"AMQP\x00\x00\x09\x01"
FRAME_MIN_SIZE: Final = 4096
UNLIMITED_FRAME: Final = 0x7FFFFFFF
LOCALES: Final = b"en_US"
EXTERNAL: Final = "EXTERNAL"

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
    """The server-properties of connection.start.

    Clients go by `product` and `version`: kombu, and Celery with it, takes basic.qos in RabbitMQ's meaning only where
    the product is "RabbitMQ". So these two name the broker whose protocol we speak, and the others name us.
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


def _plain(session: Session, response: bytes) -> Credentials | None:
    """RFC 4616: authorization id, user, password, each behind a NUL; the first is ignored."""
    parts = response.split(b"\x00")
    if len(parts) != 3:
        raise ConnectionClosed(SYNTAX_ERROR, "malformed PLAIN response")
    return _password(session, parts[1], parts[2])


def _amqplain(session: Session, response: bytes) -> Credentials | None:
    """RabbitMQ's AMQPLAIN: LOGIN and PASSWORD in a field table without its length."""
    try:
        table, _ = decode_table(len(response).to_bytes(4, "big") + response, 0)
    except ValueError as error:
        raise ConnectionClosed(SYNTAX_ERROR, f"malformed AMQPLAIN response: {error}") from None
    login, password = table.get("LOGIN"), table.get("PASSWORD")
    if not isinstance(login, str) or not isinstance(password, str):
        raise ConnectionClosed(SYNTAX_ERROR, "malformed AMQPLAIN response")
    return _password(session, login.encode("utf-8"), password.encode("utf-8"))


def _external(session: Session, response: bytes) -> Credentials | None:
    """The name in the certificate that the peer has shown; what it says here is ignored."""
    return Credentials(session.certificate_name, None, session.loopback, session.peer_ip)


def _password(session: Session, name: bytes, password: bytes) -> Credentials | None:
    try:
        return Credentials(name.decode("utf-8"), password.decode("utf-8"), session.loopback, session.peer_ip)
    except UnicodeDecodeError:
        return None


# A mechanism answers with the credentials, or None for those that nobody can have.
MECHANISMS: Final[dict[str, Callable[[Session, bytes], Credentials | None]]] = {
    "PLAIN": _plain,
    "AMQPLAIN": _amqplain,
    EXTERNAL: _external,
}


def offered_mechanisms(session: Session) -> list[str]:
    """Those of the configuration; EXTERNAL only to a peer that has shown a certificate with a name."""
    return [name for name in session.node.mechanisms if name != EXTERNAL or session.certificate_name]


def _log_in(session: Session, mechanism: str, response: bytes) -> User:
    """Who logs in. Raises 403, and AnswerAwaited: then it is called again."""
    login = session.login
    if login is None:
        credentials = MECHANISMS[mechanism](session, response)
        if credentials is not None:
            login = session.login = session.node.authenticator.log_in(credentials)
    if login is not None and not login.is_done:
        raise AnswerAwaited(login)
    session.login = None
    totals = session.node.totals
    if login is not None and login.user is not None:
        if session.is_resumed:
            return login.user
        totals.authentications_succeeded += 1
        session.log.info("auth.login", user=login.user.name, mechanism=mechanism, backend=login.backend)
        return login.user
    totals.authentications_failed += 1
    session.log.warning(
        "auth.login_failed",
        user=login.credentials.name if login is not None else "",
        mechanism=mechanism,
        reason=login.reason if login is not None else "name or password is not UTF-8",
    )
    raise ConnectionClosed(
        ACCESS_REFUSED,
        f"Login was refused using authentication mechanism {mechanism}. For details see the broker logfile.",
        names_method=False,
    )


# -- the steps ----------------------------------------------------------------------------------------------------


def start(session: Session) -> None:
    """Writes connection.start. Assumes: the header of the peer was right."""
    method = methods.make("Connection.Start", version_major=0, version_minor=9)
    method.server_properties = session.node.server_properties
    method.mechanisms = " ".join(offered_mechanisms(session))
    method.locales = LOCALES.decode("ascii")
    session.output.send(0, method)


def _start_ok(session: Session, method: Any) -> None:
    properties: FieldTable = method.client_properties
    session.client_properties = properties
    capabilities = properties.get("capabilities")
    if isinstance(capabilities, dict):
        session.capabilities = capabilities
    name = properties.get("connection_name")
    if isinstance(name, str):
        session.client_name = name
    session.mechanism = method.mechanism
    if method.mechanism not in offered_mechanisms(session):
        raise ConnectionClosed(COMMAND_INVALID, f"unknown authentication mechanism '{method.mechanism}'")
    session.user = _log_in(session, method.mechanism, method.response)
    if session.node.elsewhere is not None:
        session.response = method.response
    limits = session.node.limits
    tune = methods.make("Connection.Tune")
    tune.channel_max = limits.channel_max
    tune.frame_max = limits.frame_max
    tune.heartbeat = limits.heartbeat
    session.output.send(0, tune)


def _tune_ok(session: Session, method: Any) -> None:
    limits = session.node.limits
    _check_negotiated("frame_max", method.frame_max, FRAME_MIN_SIZE, limits.frame_max)
    _check_negotiated("channel_max", method.channel_max, 0, limits.channel_max)
    session.channel_max = method.channel_max
    session.output.frame_max = method.frame_max
    session.frames.frame_limit = method.frame_max or UNLIMITED_FRAME
    session.heartbeat = method.heartbeat


def _check_negotiated(field: str, chosen: int, lowest: int, offered: int) -> None:
    """Checks a value that the client chose: at most the offered one; 0 is unlimited on both sides."""
    if 0 < chosen < lowest:
        raise ConnectionClosed(
            NOT_ALLOWED, f"negotiated {field} = {chosen} is lower than the minimum allowed value ({lowest})"
        )
    if offered and (chosen == 0 or chosen > offered):
        raise ConnectionClosed(
            NOT_ALLOWED, f"negotiated {field} = {chosen} is higher than the maximum allowed value ({offered})"
        )


def _open(session: Session, method: Any) -> None:
    node, user, name = session.node, session.user, method.virtual_host
    assert user is not None, "kept by: _start_ok"
    _check_node_limit(session, user, name, 0)
    vhost = node.vhosts.get(name)
    if vhost is None:
        if node.elsewhere is not None:
            node.elsewhere.ask(session, name)
        owner = node.owned_elsewhere.get(name)
        if owner is not None:
            where = f"owned by node '{owner}'" if owner else "without an owner"
            raise ConnectionClosed(CONNECTION_FORCED, f"vhost '{name}' is {where}")
        raise ConnectionClosed(NOT_ALLOWED, f"vhost {name} not found")
    fault_text = ""
    allowed = False
    try:
        allowed = user.may_enter(name)
    except BackendFault as fault:
        fault_text = f", {fault}"
    others = of_user = 0
    if node.elsewhere is not None and (node.limits.connection_max or user.max_connections >= 0):
        others, of_user, _ = node.elsewhere.counts(session, user.name)
    session.response = b""
    _check_node_limit(session, user, name, others)
    _check_connection_limits(vhost, user, of_user)
    if not allowed:
        raise ConnectionClosed(NOT_ALLOWED, f"access to vhost '{name}' refused for user '{user.name}'{fault_text}")
    session.vhost = vhost
    session.output.send(0, methods.make("Connection.OpenOk", known_hosts=""))


def _check_node_limit(session: Session, user: User, name: str, others: int) -> None:
    """Raises 530 when there are as many connections as there may be, with these others of other workers."""
    limit: int = int(session.node.limits.connection_max)
    if limit and len(session.open_connections) + others >= limit:
        raise ConnectionClosed(
            NOT_ALLOWED,
            f"access to vhost '{name}' refused for user '{user.name}': node connection limit ({limit}) is reached",
        )


def _check_connection_limits(vhost: VHost, user: User, others: int) -> None:
    """Raises 530 when the vhost or the user, who has these others elsewhere, has as many connections as it may have."""
    limit: int = vhost.limits.max_connections
    if 0 <= limit <= int(vhost.connections):
        text = f"access to vhost '{vhost.name}' refused for user '{user.name}': connection limit ({limit}) is reached"
        raise ConnectionClosed(NOT_ALLOWED, text)
    limit = user.max_connections
    if 0 <= limit <= user.connections + others:
        text = f"connection refused for user '{user.name}': user connection limit ({limit}) is reached"
        raise ConnectionClosed(NOT_ALLOWED, text)


def _update_secret(session: Session, method: Any) -> None:
    """Takes a new password or token."""
    user = session.user
    assert user is not None, "kept by: _start_ok"
    try:
        user.update_secret(method.new_secret.decode("utf-8", "replace"))
    except UserError as error:
        session.log.warning("auth.secret_refused", user=user.name, reason=str(error))
        raise ConnectionClosed(NOT_ALLOWED, "New secret was refused by one of the backends") from None
    session.log.info("auth.secret_updated", user=user.name, reason=method.reason)
    session.output.send(0, methods.make("Connection.UpdateSecretOk"))


HANDLERS: Final[dict[str, Callable[[Session, Any], None]]] = {
    "Connection.StartOk": _start_ok,
    "Connection.TuneOk": _tune_ok,
    "Connection.Open": _open,
    "Connection.UpdateSecret": _update_secret,
}
