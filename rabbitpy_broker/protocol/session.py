"""The session of a connection: who is at the other end, and what the handshake has agreed with it."""

from __future__ import annotations

from collections.abc import Sized
from typing import Any

from mypy_extensions import i64

from rabbitpy_broker.authentication import Login
from rabbitpy_broker.protocol.node import Node
from rabbitpy_broker.protocol.output import Output
from rabbitpy_broker.users import User
from rabbitpy_broker.vhost import VHost
from rabbitpy_broker.wire.frames import FrameReader


class Session:
    """`loopback` says that the peer is on this machine, `certificate_name` what its certificate calls it. `login` is the
    attempt to log in, while it is going on. User and vhost are None until the handshake has them.

    `open_connections` are those of the broker, which may have a limit.
    """

    def __init__(
        self,
        node: Node,
        frames: FrameReader,
        output: Output,
        open_connections: Sized,
        loopback: bool,
        tls: bool,
        certificate_name: str,
        log: Any,
    ) -> None:
        self.node = node
        self.frames = frames
        self.output = output
        self.open_connections = open_connections
        self.loopback = loopback
        self.tls = tls
        self.certificate_name = certificate_name
        self.peer_ip = ""
        self.login: Login | None = None
        self.log = log
        self.mechanism = ""
        self.response = b""  # what it logged in with; kept while it may have to go to another worker or node
        self.is_resumed = False  # it has logged in before, with the worker that accepted it
        self.counted: Any = None  # what it has asked of the other workers, for a limit
        self.missing_vhost = ""  # that it has asked for, and no worker has
        self.refusal = ""  # why it cannot have the vhost that it has asked for, which another node has
        self.client_properties: dict[str, object] = {}
        self.capabilities: dict[str, object] = {}
        self.client_name = ""
        self.user: User | None = None
        self.vhost: VHost | None = None
        self.channel_max: i64 = node.limits.channel_max
        self.heartbeat: i64 = 0
