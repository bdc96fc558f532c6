"""What a Kafka engine's URL says, and the settings with which an append that returned could be lost: they are refused.

    kafka://[user:password@]host:port,host:port[/prefix][?option=value&...]

Durable on a quorum means for Kafka: a block is acknowledged when all replicas in sync have it (acks=all), these are never fewer
than `min_insync`, and only one of them becomes leader. A topic keeps these settings itself, and is made with them; those that
are there already are looked at when an engine starts.
"""

from __future__ import annotations

import urllib.parse
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from rabbitpy_broker.cluster.urls import split
from rabbitpy_broker.errors import StartError

DEFAULT_PORT: Final = 9092
MAX_BLOCK: Final = 8 << 20
MAX_BATCH: Final = MAX_BLOCK + (64 << 10)  # bytes, with what Kafka puts around a block
SEGMENT: Final = 128 << 20  # bytes of a file; a trim removes whole files
# An API that came with Kafka 3.7 (ListClientMetricsResources). Older ones show readers entries that only the leader has, when the
# other replicas have fallen out of sync (KAFKA-15583), and such an entry may be taken back.
API_OF_3_7: Final = 74


@dataclass(frozen=True)
class Settings:
    """`timeout`: seconds until an append that nobody acknowledges has an unknown outcome. A new leader is there after 10 s with
    Kafka's defaults.
    """

    servers: tuple[tuple[str, int], ...]
    prefix: str = "rabbitpy"
    user: str | None = None
    password: str | None = None
    sasl: str = "SCRAM-SHA-512"
    tls: bool = False
    ca: str | None = None
    replication: int = 3
    min_insync: int = 2
    flush: bool = True
    timeout: float = 30.0

    @property
    def answer_timeout(self) -> float:
        """Seconds for one answer; then the leader is looked for again."""
        return self.timeout / 4

    def topic_configs(self) -> dict[str, str]:
        """Of every topic that is made: nothing goes by itself, nothing is merged, and a confirmed entry never goes at all."""
        return {
            "min.insync.replicas": str(self.min_insync),
            "unclean.leader.election.enable": "false",
            "cleanup.policy": "delete",
            "retention.ms": "-1",
            "retention.bytes": "-1",
            "max.message.bytes": str(MAX_BATCH),
            "message.timestamp.type": "LogAppendTime",  # a clock that is wrong refuses nothing
            "compression.type": "producer",
            "segment.bytes": str(SEGMENT),
            **({"flush.messages": "1"} if self.flush else {}),
        }


def parse(url: str) -> Settings:
    """The settings in a URL. Raises `StartError` with one line if it is wrong, or would make the guarantees untrue."""
    netloc, parts = split(url)
    options = dict(urllib.parse.parse_qsl(parts.query, keep_blank_values=True))
    login, _, servers = netloc.rpartition("@")
    user, _, password = login.partition(":")
    try:
        settings = Settings(
            servers=tuple(address(server) for server in servers.split(",") if server),
            prefix=urllib.parse.unquote(parts.path.strip("/")) or "rabbitpy",
            user=urllib.parse.unquote(user) or None,
            password=urllib.parse.unquote(password) if user else None,
            sasl=options.pop("sasl", "SCRAM-SHA-512").upper(),
            tls=truth(options.pop("tls", "false")),
            ca=options.pop("ca", None),
            replication=int(options.pop("replication", "3")),
            min_insync=int(options.pop("min_insync", "2")),
            flush=truth(options.pop("flush", "true")),
            timeout=float(options.pop("timeout", "30")),
        )
    except ValueError as exc:
        raise StartError(f"kafka: the URL is wrong: {exc}") from exc
    refuse(settings, options)
    return settings


def address(server: str) -> tuple[str, int]:
    host, colon, port = server.rpartition(":")
    if not colon or port.endswith("]"):
        host, port = server, str(DEFAULT_PORT)
    return host.strip("[]"), int(port)


def truth(value: str) -> bool:
    if value.lower() not in ("true", "false"):
        raise ValueError(f"{value!r} is neither true nor false")
    return value.lower() == "true"


def refuse(settings: Settings, others: Mapping[str, str]) -> None:
    """Raises `StartError` for what an option asks and the guarantees forbid. `others` are the options that have no field."""
    reason = None
    if not settings.servers:
        reason = "the URL names no server: kafka://host:9092,host:9092"
    elif not settings.prefix.replace("-", "").isalnum() or not settings.prefix.isascii() or len(settings.prefix) > 40:
        reason = f"the prefix {settings.prefix!r} must be up to 40 letters, digits and hyphens"
    elif others.get("acks", "all") not in ("all", "-1"):
        reason = f"acks is {others['acks']}, which confirms what only the leader has: take it out of the URL"
    elif others.get("unclean", "false") != "false":
        reason = "unclean leaders lose what was confirmed: take unclean out of the URL"
    elif unknown := set(others) - {"acks", "unclean"}:
        reason = f"the URL has an option that is not known: {min(unknown)}"
    elif settings.replication < 3:
        reason = f"replication is {settings.replication}: three copies are the fewest that one can be lost of"
    elif settings.min_insync < 2:
        reason = f"min_insync is {settings.min_insync}, which confirms what only one server has: set it to 2"
    elif settings.min_insync >= settings.replication:
        reason = f"min_insync is {settings.min_insync} of {settings.replication}: no server could be missed, set it lower"
    elif settings.timeout <= 0:
        reason = f"timeout is {settings.timeout:g}: it must be above 0"
    if reason is not None:
        raise StartError(f"kafka: {reason}")


def broken_promise(topic: str, replicas: int, configs: Mapping[str, str]) -> str | None:
    """One line that says which setting of a topic is wrong and what it should be, or None."""
    if replicas < 3:
        return f"topic {topic} has {replicas} replicas: give it 3 (kafka-reassign-partitions.sh)"
    wanted = {
        "unclean.leader.election.enable": ("false", "a leader that lacks what was confirmed could be chosen"),
        "cleanup.policy": ("delete", "entries would vanish from the middle"),
        "retention.ms": ("-1", "entries would vanish by themselves"),
        "retention.bytes": ("-1", "entries would vanish by themselves"),
    }
    if int(configs["min.insync.replicas"]) < 2:
        return (
            f"topic {topic} has min.insync.replicas={configs['min.insync.replicas']}, which confirms what only one server has: "
            "set it to 2 (kafka-configs.sh)"
        )
    for name, (value, why) in wanted.items():
        if configs[name] != value:
            return f"topic {topic} has {name}={configs[name]}, {why}: set it to {value} (kafka-configs.sh)"
    if int(configs["max.message.bytes"]) < MAX_BATCH:
        return f"topic {topic} has max.message.bytes={configs['max.message.bytes']}: set it to {MAX_BATCH} (kafka-configs.sh)"
    return None
