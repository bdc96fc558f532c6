"""What pages are told each second: tables by snapshot and delta, objects, the log; and who is told what."""

from __future__ import annotations

import asyncio
import random

import pika
import pytest

from broker_process import BrokerProcess
from management.conftest import Http
from management.event_stream import EventStream, same, table
from management.test_session import Browser
from rabbitpy_broker.management.api.events import (
    DELTA_ROWS,
    PENDING_MAX_BYTES,
    TAKEN_MAX_BYTES,
    Reader,
    topic_of,
)
from rabbitpy_broker.management.api.packed_parts import SHARED_FROM_BYTES
from rabbitpy_broker.management.api.request import Request
from rabbitpy_broker.management.api.tables import LIVE
from rabbitpy_broker.users import HASHING_ALGORITHM, User
from support import eventually

pytestmark = pytest.mark.own

PUBLISH = "exchanges/%2F/amq.default/publish"


def message(key: str) -> dict[str, object]:
    return {"properties": {}, "routing_key": key, "payload": "x", "payload_encoding": "string"}


def test_a_queue_comes_changes_and_goes(http: Http) -> None:
    http("PUT", "queues/%2F/first", {})
    with EventStream(http, "table:queues", "overview", "queue:%2F/second%2C%2F") as stream:
        stream.until(lambda: "table:queues" in stream.tables and "overview" in stream.objects)
        assert set(stream.tables["table:queues"]) == {("/", "first")}
        stream.until(lambda: stream.objects.get("queue:%2F/second%2C%2F", 0) is None)
        http("PUT", "queues/%2F/second%2C%2F", {"arguments": {"x-max-length": 5}})
        stream.until(lambda: ("/", "second,/") in stream.tables["table:queues"])
        assert stream.tables["table:queues"][("/", "second,/")]["arguments"] == {"x-max-length": 5}
        http("POST", PUBLISH, message("second,/"))
        row = stream.until(lambda: next((one for one in stream.tables["table:queues"].values() if one["messages"]), None))
        assert (row["name"], row["messages_ready"], row["publish_rate"] > 0) == ("second,/", 1, True)
        value = stream.until(lambda: stream.objects["queue:%2F/second%2C%2F"])
        stream.until(lambda: stream.objects["queue:%2F/second%2C%2F"]["messages"] == 1)
        assert value.keys() > {"internals", "consumers"}
        stream.until(lambda: (stream.objects["overview"] or {})["totals"]["messages"] == 1)
        stream.until(lambda: (stream.objects["overview"] or {})["rates"]["publish"] == 0)
        http("DELETE", "queues/%2F/second%2C%2F")
        stream.until(lambda: ("/", "second,/") not in stream.tables["table:queues"])
        stream.until(lambda: stream.objects["queue:%2F/second%2C%2F"] is None)


def test_whatever_happens_the_streams_table_is_the_broker_s(http: Http, api_broker: BrokerProcess) -> None:
    """Queues come, go, fill and are consumed at random, by AMQP; two readers with other columns see the same."""
    chance = random.Random(7)
    names = [f"q{number}" for number in range(12)]
    with (
        EventStream(http, "table:queues", "table:connections", "table:channels", "table:consumers", "table:exchanges") as stream,
        EventStream(http, "table:queues?columns=vhost%2Cname%2Cmessages") as narrow,
        pika.BlockingConnection(api_broker.parameters()) as connection,
    ):
        channel = connection.channel()
        stream.until(lambda: "table:queues" in stream.tables)
        for step in range(160):
            name = chance.choice(names)
            match chance.randrange(6):
                case 0:
                    http("DELETE", f"queues/%2F/{name}/contents")
                case 1:
                    channel.queue_delete(name)
                case 2:
                    channel.queue_declare(name)
                    channel.basic_consume(name, lambda *_: None, auto_ack=bool(step % 2))
                case 3:
                    http("PUT", "policies/%2F/p", {"pattern": chance.choice(names), "definition": {"max-length": step + 1}})
                case _:
                    channel.basic_publish("", name, b"x" * chance.randrange(100))
            if step % 40 == 39:
                connection.process_data_events(0.01)
                for kind in ("queues", "consumers", "exchanges", "channels"):
                    same(stream, f"table:{kind}", lambda kind=kind: table(http, kind))
        wanted = {key: {name: row[name] for name in ("vhost", "name", "messages")} for key, row in table(http, "queues").items()}
        same(narrow, "table:queues?columns=vhost%2Cname%2Cmessages", lambda: wanted)
        (row,) = stream.tables["table:connections"].values()
        assert (row["user"], row["client"].split()[0]) == ("guest", "Pika")


def test_who_comes_back_is_told_what_has_changed_meanwhile(http: Http) -> None:
    for number in range(3):
        http("PUT", f"queues/%2F/q{number}", {})
    with EventStream(http, "table:queues") as stream:
        last = stream.until(lambda: stream.last_id)
    http("POST", PUBLISH, message("q1"))
    http("DELETE", "queues/%2F/q2")
    http("PUT", "queues/%2F/q3", {})
    with EventStream(http, "table:queues", last=last) as again:
        again.resume_with(stream)
        again.until(lambda: again.kinds)
        assert again.kinds == ["delta"]
        same(again, "table:queues", lambda: table(http, "queues"))
        assert set(again.tables["table:queues"]) == {("/", "q0"), ("/", "q1"), ("/", "q3")}
    for stale in ("other-1", f"{last}9", "x", "-"):
        with EventStream(http, "table:queues", last=stale) as anew:
            anew.until(lambda anew=anew: anew.kinds)
            assert anew.kinds == ["snapshot"]


def test_a_page_that_opens_another_stream_is_told_what_has_changed_of_what_it_knows(http: Http) -> None:
    """It names the tick in the query, since its EventSource sends no header of its choice, and the topics that it has."""
    for name in ("stays", "grows"):
        http("PUT", f"queues/%2F/{name}", {})
    topics = "table:queues", "table:exchanges"
    with EventStream(http, topics[0]) as stream:
        last = stream.until(lambda: stream.last_id)
    http("PUT", "queues/%2F/new", {})
    with EventStream(http, *topics, query={"since": last, "known": topics[0]}) as again:
        again.resume_with(stream)
        again.until(lambda: len(again.kinds) == 2)
        assert sorted(again.kinds) == ["delta", "snapshot"]  # the snapshot is that of the exchanges
        same(again, topics[0], lambda: table(http, "queues"))
    for query in ({"since": last, "known": "overview"}, {"since": "other-1", "known": topics[0]}):
        with EventStream(http, topics[0], query=query) as anew:
            anew.until(lambda anew=anew: anew.kinds)
            assert anew.kinds == ["snapshot"]


def test_a_reader_sees_what_lists_would_show_it(http: Http, api_broker: BrokerProcess) -> None:
    http("PUT", "vhosts/v", {})
    http("PUT", "queues/v/hidden", {})
    http("PUT", "queues/%2F/seen", {})
    http("PUT", "users/u", {"password": "u", "tags": "management"})
    http("PUT", "permissions/%2F/u", {"configure": "", "write": "", "read": ""})
    for topic in ("log", "nodes", "queue:v/hidden"):
        assert EventStream(http, topic, user="u").status == 401
    for topic in ("", "nothing", "table:nothing", "table:queues?columns=no", "queue:x", ",".join(["alarms"] * 21)):
        assert EventStream(http, topic).status == 400
    with (
        EventStream(http, "table:queues", "table:connections", "overview", user="u") as stream,
        pika.BlockingConnection(api_broker.parameters()) as connection,
    ):
        stream.until(lambda: "overview" in stream.objects)
        assert set(stream.tables["table:queues"]) == {("/", "seen")}
        assert stream.objects["overview"]["node"] is None
        assert stream.objects["overview"]["totals"]["queues"] == 1
        connection.channel()
        stream.marked()
        assert stream.tables["table:connections"] == {}
        http("PUT", "permissions/v/u", {"configure": "", "write": "", "read": ""})
        stream.until(lambda: ("v", "hidden") in stream.tables["table:queues"])
        http("DELETE", "permissions/%2F/u")
        stream.until(lambda: set(stream.tables["table:queues"]) == {("v", "hidden")})
        assert table(http, "queues", user="u").keys() == {("v", "hidden")}
        http("DELETE", "users/u")
        stream.until(lambda: stream.end)


def test_readers_of_one_user_are_told_the_same_and_others_what_they_may_see(http: Http) -> None:
    http("PUT", "users/u", {"password": "u", "tags": "management"})
    http("PUT", "permissions/%2F/u", {"configure": "", "write": "", "read": ""})
    with (
        EventStream(http, "overview", "queue:%2F/a") as first,
        EventStream(http, "overview", "queue:%2F/a", user="u") as other,
        EventStream(http, "overview") as late,
    ):
        for stream in (first, other, late):
            stream.until(lambda stream=stream: "overview" in stream.objects)
        http("PUT", "vhosts/v", {})
        for name in ("%2F/a", "v/b"):
            http("PUT", f"queues/{name}", {})
        for stream, queues in ((first, 2), (other, 1), (late, 2)):
            stream.until(lambda stream=stream, queues=queues: stream.objects["overview"]["totals"]["queues"] == queues)
            assert (stream.objects["overview"]["node"] is None) == (stream is other)


def test_the_stream_of_a_session_ends_with_it(http: Http) -> None:
    browser = Browser(http)
    with EventStream(http, "alarms", headers={"Cookie": browser.cookie}) as stream:
        stream.until(lambda: "alarms" in stream.objects)
        assert stream.objects["alarms"] == {"alarms": []}
        assert browser("DELETE", "session").status == 204
        stream.until(lambda: stream.end)


def test_the_log_comes_as_it_is_written(http: Http) -> None:
    with EventStream(http, "log", "nodes") as stream:
        stream.until(lambda: stream.lines)
        assert "broker started" in [line["event"] for line in stream.lines]
        http("PUT", "queues/%2F/q", {})
        stream.until(lambda: any(line["event"] == "audit" for line in stream.lines))
        assert stream.objects["nodes"]["fd_total"] > 0
    lines = http.get("log?limit=2")["lines"]
    assert [line["event"] for line in lines][-1] == "audit"
    assert len(lines) == 2
    assert http("GET", "log?limit=0").status == 400


def test_streams_do_not_hold_up_a_stop(http: Http, api_broker: BrokerProcess) -> None:
    with EventStream(http, "table:queues") as stream:
        stream.until(lambda: stream.last_id)
        api_broker.stop()
    api_broker.start()


def test_tables_have_all_kinds_and_the_columns_that_are_asked_for(http: Http, api_broker: BrokerProcess) -> None:
    with pika.BlockingConnection(api_broker.parameters()) as connection:
        channel = connection.channel()
        channel.queue_declare("q")
        channel.basic_consume("q", lambda *_: None)
        http("PUT", "policies/%2F/p", {"pattern": "", "definition": {"max-length": 1}})
        for kind in (*LIVE, "bindings", "vhosts", "users", "policies"):
            rows = table(http, kind)
            assert rows, kind
            found = http.get(f"table/{kind}?columns={','.join(next(iter(rows.values())))}")
            assert {len(row) for row in found["rows"]} == {len(found["columns"])}
            assert http("GET", f"table/{kind}?columns=no").status == 400
        assert http.get("table/queues?vhost=none")["rows"] == []
        assert http.get("table/queues?columns=name,policy&vhost=/")["rows"] == [["q", "p"]]
    assert http("GET", "table/nothing").status == 404
    http("PUT", "users/u", {"password": "u", "tags": "monitoring"})
    assert http("GET", "table/users", user="u").status == 401


def test_a_snapshot_of_many_rows_comes_in_parts(http: Http) -> None:
    queues = [{"name": f"q{number}", "vhost": "/", "durable": False} for number in range(2500)]
    assert http("POST", "definitions", {"queues": queues}).status == 204
    with EventStream(http, "table:queues") as stream:
        stream.until(lambda: stream.last_id)
        assert stream.kinds == ["snapshot"] * 3
        assert len(stream.tables["table:queues"]) == 2500


def test_deltas_of_many_rows_come_in_parts_in_the_right_order(http: Http) -> None:
    topic, count = "table:queues", DELTA_ROWS + 100
    http("PUT", "queues/%2F/other", {"durable": True})
    http("PUT", "vhosts/v", {})
    with EventStream(http, topic) as watching:  # what it has seen, a tick has seen
        last = watching.until(lambda: watching.last_id)
        before = dict(watching.tables[topic])
        queues = [{"name": f"q{number}", "vhost": "v", "durable": False} for number in range(count)]
        assert http("POST", "definitions", {"queues": queues}).status == 204
        watching.until(lambda: len(watching.tables[topic]) == count + 1)
        with EventStream(http, topic, last=last) as came:
            came.resume_with(watching)
            came.tables = {topic: before}
            came.until(lambda: len(came.tables[topic]) == count + 1)
            assert (came.kinds, came.delta_rows) == (["delta"] * 2, [DELTA_ROWS, 100])
            last = came.marked()
        assert http("DELETE", "vhosts/v").status == 204
        http("PUT", "vhosts/v", {})
        http("PUT", "queues/v/q7", {"durable": True})
        watching.until(lambda: [row["durable"] for row in watching.tables[topic].values()] == [True, True])
        with EventStream(http, topic, last=last) as went:
            went.resume_with(came)
            went.until(lambda: len(went.tables[topic]) == 2)
            assert (went.kinds, went.delta_rows) == (["delta"] * 2, [DELTA_ROWS, 101])
            assert {row["name"]: row["durable"] for row in went.tables[topic].values()} == {"other": True, "q7": True}


def reader_of_alarms() -> Reader:
    user = User("u", "", HASHING_ALGORITHM, ())
    return Reader(Request("GET", {}, {}, {}, b"", user, ""), [topic_of("alarms")])


async def test_what_waits_for_a_reader_is_taken_in_pieces() -> None:
    reader, chance = reader_of_alarms(), random.Random(3)
    sizes = (0, 10, 300, SHARED_FROM_BYTES - 1, SHARED_FROM_BYTES, TAKEN_MAX_BYTES)
    events = [chance.randbytes(chance.choice(sizes)) for _ in range(50)]
    events += [chance.randbytes(SHARED_FROM_BYTES - 1) for _ in range(2 * TAKEN_MAX_BYTES // SHARED_FROM_BYTES)]
    for event in events:
        reader.push(event)
    taken: list[bytes] = []
    while reader.has_news:
        taken.append(await reader.take())
    assert b"".join(taken) == b"".join(events)
    long = [event for event in events if len(event) >= SHARED_FROM_BYTES]
    alone = [piece for piece in taken if any(piece is event for event in long)]
    assert alone == long
    assert all(len(piece) < TAKEN_MAX_BYTES + SHARED_FROM_BYTES for piece in taken)
    assert len(taken) < 2 * len(long) + 5
    waiting = asyncio.create_task(reader.take())
    await asyncio.sleep(0)
    assert not waiting.done()
    reader.push(b"more")
    assert await waiting == b"more"


def test_who_takes_nothing_is_let_go() -> None:
    reader = reader_of_alarms()
    for _ in range(PENDING_MAX_BYTES // 1_000_000 + 2):
        reader.push(b"x" * 1_000_000)
    assert reader.ended


def test_history_outlives_a_restart_and_damage(http: Http, api_broker: BrokerProcess) -> None:
    http("PUT", "queues/%2F/q", {"durable": True})
    http("POST", PUBLISH, {**message("q"), "properties": {"delivery_mode": 2}})

    def messages(kind: str = "node") -> list[float]:
        found = Http(api_broker.management).get(f"history/{kind}")
        assert all(len(values) == len(found["times"]) for values in found["series"].values())
        return [value for value in found["series"]["messages"] if value is not None]

    for kind in ("node", "vhost/%2F", "queue/%2F/q"):
        eventually(lambda kind=kind: 1 in messages(kind), 15)
    published = http.get("history/vhost/%2F")["series"]["publish"]
    assert any(published)
    api_broker.stop()
    before = (api_broker.data_dir / "history").stat().st_size
    assert before > 100
    api_broker.start()
    assert 1 in messages()
    assert 1 in messages("vhost/%2F")
    api_broker.stop()
    content = (api_broker.data_dir / "history").read_bytes()
    (api_broker.data_dir / "history").write_bytes(content[: len(content) // 2])
    api_broker.start()
    assert api_broker.events("history is damaged and begins anew")
    eventually(lambda: messages()[-1:] == [1])
    for query in ("from=x", "step=0", "from=9&to=8", "from=1", "to=99999999999999"):
        assert Http(api_broker.management)("GET", f"history/node?{query}").status == 400
    assert Http(api_broker.management)("GET", "history/vhost/none").status == 404
