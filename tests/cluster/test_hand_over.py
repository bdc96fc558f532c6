"""Replicated vhosts go from node to node because somebody says so: on request, for maintenance, at a stop."""

from __future__ import annotations

import json
import urllib.request
from typing import Any

import pika
import pika.exceptions
import pytest

from broker_process import BrokerProcess, CtlFailed
from cluster.replicated import Cluster, Replicated, drained, publish
from cluster.stubborn import Stubborn
from support import eventually


def others(cluster: Cluster, vhost: Replicated) -> list[str]:
    return [name for name in cluster.nodes if name != vhost.owner]


def lines(node: BrokerProcess, event: str, vhost: str) -> list[dict[str, Any]]:
    return [line for line in node.events(event) if line.get("vhost") == vhost]


def assert_nothing_lost(vhost: Replicated, stubborn: Stubborn) -> None:
    """What was published twice, because its connection was closed before it was confirmed, stands behind itself."""
    found = [number for number, _ in drained(vhost.connect(vhost.find_owner()), "orders")]
    assert found == sorted(found)
    assert set(found) >= set(range(stubborn.confirmed))
    assert set(found) <= set(range(stubborn.confirmed + 1))  # the last was perhaps not confirmed any more


def declare(vhost: Replicated) -> None:
    vhost.connect(vhost.owner).channel().queue_declare("orders", durable=True)


def test_a_vhost_goes_where_it_is_told_to_go(cluster: Cluster, vhost: Replicated):
    """By the command at another node, which asks the owner; by the API; and to whoever is furthest along."""
    declare(vhost)
    first = vhost.owner
    second, third = others(cluster, vhost)
    with Stubborn(cluster, vhost).going_on() as stubborn:
        stubborn.goes_on()
        cluster.nodes[third].ctl("transfer_vhost", vhost.name, second)
        assert vhost.find_owner(other_than=first) == second
        assert lines(cluster.nodes[first], "vhost handed over", vhost.name)
        stubborn.goes_on()
        eventually(lambda: any(f"moves to node '{second}'" in text for text in stubborn.texts))
        request = urllib.request.Request(
            f"http://{cluster.nodes[second].management}/api/vhosts/{vhost.name}/owner",
            json.dumps({"node": third}).encode(), {"Authorization": "Basic Z3Vlc3Q6Z3Vlc3Q="}, method="PUT",
        )  # fmt: skip
        assert urllib.request.urlopen(request, timeout=60).status == 204
        assert vhost.find_owner(other_than=second) == third
        stubborn.goes_on()
        cluster.nodes[third].ctl("transfer_vhost", vhost.name)
        assert vhost.find_owner(other_than=third) in (first, second)
        stubborn.goes_on()
    assert_nothing_lost(vhost, stubborn)


def test_what_cannot_be_handed_over_stays_where_it_is(cluster: Cluster, vhost: Replicated):
    owner = cluster.nodes[vhost.owner]
    channel = vhost.publisher(vhost.owner)
    channel.queue_declare("orders", durable=True)
    with pytest.raises(CtlFailed, match="it has no replica of it"):
        owner.ctl("transfer_vhost", vhost.name, "nowhere")
    with pytest.raises(CtlFailed, match="does not exist"):
        owner.ctl("transfer_vhost", "nothing")
    with pytest.raises(CtlFailed, match="it is not replicated"):
        owner.ctl("transfer_vhost", "/")
    publish(channel, "orders", range(3))
    assert vhost.find_owner() == vhost.owner


def test_an_owner_that_is_stopped_hands_over(cluster: Cluster, vhost: Replicated):
    declare(vhost)
    first = vhost.owner
    with Stubborn(cluster, vhost).going_on() as stubborn:
        stubborn.goes_on()
        cluster.nodes[first].stop()
        assert lines(cluster.nodes[first], "vhost handed over", vhost.name)
        vhost.find_owner(other_than=first)
        stubborn.goes_on()
        cluster.nodes[first].start()
    assert_nothing_lost(vhost, stubborn)


def test_a_drained_node_owns_nothing_until_it_is_revived(cluster: Cluster, vhost: Replicated):
    declare(vhost)
    first = vhost.owner
    second, third = others(cluster, vhost)
    node = cluster.nodes[first]
    with Stubborn(cluster, vhost).going_on() as stubborn:
        stubborn.goes_on()
        node.ctl("drain")
        stubborn.goes_on()
        assert any("Node was put into maintenance mode" in text for text in stubborn.texts)
        with pytest.raises(pika.exceptions.AMQPConnectionError):
            vhost.connect(first)
        owner = vhost.find_owner(other_than=first)
        with pytest.raises(CtlFailed, match="in maintenance"):
            cluster.nodes[owner].ctl("transfer_vhost", vhost.name, first)
        last = third if owner == second else second
        cluster.nodes[last].stop()
        with pytest.raises(CtlFailed, match="no other node"):
            cluster.nodes[owner].ctl("transfer_vhost", vhost.name)
        node.ctl("revive")
        cluster.nodes[owner].ctl("transfer_vhost", vhost.name, first)
        assert vhost.find_owner(other_than=owner) == first
        stubborn.goes_on()
    assert vhost.connect(first).is_open
    assert_nothing_lost(vhost, stubborn)


def test_a_node_is_not_drained_when_nobody_can_have_its_vhosts(cluster: Cluster, vhost: Replicated):
    """Nothing is closed then; with --force all clients are, and what stays is named."""
    declare(vhost)
    first = vhost.owner
    node = cluster.nodes[first]
    waiting = vhost.connect(first)
    before = len(node.events("node in maintenance"))
    for name in others(cluster, vhost):
        cluster.nodes[name].stop()
    lonely = f"vhost '{vhost.name}': no other node that has a replica of it runs"
    with pytest.raises(CtlFailed, match=lonely):
        node.ctl("drain")
    waiting.process_data_events(0.1)
    assert waiting.is_open
    assert vhost.connect(first).is_open
    assert len(node.events("node in maintenance")) == before
    assert lonely in node.ctl("drain", "--force")
    with pytest.raises(pika.exceptions.ConnectionClosedByBroker):
        while True:
            waiting.process_data_events(1.0)
    with pytest.raises(pika.exceptions.AMQPConnectionError):
        vhost.connect(first)
    node.ctl("revive")
    assert vhost.connect(first).is_open
