"""From an exchange to queues, over bindings between exchanges and alternate exchanges."""

from __future__ import annotations

from itertools import pairwise

from content_headers import header_of
from rabbitpy_broker.destination import QUEUE, Destination
from rabbitpy_broker.routing.exchange import Exchange
from rabbitpy_broker.routing.resolve import is_cacheable, make_exchange, resolve, upstream
from rabbitpy_broker.wire.field_table import FieldTable, field_table

NONE = FieldTable()
A, B = Destination(QUEUE, "a"), Destination(QUEUE, "b")


class Topology:
    """Exchanges by name."""

    def __init__(self) -> None:
        self.exchanges: dict[str, Exchange] = {}

    def declare(self, name: str, type: str = "fanout", alternate: str = "") -> Exchange:
        arguments = field_table({"alternate-exchange": alternate}) if alternate else NONE
        self.exchanges[name] = make_exchange(type, name, False, False, False, arguments)
        return self.exchanges[name]

    def resolve(self, exchange: Exchange, *routing_keys: str, headers: FieldTable | None = None) -> list[str]:
        keys = list(routing_keys) or ["key"]
        return [queue.name for queue in resolve(exchange, self.exchanges, keys, header_of(headers))]

    def is_cacheable(self, exchange: Exchange) -> bool:
        return is_cacheable(exchange, self.exchanges)


def bind(source: Exchange, *destinations: Destination, key: str = "") -> None:
    for destination in destinations:
        source.bind(destination, key, NONE, False)


def test_only_queues_are_found_each_once() -> None:
    topology = Topology()
    source, left, right = topology.declare("s"), topology.declare("l"), topology.declare("r")
    bind(source, left, A, right)
    bind(left, A, B)
    bind(right, A, B)
    assert topology.resolve(source) == ["a", "b"]


def test_routing_key_and_headers_go_all_the_way() -> None:
    topology = Topology()
    source, direct, headers = topology.declare("s"), topology.declare("d", "direct"), topology.declare("h", "headers")
    bind(source, direct, headers)
    bind(direct, A, key="key")
    headers.bind(B, "", field_table({"n": 1}), False)
    assert topology.resolve(source, "key") == ["a"]
    assert topology.resolve(source, "other", headers=field_table({"n": 1})) == ["b"]
    assert topology.resolve(source, "other", headers=field_table({"n": 2})) == []


def test_circles_of_bindings_end() -> None:
    topology = Topology()
    one, two = topology.declare("1"), topology.declare("2")
    bind(one, two, one)
    bind(two, one, A)
    assert topology.resolve(one) == ["a"]
    assert topology.resolve(two) == ["a"]


def test_long_chain_of_exchanges() -> None:
    topology = Topology()
    chain = [topology.declare(str(number)) for number in range(5_000)]
    for source, destination in pairwise(chain):
        bind(source, destination)
    bind(chain[-1], A)
    assert topology.resolve(chain[0]) == ["a"]
    assert topology.is_cacheable(chain[0])
    assert upstream(chain[-1]) == chain[::-1]


def test_alternate_is_asked_when_nothing_matched() -> None:
    topology = Topology()
    source, spare = topology.declare("s", "direct", alternate="spare"), topology.declare("spare")
    bind(source, A, key="key")
    bind(spare, B)
    assert topology.resolve(source, "key") == ["a"]
    assert topology.resolve(source, "other") == ["b"]


def test_exchange_on_the_way_asks_its_own_alternate() -> None:
    topology = Topology()
    outer, inner = topology.declare("outer"), topology.declare("inner", "direct", alternate="spare")
    bind(outer, inner, A)
    bind(topology.declare("spare"), B)
    assert topology.resolve(outer, "unknown") == ["a", "b"]


def test_matching_binding_to_an_exchange_without_queues_keeps_the_alternate_out() -> None:
    topology = Topology()
    source = topology.declare("s", alternate="spare")
    bind(source, topology.declare("empty"))
    bind(topology.declare("spare"), A)
    assert topology.resolve(source) == []


def test_absent_alternate_drops_the_message() -> None:
    topology = Topology()
    assert topology.resolve(topology.declare("s", alternate="absent")) == []


def test_alternate_may_come_later_and_go() -> None:
    topology = Topology()
    source = topology.declare("s", alternate="spare")
    bind(topology.declare("spare"), A)
    assert topology.resolve(source) == ["a"]
    del topology.exchanges["spare"]
    assert topology.resolve(source) == []


def test_circles_of_alternates_end() -> None:
    topology = Topology()
    one, two = topology.declare("1", alternate="2"), topology.declare("2", alternate="1")
    itself = topology.declare("i", alternate="i")
    assert topology.resolve(one) == topology.resolve(two) == topology.resolve(itself) == []
    assert topology.is_cacheable(one)
    bind(two, A)
    assert topology.resolve(one) == ["a"]


def test_headers_exchange_in_reach_makes_routes_uncacheable() -> None:
    topology = Topology()
    by_binding, by_alternate = topology.declare("b"), topology.declare("a", alternate="h")
    apart, headers = topology.declare("apart"), topology.declare("h", "headers")
    middle = topology.declare("m", "topic")
    bind(by_binding, middle)
    assert topology.is_cacheable(by_binding)
    bind(middle, headers, key="never.published")
    assert not topology.is_cacheable(by_binding)
    assert not topology.is_cacheable(by_alternate)
    assert not topology.is_cacheable(headers)
    assert topology.is_cacheable(apart)
    middle.unbind(headers, "never.published", NONE)
    assert topology.is_cacheable(by_binding)
    del topology.exchanges["h"]
    assert topology.is_cacheable(by_alternate)


def test_upstream_is_what_leads_here_by_bindings() -> None:
    topology = Topology()
    here, one, two, far = (topology.declare(name) for name in ("here", "1", "2", "far"))
    topology.declare("by-alternate", alternate="here")
    bind(one, here)
    bind(two, here, one)
    bind(far, two)
    bind(here, topology.declare("below"), far)
    assert upstream(here)[0] is here
    assert {exchange.name for exchange in upstream(here)} == {"here", "1", "2", "far"}
    assert len(upstream(here)) == 4


def test_each_key_counts_where_keys_count() -> None:
    topology = Topology()
    source, direct, random = topology.declare("s"), topology.declare("d", "direct"), topology.declare("r", "x-random")
    bind(source, direct, random)
    bind(direct, A, key="one")
    bind(direct, B, key="two")
    bind(random, Destination(QUEUE, "c"), Destination(QUEUE, "d"))
    found = topology.resolve(source, "nothing", "two", "one")
    assert sorted(found)[:2] == ["a", "b"]
    assert len(found) == 3


def test_alternate_is_for_a_message_of_which_no_key_matches() -> None:
    topology = Topology()
    topology.declare("other").bind(B, "", NONE, False)
    source = topology.declare("s", "direct", alternate="other")
    bind(source, A, key="one")
    assert topology.resolve(source, "nothing", "one") == ["a"]
    assert topology.resolve(source, "nothing", "nor this") == ["b"]
