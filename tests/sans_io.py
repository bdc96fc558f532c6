"""A broker without sockets, without a loop and without a disk: bytes in, frames out, by plain calls.

    broker = SansIOBroker()
    peer = broker.connect()                       # the handshake is done
    frames = peer.feed(method(1, Channel.Open()))  # every frame that this made the broker send to this peer

`feed` runs turns until none is due, as the loop would. `broker.audit()` compares the broker's counters and caches with
what they count; `OutputChecker` reads what the broker sends as a strict client would. Both raise AssertionError.
"""

from __future__ import annotations

import struct
import traceback
import weakref
from collections.abc import Iterator
from typing import Any, NamedTuple

import pamqp.frame
from pamqp import commands
from pamqp.base import Frame as Command

from cranked_clock import CrankedTime
from event_records import Left, MemorySink, left_over
from rabbitpy_broker.definitions import Definitions
from rabbitpy_broker.events.journal import EventJournal
from rabbitpy_broker.invariants import check_invariants
from rabbitpy_broker.protocol.connection import Connection
from rabbitpy_broker.protocol.deliveries import ChannelConsumer
from rabbitpy_broker.protocol.handshake import server_properties
from rabbitpy_broker.protocol.node import Limits, Node
from rabbitpy_broker.protocol.output import Transport
from rabbitpy_broker.protocol.turn import Turn, TurnHost
from rabbitpy_broker.queues.msg_status import MsgStatus
from rabbitpy_broker.queues.priority_queue import PriorityQueue
from rabbitpy_broker.queues.queue import Queue
from rabbitpy_broker.storage.vhost_store import StoreSettings, VHostStore
from rabbitpy_broker.users import Users
from rabbitpy_broker.vhost import VHost
from rabbitpy_broker.wire.properties import check_header
from storage.faulty_disk import CrankedThreads, MemoryDisk
from store_host import HostOf

METHOD, HEADER, BODY, HEARTBEAT = 1, 2, 3, 8
PROTOCOL_HEADER = b"AMQP\x00\x00\x09\x01"
CAPABILITIES = {
    "consumer_cancel_notify": True,
    "connection.blocked": True,
    "authentication_failure_close": True,
}
MAX_TURNS = 10_000  # more of them in a row, and the broker chases its own tail

CONNECTION_CLOSE, CONNECTION_CLOSE_OK = 0x000A0032, 0x000A0033
CHANNEL_OPEN_OK, CHANNEL_CLOSE, CHANNEL_CLOSE_OK = 0x0014000B, 0x00140028, 0x00140029
WITH_CONTENT = {0x003C0032, 0x003C003C, 0x003C0047}  # return, deliver, get-ok


class Frame(NamedTuple):
    type: int
    channel: int
    payload: bytes

    def index(self) -> int:
        """Class and method id of a method frame, 0 for any other."""
        return int.from_bytes(self.payload[:4], "big") if self.type == METHOD else 0

    def command(self) -> Command:
        """The method, decoded by pamqp, which shares no code with the broker's own decoder."""
        command = pamqp.frame.unmarshal(frame(self.type, self.channel, self.payload))[2]
        assert isinstance(command, Command)
        return command


def frame(type: int, channel: int, payload: bytes) -> bytes:
    return struct.pack(">BHI", type, channel, len(payload)) + payload + b"\xce"


def method(channel: int, command: Command) -> bytes:
    """A method frame, encoded by pamqp."""
    return bytes(pamqp.frame.marshal(command, channel))


def content(channel: int, body: bytes, properties: bytes = b"\x00\x00", frame_max: int = 131_072) -> bytes:
    """Header and body frames; `properties` are the flags and the values behind them."""
    parts = [frame(HEADER, channel, struct.pack(">HHQ", 60, 0, len(body)) + properties)]
    step = frame_max - 8
    parts += [frame(BODY, channel, body[at : at + step]) for at in range(0, len(body), step)]
    return b"".join(parts)


def publish(
    channel: int, exchange: str, routing_key: str, body: bytes = b"", *, mandatory: bool = False
) -> bytes:
    """A whole publish."""
    command = commands.Basic.Publish(exchange=exchange, routing_key=routing_key, mandatory=mandatory)
    return method(channel, command) + content(channel, body)


def split_frames(data: bytes) -> Iterator[Frame]:
    """The frames that `data` consists of, without a rest."""
    pos = 0
    while pos < len(data):
        assert len(data) - pos >= 8, f"cut off frame {data[pos:].hex()}"
        type, channel, size = struct.unpack_from(">BHI", data, pos)
        end = pos + 7 + size
        assert type in (METHOD, HEADER, BODY, HEARTBEAT), f"frame type {type}"
        assert end < len(data) and data[end] == 0xCE, f"bad frame end in {data[pos : pos + 64].hex()}"
        yield Frame(type, channel, data[pos + 7 : end])
        pos = end + 1


class RecordingTransport(Transport):
    """Keeps what was written until somebody takes it."""

    def __init__(self) -> None:
        self.written: list[bytes] = []
        self.closed = False
        self.reading = True
        self.timer_s = 0.0  # what was asked for last
        self.stuck_bytes = 0  # of what was written, not taken by the socket

    def write(self, data: bytes) -> None:
        assert not self.closed, "written after close"
        self.written.append(data)

    def close(self) -> None:
        self.closed = True

    def reading_wanted(self, wanted: bool) -> None:
        self.reading = wanted

    def unsent(self) -> int:
        return self.stuck_bytes

    def set_timer(self, seconds: float) -> None:
        self.timer_s = seconds

    def take(self) -> bytes:
        data = b"".join(self.written)
        self.written.clear()
        return data


class RecordingLog:
    """The broker's log: what is logged with a traceback is a fault of the broker, and is kept."""

    def __init__(self) -> None:
        self.faults: list[str] = []

    def bind(self, **_: Any) -> RecordingLog:
        return self

    def debug(self, event: str, **_: Any) -> None: ...

    def info(self, event: str, **_: Any) -> None: ...

    def warning(self, event: str, **_: Any) -> None: ...

    def error(self, event: str, **_: Any) -> None: ...

    def exception(self, event: str, **_: Any) -> None:
        self.faults.append(f"{event}\n{traceback.format_exc()}")


class OutputChecker:
    """Reads one connection's output as a strict client: whole frames, contents unmixed, one close of each kind."""

    def __init__(self) -> None:
        self.frame_max = 4096
        self.started = False
        self.closes = 0  # connection.close frames that came
        self.close_codes: list[int] = []
        self.finished = False  # connection.close-ok came
        self.open_channels: set[int] = set()
        self.closing_channels: set[int] = set()
        self._content_on = 0  # the channel of an unfinished content
        self._missing = -1  # bytes of its body; -1: its header is due

    def take(self, data: bytes) -> list[Frame]:
        if not self.started and data == PROTOCOL_HEADER:
            self.finished = True
            return []
        self.started = self.started or bool(data)
        frames = list(split_frames(data))
        for one in frames:
            self._check(one)
        assert not self._content_on, "a content is left unfinished at the end of a turn"
        return frames

    def _check(self, one: Frame) -> None:
        assert not self.finished, f"{one} after connection.close-ok"
        assert len(one.payload) + 8 <= self.frame_max or not self.frame_max, (
            f"frame of {len(one.payload) + 8} octets"
        )
        if self._content_on:
            self._check_content(one)
            return
        if one.type == HEARTBEAT:
            assert one.channel == 0 and not one.payload
            return
        assert one.type == METHOD, f"{one} without its method"
        one.command()
        index = one.index()
        assert not self.closes or index == CONNECTION_CLOSE_OK, f"{one} after connection.close"
        if one.channel == 0:
            self._check_connection(one, index)
        else:
            self._check_channel(one, index)

    def _check_connection(self, one: Frame, index: int) -> None:
        assert index >> 16 == 10, f"{one} on channel 0"
        if index == CONNECTION_CLOSE:
            self.closes += 1
            self.close_codes.append(int.from_bytes(one.payload[4:6], "big"))
        elif index == CONNECTION_CLOSE_OK:
            self.finished = True

    def _check_channel(self, one: Frame, index: int) -> None:
        number = one.channel
        assert index >> 16 != 10, f"{one} on a channel"
        if index == CHANNEL_OPEN_OK:
            assert number not in self.open_channels, f"channel {number} opened twice"
            self.open_channels.add(number)
            self.closing_channels.discard(number)
        elif index == CHANNEL_CLOSE_OK:
            assert number in self.open_channels or number in self.closing_channels
            self.open_channels.discard(number)
        else:
            assert number in self.open_channels, f"{one} on a channel that is not open"
            if index == CHANNEL_CLOSE:
                self.open_channels.discard(number)
                self.closing_channels.add(number)
            elif index in WITH_CONTENT:
                self._content_on = number
                self._missing = -1

    def _check_content(self, one: Frame) -> None:
        assert one.channel == self._content_on, f"{one} inside the content of channel {self._content_on}"
        if self._missing < 0:
            assert one.type == HEADER and one.payload[:2] == b"\x00\x3c", f"{one} where a header is due"
            assert check_header(one.payload, 0, len(one.payload)) >= 0, f"malformed {one}"
            self._missing = int.from_bytes(one.payload[4:12], "big")
        else:
            assert one.type == BODY and one.payload, f"{one} where a body is due"
            self._missing -= len(one.payload)
            assert self._missing >= 0, "more body than announced"
        if self._missing == 0:
            self._content_on = 0


class Peer:
    """One client's end of a connection."""

    def __init__(self, broker: SansIOBroker) -> None:
        self.broker = broker
        self.transport = RecordingTransport()
        self.checker = OutputChecker()
        self.connection = Connection(
            broker.node, broker.connections, self.transport, "peer -> broker", loopback=True, tls=False
        )

    def feed(self, data: bytes) -> list[Frame]:
        """Gives the broker bytes, finishes the turn, and returns the frames that this peer got."""
        self.connection.receive_data(data)
        self.broker.run()
        return self.output()

    def output(self) -> list[Frame]:
        """The frames that came since the last call."""
        return self.checker.take(self.transport.take())

    def call(self, channel: int, command: Command) -> Command:
        """Sends a method and returns the one that answers it; contents and others before it are passed over."""
        frames = self.feed(method(channel, command))
        answers = [one.command() for one in frames if one.type == METHOD and one.channel in (0, channel)]
        assert answers, f"{command.name} is not answered"
        return answers[-1]

    def open_channel(self, number: int = 1) -> int:
        answer = self.call(number, commands.Channel.Open())
        assert isinstance(answer, commands.Channel.OpenOk)
        return number

    def shake_hands(
        self, vhost: str = "/", frame_max: int = 131_072, channel_max: int = 2047, heartbeat: int = 0
    ) -> Peer:
        """The whole handshake, up to open-ok."""
        self.feed(PROTOCOL_HEADER)
        login = commands.Connection.StartOk(
            client_properties={"capabilities": CAPABILITIES}, response="\x00guest\x00guest"
        )
        self.feed(method(0, login))
        self.feed(method(0, commands.Connection.TuneOk(channel_max, frame_max, heartbeat)))
        answer = self.call(0, commands.Connection.Open(vhost))
        assert isinstance(answer, commands.Connection.OpenOk)
        self.checker.frame_max = frame_max
        return self

    def lose(self) -> None:
        """The socket breaks."""
        self.transport.closed = True
        self.transport.take()
        self.connection.connection_lost("socket error")
        self.broker.run()


def _definitions_in_memory() -> Definitions:
    """They are handed from broker to broker, and closed when nobody has them any more: Python asks for that since 3.13."""
    definitions = Definitions(None)
    weakref.finalize(definitions, definitions._db.close)
    return definitions


def _settings() -> StoreSettings:
    settings = StoreSettings()
    settings.journal_file_size_limit = 262_144  # of a disk in RAM each sync costs as much as the file is long
    return settings


class Turns(TurnHost):
    """`faults`: a list that takes them; else they are raised."""

    def __init__(self, broker: SansIOBroker) -> None:
        self._broker = broker
        self.faults: list[Exception] | None = None

    def schedule(self, turn: Turn) -> None:
        self._broker.due = True

    def commit(self) -> bool:
        if self._broker.commit_fails:
            return False
        self._broker.definitions.commit()
        return True

    def fault(self, fault: Exception) -> None:
        if self.faults is None:
            raise fault
        self.faults.append(fault)


class AppliedPolicies:
    """The policies of a vhost, each change applied at once."""

    def __init__(self, vhost: VHost) -> None:
        self._vhost = vhost

    def set(self, name: str, pattern: str, apply_to: str, priority: int, definition: dict[str, object]) -> None:
        self._vhost.policies.set(name, pattern, apply_to, priority, definition)
        self._vhost.apply_policies()

    def clear(self, name: str) -> None:
        self._vhost.policies.clear(name)
        self._vhost.apply_policies()


class SansIOBroker:
    """A node with one vhost, "/", and guest; definitions are in memory.

    `disk`, `definitions` and `time` are those of the broker that was there before.
    """

    def __init__(
        self,
        limits: Limits | None = None,
        disk: MemoryDisk | None = None,
        definitions: Definitions | None = None,
        time: CrankedTime | None = None,
        settings: StoreSettings | None = None,
        recording: bool = False,
    ) -> None:
        self.definitions = definitions or _definitions_in_memory()
        users = Users(self.definitions, ())
        users.create_defaults("guest", "guest", "/")
        self.log = RecordingLog()
        self.due = False
        self.commit_fails = False
        self.turns = Turns(self)
        self.turn = Turn(self.turns)
        self.node = Node(
            self.turn,
            users,
            limits or Limits(),
            server_properties("0", "test"),
            self.log,
            lambda: self.definitions.changes,
        )
        self.connections: dict[Connection, None] = {}
        self.sink = MemorySink()
        events = EventJournal(self.sink) if recording else None
        self.node.events = self.turn.events = events
        self.threads = CrankedThreads()
        self.disk = disk or MemoryDisk()
        host = HostOf(self.turn.sync_due)
        if events is not None:
            host = HostOf(self.turn.sync_due, before_epoch=events.flush)
        store = VHostStore(self.disk, self.threads, "/data", settings or _settings(), self.log, host)
        self.time = time or CrankedTime()
        self.vhost = VHost("/", self.definitions, store, self.time.timers, self.turn)
        self.policies = AppliedPolicies(self.vhost)
        self.vhost.events = events
        self.vhost.load()
        self.node.vhosts["/"] = self.vhost
        self.definitions.commit()

    def close(self) -> None:
        self.definitions.close()

    def stop(self) -> MemoryDisk:
        """A clean stop, connections first; returns what it leaves on the disk."""
        for connection in list(self.connections):
            connection.output.transport.closed = True
            connection.connection_lost("broker stopped")
        self.run()
        self.vhost.store.stop_work()
        while not self.vhost.store.push():
            assert self.threads.crank(), "the store never comes to rest"
        self.vhost.stop().run()
        return self.disk.kill()

    def peer(self) -> Peer:
        """A connection of which nothing has come yet."""
        return Peer(self)

    def connect(self, frame_max: int = 131_072, channel_max: int = 2047) -> Peer:
        """A connection that is open."""
        return self.peer().shake_hands(frame_max=frame_max, channel_max=channel_max)

    def run(self) -> None:
        """Finishes the turn, and those that follow from it."""
        for _ in range(MAX_TURNS):
            if self.due:
                self.due = False
                self.turn.run()
            elif not self.threads.crank():
                return
        raise AssertionError("turn follows turn without end")

    def advance(self, ms: int) -> None:
        """Lets time go by."""
        self.time.advance(ms)
        self.run()

    # -- what must stay true ----------------------------------------------------------------------------------------

    def audit(self) -> None:
        """Everything that must be true between two turns, when none is due."""
        assert not self.log.faults, self.log.faults[0]
        held = check_invariants([self.vhost], self.connections)
        if self.node.events is not None:
            self.node.events.flush()
        recorded = left_over(self.sink.records())
        for name, queue in self.vhost.queues.items():
            assert not queue.touched, f"{name} was not drained in its turn"
            kept = [status for status in held.get(queue, []) if not status.light]
            assert queue.backing.unacked == len(kept), f"{name}: unacked is {queue.backing.unacked}, {len(kept)} are held"
            _audit_records(queue, held.get(queue, []), recorded)

    def audit_gone(self, peer: Peer) -> None:
        """Nothing is left of a connection that has ended."""
        connection = peer.connection
        assert connection not in self.connections
        assert not connection.channels and connection not in self.vhost._exclusive
        for queue in self.vhost.queues.values():
            assert queue.owner is not connection
            for consumer in queue.consumers.members:
                assert isinstance(consumer, ChannelConsumer) and consumer.deliveries.host is not connection


def _audit_records(queue: Queue, held: list[MsgStatus], recorded: dict[int, Left]) -> None:
    """What the event journal says is left of a queue is what the queue has."""
    if queue.events is None:
        return
    ready, unacked = recorded.get(int(queue.events.number), (set(), set()))
    assert {(int(status.priority), int(status.seq_id)) for status in held} <= unacked, "held, and not recorded"
    # Dead letters that wait to be taken are unacked, and nobody holds them.
    light = sum(status.light for status in held)
    assert len(ready) + len(unacked) == queue.backing.len + queue.backing.unacked + light, "recorded"


def parts_of(backing: Any) -> list[Any]:
    """The variable queues behind a queue: one, or one for each priority."""
    return backing.lanes() if isinstance(backing, PriorityQueue) else [backing]
