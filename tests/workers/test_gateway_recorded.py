"""RabbitMQ 3.10.8 and a daemon with several workers answer alike: the recorded requests, asked of the gateway."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from management import test_recorded as recorded
from management import test_session as session
from workers.daemon_process import WorkersProcess

pytestmark = pytest.mark.own


@pytest.fixture
def fresh(tmp_path: Path) -> Iterator[WorkersProcess]:
    config = {"collect_statistics_interval": 500, "management.cors.allow_origins": [recorded.ORIGIN]}
    daemon = WorkersProcess(tmp_path, config, args=["--metrics-listen", ""])
    daemon.start()
    yield daemon
    daemon.stop()


def test_all_answers_have_what_rabbitmqs_have(fresh: WorkersProcess) -> None:
    recorded.check_answers(fresh, recorded.DIFFERS)


def test_no_write_of_any_route_is_done_for_another_site(fresh: WorkersProcess) -> None:
    session.test_no_write_of_any_route_is_done_for_another_site(fresh.http)


def test_a_session_ends_with_its_password_and_by_logging_out(fresh: WorkersProcess) -> None:
    session.test_a_browser_logs_in_writes_and_logs_out(fresh.http)
    session.test_a_session_ends_with_its_password(fresh.http)
    session.test_who_may_not_use_the_api_gets_no_session(fresh.http)
