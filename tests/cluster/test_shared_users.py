"""Users of one node are users of all: changed on any, seen by all, and never by two ways at once."""

from __future__ import annotations

import asyncio
import json
import socket
import urllib.request
from pathlib import Path

import pika
import pika.exceptions
import pytest
import structlog

from broker_process import BrokerProcess, CtlFailed
from cluster.replicated import Cluster, Replicated
from rabbitpy_broker.cluster.memory_engine import MemoryServers
from rabbitpy_broker.cluster.shared_table import NotShared
from rabbitpy_broker.cluster.shared_users import SharedUsers
from rabbitpy_broker.definitions import Definitions
from rabbitpy_broker.users import User, Users
from support import eventually, unique


class Node:
    """A node's users, in memory."""

    def __init__(self, servers: MemoryServers, name: str) -> None:
        self.definitions = Definitions(None)
        self.users = Users(self.definitions)
        self.gone: list[User] = []
        registry = servers.connect(name).registry
        self.shared = SharedUsers(registry, self.users, self.definitions.commit, self.gone.append, structlog.get_logger())
        self._watch = registry.watch("user/")

    async def look(self) -> None:
        """What `run` does once."""
        for change in await self._watch.next():
            self.shared._see(change)
        await self.shared._tell()
        self.shared.is_known = True


@pytest.fixture
def nodes() -> tuple[Node, Node]:
    servers = MemoryServers(conditional=True)
    return Node(servers, "a"), Node(servers, "b")


async def test_what_one_has_the_other_gets(nodes: tuple[Node, Node]):
    """Also in its definitions: tags, limits, permissions; and a user that is deleted stays deleted."""
    one, other = nodes
    one.users.put_user("ann", "secret", ("monitoring",))
    one.users.set_permissions("ann", "/", "a", "b", "c")
    one.users.set_topic_permissions("ann", "/", "amq.topic", "w", "r")
    one.users.set_limits("ann", {"max-channels": 7})
    other.users.put_user("own", "secret")
    await one.look()
    await other.look()
    await one.look()
    for node in nodes:
        assert Users(node.definitions).get("ann").as_kept() == one.users.get("ann").as_kept()  # type: ignore[union-attr]
        assert node.users.log_in("ann", "secret") is node.users.get("ann")
        assert node.users.log_in("own", "secret") is not None

    ann = other.users.get("ann")
    one.users.delete_user("ann")
    await one.shared.settle()
    await other.look()
    assert other.gone == [ann]
    assert [name for name, *_ in other.definitions.users()] == ["own"]
    await other.look()
    await one.look()
    assert one.users.get("ann") is None

    one.users.put_user("ann", "again")
    await one.shared.settle()
    await other.look()
    assert other.users.log_in("ann", "again") is not None


async def test_of_two_changes_at_once_one_counts_and_the_other_is_told(nodes: tuple[Node, Node]):
    one, other = nodes
    one.users.put_user("ann", "secret")
    await one.look()
    await other.look()
    one.users.set_tags("ann", ["monitoring"])
    other.users.set_tags("ann", ["management"])
    await one.shared.settle()
    with pytest.raises(NotShared, match="another node has changed 'ann' at the same time"):
        await other.shared.settle()
    assert [node.users.get("ann").tags for node in nodes] == [("monitoring",)] * 2  # type: ignore[union-attr]


def kept(node: Node) -> tuple[object, ...]:
    found = node.users.get("ann")
    assert found is not None
    return found.as_kept()


async def test_what_two_nodes_change_of_a_user_at_once_is_kept(nodes: tuple[Node, Node]):
    """As long as it is not the same: nobody has to know what is done with a user in another vhost at the moment."""
    one, other = nodes
    one.users.put_user("ann", "secret", ("monitoring",))
    one.users.set_permissions("ann", "/", "a", "b", "c")
    one.users.set_permissions("ann", "gone", "a", "b", "c")
    await one.look()
    await other.look()
    one.users.set_permissions("ann", "mine", "1", "2", "3")
    one.users.set_topic_permissions("ann", "/", "amq.topic", "w", "r")
    one.users.clear_permissions("ann", "gone")
    one.users.set_limits("ann", {"max-channels": 7})
    other.users.set_permissions("ann", "theirs", "4", "5", "6")
    other.users.set_topic_permissions("ann", "/", "other", "w", "r")
    other.users.set_tags("ann", ["management"])
    other.users.set_limits("ann", {"max-connections": 8})
    await one.shared.settle()
    await other.shared.settle()
    await one.look()
    assert kept(one) == kept(other)
    user = one.users.get("ann")
    assert user is not None
    assert user.tags == ("management",)
    assert set(user.permissions) == {"/", "mine", "theirs"}
    assert set(user.topic_permissions["/"]) == {"amq.topic", "other"}
    assert user.limits == {"max-channels": 7, "max-connections": 8}
    assert Users(other.definitions).get("ann").as_kept() == kept(other)  # type: ignore[union-attr]


async def test_of_one_permission_that_two_nodes_set_at_once_one_counts(nodes: tuple[Node, Node]):
    """What else the other has changed is kept."""
    one, other = nodes
    one.users.put_user("ann", "secret")
    await one.look()
    await other.look()
    one.users.set_permissions("ann", "/", "1", "1", "1")
    other.users.set_permissions("ann", "/", "2", "2", "2")
    other.users.set_permissions("ann", "theirs", "2", "2", "2")
    await one.shared.settle()
    with pytest.raises(NotShared, match="another node has changed 'ann' at the same time"):
        await other.shared.settle()
    await one.look()
    assert kept(one) == kept(other)
    user = one.users.get("ann")
    assert user is not None
    assert {vhost: may.configure for vhost, may in user.permissions.items()} == {"/": "1", "theirs": "2"}


async def test_who_deletes_a_user_wins_over_who_changes_it(nodes: tuple[Node, Node]):
    one, other = nodes
    await one.look()
    await other.look()
    for deletes, changes in (nodes, (other, one)):
        for first in (deletes, changes):
            one.users.put_user("ann", "secret")
            await one.shared.settle()
            await other.look()
            deletes.users.delete_user("ann")
            changes.users.set_tags("ann", ["management"])
            await first.shared.settle()
            if first is changes:
                await deletes.shared.settle()
            else:
                with pytest.raises(NotShared, match="another node has changed 'ann' at the same time"):
                    await changes.shared.settle()
            for node in nodes:
                await node.look()
                assert node.users.get("ann") is None


async def test_of_two_nodes_that_make_a_user_at_once_one_does(nodes: tuple[Node, Node]):
    for node in nodes:
        await node.look()
        node.users.put_user("ann", "secret", ("monitoring",))
    await nodes[0].shared.settle()
    with pytest.raises(NotShared, match="another node has changed 'ann' at the same time"):
        await nodes[1].shared.settle()
    assert kept(nodes[0]) == kept(nodes[1])


async def test_a_change_that_another_node_undoes_while_it_waits_is_told(nodes: tuple[Node, Node]):
    """Whoever sees it first, the node's watch or the change itself."""
    one, other = nodes
    one.users.put_user("ann", "secret")
    await one.look()
    await other.look()
    one.users.set_tags("ann", ["monitoring"])
    await one.shared.settle()
    async with other.shared._lock:
        other.users.set_tags("ann", ["management"])
        settling = asyncio.create_task(other.shared.settle())
        await asyncio.sleep(0)
        await other.look()
    with pytest.raises(NotShared, match="another node has changed 'ann' at the same time"):
        await settling


async def test_of_two_nodes_that_are_new_the_first_makes_the_user(nodes: tuple[Node, Node]):
    """Each begins with a user `guest` of its own."""
    for node in nodes:
        node.users.put_user("guest", "guest")
    await nodes[0].look()
    await nodes[1].look()
    kept = [node.users.get("guest").as_kept() for node in nodes]  # type: ignore[union-attr]
    assert kept[0] == kept[1]


@pytest.mark.parametrize("engine_servers", ["postgres"], indirect=True, scope="module")
def test_users_of_one_node_are_users_of_all(cluster: Cluster, vhost: Replicated):
    """By rabbitpy-ctl on one, by the API on another, a vhost that a third owns among what they may do."""
    name = unique("user")
    nodes = list(cluster.nodes.values())
    nodes[0].ctl("add_user", name, "secret")
    nodes[1].ctl("set_permissions", "-p", vhost.name, name, ".*", ".*", ".*")
    request = urllib.request.Request(
        f"http://{nodes[2].management}/api/users/{name}",
        json.dumps({"password": "other", "tags": "monitoring"}).encode(),
        {"Authorization": "Basic Z3Vlc3Q6Z3Vlc3Q="},
        method="PUT",
    )
    eventually(lambda: name in nodes[2].ctl("list_users"))
    assert urllib.request.urlopen(request, timeout=20).status == 204
    for node in nodes:
        eventually(lambda node=node: "monitoring" in node.ctl("list_users"))
        connection = pika.BlockingConnection(node.parameters(user=name, password="other", vhost=vhost.name))
        vhost.connections.append(connection)
    nodes[1].ctl("delete_user", name)
    for connection in vhost.connections[-3:]:
        with pytest.raises(pika.exceptions.ConnectionClosedByBroker, match=f"user '{name}' is deleted"):
            while True:
                connection.process_data_events(1.0)


def test_a_node_starts_without_the_engine(tmp_path: Path):
    """For its plain vhosts; a change of users is told to be this node's own until the engine answers."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]  # where nobody listens afterwards
    engine = f"postgresql://nobody@127.0.0.1:{port}/nothing"
    broker = BrokerProcess(tmp_path, {"cluster": {"engine": engine, "node": "one"}}).start()
    try:
        with pika.BlockingConnection(broker.parameters()) as connection:
            connection.channel().queue_declare("plain", durable=True)
        with pytest.raises(CtlFailed, match="other nodes follow when the engine answers"):
            broker.ctl("add_user", "ann", "secret")
        assert "ann" in broker.ctl("list_users")
    finally:
        broker.stop()
