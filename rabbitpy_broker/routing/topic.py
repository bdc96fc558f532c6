"""Topic: words between dots, `*` for one word and `#` for any number of words, none included.

The binding keys are a trie of words. Routing walks the trie along the words of the routing key, so its cost depends on
the matching bindings and not on all of them. Binding and unbinding cost the words of one key. With several `#` on the
way, many paths reach the same node with the same rest of the key. Each pair (node, position) is visited once: the walk
is bounded by the number of reached nodes times words, where trying every split would be exponential.

What must stay true: a node without destinations has children, or is the root.
"""

from __future__ import annotations

from mypy_extensions import i64

from rabbitpy_broker.destination import Destination
from rabbitpy_broker.routing.exchange import Binding, Exchange
from rabbitpy_broker.wire.content_header import ContentHeader
from rabbitpy_broker.wire.field_table import FieldTable


def words_of(key: str) -> list[str]:
    """The words of a key: the empty key has none, but "." has two empty ones."""
    return key.split(".") if key else []


class Node:
    """The keys that begin with the words on the way to this node; `destinations` are those of the key that ends here."""

    def __init__(self) -> None:
        self.children: dict[str, Node] = {}
        self.destinations: dict[Destination, int] = {}


class TopicExchange(Exchange):
    """See the top of this file for the trie."""

    def __init__(self, name: str, durable: bool, auto_delete: bool, internal: bool, arguments: FieldTable) -> None:
        super().__init__(name, "topic", durable, auto_delete, internal, arguments)
        self._root = Node()

    def added(self, binding: Binding) -> None:
        node = self._root
        for word in words_of(binding.binding_key):
            child = node.children.get(word)
            if child is None:
                child = Node()
                node.children[word] = child
            node = child
        node.destinations[binding.destination] = node.destinations.get(binding.destination, 0) + 1

    def removed(self, binding: Binding) -> None:
        words = words_of(binding.binding_key)
        way: list[Node] = [self._root]
        for word in words:
            way.append(way[-1].children[word])
        node = way[-1]
        node.destinations[binding.destination] -= 1
        if node.destinations[binding.destination]:
            return
        del node.destinations[binding.destination]
        depth: i64 = len(words)
        while depth > 0 and not way[depth].destinations and not way[depth].children:
            depth -= 1
            del way[depth].children[words[depth]]

    def match(self, routing_key: str, header: ContentHeader | None, found: dict[Destination, None]) -> None:
        words = words_of(routing_key)
        count: i64 = len(words)
        seen: set[tuple[Node, int]] = set()
        todo: list[tuple[Node, int]] = [(self._root, 0)]
        while todo:
            node, at = todo.pop()
            while True:
                any_words = node.children.get("#")
                if any_words is not None:
                    if any_words.children:
                        _reach_rest(any_words, at, count, seen, todo)
                    else:  # usually a `#` ends its key: it takes all words that are left
                        for destination in any_words.destinations:
                            found[destination] = None
                if at == count:
                    for destination in node.destinations:
                        found[destination] = None
                    break
                one_word = node.children.get("*")
                if one_word is not None:
                    todo.append((one_word, at + 1))
                word = words[at]
                if word == "*" or word == "#":  # its node has just been taken; twice at each word would be exponential
                    break
                child = node.children.get(word)
                if child is None:
                    break
                node = child
                at += 1


def _reach_rest(node: Node, at: i64, count: i64, seen: set[tuple[Node, int]], todo: list[tuple[Node, int]]) -> None:
    """Adds the nodes that a `#` reaches: it takes any number of the words from `at` on.

    A place that was reached before was reached with all places behind it, so the walk stops there.
    """
    while at <= count:
        place = (node, int(at))
        if place in seen:
            return
        seen.add(place)
        todo.append(place)
        at += 1
