"""The broker under test: a daemon that the tests start, or one that runs elsewhere and is named by a URL.

Both answer to the same few attributes (`host`, `port`, `parameters()`), so that a behaviour test does not know which
one it talks to. A started daemon must end with exit code 0 on SIGTERM and must never have logged a traceback.
"""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import urllib.parse
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pika

from support import eventually
from wire_client import WireClient

START_TIMEOUT = 60.0
STOP_TIMEOUT = 60.0


class BrokerAddress:
    """Where a broker listens, and how to log in to it."""

    def __init__(
        self, host: str, port: int, user: str = "guest", password: str = "guest", vhost: str = "/"
    ) -> None:
        self.host = host
        self.port = port
        self.user = user
        self.password = password
        self.vhost = vhost

    @classmethod
    def from_url(cls, url: str) -> BrokerAddress:
        parts = urllib.parse.urlsplit(url)
        vhost = urllib.parse.unquote(parts.path[1:]) or "/"
        return cls(
            parts.hostname or "127.0.0.1",
            parts.port or 5672,
            parts.username or "guest",
            parts.password or "guest",
            vhost,
        )

    @property
    def url(self) -> str:
        vhost = urllib.parse.quote(self.vhost, safe="")
        return f"amqp://{self.user}:{self.password}@{self.host}:{self.port}/{vhost}"

    def parameters(self, **changes: Any) -> pika.ConnectionParameters:
        """pika's parameters; `user`, `password` and `vhost` beside pika's own keyword arguments."""
        user = changes.pop("user", self.user)
        password = changes.pop("password", self.password)
        settings: dict[str, Any] = {
            "host": self.host,
            "port": self.port,
            "virtual_host": changes.pop("vhost", self.vhost),
            "credentials": pika.PlainCredentials(user, password),
            "connection_attempts": 1,
            "socket_timeout": 10,
            "stack_timeout": 15,
            "blocked_connection_timeout": 30,
        }
        settings.update(changes)
        return pika.ConnectionParameters(**settings)

    def wire(self, timeout: float = 20.0) -> WireClient:
        """A raw client, connected but with nothing said yet."""
        return WireClient(self.host, self.port, timeout)


def installed(script: str) -> list[str]:
    """The script that was installed beside this interpreter.

    `python -m` would run the package of the current folder, which in the checkout is not the one that was compiled.
    """
    return [str(Path(sys.executable).with_name(script))]


def broker_command() -> list[str]:
    """How the daemon is started: RABBITPY_BROKER_COMMAND, or what is installed."""
    command = os.environ.get("RABBITPY_BROKER_COMMAND")
    return shlex.split(command) if command else installed("rabbitpy-broker")


def ctl_command() -> list[str]:
    """How rabbitpy-ctl is started: RABBITPY_BROKER_CTL_COMMAND, or what is installed."""
    command = os.environ.get("RABBITPY_BROKER_CTL_COMMAND")
    return shlex.split(command) if command else installed("rabbitpy-ctl")


class CtlFailed(AssertionError):
    """The command line tool ended with an exit code other than 0."""

    def __init__(self, arguments: Sequence[str], done: subprocess.CompletedProcess[str]) -> None:
        super().__init__(f"{shlex.join(arguments)} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
        self.code = done.returncode
        self.stdout = done.stdout
        self.stderr = done.stderr


def run_ctl(command: Sequence[str], arguments: Sequence[str], stdin: str = "", timeout: float = 30.0) -> str:
    """What the tool prints on standard output; raises CtlFailed."""
    done = subprocess.run(
        [*command, *arguments], input=stdin, capture_output=True, text=True, timeout=timeout, check=False
    )
    if done.returncode != 0:
        raise CtlFailed(arguments, done)
    return done.stdout


class BrokerProcess(BrokerAddress):
    """A daemon on a data directory of its own; `start` and `stop` may be repeated."""

    def __init__(
        self,
        directory: Path,
        config: Mapping[str, Any] | None = None,
        args: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
        listen: str = "127.0.0.1:0",
    ) -> None:
        super().__init__("127.0.0.1", 0)
        self.directory = directory
        self.data_dir = directory / "data"
        self.log_file = directory / "broker.log"
        self.config = dict(config or {})
        self.args = list(args)
        self.env = {**os.environ, **(env or {})}
        self.listen = listen
        self.process: subprocess.Popen[bytes] | None = None
        self.started: dict[str, Any] = {}
        self.metrics = ""
        self.management_listen = "127.0.0.1:0"
        self.management = ""

    def command(self) -> list[str]:
        command = [
            *broker_command(),
            "--data-dir",
            str(self.data_dir),
            "--listen",
            self.listen,
            "--metrics-listen",
            "127.0.0.1:0",
            "--management-listen",
            self.management_listen,
            "--log-format",
            "json",
        ]
        if self.config:
            path = self.directory / "broker.toml"
            path.write_text(toml(self.config))
            command += ["--config", str(path)]
        return command + self.args

    def start(self) -> BrokerProcess:
        """Returns when the daemon says that it listens."""
        self.log_file.write_bytes(b"")
        with self.log_file.open("ab") as log:
            self.process = subprocess.Popen(
                self.command(), stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, env=self.env
            )
        self.started = eventually(self._start_event, START_TIMEOUT)
        host, port = self.started["listeners"][0].rsplit(":", 1)
        self.host, self.port = host, int(port)
        self.metrics = self.started.get("metrics") or ""
        self.management = next(iter(self.started.get("management", [])), "")
        return self

    def _start_event(self) -> dict[str, Any] | None:
        assert self.process is not None
        exit_code = self.process.poll()
        if exit_code is not None:
            self.process = None
        assert exit_code is None, f"the broker ended with {exit_code} before it listened:\n{self.log_text()}"
        found = self.events("broker started")
        return found[0] if found else None

    def alive(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def signal(self, number: signal.Signals) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    def wait(self, timeout: float = STOP_TIMEOUT) -> int:
        """The exit code; kills the daemon and fails when it does not come within `timeout`."""
        assert self.process is not None
        try:
            return self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise AssertionError(
                f"the broker did not stop within {timeout} s:\n{self.log_text()[-4000:]}"
            ) from None

    def stop(self) -> None:
        """Stops by SIGTERM; the exit code must be 0 and the log clean."""
        if self.process is None:
            return
        self.signal(signal.SIGTERM)
        exit_code = self.wait()
        self.process = None
        assert exit_code == 0, f"exit code {exit_code}:\n{self.log_text()[-4000:]}"
        self.assert_clean_log()

    def crash(self) -> None:
        """Ends by SIGKILL, as a power cut would."""
        assert self.process is not None
        self.process.kill()
        self.process.wait()
        self.process = None

    def restart(self, between: Callable[[Path], None] | None = None) -> BrokerProcess:
        """Stops and starts again on the same data directory; `between` is given that directory while nobody uses it."""
        self.stop()
        if between is not None:
            between(self.data_dir)
        return self.start()

    def ctl(self, *arguments: str, stdin: str = "") -> str:
        """What rabbitpy-ctl prints for this broker; raises CtlFailed."""
        return run_ctl([*ctl_command(), "--data-dir", str(self.data_dir)], arguments, stdin)

    def log_text(self) -> str:
        return self.log_file.read_text(errors="replace")

    def events(self, name: str | None = None) -> list[dict[str, Any]]:
        """The log lines that are JSON objects, all of them or those of one event."""
        found = []
        for line in self.log_text().splitlines():
            if not (line.startswith("{") and line.endswith("}")):
                continue
            entry = json.loads(line)
            if name is None or entry.get("event") == name:
                found.append(entry)
        return found

    def assert_clean_log(self) -> None:
        text = self.log_text()
        bad = [line for line in text.splitlines() if "Traceback" in line or '"exception"' in line]
        assert not bad, f"the broker logged a traceback:\n{text[-8000:]}"


def toml(values: Mapping[str, Any], above: str = "") -> str:
    """TOML of a table: plain values first, then a section for every table inside."""
    plain = [
        f"{key} = {json.dumps(value)}" for key, value in values.items() if not isinstance(value, Mapping)
    ]
    tables = [f"[{above}{key}]\n{toml(value, f'{above}{key}.')}" for key, value in values.items() if isinstance(value, Mapping)]
    return "\n".join([*plain, *tables]) + "\n"
