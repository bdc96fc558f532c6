"""Clients of any node: who comes to a node that does not own the vhost is passed on, and is told when the owner is gone."""

from __future__ import annotations

import json
import signal
import socket
import threading
from pathlib import Path
from typing import Any

import pika
import pika.exceptions
import pytest

from broker_process import BrokerProcess
from cluster.engine_rigs import on_one_engine
from cluster.replicated import Cluster, Replicated, drained, publish
from support import eventually

pytestmark = on_one_engine

LARGE = bytes(range(256)) * 4_096  # a MiB: many frames


def others(cluster: Cluster, vhost: Replicated) -> list[str]:
    return [name for name in cluster.nodes if name != vhost.owner]


def closed_with(connection: pika.BlockingConnection) -> pika.exceptions.ConnectionClosedByBroker:
    """What a client is told that does nothing but wait for the end of its connection."""
    with pytest.raises(pika.exceptions.ConnectionClosedByBroker) as closed:
        while True:
            connection.process_data_events(1.0)
    return closed.value


def test_a_client_of_any_node_is_at_the_owner(cluster: Cluster, vhost: Replicated):
    """Publishes of one node are consumed at another, in order; the owner shows the client's own address and name."""
    there, elsewhere = others(cluster, vhost)
    channel = vhost.publisher(there)
    channel.queue_declare("orders", durable=True)
    publish(channel, "orders", range(100))
    channel.queue_declare("large", durable=True)
    channel.basic_publish("", "large", LARGE)
    assert drained(vhost.connect(elsewhere), "orders") == [(number, False) for number in range(100)]
    assert vhost.connect(elsewhere).channel().basic_get("large", auto_ack=True)[2] == LARGE

    named = pika.BlockingConnection(
        cluster.nodes[there].parameters(vhost=vhost.name, client_properties={"connection_name": "till 7"})
    )
    vhost.connections.append(named)
    port = named._impl._transport._sock.getsockname()[1]
    columns = ("client_properties", "user", "peer_host", "peer_port", "port")
    rows = json.loads(cluster.nodes[vhost.owner].ctl("list_connections", *columns, "--formatter", "json"))
    found = next(row for row in rows if row["peer_port"] == port)
    assert "till 7" in str(found["client_properties"])
    assert (found["user"], found["peer_host"], found["port"]) == ("guest", "127.0.0.1", cluster.nodes[there].port)
    assert "till 7" not in cluster.nodes[there].ctl("list_connections", "client_properties", "-q", "--local")


def test_what_the_owner_refuses_is_refused(cluster: Cluster, vhost: Replicated):
    """The owner checks permissions and limits; a wrong password does not get so far."""
    there = others(cluster, vhost)[0]
    with pytest.raises(pika.exceptions.ProbableAuthenticationError):
        pika.BlockingConnection(cluster.nodes[there].parameters(vhost=vhost.name, password="wrong"))
    cluster.nodes[vhost.owner].ctl("clear_permissions", "-p", vhost.name, "guest")
    eventually(lambda: f"access to vhost '{vhost.name}' refused for user 'guest'" in vhost.refusal(there))


def test_a_forwarded_client_is_told_that_the_owner_is_gone(cluster: Cluster, vhost: Replicated):
    """With 320 when it is killed, when it sleeps and another takes over, and when the node between stops."""
    owner = vhost.owner
    first, second = others(cluster, vhost)
    waiting = vhost.connect(first)
    cluster.nodes[owner].crash()
    told = closed_with(waiting)
    gone = f"CONNECTION_FORCED - node '{owner}', which owns vhost '{vhost.name}', is gone"
    assert (told.reply_code, told.reply_text) == (320, gone)

    asleep = vhost.owner = vhost.find_owner(other_than=owner)
    between = next(name for name in (first, second) if name != asleep)
    waiting = vhost.connect(between)
    cluster.nodes[asleep].signal(signal.SIGSTOP)
    told = closed_with(waiting)
    moved = f"CONNECTION_FORCED - vhost '{vhost.name}' is owned by node '{between}'"
    assert (told.reply_code, told.reply_text) == (320, moved)
    cluster.nodes[asleep].signal(signal.SIGCONT)

    cluster.nodes[owner].start()
    waiting = eventually(lambda: connected(vhost, owner))
    stopping = threading.Thread(target=cluster.nodes[owner].stop)
    stopping.start()
    assert closed_with(waiting).reply_code == 320
    stopping.join()


def connected(vhost: Replicated, name: str) -> pika.BlockingConnection | None:
    """None while the node does not know yet who owns the vhost."""
    try:
        return vhost.connect(name)
    except pika.exceptions.AMQPConnectionError:
        return None


def test_who_does_not_know_the_secret_of_the_nodes_is_not_believed(cluster: Cluster, vhost: Replicated):
    owner = cluster.nodes[vhost.owner]
    status = json.loads(owner.ctl("cluster_status", "--formatter", "json"))
    host, port = status["links"][vhost.owner].rsplit(":", 1)
    with socket.create_connection((host, int(port)), timeout=20) as stranger:
        nonce = stranger.recv(32)
        assert len(nonce) == 32
        client: Any = {"peer": ["::1", 1], "ours": ["::1", 2], "tls": False, "certificate_name": "", "connected_at_ms": 0}
        hello = json.dumps({"node": "two", "vhost": vhost.name, "user": "guest", "client": client, "nonce": "AAAA"}).encode()
        stranger.sendall(len(hello).to_bytes(4, "big") + bytes(32) + hello)
        assert heard(stranger) == b""
    eventually(lambda: owner.events("who connects is no node of the cluster"))


def test_a_node_that_does_not_forward_tells_who_owns_the_vhost(cluster: Cluster, vhost: Replicated, tmp_path: Path):
    """Also one that has no replica of it."""
    config = {"cluster": {**cluster.nodes["one"].config["cluster"], "node": "zero", "redirect": "refuse"}}
    zero = cluster.nodes["zero"] = BrokerProcess(tmp_path, config).start()
    try:
        eventually(lambda: f"vhost '{vhost.name}' is owned by node '{vhost.owner}'" in vhost.refusal("zero"))
    finally:
        del cluster.nodes["zero"]
        zero.stop()


def heard(stranger: socket.socket) -> bytes:
    """What comes until the other side ends."""
    try:
        return stranger.recv(1)
    except ConnectionResetError:
        return b""
