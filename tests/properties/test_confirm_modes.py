"""Queues in all confirm modes, whatever happens to them: each publish is told exactly once, and rightly.

The broker is real, but for sockets and disk. Its queues change their mode by policy, page their messages out to delta and
read them back, have limits, priorities and a dead-letter exchange; consumers ack, refuse, vanish. An account beside it
knows of each small publish which queues in a consumer-ack mode it went to, and which consumers have acked it since:

- an ack is right when each of those queues had it acked, or handed it to the dead-letter queue, which had it acked or is
  a persistent one;
- a nack is right when that is not so, and then never will be;
- what is acked everywhere has been told, and the counts of who still waits are exact at each step.
"""

from __future__ import annotations

from collections.abc import Callable

from hypothesis import given, settings
from hypothesis import strategies as st
from pamqp import commands

from rabbitpy_broker.queues.queue_settings import CONFIRM_MODES, PERSIST
from rabbitpy_broker.storage.vhost_store import StoreSettings
from sans_io import METHOD, Frame, Peer, SansIOBroker, content, method, parts_of

EMBED_BELOW = 1_000  # a dead letter with its x-death is smaller too
QUEUES = ("plain", "letters", "short", "ranked", "limited", "dead")
ARGUMENTS: dict[str, dict[str, object]] = {
    "plain": {},
    "letters": {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"},
    "short": {"x-max-length": 3, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"},
    "ranked": {"x-max-priority": 2},
    "limited": {"x-delivery-limit": 1, "x-max-length": 4},
}
WITH_LETTERS = ("letters", "short")


class Taker:
    """A connection that consumes, on one channel at a time, and what it holds."""

    def __init__(self, broker: SansIOBroker, transactional: bool) -> None:
        self.broker = broker
        self.transactional = transactional
        self.peer = broker.connect()
        self.channel = 0
        self.tags: dict[str, str] = {}  # consumer tag -> queue
        self.no_ack: set[str] = set()
        self.held: dict[int, tuple[str, int]] = {}  # delivery tag -> queue, publish
        self.uncommitted: list[tuple[str, int]] = []  # acks
        self.open()

    def open(self) -> None:
        self.channel += 1
        self.tags, self.no_ack, self.held, self.uncommitted = {}, set(), {}, []
        self.peer.open_channel(self.channel)
        if self.transactional:
            self.peer.call(self.channel, commands.Tx.Select())

    def reconnect(self) -> None:
        self.peer = self.broker.connect()
        self.channel = 0
        self.open()


class BrokerAndAccount:
    """The broker, two publishers, three takers, and the account."""

    def __init__(self, dead_mode: str) -> None:
        limits = StoreSettings()
        limits.segment_entry_count = 8
        limits.queue_index_embed_msgs_below = EMBED_BELOW
        self.broker = SansIOBroker(settings=limits, recording=True)
        self.now = 1.0
        self.dead_mode = dead_mode
        setup = self.broker.connect()
        setup.open_channel(1)
        self.setup = setup
        self.modes = dict.fromkeys(QUEUES, "persist")
        for queue in QUEUES:
            self.declare(queue)
        self.takers = [Taker(self.broker, False), Taker(self.broker, False), Taker(self.broker, True)]
        self.publishers: list[Peer] = []
        self.publisher_channels = [0, 0]
        self.seqnos: list[dict[int, int]] = [{}, {}]  # of each publisher: delivery tag -> publish
        self.last_seqno = [0, 0]
        for number in range(2):
            self.publishers.append(self.broker.connect())
            self.open_publisher(number)
        self.count = 0
        self.owed: dict[int, set[str]] = {}  # publish -> queues that promised an ack
        self.acked: set[tuple[str, int]] = set()
        self.told: dict[int, bool] = {}
        self.forgotten: set[int] = set()  # their publisher's channel has gone

    def declare(self, queue: str) -> None:
        arguments = dict(ARGUMENTS.get(queue, {}))
        if queue == "dead":
            arguments["x-confirm-mode"] = self.dead_mode
        self.setup.call(1, commands.Queue.Declare(queue=queue, durable=True, arguments=arguments))
        if queue != "dead":
            self.setup.call(1, commands.Queue.Bind(queue=queue, exchange="amq.fanout", routing_key=""))

    def open_publisher(self, number: int) -> None:
        self.publisher_channels[number] += 1
        channel = self.publisher_channels[number]
        self.publishers[number].open_channel(channel)
        self.publishers[number].call(channel, commands.Confirm.Select())
        self.seqnos[number] = {}
        self.last_seqno[number] = 0

    # -- what is done -----------------------------------------------------------------------------------------------

    def publish(self, number: int, target: str, count: int, size: int, expiration: int, priority: int) -> None:
        data = []
        channel = self.publisher_channels[number]
        exchange = "amq.fanout" if target == "all" else ""
        small = size < EMBED_BELOW // 2
        for _ in range(count):
            publish = self.count
            self.count += 1
            reached = QUEUES[:-1] if target == "all" else (target,)
            self.owed[publish] = {queue for queue in reached if small and self.promises_ack(queue)}
            self.last_seqno[number] += 1
            self.seqnos[number][self.last_seqno[number]] = publish
            body = (b"%d " % publish).ljust(size, b".")
            properties = b"\x18\x00\x02" + bytes([priority])
            if expiration >= 0:
                text = b"%d" % expiration
                properties = b"\x19\x00\x02" + bytes([priority, len(text)]) + text
            data.append(method(channel, commands.Basic.Publish(exchange=exchange, routing_key=target)))
            data.append(content(channel, body, properties))
        self.publishers[number].connection.receive_data(b"".join(data))
        self.broker.run()

    def promises_ack(self, name: str) -> bool:
        queue = self.broker.vhost.queues.get(name)
        return queue is not None and queue.settings.confirm_mode != PERSIST

    def lose_publisher(self, number: int, whole: bool) -> None:
        self.forgotten.update(self.seqnos[number].values())
        if whole:
            self.publishers[number].lose()
            self.publishers[number] = self.broker.connect()
            self.publisher_channels[number] = 0
        else:
            self.publishers[number].call(self.publisher_channels[number], commands.Channel.Close(200, "", 0, 0))
        self.open_publisher(number)

    def consume(self, taker: Taker, queue: str, no_ack: bool, prefetch: int) -> None:
        tag = f"{taker.channel}.{len(taker.tags)}"
        taker.tags[tag] = queue
        if no_ack:
            taker.no_ack.add(tag)
        taker.peer.connection.receive_data(
            method(taker.channel, commands.Basic.Qos(prefetch_count=prefetch))
            + method(taker.channel, commands.Basic.Consume(queue=queue, consumer_tag=tag, no_ack=no_ack))
        )
        self.broker.run()

    def get(self, taker: Taker, queue: str, no_ack: bool) -> None:
        frames = taker.peer.feed(method(taker.channel, commands.Basic.Get(queue=queue, no_ack=no_ack)))
        self.take_frames(taker, frames, got_from=queue, got_no_ack=no_ack)

    def settle(self, taker: Taker, how: str, which: int, multiple: bool) -> None:
        """Of what the taker holds: acks, rejects or requeues one, or all up to it."""
        if not taker.held:
            return
        tags = sorted(taker.held)
        tag = tags[which % len(tags)]
        settled = [one for one in tags if one <= tag] if multiple else [tag]
        took = [taker.held.pop(one) for one in settled]
        if how == "ack":
            if taker.transactional:
                taker.uncommitted.extend(took)
            else:
                self.acked.update(took)
            command: commands.Basic.Ack | commands.Basic.Nack = commands.Basic.Ack(tag, multiple)
        else:
            command = commands.Basic.Nack(tag, multiple, how == "requeue")
        taker.peer.connection.receive_data(method(taker.channel, command))
        self.broker.run()

    def commit(self, taker: Taker, rollback: bool) -> None:
        if not taker.transactional:
            return
        if rollback:
            taker.peer.connection.receive_data(method(taker.channel, commands.Tx.Rollback()))
            self.broker.run()
            self.restart_channel(taker)  # which tags came back is not followed here
        else:
            self.acked.update(taker.uncommitted)
            taker.uncommitted = []
            taker.peer.connection.receive_data(method(taker.channel, commands.Tx.Commit()))
            self.broker.run()

    def recover(self, taker: Taker) -> None:
        taker.held = {}
        taker.peer.connection.receive_data(method(taker.channel, commands.Basic.Recover(True)))
        self.broker.run()

    def restart_channel(self, taker: Taker) -> None:
        self.take_frames(taker, taker.peer.feed(method(taker.channel, commands.Channel.Close(200, "", 0, 0))))
        taker.open()

    def lose(self, taker: Taker) -> None:
        taker.peer.lose()
        taker.reconnect()

    def delete(self, queue: str) -> None:
        self.setup.call(1, commands.Queue.Delete(queue=queue))
        self.declare(queue)

    def set_mode(self, queue: str, mode: int) -> None:
        if queue != "dead":
            self.broker.policies.set(queue, f"^{queue}$", "queues", 0, {"confirm-mode": CONFIRM_MODES[mode]})

    def press(self, queue: str, messages: float) -> None:
        for part in parts_of(self.broker.vhost.queues[queue].backing):
            part.set_target_ram_count(int(messages))
            part.reduce_memory_use()
        self.broker.run()

    def let_time_go_by(self, ms: int) -> None:
        self.now += ms / 1000
        self.broker.advance(ms)
        self.broker.vhost.tick(self.now)
        self.broker.run()

    # -- what comes of it -------------------------------------------------------------------------------------------

    def take_frames(self, taker: Taker, frames: list[Frame], got_from: str = "", got_no_ack: bool = False) -> None:
        at = 0
        while at < len(frames):
            one = frames[at]
            at += 1
            if one.type != METHOD or one.channel != taker.channel:
                continue
            command = one.command()
            if isinstance(command, commands.Basic.Deliver | commands.Basic.GetOk):
                publish = int(frames[at + 1].payload.split(b" ")[0])
                if isinstance(command, commands.Basic.Deliver):
                    queue, no_ack = taker.tags[command.consumer_tag], command.consumer_tag in taker.no_ack
                else:
                    queue, no_ack = got_from, got_no_ack
                if queue == "dead":  # a copy is known by the queue that it comes from
                    died = [each for each in WITH_LETTERS if each.encode() in frames[at].payload]
                    queue += "".join(died)
                if no_ack:
                    self.acked.add((queue, publish))
                else:
                    taker.held[command.delivery_tag] = (queue, publish)
            elif isinstance(command, commands.Channel.Close):
                assert command.reply_code == 540
                taker.peer.connection.receive_data(method(taker.channel, commands.Channel.CloseOk()))
                self.broker.run()
                taker.open()
                return

    def look(self) -> None:
        """Reads what everybody was sent, and compares."""
        for taker in self.takers:
            self.take_frames(taker, taker.peer.output())
        self.broker.run()
        for number in range(2):
            self.take_confirms(number, self.publishers[number].output())
        self.broker.audit()
        for publish, queues in self.owed.items():
            if publish not in self.told and publish not in self.forgotten:
                assert not all((queue, publish) in self.acked for queue in queues), f"{publish} is acked, and not told"

    def take_confirms(self, number: int, frames: list[Frame]) -> None:
        waiting = self.seqnos[number]
        for one in frames:
            if one.type != METHOD or one.channel != self.publisher_channels[number]:
                continue
            command = one.command()
            if not isinstance(command, commands.Basic.Ack | commands.Basic.Nack):
                continue
            tag = command.delivery_tag
            tags = [seqno for seqno in waiting if seqno <= tag] if command.multiple else [tag]
            assert tag in waiting, f"{command.name} of {tag}, which was told before or never published"
            for seqno in tags:
                publish = waiting.pop(seqno)
                ok = isinstance(command, commands.Basic.Ack)
                assert publish not in self.told
                self.told[publish] = ok
                if ok:
                    lost = [queue for queue in self.owed[publish] if not self.is_safe(queue, publish)]
                    assert not lost, f"{publish} is acked to its publisher, though {lost} had no ack"
                else:
                    assert not all((queue, publish) in self.acked for queue in self.owed[publish])

    def is_safe(self, queue: str, publish: int) -> bool:
        if (queue, publish) in self.acked:
            return True
        return queue in WITH_LETTERS and (self.dead_mode == "persist" or ("dead" + queue, publish) in self.acked)

    def end(self) -> None:
        """Everything is acked: everybody has been told, and nobody waits."""
        self.look()
        for taker in self.takers:
            self.restart_channel(taker)
            self.look()
        taker = self.takers[0]
        for queue in QUEUES:
            self.consume(taker, queue, True, 0)
            self.look()
        self.let_time_go_by(2_000)
        self.look()
        for queue in QUEUES:
            backing = self.broker.vhost.queues[queue].backing
            assert (backing.len, backing.unacked, backing.publishes_waiting()) == (0, 0, 0), queue
        for number in range(2):
            assert not self.seqnos[number], "somebody was never told"
        for publish, ok in self.told.items():
            copies = [{(queue, publish), ("dead" + queue, publish)} for queue in self.owed[publish]]
            if copies and not ok:
                assert not all(each & self.acked for each in copies), f"{publish} is nacked, and somebody had it everywhere"
        self.broker.close()


QUEUE = st.sampled_from(QUEUES)
TAKER = st.integers(0, 2)
PUBLISH = st.tuples(
    st.just("publish"),
    st.integers(0, 1),
    st.sampled_from((*QUEUES, "all", "all")),
    st.sampled_from((1, 2, 5, 12, 40)),
    st.sampled_from((20, 20, 20, 2_000)),
    st.sampled_from((-1, -1, -1, 0, 500)),
    st.integers(0, 2),
)
ACTION = st.one_of(
    PUBLISH,
    PUBLISH,
    PUBLISH,
    st.tuples(st.just("consume"), TAKER, QUEUE, st.booleans(), st.integers(0, 4)),
    st.tuples(st.just("get"), TAKER, QUEUE, st.booleans()),
    st.tuples(st.just("settle"), TAKER, st.sampled_from(("ack", "ack", "ack", "reject", "requeue")), st.integers(0, 9),
              st.booleans()),
    st.tuples(st.just("commit"), st.just(2), st.booleans()),
    st.tuples(st.just("recover"), TAKER),
    st.tuples(st.just("restart channel"), TAKER),
    st.tuples(st.just("lose"), TAKER),
    st.tuples(st.just("lose publisher"), st.integers(0, 1), st.booleans()),
    st.tuples(st.just("purge"), QUEUE),
    st.tuples(st.just("delete"), QUEUE),
    st.tuples(st.just("mode"), QUEUE, st.integers(0, 2)),
    st.tuples(st.just("press"), QUEUE, st.sampled_from((0, 0, 3, 1 << 40))),
    st.tuples(st.just("time"), st.sampled_from((100, 600, 1_500))),
)  # fmt: skip


def act(world: BrokerAndAccount, what: str, values: list) -> None:
    taker_acts: dict[str, Callable[..., None]] = {
        "consume": world.consume,
        "get": world.get,
        "settle": world.settle,
        "commit": world.commit,
        "recover": world.recover,
        "restart channel": world.restart_channel,
        "lose": world.lose,
    }
    if what in taker_acts:
        taker_acts[what](world.takers[values[0]], *values[1:])
    elif what == "publish":
        world.publish(*values)
    elif what == "lose publisher":
        world.lose_publisher(*values)
    elif what == "purge":
        world.setup.call(1, commands.Queue.Purge(queue=values[0]))
    elif what == "delete":
        world.delete(values[0])
    elif what == "mode":
        world.set_mode(*values)
    elif what == "press":
        world.press(*values)
    else:
        world.let_time_go_by(values[0])


@settings(max_examples=100, deadline=None)
@given(
    st.sampled_from(CONFIRM_MODES),
    st.lists(st.sampled_from((1, 2, 0)), min_size=5, max_size=5),
    st.booleans(),
    st.lists(ACTION, min_size=10, max_size=60),
)
def test_each_publish_is_told_once_and_rightly(
    dead_mode: str, modes: list[int], lazy: bool, actions: list[tuple]
) -> None:
    world = BrokerAndAccount(dead_mode)
    for queue, mode in zip(QUEUES, modes, strict=False):
        world.set_mode(queue, mode)
    if lazy:
        for queue in QUEUES:
            world.press(queue, 0)
    for what, *values in actions:
        act(world, what, values)
        world.look()
    world.end()
