"""What is done to a cluster over HTTP: replicas of a vhost, and maintenance that is refused."""

from __future__ import annotations

from cluster.engine_rigs import on_one_engine
from cluster.replicated import Cluster, Replicated
from management.conftest import Http
from support import eventually

pytestmark = on_one_engine


def test_replicas_come_and_go_and_a_node_that_is_needed_is_not_drained(cluster: Cluster, vhost: Replicated):
    owner = vhost.owner
    http = Http(cluster.nodes[owner].management)
    at = f"vhosts/{vhost.name}"

    def replicas() -> list[str]:
        return sorted(one["node"] for one in http.get(at)["replication"]["replicas"])

    others = [name for name in cluster.nodes if name != owner]
    for name in others:
        assert http("DELETE", f"{at}/replicas/delete", {"node": name}).status == 204
    eventually(lambda: replicas() == [owner])
    assert http("DELETE", f"{at}/replicas/delete", {"node": owner}).status == 400
    assert http("POST", f"{at}/replicas/add", {}).status == 400
    assert http("POST", "vhosts/absent/replicas/add", {"node": owner}).status == 404

    path = f"nodes/{owner}/maintenance"
    refused = http("PUT", path, {})
    lonely = f"vhost '{vhost.name}': no other node that has a replica of it runs"
    assert (refused.status, lonely in refused.json["reason"]) == (400, True)
    assert http.get(path) == {"maintenance": False}
    assert vhost.connect(owner).is_open
    assert lonely in http("PUT", path, {"force": True}).json["left"]
    assert http("DELETE", path).status == 204

    assert http("POST", f"{at}/replicas/add", {"node": others[0]}).status == 204
    eventually(lambda: replicas() == sorted([owner, others[0]]))
