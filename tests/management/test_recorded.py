"""RabbitMQ 3.10.8 and this broker answer alike: eleven hundred requests, whose answers by RabbitMQ were recorded."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from broker_process import BrokerProcess
from management.compare import differences
from management.scenario import Api, Call, run
from support import eventually

pytestmark = pytest.mark.own

RECORDED = Path(__file__).with_name("rabbitmq-3.10.8.json")
ORIGIN = "https://allowed.example"  # as when RabbitMQ was asked

DIFFERS = {
    "GET /queues/one/none/bindings": "RabbitMQ makes up the default binding of a queue that is not there",
    "GET /parameters": "RabbitMQ keeps an empty parameter behind the last limit",
    "GET /parameters/vhost-limits": "the same",
    'PUT /parameters/vhost-limits/one/limits {"value": {"max-queues": 1000}}': "the same",
    "GET /feature-flags as manager": "every user may see them, as in RabbitMQ 4: clients ask at their start",
    "GET /feature-flags as maker": "the same",
    "GET /feature-flags as monitor": "the same",
    "GET /feature-flags as stranger": "the same",
}


def recorded() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(RECORDED.read_text())
    return found


def test_all_answers_have_what_rabbitmqs_have(own_broker: Callable[..., BrokerProcess]) -> None:
    config = {
        "collect_statistics_interval": 500,
        "management.cors.allow_origins": [ORIGIN],
        "metrics_listen": "",
    }
    check_answers(own_broker(config, args=["--metrics-listen", ""]), DIFFERS)


def check_answers(broker: BrokerProcess, differs: dict[str, str]) -> None:
    """Asks for everything that RabbitMQ was asked for. Those that differ on purpose have their reason in `differs`."""
    api = Api(f"http://{broker.management}")

    def settled() -> None:
        """Two looks have found nothing new: rates are 0, and everything has been idle."""

        def is_idle(path: str) -> bool:
            return all("idle_since" in one for one in json.loads(api.send(Call("GET", path)).body))

        eventually(lambda: is_idle("/queues") and is_idle("/channels"), timeout=30)

    ours = run(f"http://{broker.management}", f"{broker.host}:{broker.port}", settled)
    theirs = recorded()
    assert [one["request"] for one in ours] == [one["request"] for one in theirs]
    unlike = {
        one["request"]: found for one, other in zip(ours, theirs, strict=True) if (found := differences(other, one))
    }
    assert {name: found for name, found in unlike.items() if name not in differs} == {}
    assert set(unlike) == set(differs), "what no longer differs stands in DIFFERS"


def test_the_recording_has_no_texts() -> None:
    """Of RabbitMQ's answers only facts are kept: statuses, names of keys and their types."""
    kinds = {"text", "number", "bool", "null", "no JSON", "object", "list"}

    def leaves(value: Any) -> set[str]:
        if isinstance(value, dict):
            return set().union(*map(leaves, value.values())) if value else set()
        if isinstance(value, list):
            return set().union(*map(leaves, value)) if value else set()
        return set(value.split("|"))

    for one in recorded():
        assert leaves(one.get("body", {})) <= kinds, one["request"]
