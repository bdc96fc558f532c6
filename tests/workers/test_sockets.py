"""A worker is managed through its own sockets, and believes what its gateway says of who asks; nobody else is believed."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import AsyncIterator
from http.cookies import SimpleCookie
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import structlog

from rabbitpy_broker.broker import Broker
from rabbitpy_broker.config import Config, load_config
from rabbitpy_broker.management.api.asking import NoAnswer
from rabbitpy_broker.management.api.forwarded import BEGUN, FORWARDED
from rabbitpy_broker.workers.fleet import WorkerSockets, listen_on
from rabbitpy_broker.workers.gateway_client import WorkerClient

BASIC = {"Authorization": "Basic Z3Vlc3Q6Z3Vlc3Q="}
LOG_IN = {"username": "guest", "password": "guest"}


def settings(directory: Path) -> Config:
    overrides = {
        "data_dir": str(directory / "data"),
        "listeners": ("127.0.0.1:0",),
        "metrics_listen": "127.0.0.1:0",
        "management_listen": "127.0.0.1:0",
    }
    return load_config(overrides=overrides)


async def worker(directory: Path) -> Broker:
    folder = directory / ("long" * 30)  # longer than a socket's address may be
    folder.mkdir(mode=0o700, parents=True)
    broker = Broker(settings(directory), structlog.get_logger(), sockets=WorkerSockets(folder))
    await broker.start()
    return broker


@pytest.fixture
async def two(tmp_path: Path) -> AsyncIterator[list[Broker]]:
    brokers = [await worker(tmp_path / "0"), await worker(tmp_path / "1")]
    yield brokers
    for broker in brokers:
        await broker.stop()


def asked(broker: Broker) -> aiohttp.ClientSession:
    """A client of its API, by a name that is short enough for a socket's address."""
    assert broker.sockets is not None
    folder = os.open(broker.sockets.folder, os.O_RDONLY | os.O_DIRECTORY)  # until the process ends
    connector = aiohttp.UnixConnector(f"/proc/self/fd/{folder}/management.sock")
    return aiohttp.ClientSession("http://worker", connector=connector, cookie_jar=aiohttp.DummyCookieJar())


def told(**more: Any) -> dict[str, str]:
    return {FORWARDED: json.dumps({"peer": "127.0.0.1", "is_encrypted": False, **more})}


async def test_a_worker_listens_on_sockets_for_its_owner_alone(two: list[Broker]) -> None:
    for broker in two:
        assert broker.sockets is not None
        for path in (broker.sockets.management, broker.sockets.metrics, broker.sockets.control):
            assert stat.S_IMODE(path.lstat().st_mode) == 0o600
        assert [listener.protocol for listener in broker.listeners()] == ["amqp"]


async def test_a_session_that_began_with_one_worker_goes_on_with_another(two: list[Broker]) -> None:
    async with asked(two[0]) as one, asked(two[1]) as other:
        async with one.post("/api/session", json=LOG_IN, headers=told()) as answer:
            assert answer.status == 200
            session, csrf = json.loads(answer.headers[BEGUN]), (await answer.json())["csrf"]
            (cookie,) = SimpleCookie(answer.headers["Set-Cookie"]).values()
        # Two data directories of their own: only what the definitions share in a daemon is made alike here.
        theirs = two[1].node.users.get("guest")
        assert theirs is not None
        theirs.password_hash = session["password_hash"]
        name = (await _cookie_name(other)) or cookie.key
        headers = {"Cookie": f"{name}={cookie.value}"}
        passed = headers | told(session=session)
        async with other.get("/api/whoami", headers=headers) as answer:
            assert answer.status == 401
        async with other.get("/api/whoami", headers=passed) as answer:
            assert (answer.status, (await answer.json())["name"]) == (200, "guest")
        async with other.put("/api/queues/%2F/q", json={}, headers=passed) as answer:
            assert answer.status == 403
        async with other.put("/api/queues/%2F/q", json={}, headers=passed | {"X-CSRF-Token": csrf}) as answer:
            assert answer.status == 201
        outside = {**session, "id": "another", "is_ours": False, "given": ["guest", "guest"]}
        async with other.get("/api/whoami", headers=headers | told(session=outside)) as answer:
            assert (answer.status, (await answer.json())["name"]) == (200, "guest")
        wrong = {**outside, "id": "a third", "given": ["guest", "wrong"]}
        async with other.get("/api/whoami", headers=headers | told(session=wrong)) as answer:
            assert answer.status == 401
        theirs.password_hash = "another"
        async with other.get("/api/whoami", headers=passed) as answer:
            assert answer.status == 401


async def _cookie_name(http: aiohttp.ClientSession) -> str:
    async with http.post("/api/session", json=LOG_IN, headers=told()) as answer:
        return next(iter(SimpleCookie(answer.headers["Set-Cookie"])))


async def test_a_worker_that_does_not_answer_is_down(tmp_path: Path) -> None:
    sockets = WorkerSockets(tmp_path)
    client = WorkerClient(sockets)
    try:
        with pytest.raises(NoAnswer):
            await client.ask("GET", "/", {})
        with pytest.raises(NoAnswer):
            await client.command("ping", [], {})
        with listen_on(sockets.management) as listening:
            listening.listen()
            with pytest.raises(NoAnswer, match="not answered within"):
                await client.ask("GET", "/", {}, within_s=0.05)
    finally:
        await client.close()


async def test_a_broker_without_a_gateway_believes_no_such_header(tmp_path: Path) -> None:
    broker = Broker(settings(tmp_path), structlog.get_logger())
    await broker.start()
    try:
        async with aiohttp.ClientSession(f"http://{broker.http_listeners[0].address}") as http:
            async with http.post("/api/session", json=LOG_IN, headers=told()) as answer:
                assert (answer.status, BEGUN in answer.headers) == (200, False)
            page = {"page": "1", "page_size": "501"}
            async with http.get("/api/queues", params=page, headers=BASIC | told()) as answer:
                assert answer.status == 400
    finally:
        await broker.stop()


async def test_a_worker_gives_its_gateway_pages_of_any_size(two: list[Broker]) -> None:
    page = {"page": "1", "page_size": "501"}
    async with asked(two[0]) as http, http.get(
        "/api/queues", params=page, headers=BASIC | told(is_for_all=True)
    ) as answer:
        assert (answer.status, (await answer.json())["items"]) == (200, [])
