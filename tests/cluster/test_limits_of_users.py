"""Limits of a user are the whole cluster's: what the user has open at other nodes counts."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

import pika
import pika.exceptions
import pytest
import structlog

from cluster.replicated import Cluster, Replicated
from rabbitpy_broker.cluster.memory_engine import MemoryServers
from rabbitpy_broker.cluster.nodes import NodeInfo
from rabbitpy_broker.cluster.other_nodes import OtherNodes, counted
from rabbitpy_broker.cluster.view import View
from rabbitpy_broker.definitions import Definitions
from rabbitpy_broker.users import Users
from support import eventually, unique


def test_only_users_with_a_limit_are_told_of():
    users = Users(Definitions(None))
    for name in ("ann", "bob", "eve"):
        users.put_user(name, "secret")
    users.set_limits("ann", {"max-connections": 7})
    users.set_limits("eve", {"max-channels": 7})
    for name in ("ann", "bob"):
        user = users.get(name)
        assert user is not None
        user.connections, user.channels = 2, 3
    info = NodeInfo(users=counted(users.all()))
    assert NodeInfo.unpacked(info.packed()).users == {"ann": (2, 3)}


def test_what_others_have_is_added_up_and_ours_is_not():
    view = View(MemoryServers(conditional=True).connect("a").registry, structlog.get_logger())
    for node, counts in (("a", (9, 9)), ("b", (1, 2)), ("c", (3, 4))):
        view.nodes[node] = NodeInfo(users={"ann": counts})
    others = OtherNodes("a", view)
    assert others.counts(None, "ann") == (0, 4, 6)  # type: ignore[arg-type]
    assert others.counts(None, "bob") == (0, 0, 0)  # type: ignore[arg-type]


@pytest.fixture
def user(cluster: Cluster, vhost: Replicated):
    """A user of all nodes who may enter `/` of each, and the replicated vhost."""
    name = unique("user")
    first = cluster.nodes[vhost.owner]
    first.ctl("add_user", name, "secret")
    for where in ("/", vhost.name):
        first.ctl("set_permissions", "-p", where, name, ".*", ".*", ".*")
    for node in cluster.nodes.values():
        eventually(lambda node=node: name in node.ctl("list_users", "-q"))
    yield name
    first.ctl("delete_user", name)


@pytest.mark.parametrize("engine_servers", ["postgres"], indirect=True, scope="module")
def test_connections_and_channels_at_all_nodes_count(cluster: Cluster, vhost: Replicated, user: str):
    """Plain vhosts at two nodes, and a client that was passed on, which counts once."""
    owner = vhost.owner
    other, between = (name for name in cluster.nodes if name != owner)

    def connect(node: str, where: str = "/") -> pika.BlockingConnection:
        parameters = cluster.nodes[node].parameters(vhost=where, credentials=pika.PlainCredentials(user, "secret"))
        connection = pika.BlockingConnection(parameters)
        vhost.connections.append(connection)
        return connection

    def is_refused(what: Callable[[], object], text: str) -> bool:
        """The limit says so; what is let in, as the others have not been heard yet, is closed again."""
        try:
            opened = what()
        except (pika.exceptions.ConnectionClosedByBroker, pika.exceptions.ProbableAccessDeniedError) as closed:
            return text in str(closed)
        with contextlib.suppress(pika.exceptions.AMQPError):
            opened.close()  # type: ignore[attr-defined]
        return False

    def limited(limit: str) -> None:
        cluster.nodes[owner].ctl("set_user_limits", user, limit)
        for node in cluster.nodes.values():
            eventually(lambda node=node: limit.replace(" ", "") in node.ctl("list_user_limits", "--user", user).replace(" ", ""))

    held = [connect(other), connect(between, vhost.name)]
    limited('{"max-connections": 2}')
    text = f"connection refused for user '{user}': user connection limit (2) is reached"
    eventually(lambda: is_refused(lambda: connect(owner), text))
    eventually(lambda: is_refused(lambda: connect(other), text))
    eventually(lambda: is_refused(lambda: connect(between), text))
    held.pop().close()
    eventually(lambda: not is_refused(lambda: connect(owner), text))

    cluster.nodes[owner].ctl("clear_user_limits", user, "all")
    limited('{"max-channels": 3}')
    channels = [held[0].channel() for _ in range(2)]
    assert all(channel.is_open for channel in channels)
    here = eventually(lambda: connect(owner))
    here.channel()
    reached = f"number of channels opened for user '{user}' has reached the maximum allowed user limit of (3)"
    eventually(lambda: is_refused(connect(owner).channel, reached))
