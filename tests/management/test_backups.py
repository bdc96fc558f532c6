"""Backups and restores over HTTP: begun, followed, listed, and never outside of their folder."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pika

from broker_process import BrokerProcess
from management.conftest import Http
from support import eventually


def job(http: Http, name: str, kind: str) -> dict[str, Any]:
    """The last one of this name, when it is over."""

    def found() -> dict[str, Any] | None:
        jobs = http.get("backups")["jobs"]
        return next((one for one in jobs if [one["name"], one["kind"]] == [name, kind] and one["state"] != "running"), None)

    return eventually(found)


def test_a_vhost_is_backed_up_and_restored_as_another(own_broker: Callable[..., BrokerProcess], tmp_path: Path) -> None:
    broker = own_broker({"management.backup_dir": str(tmp_path)})
    http = Http(broker.management)
    http("PUT", "vhosts/orders", {})
    connection = pika.BlockingConnection(broker.parameters(vhost="orders"))
    channel = connection.channel()
    channel.confirm_delivery()
    channel.queue_declare("invoices", durable=True)
    channel.basic_publish("", "invoices", b"for life", pika.BasicProperties(delivery_mode=2))
    connection.close()

    reply = http("POST", "vhosts/orders/backup", {"name": "orders-1"})
    assert (reply.status, reply.json["kind"], reply.json["state"]) == (202, "backup", "running")
    assert job(http, "orders-1", "backup")["state"] == "done"
    (file,) = http.get("backups")["files"]
    assert (file["name"], file["bytes"]) == ("orders-1", (tmp_path / "orders-1").stat().st_size)

    assert http("POST", "vhosts/again/restore", {"name": "orders-1"}).status == 202
    assert job(http, "orders-1", "restore")["state"] == "done"
    http("PUT", "permissions/again/guest", {"configure": ".*", "write": ".*", "read": ".*"})
    connection = pika.BlockingConnection(broker.parameters(vhost="again"))
    assert connection.channel().basic_get("invoices", auto_ack=True)[2] == b"for life"
    connection.close()

    (tmp_path / "spoilt").write_bytes(b"no backup")
    assert http("POST", "vhosts/third/restore", {"name": "spoilt"}).status == 202
    failed = job(http, "spoilt", "restore")
    assert (failed["state"], "vhost 'third' is not restored" in failed["reason"]) == ("failed", True)
    assert http("GET", "vhosts/third").status == 404

    for name in ("../escape", "/etc/passwd", ".hidden", "x.part", ""):
        assert http("POST", "vhosts/orders/backup", {"name": name}).status == 400
    assert http("POST", "vhosts/absent/backup", {"name": "b"}).status == 404
    assert http("POST", "vhosts/new/restore", {"name": "absent"}).json["reason"] == "there is no backup 'absent'"
    assert http("POST", "vhosts/orders/restore", {"name": "orders-1"}).json["reason"] == "there is one"

    changes = [(one["method"], one["path"], one["details"]) for one in http.get("audit")["items"]]
    assert ("POST", "vhosts/orders/backup", {"name": "orders-1"}) in changes
    assert ("POST", "vhosts/again/restore", {"name": "orders-1"}) in changes


def test_without_a_folder_and_without_the_tag_nothing_is_written(http: Http) -> None:
    reply = http("POST", "vhosts/%2F/backup", {"name": "b"})
    assert (reply.status, "management.backup_dir" in reply.json["reason"]) == (400, True)
    assert http.get("backups") == {"folder": "", "files": [], "jobs": []}
    http("PUT", "users/watcher", {"password": "watcher", "tags": "monitoring"})
    for method, path in (
        ("GET", "backups"),
        ("POST", "vhosts/%2F/backup"),
        ("POST", "vhosts/%2F/restore"),
        ("POST", "vhosts/%2F/replicas/add"),
        ("DELETE", "vhosts/%2F/replicas/delete"),
        ("PUT", "nodes/absent/maintenance"),
    ):
        assert http(method, path, None if method == "GET" else {}, user="watcher").status == 401, path


def test_a_node_is_put_into_maintenance_and_back(own_broker: Callable[..., BrokerProcess]) -> None:
    broker = own_broker({})
    http = Http(broker.management)
    path = f"nodes/{quote(http.get('overview')['node'], safe='')}/maintenance"
    assert http.get(path) == {"maintenance": False}
    assert http("PUT", "nodes/absent/maintenance", {}).status == 404
    connection = pika.BlockingConnection(broker.parameters())
    assert http("PUT", path, {}).status == 204
    eventually(lambda: closed(connection))
    assert http.get(path) == {"maintenance": True}
    assert http("DELETE", path).status == 204
    assert http.get(path) == {"maintenance": False}
    pika.BlockingConnection(broker.parameters()).close()
    assert [one["method"] for one in http.get("audit")["items"] if one["path"] == path] == ["DELETE", "PUT"]


def closed(connection: pika.BlockingConnection) -> bool:
    try:
        connection.process_data_events(0.05)
    except pika.exceptions.ConnectionClosedByBroker as error:
        return error.reply_code == 320
    return False
