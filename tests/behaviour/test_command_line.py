"""The daemon as a process: options, exit codes, one clear line when it cannot start. And that there are subcommands."""

from __future__ import annotations

import os
import re
import socket
import subprocess
from collections.abc import Callable
from pathlib import Path

import pika
import pika.exceptions
import pytest

from broker_process import BrokerProcess, broker_command
from wire_client import WireClient

pytestmark = pytest.mark.own

Own = Callable[..., BrokerProcess]


def run(*arguments: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """The daemon, run to its end."""
    command = [*broker_command(), *arguments]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=30, check=False, env={**os.environ, **(env or {})}
    )


def assert_refused(result: subprocess.CompletedProcess[str], *words: str) -> None:
    """Exit code 2, and one line on stderr, beside the log, that has the words in it."""
    assert result.returncode == 2, result
    lines = [line for line in result.stderr.strip().splitlines() if not line.startswith("{")]
    assert len(lines) == 1, result.stderr
    assert all(word in lines[0] for word in words), lines[0]
    assert result.stdout == ""


def test_version_says_which_build_runs() -> None:
    result = run("--version")
    assert result.returncode == 0
    assert re.fullmatch(r"rabbitpy-broker \d+\.\d+\.\d+\S* \(.*(compiled|interpreted).*\)\n", result.stdout)


def test_help_names_every_option() -> None:
    text = run("--help").stdout
    for option in (
        "--config",
        "--data-dir",
        "--listen",
        "--metrics-listen",
        "--log-level",
        "--log-format",
        "--version",
    ):
        assert option in text


def test_help_names_the_subcommands_and_each_has_its_own() -> None:
    commands = run("--help").stdout.partition("Commands:")[2]
    assert re.findall(r"^  (\w+)  ", commands, flags=re.MULTILINE) == ["check", "completion", "doctor", "dump", "init"]
    for command, words in (
        ("check", ("DIR", "Exit code")),
        ("dump", ("DIR", "--queue", "--vhost", "Exit code")),
    ):
        result = run(command, "--help")
        assert result.returncode == 0
        assert all(word in result.stdout for word in words), result.stdout


@pytest.mark.parametrize("arguments", [("nonsense",), ("check",), ("dump", "somewhere"), ("check", "a", "b")])
def test_wrong_use_of_subcommands_is_refused(arguments: tuple[str, ...]) -> None:
    result = run(*arguments)
    assert result.returncode == 2
    assert "Usage:" in result.stderr
    assert "Traceback" not in result.stderr


def test_unknown_option_is_refused() -> None:
    result = run("--nonsense")
    assert result.returncode == 2
    assert "--nonsense" in result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize(
    "text, words",
    [
        ("nonsense = 1\n", ("nonsense",)),
        ('heartbeat = "often"\n', ("heartbeat",)),
        ("heartbeat = -1\n", ("heartbeat",)),
        ("heartbeat = \n", ("line 1",)),
        ("frame_max = 100\n", ("frame_max",)),
        ('listeners = ["nowhere"]\n', ("listeners",)),
        ('listeners_ssl = ["127.0.0.1:0"]\n', ("listeners_ssl", "certfile")),
        ('ssl_options.verify = "maybe"\n', ("verify",)),
        ('[log]\nlevel = "loud"\n', ("log.level",)),
        ('default_permissions.read = "("\n', ("default_permissions.read",)),
    ],
    ids=lambda value: value.splitlines()[-1] if isinstance(value, str) else "",
)
def test_bad_config_names_the_key(tmp_path: Path, text: str, words: tuple[str, ...]) -> None:
    file = tmp_path / "broker.toml"
    file.write_text(text)
    assert_refused(run("--config", str(file), "--data-dir", str(tmp_path / "data")), *words)


def test_absent_config_file_is_refused(tmp_path: Path) -> None:
    assert_refused(run("--config", str(tmp_path / "absent.toml")), "absent.toml")


def test_bad_value_from_the_environment_names_the_key() -> None:
    assert_refused(run(env={"RABBITPY_HEARTBEAT": "often"}), "heartbeat")


@pytest.mark.parametrize(
    "arguments", [("--listen", "nowhere"), ("--log-level", "loud"), ("--log-format", "pretty")]
)
def test_bad_value_on_the_command_line_is_refused(tmp_path: Path, arguments: tuple[str, str]) -> None:
    assert_refused(run(*arguments, "--data-dir", str(tmp_path)))


@pytest.mark.parametrize("option", ["--listen", "--metrics-listen"])
def test_port_in_use_is_refused(tmp_path: Path, option: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        other = "--listen" if option == "--metrics-listen" else "--metrics-listen"
        result = run(option, address, other, "127.0.0.1:0", "--data-dir", str(tmp_path))
    assert_refused(result, address)


def test_locked_data_directory_is_refused(own_broker: Own) -> None:
    first = own_broker()
    result = run(
        "--listen", "127.0.0.1:0", "--metrics-listen", "127.0.0.1:0", "--data-dir", str(first.data_dir)
    )
    assert_refused(result, str(first.data_dir), "in use")
    assert first.alive()


def test_data_directory_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    path = str(tmp_path / "file" / "data")
    assert_refused(
        run("--listen", "127.0.0.1:0", "--metrics-listen", "127.0.0.1:0", "--data-dir", path), path
    )


def test_port_zero_picks_a_free_port_and_says_which(
    own_broker: Own, connect: Callable[..., pika.BlockingConnection]
) -> None:
    process = own_broker()
    assert process.port != 0
    assert connect(to=process).is_open


def test_several_addresses_are_listened_on(
    own_broker: Own, connect: Callable[..., pika.BlockingConnection]
) -> None:
    process = own_broker(args=["--listen", "127.0.0.1:0"])
    addresses = process.started["listeners"]
    assert len(set(addresses)) == 2
    for address in addresses:
        assert connect(to=process, port=int(address.rsplit(":", 1)[1])).is_open


def test_environment_goes_over_the_file_and_the_command_line_over_both(
    own_broker: Own, raw: Callable[..., WireClient]
) -> None:
    """The file's addresses could not be listened on: the command line has others. Its heartbeat gives way too."""
    process = own_broker(
        config={"heartbeat": 11, "channel_max": 5, "listeners": ["192.0.2.1:1"]},
        env={"RABBITPY_HEARTBEAT": "7"},
    )
    client = raw(to=process).open(channel_max=5)
    assert client.tune is not None
    assert (client.tune.heartbeat, client.tune.channel_max) == (7, 5)


def test_default_user_comes_from_the_environment(
    own_broker: Own, connect: Callable[..., pika.BlockingConnection]
) -> None:
    process = own_broker(env={"RABBITPY_DEFAULT_USER": "somebody", "RABBITPY_DEFAULT_PASS": "secret"})
    assert connect(to=process, user="somebody", password="secret").is_open
    with pytest.raises(pika.exceptions.ProbableAuthenticationError):
        connect(to=process)


def test_log_has_no_password_in_it(own_broker: Own, connect: Callable[..., pika.BlockingConnection]) -> None:
    process = own_broker(env={"RABBITPY_DEFAULT_PASS": "correct-horse"}, args=["--log-level", "debug"])
    connect(to=process, password="correct-horse").channel().basic_publish("", "nowhere", b"battery-staple")
    with pytest.raises(pika.exceptions.ProbableAuthenticationError):
        connect(to=process, password="wrong-horse")
    process.stop()
    log = process.log_text()
    assert process.events("auth.login_failed")
    assert not any(secret in log for secret in ("correct-horse", "wrong-horse", "battery-staple"))


def test_log_says_who_came_and_went(own_broker: Own, connect: Callable[..., pika.BlockingConnection]) -> None:
    process = own_broker()
    connect(to=process, client_properties={"connection_name": "visitor"}).close()
    process.stop()
    (opened,) = process.events("connection opened")
    assert (opened["user"], opened["vhost"], opened["client_name"]) == ("guest", "/", "visitor")
    assert len(process.events("connection closed")) == 1
    assert process.events("broker stopped")
