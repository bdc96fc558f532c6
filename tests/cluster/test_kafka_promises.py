"""Which settings of Kafka are refused, and that the line says what to change."""

from __future__ import annotations

import pytest

from rabbitpy_broker.cluster.kafka.engine import KafkaEngine, escaped, unescaped
from rabbitpy_broker.cluster.kafka.settings import MAX_BATCH, broken_promise, parse
from rabbitpy_broker.errors import StartError

GOOD = {
    "min.insync.replicas": "2",
    "unclean.leader.election.enable": "false",
    "cleanup.policy": "delete",
    "retention.ms": "-1",
    "retention.bytes": "-1",
    "max.message.bytes": str(MAX_BATCH),
}


def test_a_url_says_all_that_there_is():
    settings = parse("kafka://me:s%40cret@one,two:9093,[::1]:9094/fleet?sasl=plain&tls=true&replication=5&min_insync=3&timeout=8")
    assert settings.servers == (("one", 9092), ("two", 9093), ("::1", 9094))
    assert (settings.user, settings.password, settings.sasl, settings.tls) == ("me", "s@cret", "PLAIN", True)
    assert (settings.prefix, settings.replication, settings.min_insync, settings.timeout) == ("fleet", 5, 3, 8.0)
    assert settings.flush
    assert settings.topic_configs()["flush.messages"] == "1"
    assert "flush.messages" not in parse("kafka://one?flush=false").topic_configs()


def test_topics_are_made_with_settings_that_keep_the_promise():
    assert broken_promise("t", 3, parse("kafka://one").topic_configs()) is None
    assert broken_promise("t", 3, GOOD) is None


@pytest.mark.parametrize(
    "url, said",
    [
        ("kafka://one?acks=1", "acks is 1"),
        ("kafka://one?acks=0", "acks is 0"),
        ("kafka://one?replication=2", "replication is 2"),
        ("kafka://one?min_insync=1", "min_insync is 1, which confirms what only one server has: set it to 2"),
        ("kafka://one?min_insync=3", "min_insync is 3 of 3"),
        ("kafka://one?unclean=true", "take unclean out of the URL"),
        ("kafka://one?colour=blue", "not known: colour"),
        ("kafka://one?tls=perhaps", "'perhaps' is neither true nor false"),
        ("kafka://one?timeout=0", "timeout is 0"),
        ("kafka://one/a.b", "the prefix 'a.b'"),
        ("kafka://one:port", "the URL is wrong"),
        ("kafka:///x", "the URL names no server"),
    ],
)
def test_a_url_that_breaks_the_promise_is_refused_in_one_line(url: str, said: str):
    with pytest.raises(StartError) as caught:
        KafkaEngine(url)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "name, value, said",
    [
        ("min.insync.replicas", "1", "min.insync.replicas=1, which confirms what only one server has: set it to 2"),
        ("unclean.leader.election.enable", "true", "set it to false"),
        ("cleanup.policy", "compact", "set it to delete"),
        ("cleanup.policy", "compact,delete", "set it to delete"),
        ("retention.ms", "604800000", "set it to -1"),
        ("retention.bytes", "1000", "set it to -1"),
        ("max.message.bytes", "1048588", f"set it to {MAX_BATCH}"),
    ],
)
def test_a_topic_that_breaks_the_promise_is_refused_in_one_line(name: str, value: str, said: str):
    broken = broken_promise("rabbitpy.log.x", 3, {**GOOD, name: value})
    assert broken is not None
    assert broken.startswith("topic rabbitpy.log.x has ")
    assert said in broken


def test_a_topic_with_fewer_than_three_replicas_is_refused():
    assert "has 2 replicas" in str(broken_promise("t", 2, GOOD))


@pytest.mark.parametrize("name", ["/", "a.b_c-D9", "Straße/🐇", "%_", ""])
def test_any_name_becomes_a_topic_and_back(name: str):
    topic = escaped(name)
    assert topic.replace("_", "").replace("-", "").isalnum() or not topic
    assert topic.isascii()
    assert unescaped(topic) == name


async def test_a_name_that_is_too_long_for_a_topic_is_refused():
    with pytest.raises(ValueError, match="too long"):
        KafkaEngine("kafka://one").log("/" * 100)
