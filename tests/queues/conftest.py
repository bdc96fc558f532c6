"""A broker without sockets, and a client of it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from sans_io import SansIOBroker
from small_client import SmallClient


@pytest.fixture
def broker() -> Iterator[SansIOBroker]:
    made = SansIOBroker(recording=True)
    yield made
    made.audit()
    made.close()


@pytest.fixture
def client(broker: SansIOBroker) -> SmallClient:
    return SmallClient(broker)
