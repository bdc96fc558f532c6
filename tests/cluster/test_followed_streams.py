"""Streams of a replicated vhost at the nodes that follow: retention lets go there what it does at the owner's."""

from __future__ import annotations

from pathlib import Path

import pika
import pytest

from cluster.engine_rigs import on_one_engine
from cluster.replicated import Cluster, Replicated
from rabbitpy_broker.storage.vhost_store import vhost_folder
from support import eventually

pytestmark = on_one_engine

KEPT = 2_000_000  # bytes that retention is to keep
SEGMENT = 500_000
BODY = bytes(50_000)


def stored(cluster: Cluster, vhost: Replicated, node: str) -> int:
    """Bytes of all streams' segments at a node."""
    folder = Path(cluster.nodes[node].data_dir) / "vhosts" / vhost_folder(vhost.name)
    return sum(file.stat().st_size for file in folder.glob("**/*.stream"))


def first_offset(connection: pika.BlockingConnection, stream: str) -> int:
    channel = connection.channel()
    channel.basic_qos(prefetch_count=1)
    for method, properties, _ in channel.consume(stream, arguments={"x-stream-offset": "first"}):
        assert method is not None
        return int(properties.headers["x-stream-offset"])
    raise AssertionError("the stream is empty")


@pytest.mark.parametrize("by", ["arguments", "policy"])
def test_retention_holds_at_followers_too(cluster: Cluster, vhost: Replicated, by: str):
    arguments = {"x-queue-type": "stream", "x-stream-max-segment-size-bytes": SEGMENT}
    if by == "arguments":
        arguments["x-max-length-bytes"] = KEPT
    else:
        cluster.nodes[vhost.owner].ctl(
            "set_policy", "-p", vhost.name, "short", "^log$", f'{{"max-length-bytes":{KEPT}}}', "--apply-to", "streams"
        )
    publisher = vhost.publisher(vhost.owner)
    publisher.queue_declare("log", durable=True, arguments=arguments)
    for _ in range(200):  # five times what is kept
        publisher.basic_publish("", "log", BODY)
    for node in cluster.nodes:
        eventually(lambda node=node: SEGMENT < stored(cluster, vhost, node) <= KEPT + 3 * SEGMENT, timeout=20)
    cluster.nodes[vhost.owner].ctl("transfer_vhost", vhost.name)
    vhost.owner = vhost.find_owner(other_than=vhost.owner)
    assert 0 < first_offset(vhost.connect(vhost.owner), "log") < 200
