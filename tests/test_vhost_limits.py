"""The limits of a vhost: what may be set, and that it is kept."""

from __future__ import annotations

from pathlib import Path

import pytest

from rabbitpy_broker.definitions import Definitions
from rabbitpy_broker.limits import LimitError, VHostLimits


def test_limits_are_replaced_as_a_whole() -> None:
    definitions = Definitions(None)
    limits = VHostLimits(definitions, "/")
    assert (limits.max_connections, limits.max_queues, limits.given) == (-1, None, {})
    limits.set({"max-connections": 3})
    limits.set({"max-queues": -1})
    assert (limits.max_connections, limits.max_queues, limits.given) == (-1, -1, {"max-queues": -1})
    limits.clear()
    limits.clear()
    assert (limits.max_connections, limits.max_queues, limits.given) == (-1, None, {})
    assert definitions.vhost_limits("/") == "{}"
    definitions.close()


@pytest.mark.parametrize(
    "given, text",
    [
        ({"max-channels": 1}, 'Unrecognised terms [{<<"max-channels">>,1}] in limits'),
        ({"max-queues": "x"}, 'max-queues should be a number, actually was <<"x">>'),
        ({"max-queues": 1.5}, "max-queues should be a number, actually was 1.5"),
        ({"max-queues": True}, "max-queues should be a number, actually was true"),
    ],
)
def test_a_bad_limit_is_refused_and_changes_nothing(given: dict[str, object], text: str) -> None:
    definitions = Definitions(None)
    limits = VHostLimits(definitions, "/")
    limits.set({"max-queues": 5})
    with pytest.raises(LimitError) as caught:
        limits.set({"max-connections": 1, **given})
    assert str(caught.value) == f"Validation failed\n\n{text}"
    assert limits.given == {"max-queues": 5}
    definitions.close()


def test_limits_come_back(tmp_path: Path) -> None:
    definitions = Definitions(tmp_path / "definitions.sqlite")
    VHostLimits(definitions, "/").set({"max-connections": 3, "max-queues": 0})
    definitions.close()
    definitions = Definitions(tmp_path / "definitions.sqlite")
    limits = VHostLimits(definitions, "/")
    assert (limits.max_connections, limits.max_queues) == (3, 0)
    assert VHostLimits(definitions, "other").given == {}
    definitions.close()
