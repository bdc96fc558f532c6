"""The ledger of perf.kill finds each of the faults that it is there to find, and no others."""

from __future__ import annotations

import pytest

from perf.kill.ledger import Ledger, Message, Place, Violation


class Story:
    """One queue, one publisher, one consumer."""

    def __init__(self) -> None:
        self.ledger = Ledger(["q"])
        self.last: dict[str, int] = {}
        self.ledger.start_session()

    def publish(self, confirmed: bool = True, persistent: bool = True) -> Message:
        message = self.ledger.publish("p", ["q"], 10, 0xABC, persistent)
        if confirmed:
            self.ledger.confirm(message)
        return message

    def deliver(self, message: Message, redelivered: bool = False, size: int = 10) -> Place:
        return self.ledger.deliver("q", message.id, size, 0xABC, redelivered, self.last)

    def ack(self, place: Place) -> None:
        self.ledger.ack("q", place)

    def requeue(self, place: Place) -> None:
        self.ledger.requeue("q", place)

    def restart(self, acks_settled: bool = False) -> None:
        self.ledger.end_session("kill", acks_settled)
        self.ledger.start_session()
        self.last = {}


@pytest.fixture
def story() -> Story:
    return Story()


def test_confirmed_and_not_acked_is_owed_after_a_restart(story: Story) -> None:
    message = story.publish()
    story.restart()
    with pytest.raises(Violation, match="came up with 0 messages and owes 1"):
        story.ledger.recovered("q", 0)
    story.ledger.recovered("q", 1)
    with pytest.raises(Violation, match="can have 1 at most"):
        story.ledger.recovered("q", 2)
    with pytest.raises(Violation, match="lost: never came out of q"):
        story.ledger.finish()
    story.deliver(message, redelivered=True)
    story.ledger.finish()


def test_queue_may_not_go_past_what_it_owes(story: Story) -> None:
    story.publish()
    second = story.publish()
    with pytest.raises(Violation, match="lost: q went past it, to 2"):
        story.deliver(second)


def test_unconfirmed_may_be_lost_by_a_kill_but_not_come_back_later(story: Story) -> None:
    first = story.publish(confirmed=False)
    second = story.publish()
    story.restart()
    story.deliver(second, redelivered=True)
    with pytest.raises(Violation, match="delivered what it cannot have"):
        story.deliver(first, redelivered=True)


def test_unconfirmed_may_not_be_passed_over_and_then_confirmed(story: Story) -> None:
    first = story.publish(confirmed=False)
    story.deliver(story.publish())
    with pytest.raises(Violation, match="confirmed, but q went past it"):
        story.ledger.confirm(first)


def test_what_came_through_one_restart_is_owed_after_the_next(story: Story) -> None:
    message = story.publish(confirmed=False)
    story.restart()
    story.deliver(message, redelivered=True)
    story.restart()
    with pytest.raises(Violation, match="owes 1"):
        story.ledger.recovered("q", 0)


def test_second_delivery_says_redelivered(story: Story) -> None:
    message = story.publish()
    story.deliver(message)
    story.restart()
    with pytest.raises(Violation, match="a second time without redelivered"):
        story.deliver(message)


def test_second_delivery_in_a_session_needs_a_requeue(story: Story) -> None:
    message = story.publish()
    story.requeue(story.deliver(message))
    story.deliver(message, redelivered=True)
    with pytest.raises(Violation, match="twice what was not given back"):
        story.deliver(message, redelivered=True)


def test_ack_may_be_lost_by_a_kill_only(story: Story) -> None:
    message = story.publish()
    story.ack(story.deliver(message))
    with pytest.raises(Violation, match="delivered again what was acked"):
        story.deliver(message, redelivered=True)
    story.restart()
    story.ledger.recovered("q", 0)
    story.ledger.recovered("q", 1)
    story.ack(story.deliver(message, redelivered=True))
    assert story.ledger.returned == 1
    story.restart(acks_settled=True)
    with pytest.raises(Violation, match="can have 0 at most"):
        story.ledger.recovered("q", 1)
    with pytest.raises(Violation, match="cannot have"):
        story.deliver(message, redelivered=True)


def test_ack_that_may_be_lost_is_not_settled_by_a_later_stop(story: Story) -> None:
    message = story.publish()
    story.ack(story.deliver(message))
    story.restart()
    story.restart(acks_settled=True)
    story.deliver(message, redelivered=True)


def test_transient_is_owed_until_the_restart_and_gone_after_it(story: Story) -> None:
    first = story.publish(persistent=False)
    second = story.publish(persistent=False)
    with pytest.raises(Violation, match="went past it"):
        story.deliver(second)
    story.restart()
    story.ledger.recovered("q", 0)
    with pytest.raises(Violation, match="cannot have"):
        story.deliver(first, redelivered=True)


def test_content_is_what_was_published(story: Story) -> None:
    message = story.publish()
    with pytest.raises(Violation, match="changed in q"):
        story.deliver(message, size=9)
    with pytest.raises(Violation, match="cannot have: 'nobody 1 1 10 00000abc'"):
        story.ledger.deliver("q", "nobody 1 1 10 00000abc", 10, 0xABC, False, {})


def test_each_consumer_of_a_shared_queue_sees_order(story: Story) -> None:
    story.ledger.shared = frozenset({"q"})
    messages = [story.publish() for _ in range(4)]
    story.deliver(messages[2])
    other: dict[str, int] = {}
    for index in (0, 3):  # a second consumer was faster
        story.ledger.deliver("q", messages[index].id, 10, 0xABC, False, other)
    with pytest.raises(Violation, match="order broken in q: after number 3"):
        story.deliver(messages[1])


def test_unacked_of_a_closed_connection_goes_to_the_other_consumer_while_stopping(story: Story) -> None:
    story.ledger.shared = frozenset({"q"})
    acked, unacked = story.publish(), story.publish()
    story.ack(story.deliver(acked))
    story.deliver(unacked)
    story.ledger.stopping = True
    for message in (acked, unacked):
        story.ledger.deliver("q", message.id, 10, 0xABC, True, {})
    with pytest.raises(Violation, match="a second time without redelivered"):
        story.ledger.deliver("q", unacked.id, 10, 0xABC, False, {})


def test_history_tells_what_became_of_a_message(story: Story) -> None:
    message = story.publish()
    place = story.deliver(message)
    story.requeue(place)
    story.restart()
    told = [line.split("  ")[-1] for line in story.ledger.history(message).splitlines()]
    assert told == [
        "p number 1, 10 bytes, persistent, confirmed",
        "published q", "confirmed", "delivered q", "requeued q", "kill q",
    ]  # fmt: skip


class StreamStory:
    """One stream, one publisher."""

    def __init__(self) -> None:
        self.ledger = Ledger([], ["s"])
        self.track = self.ledger.streams["s"]
        self.ledger.start_session()

    def publish(self, confirmed: bool = True) -> Message:
        message = self.ledger.publish("p", ["s"], 10, 0xABC)
        if confirmed:
            self.ledger.confirm(message)
        return message

    def deliver(self, offset: int, message: Message, size: int = 10) -> None:
        self.track.deliver(offset, message.id, size, 0xABC, self.ledger)

    def restart(self) -> None:
        self.ledger.end_session("kill")
        self.ledger.start_session()


@pytest.fixture
def stream() -> StreamStory:
    return StreamStory()


def test_stream_keeps_every_confirmed_message(stream: StreamStory) -> None:
    first, second = stream.publish(), stream.publish()
    with pytest.raises(Violation, match="lost: never came out of s"):
        stream.ledger.finish()
    with pytest.raises(Violation, match="lost: s has no offset for it"):
        stream.deliver(0, second)
    assert first.number == 1


def test_stream_may_lose_what_was_not_confirmed_and_must_not_confirm_it_later(stream: StreamStory) -> None:
    first, second = stream.publish(confirmed=False), stream.publish()
    stream.deliver(0, second)
    with pytest.raises(Violation, match="confirmed, but s went past it"):
        stream.ledger.confirm(first)
    stream.ledger.finish()


def test_offset_means_one_message_for_ever(stream: StreamStory) -> None:
    first, second = stream.publish(), stream.publish()
    stream.deliver(0, first)
    stream.restart()
    stream.deliver(0, first)
    with pytest.raises(Violation, match="changed in s at 0"):
        stream.deliver(0, second)
    with pytest.raises(Violation, match="has offset 0, and 1 too"):
        stream.deliver(1, first)


def test_message_has_one_offset(stream: StreamStory) -> None:
    first, second = stream.publish(), stream.publish()
    stream.deliver(3, second)
    with pytest.raises(Violation, match="has offset 3, and 4 too"):
        stream.deliver(4, second)
    assert first.number == 1


def test_stream_keeps_a_publishers_order(stream: StreamStory) -> None:
    first, second = stream.publish(confirmed=False), stream.publish()
    stream.deliver(0, second)
    with pytest.raises(Violation, match="cannot have"):
        stream.deliver(1, first)


def test_stream_shows_what_was_published(stream: StreamStory) -> None:
    message = stream.publish()
    with pytest.raises(Violation, match="changed in s at 0"):
        stream.deliver(0, message, size=9)
    with pytest.raises(Violation, match="cannot have"):
        stream.track.deliver(1, "nobody 1 1 10 00000abc", 10, 0xABC, stream.ledger)


def test_what_retention_has_taken_is_not_missed(stream: StreamStory) -> None:
    messages = [stream.publish() for _ in range(6)]
    stream.deliver(0, messages[0])
    stream.track.skipped(1, 4, stream.ledger)
    stream.deliver(4, messages[4])
    assert (stream.track.frontier, stream.track.top()) == (5, 5)
    stream.deliver(3, messages[3])  # to another, which was handed it before
    with pytest.raises(Violation, match="lost: never came out of s"):
        stream.ledger.finish()
    stream.deliver(5, messages[5])
    stream.ledger.finish()
