"""Policies: which one applies, what two of them make together, what a definition may hold, and that they are kept."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from rabbitpy_broker.definitions import Definitions
from rabbitpy_broker.errors import StartError
from rabbitpy_broker.policies import Policies, Policy, PolicyError


@pytest.fixture
def definitions() -> Iterator[Definitions]:
    opened = Definitions(None)
    yield opened
    opened.close()


@pytest.fixture
def policies(definitions: Definitions) -> Policies:
    return Policies(definitions, "/")


def name_of(policy: Policy | None) -> str | None:
    return None if policy is None else policy.name


def for_queue(policies: Policies, name: str) -> tuple[str | None, str | None]:
    policy, operator_policy = policies.for_queue(name)
    return name_of(policy), name_of(operator_policy)


# -- which one applies ------------------------------------------------------------------------------------------------


def test_without_policies_nothing_applies(policies: Policies) -> None:
    assert policies.for_queue("q") == (None, None)
    assert policies.for_exchange("x") is None
    assert policies.effective("q") == {}


def test_the_highest_priority_applies_whole(policies: Policies) -> None:
    policies.set("low", ".*", "all", -1, {"message-ttl": 1, "max-length": 1})
    policies.set("high", "^q", "all", 1, {"message-ttl": 2})
    assert for_queue(policies, "q1") == ("high", None)
    assert policies.effective("q1") == {"message-ttl": 2}
    assert for_queue(policies, "other") == ("low", None)


def test_among_equals_the_first_by_name_applies(policies: Policies) -> None:
    for name in ("z", "a", "m"):
        policies.set(name, ".*", "all", 5, {"message-ttl": 1})
    assert for_queue(policies, "q") == ("a", None)
    policies.clear("a")
    assert for_queue(policies, "q") == ("m", None)


def test_a_pattern_is_searched_anywhere_and_the_empty_one_is_everywhere(policies: Policies) -> None:
    policies.set("empty", "", "all", 0, {"message-ttl": 1})
    policies.set("inside", "bc", "all", 1, {"message-ttl": 1})
    policies.set("whole", "^bc$", "all", 2, {"message-ttl": 1})
    assert [for_queue(policies, name)[0] for name in ("", "a", "abcd", "bc")] == ["empty", "empty", "inside", "whole"]


def test_apply_to_tells_queues_from_exchanges(policies: Policies) -> None:
    policies.set("queues", ".*", "queues", 2, {"message-ttl": 1})
    policies.set("exchanges", ".*", "exchanges", 3, {"alternate-exchange": "x"})
    policies.set("all", ".*", "all", 1, {"message-ttl": 1})
    assert for_queue(policies, "n") == ("queues", None)
    assert name_of(policies.for_exchange("n")) == "exchanges"
    policies.clear("queues")
    policies.clear("exchanges")
    assert for_queue(policies, "n") == ("all", None)
    assert name_of(policies.for_exchange("n")) == "all"


def test_operator_policies_are_chosen_for_themselves_and_for_queues_only(policies: Policies) -> None:
    policies.set("p", "^a", "all", 1, {"message-ttl": 1})
    policies.set_operator("o", "b$", "all", 0, {"message-ttl": 1})
    policies.set_operator("x", ".*", "exchanges", 9, {"message-ttl": 1})
    assert for_queue(policies, "a") == ("p", None)
    assert for_queue(policies, "b") == (None, "o")
    assert for_queue(policies, "ab") == ("p", "o")
    assert policies.for_exchange("b") is None


@pytest.mark.parametrize(
    "key, value",
    [
        ("max-age", "7D"),
        ("stream-max-segment-size-bytes", 1000),
        ("initial-cluster-size", 3),
        ("queue-leader-locator", "balanced"),
    ],
)
def test_a_policy_for_streams_applies_to_no_queue(policies: Policies, key: str, value: object) -> None:
    policies.set("stream", ".*", "all", 9, {"message-ttl": 1, key: value})
    policies.set("other", ".*", "all", 1, {"message-ttl": 2})
    assert for_queue(policies, "q") == ("other", None)
    assert name_of(policies.for_exchange("x")) == "stream"


# -- what two make together -------------------------------------------------------------------------------------------


def test_of_two_numbers_the_smaller_counts_and_other_keys_stay(policies: Policies) -> None:
    policies.set("p", ".*", "all", 0, {"message-ttl": 100, "max-length": 10, "overflow": "reject-publish"})
    policies.set_operator("o", ".*", "all", 0, {"message-ttl": 50, "max-length": 20, "expires": 1000})
    merged = {"message-ttl": 50, "max-length": 10, "overflow": "reject-publish", "expires": 1000}
    assert policies.effective("q") == merged
    policy, operator_policy = policies.for_queue("q")
    assert policy is not None
    assert operator_policy is not None
    assert policy.definition["message-ttl"] == 100
    assert operator_policy.definition["max-length"] == 20
    policies.clear("p")
    assert policies.effective("q") == {"message-ttl": 50, "max-length": 20, "expires": 1000}
    policies.clear_operator("o")
    assert policies.effective("q") == {}


# -- what is refused --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "definition, text",
    [
        ({}, "no policy provided"),
        ({"nope": 1}, '[{<<"nope">>,1}] are not recognised policy settings'),
        (
            {"message-ttl": -1, "zip": "x", "nope": [1, None]},
            '[{<<"nope">>,[1,null]},{<<"zip">>,<<"x">>}] are not recognised policy settings',
        ),
        ({"max-priority": 3}, '[{<<"max-priority">>,3}] are not recognised policy settings'),
        ({"message-ttl": "x"}, '<<"x">> is not a valid message TTL'),
        ({"message-ttl": -1}, "-1 is not a valid message TTL"),
        ({"message-ttl": 1.5}, "1.5 is not a valid message TTL"),
        ({"message-ttl": True}, "true is not a valid message TTL"),
        ({"message-ttl": {"a": 1}}, '#{<<"a">> => 1} is not a valid message TTL'),
        ({"message-ttl": 'a"b'}, '<<"a\\"b">> is not a valid message TTL'),
        ({"message-ttl": ""}, "<<>> is not a valid message TTL"),
        ({"message-ttl": "x", "expires": "y"}, '<<"y">> is not a valid queue expiry'),
        ({"expires": 0}, "0 is not a valid queue expiry"),
        ({"max-length": -1}, "-1 is not a valid maximum length"),
        ({"max-length-bytes": False}, "false is not a valid maximum length in bytes"),
        ({"max-in-memory-length": -1}, "-1 is not a valid maximum memory in bytes"),
        ({"max-in-memory-bytes": -1}, "-1 is not a valid maximum memory in bytes"),
        ({"overflow": "x"}, '<<"x">> is not a valid overflow value'),
        ({"queue-mode": 1}, "1 is not a valid queue-mode value"),
        ({"queue-version": 3}, "3 is not a valid queue-version value"),
        ({"queue-version": "2"}, '<<"2">> is not a valid queue-version value'),
        ({"queue-version": True}, "true is not a valid queue-version value"),
        ({"dead-letter-exchange": 1}, "1 is not a valid dead letter exchange name"),
        ({"dead-letter-routing-key": 1}, "1 is not a valid dead letter routing key"),
        ({"dead-letter-strategy": "x"}, '<<"x">> is not a valid dead letter strategy'),
        ({"delivery-limit": "x"}, '<<"x">> is not a valid delivery limit'),
        ({"alternate-exchange": 1}, "1 is not a valid alternate exchange name"),
        ({"max-age": "5Z"}, '<<"5Z">> is not a valid max age'),
        ({"queue-leader-locator": "x"}, '<<"x">> is not a valid queue leader locator value'),
        ({"stream-max-segment-size-bytes": "x"}, '<<"x">> is not a valid segment size'),
        (
            {"confirm-mode": "x"},
            '<<"x">> is not a valid confirm-mode value, expected persist or consumer-ack or consumer-ack-light',
        ),
    ],
)
def test_a_bad_definition_is_refused(policies: Policies, definition: dict[str, object], text: str) -> None:
    with pytest.raises(PolicyError) as caught:
        policies.set("p", ".*", "all", 0, definition)
    assert str(caught.value) == f"Validation failed\n\n{text}"
    assert policies.all() == []


@pytest.mark.parametrize(
    "definition",
    [
        {"message-ttl": 0},
        {"message-ttl": 100_000_000_000_000},
        {"expires": 1},
        {"max-length": 0, "max-length-bytes": 0},
        {"overflow": "reject-publish-dlx"},
        {"queue-mode": "lazy", "queue-version": 2},
        {"dead-letter-exchange": "", "dead-letter-routing-key": "k", "dead-letter-strategy": "at-least-once"},
        {"delivery-limit": 0},
        {"confirm-mode": "persist"},
        {"confirm-mode": "consumer-ack"},
        {"confirm-mode": "consumer-ack-light"},
        {"ha-mode": "exactly", "ha-params": 2, "ha-sync-mode": "automatic", "queue-master-locator": "min-masters"},
    ],
)
def test_a_good_definition_applies(policies: Policies, definition: dict[str, object]) -> None:
    policies.set("p", ".*", "all", 0, definition)
    assert policies.effective("q") == definition


@pytest.mark.parametrize("key", ["expires", "message-ttl", "max-length", "max-length-bytes", "delivery-limit"])
def test_an_operator_policy_takes_a_number(policies: Policies, key: str) -> None:
    policies.set_operator("o", ".*", "all", 0, {key: 5})
    assert policies.effective("q") == {key: 5}


@pytest.mark.parametrize(
    "key, value", [("overflow", "drop-head"), ("dead-letter-exchange", "x"), ("queue-mode", "lazy"), ("ha-mode", "all")]
)
def test_an_operator_policy_takes_nothing_else(policies: Policies, key: str, value: str) -> None:
    with pytest.raises(PolicyError) as caught:
        policies.set_operator("o", ".*", "all", 0, {key: value})
    text = f'[{{<<"{key}">>,<<"{value}">>}}] are not recognised policy settings'
    assert str(caught.value) == f"Validation failed\n\n{text}"


def test_a_bad_pattern_apply_to_or_priority_is_refused(policies: Policies) -> None:
    refused = "Validation failed\n\npattern should be regular expression but is invalid: "
    with pytest.raises(PolicyError) as caught:
        policies.set("p", "*a", "all", 0, {"message-ttl": 1})
    assert str(caught.value) == refused + '{"nothing to repeat",0}'
    with pytest.raises(PolicyError) as caught:
        policies.set("p", "a", "some_queues", 0, {"message-ttl": 1})
    assert str(caught.value).endswith("apply-to 'some_queues' unrecognised; should be 'queues', 'exchanges' or 'all'")
    with pytest.raises(PolicyError, match="priority should be a number"):
        policies.set("p", "a", "all", 1 << 63, {"message-ttl": 1})
    assert policies.all() == []


def test_clearing_what_is_not_there_is_refused(policies: Policies) -> None:
    policies.set("p", ".*", "all", 0, {"message-ttl": 1})
    policies.set_operator("o", ".*", "all", 0, {"message-ttl": 1})
    for clear, name in ((policies.clear, "o"), (policies.clear_operator, "p")):
        with pytest.raises(PolicyError, match=r"^Parameter does not exist$"):
            clear(name)


# -- changes ----------------------------------------------------------------------------------------------------------


def test_a_policy_held_by_somebody_stays_what_it_was(policies: Policies) -> None:
    policies.set("p", "a", "all", 0, {"message-ttl": 1})
    held = policies.all()[0]
    policies.set("p", "b", "queues", 1, {"message-ttl": 2})
    assert (held.pattern, held.apply_to, held.priority, held.definition) == ("a", "all", 0, {"message-ttl": 1})
    assert [(policy.name, policy.pattern) for policy in policies.all()] == [("p", "b")]


def test_policies_come_back(tmp_path: Path) -> None:
    definitions = Definitions(tmp_path / "definitions.sqlite")
    policies = Policies(definitions, "/")
    policies.set("same", "^a", "queues", -3, {"dead-letter-exchange": "ü", "max-length": 5})
    policies.set("gone", "^a", "queues", 7, {"max-length": 1})
    policies.set_operator("same", "", "all", 1 << 62, {"max-length": 9, "expires": 1 << 62})
    policies.clear("gone")
    Policies(definitions, "other").set("other", "", "all", 0, {"max-length": 1})
    definitions.close()
    definitions = Definitions(tmp_path / "definitions.sqlite")
    policies = Policies(definitions, "/")
    found = [
        (one.operator, one.name, one.pattern, one.apply_to, one.priority, one.definition)
        for one in policies.all() + policies.all_operator()
    ]
    assert found == [
        (False, "same", "^a", "queues", -3, {"dead-letter-exchange": "ü", "max-length": 5}),
        (True, "same", "", "all", 1 << 62, {"max-length": 9, "expires": 1 << 62}),
    ]
    assert policies.effective("a") == {"dead-letter-exchange": "ü", "max-length": 5, "expires": 1 << 62}
    definitions.close()


def test_a_pattern_in_the_file_that_cannot_be_used_stops_the_start(definitions: Definitions) -> None:
    definitions.put_policy("/", False, "p", "(", "all", 0, '{"message-ttl":1}')
    with pytest.raises(StartError, match="policy 'p' of vhost '/': Validation failed"):
        Policies(definitions, "/")
