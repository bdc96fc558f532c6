"""A publisher with many confirms outstanding, until its connection ends."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pamqp.commands as amqp

from broker_process import BrokerProcess
from support import eventually
from wire_client import METHOD, WireClient, decode

PERSISTENT = b"\x10\x00\x02"  # the properties of a message
OUTSTANDING = 300
MANDATORY_EACH = 10  # publishes, of which one goes nowhere and comes back


class Pipelined:
    """Publishes numbers to a queue; `confirmed` are those that were, and `returned` those that came back before."""

    def __init__(self, node: BrokerProcess, vhost: str, queue: str) -> None:
        self.confirmed: set[int] = set()
        self.returned = 0
        self.sent = 0
        self.reason = ""  # with which it was closed
        self._queue = queue
        self._wire: WireClient = node.wire().open(vhost=vhost)
        self._wire.open_channel()
        self._wire.call(1, amqp.Confirm.Select(), amqp.Confirm.SelectOk)
        self._room = threading.Semaphore(OUTSTANDING)
        self._is_over = threading.Event()

    @contextmanager
    def publishing(self) -> Iterator[Pipelined]:
        """It ends when the broker closes the connection."""
        threads = [threading.Thread(target=work) for work in (self._send, self._read)]
        for thread in threads:
            thread.start()
        try:
            yield self
            for thread in threads:
                thread.join(60)
            assert self._is_over.is_set()
        finally:
            self._is_over.set()
            self._wire.close()

    def goes_on(self) -> None:
        count = len(self.confirmed)
        eventually(lambda: len(self.confirmed) > count + OUTSTANDING)

    def _send(self) -> None:
        with suppress(OSError):
            while not self._is_over.is_set():
                if self._room.acquire(timeout=0.1):
                    is_mandatory = self.sent % MANDATORY_EACH == 0
                    body = str(self.sent).encode()
                    self.sent += 1
                    key = "nowhere" if is_mandatory else self._queue
                    self._wire.method(1, amqp.Basic.Publish(routing_key=key, mandatory=is_mandatory))
                    self._wire.header(1, len(body), PERSISTENT)
                    self._wire.body(1, body)

    def _read(self) -> None:
        settled = 0
        try:
            while True:
                frame = self._wire.read_frame()
                if frame.type != METHOD:
                    continue
                command = decode(frame)
                if isinstance(command, amqp.Basic.Ack):
                    tags = range(settled + 1, command.delivery_tag + 1) if command.multiple else [command.delivery_tag]
                    settled = max(settled, command.delivery_tag)
                    new = {tag - 1 for tag in tags} - self.confirmed
                    self.confirmed |= new
                    self._room.release(len(new) or 1)
                elif isinstance(command, amqp.Basic.Return):
                    self.returned += 1
                elif isinstance(command, amqp.Connection.Close):
                    self.reason = command.reply_text
                    self._wire.method(0, amqp.Connection.CloseOk())
                    return
        except (OSError, EOFError):
            return
        finally:
            self._is_over.set()
