"""Every setting of the broker: its name, default, unit and limits, and how a configuration is put together.

Keys are flat in the file and carry RabbitMQ's names, with a table only where RabbitMQ has one (`ssl_options.certfile`).
In the code they stand in parts, one for each receiver, and a part is handed to the constructor that needs it: nothing
imports a configuration, and nothing below `daemon.py` sees the whole.

What must stay true:
- a key stands in exactly one part, so that a flat name is enough (`_index_keys` fails at import otherwise);
- a later source replaces a key as a whole: file, then environment, then command line;
- an unknown key or a bad value is a `ConfigError` that names the key and where it was set, never its value, which may
  be a password;
- `config/rabbitpy.toml` and `docs/configuration.md` list every key with its default (a test compares them).

0 means "no limit" or "off" wherever RabbitMQ would say `infinity` or 0.
"""

from __future__ import annotations

import os
import re
import socket
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final, Literal, NamedTuple, TypeVar

import msgspec
import platformdirs
from msgspec import Meta, Struct

from rabbitpy_broker.errors import ConfigError
from rabbitpy_broker.thresholds import LARGEST, UNIT_BYTES, Threshold

ENV_PREFIX: Final = "RABBITPY_"

# Names with our prefix that are no settings: those of the build and of the tests, and those that Kubernetes puts into
# every container beside a service called "rabbitpy" or "rabbitpy-broker". Any other unknown name is taken for a typing error.
_ENV_NOT_SETTINGS: Final = tuple(
    ENV_PREFIX + rest for rest in ("COMPILE", "EXPECT_", "REQUIRE_", "TEST_", "PERF_", "BROKER_", "SERVICE_", "PORT")
)

# The official RabbitMQ image is configured by these; they give way to RABBITPY_DEFAULT_USER and so on.
_ENV_OF_RABBITMQ: Final = {
    "RABBITMQ_DEFAULT_USER": "default_user",
    "RABBITMQ_DEFAULT_PASS": "default_pass",
    "RABBITMQ_DEFAULT_VHOST": "default_vhost",
}

FRAME_MIN_SIZE: Final = 4096  # AMQP 0-9-1, section 4.2.3: a peer must accept frames up to this size before tuning
DISK_LIMIT_FACTOR_MAX: Final = 1e9  # times the memory; no disk is so large
EVENT_SEGMENT_MIN_SIZE: Final = 4_896  # the header and a hundred events
_AGE_UNITS: Final = {"Y": 31_536_000, "M": 2_592_000, "D": 86_400, "h": 3_600, "m": 60, "s": 1}  # of streams' max-age
STORE_FILE_MIN_SIZE: Final = 4096  # below it nearly every message would have a file, and a descriptor, of its own

Count = Annotated[int, Meta(ge=0)]
Milliseconds = Annotated[int, Meta(ge=1)]
U16 = Annotated[int, Meta(ge=0, le=65535)]
Name = Annotated[str, Meta(min_length=1, max_length=255)]


# A host that means all addresses of the machine is none to connect to: what stands for it.
LOOPBACK: Final = {"0.0.0.0": "127.0.0.1", "::": "::1"}


def split_address(address: str) -> tuple[str, int]:
    """`HOST:PORT` or `[IPV6]:PORT` -> host and port; port 0 asks the system for a free one. Raises ValueError."""
    host, colon, port = address.rpartition(":")
    bracketed = host.startswith("[") and host.endswith("]")
    if not colon or not host or (":" in host and not bracketed):
        raise ValueError("must be HOST:PORT, an IPv6 host in brackets")
    if not (port.isascii() and port.isdigit() and int(port) <= 65535):
        raise ValueError("the port must be a number from 0 to 65535")
    return host[1:-1] if bracketed else host, int(port)


def _number(text: str) -> float | int | str:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def _size_bytes(key: str, size: int | str) -> int:
    if isinstance(size, str):
        match = re.fullmatch(r"\s*(\d+)\s*([a-zA-Z]*)\s*", size)
        if match is None or match[2].lower() not in UNIT_BYTES:
            raise ValueError(f"{key}: must be a number of bytes, or one with a unit such as 512MiB or 50MB")
        return min(int(match[1]) * UNIT_BYTES[match[2].lower()], LARGEST)
    if size < 0:
        raise ValueError(f"{key}: must not be negative")
    return min(size, LARGEST)


class SslOptions(Struct, frozen=True, forbid_unknown_fields=True):
    """Certificates of the TLS listeners: PEM files, read at start and by `rabbitpy-ctl reload_tls`."""

    certfile: str = ""
    keyfile: str = ""
    cacertfile: str = ""
    crlfile: str = ""
    verify: Literal["verify_none", "verify_peer"] = "verify_none"
    fail_if_no_peer_cert: bool = False

    def __post_init__(self) -> None:
        if self.verify == "verify_peer" and not self.cacertfile:
            raise ValueError("ssl_options.cacertfile: needed when ssl_options.verify is verify_peer")
        if self.fail_if_no_peer_cert and self.verify != "verify_peer":
            raise ValueError("ssl_options.fail_if_no_peer_cert: needs ssl_options.verify = verify_peer")
        if self.crlfile and self.verify != "verify_peer":
            raise ValueError("ssl_options.crlfile: needs ssl_options.verify = verify_peer")


class TcpListenOptions(Struct, frozen=True, forbid_unknown_fields=True):
    """What the listening sockets are opened with, and how long a client may take nothing of what is sent to it."""

    backlog: Annotated[int, Meta(ge=1, le=65535)] = 128
    send_timeout: Count = 30_000


class NetConfig(Struct, frozen=True, forbid_unknown_fields=True):
    """For `net/` and the metrics endpoint: where to listen, and what one connection may take of a turn."""

    listeners: tuple[str, ...] = ("0.0.0.0:5672",)
    listeners_ssl: tuple[str, ...] = ()
    ssl_options: SslOptions = SslOptions()
    tcp_listen_options: TcpListenOptions = TcpListenOptions()
    metrics_listen: str = "0.0.0.0:15692"
    management_listen: str = "auto"
    connection_max: Count = 0
    read_share_bytes: Annotated[int, Meta(ge=FRAME_MIN_SIZE)] = 131_072
    turn_rest_us: Annotated[int, Meta(ge=0, le=10_000)] = 500
    output_high_watermark_bytes: Annotated[int, Meta(ge=FRAME_MIN_SIZE)] = 1_048_576

    def __post_init__(self) -> None:
        for key, addresses in (
            ("listeners", self.listeners),
            ("listeners_ssl", self.listeners_ssl),
            ("metrics_listen", (self.metrics_listen,) if self.metrics_listen else ()),
            ("management_listen", () if self.management_listen in ("", "auto") else (self.management_listen,)),
        ):
            for address in addresses:
                try:
                    split_address(address)
                except ValueError as error:
                    raise ValueError(f"{key}: {error}") from None
        if self.listeners_ssl and not (self.ssl_options.certfile and self.ssl_options.keyfile):
            raise ValueError("listeners_ssl: needs ssl_options.certfile and ssl_options.keyfile")


class ProtocolConfig(Struct, frozen=True, forbid_unknown_fields=True):
    """For `protocol/`: what is offered in connection.tune, and what a client may send."""

    channel_max: U16 = 2047
    frame_max: Annotated[int, Meta(ge=0, le=2**31 - 1)] = 131_072
    initial_frame_max: Annotated[int, Meta(ge=FRAME_MIN_SIZE, le=2**31 - 1)] = FRAME_MIN_SIZE
    heartbeat: U16 = 60
    handshake_timeout: Milliseconds = 10_000
    max_message_size: Annotated[int, Meta(ge=1, le=536_870_912)] = 134_217_728
    consumer_timeout: Count = 1_800_000

    def __post_init__(self) -> None:
        if 0 < self.frame_max < FRAME_MIN_SIZE:
            raise ValueError(f"frame_max: must be 0 (no limit) or at least {FRAME_MIN_SIZE}")


class DefaultPermissions(Struct, frozen=True, forbid_unknown_fields=True):
    """The default user's permissions on the default vhost: regular expressions over resource names."""

    configure: str = ".*"
    write: str = ".*"
    read: str = ".*"

    def __post_init__(self) -> None:
        for key in self.__struct_fields__:
            try:
                re.compile(getattr(self, key))
            except re.error as error:
                raise ValueError(f"default_permissions.{key}: no regular expression: {error}") from None


MECHANISMS: Final = frozenset({"PLAIN", "AMQPLAIN", "EXTERNAL"})

# What RabbitMQ takes for the name of a back end, and ours for it.
AUTH_BACKENDS: Final = {
    "internal": "internal",
    "rabbit_auth_backend_internal": "internal",
    "http": "http",
    "rabbit_auth_backend_http": "http",
    "oauth": "oauth2",
    "oauth2": "oauth2",
    "rabbit_auth_backend_oauth2": "oauth2",
    "cache": "cache",
    "rabbit_auth_backend_cache": "cache",
}


class SplitBackend(Struct, frozen=True, forbid_unknown_fields=True):
    """One back end says who somebody is, another one what they may do."""

    authn: str
    authz: str


def _backend_name(key: str, name: str) -> str:
    if name not in AUTH_BACKENDS:
        raise ValueError(f"{key}: there is no back end '{name}': there are internal, http, oauth2 and cache")
    return AUTH_BACKENDS[name]


class AuthHttpSsl(Struct, frozen=True, forbid_unknown_fields=True):
    """How the HTTP back end is known, and knows us: PEM files. Without authorities, the system's."""

    cacertfile: str = ""
    certfile: str = ""
    keyfile: str = ""
    verify: Literal["verify_none", "verify_peer"] = "verify_peer"


class AuthHttp(Struct, frozen=True, forbid_unknown_fields=True):
    """The HTTP back end: whom to ask what. Times are in milliseconds."""

    http_method: Literal["get", "post"] = "get"
    user_path: str = "http://localhost:8000/auth/user"
    vhost_path: str = "http://localhost:8000/auth/vhost"
    resource_path: str = "http://localhost:8000/auth/resource"
    topic_path: str = "http://localhost:8000/auth/topic"
    connection_timeout: Milliseconds = 15_000
    request_timeout: Milliseconds = 15_000
    ssl_options: AuthHttpSsl = AuthHttpSsl()

    def __post_init__(self) -> None:
        for key in ("user_path", "vhost_path", "resource_path", "topic_path"):
            if not getattr(self, key).startswith(("http://", "https://")):
                raise ValueError(f"auth_http.{key}: must begin with http:// or https://")


class AuthCache(Struct, frozen=True, forbid_unknown_fields=True):
    """How long answers are kept, and whose the back end `cache` keeps."""

    cached_backend: str = "http"
    cache_ttl: Annotated[int, Meta(ge=1_000)] = 15_000

    def __post_init__(self) -> None:
        if _backend_name("auth_cache.cached_backend", self.cached_backend) == "cache":
            raise ValueError("auth_cache.cached_backend: must be another one")


class AuthOauth2Https(Struct, frozen=True, forbid_unknown_fields=True):
    """How whoever has the keys is known: a PEM file; without it, by the system's authorities."""

    cacertfile: str = ""
    peer_verification: Literal["verify_none", "verify_peer"] = "verify_peer"


class AuthOauth2(Struct, frozen=True, forbid_unknown_fields=True):
    """The OAuth 2 back end: whose tokens are taken, and what in them says what."""

    resource_server_id: str = ""
    scope_prefix: str = ""
    additional_scopes_key: str = ""
    preferred_username_claims: tuple[str, ...] = ()
    verify_aud: bool = True
    issuer: str = ""
    jwks_url: str = ""
    default_key: str = ""
    signing_keys: dict[str, str] = {}
    algorithms: tuple[str, ...] = ()
    https: AuthOauth2Https = AuthOauth2Https()

    def __post_init__(self) -> None:
        if "none" in map(str.lower, self.algorithms):
            raise ValueError("auth_oauth2.algorithms: none is not taken: it lets everybody sign")


class AuthConfig(Struct, frozen=True, forbid_unknown_fields=True):
    """For logging in: how clients say who they are, and who knows whether it is true and what they may do."""

    auth_mechanisms: tuple[str, ...] = ("PLAIN", "AMQPLAIN")
    auth_backends: tuple[str, ...] | dict[str, str | SplitBackend] = ("internal",)
    auth_http: AuthHttp = AuthHttp()
    auth_cache: AuthCache = AuthCache()
    auth_oauth2: AuthOauth2 = AuthOauth2()
    ssl_cert_login_from: Literal[
        "distinguished_name", "common_name", "subject_alternative_name", "subject_alt_name"
    ] = "distinguished_name"
    ssl_cert_login_san_type: Literal["dns", "ip", "email", "uri", "other_name"] = "dns"
    ssl_cert_login_san_index: Count = 0

    def __post_init__(self) -> None:
        unknown = [name for name in self.auth_mechanisms if name not in MECHANISMS]
        if unknown or not self.auth_mechanisms:
            raise ValueError(f"auth_mechanisms: must be some of {', '.join(sorted(MECHANISMS))}")
        oauth2 = self.auth_oauth2
        if self.takes_tokens():
            if not oauth2.resource_server_id:
                raise ValueError("auth_oauth2.resource_server_id: needed by the back end oauth2")
            if not (oauth2.signing_keys or oauth2.jwks_url or oauth2.issuer):
                raise ValueError("auth_oauth2: needs signing_keys, jwks_url or issuer, to know whose tokens to take")

    def takes_tokens(self) -> bool:
        """Whether the back end for OAuth 2 is one of those that are asked."""
        cached = _backend_name("auth_cache.cached_backend", self.auth_cache.cached_backend)
        return "oauth2" in {cached if name == "cache" else name for pair in self.backends() for name in pair}

    def backends(self) -> list[tuple[str, str]]:
        """Our names of who says who it is, and of who says what it may do, in their order."""
        given = self.auth_backends
        if isinstance(given, dict):
            if not all(number.isascii() and number.isdecimal() for number in given):
                raise ValueError("auth_backends: must be numbered, as in auth_backends.1")
            steps = [given[number] for number in sorted(given, key=int)]
        else:
            steps = list(given)
        if not steps:
            raise ValueError("auth_backends: names none, so nobody could log in")
        pairs = [(step, step) if isinstance(step, str) else (step.authn, step.authz) for step in steps]
        return [(_backend_name("auth_backends", authn), _backend_name("auth_backends", authz)) for authn, authz in pairs]


class UsersConfig(Struct, frozen=True, forbid_unknown_fields=True):
    """For users and vhosts: what a data directory that is still empty is filled with, and what a vhost may hold."""

    default_vhost: Name = "/"
    default_user: Name = "guest"
    default_pass: str = "guest"
    default_user_tags: tuple[str, ...] = ("administrator",)
    default_permissions: DefaultPermissions = DefaultPermissions()
    loopback_users: tuple[str, ...] = ("guest",)
    queue_max: Count = 0

    def __repr__(self) -> str:
        """Without the password, so that a configuration may be logged."""
        return f"UsersConfig(default_vhost={self.default_vhost!r}, default_user={self.default_user!r}, ...)"


class Mark(Struct, frozen=True, forbid_unknown_fields=True):
    """A limit that says itself what its number is, as in RabbitMQ: relative to the memory, or absolute."""

    relative: float | None = None
    absolute: int | str | None = None

    def __post_init__(self) -> None:
        if (self.relative is None) == (self.absolute is None):
            raise ValueError("must be either relative or absolute")

    def threshold(self, key: str, limits: tuple[float, float], complaint: str) -> Threshold:
        """Raises ValueError with the complaint when a relative one is not within the limits."""
        if self.absolute is not None:
            return Threshold(absolute=_size_bytes(f"{key}.absolute", self.absolute))
        relative = self.relative or 0.0
        if not limits[0] <= relative <= limits[1]:  # false for NaN too
            raise ValueError(f"{key}.relative: {complaint}")
        return Threshold(relative=relative)


class AlarmConfig(Struct, frozen=True, forbid_unknown_fields=True):
    """For the alarms that block publishing connections."""

    vm_memory_high_watermark: float | int | str | Mark = 0.4
    vm_memory_high_watermark_paging_ratio: Annotated[float, Meta(gt=0)] = 0.5
    disk_free_limit: int | str | Mark = "50MB"
    memory_monitor_interval: Milliseconds = 1_000

    def __post_init__(self) -> None:
        self.memory_threshold()
        self.disk_threshold()

    def memory_limit_bytes(self, available_bytes: int) -> int:
        """The watermark in bytes, on a machine or in a container that has `available_bytes`."""
        return self.memory_threshold().bytes_of(available_bytes)

    def memory_threshold(self) -> Threshold:
        """The watermark. A number that does not say what it is, is a fraction up to 1."""
        mark = self.vm_memory_high_watermark
        if isinstance(mark, Mark):
            return mark.threshold("vm_memory_high_watermark", (0, 1), "a fraction is from 0 to 1")
        if isinstance(mark, str):
            mark = _number(mark)
        if isinstance(mark, str):
            return Threshold(absolute=_size_bytes("vm_memory_high_watermark", mark))
        if not (0 <= mark <= 1 or (isinstance(mark, int) and mark > 1)):  # false for NaN too
            raise ValueError("vm_memory_high_watermark: a fraction is from 0 to 1, an absolute size a whole number")
        return Threshold(relative=float(mark)) if mark <= 1 else Threshold(absolute=int(mark))

    def disk_limit_bytes(self, available_bytes: int) -> int:
        """The free space below which the disk alarm is set, where there is so much memory."""
        return self.disk_threshold().bytes_of(available_bytes)

    def disk_threshold(self) -> Threshold:
        """The limit of the disk alarm. A number that does not say what it is, is a size."""
        limit = self.disk_free_limit
        if isinstance(limit, Mark):
            return limit.threshold("disk_free_limit", (0, DISK_LIMIT_FACTOR_MAX), "must not be negative")
        return Threshold(absolute=_size_bytes("disk_free_limit", limit))


class StoreConfig(Struct, frozen=True, forbid_unknown_fields=True):
    """For the store of each vhost: what goes where on the disk, and when a publisher is told."""

    confirm_mode: Literal["persist", "consumer-ack", "consumer-ack-light"] = "persist"
    queue_index_embed_msgs_below: int | str = 4096
    queue_index_max_journal_entries: Annotated[int, Meta(ge=1)] = 32_768
    msg_store_file_size_limit: int | str = "16MiB"

    def __post_init__(self) -> None:
        self.embed_below_bytes()
        if self.file_size_limit_bytes() < STORE_FILE_MIN_SIZE:
            raise ValueError(f"msg_store_file_size_limit: must be at least {STORE_FILE_MIN_SIZE}")

    def embed_below_bytes(self) -> int:
        """Messages from this size on go to the message store, smaller ones into the queue's index."""
        return _size_bytes("queue_index_embed_msgs_below", self.queue_index_embed_msgs_below)

    def file_size_limit_bytes(self) -> int:
        """A file of the message store takes no further message from this size on."""
        return _size_bytes("msg_store_file_size_limit", self.msg_store_file_size_limit)


class QueuesConfig(Struct, frozen=True, forbid_unknown_fields=True):
    """For the queues of all vhosts, where neither arguments nor policies say anything."""

    default_queue_type: Literal["classic", "quorum", "stream"] = "classic"
    quorum_delivery_limit: Annotated[int, Meta(ge=-1)] = 20
    quorum_priorities: bool = True


class EventsConfig(Struct, frozen=True, forbid_unknown_fields=True):
    """For the event journal: whether there is one, where, and how much of it is kept."""

    event_journal: Literal["off", "on"] = "off"
    event_journal_dir: str = ""
    event_journal_segment_size: int | str = "64MiB"
    event_journal_max_size: int | str = "4GiB"
    event_journal_max_age: str = ""

    def __post_init__(self) -> None:
        if self.segment_size_bytes() < EVENT_SEGMENT_MIN_SIZE:
            raise ValueError(f"event_journal_segment_size: must be at least {EVENT_SEGMENT_MIN_SIZE}")
        self.max_size_bytes()
        self.max_age_s()

    def segment_size_bytes(self) -> int:
        """A segment takes no further events from this size on."""
        return _size_bytes("event_journal_segment_size", self.event_journal_segment_size)

    def max_size_bytes(self) -> int:
        """Of all segments; 0: no limit."""
        return _size_bytes("event_journal_max_size", self.event_journal_max_size)

    def max_age_s(self) -> int:
        """Of a segment that is kept; 0: no limit."""
        age = self.event_journal_max_age
        if not age:
            return 0
        number, unit = age[:-1], age[-1]
        if unit not in _AGE_UNITS or not (number.isascii() and number.isdecimal()):
            raise ValueError('event_journal_max_age: must be a number and one of Y, M, D, h, m, s, such as "7D"')
        return int(number) * _AGE_UNITS[unit]

    def path(self, data_path: Path) -> Path:
        """The folder of the segments; not made here."""
        return Path(self.event_journal_dir).expanduser() if self.event_journal_dir else data_path / "events"


class NodeConfig(Struct, frozen=True, forbid_unknown_fields=True):
    """For the daemon: where its data is, and what it is called."""

    data_dir: str = ""
    cluster_name: str = ""
    load_definitions: str = ""
    stop_grace: Milliseconds = 8_000
    check_invariants: bool = False
    control_socket: str = ""
    collect_statistics_interval: Milliseconds = 5_000
    workers: Annotated[int, Meta(ge=1, le=256)] | Literal["auto"] = 1
    worker_placement: Literal["name", "load"] = "name"

    def worker_count(self) -> int:
        """How many processes share the vhosts; `auto` is one for each core that this process may use."""
        return len(os.sched_getaffinity(0)) if self.workers == "auto" else self.workers

    def data_path(self) -> Path:
        """The data directory; not made here."""
        return Path(self.data_dir).expanduser() if self.data_dir else Path(platformdirs.user_data_dir("rabbitpy-broker"))

    def cluster(self) -> str:
        """The name that clients and metrics see."""
        return self.cluster_name or f"rabbit@{socket.gethostname().split('.')[0]}"


class ManagementTcp(Struct, frozen=True, forbid_unknown_fields=True):
    """Where the management API listens, if `management_listen` does not say it; ip "": where AMQP does."""

    ip: str = ""
    port: U16 = 15_672


class ManagementSsl(Struct, frozen=True, forbid_unknown_fields=True):
    """The management API over TLS, on the same addresses: PEM files, read at start. Without a certificate there is none."""

    port: U16 = 15_671
    certfile: str = ""
    keyfile: str = ""
    cacertfile: str = ""

    def __post_init__(self) -> None:
        if bool(self.certfile) != bool(self.keyfile):
            raise ValueError("management.ssl: needs certfile and keyfile, or none")


class ManagementCors(Struct, frozen=True, forbid_unknown_fields=True):
    """Which sites' scripts may ask: origins, or `*`; none by default. `max_age` is in seconds."""

    allow_origins: tuple[str, ...] = ()
    max_age: Count = 1_800


class ManagementPolicy(Struct, frozen=True, forbid_unknown_fields=True):
    """A header that tells browsers what they may do; "": the broker's own, or none."""

    policy: str = ""

    def __post_init__(self) -> None:
        if not (self.policy.isascii() and (self.policy.isprintable() or not self.policy)):
            raise ValueError("policy: must be printable ASCII, in one line")


class ManagementBrowse(Struct, frozen=True, forbid_unknown_fields=True):
    """For browsing messages; in bytes a second, of all browses together."""

    max_bytes_per_s: Annotated[int, Meta(ge=1_048_576)] = 67_108_864


class RetentionOfSamples(Struct, frozen=True, forbid_unknown_fields=True):
    """For one kind of objects: seconds between the samples that are kept of the last minute, hour and day; 0: none for so long.

    Where all are 0 the broker's own count (`management/api/rates.py`).
    """

    minute: Annotated[int, Meta(ge=0, le=60)] = 0
    hour: Annotated[int, Meta(ge=0, le=3_600)] = 0
    day: Annotated[int, Meta(ge=0, le=86_400)] = 0

    def levels(self) -> tuple[tuple[float, float], ...]:
        """For how long samples are kept, and how far apart, in seconds; the finest first. None where nothing is given."""
        kept = ((60.0, self.minute), (3_600.0, self.hour), (86_400.0, self.day))
        return tuple((kept_s, float(apart_s)) for kept_s, apart_s in kept if apart_s)


class RetentionPolicies(Struct, frozen=True, forbid_unknown_fields=True):
    """For the broker and its vhosts; for queues, exchanges, connections and channels; for pairs of them."""

    global_: RetentionOfSamples = msgspec.field(default=RetentionOfSamples(), name="global")
    basic: RetentionOfSamples = RetentionOfSamples()
    detailed: RetentionOfSamples = RetentionOfSamples()


class ManagementConfig(Struct, frozen=True, forbid_unknown_fields=True):
    """For the management API and the pages in the browser."""

    tcp: ManagementTcp = ManagementTcp()
    ssl: ManagementSsl = ManagementSsl()
    cors: ManagementCors = ManagementCors()
    csp: ManagementPolicy = ManagementPolicy()
    hsts: ManagementPolicy = ManagementPolicy()
    browse: ManagementBrowse = ManagementBrowse()
    sample_retention_policies: RetentionPolicies = RetentionPolicies()
    rates_mode: Literal["basic", "detailed", "none"] = "basic"
    path_prefix: str = ""
    ui: bool = True
    read_only: bool = False
    login_session_timeout: Annotated[int, Meta(ge=1)] = 480  # minutes
    audit_size: Count = 10_000
    disable_basic_auth: bool = False
    disable_stats: bool = False
    db_cache_multiplier: Count = 100
    backup_dir: str = ""

    def __post_init__(self) -> None:
        if self.path_prefix and (not self.path_prefix.startswith("/") or self.path_prefix.endswith("/")):
            raise ValueError("management.path_prefix: must begin with a slash, and end without one")


class ManagementAgentConfig(Struct, frozen=True, forbid_unknown_fields=True):
    """For what gathers the figures of the management API."""

    disable_metrics_collector: bool = False


class LogConfig(Struct, frozen=True, forbid_unknown_fields=True):
    """For the log, on standard error if no file is named; format "auto" is console on a terminal and JSON otherwise."""

    level: Literal["debug", "info", "warning", "error"] = "info"
    format: Literal["auto", "console", "json"] = "auto"
    file: str = ""


class ClusterConfig(Struct, frozen=True, forbid_unknown_fields=True):
    """For replicated vhosts: the engine that they stand on, by its URL ("": there are none here), and this node in it."""

    engine: str = ""
    node: str = ""
    listen: str = "auto"
    advertise: str = ""
    redirect: Literal["forward", "refuse"] = "forward"
    lease: Milliseconds = 5_000
    append_timeout: Milliseconds = 30_000
    checkpoint_bytes: Annotated[int, Meta(ge=1)] = 268_435_456
    compression: Literal["zstd", "none"] = "zstd"
    default_replicas: Count = 0

    def __post_init__(self) -> None:
        if self.listen != "auto":
            try:
                split_address(self.listen)
            except ValueError as error:
                raise ValueError(f"cluster.listen: {error}") from None


class Config(Struct, frozen=True, forbid_unknown_fields=True):
    """All parts; made by `load_config`, or by hand in tests and embedded brokers."""

    net: NetConfig = NetConfig()
    protocol: ProtocolConfig = ProtocolConfig()
    users: UsersConfig = UsersConfig()
    auth: AuthConfig = AuthConfig()
    alarms: AlarmConfig = AlarmConfig()
    store: StoreConfig = StoreConfig()
    queues: QueuesConfig = QueuesConfig()
    events: EventsConfig = EventsConfig()
    node: NodeConfig = NodeConfig()
    management: ManagementConfig = ManagementConfig()
    management_agent: ManagementAgentConfig = ManagementAgentConfig()
    cluster: ClusterConfig = ClusterConfig()
    log: LogConfig = LogConfig()

    def node_name(self) -> str:
        """What this node is called by others and in lists."""
        return (self.cluster.node if self.cluster.engine else "") or self.node.cluster()


def load_config(
    file: Path | None = None,
    environ: Mapping[str, str] | None = None,
    overrides: Mapping[str, object] | None = None,
) -> Config:
    """Put a configuration together from a TOML file, the environment over it and `overrides` over both.

    `overrides` maps dotted keys (`log.level`) to values. Raises `ConfigError`.
    """
    values: dict[str, object] = {}
    for source, settings, strict in (
        (str(file), _file_settings(file) if file else {}, True),
        ("environment", _env_settings(environ or {}), False),
        ("command line", dict(overrides or {}), False),
    ):
        for path, value in settings.items():
            if path not in KEYS:
                raise ConfigError(f"{source}: unknown key: {path}")
            try:
                values[path] = msgspec.convert(value, KEYS[path].type, strict=strict)
            except msgspec.ValidationError as error:
                raise ConfigError(f"{source}: {path}: {error}") from None
    try:
        return _build(Config, "", values)
    except ValueError as error:  # keys that do not fit together; their sources may differ, so none is named
        raise ConfigError(str(error)) from None


def default_settings() -> dict[str, object]:
    """Every key, dotted, with its default."""
    return {path: key.default for path, key in KEYS.items()}


def env_name(path: str) -> str:
    """The environment variable that sets a key: `log.level` -> RABBITPY_LOG_LEVEL."""
    return ENV_PREFIX + path.replace(".", "_").upper()


_Part = TypeVar("_Part", bound=Struct)


class _Key(NamedTuple):
    type: Any
    default: object


def _is_table(type_: Any) -> bool:
    return isinstance(type_, type) and issubclass(type_, Struct)


def _inner_prefix(prefix: str, name: str) -> str:
    return prefix if name in _FLAT_PARTS else f"{prefix}{name}."


def _index_keys(cls: type[Struct], prefix: str, keys: dict[str, _Key]) -> dict[str, _Key]:
    for field in msgspec.structs.fields(cls):
        path = prefix + field.encode_name
        if _is_table(field.type):
            _index_keys(field.type, _inner_prefix(prefix, field.encode_name), keys)
        elif path in keys:
            raise TypeError(f"key {path} stands in two parts")
        else:
            made = field.default_factory
            keys[path] = _Key(field.type, field.default if made is msgspec.NODEFAULT else made())
    return keys


# These parts are the code's division alone; `log`, like the tables inside the parts, is one in the file too.
_FLAT_PARTS: Final = frozenset({"net", "protocol", "users", "auth", "alarms", "store", "queues", "events", "node"})
KEYS: Final = _index_keys(Config, "", {})
_LISTS: Final = frozenset(path for path, key in KEYS.items() if isinstance(key.default, tuple))
# These may be tables, too: a number that says what it is, {relative = 0.4} or {absolute = 1}.
_MARKS: Final = frozenset({"vm_memory_high_watermark", "disk_free_limit"})
_TABLES: Final = frozenset(path[:dot] for path in KEYS for dot, letter in enumerate(path) if letter == ".")


def _file_settings(file: Path) -> dict[str, object]:
    try:
        tree = tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{file}: cannot be read: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file}: no TOML: {error}") from None
    return _dotted(file, "", tree)


def _dotted(file: Path, prefix: str, tree: Mapping[str, object]) -> dict[str, object]:
    settings: dict[str, object] = {}
    for name, value in tree.items():
        path = prefix + name
        if path not in _TABLES:
            settings[path] = value
        elif isinstance(value, dict):
            settings.update(_dotted(file, f"{path}.", value))
        else:
            raise ConfigError(f"{file}: {path}: must be a table")
    return settings


def _env_settings(environ: Mapping[str, str]) -> dict[str, object]:
    settings: dict[str, object] = {
        path: environ[name] for name, path in _ENV_OF_RABBITMQ.items() if name in environ
    }
    paths = {env_name(path): path for path in KEYS}
    forms = {env_name(f"{path}.{form}"): (path, form) for path in _MARKS for form in Mark.__struct_fields__}
    marks: dict[str, dict[str, str]] = {}
    for name, text in environ.items():
        if name in paths:
            path = paths[name]
            is_list = path in _LISTS
            settings[path] = [item.strip() for item in text.split(",") if item.strip()] if is_list else text
        elif name in forms:
            path, form = forms[name]
            marks.setdefault(path, {})[form] = text
        elif name.startswith(ENV_PREFIX) and not name.startswith(_ENV_NOT_SETTINGS):
            raise ConfigError(f"environment: unknown key: {name}")
    for path, mark in marks.items():
        if path in settings:
            raise ConfigError(f"environment: {path}: is given twice, with and without {' and '.join(mark)}")
        settings[path] = mark
    return settings


def _build(cls: type[_Part], prefix: str, values: Mapping[str, object]) -> _Part:
    given: dict[str, object] = {}
    for field in msgspec.structs.fields(cls):
        path = prefix + field.encode_name
        if _is_table(field.type):
            given[field.name] = _build(field.type, _inner_prefix(prefix, field.encode_name), values)
        elif path in values:
            given[field.name] = values[path]
    return cls(**given)
