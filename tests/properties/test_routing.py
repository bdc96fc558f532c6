"""Exchanges against matchers that try everything, with bindings made and removed in between."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from hypothesis import given, settings
from hypothesis import strategies as st

from content_headers import header_of
from rabbitpy_broker.destination import QUEUE, Destination
from rabbitpy_broker.routing.exchange import Exchange
from rabbitpy_broker.routing.resolve import is_cacheable, make_exchange, resolve, upstream
from rabbitpy_broker.routing.topic import Node, TopicExchange
from rabbitpy_broker.wire.field_table import FieldTable, field_table

NONE = FieldTable()
quick = settings(derandomize=True, deadline=None, max_examples=75)

Values = dict[str, object]


class Rule(NamedTuple):
    """A binding of the model."""

    destination: Destination
    key: str
    arguments: Values


def found(exchange: Exchange, routing_key: str, headers: FieldTable | None) -> list[Destination]:
    destinations: dict[Destination, None] = {}
    exchange.match(routing_key, header_of(headers), destinations)
    return list(destinations)


def apply(exchange: Exchange, model: list[Rule], rule: Rule, is_bind: bool) -> None:
    """Binds or unbinds in both, and compares what they know about themselves."""
    arguments = field_table(rule.arguments)
    if is_bind:
        binding = exchange.bind(rule.destination, rule.key, arguments, False)
        assert (binding is None) == (rule in model)
        if binding is not None:
            model.append(rule)
    else:
        binding = exchange.unbind(rule.destination, rule.key, arguments)
        assert (binding is None) == (rule not in model)
        if binding is not None:
            model.remove(rule)
    bindings = exchange.bindings()
    assert [Rule(b.destination, b.binding_key, dict(b.arguments)) for b in bindings] == model
    assert exchange.binding_count() == len(model)
    assert list(rule.destination.incoming) == [b for b in bindings if b.destination is rule.destination]


# -- topic ------------------------------------------------------------------------------------------------------------

words = st.sampled_from(["a", "b", ""])
routing_keys = st.lists(words, max_size=6).map(".".join)
binding_keys = st.lists(st.one_of(words, st.sampled_from(["*", "#"])), max_size=5).map(".".join)


def topic_matches(binding_key: str, routing_key: str) -> bool:
    def fits(pattern: list[str], rest: list[str]) -> bool:
        if not pattern:
            return not rest
        if pattern[0] == "#":
            return any(fits(pattern[1:], rest[taken:]) for taken in range(len(rest) + 1))
        return bool(rest) and pattern[0] in ("*", rest[0]) and fits(pattern[1:], rest[1:])

    return fits(binding_key.split(".") if binding_key else [], routing_key.split(".") if routing_key else [])


def pruned(node: Node) -> bool:
    return all((child.children or child.destinations) and pruned(child) for child in node.children.values())


@quick
@given(st.lists(st.tuples(st.booleans(), st.integers(0, 2), binding_keys, st.integers(0, 1), routing_keys), max_size=25))
def test_topic_trie_matches_like_trying_every_split(steps: list[tuple[bool, int, str, int, str]]) -> None:
    exchange = TopicExchange("topic", False, False, False, NONE)
    queues = [Destination(QUEUE, str(number)) for number in range(3)]
    model: list[Rule] = []
    for is_bind, number, key, variant, routing_key in steps:
        apply(exchange, model, Rule(queues[number], key, {"n": variant} if variant else {}), is_bind)
        if model and not is_bind:
            apply(exchange, model, model[number % len(model)], False)
        destinations = found(exchange, routing_key, None)
        assert len(destinations) == len(set(destinations))
        assert set(destinations) == {rule.destination for rule in model if topic_matches(rule.key, routing_key)}
        assert pruned(exchange._root)
    while model:
        apply(exchange, model, model[0], False)
    assert not exchange._root.children
    assert not exchange._root.destinations


# -- headers ----------------------------------------------------------------------------------------------------------

# No two of them are equal for Python but not for AMQP: 1 and True are told apart by a unit test.
values = st.sampled_from([0, 7, 7.5, "", "7", "x", b"x\xff", True, [7, "x"], {"k": 7}])
keys = st.sampled_from(["a", "b", "x-c"])
headers = st.one_of(st.none(), st.dictionaries(keys, st.one_of(values, st.none())))
modes = st.sampled_from(["all", "any", "all-with-x", "any-with-x"])
patterns = st.builds(
    lambda mode, wanted: {**({"x-match": mode} if mode else {}), **wanted},
    st.one_of(st.none(), modes),
    st.dictionaries(keys, st.one_of(values, st.none())),
)


def headers_match(arguments: Values, given: Values | None) -> bool:
    mode = str(arguments.get("x-match", "all"))
    hits = [
        key in (given or {}) and (value is None or (given or {})[key] == value)
        for key, value in arguments.items()
        if key != "x-match" and (mode.endswith("-with-x") or not key.startswith("x-"))
    ]
    return all(hits) if mode.startswith("all") else any(hits)


@quick
@given(st.lists(st.tuples(st.booleans(), st.integers(0, 2), patterns, headers), max_size=20))
def test_headers_match_like_comparing_every_binding(steps: list[tuple[bool, int, Values, Values | None]]) -> None:
    exchange = make_exchange("headers", "headers", False, False, False, NONE)
    queues = [Destination(QUEUE, str(number)) for number in range(3)]
    model: list[Rule] = []
    for is_bind, number, arguments, given_headers in steps:
        apply(exchange, model, Rule(queues[number], "", arguments), is_bind)
        if model and not is_bind:
            apply(exchange, model, model[number % len(model)], False)
        destinations = found(exchange, "", None if given_headers is None else field_table(given_headers))
        assert len(destinations) == len(set(destinations))
        assert set(destinations) == {r.destination for r in model if headers_match(r.arguments, given_headers)}


# -- resolve ----------------------------------------------------------------------------------------------------------

MATCHERS: dict[str, Callable[[Rule, str, Values], bool]] = {
    "direct": lambda rule, key, _: rule.key == key,
    "fanout": lambda *_: True,
    "topic": lambda rule, key, _: topic_matches(rule.key, key),
    "headers": lambda rule, _, given_headers: headers_match(rule.arguments, given_headers),
}
EXCHANGES = 5
NAMES = [f"exchange {number}" for number in range(EXCHANGES)]
exchanges = st.lists(
    st.tuples(st.sampled_from(sorted(MATCHERS)), st.sampled_from(["", "absent", *NAMES])),
    min_size=EXCHANGES,
    max_size=EXCHANGES,
)
bindings = st.lists(
    st.tuples(
        st.integers(0, EXCHANGES - 1),
        st.integers(0, EXCHANGES + 2),
        st.sampled_from(["", "a", "b", "*", "#", "a.b"]),
        st.sampled_from([{}, {"h": 1}, {"h": 2}]),
    ),
    max_size=14,
)


@quick
@given(exchanges, bindings, st.sampled_from(["", "a", "b", "a.b", "c"]), st.sampled_from([{}, {"h": 1}, {"h": 2}]))
def test_resolve_finds_what_a_walk_of_the_graph_finds(
    declared: list[tuple[str, str]], bound: list[tuple[int, int, str, Values]], key: str, given_headers: Values
) -> None:
    by_name = {
        name: make_exchange(
            type, name, False, False, False, field_table({"alternate-exchange": alternate}) if alternate else NONE
        )
        for name, (type, alternate) in zip(NAMES, declared, strict=True)
    }
    queues = [Destination(QUEUE, str(number)) for number in range(3)]
    destinations: list[Destination] = [*by_name.values(), *queues]
    rules: dict[str, list[Rule]] = {name: [] for name in NAMES}
    for source, destination, binding_key, arguments in bound:
        by_name[NAMES[source]].bind(destinations[destination], binding_key, field_table(arguments), False)
        rules[NAMES[source]].append(Rule(destinations[destination], binding_key, arguments))

    def next_of(exchange: Exchange) -> set[Destination]:
        hits = {r.destination for r in rules[exchange.name] if MATCHERS[exchange.type](r, key, given_headers)}
        if not hits and exchange.alternate in by_name:
            return {by_name[exchange.alternate]}
        return hits

    def neighbours(exchange: Exchange, alternates: bool) -> set[Destination]:
        near = {rule.destination for rule in rules[exchange.name]}
        return near | ({by_name[exchange.alternate]} if alternates and exchange.alternate in by_name else set())

    def closure(start: Exchange, step: Callable[[Exchange], set[Destination]]) -> set[Destination]:
        """Grows the set until nothing is added."""
        reached: set[Destination] = {start}
        while True:
            more = set().union(*[step(place) for place in reached if isinstance(place, Exchange)]) | reached
            if more == reached:
                return reached
            reached = more

    for exchange in by_name.values():
        result = resolve(exchange, by_name, [key], header_of(field_table(given_headers)))
        assert len(result) == len(set(result))
        assert set(result) == {place for place in closure(exchange, next_of) if place.kind == QUEUE}
        reachable = closure(exchange, lambda place: neighbours(place, True))
        types = {place.type for place in reachable if isinstance(place, Exchange)}
        assert is_cacheable(exchange, by_name) == ("headers" not in types)
        above = {x for x in by_name.values() if exchange in closure(x, lambda place: neighbours(place, False))}
        assert set(upstream(exchange)) == above
        assert len(upstream(exchange)) == len(above)
