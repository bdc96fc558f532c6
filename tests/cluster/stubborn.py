"""Clients that go on in a thread whatever becomes of the node that they are connected to; among them a publisher."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Self

import pika
import pika.exceptions
import pytest

from broker_process import BrokerProcess
from cluster.replicated import PATIENCE, Cluster, Replicated, publish
from support import eventually


class GoingOn:
    """What is done in a thread while a test does something else: `_run`, until `_is_over`."""

    def __init__(self) -> None:
        self.faults: list[BaseException] = []
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run_noting_faults)

    def _run(self) -> None:
        raise NotImplementedError

    def _run_noting_faults(self) -> None:
        try:
            self._run()
        except BaseException as fault:
            self.faults.append(fault)
            raise

    @contextmanager
    def going_on(self) -> Iterator[Self]:
        self._thread.start()
        try:
            yield self
        finally:
            self._is_over.set()
            self._thread.join(PATIENCE)
        assert not self.faults


class Stubborn(GoingOn):
    """A publisher with confirms that goes on with any node when it is closed; `confirmed` is how many publishes were."""

    def __init__(self, cluster: Cluster, vhost: Replicated) -> None:
        super().__init__()
        self.confirmed = 0
        self.longest_gap_s = 0.0  # between two confirms
        self._at = 0.0
        self._with = ""  # the node that it is connected to, or tries to be
        self.texts: list[str] = []  # with which it was closed
        self._cluster = cluster
        self._vhost = vhost

    def _run(self) -> None:
        while not self._is_over.is_set():
            for name, node in list(self._cluster.nodes.items()):
                self._with = name
                try:
                    self._publish(node)
                except pika.exceptions.ConnectionClosedByBroker as closed:
                    self.texts.append(closed.reply_text)
                except (pika.exceptions.AMQPConnectionError, pika.exceptions.AMQPChannelError):
                    pass

    def _publish(self, node: BrokerProcess) -> None:
        if node.alive():
            connection = pika.BlockingConnection(node.parameters(vhost=self._vhost.name))
            try:
                channel = connection.channel()
                channel.confirm_delivery()
                while not self._is_over.is_set():
                    publish(channel, "orders", [self.confirmed])
                    self.confirmed += 1
                    self._note_gap()
            finally:
                if connection.is_open:
                    connection.close()

    def take_gap(self) -> float:
        """The longest time between two confirms since the last call, in seconds."""
        gap, self.longest_gap_s = self.longest_gap_s, 0.0
        return gap

    def _note_gap(self) -> None:
        now = time.monotonic()
        if self._at:
            self.longest_gap_s = max(self.longest_gap_s, now - self._at)
        self._at = now

    def goes_on(self) -> None:
        """Returns when some more have been confirmed; fails with what the nodes say of themselves."""
        count = self.confirmed
        try:
            eventually(lambda: self.confirmed > count + 5, timeout=PATIENCE)
        except pytest.fail.Exception as failed:
            said = [node.ctl("cluster_status") for node in self._cluster.nodes.values() if node.alive()]
            failed.add_note("\n".join([f"publishes to {self._with}, closed before with {self.texts[-3:]}", *said]))
            raise
