"""The control socket: who may ask, what bad questions get, and where it is."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import os
import socket
import stat
import subprocess
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import structlog

from broker_process import BrokerProcess, CtlFailed, ctl_command, run_ctl
from rabbitpy_broker import ctl as ctl_module
from rabbitpy_broker import slices
from rabbitpy_broker.broker import Broker
from rabbitpy_broker.config import load_config
from rabbitpy_broker.definitions import DefinitionsError
from rabbitpy_broker.errors import StartError
from rabbitpy_broker.management import control
from rabbitpy_broker.management.address import SocketAddress, write_pointer
from rabbitpy_broker.management.admin import Admin
from support import eventually

pytestmark = pytest.mark.own


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Any:
    process = BrokerProcess(tmp_path_factory.mktemp("control"))
    process.start()
    yield process
    process.stop()


def converse(daemon: BrokerProcess, *lines: bytes) -> list[dict[str, Any]]:
    """Sends lines on one connection and reads an answer for each."""
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(10)
        with SocketAddress(daemon.data_dir / "control.sock") as address:
            client.connect(address)
        answers = client.makefile("rb")
        found = []
        for line in lines:
            client.sendall(line + b"\n")
            found.append(json.loads(answers.readline()))
        return found


def test_the_socket_is_for_its_owner_only(daemon: BrokerProcess):
    status = (daemon.data_dir / "control.sock").stat()
    assert stat.S_ISSOCK(status.st_mode)
    assert stat.S_IMODE(status.st_mode) == 0o600


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        (b"", "bad request"),
        (b"nonsense", "bad request"),
        (b"[]", "bad request"),
        (b"{}", "missing required field `command`"),
        (b'{"command": 5}', "Expected `str`, got `int`"),
        (b'{"command": "ping", "arguments": {}}', "Expected `array`, got `object`"),
        (b'{"command": "ping", "more": 1}', "unknown field `more`"),
        (b'{"command": "__init__"}', "unknown command '__init__'"),
        (b'{"command": "add_user"}', "missing a required argument: 'name'"),
        (b'{"command": "ping", "arguments": [1]}', "too many positional arguments"),
        (b'{"command": "add_user", "arguments": ["a", 5]}', "password: Expected `str`, got `int`"),
        (b'{"command": "list_queues", "arguments": ["name", 5]}', "Expected `str`, got `int`"),
        (b'{"command": "list_queues", "options": {"host": "a"}}', "unexpected keyword argument 'host'"),
        (b'{"command": "import_definitions", "arguments": [[]]}', "Expected `object`, got `array`"),
        (b'{"command": "import_definitions", "arguments": [{"queues": 1}]}', "queues: must be a list of objects"),
        (b'{"command": "add_vhost", "arguments": [""]}', "from 1 to 255 bytes"),
        (b'{"command": "add_user", "arguments": ["' + b"x" * 256 + b'", "p"]}', "from 1 to 255 bytes"),
        (b'{"command": "add_user", "arguments": ["\\ud800", "p"]}', "bad request"),
        (b"\xff\xfe", "bad request"),
        (b"[" * 100_000, "bad request"),
        (b'{"command": "ping", "arguments": [' + b"[" * 100_000, "bad request"),
        (b'{"command": "set_policy", "arguments": ["p", "a{9999999999999}", "{}"]}', "the repetition number is too large"),
        (b'{"command": "set_permissions", "arguments": ["guest", "a{9999999999999}", "", ""]}', "no regular expression"),
        (b'{"command": "set_global_parameter", "arguments": ["a", "NaN"]}', "JSON decoding error"),
        (b'{"command": "set_global_parameter", "arguments": ["a", "' + b"[" * 100_000 + b'"]}', "JSON decoding error"),
        (b'{"command": "set_global_parameter", "arguments": ["a", "\\"\\\\ud800\\""]}', "JSON decoding error"),
    ],
)
def test_bad_input_is_answered(daemon: BrokerProcess, line: bytes, complaint: str):
    answer, pong = converse(daemon, line, b'{"command": "ping"}')
    assert answer["ok"] is False
    assert complaint in answer["error"]
    assert pong == {"ok": True, "result": "Ping succeeded"}
    daemon.assert_clean_log()


async def test_a_list_that_meets_a_fault_after_its_beginning_is_left_without_its_end(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    def rows(_: Admin) -> Iterator[dict[str, int]]:
        yield {"number": 1}
        raise DefinitionsError("no disk")

    monkeypatch.setitem(control.COMMANDS, "list_users", rows)
    monkeypatch.setattr(slices, "SLICE_STEPS", 1)  # each row is sent by itself
    settings = {"data_dir": str(tmp_path), "listeners": ("127.0.0.1:0",), "metrics_listen": "", "management_listen": ""}
    broker = Broker(load_config(overrides=settings), structlog.get_logger())
    await broker.start()
    try:
        with SocketAddress(tmp_path / "control.sock") as address:
            reader, writer = await asyncio.open_unix_connection(address)
        writer.write(b'{"command": "list_users"}\n')
        assert await asyncio.wait_for(reader.read(), 10) == b'{"ok":true,"result":[{"number":1}'
        writer.close()
    finally:
        await broker.stop()


# -- where it is ----------------------------------------------------------------------------------------------------------


class Sockets:
    """File systems that take no sockets: those below the folders in `refusing`."""

    def __init__(self) -> None:
        self.refusing: list[Path] = []
        self._bind = control._bind

    def bind(self, listening: socket.socket, path: Path) -> None:
        if any(path.is_relative_to(folder) for folder in self.refusing):
            raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
        self._bind(listening, path)


@pytest.fixture
def sockets(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Sockets:
    """Only the runtime directory, in tmp_path, takes sockets; not the data directory beside it, nor anything else."""
    fake = Sockets()
    fake.refusing = [tmp_path / "data", Path("/run"), Path(tempfile.gettempdir(), f"rabbitpy-broker-{os.getuid()}")]
    monkeypatch.setattr(control, "_bind", fake.bind)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "runtime"))
    (tmp_path / "runtime").mkdir(mode=0o700)
    return fake


@contextlib.asynccontextmanager
async def broker_on(directory: Path, **settings: str) -> AsyncIterator[Broker]:
    overrides: dict[str, Any] = {
        "data_dir": str(directory), "listeners": ("127.0.0.1:0",), "metrics_listen": "", **settings
    }  # fmt: skip
    broker = Broker(load_config(overrides=overrides), structlog.get_logger())
    await broker.start()
    try:
        yield broker
    finally:
        await broker.stop()


async def ping(directory: Path) -> str:
    """What rabbitpy-ctl, which knows the data directory only, says."""
    command = [*ctl_command(), "--data-dir", str(directory)]
    return await asyncio.to_thread(run_ctl, command, ["-q", "ping"])


async def test_socket_is_in_the_runtime_directory_where_the_data_directory_takes_none(sockets: Sockets, tmp_path: Path):
    async with broker_on(tmp_path / "data"):
        assert await ping(tmp_path / "data") == "Ping succeeded\n"
        (found,) = (tmp_path / "runtime/rabbitpy-broker").iterdir()
        assert stat.S_IMODE(found.stat().st_mode) == 0o600
        assert stat.S_IMODE(found.parent.stat().st_mode) == 0o700
    assert not list((tmp_path / "runtime/rabbitpy-broker").iterdir())
    assert not (tmp_path / "data/control.json").exists()
    with pytest.raises(CtlFailed) as failed:
        await ping(tmp_path / "data")
    assert "no broker runs on the data directory" in failed.value.stderr


async def test_two_brokers_have_two_sockets_in_one_runtime_directory(sockets: Sockets, tmp_path: Path):
    sockets.refusing.append(tmp_path / "other")
    async with broker_on(tmp_path / "data"), broker_on(tmp_path / "other"):
        assert len(list((tmp_path / "runtime/rabbitpy-broker").iterdir())) == 2
        assert await ping(tmp_path / "data") == await ping(tmp_path / "other")


async def test_broker_without_a_place_for_its_socket_starts_and_both_say_so(
    sockets: Sockets, tmp_path: Path, capfd: pytest.CaptureFixture[str]
):
    sockets.refusing.append(tmp_path / "runtime")
    async with broker_on(tmp_path / "data") as broker:
        assert broker.ready
        assert "no control socket" in "".join(capfd.readouterr())
        with pytest.raises(CtlFailed) as failed:
            await ping(tmp_path / "data")
        assert failed.value.code == os.EX_UNAVAILABLE
        assert "has no control socket (set control_socket, and start it again)" in failed.value.stderr
        assert "Function not implemented" in failed.value.stderr


async def test_socket_may_be_given_a_place(sockets: Sockets, tmp_path: Path):
    place = tmp_path / "runtime" / "mine.sock"
    async with broker_on(tmp_path / "data", control_socket=str(place)):
        assert stat.S_ISSOCK(place.stat().st_mode)
        assert await ping(tmp_path / "data") == "Ping succeeded\n"
    assert not place.exists()


async def test_place_that_was_given_and_cannot_be_had_ends_the_start(sockets: Sockets, tmp_path: Path):
    with pytest.raises(StartError, match=r"cannot listen on .*mine\.sock: Function not implemented"):
        async with broker_on(tmp_path / "data", control_socket=str(tmp_path / "data" / "mine.sock")):
            raise AssertionError("it started")


@pytest.mark.parametrize("mode", [0o777, 0o720])
async def test_runtime_folder_that_others_may_write_to_is_not_used(sockets: Sockets, tmp_path: Path, mode: int):
    folder = tmp_path / "runtime/rabbitpy-broker"
    folder.mkdir()
    folder.chmod(mode)
    async with broker_on(tmp_path / "data"):
        assert not list(folder.iterdir())


async def test_what_a_killed_broker_has_left_is_replaced(sockets: Sockets, tmp_path: Path):
    async with broker_on(tmp_path / "data"):
        left = (tmp_path / "data/control.json").read_bytes()
        (stale,) = (tmp_path / "runtime/rabbitpy-broker").iterdir()
    with socket.socket(socket.AF_UNIX) as dead, SocketAddress(stale) as address:
        dead.bind(address)
    (tmp_path / "data/control.json").write_bytes(left)
    async with broker_on(tmp_path / "data"):
        assert await ping(tmp_path / "data") == "Ping succeeded\n"
    sockets.refusing.remove(tmp_path / "data")
    (tmp_path / "data/control.json").write_bytes(left)
    async with broker_on(tmp_path / "data"):
        assert await ping(tmp_path / "data") == "Ping succeeded\n"
        assert not (tmp_path / "data/control.json").exists()


def test_another_users_socket_is_not_asked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """Nobody gets to see a password by naming a socket of his own."""
    asked = tmp_path / "elsewhere.sock"
    write_pointer(tmp_path, asked, "")
    with socket.socket(socket.AF_UNIX) as listening, SocketAddress(asked) as address:
        listening.bind(address)
        listening.listen()
        monkeypatch.setattr(ctl_module, "peer_uid", lambda _: os.getuid() + 1)
        with pytest.raises(ctl_module.CtlError, match="another user's: nothing was asked"):
            ctl_module.ask(tmp_path, "ping", [], {})


# -- clients --------------------------------------------------------------------------------------------------------------


def test_a_client_that_leaves_in_the_middle_is_no_trouble(daemon: BrokerProcess):
    for sent in (b"", b'{"command"', b'{"command": "list_bindings"}\n'):
        with socket.socket(socket.AF_UNIX) as client:
            with SocketAddress(daemon.data_dir / "control.sock") as address:
                client.connect(address)
            client.sendall(sent)
    assert daemon.ctl("ping") == "Ping succeeded\n"
    daemon.assert_clean_log()


def test_without_a_broker_the_command_line_says_so(tmp_path: Path):
    with pytest.raises(CtlFailed) as caught:
        run_ctl(ctl_command(), ["--data-dir", str(tmp_path), "list_queues"])
    assert caught.value.code == 69
    assert f"no broker runs on the data directory {tmp_path}" in caught.value.stderr


def test_the_socket_goes_with_the_broker_and_a_dead_ones_is_replaced(own_broker: Callable[..., BrokerProcess]):
    broker = own_broker()
    broker.crash()
    assert (broker.data_dir / "control.sock").exists()
    with pytest.raises(CtlFailed, match="no broker runs"):
        broker.ctl("ping")
    broker.start()
    assert broker.ctl("ping") == "Ping succeeded\n"
    broker.stop()
    assert not (broker.data_dir / "control.sock").exists()


def test_a_data_directory_with_a_long_path_has_a_socket_too(tmp_path: Path):
    directory = tmp_path / ("x" * 120)
    directory.mkdir()
    broker = BrokerProcess(directory)
    broker.start()
    assert broker.ctl("ping") == "Ping succeeded\n"
    broker.stop()


def test_the_data_directory_is_found_by_variable_and_by_settings(daemon: BrokerProcess, tmp_path: Path):
    settings = tmp_path / "broker.toml"
    settings.write_text(f'data_dir = "{daemon.data_dir}"\n')
    environ = {key: value for key, value in os.environ.items() if not key.startswith("RABBITPY_DATA")}
    for arguments, more in (
        (["ping"], {"RABBITPY_DATA_DIR": str(daemon.data_dir)}),
        (["ping", "--config", str(settings)], {}),
        (["--config", str(settings), "ping"], {}),
    ):
        done = subprocess.run([*ctl_command(), *arguments], env={**environ, **more}, capture_output=True, text=True)
        assert (done.returncode, done.stdout) == (0, "Ping succeeded\n"), done.stderr


def test_an_empty_name_is_not_the_default(daemon: BrokerProcess):
    """As a script with an empty variable calls it."""
    daemon.ctl("add_vhost", "dear")
    with pytest.raises(CtlFailed, match="Virtual host '' does not exist"):
        daemon.ctl("-p", "dear", "delete_vhost", "")
    with pytest.raises(CtlFailed, match="Virtual host '' does not exist"):
        daemon.ctl("trace_on", "-p", "")
    assert "dear" in daemon.ctl("list_vhosts")


def test_an_argument_that_is_not_utf_8_is_refused(daemon: BrokerProcess):
    with pytest.raises(CtlFailed, match="an argument is not UTF-8") as caught:
        daemon.ctl("add_vhost", os.fsdecode(b"\xff"))
    assert caught.value.code == 64


def test_a_timeout_below_zero_is_none(daemon: BrokerProcess):
    assert daemon.ctl("ping", "--timeout", "-1") == "Ping succeeded\n"


def test_a_conversation_that_is_under_way_does_not_keep_the_broker_from_stopping(own_broker: Callable[..., BrokerProcess]):
    broker = own_broker()
    with socket.socket(socket.AF_UNIX) as client:
        with SocketAddress(broker.data_dir / "control.sock") as address:
            client.connect(address)
        client.sendall(b'{"command": "ping"}\n')
        eventually(lambda: client.recv(100))
        broker.stop()
