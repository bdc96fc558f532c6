"""Holds connections of Python's clients with heartbeats; idle_clients.py says what the arguments are and what is printed.

Nothing here waits on a lock with a timeout: such a wait does not follow a cranked clock (libfaketime).
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

BODY = bytes(100)
LIMIT = {"x-max-length": 1000}
POLL_S = 0.2
WINDOW = 500
END_TIMEOUT_S = 20.0

ending = False


class Held(threading.Thread):
    """One connection in a thread of its own. `hold` returns when `ending` is set and the connection was still of use."""

    def __init__(self, argument: str) -> None:
        self.called, _, heartbeat, self.role, url = argument.split(",", 4)
        super().__init__(daemon=True)
        self.heartbeat = int(heartbeat)
        self.url = f"{url}?heartbeat={heartbeat}"
        self.opened = 0.0
        self.blocked = False
        self.tells_blocked = True
        self.moved = 0
        self.outcome = ""

    def run(self) -> None:
        try:
            self.hold()
        except Exception as error:
            after = time.monotonic() - self.opened
            self.outcome = f"lost after {after:.1f} s: {error!r}" if self.opened else f"not opened: {error!r}"
            return
        if self.role == "blocked" and self.tells_blocked and not self.blocked:
            self.outcome = "not told that it is blocked"
        elif self.role != "idle" and not self.moved:
            self.outcome = "nothing published or consumed"
        else:
            self.outcome = "ok"

    def ready(self) -> None:
        self.opened = time.monotonic()

    def hold(self) -> None:
        raise NotImplementedError


class PikaBlocking(Held):
    def hold(self) -> None:
        import pika

        connection = pika.BlockingConnection(pika.URLParameters(self.url))
        connection.add_on_connection_blocked_callback(lambda *_: setattr(self, "blocked", True))
        channel = connection.channel()

        def consumed(*_: object) -> None:
            self.moved += 1

        def publish() -> None:
            channel.basic_publish("", self.called, BODY)
            self.moved += 1

        if self.role == "consumer":
            channel.queue_declare(self.called, auto_delete=True, arguments=LIMIT)
            channel.basic_consume(self.called, consumed, auto_ack=True)
        elif self.role == "blocked":
            publish()
        self.ready()
        while not ending:
            if self.role == "publisher":
                publish()
            else:
                connection.process_data_events(time_limit=POLL_S)
        if self.role == "idle":
            connection.channel().queue_declare("", exclusive=True)


class PikaSelect(Held):
    """On pika's own loop; `PikaAsyncio` on asyncio's. Confirms bound what a publisher has under way."""

    def connect(self, **callbacks: Callable[..., None]) -> Any:
        import pika

        connection = pika.SelectConnection(pika.URLParameters(self.url), **callbacks)
        self.start_loop, self.stop_loop = connection.ioloop.start, connection.ioloop.stop
        self.call_later = connection.ioloop.call_later
        return connection

    def hold(self) -> None:
        failed: list[BaseException | None] = []
        useful = False

        def lost(_: object, error: BaseException | str | None) -> None:
            if not useful:
                failed.append(error if isinstance(error, BaseException) else RuntimeError(str(error)))
            self.stop_loop()

        def opened(connection: Any) -> None:
            connection.add_on_connection_blocked_callback(lambda *_: setattr(self, "blocked", True))
            connection.channel(on_open_callback=channel_open)
            self.call_later(POLL_S, watch)

        def channel_open(channel: Any) -> None:
            if self.role == "consumer":
                channel.queue_declare(self.called, auto_delete=True, arguments=LIMIT, callback=lambda _: consume(channel))
            elif self.role == "publisher":
                channel.confirm_delivery(lambda frame: confirmed(channel, frame), callback=lambda _: publish(channel, WINDOW))
            elif self.role == "blocked":
                publish(channel, 1)
            self.ready()

        def consume(channel: Any) -> None:
            channel.basic_consume(self.called, lambda *_: setattr(self, "moved", self.moved + 1), auto_ack=True)

        def publish(channel: Any, count: int) -> None:
            for _ in range(count):
                channel.basic_publish("", self.called, BODY)
            self.moved += count

        def confirmed(channel: Any, frame: Any) -> None:
            window = self.moved - frame.method.delivery_tag
            if window < WINDOW // 2 and not ending:
                publish(channel, WINDOW - window)

        def watch() -> None:
            if not ending:
                self.call_later(POLL_S, watch)
            elif self.role == "idle":
                connection.channel(on_open_callback=lambda channel: channel.queue_declare(
                    "", exclusive=True, callback=lambda _: done()))
            else:
                done()

        def done() -> None:
            nonlocal useful
            useful = True
            self.stop_loop()

        connection = self.connect(on_open_callback=opened, on_open_error_callback=lost, on_close_callback=lost)
        self.start_loop()
        if failed:
            assert failed[0] is not None
            raise failed[0]


class PikaAsyncio(PikaSelect):
    def connect(self, **callbacks: Callable[..., None]) -> Any:
        import pika
        from pika.adapters.asyncio_connection import AsyncioConnection

        loop = asyncio.new_event_loop()
        self.start_loop, self.stop_loop, self.call_later = loop.run_forever, loop.stop, loop.call_later
        return AsyncioConnection(pika.URLParameters(self.url), custom_ioloop=loop, **callbacks)


class AioPika(Held):
    def hold(self) -> None:
        self.tells_blocked = False
        asyncio.run(self.hold_open())

    async def hold_open(self) -> None:
        import aio_pika

        connection = await aio_pika.connect(self.url)
        closed = asyncio.ensure_future(connection.closed())
        channel = await connection.channel(publisher_confirms=False)
        if self.role == "consumer":
            queue = await channel.declare_queue(self.called, auto_delete=True, arguments=LIMIT)

            async def consumed(_: object) -> None:
                self.moved += 1

            await queue.consume(consumed, no_ack=True)

        async def publish() -> None:
            await channel.default_exchange.publish(aio_pika.Message(BODY), self.called)
            self.moved += 1

        if self.role == "blocked":
            await publish()
        self.ready()
        while not ending:
            if self.role == "publisher":
                await publish()
            else:
                await asyncio.sleep(POLL_S)
            if closed.done():
                raise RuntimeError(f"closed: {closed.exception()!r}")
        if self.role == "idle":
            await (await connection.channel()).declare_queue("", exclusive=True)
        closed.cancel()


class Kombu(Held):
    """py-amqp leaves it to the program to call `heartbeat_check`, as Celery does."""

    def hold(self) -> None:
        from kombu.connection import Connection  # kombu itself is half there while another thread imports it

        connection = Connection(self.url.partition("?")[0], heartbeat=self.heartbeat,
                                      transport_options={"on_blocked": lambda _: setattr(self, "blocked", True)})
        connection.connect()
        channel = connection.channel()

        def consumed(_: object) -> None:
            self.moved += 1

        def publish() -> None:
            channel.basic_publish(channel.prepare_message(BODY), "", self.called)
            self.moved += 1

        if self.role == "consumer":
            channel.queue_declare(self.called, auto_delete=True, arguments=LIMIT)
            channel.basic_consume(self.called, no_ack=True, callback=consumed, consumer_tag="one")
        elif self.role == "blocked":
            publish()
        self.ready()
        checked = 0.0
        while not ending:
            if self.role == "publisher":
                publish()
            else:
                with contextlib.suppress(TimeoutError):
                    connection.drain_events(timeout=POLL_S)
            if time.monotonic() - checked > self.heartbeat / 4:
                checked = time.monotonic()
                connection.heartbeat_check()
        if self.role == "idle":
            connection.channel().queue_declare("", exclusive=True)


class Rabbitpy(Held):
    """The client of that name."""

    def hold(self) -> None:
        import rabbitpy

        connection = rabbitpy.Connection(self.url)
        channel = connection.channel()

        def publish() -> None:
            rabbitpy.Message(channel, BODY).publish("", self.called)
            self.moved += 1

        def consume() -> None:
            queue = rabbitpy.Queue(channel, self.called, auto_delete=True, max_length=1000)
            queue.declare()
            for _ in queue.consume(no_ack=True):
                self.moved += 1

        if self.role == "consumer":
            threading.Thread(target=consume, daemon=True).start()
        elif self.role == "blocked":
            publish()
        self.ready()
        while not ending:
            if self.role == "publisher":
                publish()
            else:
                time.sleep(POLL_S)
            if connection.closed:
                raise RuntimeError("closed")
            self.blocked = connection.blocked
        if self.role == "idle":
            rabbitpy.Queue(connection.channel(), "", exclusive=True).declare()


MODES: dict[str, type[Held]] = {
    "pika-blocking": PikaBlocking,
    "pika-select": PikaSelect,
    "pika-asyncio": PikaAsyncio,
    "aio-pika": AioPika,
    "kombu": Kombu,
    "rabbitpy": Rabbitpy,
}


def main(arguments: list[str]) -> None:
    global ending  # noqa: PLW0603  # the threads look at it
    held = [MODES[argument.split(",")[1]](argument) for argument in arguments]
    for one in held:
        one.start()
    while not all(one.opened or one.outcome for one in held):
        time.sleep(0.05)
    print("ready", flush=True)
    sys.stdin.readline()
    ending = True
    until = time.monotonic() + END_TIMEOUT_S
    while not all(one.outcome for one in held) and time.monotonic() < until:
        time.sleep(0.05)
    print(json.dumps({one.called: one.outcome or "does not answer at the end" for one in held}), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
