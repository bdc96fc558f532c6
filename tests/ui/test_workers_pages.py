"""The management UI of a daemon with several workers, in Chromium."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ui.conftest import bad
from ui.world import fill
from workers.daemon_process import WorkersProcess

pytestmark = [pytest.mark.own, pytest.mark.timeout(900)]  # the first run installs

Script = Callable[..., dict[str, str]]


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[WorkersProcess]:
    process = WorkersProcess(tmp_path)
    process.start()
    try:
        with fill(process):
            yield process
    finally:
        process.stop()


def test_all_pages_are_of_all_workers(run_script: Script, daemon: WorkersProcess) -> None:
    verdict = run_script("workers.mjs", daemon)
    assert bad(verdict) == {}
    assert len(verdict) == 10
