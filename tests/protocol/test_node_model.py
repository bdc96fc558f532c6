"""A whole node with several connections and channels, driven at random beside a simple model.

After each action the model knows which messages of each queue are ready, in order, and who holds which. It does not know
whose turn a delivery is, but checks that what was delivered is the head of the queue, in order for each client, to a
consumer that had allowance left, marked redelivered exactly when it was given back before; and that nothing stays ready
while somebody could take it.
"""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from pamqp.commands import Basic, Channel, Connection, Queue

from sans_io import BODY, METHOD, Frame, SansIOBroker, frame, method, publish

QUEUES = st.sampled_from(("a", "b"))
CHANNELS = st.integers(0, 3)  # an index into those that are open
TAGS = st.integers(0, 9)
SETTLINGS = st.sampled_from(("ack", "nack", "requeue", "reject", "reject_requeue"))
ENDS = st.sampled_from(("purge", "queue", "channel", "error", "connection", "socket"))
PREFETCH = st.sampled_from((0, 1, 2, 3))


class Message:
    def __init__(self, queue: ModelQueue, place: int) -> None:
        self.queue = queue
        self.place = place
        self.redelivered = False


class ModelQueue:
    def __init__(self, name: str) -> None:
        self.name = name
        self.messages: list[Message] = []  # all that were ever published: a message's body is its index
        self.ready: list[Message] = []
        self.unacked = 0
        self.deleted = False

    def put_back(self, messages: list[Message]) -> None:
        for message in messages:
            message.redelivered = True
        if not self.deleted:
            self.ready = sorted(self.ready + messages, key=lambda one: one.place)


class ModelConsumer:
    def __init__(self, channel: ModelChannel, queue: ModelQueue, no_ack: bool, limit: int) -> None:
        self.channel = channel
        self.queue = queue
        self.no_ack = no_ack
        self.limit = limit
        self.held = 0

    def has_allowance(self) -> bool:
        channel = self.channel
        if channel.limit and channel.used >= channel.limit:
            return False
        return self.no_ack or not self.limit or self.held < self.limit


class ModelChannel:
    def __init__(self, peer, number: int) -> None:
        self.peer = peer
        self.number = number
        self.next_tag = 1
        self.held: dict[int, tuple[Message, ModelConsumer | None]] = {}
        self.consumers: dict[str, ModelConsumer] = {}
        self.limit = 0
        self.consumer_limit = 0
        self.used = 0

    def take(self, tags: list[int]) -> list[Message]:
        taken = []
        for tag in tags:
            message, consumer = self.held.pop(tag)
            message.queue.unacked -= 1
            if consumer is not None:
                consumer.held -= 1
                self.used -= 1
            taken.append(message)
        return taken

    def requeue(self, tags: list[int]) -> None:
        by_queue: dict[ModelQueue, list[Message]] = {}
        for message in self.take(tags):
            by_queue.setdefault(message.queue, []).append(message)
        for queue, messages in by_queue.items():
            queue.put_back(messages)


class NodeModel(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.broker = SansIOBroker(recording=True)
        self.channels: list[ModelChannel] = []
        self.queues: dict[str, ModelQueue] = {}
        self.consumer_number = 0

    def teardown(self) -> None:
        for channel in self.channels:
            channel.peer.lose()
        self.broker.audit()
        assert all(not queue.backing.unacked for queue in self.broker.vhost.queues.values())
        self.broker.close()

    # -- plumbing -----------------------------------------------------------------------------------------------------

    @initialize()
    def connect(self) -> None:
        for numbers in ((1, 2), (5,)):
            peer = self.broker.connect()
            self.channels += [ModelChannel(peer, peer.open_channel(number)) for number in numbers]
        for name in ("a", "b"):
            self.declare(0, name)
        # Something to deliver to from the beginning: two consumers share "a", each with a prefetch of its own.
        for at, (name, count) in enumerate((("a", 2), ("a", 3), ("b", 0))):
            self.qos(at, count, shared=False)
            self.consume(at, name, no_ack=False)
        self.qos(2, 2, shared=True)

    def channel(self, at: int) -> ModelChannel:
        return self.channels[at % len(self.channels)]

    def queue(self, name: str) -> ModelQueue:
        return self.queues[name]

    def send(self, channel: ModelChannel, data: bytes) -> None:
        channel.peer.connection.receive_data(data)
        self.broker.run()

    def collect(self, channel: ModelChannel | None = None) -> list[Frame]:
        """Checks what was delivered to anybody; returns the other method frames that came on `channel`."""
        answers: list[Frame] = []
        delivered: dict[ModelQueue, list[Message]] = {}
        for peer in {one.peer for one in self.channels}:
            frames = peer.output()
            for at, one in enumerate(frames):
                if one.type != METHOD:
                    continue
                command = one.command()
                if isinstance(command, Basic.Deliver):
                    message = self._delivered(peer, one.channel, command, _body(frames, at))
                    here = delivered.setdefault(message.queue, [])
                    here.append(message)
                elif channel is not None and peer is channel.peer and one.channel == channel.number:
                    answers.append(one)
                    if isinstance(command, Basic.GetOk):
                        answers += frames[at + 1 : at + 3]
                else:
                    assert isinstance(command, Basic.Cancel), f"unasked: {command}"
        for queue, messages in delivered.items():
            assert sorted(messages, key=lambda one: one.place) == queue.ready[: len(messages)], (
                "not the head of the queue"
            )
            del queue.ready[: len(messages)]
        return answers

    def _delivered(self, peer, number: int, command: Basic.Deliver, body: bytes) -> Message:
        (channel,) = [one for one in self.channels if one.peer is peer and one.number == number]
        consumer = channel.consumers[command.consumer_tag]
        message = consumer.queue.messages[int(body)]
        assert (command.exchange, command.routing_key) == ("", consumer.queue.name)
        assert command.delivery_tag == channel.next_tag
        assert command.redelivered == message.redelivered
        assert message in message.queue.ready, "delivered while somebody has it"
        assert consumer.has_allowance(), "more than the prefetch allows"
        assert all(held.place < message.place for held in self._new(channel, message.queue)), "out of order"
        channel.next_tag += 1
        if not consumer.no_ack:
            channel.held[command.delivery_tag] = message, consumer
            message.queue.unacked += 1
            consumer.held += 1
            channel.used += 1
        return message

    def _new(self, channel: ModelChannel, queue: ModelQueue) -> list[Message]:
        """What this turn has given to the channel already."""
        return [held for held, _ in channel.held.values() if held.queue is queue and held in queue.ready]

    # -- what clients do ----------------------------------------------------------------------------------------------

    @rule(at=CHANNELS, name=QUEUES)
    def declare(self, at: int, name: str) -> None:
        channel = self.channel(at)
        self.send(channel, method(channel.number, Queue.Declare(queue=name)))
        queue = self.queues.setdefault(name, ModelQueue(name))
        (answer,) = self.collect(channel)
        assert answer.command().message_count == len(queue.ready)

    @rule(at=CHANNELS, name=QUEUES, count=st.integers(1, 5))
    def publish(self, at: int, name: str, count: int) -> None:
        channel, queue = self.channel(at), self.queue(name)
        data = b""
        for _ in range(count):
            message = Message(queue, len(queue.messages))
            queue.messages.append(message)
            queue.ready.append(message)
            data += publish(channel.number, "", name, b"%d" % message.place)
        self.send(channel, data)
        assert self.collect(channel) == []

    @rule(at=CHANNELS, name=QUEUES, no_ack=st.sampled_from((False, False, True)))
    def consume(self, at: int, name: str, no_ack: bool) -> None:
        channel = self.channel(at)
        if len(channel.consumers) >= 3:
            return
        self.consumer_number += 1
        tag = f"c{self.consumer_number}"
        channel.consumers[tag] = ModelConsumer(channel, self.queue(name), no_ack, channel.consumer_limit)
        self.send(channel, method(channel.number, Basic.Consume(queue=name, consumer_tag=tag, no_ack=no_ack)))
        (answer,) = self.collect(channel)
        assert answer.command().consumer_tag == tag

    @rule(at=CHANNELS, which=TAGS)
    def cancel(self, at: int, which: int) -> None:
        channel = self.channel(at)
        if channel.consumers:
            tag = sorted(channel.consumers)[which % len(channel.consumers)]
            del channel.consumers[tag]
            self.send(channel, method(channel.number, Basic.Cancel(consumer_tag=tag)))
            assert len(self.collect(channel)) == 1

    @rule(at=CHANNELS, name=QUEUES, no_ack=st.booleans())
    def get(self, at: int, name: str, no_ack: bool) -> None:
        channel, queue = self.channel(at), self.queue(name)
        self.send(channel, method(channel.number, Basic.Get(queue=name, no_ack=no_ack)))
        answers = self.collect(channel)
        command = answers[0].command()
        if not queue.ready:
            assert isinstance(command, Basic.GetEmpty)
            return
        message = queue.ready.pop(0)
        assert isinstance(command, Basic.GetOk) and int(answers[2].payload) == message.place
        assert (command.delivery_tag, command.redelivered) == (channel.next_tag, message.redelivered)
        assert command.message_count == len(queue.ready)
        if not no_ack:
            channel.held[channel.next_tag] = message, None
            queue.unacked += 1
        channel.next_tag += 1

    @rule(at=CHANNELS, which=TAGS, multiple=st.booleans(), how=SETTLINGS)
    def settle(self, at: int, which: int, multiple: bool, how: str) -> None:
        channel = self.channel(at)
        if not channel.held:
            return
        tag = sorted(channel.held)[which % len(channel.held)]
        multiple = multiple and not how.startswith("reject")
        tags = [one for one in sorted(channel.held) if one <= tag] if multiple else [tag]
        command = {
            "ack": Basic.Ack(tag, multiple),
            "nack": Basic.Nack(tag, multiple, False),
            "requeue": Basic.Nack(tag, multiple, True),
            "reject": Basic.Reject(tag, False),
            "reject_requeue": Basic.Reject(tag, True),
        }[how]
        self.send(channel, method(channel.number, command))
        if how.endswith("requeue"):
            channel.requeue(tags)
        else:
            channel.take(tags)
        assert self.collect(channel) == []

    @rule(at=CHANNELS)
    def recover(self, at: int) -> None:
        channel = self.channel(at)
        self.send(channel, method(channel.number, Basic.Recover(requeue=True)))
        channel.requeue(list(channel.held))
        assert len(self.collect(channel)) == 1

    @rule(at=CHANNELS, count=PREFETCH, shared=st.booleans())
    def qos(self, at: int, count: int, shared: bool) -> None:
        channel = self.channel(at)
        if shared:
            channel.limit = count
        else:
            channel.consumer_limit = count
        self.send(channel, method(channel.number, Basic.Qos(prefetch_count=count, global_=shared)))
        assert len(self.collect(channel)) == 1

    @rule(at=CHANNELS, name=QUEUES, what=ENDS)
    def end(self, at: int, name: str, what: str) -> None:
        """All that ends something is one rule, so that it does not come too often."""
        if what == "purge":
            self.purge(at, name)
        elif what == "queue":
            self.delete_queue(at, name)
        elif what == "channel":
            self.close_channel(at)
        elif what == "error":
            self.settle_what_is_not_there(at)
        else:
            self.close_connection(at, politely=what == "connection")

    def purge(self, at: int, name: str) -> None:
        channel, queue = self.channel(at), self.queue(name)
        self.send(channel, method(channel.number, Queue.Purge(queue=name)))
        (answer,) = self.collect(channel)
        assert answer.command().message_count == len(queue.ready)
        queue.ready.clear()

    def delete_queue(self, at: int, name: str) -> None:
        """The queue goes and comes again: another one, with nothing of the old."""
        channel, queue = self.channel(at), self.queues.pop(name)
        queue.deleted = True
        for one in self.channels:
            one.consumers = {
                tag: consumer for tag, consumer in one.consumers.items() if consumer.queue is not queue
            }
        self.send(channel, method(channel.number, Queue.Delete(queue=name)))
        answer = self.collect(channel)[-1].command()
        assert answer.message_count == len(queue.ready)
        queue.ready.clear()
        self.declare(at, name)

    def close_channel(self, at: int) -> None:
        channel = self.channel(at)
        self._forget(channel)
        close = Channel.Close(reply_code=200, class_id=0, method_id=0)
        self.send(channel, method(channel.number, close))
        self._reopen(channel)

    def settle_what_is_not_there(self, at: int) -> None:
        """The broker closes the channel; its messages go back at once, not with the close-ok."""
        channel = self.channel(at)
        self._forget(channel)
        self.send(channel, method(channel.number, Basic.Ack(delivery_tag=channel.next_tag)))
        assert [one.command().reply_code for one in self.collect(channel)] == [406]
        self.send(channel, method(channel.number, Channel.CloseOk()))
        self._reopen(channel)

    def _forget(self, channel: ModelChannel) -> None:
        channel.consumers = {}
        channel.requeue(list(channel.held))

    def _reopen(self, channel: ModelChannel) -> None:
        self.collect(channel)
        again = ModelChannel(channel.peer, channel.number)
        self.channels[self.channels.index(channel)] = again
        self.send(again, frame(METHOD, again.number, b"\x00\x14\x00\x0a\x00"))
        assert len(self.collect(again)) == 1

    def close_connection(self, at: int, politely: bool) -> None:
        peer = self.channel(at).peer
        gone = [channel for channel in self.channels if channel.peer is peer]
        for channel in gone:
            self._forget(channel)
        if politely:
            peer.feed(method(0, Connection.Close(reply_code=200, class_id=0, method_id=0)))
            assert peer.checker.finished, "no close-ok"
        peer.lose()
        self.broker.audit_gone(peer)
        again = self.broker.connect()
        for channel in gone:
            again.open_channel(channel.number)
            self.channels[self.channels.index(channel)] = ModelChannel(again, channel.number)
        self.collect()

    # -- what must stay true ------------------------------------------------------------------------------------------

    @invariant()
    def broker_and_model_agree(self) -> None:
        self.broker.audit()
        for name, queue in self.queues.items():
            backing = self.broker.vhost.queues[name].backing
            assert (backing.len, backing.unacked) == (len(queue.ready), queue.unacked)

    @invariant()
    def nothing_waits_for_nothing(self) -> None:
        for channel in self.channels:
            for consumer in channel.consumers.values():
                assert not consumer.queue.ready or not consumer.has_allowance()


def _body(frames: list[Frame], at: int) -> bytes:
    assert frames[at + 2].type == BODY
    return frames[at + 2].payload


TestNodeModel = NodeModel.TestCase
TestNodeModel.settings = settings(max_examples=50, stateful_step_count=50, deadline=None)
