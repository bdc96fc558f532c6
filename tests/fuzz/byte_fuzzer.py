"""Throws sessions at a broker without sockets, and checks what must stay true whatever a client sends.

Iteration n of seed s is the same session for ever: `run_iteration(s, n)` replays it. After every action

- `receive_data` has not raised, has not logged an internal error, and has not taken longer than CALL_SECONDS;
- what the broker sent is a stream of whole frames, at most one close of each kind (`OutputChecker`);
- the broker's counters are right (`SansIOBroker.audit`).

At the end of a session every connection is lost, one by one; then nothing of any is left.
"""

from __future__ import annotations

import gc
import random
import re
import time
import tracemalloc
from collections.abc import Sequence

from fuzz.sessions import Action, random_handshake, random_session
from rabbitpy_broker.protocol.connection import GIVE_UP
from sans_io import (
    CHANNEL_CLOSE,
    CONNECTION_CLOSE,
    METHOD,
    Peer,
    SansIOBroker,
    frame,
)

CALL_SECONDS = 5.0  # generous: the machine may be busy with other things
CHANNEL_CLOSE_OK_PAYLOAD = b"\x00\x14\x00\x29"
CONNECTION_CLOSE_OK_PAYLOAD = b"\x00\x0a\x00\x33"
LEAKED_BYTES_A_ROUND = 5_000
NOT_THE_BROKER = [tracemalloc.Filter(False, tracemalloc.__file__), tracemalloc.Filter(False, "*/pamqp/*")]


class Failure(AssertionError):
    """`kind` is the same for the same fault, so that a session can be cut down while it stays."""

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(text)
        self.kind = kind


class FuzzedPeer:
    """One peer of a session, and the closes that it has not answered."""

    def __init__(self, peer: Peer) -> None:
        self.peer = peer
        self.closed_channels: list[int] = []
        self.close_due = False
        self.lost = False
        self.ticks = 0

    def read(self) -> None:
        for one in self.peer.output():
            if one.index() == CHANNEL_CLOSE:
                self.closed_channels.append(one.channel)
            elif one.index() == CONNECTION_CLOSE:
                self.close_due = True

    def send(self, data: bytes) -> None:
        if not self.lost and not self.peer.transport.closed:
            began = time.perf_counter()
            self.peer.connection.receive_data(data)
            took = time.perf_counter() - began
            assert took < CALL_SECONDS, f"one call took {took:.1f} s"

    def answer_closes(self) -> None:
        for number in self.closed_channels:
            self.send(frame(METHOD, number, CHANNEL_CLOSE_OK_PAYLOAD))
        self.closed_channels.clear()
        if self.close_due:
            self.send(frame(METHOD, 0, CONNECTION_CLOSE_OK_PAYLOAD))
            self.close_due = False

    def raise_alarm(self, on: bool) -> None:
        broker = self.peer.broker
        broker.node.blocked = "low on memory" if on else ""
        for connection in list(broker.connections):
            connection.alarm_changed()

    def let_timer_go_off(self) -> None:
        """Whenever that is: the broker may do with its timer as it likes."""
        self.ticks += 1
        if not self.lost and self.peer.connection.tick(100.0 * self.ticks) == GIVE_UP:
            self.lose()

    def lose(self) -> None:
        if not self.lost:
            self.lost = True
            self.peer.lose()


def make_session(seed: int, iteration: int) -> tuple[list[Action], int]:
    """The actions of an iteration, and how many peers are connected when it begins."""
    rng = random.Random(f"{seed}/{iteration}")
    if iteration % 8 == 7:
        return random_handshake(rng), 0
    peers = rng.choice((1, 2, 3))
    return random_session(rng, peers), peers


def run_iteration(seed: int, iteration: int) -> None:
    """Raises Failure."""
    actions, connected = make_session(seed, iteration)
    run_session(actions, connected)


def run_session(actions: Sequence[Action], connected: int) -> None:
    """Plays a session on a new broker. Raises Failure."""
    broker = SansIOBroker()
    try:
        play(broker, actions, connected)
    finally:
        broker.close()


def play(broker: SansIOBroker, actions: Sequence[Action], connected: int) -> None:
    """Plays a session on this broker, to the end of all its connections. Raises Failure."""
    action: Action | None = None
    try:
        frame_sizes = (131_072, 4096, 8192)
        peers = [broker.connect(frame_max=frame_sizes[at % 3]) for at in range(connected)] or [broker.peer()]
        clients = [FuzzedPeer(peer) for peer in peers]
        for action in actions:
            _act(clients[action[1]], action)
            broker.run()
            for client in clients:
                client.read()
                if client.peer.connection.state == "running" and not connected:
                    client.peer.checker.frame_max = 131_072
            broker.audit()
        action = None
        for client in clients:
            client.lose()
            broker.audit()
            broker.audit_gone(client.peer)
        for queue in list(broker.vhost.queues.values()):
            assert not queue.backing.unacked, "unacked messages of nobody"
    except Failure:
        raise
    except Exception as error:
        last_line = (str(error).strip() or "-").splitlines()[-1]
        kind = f"{type(error).__name__}: {re.sub('[0-9]+', 'N', last_line)[:80]}"
        raise Failure(kind, f"{error}\nat {action}") from error


def _act(client: FuzzedPeer, action: Action) -> None:
    what, _, data = action
    if what == "data":
        client.send(data)
    elif what == "close_ok":
        client.answer_closes()
    elif what == "lose":
        client.lose()
    elif what in ("alarm", "calm"):
        client.raise_alarm(what == "alarm")
    elif what == "time":
        client.let_timer_go_off()
    elif not client.lost:
        connection = client.peer.connection
        (connection.writing_resumed if what == "read" else connection.writing_paused)()


def cut_down(actions: Sequence[Action], connected: int, kind: str) -> list[Action]:
    """A smaller session that fails in the same way."""
    left = list(actions)
    step = max(1, len(left) // 2)
    while True:
        at = 0
        while at < len(left):
            shorter = left[:at] + left[at + step :]
            if _fails(shorter, connected, kind):
                left = shorter
            else:
                at += step
        if step == 1:
            return left
        step //= 2


def _fails(actions: Sequence[Action], connected: int, kind: str) -> bool:
    try:
        run_session(actions, connected)
    except Failure as failure:
        return failure.kind == kind
    return False


def clear(broker: SansIOBroker) -> None:
    """Deletes what sessions have left in the vhost."""
    vhost = broker.vhost
    for queue in list(vhost.queues.values()):
        vhost.delete_queue(queue)
    for name in [name for name in vhost.exchanges if not name.startswith("amq.")]:
        vhost.delete_exchange(name, False)
    vhost.routes.forget_all()
    broker.definitions.commit()


def check_memory(seed: int, rounds: int = 6, sessions: int = 25) -> int:
    """Plays the same sessions again and again on one broker; returns the bytes that a round leaves behind.

    The first rounds fill caches and do not count. Neither does what pamqp, the checker's decoder, leaves in the
    interpreter's cache of attribute names. What may grow is bounded by itself: the users' permissions remember the names
    that were asked for, and the broker's own names of queues are new in every round. Raises Failure.
    """
    plays = [made for made in (make_session(seed, at) for at in range(sessions)) if made[1]]
    broker = SansIOBroker()
    started = not tracemalloc.is_tracing()
    if started:
        tracemalloc.start()
    try:
        sizes = []
        for _ in range(rounds):
            for actions, connected in plays:
                play(broker, actions, connected)
                clear(broker)
            gc.collect()
            traces = tracemalloc.take_snapshot().filter_traces(NOT_THE_BROKER).traces
            sizes.append(sum(trace.size for trace in traces))
        leaked = (sizes[-1] - sizes[1]) // (rounds - 2)
        if leaked > LEAKED_BYTES_A_ROUND:
            raise Failure("leak", f"memory after each round: {sizes}")
        return leaked
    finally:
        if started:
            tracemalloc.stop()
        broker.close()
