"""What is a duplicate, and for how long."""

from __future__ import annotations

import pytest

from content_headers import payload_of
from cranked_clock import CrankedClock
from rabbitpy_broker.errors import PRECONDITION_FAILED, ChannelClosed
from rabbitpy_broker.queues.deduplication import Deduplication, SeenKeys, deduplication
from rabbitpy_broker.wire.content_header import ContentHeader
from rabbitpy_broker.wire.field_table import field_table

ON: dict[str, object] = {"x-message-deduplication": True}


def header(**headers: object) -> ContentHeader:
    return ContentHeader(payload_of(headers={key.replace("_", "-"): value for key, value in headers.items()}))


def made(clock: CrankedClock, **arguments: object) -> Deduplication:
    given = {**ON, **{f"x-{key.replace('_', '-')}": value for key, value in arguments.items()}}
    result = deduplication(field_table(given), "exchange 'e'", clock)
    assert result is not None
    return result


def test_oldest_keys_are_forgotten_beyond_the_size() -> None:
    seen = SeenKeys(2, CrankedClock())
    for key in (b"a", b"b", b"a", b"c"):
        seen.add(key)
    assert [key in seen for key in (b"a", b"b", b"c")] == [True, False, True]
    assert len(seen) == 2


def test_keys_end_with_their_ttl() -> None:
    clock = CrankedClock()
    seen = SeenKeys(10, clock)
    seen.add(b"a", 100)
    seen.add(b"b")
    seen.add(b"c", 0)
    assert [key in seen for key in (b"a", b"b", b"c")] == [True, True, False]
    clock.now += 100
    assert [key in seen for key in (b"a", b"b")] == [False, True]
    assert len(seen) == 1


def test_long_keys_are_told_apart_by_all_their_bytes() -> None:
    seen = SeenKeys(10, CrankedClock())
    seen.add(b"k" * 100_000)
    assert b"k" * 100_000 in seen
    assert b"k" * 99_999 not in seen
    seen.discard(b"k" * 100_000)
    assert b"k" * 100_000 not in seen


def test_identity_is_a_header_with_its_type() -> None:
    dedup = made(CrankedClock())
    dedup.remember(header(x_deduplication_header="1"))
    assert dedup.is_duplicate(header(x_deduplication_header="1", other=5))
    assert not dedup.is_duplicate(header(x_deduplication_header=1))
    assert not dedup.is_duplicate(header(x_deduplication_header="2"))


def test_message_without_identity_is_no_duplicate() -> None:
    dedup = made(CrankedClock())
    for nameless in (header(), ContentHeader(payload_of())):
        dedup.remember(nameless)
        dedup.forget(nameless)
        assert not dedup.is_duplicate(nameless)


def test_header_can_have_another_name() -> None:
    dedup = made(CrankedClock(), deduplication_header="id")
    dedup.remember(header(id="1", x_deduplication_header="2"))
    assert dedup.is_duplicate(header(id="1"))
    assert not dedup.is_duplicate(header(x_deduplication_header="2"))


def test_ttl_of_the_message_beats_the_argument() -> None:
    clock = CrankedClock()
    dedup = made(clock, cache_ttl=1_000)
    dedup.remember(header(x_deduplication_header="short", x_cache_ttl=10))
    dedup.remember(header(x_deduplication_header="long"))
    dedup.remember(header(x_deduplication_header="odd", x_cache_ttl="10"))
    dedup.remember(header(x_deduplication_header="negative", x_cache_ttl=-1))
    clock.now += 10
    assert not dedup.is_duplicate(header(x_deduplication_header="short"))
    for name in ("long", "odd", "negative"):
        assert dedup.is_duplicate(header(x_deduplication_header=name))
    clock.now += 990
    assert not dedup.is_duplicate(header(x_deduplication_header="long"))


def test_what_was_not_taken_can_be_forgotten() -> None:
    dedup = made(CrankedClock())
    dedup.remember(header(x_deduplication_header="1"))
    dedup.forget(header(x_deduplication_header="1"))
    assert not dedup.is_duplicate(header(x_deduplication_header="1"))


def test_default_size_is_128() -> None:
    dedup = made(CrankedClock())
    for n in range(129):
        dedup.remember(header(x_deduplication_header=n))
    assert not dedup.is_duplicate(header(x_deduplication_header=0))
    assert dedup.is_duplicate(header(x_deduplication_header=1))


def test_it_is_off_unless_asked_for() -> None:
    clock = CrankedClock()
    assert deduplication(field_table({"x-cache-size": 1}), "exchange 'e'", clock) is None
    assert deduplication(field_table({"x-message-deduplication": False}), "exchange 'e'", clock) is None


@pytest.mark.parametrize(
    "arguments, key, why",
    [
        ({"x-message-deduplication": "yes"}, "x-message-deduplication", "{unacceptable_type,longstr}"),
        ({**ON, "x-cache-size": 0}, "x-cache-size", "{value_zero,0}"),
        ({**ON, "x-cache-size": -1}, "x-cache-size", "{value_negative,-1}"),
        ({**ON, "x-cache-size": "5"}, "x-cache-size", '"expected integer, got longstr"'),
        ({**ON, "x-cache-ttl": -1}, "x-cache-ttl", "{value_negative,-1}"),
        ({**ON, "x-cache-ttl": True}, "x-cache-ttl", '"expected integer, got bool"'),
        ({**ON, "x-deduplication-header": 5}, "x-deduplication-header", "{unacceptable_type,long}"),
    ],
)
def test_arguments_are_checked(arguments: dict[str, object], key: str, why: str) -> None:
    with pytest.raises(ChannelClosed) as caught:
        deduplication(field_table(arguments), "exchange 'e' in vhost '/'", CrankedClock())
    text = f"invalid arg '{key}' for exchange 'e' in vhost '/': {why}"
    assert (caught.value.code, caught.value.text) == (PRECONDITION_FAILED, text)
