"""Connections of many clients held open with heartbeats, each behind a relay that sees what goes by: is one of them lost?

A `Place` is one connection of one client with a heartbeat and a role:

  idle       says nothing and is told nothing
  publisher  publishes as fast as it can, to no queue: the broker has nothing to say to it
  consumer   is delivered messages as fast as it takes them, without acks: it has nothing to say to the broker
  blocked    has published once while an alarm is on: it is told so, and is not read from

The programs that hold them (`idle_python.py`, `java/Idle.java`, `go/idle.go`, `node/idle.js`) take an argument
`NAME,MODE,HEARTBEAT,ROLE,URL` for each place, open them, print "ready", wait for a line, and then print a JSON object of
name -> "ok", or what went wrong. "ok" is what has not been lost and has done its part; an idle one answers a declare at the end.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.parse
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import IO, Self

from external import HERE
from go_client import go_command
from java_client import java_command
from node_client import node_command

BUSY = ("publisher", "consumer")
NICE = ("nice", "-n", "10")  # what keeps the broker busy takes only what others leave
ROLES = ("idle", "publisher", "consumer", "blocked")
HEARTBEAT = b"\x08\x00\x00\x00\x00\x00\x00\xce"
CHUNK = 65536
READY_TIMEOUT_S = 120.0
END_TIMEOUT_S = 40.0
BROKER, CLIENT = 0, 1  # the two ends of a line
ENDS = ("broker", "client")


def missing(client: str) -> list[str]:
    """The tools that this machine lacks for it."""
    return [tool for tool in CLIENTS[client].tools if shutil.which(tool) is None]


def python_command() -> list[str]:
    return [sys.executable, str(HERE / "idle_python.py")]


@dataclass(frozen=True)
class ClientProgram:
    """How a client's program is started. Those of one `program` share a process, unless each has `alone`."""

    name: str
    program: str
    command: Callable[[], list[str]]
    tools: tuple[str, ...] = ()
    alone: bool = False
    follows_cranked_clock: bool = True


def _python(name: str, *, follows_cranked_clock: bool = True) -> ClientProgram:
    return ClientProgram(name, "python", python_command, (), True, follows_cranked_clock)


def _java(mode: str) -> ClientProgram:
    return ClientProgram(f"java-{mode}", "java", lambda: java_command("Idle"), ("java", "javac", "mvn"))


CLIENTS = {
    client.name: client
    for client in (
        _python("pika-blocking"),
        _python("pika-select"),
        _python("pika-asyncio"),
        _python("aio-pika"),
        _python("kombu"),
        _python("rabbitpy", follows_cranked_clock=False),  # its heartbeats wait on a lock with a timeout
        _java("blocking"),
        _java("nio"),
        _java("netty"),
        ClientProgram("amqplib", "node", lambda: node_command("idle.js"), ("node", "npm")),
        # Go's programs ask the kernel themselves
        ClientProgram("amqp091-go", "go", lambda: [*go_command(), "idle"], ("go",), follows_cranked_clock=False),
    )
}


@dataclass(frozen=True)
class Place:
    client: str
    heartbeat: int
    role: str = "idle"

    def __str__(self) -> str:
        return f"{self.client}-{self.heartbeat}s-{self.role}"


@dataclass
class Row:
    """What became of one place. Numbers are of the clock that the broker and the client run by."""

    place: Place
    outcome: str = "no verdict"
    connections: int = 0  # that the client made; more than one: it came back after a loss
    hung_up: str = ""  # "broker" or "client", and when
    beats: dict[str, int] = field(default_factory=dict)  # whose heartbeats, while nothing else was said
    silence_s: dict[str, float] = field(default_factory=dict)  # whose longest silence

    @property
    def kept(self) -> bool:
        return self.outcome == "ok" and self.connections == 1 and not self.hung_up


class Line:
    """The relayed connection of one place, and what was seen on it."""

    def __init__(self, place: Place, listener: socket.socket) -> None:
        self.place = place
        self.listener = listener
        self.connections = 0
        self.opened = 0.0
        self.beats = [0, 0]
        self.last = [0.0, 0.0]
        self.silence = [0.0, 0.0]
        self.hung_up = ""

    def heard(self, end: int, data: bytes) -> None:
        now = time.monotonic()
        self.silence[end] = max(self.silence[end], now - self.last[end])
        self.last[end] = now
        if len(data) < 1024 and not data.replace(HEARTBEAT, b""):
            self.beats[end] += len(data) // len(HEARTBEAT)


class End:
    """One socket of a relayed connection, and what could not be written to it yet."""

    def __init__(self, line: Line, side: int, sock: socket.socket) -> None:
        self.line = line
        self.side = side
        self.socket = sock
        self.unsent = b""
        self.other: End
        self.events = 0


class Relay(threading.Thread):
    """Listens on a port of its own for each place and passes on to `target`. `finish` ends the watching, `close` the rest.

    It reads no faster than the other side takes, so a peer that is not read from does not notice the relay.
    """

    def __init__(self, target: tuple[str, int]) -> None:
        super().__init__(daemon=True)
        self._target = target
        self._selector = selectors.DefaultSelector()
        self._lines: list[Line] = []
        self._finished = False
        self._closing = False

    def listen(self, place: Place) -> int:
        """The port for this place; before `start`."""
        listener = socket.create_server(("127.0.0.1", 0))
        self._lines.append(Line(place, listener))
        self._selector.register(listener, selectors.EVENT_READ, self._lines[-1])
        port: int = listener.getsockname()[1]
        return port

    def finish(self) -> list[Line]:
        """What was seen so far; what happens afterwards is not looked at."""
        self._finished = True
        now = time.monotonic()
        for line in self._lines:
            if line.connections:
                line.silence = [max(longest, now - last) for longest, last in zip(line.silence, line.last, strict=True)]
        return self._lines

    def close(self) -> None:
        self._closing = True
        self.join()
        for key in list(self._selector.get_map().values()):
            assert isinstance(key.fileobj, socket.socket)
            key.fileobj.close()
        self._selector.close()

    def run(self) -> None:
        while not self._closing:
            for key, events in self._selector.select(0.2):
                if isinstance(key.data, Line):
                    self._accept(key.data)
                    continue
                end: End = key.data
                if events & selectors.EVENT_WRITE:
                    self._write(end)
                if events & selectors.EVENT_READ and end.events:
                    self._read(end)

    def _accept(self, line: Line) -> None:
        client = line.listener.accept()[0]
        try:
            broker = socket.create_connection(self._target)
        except OSError:
            client.close()
            return
        line.connections += 1
        line.opened = time.monotonic()
        line.last = [line.opened, line.opened]
        ends = End(line, BROKER, broker), End(line, CLIENT, client)
        for end, other in (ends, ends[::-1]):
            end.other = other
            end.socket.setblocking(False)
            end.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            end.events = selectors.EVENT_READ
            self._selector.register(end.socket, end.events, end)

    def _read(self, end: End) -> None:
        try:
            data = end.socket.recv(CHUNK)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._hang_up(end)
            return
        if not self._finished:
            end.line.heard(end.side, data)
        end.other.unsent += data
        self._write(end.other)

    def _write(self, end: End) -> None:
        try:
            sent = end.socket.send(end.unsent)
        except BlockingIOError:
            sent = 0
        except OSError:
            self._hang_up(end)
            return
        end.unsent = end.unsent[sent:]
        wanted = selectors.EVENT_WRITE if end.unsent else 0
        self._want(end, end.events & selectors.EVENT_READ | wanted)
        self._want(end.other, end.other.events & selectors.EVENT_WRITE | (0 if end.unsent else selectors.EVENT_READ))

    def _want(self, end: End, events: int) -> None:
        if events == end.events:
            return
        if not end.events:
            self._selector.register(end.socket, events, end)
        elif not events:
            self._selector.unregister(end.socket)
        else:
            self._selector.modify(end.socket, events, end)
        end.events = events

    def _hang_up(self, end: End) -> None:
        line = end.line
        if not self._finished and not line.hung_up:
            line.hung_up = f"{ENDS[end.side]} after {time.monotonic() - line.opened:.1f} s"
        for each in (end, end.other):
            self._want(each, 0)
            each.socket.close()


class Witness(threading.Thread):
    """Wants to run for a moment all the time: for how long was it kept waiting, and so perhaps the broker and the clients too?"""

    NAP_S = 0.02

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self._over = False
        self.waited_s = 0.0

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._over = True
        self.join()

    def run(self) -> None:
        while not self._over:
            began = time.monotonic()
            time.sleep(self.NAP_S)
            self.waited_s = max(self.waited_s, time.monotonic() - began - self.NAP_S)


class Program:
    """A process that holds some of the places."""

    def __init__(self, command: Sequence[str], arguments: Sequence[str], env: Mapping[str, str]) -> None:
        self.errors: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115  # closed in `end`
        self.process = subprocess.Popen([*command, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        stderr=self.errors, text=True, env={**os.environ, **env})

    def wait_until_ready(self) -> None:
        watchdog = threading.Timer(READY_TIMEOUT_S, self.process.kill)
        watchdog.start()
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        watchdog.cancel()
        assert line == "ready\n", f"{self.process.args!r} is not ready but says {line!r}:\n{self.error_text()}"

    def ask_to_end(self) -> None:
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.write("end\n")
            self.process.stdin.flush()

    def verdict(self) -> dict[str, str]:
        watchdog = threading.Timer(END_TIMEOUT_S, self.process.kill)
        watchdog.start()
        assert self.process.stdout is not None
        lines = self.process.stdout.read().strip().splitlines()
        self.process.wait()
        watchdog.cancel()
        assert lines, f"no verdict, exit code {self.process.returncode}:\n{self.error_text()}"
        found: dict[str, str] = json.loads(lines[-1])
        return found

    def error_text(self) -> str:
        self.errors.seek(0)
        return self.errors.read().decode(errors="replace")[-4000:]

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            with contextlib.suppress(BrokenPipeError):
                pipe.close()
        self.errors.close()


class Held:
    """Places that are held open from `hold` on, until `rows` is asked."""

    def __init__(self, places: Sequence[Place], url: str, env: Mapping[str, str], speed: float) -> None:
        self._prefix = f"idle-{uuid.uuid4().hex[:8]}"
        self._speed = speed
        self._url = urllib.parse.urlsplit(url)
        self._programs: list[Program] = []
        self._relay = Relay((self._url.hostname or "127.0.0.1", self._url.port or 5672))
        groups: dict[tuple[str, ...], list[Place]] = {}
        for place in sorted(places, key=lambda place: place.role == "publisher"):  # last: they keep the broker busy
            client = CLIENTS[place.client]
            alone = client.name if client.alone else ""
            groups.setdefault((client.program, place.role, alone), []).append(place)
        self._arguments = [[self._argument(place) for place in group] for group in groups.values()]
        self._commands = [
            [*(NICE if group[0].role in BUSY else ()), *CLIENTS[group[0].client].command()] for group in groups.values()
        ]
        self._env = env
        self.queues = [self._name(place) for place in places if place.role == "consumer"]

    def _name(self, place: Place) -> str:
        return f"{self._prefix}-{place}"

    def _argument(self, place: Place) -> str:
        mode = place.client.removeprefix("java-")
        login = self._url.netloc.rpartition("@")[0] or "guest:guest"
        vhost = self._url.path.removeprefix("/") or "%2F"
        url = f"amqp://{login}@127.0.0.1:{self._relay.listen(place)}/{vhost}"
        return f"{self._name(place)},{mode},{place.heartbeat},{place.role},{url}"

    def open(self) -> None:
        self._relay.start()
        for command, arguments in zip(self._commands, self._arguments, strict=True):
            self._programs.append(Program(command, arguments, self._env))
        for program in self._programs:
            program.wait_until_ready()

    def rows(self) -> list[Row]:
        """Ends the watching and asks every program for its verdict."""
        lines = self._relay.finish()
        for program in self._programs:
            program.ask_to_end()
        outcomes: dict[str, str] = {}
        for program in self._programs:
            outcomes |= program.verdict()
        return [
            Row(line.place, outcomes.get(self._name(line.place), "no verdict"), line.connections, line.hung_up,
                dict(zip(ENDS, line.beats, strict=True)),
                {end: round(silence * self._speed, 2) for end, silence in zip(ENDS, line.silence, strict=True)})
            for line in lines
        ]

    def close(self) -> None:
        for program in self._programs:
            program.kill()
        self._relay.close()


@contextlib.contextmanager
def held(places: Sequence[Place], url: str, env: Mapping[str, str] | None = None, speed: float = 1.0) -> Iterator[Held]:
    """All `places`, open at the broker there. `speed` is how much faster the clock runs that `env` gives to the clients."""
    holding = Held(places, url, env or {}, speed)
    try:
        holding.open()
        yield holding
    finally:
        holding.close()


@contextlib.contextmanager
def flooded(url: str, queues: Sequence[str]) -> Iterator[None]:
    """The broker is kept busy: a publisher to no queue, and one to `queues`, as fast as it takes them."""
    where = urllib.parse.urlsplit(url)
    kinds = [["nobody-is-called-that"], list(queues)] if queues else [["nobody-is-called-that"]]
    floods = [Program([*NICE, sys.executable, str(HERE / "flood.py")], [str(where.hostname), str(where.port), *names], {})
              for names in kinds]
    try:
        for flood in floods:
            flood.wait_until_ready()
        yield
    finally:
        for flood in floods:
            flood.kill()
