"""A broker without sockets."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from sans_io import SansIOBroker


@pytest.fixture
def broker() -> Iterator[SansIOBroker]:
    made = SansIOBroker(recording=True)
    yield made
    made.audit()
    made.close()
