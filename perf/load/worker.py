"""One process of the load generator: it opens its share of the connections, runs them, and reports samples.

Python runs one thread at a time in a process, so the connections are spread over processes, publishing and consuming ones
apart. A worker and the run that started it talk over a pipe, in this order:

    worker -> run    Ready           its connections are open and, where there are producers, its consumers consume
    run -> worker    Start(at_ns)    begin at that time of CLOCK_MONOTONIC
    worker -> run    Sample ...      counters since the start, at every boundary of the schedule
    run -> worker    Stop            only where the number of messages ends the run
    worker -> run    Finished        nothing follows
    worker -> run    Failed(text)    instead of any of the above; nothing follows
"""

from __future__ import annotations

import contextlib
import dataclasses
import resource
import socket
import time
from multiprocessing.connection import Connection

from pamqp import commands, frame

from perf.driver import BrokerClosed
from perf.load import encode
from perf.load.client import CLOSE_TIMEOUT, Client, Refused
from perf.load.engine import (
    ConsumeChannel,
    Consumer,
    Latencies,
    Loop,
    Producer,
    PublishChannel,
)
from perf.load.plan import SECOND_NS, Plan

# How long the loop runs before it looks at the pipe and at acks that `ack_every` holds back.
SLICE_NS = 100_000_000
# The same where the number of messages ends the run: the end must be noticed soon.
SHORT_SLICE_NS = 20_000_000
CONSUME_TIMEOUT_NS = 30 * SECOND_NS


@dataclasses.dataclass(frozen=True)
class Ready:
    server: str


@dataclasses.dataclass(frozen=True)
class Start:
    at_ns: int


@dataclasses.dataclass(frozen=True)
class Stop:
    pass


@dataclasses.dataclass(frozen=True)
class Finished:
    pass


@dataclasses.dataclass(frozen=True)
class Failed:
    text: str


@dataclasses.dataclass
class Sample:
    """What a worker has counted since its start; the latencies are those since its last sample."""

    time_ns: int = 0
    published: int = 0
    confirmed: int = 0
    nacked: int = 0
    returned: int = 0
    received: int = 0
    body_bytes: int = 0
    cpu_s: float = 0.0
    last_ns: int = 0  # when the last message came or the last publish was settled
    is_done: bool = False  # whether its producers have published and settled all they had to
    latency: dict[int, int] = dataclasses.field(default_factory=dict)
    latency_max_ns: int = 0
    confirm_latency: dict[int, int] = dataclasses.field(default_factory=dict)
    confirm_latency_max_ns: int = 0


class Worker:
    """The connections with the given numbers: `producers` of them publish, `consumers` consume."""

    def __init__(self, plan: Plan, producers: list[int], consumers: list[int]) -> None:
        self.plan = plan
        self.server = ""
        self.producers = [self._open_producer(number) for number in producers]
        self.consumers = [self._open_consumer(number) for number in consumers]
        self.consumer_numbers = consumers
        self.loop = Loop(self.producers, self.consumers)

    def _connect(self, name: str, channels: int) -> Client:
        client = Client(self.plan.address, name)
        self.server = client.server_name
        for channel in range(1, channels + 1):
            client.open_channel(channel)
        return client

    def _open_producer(self, number: int) -> Producer:
        plan = self.plan
        client = self._connect(f"producer-{number}", plan.producer_channels)
        count = plan.batch_count()
        channels = []
        for channel in range(1, plan.producer_channels + 1):
            if plan.confirm:
                client.call(channel, commands.Confirm.Select(), commands.Confirm.SelectOk)
            queue = plan.queue_of(number, channel, plan.producer_channels)
            routing_key = queue if plan.routing_key is None else plan.routing_key
            many = encode.batches(plan, channel, routing_key, count, client.frame_max, number)
            one = encode.batches(dataclasses.replace(plan, bodies="zeros"), channel, routing_key, 1, client.frame_max)
            channels.append(PublishChannel(many, count, one[0]))
        return Producer(*client.take(), channels, plan.confirm, plan.rate, plan.messages)

    def _open_consumer(self, number: int) -> Consumer:
        plan = self.plan
        client = self._connect(f"consumer-{number}", plan.consumer_channels)
        channels = []
        for channel in range(1, plan.consumer_channels + 1):
            if plan.prefetch:
                client.call(channel, commands.Basic.Qos(0, plan.prefetch), commands.Basic.QosOk)
            channels.append(ConsumeChannel(channel, encode.ack_head(channel)))
        return Consumer(*client.take(), channels, plan.ack_every, plan.is_stamped)

    def consume(self) -> None:
        """Sends every basic.consume; returns when the broker has answered them all."""
        no_ack = self.plan.ack_every == 0
        for number, consumer in zip(self.consumer_numbers, self.consumers, strict=True):
            for channel in consumer.channels:
                queue = self.plan.queue_of(number, channel.number, self.plan.consumer_channels)
                method = commands.Basic.Consume(0, queue, f"c{channel.number}", no_ack=no_ack)
                consumer.send(frame.marshal(method, channel.number))
        if not self.loop.consume(time.monotonic_ns() + CONSUME_TIMEOUT_NS):
            raise Refused("the broker did not answer basic.consume")

    def start(self, at_ns: int) -> None:
        for number, producer in enumerate(self.producers):
            # Producers with a rate are spread over the time between two batches, or they would all publish at once.
            spread = (
                number / len(self.producers) * self.plan.batch_count() / self.plan.rate
                if self.plan.rate
                else 0.0
            )
            producer.start(at_ns + int(spread * SECOND_NS))

    def run(self, until_ns: int) -> None:
        """Runs the connections until then, and acks what is left over where nothing more has come."""
        before = [consumer.received for consumer in self.consumers]
        self.loop.run(until_ns)
        for consumer, received in zip(self.consumers, before, strict=True):
            if consumer.received == received:
                consumer.ack_rest()

    def sample(self) -> Sample:
        usage = resource.getrusage(resource.RUSAGE_SELF)
        sample = Sample(time.monotonic_ns(), cpu_s=usage.ru_utime + usage.ru_stime)
        for producer in self.producers:
            sample.published += producer.published
            sample.confirmed += producer.confirmed
            sample.nacked += producer.nacked
            sample.returned += producer.returned
            sample.last_ns = max(sample.last_ns, producer.settled_ns)
            sample.confirm_latency_max_ns = max(
                sample.confirm_latency_max_ns, take(producer, sample.confirm_latency)
            )
        for consumer in self.consumers:
            sample.received += consumer.received
            sample.body_bytes += consumer.body_bytes
            sample.last_ns = max(sample.last_ns, consumer.received_ns)
            sample.latency_max_ns = max(sample.latency_max_ns, take(consumer, sample.latency))
        sample.is_done = all(producer.is_done() for producer in self.producers)
        return sample

    def close(self) -> None:
        """Ends the connections as the protocol asks for, as far as the broker plays along."""
        goodbye = frame.marshal(commands.Connection.Close(200, "", 0, 0), 0)
        answer = frame.marshal(commands.Connection.CloseOk(), 0)
        for link in [*self.producers, *self.consumers]:
            link.sock.settimeout(CLOSE_TIMEOUT)
            with link.sock, contextlib.suppress(OSError):
                if not link.unsent:  # else half a frame is out, and nothing can follow it
                    link.sock.sendall(goodbye)
                    read_until(link.sock, answer)


def take(link: Producer | Consumer, into: dict[int, int]) -> int:
    """Adds a connection's latencies to `into`, starts it on new ones, and returns the largest."""
    taken, link.latencies = link.latencies, Latencies()
    for bucket, count in taken.counts.items():
        into[bucket] = into.get(bucket, 0) + count
    return taken.max_ns


def read_until(sock: socket.socket, answer: bytes) -> None:
    """Throws away what arrives, up to `answer` or the end, for no longer than CLOSE_TIMEOUT."""
    end = time.monotonic() + CLOSE_TIMEOUT
    last = b""
    while not last.endswith(answer) and time.monotonic() < end:
        data = sock.recv(262144)
        if not data:
            return
        last = last[-len(answer) :] + data


def serve(plan: Plan, producers: list[int], consumers: list[int], pipe: Connection) -> None:
    """The process's main function."""
    try:
        worker = Worker(plan, producers, consumers)
        if plan.producers:
            worker.consume()
        pipe.send(Ready(worker.server))
        start: Start = pipe.recv()
        follow_schedule(worker, plan, start.at_ns, pipe)
        worker.close()
        pipe.send(Finished())
    except (BrokerClosed, Refused, OSError) as error:
        pipe.send(Failed(str(error)))
    except (EOFError, KeyboardInterrupt):
        pass  # the run is gone, and has said why


def follow_schedule(worker: Worker, plan: Plan, start_ns: int, pipe: Connection) -> None:
    """Runs from `start_ns` to the end, sampling at the start, at the end of the warm-up and every interval after it."""
    time.sleep(max(0, start_ns - time.monotonic_ns()) / SECOND_NS)
    worker.start(start_ns)
    pipe.send(worker.sample())
    if not plan.producers:
        worker.consume()
    end_ns = start_ns + int((plan.warmup + plan.seconds) * SECOND_NS)
    interval_ns = SHORT_SLICE_NS if plan.messages else int(plan.interval * SECOND_NS)
    boundary_ns = start_ns + (int(plan.warmup * SECOND_NS) or interval_ns)
    while True:
        boundary_ns = min(boundary_ns, end_ns)
        while (now := time.monotonic_ns()) < boundary_ns:
            worker.run(min(boundary_ns, now + (SHORT_SLICE_NS if plan.messages else SLICE_NS)))
            if plan.messages and sample_or_stop(worker, pipe):
                return
        if not plan.messages:
            pipe.send(worker.sample())
        if boundary_ns >= end_ns:
            return
        boundary_ns += interval_ns


def sample_or_stop(worker: Worker, pipe: Connection) -> bool:
    """Reports progress; True when the run says that all messages are through, or when no more can happen here."""
    sample = worker.sample()
    pipe.send(sample)
    if sample.is_done and worker.producers:
        pipe.recv()  # nothing left to do but wait for Stop
        return True
    return pipe.poll()
