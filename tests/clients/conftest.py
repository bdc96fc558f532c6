"""Fixtures of the tests with other people's clients."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # the helpers beside this file, under every import mode of pytest

from cutting_proxy import CuttingProxy

from broker_process import BrokerAddress


@pytest.fixture
def proxy(broker: BrokerAddress) -> Iterator[CuttingProxy]:
    """The broker under test behind a relay whose connections can be cut."""
    with CuttingProxy(broker) as relay:
        yield relay
