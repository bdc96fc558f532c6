"""Brokers to measure: started here on free ports and a throw-away data directory, or running elsewhere.

A started broker is the leader of its own session. So everything that belongs to it, and nothing else, can be found to add
up its memory and CPU time, and be told to stop.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.util
import os
import resource
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import click

from perf.load.client import Address, Client, Refused

START_TIMEOUT = 60.0
STOP_TIMEOUT = 30.0
RABBITMQ_SERVER = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")
# What is installed beside this interpreter: `python -m` would prefer the package of the current folder.
DEFAULT_COMMAND = shlex.quote(str(Path(sys.executable).with_name("rabbitpy-broker")))


class StartFailed(Exception):
    """A broker cannot be started; the text says why."""


@dataclasses.dataclass
class Broker:
    """Where a broker listens and, if it was started here, the session that its processes belong to."""

    name: str
    url: str
    session: int | None = None
    build: str = ""  # what the broker says of itself
    pid: int | None = None  # of a broker that was not started here, where it is known

    def processes(self) -> list[int]:
        if self.session is not None:
            return session_members(self.session)
        return [] if self.pid is None else [self.pid]

    def rss_kib(self) -> int:
        """Resident memory of all its processes; 0 when they are out of reach."""
        return sum(status_kib(process, "VmRSS") for process in self.processes())

    def cpu_s(self) -> float:
        """CPU time of all its processes so far."""
        return sum(cpu_seconds(process) for process in self.processes())


def session_members(session: int) -> list[int]:
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # the process has just ended
            if int(stat_fields(int(folder.name))[3]) == session:
                found.append(int(folder.name))
    return found


def stat_fields(process: int) -> list[str]:
    """/proc/PID/stat from the state on; the name before it may hold spaces and parentheses."""
    return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()


def cpu_seconds(process: int) -> float:
    try:
        fields = stat_fields(process)
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def status_kib(process: int, key: str) -> int:
    """A memory figure of /proc/PID/status; 0 when the process is gone."""
    try:
        lines = Path(f"/proc/{process}/status").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith(f"{key}:")), 0)


def free_ports(count: int) -> list[int]:
    """Ports on the loopback that nobody has at the moment."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for sock in sockets:
            sock.bind(("127.0.0.1", 0))
        return [sock.getsockname()[1] for sock in sockets]


@contextlib.contextmanager
def scratch() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="rabbitpy-perf-") as folder:
        yield Path(folder)


@contextlib.contextmanager
def session(
    command: Sequence[str], folder: Path, env: Mapping[str, str]
) -> Iterator[subprocess.Popen[bytes]]:
    """A process in a session of its own; at the end SIGTERM to all of the session, and SIGKILL to what is left."""
    with (folder / "output").open("wb") as output:
        process = subprocess.Popen(
            command,
            cwd=folder,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    try:
        yield process
    finally:
        end = time.monotonic() + STOP_TIMEOUT
        signal_all(process.pid, signal.SIGTERM)
        while process.poll() is None or session_members(process.pid):
            if time.monotonic() > end:
                signal_all(process.pid, signal.SIGKILL)
                process.wait()
                break
            time.sleep(0.05)


def signal_all(session: int, number: signal.Signals) -> None:
    for process in session_members(session):
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, number)


def wait_until_ready(broker: Broker, process: subprocess.Popen[bytes], folder: Path) -> None:
    """Returns when the broker lets a client in; fills in what it says of itself."""
    end = time.monotonic() + START_TIMEOUT
    while True:
        try:
            with Client(Address.parse(broker.url)) as client:
                broker.build = broker.build or client.server_name
                return
        except Refused as error:
            reason = str(error)
        if process.poll() is not None or time.monotonic() > end:
            output = (folder / "output").read_text(errors="replace").strip()[-600:]
            raise StartFailed(f"{broker.name} did not start ({reason}):\n{output}")
        time.sleep(0.1)


@contextlib.contextmanager
def rabbitpy(
    command: str, name: str = "rabbitpy", config: str = "", env: Mapping[str, str] | None = None
) -> Iterator[Broker]:
    """rabbitpy-broker, started by `command` plus the options for ports and data; `config` is TOML."""
    with scratch() as folder:
        port = free_ports(1)[0]
        environment = {**os.environ, **(env or {})}
        options = ["--data-dir", str(folder / "data"), "--listen", f"127.0.0.1:{port}"]
        options += ["--metrics-listen", "127.0.0.1:0", "--log-format", "json", "--log-level", "warning"]
        if config:
            (folder / "broker.toml").write_text(config)
            options += ["--config", str(folder / "broker.toml")]
        build = version_of(command, folder, environment)
        broker = Broker(name, f"amqp://guest:guest@127.0.0.1:{port}", build=build)
        with session([*shlex.split(command), *options], folder, environment) as process:
            broker.session = process.pid
            wait_until_ready(broker, process, folder)
            yield broker


def version_of(command: str, folder: Path, env: Mapping[str, str]) -> str:
    """What `--version` says, the build included."""
    try:
        done = subprocess.run(
            [*shlex.split(command), "--version"],
            cwd=folder,
            env=env,
            capture_output=True,
            text=True,
            check=True,
        )
    except (OSError, subprocess.CalledProcessError) as error:
        words = getattr(error, "stderr", None) or str(error)
        raise StartFailed(
            f"{command!r} does not run: {words.strip().splitlines()[-1]}\n"
            "Install the package (pip install .), or give the command with --broker."
        ) from None
    return done.stdout.strip()


@contextlib.contextmanager
def interpreted(name: str = "interpreted", config: str = "") -> Iterator[Broker]:
    """rabbitpy-broker from its sources alone, as it runs where no compiler was."""
    found = importlib.util.find_spec("rabbitpy_broker")
    if found is None or found.origin is None:
        raise StartFailed("rabbitpy_broker is not importable here")
    with scratch() as folder:
        package = Path(found.origin).parent
        shutil.copytree(
            package, folder / package.name, ignore=shutil.ignore_patterns("*.so", "*.pyd", "__pycache__")
        )
        command = f"{shlex.quote(sys.executable)} -m rabbitpy_broker"
        with rabbitpy(command, name, config, {"PYTHONPATH": str(folder)}) as broker:
            yield broker


@contextlib.contextmanager
def rabbitmq(name: str = "rabbitmq", server: Path = RABBITMQ_SERVER) -> Iterator[Broker]:
    """A node of the installed RabbitMQ, with its defaults, beside any other that may run on this machine.

    It has its own node name, epmd, cookie, ports and directories, all on the loopback. The epmd is started here, since one
    that the node starts would outlive it.
    """
    epmd = shutil.which("epmd") or next(
        (str(path) for path in Path("/usr/lib/erlang").glob("erts-*/bin/epmd")), None
    )
    if not server.exists() or epmd is None:
        raise StartFailed(f"RabbitMQ is not installed here: no {server if epmd else 'epmd'}")
    with scratch() as folder:
        port, distribution_port, epmd_port = free_ports(3)
        (folder / "rabbitmq.conf").write_text("log.console = true\nlog.console.level = warning\n")
        (folder / "plugins").write_text("[].\n")
        env = {
            key: value for key, value in os.environ.items() if not key.startswith(("RABBITMQ_", "ERL_"))
        } | {
            "HOME": str(folder),
            "RUNNING_UNDER_SYSTEMD": "1",  # the start script then becomes the node, instead of waiting for it
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "ERL_EPMD_PORT": str(epmd_port),
            "RABBITMQ_NODENAME": f"perf{os.getpid()}@localhost",
            "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODE_PORT": str(port),
            "RABBITMQ_DIST_PORT": str(distribution_port),
            "RABBITMQ_MNESIA_BASE": str(folder / "data"),
            "RABBITMQ_LOG_BASE": str(folder / "log"),
            "RABBITMQ_CONFIG_FILE": str(folder / "rabbitmq"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(folder / "plugins"),
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "-kernel inet_dist_use_interface {127,0,0,1}",
        }
        epmd_folder = folder / "epmd"
        epmd_folder.mkdir()
        with (
            session([epmd, "-port", str(epmd_port)], epmd_folder, env),
            session([str(server)], folder, env) as process,
        ):
            broker = Broker(name, f"amqp://guest:guest@127.0.0.1:{port}", process.pid)
            wait_until_ready(broker, process, folder)
            yield broker


@contextlib.contextmanager
def one(
    command: str, config: Path | None, use_rabbitmq: bool, url: str | None, pid: int | None
) -> Iterator[Broker]:
    """The broker that a tool's options name."""
    if url is not None:
        broker = Broker("broker", url, pid=pid)
        ask_build(broker)
        yield broker
        return
    with (
        rabbitmq()
        if use_rabbitmq
        else rabbitpy(command, config=config.read_text() if config else "") as broker
    ):
        yield broker


def options(tool: Callable[..., None]) -> Callable[..., None]:
    """The command-line options that `one` takes, for a tool that measures one broker."""
    for option in (
        click.option("--pid", type=int, help="Process of the broker behind --url, to measure its memory."),
        click.option("--url", help="A broker that runs already, instead of starting one."),
        click.option(
            "--rabbitmq", "use_rabbitmq", is_flag=True, help="Start the installed rabbitmq-server instead."
        ),
        click.option(
            "--config", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="TOML file for it."
        ),
        click.option(
            "--broker", "command", default=DEFAULT_COMMAND, help="Command that starts rabbitpy-broker."
        ),
    ):
        tool = option(tool)
    return tool


def raise_file_limit() -> int:
    """Lets this process and those it starts open as many files as the system allows; returns how many."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard


def parse_place(text: str) -> Broker:
    """NAME=HOST:PORT. Raises ValueError for anything else."""
    name, _, place = text.partition("=")
    host, _, port = place.rpartition(":")
    if not (name and host and port.isdecimal()):
        raise ValueError(f"{text!r} is not NAME=HOST:PORT")
    return Broker(name, f"amqp://guest:guest@{host}:{port}")


def ask_build(broker: Broker) -> None:
    """Has a broker that runs already say what it is. Raises StartFailed when it does not answer."""
    try:
        with Client(Address.parse(broker.url)) as client:
            broker.build = client.server_name
    except Refused as error:
        raise StartFailed(f"{broker.name}: {error}") from None
