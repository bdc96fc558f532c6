"""RabbitMQ 3.10.8 and a daemon with several workers answer alike: the recorded requests, asked of the gateway."""

from __future__ import annotations

from pathlib import Path

import pytest

from management import test_recorded as recorded
from workers.daemon_process import PlainProcess

pytestmark = pytest.mark.own


def test_all_answers_have_what_rabbitmqs_have(tmp_path: Path) -> None:
    config = {"collect_statistics_interval": 500, "management.cors.allow_origins": [recorded.ORIGIN]}
    daemon = PlainProcess(tmp_path, config, workers=1, args=["--metrics-listen", ""]).start()
    try:
        recorded.check_answers(daemon, recorded.DIFFERS)
    finally:
        daemon.stop()
