"""The recipes in docs/examples pass, as somebody who copies them would run them, and against a broker elsewhere too.

RABBITPY_TEST_URL and RABBITPY_TEST_MANAGEMENT_URL name one, such as RabbitMQ; without them it is a daemon of ours.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from broker_process import BrokerAddress, BrokerProcess

EXAMPLES = Path(__file__).parent.parent.parent / "docs" / "examples"
RECIPES = ("aio_pika", "celery", "django", "faststream", "pika")


def start(recipe: str, *arguments: str) -> subprocess.Popen[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
    return subprocess.Popen(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments],
        cwd=EXAMPLES / f"testing_{recipe}",
        env={**environment, "PYTHONDONTWRITEBYTECODE": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def outcome(process: subprocess.Popen[str]) -> str:
    said, _ = process.communicate(timeout=120)
    assert process.returncode == 0, said
    return said


def test_every_recipe_is_run():
    assert sorted(folder.name for folder in EXAMPLES.glob("testing_*")) == [f"testing_{recipe}" for recipe in RECIPES]


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_recipe_in_memory(recipe: str):
    said = outcome(start(recipe))
    assert re.search(r"\d+ passed", said), said
    assert "skipped" not in said


def test_the_recipes_on_a_broker_elsewhere(shared_broker: BrokerAddress, own_broker: Callable[..., BrokerProcess]):
    if isinstance(shared_broker, BrokerProcess):
        elsewhere = own_broker()
        url, management = elsewhere.url, f"http://guest:guest@{elsewhere.management}"
    else:
        url, management = shared_broker.url, os.environ["RABBITPY_TEST_MANAGEMENT_URL"]
    running = [start(recipe, "--amqp-url", url, "--amqp-management-url", management) for recipe in RECIPES]
    for process in running:
        assert re.search(r"\d+ passed", outcome(process))
