"""The management UI: its files, what they weigh, what they may do, and a table of 20,000 queues in Chromium."""

from __future__ import annotations

import gzip
import hashlib
import http.client
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from external import require_tools, run_client, verdicts

import rabbitpy_broker
from broker_process import BrokerProcess
from management.conftest import Http
from ui.conftest import bad

pytestmark = [pytest.mark.own, pytest.mark.timeout(900)]  # the first run installs

HERE = Path(__file__).parent
WWW = Path(rabbitpy_broker.__file__).parent / "management" / "www"
VENDORED = json.loads((HERE / "vendored.json").read_text())
FIRST_PAGE_BYTES = 90 * 1024
WWW_BYTES = 300 * 1024  # of a wheel
QUEUES = 20_000

Script = Callable[..., dict[str, str]]


def digest(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


# -- the files ------------------------------------------------------------------------------------------------------


def test_vendored_files_are_those_of_the_list() -> None:
    found = {str(file.relative_to(WWW / "vendor")): digest(file) for file in (WWW / "vendor").rglob("*") if file.is_file()}
    assert found == {name: entry["sha256"] for name, entry in VENDORED.items()}


def test_vendored_files_are_those_of_npm(modules: Path) -> None:
    assert {name: digest(modules / entry["npm"]) for name, entry in VENDORED.items()} == {
        name: entry["sha256"] for name, entry in VENDORED.items()
    }


def test_no_module_evaluates_text_or_makes_elements_of_it() -> None:
    forbidden = re.compile(r"(inner|outer|insertAdjacent|SetInner)HTML|document\.write|\beval\(|new Function")
    assert [str(file) for file in (WWW / "js").rglob("*.js") if forbidden.search(file.read_text())] == []


def test_a_wheel_does_not_grow_by_more_than_its_budget() -> None:
    assert sum(len(gzip.compress(file.read_bytes())) for file in WWW.rglob("*") if file.is_file()) < WWW_BYTES


def test_the_first_page_is_small(ui_broker: BrokerProcess) -> None:
    """What the login and then the overview are made of, as it is sent."""
    size = 0
    todo, done = ["index.html"], set()
    modules = {"preact": "vendor/preact.mjs", "preact/hooks": "vendor/hooks.mjs", "@preact/signals": "vendor/signals.mjs",
               "@preact/signals-core": "vendor/signals-core.mjs", "htm": "vendor/htm.mjs"}
    todo += ["css/app.css", "js/main.js", "js/pages/overview.js", "favicon.svg"]
    todo += ["vendor/uPlot.iife.min.js", "vendor/uPlot.min.css"]
    while todo:
        name = todo.pop()
        if name in done:
            continue
        done.add(name)
        connection = http.client.HTTPConnection(ui_broker.management, timeout=30)
        connection.request("GET", f"/{name}", headers={"Accept-Encoding": "gzip"})
        answer = connection.getresponse()
        body = answer.read()
        connection.close()
        assert answer.status == 200, name
        size += len(body)
        if name.startswith("js/"):
            text = (WWW / name).read_text()
            for target in re.findall(r'^import [^;]*?"([^"]+)";|^import "([^"]+)";', text, re.MULTILINE):
                given = "".join(target)
                path = modules.get(given) or str(((WWW / name).parent / given).resolve().relative_to(WWW))
                todo.append(path)
    assert size < FIRST_PAGE_BYTES, size
    assert len(done) > 20


def test_the_site_is_sent_with_a_strict_policy(ui_broker: BrokerProcess) -> None:
    connection = http.client.HTTPConnection(ui_broker.management, timeout=30)
    connection.request("GET", "/")
    answer = connection.getresponse()
    page = answer.read().decode()
    connection.close()
    policy = answer.headers["content-security-policy"]
    assert "unsafe" not in policy
    assert "default-src 'self'" in policy
    assert len(re.findall(r"<script(?![^>]* src=)", page)) == 1  # the import map
    assert not re.search(r"<style|style=|\son\w+=", page)


# -- what needs no browser ------------------------------------------------------------------------------------------


def test_decoders_filters_and_formats() -> None:
    require_tools("node")
    verdict = verdicts(run_client(["node", str(HERE / "unit.mjs")], {"UI_TEST": json.dumps({"www": str(WWW)})}))
    assert bad(verdict) == {}
    assert len(verdict) >= 18


# -- in the browser -------------------------------------------------------------------------------------------------


@pytest.fixture
def many_queues(own_broker: Callable[..., BrokerProcess]) -> BrokerProcess:
    broker = own_broker()
    queues: list[dict[str, Any]] = [
        {"vhost": "/", "name": f"tenant-{number:05d}", "durable": False, "auto_delete": False, "arguments": {}}
        for number in range(QUEUES)
    ]
    reply = Http(broker.management)("POST", "definitions", {"queues": queues})
    assert reply.status < 300, reply.body
    return broker


def test_twenty_thousand_queues(run_script: Script, many_queues: BrokerProcess) -> None:
    verdict = run_script("table.mjs", many_queues, queues=QUEUES)
    assert bad(verdict) == {}
    assert len(verdict) == 8
