"""The pages of the management UI, in Chromium: all of them, and all that can be done on them."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from broker_process import BrokerProcess
from ui.conftest import bad
from ui.world import fill

pytestmark = [pytest.mark.own, pytest.mark.timeout(900)]  # the first run installs

Script = Callable[..., dict[str, str]]


def test_every_page_in_both_themes_at_both_widths(run_script: Script, ui_broker: BrokerProcess) -> None:
    verdict = run_script("pages.mjs", ui_broker)
    assert bad(verdict) == {}
    assert len(verdict) >= 36


def test_everything_that_can_be_done(run_script: Script, ui_broker: BrokerProcess) -> None:
    verdict = run_script("actions.mjs", ui_broker)
    assert bad(verdict) == {}
    assert len(verdict) >= 30


def test_messages_are_looked_at_searched_and_moved(run_script: Script, ui_broker: BrokerProcess) -> None:
    verdict = run_script("messages.mjs", ui_broker)
    assert bad(verdict) == {}
    assert len(verdict) >= 12


def test_several_tabs_and_a_stream_that_is_cut(run_script: Script, ui_broker: BrokerProcess) -> None:
    verdict = run_script("tabs.mjs", ui_broker)
    assert bad(verdict) == {}
    assert len(verdict) == 8


def test_a_read_only_broker_below_a_prefix(run_script: Script, own_broker: Callable[..., BrokerProcess]) -> None:
    broker = own_broker()
    with fill(broker):
        pass
    broker.config = {"management": {"read_only": True, "path_prefix": "/mq"}}
    broker.restart()
    verdict = run_script("readonly.mjs", broker, base=f"http://{broker.management}/mq/")
    assert bad(verdict) == {}
    assert len(verdict) == 3


def test_a_broker_without_rates(run_script: Script, own_broker: Callable[..., BrokerProcess]) -> None:
    broker = own_broker({"management": {"rates_mode": "none"}})
    with fill(broker):
        verdict = run_script("rates.mjs", broker)
    assert bad(verdict) == {}
    assert len(verdict) == 5
