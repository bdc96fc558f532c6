"""The options of the format `amqp`, read from the strings that Spark hands over and checked before anything is opened.

Spark lowers the case of names. A name that is not known is an error, and says which ones there are: an option that is
misspelt would otherwise be a default that nobody wanted. No text here holds a password or a URL.
"""

from __future__ import annotations

import dataclasses
import json
import ssl
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pika

from rabbitpy_broker.pipeline.errors import PipelineError

HEARTBEAT_S: Final = 60
MAX_PREFETCH: Final = 65_535  # basic.qos has 16 bits for it
STREAM: Final = "stream"
# What Spark itself puts among the options of a query.
SPARKS_OWN: Final = {"path", "checkpointlocation", "queryname", "outputmode", "triggerinterval"}


@dataclass(frozen=True)
class Address:
    """Where the broker is and who logs in: either `url`, or the others. The three files are of TLS, for an amqps URL."""

    host: str = "127.0.0.1"
    port: int = 5672
    vhost: str = "/"
    user: str = "guest"
    password: str = dataclasses.field(default="guest", repr=False)
    url: str = dataclasses.field(default="", repr=False)
    heartbeat: int | None = None
    cacertfile: str = ""
    certfile: str = ""
    keyfile: str = ""

    def parameters(self) -> pika.ConnectionParameters:
        """pika's parameters. Raises PipelineError when the URL is none, or a file of TLS cannot be read."""
        if self.url:
            wrong = PipelineError("option url is not of the form amqp://user:password@host:port/vhost")
            if not self.url.startswith(("amqp://", "amqps://")):
                raise wrong
            try:
                parameters: pika.ConnectionParameters = pika.URLParameters(self.url)
            except (ValueError, TypeError):  # whose texts may hold a part of the password
                raise wrong from None
        else:
            parameters = pika.ConnectionParameters(
                host=self.host,
                port=self.port,
                virtual_host=self.vhost,
                credentials=pika.PlainCredentials(self.user, self.password, erase_on_connect=False),
            )
        if self.cacertfile or self.certfile or self.keyfile:
            if not self.url.startswith("amqps://"):
                raise PipelineError("options cacertfile, certfile and keyfile are for a URL with amqps://")
            parameters.ssl_options = pika.SSLOptions(self._tls(), parameters.host)
        if self.heartbeat is not None:
            parameters.heartbeat = self.heartbeat
        elif parameters.heartbeat is None:  # the URL may say it
            parameters.heartbeat = HEARTBEAT_S
        parameters.connection_attempts = 1  # attempts are counted by those who connect
        parameters.client_properties = {"product": "rabbitpy-broker pipeline"}
        return parameters

    def _tls(self) -> ssl.SSLContext:
        try:
            context = ssl.create_default_context(cafile=self.cacertfile or None)
            if self.certfile or self.keyfile:
                context.load_cert_chain(self.certfile, self.keyfile or None)
        except OSError as error:  # ssl.SSLError is one
            raise PipelineError(f"option cacertfile, certfile or keyfile: {error}") from None
        return context


@dataclass(frozen=True)
class ReadOptions:
    """See the table in this package's docstring."""

    address: Address
    queue: str
    mode: str = "direct"
    spool_dir: str = ""
    max_messages_per_trigger: int = 10_000
    max_bytes_per_trigger: int = 256 * 1024 * 1024
    max_wait_ms: int = 200
    prefetch_count: int = 0
    num_partitions: int = 2
    segment_rows: int = 10_000
    max_spool_bytes: int = 4 * 1024**3
    include_headers: bool = True
    headers_as: str = "map"
    fail_on_data_loss: bool = True
    connection_attempts: int = 10
    retry_delay_ms: int = 1_000
    consumer_tag: str = ""
    consumer_priority: int = 0
    limit: int = 10_000

    @classmethod
    def of(cls, options: Mapping[str, str]) -> ReadOptions:
        given = _Given(options)
        address = given.address()
        limit = given.number("maxMessagesPerTrigger", cls.max_messages_per_trigger, least=1, aliases=("maxOffsetsPerTrigger",))
        spool_dir = given.text("spoolDir", "")
        mode = given.one_of("mode", "spool" if spool_dir else "direct", "spool", "direct", STREAM)
        if (mode == "spool") != bool(spool_dir):
            raise PipelineError("option spoolDir: mode spool needs it, and mode direct has none")
        made = cls(
            address=address,
            queue=given.required("queue"),
            mode=mode,
            spool_dir=spool_dir,
            max_messages_per_trigger=limit,
            max_bytes_per_trigger=given.number("maxBytesPerTrigger", cls.max_bytes_per_trigger, least=1),
            max_wait_ms=given.number("maxWaitMs", cls.max_wait_ms),
            prefetch_count=given.number(
                "prefetchCount", min(2 * limit + 1000, MAX_PREFETCH), least=1, most=MAX_PREFETCH
            ),
            num_partitions=given.number("numPartitions", cls.num_partitions, least=1),
            segment_rows=given.number("segmentRows", cls.segment_rows, least=1),
            max_spool_bytes=given.number("maxSpoolBytes", cls.max_spool_bytes, least=1),
            include_headers=given.flag("includeHeaders", cls.include_headers),
            headers_as=given.one_of("headersAs", cls.headers_as, "map", "json"),
            fail_on_data_loss=given.flag("failOnDataLoss", cls.fail_on_data_loss),
            connection_attempts=given.number("connectionAttempts", cls.connection_attempts, least=1),
            retry_delay_ms=given.number("retryDelayMs", cls.retry_delay_ms),
            consumer_tag=given.text("consumerTag", ""),
            consumer_priority=given.number("consumerPriority", 0, least=-(2**31)),
            limit=given.number("limit", cls.limit, least=1, most=MAX_PREFETCH),
        )
        given.refuse_others()
        return made


@dataclass(frozen=True)
class StreamOptions:
    """Of mode `stream`: see the table in this package's docstring. Either `queues` or `super_stream` says what to read."""

    address: Address
    queues: tuple[str, ...]
    super_stream: str = ""
    starting: str = "earliest"
    ending: str = "latest"
    max_records_per_trigger: int = 1_000_000
    min_partitions: int = 2
    max_wait_ms: int = 200
    prefetch_count: int = 5_000
    include_headers: bool = True
    headers_as: str = "map"
    fail_on_data_loss: bool = True
    connection_attempts: int = 10
    retry_delay_ms: int = 1_000

    @classmethod
    def asked_for(cls, options: Mapping[str, str]) -> bool:
        """True when the options are of this mode."""
        return any(name.lower() == "mode" and value.lower() == STREAM for name, value in options.items())

    @classmethod
    def of(cls, options: Mapping[str, str]) -> StreamOptions:
        given = _Given(options)
        given.one_of("mode", STREAM, STREAM)
        queues = given.names("queue") + given.names("queues", is_list=True)
        super_stream = given.text("superStream", "")
        if bool(queues) == bool(super_stream) or len(set(queues)) != len(queues):
            raise PipelineError("one of the options queue, queues and superStream is needed, and each stream once")
        aliases = ("maxOffsetsPerTrigger", "maxMessagesPerTrigger")
        made = cls(
            address=given.address(),
            queues=queues,
            super_stream=super_stream,
            starting=given.text("startingOffsets", cls.starting),
            ending=given.text("endingOffsets", cls.ending),
            max_records_per_trigger=given.number(
                "maxRecordsPerTrigger", cls.max_records_per_trigger, 1, aliases=aliases
            ),
            min_partitions=given.number("minPartitions", cls.min_partitions, 1, aliases=("numPartitions",)),
            max_wait_ms=given.number("maxWaitMs", cls.max_wait_ms),
            prefetch_count=given.number("prefetchCount", cls.prefetch_count, least=1, most=MAX_PREFETCH),
            include_headers=given.flag("includeHeaders", cls.include_headers),
            headers_as=given.one_of("headersAs", cls.headers_as, "map", "json"),
            fail_on_data_loss=given.flag("failOnDataLoss", cls.fail_on_data_loss),
            connection_attempts=given.number("connectionAttempts", cls.connection_attempts, least=1),
            retry_delay_ms=given.number("retryDelayMs", cls.retry_delay_ms),
        )
        given.refuse_others()
        return made


@dataclass(frozen=True)
class WriteOptions:
    """See the table in this package's docstring. `exchange` and `routing_key` are None where a column says them."""

    address: Address
    exchange: str | None = None
    routing_key: str | None = None
    mandatory: bool = True
    confirm_timeout_ms: int = 30_000
    max_in_flight: int = 5_000
    delivery_mode: int = 2
    stamp_batch: bool = False

    @classmethod
    def of(cls, options: Mapping[str, str]) -> WriteOptions:
        given = _Given(options)
        made = cls(
            address=given.address(),
            exchange=given.text("exchange", None),
            routing_key=given.text("routingKey", None),
            mandatory=given.flag("mandatory", cls.mandatory),
            confirm_timeout_ms=given.number("confirmTimeoutMs", cls.confirm_timeout_ms, least=1),
            max_in_flight=given.number("maxInFlight", cls.max_in_flight, least=1),
            delivery_mode=given.number("deliveryMode", cls.delivery_mode, least=1, most=2),
            stamp_batch=given.flag("stampBatch", cls.stamp_batch),
        )
        given.refuse_others()
        return made


class _Given:
    """What was given, by names in lower case, and which names were asked for."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self._values = {name.lower(): value for name, value in options.items()}
        self._known: list[str] = []

    def address(self) -> Address:
        url = self.text("url", "")
        parts = {field: self.text(field, None) for field in ("host", "vhost", "user", "password")}
        named = {field: value for field, value in parts.items() if value is not None}
        port = self.number("port", Address.port, least=1, most=65_535)
        if url and (named or "port" in self._values):
            raise PipelineError("option url: it says host, port, vhost, user and password; give either it or them")
        heartbeat = self.number("heartbeat", HEARTBEAT_S) if self.text("heartbeat", None) is not None else None
        files = {field: str(self.text(field, "")) for field in ("cacertfile", "certfile", "keyfile")}
        address = Address(url=url, port=port, heartbeat=heartbeat, **named, **files)
        address.parameters()
        return address

    def text(self, name: str, default: Any) -> Any:
        self._known.append(name)
        return self._values.get(name.lower(), default)

    def required(self, name: str) -> str:
        value = self.text(name, "")
        if not value:
            raise PipelineError(f"option {name} is missing")
        return str(value)

    def names(self, name: str, is_list: bool = False) -> tuple[str, ...]:
        """The one name, or the names of a list between commas or as JSON."""
        value = str(self.text(name, ""))
        if not is_list or not value:
            return (value,) if value else ()
        if not value.startswith("["):
            return tuple(part.strip() for part in value.split(","))
        try:
            return tuple(map(str, json.loads(value)))
        except ValueError:
            raise PipelineError(f"option {name}: {value!r} is no list of JSON") from None

    def number(
        self, name: str, default: int, least: int = 0, most: int = 2**63 - 1, aliases: Sequence[str] = ()
    ) -> int:
        """The first that is given of the option and its other names."""
        found = [self.text(each, None) for each in (*aliases, name)]
        value = next((each for each in reversed(found) if each is not None), None)
        if value is None:
            return default
        return self._checked(name, value, int, lambda number: least <= number <= most, f"from {least} to {most}")

    def flag(self, name: str, default: bool) -> bool:
        value = self.one_of(name, str(default).lower(), "true", "false")
        return value == "true"

    def one_of(self, name: str, default: str, *allowed: str) -> str:
        value = str(self.text(name, default)).lower()
        if value not in allowed:
            raise PipelineError(f"option {name}: {value!r} is not one of {', '.join(allowed)}")
        return value

    def refuse_others(self) -> None:
        known = {name.lower() for name in self._known} | SPARKS_OWN
        others = sorted(set(self._values) - known)
        if others:
            raise PipelineError(f"unknown option {', '.join(others)}; there are {', '.join(sorted(self._known))}")

    @staticmethod
    def _checked(
        name: str, value: str, read: Callable[[str], int], fits: Callable[[int], bool], what: str
    ) -> int:
        try:
            number = read(value)
        except ValueError:
            raise PipelineError(f"option {name}: {value!r} is no whole number") from None
        if not fits(number):
            raise PipelineError(f"option {name}: {value} is not {what}")
        return number
