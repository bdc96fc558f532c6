"""The pages of the management UI, in Chromium: all of them, and all that can be done on them."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from external import require_tools, run_client, verdicts

from broker_process import BrokerProcess
from rabbitpy_broker.management import www_path

pytestmark = [pytest.mark.own, pytest.mark.timeout(900)]  # the first run installs

Script = Callable[..., dict[str, str]]


def bad(verdict: dict[str, str]) -> dict[str, str]:
    return {case: outcome for case, outcome in verdict.items() if outcome != "ok"}


def test_every_page_in_both_themes_at_both_widths(run_script: Script, ui_broker: BrokerProcess) -> None:
    verdict = run_script("pages.mjs", ui_broker)
    assert bad(verdict) == {}
    assert len(verdict) >= 36
