"""The management UI of a node of a cluster, in Chromium."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cluster.engine_rigs import require
from cluster.replicated import Cluster, Replicated
from perf.engines import postgres
from perf.engines.postgres import PostgresServers
from perf.engines.servers import running
from ui.conftest import bad

pytestmark = [pytest.mark.own, pytest.mark.timeout(900)]  # the first run installs

Script = Callable[..., dict[str, str]]


@pytest.fixture
def vhost(tmp_path: Path) -> Iterator[Replicated]:
    require(postgres.is_installed(), "PostgreSQL's server (apt-get install postgresql)")
    folder = Path(tempfile.mkdtemp(prefix="rabbitpy-postgres-"))  # pytest's own is closed to the user of the servers
    servers = PostgresServers(folder)
    with running(servers):
        backups = tmp_path / "backups"
        backups.mkdir()
        cluster = Cluster(tmp_path, servers, servers.url, more={"management.backup_dir": str(backups)})
        try:
            vhost = Replicated(cluster)
            yield vhost
            vhost.close()
        finally:
            cluster.stop()
    shutil.rmtree(folder)


def test_pages_are_of_the_whole_cluster(run_script: Script, vhost: Replicated) -> None:
    nodes = vhost.cluster.nodes
    follower = next(name for name in nodes if name != vhost.owner)
    pids = {name: node.process.pid for name, node in nodes.items() if node.process is not None}
    bases = {name: f"http://{node.management}/" for name, node in nodes.items()}
    given = {"vhost": vhost.name, "node": follower, "nodes": list(nodes), "pids": pids, "bases": bases}
    verdict = run_script("cluster.mjs", nodes[follower], **given)
    assert not bad(verdict), json.dumps(bad(verdict), indent=1)
    assert len(verdict) == 12
