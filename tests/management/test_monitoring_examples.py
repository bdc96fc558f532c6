"""The examples in docs/monitoring.md: dashboards and rules ask for metrics that there are, files are what they say they are."""

from __future__ import annotations

import json
import re
import tomllib
import urllib.request
from pathlib import Path

import pytest
import yaml

from broker_process import BrokerProcess

pytestmark = pytest.mark.own

EXAMPLES = Path(__file__).parent.parent.parent / "docs" / "examples" / "monitoring"
METRIC = re.compile(r"\b(?:rabbitmq|rabbitpy|process)_[a-z_]+\b")


def exported(broker: BrokerProcess) -> set[str]:
    """The names of all series of a scrape."""
    with urllib.request.urlopen(f"http://{broker.metrics}/metrics") as answer:
        lines = answer.read().decode().splitlines()
    return {re.split(r"[{ ]", line)[0] for line in lines if line and not line.startswith("#")}


def test_the_dashboard_asks_for_what_is_scraped(broker: BrokerProcess) -> None:
    dashboard = json.loads((EXAMPLES / "grafana-dashboard.json").read_text())
    queries = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    queries += [one["query"] for one in dashboard["templating"]["list"]]
    asked = {name for query in queries for name in METRIC.findall(query)}
    assert len(asked) > 30
    assert asked - exported(broker) == set()
    assert len({panel["id"] for panel in dashboard["panels"]}) == len(dashboard["panels"])
    for panel in dashboard["panels"]:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
        assert all(target["expr"].count("(") == target["expr"].count(")") for target in panel["targets"])


def test_the_rules_ask_for_what_is_scraped(broker: BrokerProcess) -> None:
    groups = yaml.safe_load((EXAMPLES / "prometheus-rules.yml").read_text())["groups"]
    rules = [rule for group in groups for rule in group["rules"]]
    assert all(rule["alert"] and rule["annotations"]["summary"] for rule in rules)
    assert {name for rule in rules for name in METRIC.findall(rule["expr"])} - exported(broker) == set()


def test_the_other_examples_are_what_their_readers_read() -> None:
    assert tomllib.loads((EXAMPLES / "telegraf.conf").read_text())["inputs"]["rabbitmq"][0]["url"]
    assert yaml.safe_load((EXAMPLES / "datadog.yaml").read_text())["instances"][0]["rabbitmq_api_url"].endswith("/api/")
    authentication, scaled = yaml.safe_load_all((EXAMPLES / "keda.yaml").read_text())
    assert scaled["spec"]["triggers"][0]["metadata"]["protocol"] == "http"
    assert scaled["spec"]["triggers"][0]["authenticationRef"]["name"] == authentication["metadata"]["name"]
    terraform = (EXAMPLES / "broker.tf").read_text()
    assert terraform.count("{") == terraform.count("}")
