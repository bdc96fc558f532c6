"""A shovel: takes the messages of one queue, at one broker, to one queue or exchange at another.

    source queue --deliver--> waiting --publish, mandatory--> target --confirm--> ack at the source

A message is acked at the source when the target has confirmed it, and not before. The order is kept: messages are published
in the order in which they were delivered, by one channel. Whatever goes wrong, both channels end, the source has all that is
not acked back in its place, and the shovel begins again. So nothing is lost, and a message may come twice where a connection
ended between its publish and its ack: `Tally.doubtful` counts those that may have.

A message that goes to a queue goes by a fanout exchange made for it, so that its routing key is what it was, and CC in its
headers names no queue but this one.

What must stay true: `_on_way` is in the order of publishing; a delivery is acked once, and only with all before it.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections import deque
from collections.abc import Callable
from typing import Final, NamedTuple

from rabbitpy_broker.errors import BrokerError
from rabbitpy_broker.shovel.peer import ChannelUser, Peer, PeerChannel, PeerClosed, Url
from rabbitpy_broker.wire.edit_header import without_header, without_property
from rabbitpy_broker.wire.field_table import field_table
from rabbitpy_broker.wire.properties import HEADERS, USER_ID, find_header, find_property, short_property

BYTES_HELD: Final = 33_554_432  # taken and not confirmed; with so many the source is not read, and a message may be larger
LOOK_S: Final = 0.1  # between two looks at whether the source is empty
FORGOTTEN_S: Final = 5.0  # of so long ago are the acks that a broker may have forgotten when it was killed
RETRY_S: Final = (0.1, 0.5, 1.0, 2.0, 5.0)
BROKERS_OWN: Final = (b"x-delivery-count", b"x-stream-offset")  # headers that a broker puts into what it delivers
FOR_GOOD: Final = frozenset({403, 404, 405, 530, 540})  # reply codes after which another try makes no sense


class ShovelError(BrokerError):
    """The shovel cannot go on."""


class Target(NamedTuple):
    """Where messages go: a queue, or an exchange with each message's own routing key."""

    url: Url
    queue: str = ""
    exchange: str = ""


class Tally:
    """What a shovel has done. `doubtful`: messages that may be at the target twice. `moved_at`: when the last one was moved, in
    seconds of time.monotonic.
    """

    def __init__(self) -> None:
        self.moved = 0
        self.moved_bytes = 0
        self.doubtful = 0
        self.tries = 0
        self.reason = ""  # of the last try that failed
        self.moved_at = time.monotonic()


class Pace:
    """At most so many messages a second; 0: as many as there are."""

    def __init__(self, rate: float) -> None:
        self.rate = rate
        self._credit = 1.0
        self._at = time.monotonic()

    def wait_s(self) -> float:
        """Takes one message; returns 0, or in how many seconds there is one to take."""
        if self.rate <= 0:
            return 0.0
        now = time.monotonic()
        self._credit = min(max(1.0, self.rate / 10), self._credit + (now - self._at) * self.rate)
        self._at = now
        if self._credit < 1:
            return (1 - self._credit) / self.rate
        self._credit -= 1
        return 0.0


class OnWay(NamedTuple):
    """A publish that is not confirmed, and its delivery."""

    seqno: int
    tag: int
    size: int


def temporary_exchange(queue: str) -> str:
    """The exchange by which a shovel publishes to this queue; short enough for a name."""
    return "rabbitpy.shovel." + hashlib.blake2b(queue.encode(), digest_size=16).hexdigest()


def short(text: str) -> bytes:
    """A short string as it stands in a method."""
    encoded = text.encode()
    return bytes([len(encoded)]) + encoded


def to_publish(header: bytes, user: str) -> bytes:
    """A delivered header payload as `user` may publish it: without what the source's broker has put in.

    A user_id of somebody else goes: a broker refuses it from anybody but an impersonator.
    """
    name = short_property(header, USER_ID)
    if name is not None and name != user.encode():
        header = without_property(header, int(USER_ID))
    table = int(find_property(header, HEADERS))
    if table:
        for key in BROKERS_OWN:
            if int(find_header(header, table, key)[0]):
                header = without_header(header, key)
    return header


class Shovel:
    """From a queue to a target. `forever`: goes on when the queue is empty. `patience_s`: gives up when nothing has moved for
    so long though it tries; `on_move` is told now and then.
    """

    def __init__(
        self,
        source: Url,
        queue: str,
        target: Target,
        *,
        forever: bool = False,
        prefetch: int = 1_000,
        rate: float = 0.0,
        patience_s: float = 30.0,
        on_move: Callable[[Tally], None] | None = None,
    ) -> None:
        self.source = source
        self.queue = queue
        self.target = target
        self.forever = forever
        self.prefetch = prefetch
        self.patience_s = patience_s
        self.tally = Tally()
        self.pace = Pace(rate)
        self.on_move = on_move

    async def run(self) -> Tally:
        """Until the queue is empty and all of it has arrived. Raises ShovelError, and CancelledError when it is cancelled."""
        failures = 0
        while True:
            moved = self.tally.moved
            self.tally.tries += 1
            try:
                await self._try()
            except (PeerClosed, OSError, TimeoutError) as error:
                self.tally.reason = str(error) or type(error).__name__
                if isinstance(error, PeerClosed) and error.code in FOR_GOOD:
                    raise ShovelError(f"{self.queue}: {error}") from error
                if self.tally.moved > moved:
                    failures = 0
                if not self.forever and time.monotonic() - self.tally.moved_at > self.patience_s:
                    raise ShovelError(f"{self.queue}: nothing has moved for {self.patience_s:g} s: {error}") from error
            else:
                return self.tally
            await asyncio.sleep(RETRY_S[min(failures, len(RETRY_S) - 1)])
            failures += 1

    async def _make_run(self) -> Run:
        return Run(self)

    async def _try(self) -> None:
        name = f"shovel {self.queue}"
        run = await self._make_run()
        source = await Peer.connect(self.source, name)
        try:
            target = await Peer.connect(self.target.url, name)
        except BaseException:
            source.abort()
            raise
        try:
            await run.start(source, target)
            await run.ended
        finally:
            run.stop()
            await source.close()
            self.tally.doubtful += run.doubtful()
            await target.close()


class Run:
    """One try of a shovel: a channel at each end. `ended` is set when the source is empty, or something went wrong."""

    def __init__(self, shovel: Shovel) -> None:
        self.shovel = shovel
        self.tally = shovel.tally
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._taker = Taker(self)
        self._giver = Giver(self)
        self._waiting: deque[tuple[int, bytes, bytes, bytes]] = deque()  # tag, routing key, header, body: not published yet
        self._on_way: deque[OnWay] = deque()
        self._confirmed: set[int] = set()  # of those, out of order
        self._bytes = 0  # of all that is held: waiting or on its way
        self._acked = 0  # at the source since it was last known to have taken them
        self._acks: deque[tuple[float, int]] = deque()  # when how many were acked, lately
        self._exchange = b""
        self._pump_at: asyncio.TimerHandle | None = None
        self._looking: asyncio.Task[None] | None = None
        self._source: PeerChannel | None = None
        self._target: PeerChannel | None = None

    async def start(self, source: Peer, target: Peer) -> None:
        """Sets up both ends; the rest happens by itself. Raises PeerClosed."""
        shovel = self.shovel
        self._target = to = await target.channel(self._giver)
        await to.call("Confirm.Select", "Confirm.SelectOk", nowait=False)
        where = shovel.target
        exchange = where.exchange
        if where.queue:
            exchange = temporary_exchange(where.queue)
            await queue_at(to, where.queue)
            await to.call(
                "Exchange.Declare", "Exchange.DeclareOk", ticket=0, exchange=exchange, exchange_type="fanout", passive=False,
                durable=False, auto_delete=True, internal=False, nowait=False, arguments=field_table({}),
            )
            await to.call(
                "Queue.Bind", "Queue.BindOk", ticket=0, queue=where.queue, exchange=exchange, routing_key="", nowait=False,
                arguments=field_table({}),
            )
        self._exchange = short(exchange)
        self._source = taken = await source.channel(self._taker)
        await consume(taken, shovel.queue, shovel.prefetch, self.arguments())
        self._looking = asyncio.create_task(self._look())

    def arguments(self) -> dict[str, object]:
        """Of the consumer."""
        return {}

    def stop(self) -> None:
        """Nothing is moved from now on."""
        for handle in (self._pump_at, self._looking):
            if handle is not None:
                handle.cancel()

    def doubtful(self) -> int:
        """The messages that may come twice: what was published and is not acked and, if the source was lost, what was acked
        lately. A broker writes acks to disk when it likes, so one that is killed forgets some that it has taken.

        Assumes: the source's connection is closed; in order, if it could be, and then it has taken all acks.
        """
        if self.ended.done() and not self.ended.cancelled() and self.ended.exception() is None:
            return 0
        if self._source is None or not self._source.peer.is_broken:
            return len(self._on_way)
        return len(self._on_way) + sum(count for _, count in self._acks)

    def fail(self, error: PeerClosed) -> None:
        """Ends the run."""
        if not self.ended.done():
            self.ended.set_exception(error)

    # -- messages -------------------------------------------------------------------------------------------------

    def take(self, tag: int, address: bytes, header: bytes, body: bytes) -> None:
        """A message of the source."""
        self._waiting.append((tag, address[1 + address[0] :], header, body))
        self._bytes += len(header) + len(body)
        self.pump()
        self._hold_source()

    def _hold_source(self) -> None:
        if self._source is not None:
            self._source.peer.pause(self._bytes >= BYTES_HELD)

    def pump(self) -> None:
        """Publishes what waits, as far as the target and the pace allow."""
        to = self._target
        if self.ended.done() or to is None:
            return
        waiting = self._waiting
        user = self.shovel.target.url.user
        while waiting and not to.peer.is_full:
            pause_s = self.shovel.pace.wait_s()
            if pause_s > 0:
                if self._pump_at is None or self._pump_at.when() <= asyncio.get_running_loop().time():
                    self._pump_at = asyncio.get_running_loop().call_later(pause_s, self.pump)
                break
            tag, key, header, body = waiting.popleft()
            seqno = to.publish(self._exchange + key, to_publish(header, user), body)
            self._on_way.append(OnWay(seqno, tag, len(header) + len(body)))

    def confirmed(self, seqno: int, multiple: bool) -> None:
        """The target has these: the source may forget them, with all before them."""
        on_way, early = self._on_way, self._confirmed
        if not multiple and on_way and seqno != on_way[0].seqno:
            early.add(seqno)
            return
        acked = 0
        moved = self.tally.moved
        tally = self.tally
        while on_way and (on_way[0].seqno <= seqno or on_way[0].seqno in early):
            done = on_way.popleft()
            early.discard(done.seqno)
            acked = done.tag
            self._bytes -= done.size
            self._acked += 1
            tally.moved += 1
            tally.moved_bytes += done.size
        if acked and self._source is not None:
            tally.moved_at = time.monotonic()
            self._acks.append((tally.moved_at, tally.moved - moved))
            while self._acks[0][0] < tally.moved_at - FORGOTTEN_S:
                self._acks.popleft()
            self._source.ack(acked, True)
            if self.shovel.on_move is not None:
                self.shovel.on_move(tally)
        self._hold_source()
        self.pump()

    async def _look(self) -> None:
        """Looks now and then whether the source is empty, which also tells that it has taken the acks."""
        source = self._source
        assert source is not None, "kept by: start"
        try:
            while not self.ended.done():
                await asyncio.sleep(LOOK_S)
                acked = self._acked
                declared = await queue_at(source, self.shovel.queue)
                self._acked -= acked
                idle = not self._on_way and not self._waiting and self._acked == 0
                if idle and declared.message_count == 0 and not self.shovel.forever:
                    await self.finish()
        except PeerClosed as error:
            self.fail(error)

    async def finish(self) -> None:
        """All has arrived. Raises PeerClosed."""
        if self.shovel.target.queue and self._target is not None:
            await self._target.call(
                "Exchange.Delete", "Exchange.DeleteOk", ticket=0, exchange=self._exchange[1:].decode(),
                if_unused=False, nowait=False,
            )
        if not self.ended.done():
            self.ended.set_result(None)


class Taker(ChannelUser):
    """The source's channel."""

    def __init__(self, run: Run) -> None:
        self._run = run

    def delivered(self, tag: int, redelivered: bool, address: bytes, header: bytes, body: bytes) -> None:
        self._run.take(tag, address, header, body)

    def cancelled(self) -> None:
        self._run.fail(PeerClosed("the source's queue is gone", 404))

    def lost(self, error: PeerClosed) -> None:
        self._run.fail(error)


class Giver(ChannelUser):
    """The target's channel."""

    def __init__(self, run: Run) -> None:
        self._run = run

    def returned(self, text: str) -> None:
        self._run.fail(PeerClosed(f"the target has no queue for a message: {text}"))

    def confirmed(self, tag: int, multiple: bool, ok: bool) -> None:
        if ok:
            self._run.confirmed(tag, multiple)
        else:
            self._run.fail(PeerClosed("the target refuses a message: is its queue at its limit?"))

    def writable(self) -> None:
        self._run.pump()

    def lost(self, error: PeerClosed) -> None:
        self._run.fail(error)


async def consume(channel: PeerChannel, queue: str, prefetch: int, arguments: dict[str, object]) -> None:
    """The channel's consumer, with acks. Raises PeerClosed."""
    await channel.call("Basic.Qos", "Basic.QosOk", prefetch_size=0, prefetch_count=prefetch, global_=False)
    await channel.call(
        "Basic.Consume", "Basic.ConsumeOk", ticket=0, queue=queue, consumer_tag="shovel", no_local=False, no_ack=False,
        exclusive=False, nowait=False, arguments=field_table(arguments),
    )


async def queue_at(channel: PeerChannel, queue: str) -> Queue:
    """What the broker says of a queue that is there. Raises PeerClosed."""
    ok = await channel.call(
        "Queue.Declare", "Queue.DeclareOk", ticket=0, queue=queue, passive=True, durable=True, exclusive=False,
        auto_delete=False, nowait=False, arguments=field_table({}),
    )
    return Queue(ok.message_count, ok.consumer_count)


class Queue(NamedTuple):
    """A queue as queue.declare-ok describes it; messages that are ready."""

    message_count: int
    consumer_count: int
