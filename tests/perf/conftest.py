"""The tools are run from the checkout and are not part of the package that is installed."""

from __future__ import annotations

import os

import pytest

from broker_process import BrokerAddress


@pytest.fixture
def url(broker: BrokerAddress) -> str:
    return broker.url


@pytest.fixture(scope="session", autouse=True)
def tool_cache(tmp_path_factory: pytest.TempPathFactory):
    """The tools keep nothing outside the tests' own folders."""
    before = os.environ.get("PERF_CACHE_DIR")
    os.environ["PERF_CACHE_DIR"] = str(tmp_path_factory.mktemp("perf-cache"))
    yield
    if before is None:
        del os.environ["PERF_CACHE_DIR"]
    else:
        os.environ["PERF_CACHE_DIR"] = before
