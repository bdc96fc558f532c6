"""A daemon with two workers while one of them is killed: what its pages, lists, metrics and commands say."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from broker_process import CtlFailed
from management.event_stream import EventStream
from support import eventually
from workers.conftest import QUEUES, VHOSTS, filled
from workers.daemon_process import PlainProcess, WorkersProcess

pytestmark = pytest.mark.own


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PlainProcess]:
    """Workers that stay down for as long as a test wants it."""
    process = PlainProcess(tmp_path_factory.mktemp("plain"), {"collect_statistics_interval": 250})
    process.start()
    yield from filled(process)


def kill(daemon: PlainProcess, worker: int) -> None:
    """A worker that is not started again before `release`."""
    (daemon.data_dir / f"held-{worker}").touch()
    os.kill(int(daemon.workers()[worker]["os_pid"]), signal.SIGKILL)
    eventually(lambda: not daemon.workers()[worker]["running"])


def release(daemon: PlainProcess, worker: int) -> None:
    (daemon.data_dir / f"held-{worker}").unlink()
    daemon.eventually_running(2)


def metrics(daemon: WorkersProcess, path: str = "/metrics") -> str:
    with urllib.request.urlopen(f"http://{daemon.metrics}{path}", timeout=30) as answer:
        return str(answer.read().decode())


def value(text: str, series: str) -> float:
    return next(float(line.rpartition(" ")[2]) for line in text.splitlines() if line.rpartition(" ")[0] == series)


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")
def test_promtool_has_nothing_to_say(daemon: WorkersProcess) -> None:
    for path in ("/metrics", "/metrics/per-object", "/metrics/detailed?family=queue_metrics&family=channel_metrics"):
        text = metrics(daemon, path)
        done = subprocess.run(["promtool", "check", "metrics"], input=text, capture_output=True, text=True, check=False)
        told = {line for line in (done.stdout + done.stderr).splitlines() if line}
        assert {line.partition(" ")[0] for line in told if "duplicate" in line or "error" in line.lower()} == set(), told
        lines = [line.rpartition(" ")[0] for line in text.splitlines() if not line.startswith("#")]
        assert len(set(lines)) == len(lines)


def test_the_command_line_speaks_of_the_whole_daemon(daemon: WorkersProcess, tmp_path: Path) -> None:
    assert set(daemon.ctl("list_vhosts", "-s").split()) == set(VHOSTS)
    for vhost in VHOSTS:
        rows = [line.split("\t") for line in daemon.ctl("list_queues", "-s", "-p", vhost, "name", "messages").splitlines()]
        assert {name for name, _ in rows} == set(QUEUES)
        daemon.ctl("backup_vhost", vhost, str(tmp_path / "file"))
        with pytest.raises(CtlFailed, match="several workers restores none"):
            daemon.ctl("restore_vhost", "another", str(tmp_path / "file"))
    assert sorted(daemon.ctl("list_connections", "-s", "vhost").split()) == sorted(VHOSTS)
    workers = [line.split("\t") for line in daemon.ctl("list_workers", "-s").splitlines()]
    assert [(row[0], row[2], row[4]) for row in workers] == [("0", "running", "2"), ("1", "running", "2")]
    assert {int(row[1]) for row in workers} == {int(worker["os_pid"]) for worker in daemon.workers()}
    status = daemon.ctl("status")
    assert f"Queue count: {len(VHOSTS) * len(QUEUES)}" in status
    assert "Worker 1: running" in status
    assert daemon.management in daemon.ctl("listeners").replace(", port: ", ":")
    daemon.ctl("check_alarms")
    daemon.ctl("check_port_listener", daemon.management.rpartition(":")[2])
    daemon.ctl("add_vhost", "by-ctl")
    daemon.ctl("add_user", "carl", "carl")
    daemon.ctl("set_user_tags", "carl", "management")
    daemon.ctl("set_permissions", "-p", "by-ctl", "carl", ".*", ".*", ".*")
    assert daemon.http("PUT", "queues/by-ctl/q", {}, user="carl").status == 201
    assert daemon.ctl("list_user_permissions", "carl", "-s").split("\t")[0] == "by-ctl"
    daemon.ctl("set_policy", "-p", "by-ctl", "p", "^q", '{"max-length": 5}')
    assert daemon.http.get("queues/by-ctl/q")["policy"] == "p"
    daemon.ctl("change_password", "carl", "new", "--close-connections")
    assert daemon.http("GET", "queues/by-ctl", user="carl").status == 401
    daemon.ctl("delete_user", "carl")
    daemon.ctl("delete_vhost", "by-ctl")
    assert set(daemon.ctl("list_vhosts", "-s").split()) == set(VHOSTS)
    with pytest.raises(CtlFailed, match="there is no worker 7"):
        daemon.ctl("move_vhost", "east", "7")
    with pytest.raises(CtlFailed, match="does not exist"):
        daemon.ctl("list_permissions", "-p", "none")
    with pytest.raises(CtlFailed, match="nonsense"):
        daemon.ctl("nonsense")


def test_a_file_goes_through_the_command_line_to_all_workers(daemon: WorkersProcess, tmp_path: Path) -> None:
    before = daemon.ctl("export_definitions", "-")
    file = tmp_path / "definitions.json"
    file.write_text(before)
    assert f"{len(VHOSTS)} vhosts" in daemon.ctl("import_definitions", str(file))
    assert daemon.ctl("export_definitions", "-") == before
    file.write_text('{"vhosts": [{"name": "n-1"}], "queues": [{"name": "q", "vhost": "absent", "durable": true}]}')
    with pytest.raises(CtlFailed, match="absent"):
        daemon.ctl("import_definitions", str(file))
    assert daemon.ctl("export_definitions", "-") == before


def test_metrics_are_sums_and_counters_do_not_fall(plain: PlainProcess) -> None:
    published = value(metrics(plain), "rabbitmq_channel_messages_published_total")
    assert published == sum(map(len, QUEUES)) * len(VHOSTS)
    assert value(metrics(plain), "rabbitmq_queues") == len(VHOSTS) * len(QUEUES)
    text = metrics(plain, "/metrics/per-object")
    for vhost in VHOSTS:
        assert value(text, f'rabbitmq_queue_messages{{queue="delta",vhost="{vhost}"}}') == len("delta")
    detailed = metrics(plain, "/metrics/detailed?family=queue_coarse_metrics&vhost=west")
    assert 'vhost="west"' in detailed
    assert 'vhost="east"' not in detailed
    kill(plain, 1)
    down = metrics(plain)
    assert value(down, 'rabbitpy_worker_up{worker="1"}') == 0
    assert value(down, "rabbitmq_channel_messages_published_total") == published
    assert value(down, "rabbitmq_queues") == len(VHOSTS) * len(QUEUES) / 2
    release(plain, 1)
    text = metrics(plain)
    assert value(text, "rabbitmq_channel_messages_published_total") == published
    assert value(text, "rabbitmq_queues") == len(VHOSTS) * len(QUEUES)
    assert len({line for line in text.splitlines() if line.startswith("rabbitmq_erlang_uptime_seconds{")}) == 2
    assert text.count("rabbitmq_identity_info{") == 1
    with urllib.request.urlopen(f"http://{plain.metrics}/health/ready", timeout=30) as answer:
        assert answer.status == 200
    request = urllib.request.Request(f"http://{plain.metrics}/metrics", headers={"Accept": "application/openmetrics-text"})
    with urllib.request.urlopen(request, timeout=30) as answer:
        assert answer.read().decode().count("# EOF") == 1


def test_lists_say_who_is_missing_and_requests_why_they_cannot_be_answered(plain: PlainProcess) -> None:
    http = plain.http
    theirs = [name for name in VHOSTS if plain.worker_of(name) == 1]
    assert http("GET", "queues").headers["x-rabbitpy-workers-down"] is None
    kill(plain, 1)
    reply = http("GET", "queues")
    assert (reply.status, reply.headers["x-rabbitpy-workers-down"]) == (200, "1")
    first = http.get("attention")["items"][0]
    assert (first["kind"], first["severity"], first["figures"]) == ("worker_down", "critical", {"worker": 1, "vhosts": 2})
    assert not {row["vhost"] for row in reply.json} & set(theirs)
    assert http("GET", "queues?page=1&page_size=3").headers["x-rabbitpy-workers-down"] == "1"
    vhosts = {row["name"]: set(row["cluster_state"].values()) for row in http.get("vhosts")}
    assert vhosts == {name: {"nodedown" if name in theirs else "running"} for name in VHOSTS}
    for method, path in (("GET", f"queues/{theirs[0]}"), ("PUT", f"queues/{theirs[0]}/new"), ("DELETE", f"vhosts/{theirs[0]}")):
        refused = http(method, path, {} if method == "PUT" else None)
        assert (refused.status, theirs[0] in refused.json["reason"]) == (503, True)
        assert http(method, path, {} if method == "PUT" else None, user="").status == 401
    assert http("GET", "definitions").status == 503  # no file that only looks whole
    assert http("GET", "health/checks/alarms").status == 200
    health = http("GET", "health/checks/virtual-hosts")
    assert (health.status, health.json["virtual-hosts"]) == (503, sorted(theirs))
    assert http("GET", "health/checks/ready-to-serve-clients").status == 503
    assert http("PUT", "users/new", {"password": "new", "tags": ""}).status == 201
    with pytest.raises(CtlFailed, match="worker 1 is not running"):
        plain.ctl("list_queues", "-p", theirs[0])
    with pytest.raises(CtlFailed, match="worker 1 is not running"):
        plain.ctl("export_definitions", "-")
    assert "\tdown\t" in plain.ctl("list_workers", "-q")
    release(plain, 1)
    assert {row["name"] for row in http.get(f"queues/{theirs[0]}")} == set(QUEUES)
    assert http("GET", "health/checks/virtual-hosts").status == 200


def test_pages_follow_a_worker_that_is_killed_and_comes_back(plain: PlainProcess) -> None:
    http, whole = plain.http, len(VHOSTS) * len(QUEUES)
    mine = [name for name in VHOSTS if plain.worker_of(name) == 0]
    with EventStream(http, "table:queues", "overview", "alarms", "log", "queue:east%2F/x") as bad:
        assert bad.status == 200  # a queue that there is not is gone
        bad.until(lambda: "gone" in bad.kinds)
    with EventStream(http, "nonsense") as none:
        assert none.status == 400
    with EventStream(http, "table:queues", "overview", "log", "queue:east/alpha") as stream:
        stream.until(lambda: len(stream.tables.get("table:queues", {})) == whole)
        stream.until(lambda: (stream.objects.get("overview") or {}).get("totals", {}).get("queues") == whole)
        stream.until(lambda: (stream.objects.get("queue:east/alpha") or {}).get("messages") == len("alpha"))
        assert http("PUT", "queues/east/late", {}).status == 201
        stream.until(lambda: len(stream.tables["table:queues"]) == whole + 1)
        kill(plain, 1)
        stream.until(lambda: {key[0] for key in stream.tables["table:queues"]} == set(mine))
        stream.until(lambda: stream.objects["overview"]["totals"]["queues"] == len(mine) * len(QUEUES))  # type: ignore[index]
        release(plain, 1)
        stream.until(lambda: len(stream.tables["table:queues"]) == whole)  # `late` was transient
        stream.until(lambda: stream.objects["overview"]["totals"]["queues"] == whole)  # type: ignore[index]
        assert "end" not in stream.kinds
        ids = [line["id"] for line in stream.lines]
        assert len(set(ids)) == len(ids)


def test_a_worker_that_is_killed_comes_back_with_what_it_had(daemon: WorkersProcess) -> None:
    whole = len(VHOSTS) * len(QUEUES)
    published = value(metrics(daemon), "rabbitmq_channel_messages_published_total")
    queues = {(row["vhost"], row["name"]): row["messages"] for row in daemon.http.get("queues?columns=vhost,name,messages")}
    with EventStream(daemon.http, "table:queues", "overview") as stream:
        stream.until(lambda: len(stream.tables.get("table:queues", {})) == whole)
        os.kill(int(daemon.workers()[1]["os_pid"]), signal.SIGKILL)
        stream.until(lambda: len(stream.tables["table:queues"]) == whole / 2)
        stream.until(lambda: len(stream.tables["table:queues"]) == whole)
        stream.until(lambda: stream.objects["overview"]["totals"]["queues"] == whole)  # type: ignore[index]
    daemon.eventually_running(2)
    found = {(row["vhost"], row["name"]): row["messages"] for row in daemon.http.get("queues?columns=vhost,name,messages")}
    assert found == queues
    assert value(metrics(daemon), "rabbitmq_channel_messages_published_total") == published
    assert daemon.http("GET", "health/checks/virtual-hosts").status == 200


def test_a_vhost_moves_and_its_rows_stay(daemon: WorkersProcess) -> None:
    whole = len(VHOSTS) * len(QUEUES)
    before = daemon.worker_of("west")
    published = value(metrics(daemon), "rabbitmq_queue_messages_published_total")
    with EventStream(daemon.http, "table:queues", "overview") as stream:
        stream.until(lambda: len(stream.tables.get("table:queues", {})) == whole)
        daemon.ctl("move_vhost", "west", str(1 - before))
        assert daemon.worker_of("west") == 1 - before
        assert daemon.http("PUT", "queues/west/after", {}).status == 201
        stream.until(lambda: len(stream.tables["table:queues"]) == whole + 1)
        assert daemon.http("DELETE", "queues/west/after").status == 204
        stream.until(lambda: len(stream.tables["table:queues"]) == whole)
    assert {row["name"] for row in daemon.http.get("queues/west")} == set(QUEUES)
    assert value(metrics(daemon), "rabbitmq_queue_messages_published_total") == published
    daemon.ctl("move_vhost", "west", str(before))
    assert daemon.worker_of("west") == before


def test_a_vhost_is_moved_through_the_api(daemon: WorkersProcess) -> None:
    """By administrators; what there is not, and what is no worker, is refused, and each move is in the audit."""
    http, before = daemon.http, daemon.worker_of("north")
    move = {"worker": 1 - before}
    assert http("PUT", "vhosts/north/worker", move, user="mona").status == 401
    assert http("PUT", "vhosts/none/worker", move).status == 404
    for wrong in ({}, {"worker": "x"}, {"worker": 7}, {"worker": -1}):
        assert http("PUT", "vhosts/north/worker", wrong).status == 400
    assert http("PUT", "vhosts/north/worker?dry_run=true", move).status == 204
    assert daemon.worker_of("north") == before
    messages = {row["name"]: row["messages"] for row in http.get("queues/north")}
    assert http("PUT", "vhosts/north/worker", move).status == 204
    assert daemon.worker_of("north") == 1 - before
    assert {row["name"]: row["messages"] for row in http.get("queues/north")} == messages
    latest = http.get("audit?limit=1")["items"][0]
    assert (latest["method"], latest["path"], latest["details"]) == ("PUT", "vhosts/north/worker", move)
    assert http("PUT", "vhosts/north/worker", {"worker": before}).status == 204


def test_no_vhost_moves_where_the_api_is_read_only(tmp_path: Path) -> None:
    daemon = WorkersProcess(tmp_path, {"management": {"read_only": True}})
    daemon.start()
    before = daemon.worker_of("/")
    assert daemon.http("PUT", "vhosts/%2F/worker", {"worker": 1 - before}).json["error"] == "read_only"
    assert daemon.worker_of("/") == before
    daemon.stop()
