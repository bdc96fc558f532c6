"""Topic: RabbitMQ's word splitting and wildcards, and what the trie costs."""

from __future__ import annotations

import pytest

from rabbitpy_broker.destination import QUEUE, Destination
from rabbitpy_broker.routing.topic import Node, TopicExchange
from rabbitpy_broker.wire.field_table import FieldTable, field_table

NONE = FieldTable()

# For each routing key, those of BINDING_KEYS that match it in RabbitMQ 3.10.8.
BINDING_KEYS = [
    "", ".", "..", "#", "*", "#.#", "*.#", "#.*", "a", "a.", ".a", "a.#", "#.a", "*.*", "a.*", "a.*.#", "a..b", "a.*.b",
    "a.#.b", "#.#.#", "a*", "a#", "#.a.#", "*.#.*", ".#", "#.",
]  # fmt: skip
SEEN_IN_RABBITMQ = {
    "": ["", "#", "#.#", "#.#.#"],
    ".": [".", "#", "#.#", "*.#", "#.*", "*.*", "#.#.#", "*.#.*", ".#", "#."],
    "..": ["..", "#", "#.#", "*.#", "#.*", "#.#.#", "*.#.*", ".#", "#."],
    "....": ["#", "#.#", "*.#", "#.*", "#.#.#", "*.#.*", ".#", "#."],
    "a": ["#", "*", "#.#", "*.#", "#.*", "a", "a.#", "#.a", "#.#.#", "#.a.#"],
    "a.": ["#", "#.#", "*.#", "#.*", "a.", "a.#", "*.*", "a.*", "a.*.#", "#.#.#", "#.a.#", "*.#.*", "#."],
    ".a": ["#", "#.#", "*.#", "#.*", ".a", "#.a", "*.*", "#.#.#", "#.a.#", "*.#.*", ".#"],
    "a.b": ["#", "#.#", "*.#", "#.*", "a.#", "*.*", "a.*", "a.*.#", "a.#.b", "#.#.#", "#.a.#", "*.#.*"],
    "a.a": ["#", "#.#", "*.#", "#.*", "a.#", "#.a", "*.*", "a.*", "a.*.#", "#.#.#", "#.a.#", "*.#.*"],
    "a..b": ["#", "#.#", "*.#", "#.*", "a.#", "a.*.#", "a..b", "a.*.b", "a.#.b", "#.#.#", "#.a.#", "*.#.*"],
    "a.b.b": ["#", "#.#", "*.#", "#.*", "a.#", "a.*.#", "a.*.b", "a.#.b", "#.#.#", "#.a.#", "*.#.*"],
    "*": ["#", "*", "#.#", "*.#", "#.*", "#.#.#"],
    "#": ["#", "*", "#.#", "*.#", "#.*", "#.#.#"],
    "a*": ["#", "*", "#.#", "*.#", "#.*", "#.#.#", "a*"],
    "a.*": ["#", "#.#", "*.#", "#.*", "a.#", "*.*", "a.*", "a.*.#", "#.#.#", "#.a.#", "*.#.*"],
    "a.#": ["#", "#.#", "*.#", "#.*", "a.#", "*.*", "a.*", "a.*.#", "#.#.#", "#.a.#", "*.#.*"],
    "#.a": ["#", "#.#", "*.#", "#.*", "#.a", "*.*", "#.#.#", "#.a.#", "*.#.*"],
    "*.#": ["#", "#.#", "*.#", "#.*", "*.*", "#.#.#", "*.#.*"],
}


@pytest.fixture
def exchange() -> TopicExchange:
    return TopicExchange("source", False, False, False, NONE)


def bind(exchange: TopicExchange, *keys: str) -> None:
    """Each key leads to a queue of its name."""
    for key in keys:
        exchange.bind(Destination(QUEUE, key), key, NONE, False)


def matched(exchange: TopicExchange, routing_key: str) -> list[str]:
    found: dict[Destination, None] = {}
    exchange.match(routing_key, None, found)
    return [destination.name for destination in found]


def nodes(node: Node) -> int:
    return 1 + sum(nodes(child) for child in node.children.values())


@pytest.mark.parametrize("routing_key", SEEN_IN_RABBITMQ)
def test_keys_match_as_in_rabbitmq(exchange: TopicExchange, routing_key: str) -> None:
    bind(exchange, *BINDING_KEYS)
    assert sorted(matched(exchange, routing_key)) == sorted(SEEN_IN_RABBITMQ[routing_key])


def test_destination_is_found_once_however_many_keys_match(exchange: TopicExchange) -> None:
    queue = Destination(QUEUE, "queue")
    for key in ("a.b", "a.*", "*.b", "#", "a.#", "#.b"):
        exchange.bind(queue, key, NONE, False)
    assert matched(exchange, "a.b") == ["queue"]


def test_unbinding_prunes_what_no_other_key_needs(exchange: TopicExchange) -> None:
    bind(exchange, "a", "a.b.c.d", "a.b.x")
    assert nodes(exchange._root) == 6
    for binding in exchange.bindings():
        if binding.binding_key == "a.b.c.d":
            exchange.remove(binding)
    assert nodes(exchange._root) == 4
    assert matched(exchange, "a.b.x") == ["a.b.x"]
    for binding in exchange.bindings():
        exchange.remove(binding)
    assert nodes(exchange._root) == 1
    assert matched(exchange, "a") == []


def test_node_stays_while_another_binding_ends_there(exchange: TopicExchange) -> None:
    queue = Destination(QUEUE, "queue")
    exchange.bind(queue, "a.b", NONE, False)
    exchange.bind(queue, "a.b", field_table({"n": 1}), False)
    exchange.unbind(queue, "a.b", NONE)
    assert matched(exchange, "a.b") == ["queue"]
    exchange.unbind(queue, "a.b", field_table({"n": 1}))
    assert nodes(exchange._root) == 1


def test_many_wildcards_do_not_multiply(exchange: TopicExchange) -> None:
    """120 words against 60 times `#.a`: there are more than 10**34 ways to split them."""
    bind(exchange, "#.a." * 60 + "end", "#.*." * 60 + "#")
    key = ".".join(["a"] * 120)
    assert matched(exchange, key) == ["#.*." * 60 + "#"]
    assert len(matched(exchange, key + ".end")) == 2


@pytest.mark.parametrize("word", ["*", "#"])
def test_wildcards_in_the_routing_key_do_not_multiply(exchange: TopicExchange, word: str) -> None:
    """A word that looks like a wildcard leads to the wildcard's node once, not also as a word of its own."""
    bind(exchange, ".".join(["*"] * 100), ".".join(["#"] * 100), ".".join(["#", "*"] * 50))
    assert len(matched(exchange, ".".join([word] * 100))) == 3


def test_routing_does_not_look_at_words_that_do_not_match(exchange: TopicExchange) -> None:
    """Nodes off the way are replaced with what is no node."""
    bind(exchange, "a.b.c", "a.*.d", "a.#.d", "a.z.c", "z.b.c")
    exchange._root.children["z"] = object()
    exchange._root.children["a"].children["z"] = object()
    assert matched(exchange, "a.b.c") == ["a.b.c"]
    assert sorted(matched(exchange, "a.q.d")) == ["a.#.d", "a.*.d"]
    with pytest.raises((AttributeError, TypeError)):
        matched(exchange, "a.z.c")
