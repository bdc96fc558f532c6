"""Fixtures of the tests with other people's clients."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # the helpers beside this file, under every import mode of pytest

from celery_worker import Worker, clean_up
from cutting_proxy import CuttingProxy

from broker_process import BrokerAddress


@pytest.fixture
def proxy(broker: BrokerAddress) -> Iterator[CuttingProxy]:
    """The broker under test behind a relay whose connections can be cut."""
    with CuttingProxy(broker) as relay:
        yield relay


@pytest.fixture
def new_worker(broker: BrokerAddress, tmp_path: Path) -> Iterator[Callable[..., Worker]]:
    """Workers of the test's own, not started yet; stopped and cleaned up after it."""
    workers: list[Worker] = []

    def make(**settings: Any) -> Worker:
        workers.append(Worker(settings.pop("broker_url", broker.url), tmp_path, **settings))
        return workers[-1]

    with contextlib.ExitStack() as stack:
        yield make
        for each in workers:
            stack.callback(clean_up, broker, each.prefix)
            stack.callback(each.app.close)
            stack.callback(each.stop)
