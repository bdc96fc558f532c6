"""The engine on Kafka in KRaft mode, 3.7 or newer: a log is a topic with one partition, copied to three servers.

Topics are named `PREFIX.log.NAME`, `PREFIX.object.NUMBER` and `PREFIX.registry`. What the guarantees need of Kafka stands in
`settings.py`, how appends are done once and in order in `blocks.py`.

One of them is weaker by an instant: a leader that was stopped and replaced, and goes on, may say that the log ends earlier than
it does, until it hears that it leads no more. What it shows is never wrong, only less. A take-over does not depend on it, since
the position of its fence comes from an append; nor does the registry, which reads up to an append of its own.
"""

from __future__ import annotations

import asyncio
import logging
import re
from typing import Any

from aiokafka.protocol.admin import (
    ApiVersionRequest,
    CreateTopicsRequest,
    DeleteTopicsRequest,
    DescribeConfigsRequest,
)
from aiokafka.protocol.metadata import MetadataRequest

from rabbitpy_broker.cluster.engine import Engine
from rabbitpy_broker.cluster.kafka import settings as promises
from rabbitpy_broker.cluster.kafka.blocks import KafkaLog
from rabbitpy_broker.cluster.kafka.connections import BACKOFF, UNKNOWN_TOPIC, Brokers, Trouble, check
from rabbitpy_broker.cluster.kafka.names import KafkaRegistry
from rabbitpy_broker.cluster.kafka.objects import KafkaObjects
from rabbitpy_broker.cluster.kafka.table import Table
from rabbitpy_broker.cluster.log import ObjectStore, OutcomeUnknown, ReplicatedLog, Unavailable
from rabbitpy_broker.cluster.registry import Registry
from rabbitpy_broker.errors import StartError

logger = logging.getLogger(__name__)

TOPIC_EXISTS = 36
TOO_FEW_BROKERS = 38
TOPIC_RESOURCE = 2
LONGEST = 249  # characters of a topic's name


def escaped(name: str) -> str:
    """A name with nothing but ASCII letters, digits, hyphens and, for each other byte of its UTF-8, `_` and two hex digits."""
    return re.sub(rb"[^A-Za-z0-9-]", lambda found: b"_%02x" % found[0][0], name.encode()).decode()


def unescaped(name: str) -> str:
    return re.sub(rb"_([0-9a-f]{2})", lambda found: bytes([int(found[1], 16)]), name.encode()).decode()


class Topics:
    """Makes and removes topics, and waits until all brokers that can be reached know."""

    def __init__(self, brokers: Brokers) -> None:
        self._brokers = brokers

    async def create(self, topic: str) -> None:
        """Raises `StartError` if there are fewer brokers than copies, `Unavailable`, `OutcomeUnknown`."""
        settings = self._brokers.settings
        new: Any = (topic, 1, settings.replication, [], list(settings.topic_configs().items()))
        request = CreateTopicsRequest([new], int(settings.answer_timeout * 1000), False)
        await self._change(request, topic, {0, TOPIC_EXISTS}, there=True)

    async def delete(self, topic: str) -> None:
        request = DeleteTopicsRequest([topic], int(self._brokers.settings.answer_timeout * 1000))
        await self._change(request, topic, {0, UNKNOWN_TOPIC}, there=False)
        self._brokers.forget_leader(topic)

    async def list(self, prefix: str) -> dict[str, int]:
        """The topics with a prefix, and how many replicas they have. Raises `Unavailable`."""
        try:
            return await self._brokers.topics(prefix)
        except Trouble as exc:
            raise Unavailable(f"kafka: {exc}") from exc

    async def _change(self, request: object, topic: str, well: set[int], *, there: bool) -> None:
        unsure = False
        try:
            async with asyncio.timeout(self._brokers.settings.timeout):
                while True:
                    try:
                        answer = await self._brokers.ask_any(request)
                        results = answer.get("topic_errors") or answer.get("topic_error_codes") or []
                        code = results[0]["error_code"]
                        if code == TOO_FEW_BROKERS:
                            copies = self._brokers.settings.replication
                            raise StartError(f"kafka: there are fewer than {copies} brokers for {copies} copies")
                        check(0 if code in well else code)
                        break
                    except Trouble as exc:
                        unsure = unsure or exc.unsure
                        if not exc.passing:
                            raise (OutcomeUnknown if unsure else Unavailable)(f"kafka: {topic}: {exc}") from exc
                    await asyncio.sleep(BACKOFF)
                unsure = True
                while not await self._all_know(topic, there=there):  # noqa: ASYNC110 - what is waited for is elsewhere
                    await asyncio.sleep(BACKOFF)
        except TimeoutError:
            raise (OutcomeUnknown if unsure else Unavailable)(f"kafka: {topic}: no answer in time") from None

    async def _all_know(self, topic: str, *, there: bool) -> bool:
        answers = await self._brokers.ask_all(MetadataRequest([topic], False))
        found = [answer["topics"][0] for answer in answers]
        if there:
            return bool(found) and all(one["partitions"] and one["partitions"][0]["leader"] >= 0 for one in found)
        return bool(found) and all(one["error_code"] == UNKNOWN_TOPIC for one in found)


class KafkaEngine(Engine):
    """Raises `StartError` at once if the URL asks for what the guarantees forbid."""

    max_block = promises.MAX_BLOCK

    def __init__(self, url: str) -> None:
        self._settings = promises.parse(url)
        self._brokers = Brokers(self._settings)
        self._topics = Topics(self._brokers)
        prefix = self._settings.prefix
        self._logs = f"{prefix}.log."
        self._registry_topic = f"{prefix}.registry"
        self._table = Table(KafkaLog(self._brokers, "registry", self._registry_topic), self._brokers)
        self.registry: Registry = KafkaRegistry(self._table)
        self.objects: ObjectStore = KafkaObjects(self._brokers, self._topics, self._table, f"{prefix}.object.")

    async def start(self) -> None:
        try:
            answer = await self._brokers.ask_any(ApiVersionRequest())
        except Trouble as exc:
            raise Unavailable(f"kafka: {exc}") from exc
        if all(api["api_key"] != promises.API_OF_3_7 for api in answer["api_versions"]):
            raise StartError("kafka: the brokers are older than 3.7, which may show what they then take back: update them")
        await self._topics.create(self._registry_topic)
        await self._check_topics()
        self._table.start()

    async def stop(self) -> None:
        await self._brokers.stop()

    async def create_log(self, name: str) -> None:
        await self._topics.create(self._topic(name))

    async def delete_log(self, name: str) -> None:
        await self._topics.delete(self._topic(name))

    async def logs(self) -> list[str]:
        return sorted(unescaped(topic.removeprefix(self._logs)) for topic in await self._topics.list(self._logs))

    def log(self, name: str) -> ReplicatedLog:
        return KafkaLog(self._brokers, name, self._topic(name))

    def _topic(self, name: str) -> str:
        topic = self._logs + escaped(name)
        if len(topic) > LONGEST:
            raise ValueError(f"the name {name!r} is too long for a topic of Kafka")
        return topic

    async def _check_topics(self) -> None:
        topics = await self._topics.list(f"{self._settings.prefix}.")
        try:
            answer = await self._brokers.ask_any(DescribeConfigsRequest([(TOPIC_RESOURCE, topic, None) for topic in topics]))
        except Trouble as exc:
            raise Unavailable(f"kafka: {exc}") from exc
        unflushed = []
        for found in answer["resources"]:
            if found["error_code"] == UNKNOWN_TOPIC:  # deleted in between
                continue
            configs = {entry["config_names"]: entry["config_value"] for entry in found["config_entries"]}
            topic = found["resource_name"]
            broken = promises.broken_promise(topic, topics[topic], configs)
            if broken is not None:
                raise StartError(f"kafka: {broken}")
            if configs["flush.messages"] != "1":
                unflushed.append(topic)
        if unflushed:
            logger.warning(
                "kafka: without flush.messages=1 a power cut of all servers at once loses what was confirmed: %d topics, %s, ...",
                len(unflushed), unflushed[0],
            )  # fmt: skip
