"""Replicas of a vhost given to other nodes and taken from them, while it is used."""

from __future__ import annotations

import pytest

from broker_process import CtlFailed
from cluster.replicated import PATIENCE, Cluster, Replicated, drained
from cluster.test_checkpoints import ENOUGH, directory, first_of_log, is_loaded, publish
from support import eventually


def test_a_member_that_is_gone_is_removed_and_added_again(cluster: Cluster, vhost: Replicated):
    """It removes its copy when it comes back, and then begins with a checkpoint; in the end it has everything."""
    owner = vhost.owner
    name, other = (name for name in cluster.nodes if name != owner)
    away = cluster.nodes[name]
    channel = vhost.publisher(owner)
    channel.queue_declare("orders", durable=True)
    publish(channel, range(5))
    eventually(lambda: directory(away, vhost).exists())
    away.crash()

    cluster.nodes[other].ctl("delete_member", vhost.name, name)
    publish(channel, range(5, ENOUGH))
    eventually(lambda: first_of_log(vhost), timeout=PATIENCE, interval=0.5)
    away.start()
    eventually(lambda: not directory(away, vhost).exists(), timeout=PATIENCE)
    assert vhost.name in away.ctl("list_user_permissions", "guest"), "permissions are the users', on all nodes"
    publish(vhost.publisher(name), range(ENOUGH, ENOUGH + 5))  # clients are passed on from there

    cluster.nodes[owner].ctl("add_member", vhost.name, name)
    publish(channel, range(ENOUGH + 5, ENOUGH + 20))
    eventually(lambda: is_loaded(away, vhost), timeout=PATIENCE)
    eventually(lambda: vhost.position_at(name) >= vhost.position_at(owner), timeout=PATIENCE, interval=0.2)
    cluster.nodes[other].crash()
    cluster.nodes[owner].crash()
    assert vhost.find_owner() == name
    assert drained(vhost.connect(name), "orders") == [(number, True) for number in range(ENOUGH + 20)]


def test_what_is_refused(cluster: Cluster, vhost: Replicated):
    node = cluster.nodes[vhost.owner]
    for command, vhost_name, name, text in (
        ("delete_member", vhost.name, vhost.owner, "owns the vhost"),
        ("delete_member", vhost.name, "nobody", "node 'nobody' is no member"),
        ("add_member", vhost.name, vhost.owner, f"node '{vhost.owner}' is a member already"),
        ("add_member", vhost.name, "nobody", "node 'nobody' is not running"),
        ("delete_member", "nowhere", "nobody", "there is no replicated vhost 'nowhere'"),
    ):
        with pytest.raises(CtlFailed) as refused:
            node.ctl(command, vhost_name, name)
        assert text in str(refused.value)
