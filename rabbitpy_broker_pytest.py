"""The pytest plugin: a broker for a test suite, and a vhost for each test.

    amqp_broker      the broker, for the whole run (each worker of xdist has its own); or the one that --amqp-url names
    amqp_vhost       the name of a vhost that is made for this test, and dropped after it
    amqp_url         the URL of this vhost
    amqp_settings    of the broker; a conftest.py may replace it

The report of a test that failed with one of these says what is left in its queues, and which consumers hold what.

It stands outside the package, since pytest imports it before anything else: while no test asks for a fixture, nothing of the
broker is imported, and nothing is done.
"""

from __future__ import annotations

import uuid
from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING, Any, Final

import pytest

if TYPE_CHECKING:
    from rabbitpy_broker.testing.broker import Broker
    from rabbitpy_broker.testing.external import ExternalBroker

USED: Final = pytest.StashKey[tuple[Any, str]]()  # broker and vhost of a test


def pytest_addoption(parser: pytest.Parser) -> None:
    """The options of a broker that runs elsewhere."""
    group = parser.getgroup("amqp", "AMQP broker")
    group.addoption("--amqp-url", default="", help="run against this broker instead of one in this process")
    group.addoption(
        "--amqp-management-url",
        default="",
        help="its management API, which makes a vhost for each test (default: port 15672 of the same host)",
    )


@pytest.fixture(scope="session")
def amqp_settings() -> dict[str, object]:
    """Settings of the broker, as in rabbitpy.toml; to be replaced by a fixture of the same name."""
    return {}


@pytest.fixture(scope="session")
def amqp_broker(
    request: pytest.FixtureRequest, amqp_settings: dict[str, object]
) -> Iterator[Broker | ExternalBroker]:
    """The broker of this run; see docs/testing.md."""
    url = request.config.getoption("--amqp-url")
    if url:
        from rabbitpy_broker.testing.external import ExternalBroker

        yield ExternalBroker(url, request.config.getoption("--amqp-management-url"))
        return
    from rabbitpy_broker.testing.broker import Broker

    with Broker(settings=amqp_settings) as broker:
        yield broker


@pytest.fixture
def amqp_vhost(request: pytest.FixtureRequest, amqp_broker: Broker | ExternalBroker) -> Iterator[str]:
    """The name of a vhost of this test's own. Assertions and views of `amqp_broker` mean it while the test runs."""
    name = f"test-{uuid.uuid4().hex[:12]}"
    amqp_broker.add_vhost(name)
    before, amqp_broker.vhost = amqp_broker.vhost, name
    request.node.stash[USED] = (amqp_broker, name)
    yield name
    amqp_broker.vhost = before
    if not request.config.getoption("--amqp-url"):
        _recover(amqp_broker)
    amqp_broker.delete_vhost(name)


@pytest.fixture
def amqp_url(amqp_broker: Broker | ExternalBroker, amqp_vhost: str) -> str:
    """The URL of this test's vhost."""
    return amqp_broker.url_of(amqp_vhost)


def _recover(broker: Any) -> None:
    """What one test has done to the broker is not the next one's trouble."""
    broker.start_again()
    broker.trouble.end_all()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Says what is left in the queues of a test that failed."""
    report = yield
    if report.failed and report.when == "call" and USED in item.stash:
        broker, vhost = item.stash[USED]
        report.sections.append((f"AMQP vhost {vhost}", _left(broker, vhost)))
    return report


def _left(broker: Any, vhost: str) -> str:
    try:
        text: str = broker.report(vhost)
    except Exception as error:  # noqa: BLE001 -- the report of the test itself is worth more
        return f"nothing is known: {error}"
    return text
