"""PerfTest through the options that its users give it.

Runs by count (`-C`, `-D`) must end because every producer and consumer reached its count: each message arrived. Runs by
time are for what needs time (rates, requeues); there both rates must be above zero.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from pathlib import Path

import pika
import pytest
from perftest_runner import Outcome, perftest_jars, run_perftest
from pika.adapters.blocking_connection import BlockingChannel

from broker_process import BrokerAddress
from support import eventually

pytestmark = pytest.mark.timeout(700)  # the first run installs

NewName = Callable[[str], str]
BOTH_LIMITS = {"Producer reached message limit", "Consumer reached message limit"}


@pytest.fixture(scope="module")
def jars() -> Path:
    return perftest_jars()


@pytest.fixture
def perftest(broker: BrokerAddress, jars: Path) -> Callable[..., Outcome]:
    """`perftest("-x", 2, ...)` is the outcome of a run that succeeded, as far as its exit code and output tell."""

    def run(*options: object) -> Outcome:
        outcome = run_perftest(jars, broker.url, [str(option) for option in options])
        outcome.assert_clean()
        return outcome

    return run


def assert_all_arrived(outcome: Outcome) -> None:
    # `[3]` behind a reason says how many producers or consumers gave it
    reasons = re.sub(r" \[\d+\]", "", outcome.stopped_by)
    assert set(reasons.split(", ")) == BOTH_LIMITS, outcome.output
    assert outcome.sent > 0 and outcome.received > 0, outcome.output


def assert_flowed(outcome: Outcome) -> None:
    assert outcome.stopped_by == "Reached time limit", outcome.output
    assert outcome.sent > 0 and outcome.received > 0, outcome.output


def is_gone(connection: pika.BlockingConnection, queue: str) -> bool:
    channel = connection.channel()
    try:
        channel.queue_declare(queue, passive=True)
    except pika.exceptions.ChannelClosedByBroker as closed:
        return closed.reply_code == 404
    channel.close()
    return False


def test_the_usual_run(perftest: Callable[..., Outcome], channel: BlockingChannel, new_name: NewName) -> None:
    """The exchange is PerfTest's own default, `direct`, which it declares and leaves behind."""
    outcome = perftest("-x", 2, "-y", 2, "-u", new_name("perf"), "-s", 1000, "-c", 200, "-q", 100, "-z", 3)
    assert_flowed(outcome)
    assert outcome.peaks["confirmed"] > 0
    assert outcome.peaks["nacked"] == 0
    channel.exchange_declare("direct", "direct", durable=True, passive=True)


BY_COUNT = {
    "small messages without acks": "-x 1 -y 1 -s 12 --autoack -C 2000 -D 2000",
    "confirm each": "-c 1 -C 100 -D 100",
    "confirm window": "-c 50 -C 2000 -D 2000",
    "multiple acks": "--multi-ack-every 10 -q 50 -C 1000 -D 1000",
    "prefetch 1": "-q 1 -C 300 -D 300",
    "prefetch of the channel": "--global-qos 50 -C 1000 -D 1000",
    "polling": "--polling -C 300 -D 300",
    "polling at intervals": "--polling --polling-interval 5 --autoack -C 100 -D 100",
    "json bodies": "--json-body --size 2000 --body-count 5 --body-field-count 50 -C 200 -D 200",
    "large bodies": "-s 1000000 -C 30 -D 30 -c 5 -q 5",
    "bodies over small frames": "-s 50000 -M 4096 -C 100 -D 100",
    "persistent in a durable queue": "--flag persistent --auto-delete false -C 1000 -D 1000 -c 100",
    "mandatory": "--flag mandatory -C 500 -D 500 -c 100",
    "persistent and mandatory": "--flag persistent --flag mandatory -C 500 -D 500 -c 100",
    "transactions of publishes": "--ptxsize 10 -C 500 -D 500",
    "transactions of acks": "--ctxsize 10 -q 100 -C 500 -D 500",
    "transactions of both": "-m 5 -n 5 -q 50 -C 500 -D 500",
    "transactions of several producers": "-x 3 -m 10 -n 10 -q 100 -C 200 -D 600",
    "transactions of persistent publishes": "-m 20 --flag persistent --auto-delete false -C 500 -D 500",
    "slow consumer": "-L 2000 -q 10 -C 300 -D 300",
    "consumer rate": "--consumer-rate 500 -q 10 -C 500 -D 500",
    "message properties": "--message-properties priority=5,expiration=60000,contentType=text/plain,extra=1 -C 200 -D 200",
    "consumer priority": "--consumer-args x-priority=10 -C 200 -D 200",
    "heartbeat": "--heartbeat 1 --rate 100 -C 250 -D 250",
    "millisecond latencies": "--use-millis -C 200 -D 200",
    "shared threads": "-x 4 -y 1 --consumers-thread-pools 1 --heartbeat-sender-threads 1 --heartbeat 5 -C 100 -D 400",
    "publishing interval": "--publishing-interval 0.1 -C 10 -D 10",
}


@pytest.mark.parametrize("options", BY_COUNT.values(), ids=BY_COUNT.keys())
def test_all_messages_arrive(perftest: Callable[..., Outcome], new_name: NewName, options: str) -> None:
    assert_all_arrived(perftest("-u", new_name("perf"), "-e", new_name("perf"), *options.split()))


# consumers of one queue share its messages as they come, so none of them can be told how many it will get
BY_TIME = {
    "several of each": "-x 2 -y 3 -q 50",
    "channels per connection": "-x 2 -y 2 --producer-channel-count 3 --consumer-channel-count 3 -q 5",
    "both prefetches": "--qos 10 --global-qos 20 --consumer-channel-count 2 --rate 2000",
    "multiple acks of several consumers": "-x 2 -y 2 --multi-ack-every 20 -q 100 -c 100",
    "polling by several consumers": "--polling -y 3 --rate 500",
}


@pytest.mark.parametrize("options", BY_TIME.values(), ids=BY_TIME.keys())
def test_messages_flow(perftest: Callable[..., Outcome], new_name: NewName, options: str) -> None:
    assert_flowed(perftest("-u", new_name("perf"), "-e", new_name("perf"), *options.split(), "-z", 2))


QUEUE_ARGUMENTS = [
    "x-max-length=1000000",
    "x-max-length-bytes=1000000000",
    "x-message-ttl=60000",
    "x-expires=60000",
    "x-max-priority=5",
    "x-dead-letter-exchange=amq.fanout,x-dead-letter-routing-key=dead",
    "x-max-length=1000000,x-overflow=reject-publish",
    "x-single-active-consumer=true",
    "x-queue-mode=lazy",
    "x-queue-type=classic",
]


@pytest.mark.parametrize("arguments", QUEUE_ARGUMENTS)
def test_queue_arguments(perftest: Callable[..., Outcome], new_name: NewName, arguments: str) -> None:
    assert_all_arrived(perftest("-u", new_name("perf"), "-e", new_name("perf"), "--queue-args", arguments,
                                "--auto-delete", "false", "-c", 100, "-C", 300, "-D", 300))


def test_queue_of_limited_length_drops_its_oldest(
    perftest: Callable[..., Outcome], channel: BlockingChannel, new_name: NewName
) -> None:
    name = new_name("perf")
    perftest("-u", name, "-e", new_name("perf"), "--queue-args", "x-max-length=10", "-ad", "false", "-y", 0, "-c", 50,
             "-C", 500)
    arguments = {"x-max-length": 10}
    assert channel.queue_declare(name, auto_delete=False, arguments=arguments).method.message_count == 10


def test_full_queue_refuses_publishes(perftest: Callable[..., Outcome], new_name: NewName) -> None:
    """reject-publish: the confirms of what does not fit are nacks, which PerfTest counts."""
    outcome = perftest("-u", new_name("perf"), "-e", new_name("perf"), "--queue-args",
                       "x-max-length=10,x-overflow=reject-publish", "-y", 0, "-c", 50, "--rate", 500, "-z", 3)
    assert outcome.peaks["nacked"] > 0


def dead_letters_to(target: str) -> str:
    return f"x-dead-letter-exchange=,x-dead-letter-routing-key={target}"


# the arguments of the queue beside those of its dead letters, and what makes each of 300 messages one
DEAD_LETTERS = {
    "expired": ("x-message-ttl=50", "-y 0"),
    "expired at once": ("x-message-ttl=0", "-y 0"),
    "expired by their own expiration": ("x-max-length=1000", "-y 0 --message-properties expiration=50"),
    "too many": ("x-max-length=0", "-y 0"),
    "refused": ("x-max-length=0,x-overflow=reject-publish-dlx", "-y 0"),
    "rejected": ("x-message-ttl=60000", "--nack --requeue false -q 10 -D 300"),
    "several rejected at once": ("x-max-priority=3", "--nack --requeue false --multi-ack-every 10 -q 50 -D 300"),
}


@pytest.mark.parametrize(("arguments", "options"), DEAD_LETTERS.values(), ids=DEAD_LETTERS.keys())
def test_every_message_becomes_a_dead_letter(
    perftest: Callable[..., Outcome], channel: BlockingChannel, queue: Callable[..., str], new_name: NewName,
    arguments: str, options: str,
) -> None:
    name, dead = new_name("perf"), queue()
    # without confirms of its own, as the nacks of refused messages are no success to PerfTest
    perftest("-u", name, "-e", new_name("perf"), "--queue-args", f"{arguments},{dead_letters_to(dead)}", "-ad", "false",
             "-C", 300, *options.split())
    eventually(lambda: channel.queue_declare(dead, passive=True).method.message_count == 300)
    assert channel.queue_declare(name, passive=True).method.message_count == 0


def test_priorities(perftest: Callable[..., Outcome], channel: BlockingChannel, new_name: NewName) -> None:
    """Two runs fill the queue, the more urgent one later: it comes out first."""
    name, source = new_name("perf"), new_name("perf")
    common = ("-u", name, "-e", source, "--queue-args", "x-max-priority=5", "-ad", "false", "-c", 50)
    for priority in (1, 4):
        perftest(*common, "-y", 0, "-C", 200, "--message-properties", f"priority={priority}")
    priorities = [channel.basic_get(name, auto_ack=True)[1].priority for _ in range(250)]
    assert priorities == [4] * 200 + [1] * 50
    drained = perftest(*common, "-x", 0, "-q", 20, "--exit-when", "empty")
    assert drained.received > 0
    assert channel.queue_declare(name, passive=True).method.message_count == 0


def test_single_active_consumer_of_several(perftest: Callable[..., Outcome], new_name: NewName) -> None:
    """By time, because those in waiting never reach a count."""
    assert_flowed(perftest("-u", new_name("perf"), "-e", new_name("perf"), "--queue-args", "x-single-active-consumer=true",
                           "-y", 3, "-q", 20, "--rate", 500, "-z", 2))


def test_queue_that_expires_goes_after_the_run(
    perftest: Callable[..., Outcome], connection: pika.BlockingConnection, new_name: NewName
) -> None:
    name = new_name("perf")
    assert_all_arrived(perftest("-u", name, "-e", new_name("perf"), "--queue-args", "x-expires=1500", "-ad", "false",
                                "-C", 200, "-D", 200))
    channel = connection.channel()
    deadline = time.monotonic() + 2.0  # a declare would be a use
    eventually(lambda: time.monotonic() >= deadline)
    with pytest.raises(pika.exceptions.ChannelClosedByBroker, match="no queue"):
        channel.queue_declare(name, passive=True)


EXCHANGES = {
    "topic": "--type topic --routing-key stock.usd.nyse",
    "fanout": "--type fanout --routing-key ignored",
    "fanout, a key for each message": "--type fanout --random-routing-key",
    "headers": "--type headers",
    "predeclared direct": "--type direct --exchange amq.direct",
    "predeclared topic": "--type topic --exchange amq.topic",
}


@pytest.mark.parametrize("options", EXCHANGES.values(), ids=EXCHANGES.keys())
def test_exchange_types(perftest: Callable[..., Outcome], new_name: NewName, options: str) -> None:
    """A routing key is PerfTest's own for the run unless one is given, so the shared exchanges are safe to use."""
    exchange = () if "--exchange" in options else ("--exchange", new_name("perf"))
    assert_all_arrived(perftest("-u", new_name("perf"), *exchange, *options.split(), "-c", 50, "-C", 300, "-D", 300))


def test_fanout_to_several_queues(perftest: Callable[..., Outcome], new_name: NewName) -> None:
    """Without a name each consumer has a queue of its own, and each gets everything."""
    outcome = perftest("-y", 3, "-e", new_name("perf"), "--type", "fanout", "-C", 300, "-D", 300)
    assert_all_arrived(outcome)


def test_exclusive_queues_named_by_the_broker(perftest: Callable[..., Outcome], new_name: NewName) -> None:
    assert_all_arrived(perftest("--exclusive", "-y", 2, "-k", "all", "-e", new_name("perf"), "-C", 300, "-D", 300))


def test_predeclared_topology(
    perftest: Callable[..., Outcome], channel: BlockingChannel, queue: Callable[..., str], exchange: Callable[..., str]
) -> None:
    """Only looks whether the queue is there, by a passive declare; settings that differ from its own do not matter."""
    name, source = queue(durable=True, arguments={"x-max-length": 100000}), exchange("topic")
    channel.queue_bind(name, source, "a.*")
    assert_all_arrived(perftest("--predeclared", "-u", name, "-e", source, "-t", "topic", "-k", "a.b", "-c", 50,
                                "-C", 300, "-D", 300))
    assert channel.queue_declare(name, passive=True).method.message_count == 0


def test_predeclared_without_the_queue(perftest: Callable[..., Outcome], new_name: NewName) -> None:
    """Each missing one closes the channel it was looked for on with 404, and PerfTest declares it then."""
    assert_all_arrived(perftest("--predeclared", "-u", new_name("perf"), "-e", new_name("perf"), "-C", 300, "-D", 300))


def test_queue_pattern(
    perftest: Callable[..., Outcome], connection: pika.BlockingConnection, new_name: NewName
) -> None:
    """A queue for each number; they are auto-delete, so they go with their last consumers."""
    prefix = new_name("perf")
    outcome = perftest("--queue-pattern", f"{prefix}-%d", "--queue-pattern-from", 1, "--queue-pattern-to", 5,
                       "-x", 5, "-y", 5, "-e", new_name("perf"), "-c", 50, "-C", 200, "-D", 200)
    assert_all_arrived(outcome)
    eventually(lambda: all(is_gone(connection, f"{prefix}-{number}") for number in range(1, 6)))


def test_rate(perftest: Callable[..., Outcome], new_name: NewName) -> None:
    outcome = perftest("-u", new_name("perf"), "-e", new_name("perf"), "--rate", 200, "-z", 3)
    assert_flowed(outcome)
    # of the intervals, because the average counts messages of the start and of the stop to too short a time
    assert outcome.peaks["sent"] < 1000


def test_variable_rate(perftest: Callable[..., Outcome], new_name: NewName) -> None:
    outcome = perftest("-u", new_name("perf"), "-e", new_name("perf"), "--variable-rate", "100:1",
                       "--variable-rate", "1000:1", "--variable-rate", "0:1", "-z", 5)
    assert_flowed(outcome)
    assert outcome.peaks["received"] > 100


def test_variable_size(perftest: Callable[..., Outcome], new_name: NewName) -> None:
    assert_flowed(perftest("-u", new_name("perf"), "-e", new_name("perf"), "--variable-size", "100:1",
                           "--variable-size", "200000:1", "--rate", 500, "-c", 50, "-z", 4))


def test_variable_latency(perftest: Callable[..., Outcome], new_name: NewName) -> None:
    assert_flowed(perftest("-u", new_name("perf"), "-e", new_name("perf"), "--variable-latency", "1000:1",
                           "--variable-latency", "0:1", "--rate", 500, "-q", 20, "-z", 3))


def test_nacked_messages_come_again(perftest: Callable[..., Outcome], new_name: NewName) -> None:
    outcome = perftest("-u", new_name("perf"), "-e", new_name("perf"), "--nack", "--requeue", "true", "-q", 10,
                       "--rate", 20, "-z", 3)
    assert_flowed(outcome)
    assert outcome.peaks["received"] > 2 * outcome.sent


def test_nacked_messages_go(perftest: Callable[..., Outcome], channel: BlockingChannel, new_name: NewName) -> None:
    name = new_name("perf")
    assert_all_arrived(perftest("-u", name, "-e", new_name("perf"), "--nack", "--requeue", "false", "-q", 10,
                                "-ad", "false", "-C", 300, "-D", 300))
    assert channel.queue_declare(name, passive=True).method.message_count == 0


def test_nack_several_at_once(perftest: Callable[..., Outcome], new_name: NewName) -> None:
    assert_all_arrived(perftest("-u", new_name("perf"), "-e", new_name("perf"), "--nack", "--requeue", "false",
                                "--multi-ack-every", 10, "-q", 50, "-C", 300, "-D", 300))


def test_unroutable_mandatory_messages_are_returned(perftest: Callable[..., Outcome], new_name: NewName) -> None:
    outcome = perftest("-u", new_name("perf"), "-e", new_name("perf"), "--skip-binding-queues", "--flag", "mandatory",
                       "-y", 0, "-c", 10, "--rate", 200, "-z", 3)
    assert outcome.peaks["returned"] > 0
    assert outcome.peaks["confirmed"] > 0


def test_filled_first_and_drained_later(
    perftest: Callable[..., Outcome], channel: BlockingChannel, new_name: NewName
) -> None:
    """`--exit-when empty` ends when passive declares see nothing left in the queue."""
    name, source = new_name("perf"), new_name("perf")
    filled = perftest("-u", name, "-e", source, "-ad", "false", "-y", 0, "-c", 100, "-C", 3000)
    assert filled.stopped_by == "Producer reached message limit", filled.output
    assert channel.queue_declare(name, passive=True).method.message_count == 3000
    drained = perftest("-u", name, "-e", source, "-ad", "false", "-x", 0, "-q", 100, "--exit-when", "empty")
    assert drained.received > 0
    assert channel.queue_declare(name, passive=True).method.message_count == 0


def test_bodies_from_files(perftest: Callable[..., Outcome], new_name: NewName, tmp_path: Path) -> None:
    files = [tmp_path / "a.json", tmp_path / "b.json"]
    for number, file in enumerate(files):
        file.write_text(f'{{"number": {number}}}')
    assert_all_arrived(perftest("-u", new_name("perf"), "-e", new_name("perf"), "-B", ",".join(map(str, files)),
                                "-T", "application/json", "-C", 200, "-D", 200))


def test_immediate_flag_is_not_sent(perftest: Callable[..., Outcome], new_name: NewName) -> None:
    """PerfTest takes the flag for compatibility and does not send it; that the broker refuses it is shown elsewhere."""
    assert_all_arrived(perftest("-u", new_name("perf"), "-e", new_name("perf"), "--flag", "immediate", "-C", 100, "-D", 100))


def test_refused_queue_ends_the_run(broker: BrokerAddress, jars: Path, queue: Callable[..., str], new_name: NewName) -> None:
    """A queue that exists with other settings: PerfTest prints the broker's reply and does not run."""
    outcome = run_perftest(jars, broker.url, ["-u", queue(durable=True), "-e", new_name("perf"), "-C", "10", "-D", "10"])
    assert "PRECONDITION_FAILED - inequivalent arg" in outcome.output
    assert outcome.exit_code != 0


def test_many_connections(perftest: Callable[..., Outcome], new_name: NewName) -> None:
    prefix = new_name("perf")
    assert_all_arrived(perftest("--queue-pattern", f"{prefix}-%d", "--queue-pattern-from", 1, "--queue-pattern-to", 50,
                                "-x", 50, "-y", 50, "-e", new_name("perf"), "--consumers-thread-pools", 2,
                                "-C", 20, "-D", 20))
