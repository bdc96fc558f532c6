"""The broker as the protocol sees it: the state that all its connections share.

Plain data and plain calls: no IO and no loop behind any of it. `broker.py` fills it in.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mypy_extensions import i64, mypyc_attr

from rabbitpy_broker.authentication import Authenticator
from rabbitpy_broker.events.journal import EventJournal
from rabbitpy_broker.protocol.counters import Counters
from rabbitpy_broker.protocol.firehose import Firehose
from rabbitpy_broker.protocol.turn import Turn
from rabbitpy_broker.users import Users
from rabbitpy_broker.vhost import VHost


class Limits:
    """The limits of clients; the names are the configuration's. In the first four 0 is a limit of 0, in the others no
    limit.
    """

    def __init__(self) -> None:
        self.max_message_size: i64 = 134_217_728  # bytes of body
        self.initial_frame_max: i64 = 4_096  # bytes, before connection.tune-ok
        self.output_high_water_mark: i64 = 1_048_576  # bytes that one connection may have waiting in a turn
        self.flow_high_water_mark: i64 = 2_000  # ready messages, above which a publisher may have to wait
        self.channel_max: i64 = 2_047
        self.frame_max: i64 = 131_072
        self.heartbeat: i64 = 60  # seconds
        self.connection_max: i64 = 0
        self.send_timeout_s = 30.0  # seconds for which a client may take no byte of the output that waits for it


class Closed(Counters):
    """What the channels and connections of one vhost that are closed have done."""

    def __init__(self) -> None:
        super().__init__()
        self.received_bytes: i64 = 0
        self.sent_bytes: i64 = 0


class Totals:
    """Counts since the start: of closed channels and connections, and of events that belong to neither."""

    def __init__(self) -> None:
        self.connections_opened: i64 = 0
        self.connections_closed: i64 = 0
        self.channels_opened: i64 = 0
        self.channels_closed: i64 = 0
        self.authentications_failed: i64 = 0
        self.authentications_succeeded: i64 = 0
        self.http_authentications_failed: i64 = 0
        self.http_authentications_succeeded: i64 = 0
        self.received_bytes: i64 = 0
        self.sent_bytes: i64 = 0
        self.closed_channels = Counters()
        self.closed_of_vhosts: dict[str, Closed] = {}

    def closed_of(self, vhost: str) -> Closed:
        """What has been closed in this vhost."""
        closed = self.closed_of_vhosts.get(vhost)
        if closed is None:
            closed = Closed()
            self.closed_of_vhosts[vhost] = closed
        return closed


@mypyc_attr(allow_interpreted_subclasses=True)
class Elsewhere:
    """The other workers of the same daemon (workers/handover.py), or nodes of the cluster (cluster/forwarding.py), each with
    vhosts of its own.
    """

    def ask(self, session: Any, vhost: str) -> None:
        """Returns when none of them has this vhost. Raises AnswerAwaited: the connection goes to the one that has it, or the
        question is answered and it may be asked again. Raises ConnectionClosed when it cannot go there.
        """

    def counts(self, session: Any, user: str) -> tuple[int, int, int]:
        """The connections of all users, of this one, and its channels, that the others have, for whoever is about to add one.
        Other workers are told nothing until that is done; nodes have told before. Raises AnswerAwaited, and may be asked again
        then.
        """
        return 0, 0, 0


class Node:
    """`elsewhere`: where the vhosts are that are not here; None in a daemon of one process, alone. `blocked` is the reason of
    the alarm that is on, "" when none is.
    """

    def __init__(
        self,
        turn: Turn,
        users: Users,
        limits: Limits,
        server_properties: dict[str, object],
        log: Any,
        definition_changes: Callable[[], int],
    ) -> None:
        self.turn = turn
        self.users = users
        self.authenticator = Authenticator(users)
        self.mechanisms: tuple[str, ...] = ("PLAIN", "AMQPLAIN")
        self.limits = limits
        self.server_properties = server_properties
        self.log = log
        self.definition_changes = definition_changes  # counts every change that was noted
        self.changes_seen = definition_changes()
        self.vhosts: dict[str, VHost] = {}
        self.owned_elsewhere: dict[str, str] = {}  # replicated vhosts -> the node that owns them, perhaps this one; "": nobody
        self.firehose = Firehose(turn, str(server_properties["cluster_name"]))
        self.totals = Totals()
        self.elsewhere: Elsewhere | None = None
        self.blocked = ""
        self.events: EventJournal | None = None
        self.next_connection_id: i64 = 0
