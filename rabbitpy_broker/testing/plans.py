"""Which trouble is planned, as those ask who meet it: the clients' bytes (watched_client.py). trouble.py makes the plans.

A plan may be meant for some clients only, `of`: those that have this vhost, user, name or address; "" means all of them.

What must stay true: a plan with a count is used up by those that it has met, and then does nothing; without plans every
question is answered by one look at an empty list.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from rabbitpy_broker.queues.queue import Queue
from rabbitpy_broker.queues.queue_settings import QueueSettings
from rabbitpy_broker.vhost import VHost
from rabbitpy_broker.wire.field_table import FieldTable

FOR_EVER: Final = -1
ENDLESS: Final = 1 << 60  # bytes


@dataclass
class Plan:
    """`left` counts those that still meet it; FOR_EVER until it is ended."""

    of: str = ""
    left: int = FOR_EVER

    def meets(self, names: Sequence[str]) -> bool:
        """True for a client that it is meant for, while it is not used up."""
        return self.left != 0 and (not self.of or self.of in names)

    def use(self) -> None:
        """Has met one."""
        if self.left > 0:
            self.left -= 1


@dataclass
class Drop(Plan):
    """The connection is dropped at the nth method of this name, `skip` others before it; `is_lost`: that one does not arrive."""

    method: str = ""
    by: str = "client"
    skip: int = 0
    is_lost: bool = True


@dataclass
class Fate(Plan):
    """The next publishes are nacked, or returned."""

    kind: str = "nack"


@dataclass
class LostAcks(Plan):
    """The next acks do not arrive; `queue` "": of any queue."""

    queue: str = ""


@dataclass
class Delay(Plan):
    """Bytes take so long, both ways."""

    seconds: float = 0.0


@dataclass
class Cut(Plan):
    """So many more bytes go out, then the connection ends."""

    bytes_left: int = 0


@dataclass
class Plans:
    """All plans of one broker."""

    drops: list[Drop] = field(default_factory=list)
    fates: list[Fate] = field(default_factory=list)
    lost_acks: list[LostAcks] = field(default_factory=list)
    delays: list[Delay] = field(default_factory=list)
    cuts: list[Cut] = field(default_factory=list)
    logins: list[Plan] = field(default_factory=list)

    @property
    def watches_output(self) -> bool:
        """True when somebody waits for a method of the broker's."""
        return any(drop.by == "broker" and drop.left for drop in self.drops)

    def drop_at(self, method: str, by: str, names: Sequence[str]) -> Drop | None:
        """The drop that this method brings, if any."""
        for drop in self.drops:
            if drop.method == method and drop.by == by and drop.meets(names):
                if drop.skip:
                    drop.skip -= 1
                    continue
                drop.use()
                return drop
        return None

    def next_publish(self, names: Sequence[str]) -> str:
        """The fate of a publish that begins: "nack", "return", or ""."""
        for fate in self.fates:
            if fate.meets(names):
                fate.use()
                return fate.kind
        return ""

    def loses_ack(self, queues: Sequence[str], names: Sequence[str]) -> bool:
        """True for an ack that does not arrive."""
        for plan in self.lost_acks:
            if plan.meets(names) and (not plan.queue or plan.queue in queues):
                plan.use()
                return True
        return False

    def refuses_login(self) -> bool:
        """True for a login that is refused."""
        for plan in self.logins:
            if plan.left:
                plan.use()
                return True
        return False

    def delay_of(self, names: Sequence[str]) -> float:
        """How long bytes of this client take, in seconds."""
        return max((delay.seconds for delay in self.delays if delay.meets(names)), default=0.0)

    def cut_of(self, names: Sequence[str], size: int) -> int:
        """How many of the `size` bytes that are to go out may do so; fewer: it is the end."""
        allowed = ENDLESS
        for cut in self.cuts:
            if cut.meets(names):
                allowed = min(allowed, cut.bytes_left)
                cut.bytes_left -= size
                if cut.bytes_left < 0:
                    cut.bytes_left = 0
                    cut.use()
        return min(allowed, size)

    def refusing_queue(self, vhost: VHost) -> Queue:
        """A queue that refuses every message, and is listed nowhere."""
        settings = QueueSettings(FieldTable(), {})
        settings.max_length = 0
        settings.overflow = "reject-publish"
        return vhost._factory.make("refusing", False, False, None, FieldTable(), settings, 0)
