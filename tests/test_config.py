"""How a configuration is put together, and that the code, the example file and the manual list the same keys."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rabbitpy_broker.config import (
    KEYS,
    AlarmConfig,
    Config,
    StoreConfig,
    default_settings,
    env_name,
    load_config,
    split_address,
)
from rabbitpy_broker.errors import ConfigError

ROOT = Path(__file__).parent.parent
EXAMPLE = ROOT / "config" / "rabbitpy.toml"
MANUAL = ROOT / "docs" / "configuration.md"


@pytest.fixture
def write(tmp_path: Path):
    def write_file(text: str) -> Path:
        file = tmp_path / "broker.toml"
        file.write_text(text, encoding="utf-8")
        return file

    return write_file


def test_defaults_are_those_of_rabbitmq():
    config = Config()
    assert (config.protocol.channel_max, config.protocol.frame_max, config.protocol.heartbeat) == (2047, 131072, 60)
    assert config.users.loopback_users == ("guest",)
    assert config.protocol.max_message_size == 128 * 1024 * 1024
    assert config.alarms.vm_memory_high_watermark_paging_ratio == 0.5
    assert config.store.embed_below_bytes() == 4096
    assert config.store.queue_index_max_journal_entries == 32_768
    assert config.store.file_size_limit_bytes() == 16_777_216


def test_example_file_equals_the_defaults():
    assert load_config(EXAMPLE) == Config() == load_config()


def test_example_file_lists_every_key_once_with_a_comment():
    keys = re.findall(r"^([a-z0-9_.]+) = ", EXAMPLE.read_text(encoding="utf-8"), re.MULTILINE)
    assert sorted(keys) == sorted(KEYS)


def test_manual_lists_every_key_with_its_default():
    rows = re.findall(r"^\| `([a-z0-9_.]+)` \| `([^`]*)` \|", MANUAL.read_text(encoding="utf-8"), re.MULTILINE)
    expected = {key: msgspec.json.encode(value).decode() for key, value in default_settings().items()}
    assert dict(rows) == expected
    assert len(rows) == len(expected)


def test_environment_goes_over_the_file_and_the_command_line_over_both(write):
    file = write("heartbeat = 1\nchannel_max = 1\nframe_max = 5001\n")
    environ = {"RABBITPY_HEARTBEAT": "2", "RABBITPY_CHANNEL_MAX": "2", "PATH": "/bin"}
    config = load_config(file, environ, {"heartbeat": 3})
    assert (config.protocol.heartbeat, config.protocol.channel_max, config.protocol.frame_max) == (3, 2, 5001)


def test_tables_may_be_written_as_tables_or_dotted(write):
    assert load_config(write('[log]\nlevel = "debug"\n')) == load_config(write('log.level = "debug"\n'))


def test_environment_sets_lists_numbers_truth_values_and_tables():
    config = load_config(
        environ={
            "RABBITPY_LISTENERS": "127.0.0.1:1, [::1]:2",
            "RABBITPY_LOOPBACK_USERS": "",
            "RABBITPY_TCP_LISTEN_OPTIONS_BACKLOG": "7",
            "RABBITPY_SSL_OPTIONS_FAIL_IF_NO_PEER_CERT": "false",
            "RABBITPY_LOG_FORMAT": "json",
            "RABBITPY_VM_MEMORY_HIGH_WATERMARK": "0.5",
        }
    )
    assert config.net.listeners == ("127.0.0.1:1", "[::1]:2")
    assert config.users.loopback_users == ()
    assert config.net.tcp_listen_options.backlog == 7
    assert config.net.ssl_options.fail_if_no_peer_cert is False
    assert config.log.format == "json"
    assert config.alarms.memory_limit_bytes(1000) == 500


def test_every_key_has_an_environment_variable_of_its_own():
    assert len({env_name(key) for key in KEYS}) == len(KEYS)


def test_variables_of_the_official_rabbitmq_image_are_understood():
    environ = {"RABBITMQ_DEFAULT_USER": "a", "RABBITMQ_DEFAULT_PASS": "b", "RABBITMQ_DEFAULT_VHOST": "c"}
    users = load_config(environ=environ).users
    assert (users.default_user, users.default_pass, users.default_vhost) == ("a", "b", "c")
    assert load_config(environ={**environ, "RABBITPY_DEFAULT_USER": "own"}).users.default_user == "own"


def test_variables_of_a_kubernetes_service_of_our_name_do_not_disturb():
    environ = {"RABBITPY_PORT": "tcp://10.0.0.1:5672", "RABBITPY_SERVICE_HOST": "10.0.0.1"}
    assert load_config(environ=environ) == Config()


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("heartbeet = 1", "unknown key: heartbeet"),
        ("log.colour = true", "unknown key: log.colour"),
        ("[nonsense]\na = 1", "unknown key: nonsense"),
        ("log = 1", "log: must be a table"),
        ('heartbeat = "60"', "heartbeat: Expected `int`, got `str`"),
        ("heartbeat = -1", "heartbeat: Expected `int` >= 0"),
        ("channel_max = 65536", "channel_max: Expected `int` <= 65535"),
        ("log.level = 'loud'", "log.level: Invalid enum value 'loud'"),
        ("heartbeat = ", "no TOML"),
    ],
)
def test_an_unknown_key_or_a_bad_value_names_the_file_and_the_key(write, text, complaint):
    file = write(text)
    with pytest.raises(ConfigError) as caught:
        load_config(file)
    assert str(caught.value).startswith(f"{file}: {complaint}")


@pytest.mark.parametrize(
    ("overrides", "complaint"),
    [
        ({"frame_max": 4095}, "frame_max: must be 0 (no limit) or at least 4096"),
        ({"listeners": ("5672",)}, "listeners: must be HOST:PORT"),
        ({"listeners": ("a:70000",)}, "listeners: the port must be a number from 0 to 65535"),
        ({"listeners_ssl": ("a:5671",)}, "listeners_ssl: needs ssl_options.certfile and ssl_options.keyfile"),
        ({"metrics_listen": "x"}, "metrics_listen: must be HOST:PORT"),
        ({"ssl_options.verify": "verify_peer"}, "ssl_options.cacertfile: needed"),
        ({"ssl_options.fail_if_no_peer_cert": True}, "ssl_options.fail_if_no_peer_cert: needs"),
        ({"default_permissions.read": "("}, "default_permissions.read: no regular expression"),
        ({"vm_memory_high_watermark": 1.5}, "vm_memory_high_watermark: a fraction"),
        ({"vm_memory_high_watermark": float("nan")}, "vm_memory_high_watermark: a fraction"),
        ({"vm_memory_high_watermark": "half"}, "vm_memory_high_watermark: must be a number of bytes"),
        ({"disk_free_limit": "1 parsec"}, "disk_free_limit: must be a number of bytes"),
        ({"disk_free_limit": -1}, "disk_free_limit: must not be negative"),
        ({"disk_free_limit": {"relative": -1}}, "disk_free_limit.relative: must not be negative"),
        ({"disk_free_limit": {"absolute": "1 parsec"}}, "disk_free_limit.absolute: must be a number of bytes"),
        ({"disk_free_limit": {}}, "command line: disk_free_limit: "),
        ({"disk_free_limit": {"half": 1}}, "command line: disk_free_limit: "),
        ({"vm_memory_high_watermark": {"relative": 1.1}}, "vm_memory_high_watermark.relative: a fraction"),
        ({"vm_memory_high_watermark": {"relative": -0.1}}, "vm_memory_high_watermark.relative: a fraction"),
        ({"vm_memory_high_watermark": {"relative": float("nan")}}, "vm_memory_high_watermark.relative: a fraction"),
        ({"vm_memory_high_watermark": {"absolute": -1}}, "vm_memory_high_watermark.absolute: must not be negative"),
        ({"vm_memory_high_watermark": {"absolute": 0.4}}, "command line: vm_memory_high_watermark: Expected"),
        ({"vm_memory_high_watermark": {"absolute": "0.4"}}, "vm_memory_high_watermark.absolute: must be a number of bytes"),
        ({"vm_memory_high_watermark": {"absolute": 1, "relative": 0.4}}, "command line: vm_memory_high_watermark: "),
        ({"vm_memory_high_watermark_paging_ratio": 0}, "command line: vm_memory_high_watermark_paging_ratio: Expected"),
        (
            {"vm_memory_high_watermark_paging_ratio": "nan"},
            "command line: vm_memory_high_watermark_paging_ratio: Expected",
        ),
        ({"queue_index_embed_msgs_below": -1}, "queue_index_embed_msgs_below: must not be negative"),
        ({"queue_index_embed_msgs_below": "some"}, "queue_index_embed_msgs_below: must be a number of bytes"),
        ({"queue_index_max_journal_entries": 0}, "command line: queue_index_max_journal_entries: Expected"),
        ({"msg_store_file_size_limit": 4095}, "msg_store_file_size_limit: must be at least 4096"),
        ({"msg_store_file_size_limit": "0.5MB"}, "msg_store_file_size_limit: must be a number of bytes"),
        ({"no_such": 1}, "command line: unknown key: no_such"),
    ],
)
def test_values_that_cannot_be_used_name_the_key(overrides, complaint):
    with pytest.raises(ConfigError) as caught:
        load_config(overrides=overrides)
    assert str(caught.value).startswith(complaint)


def test_an_unknown_variable_with_our_prefix_is_an_error():
    with pytest.raises(ConfigError, match="environment: unknown key: RABBITPY_HEARTBEET"):
        load_config(environ={"RABBITPY_HEARTBEET": "1"})


def test_a_missing_file_is_an_error(tmp_path):
    with pytest.raises(ConfigError, match=r"none\.toml: cannot be read: No such file or directory"):
        load_config(tmp_path / "none.toml")


def test_the_password_is_in_no_text_of_the_configuration():
    config = load_config(environ={"RABBITPY_DEFAULT_PASS": "hunter2"})
    assert config.users.default_pass == "hunter2"
    assert "hunter2" not in repr(config)


@pytest.mark.parametrize(
    ("mark", "limit"),
    [(0.4, 400), (0, 0), (0.0, 0), (1, 1000), (1.0, 1000), ("0.25", 250), (2_000, 2_000), ("2kB", 2_000), ("2 KiB", 2_048)],
)
def test_memory_watermark_is_a_fraction_up_to_one_and_bytes_above(mark, limit):
    assert AlarmConfig(vm_memory_high_watermark=mark).memory_limit_bytes(1000) == limit


@pytest.mark.parametrize(
    ("size", "limit"), [("50MB", 50_000_000), ("50MiB", 52_428_800), ("1g", 2**30), (17, 17), ("17", 17)]
)
def test_sizes_have_rabbitmqs_units(size, limit):
    assert AlarmConfig(disk_free_limit=size).disk_limit_bytes(1000) == limit


@pytest.mark.parametrize(
    ("mark", "limit"),
    [
        ({"relative": 0}, 0),
        ({"relative": 0.25}, 250),
        ({"relative": 1}, 1000),
        ({"absolute": 0}, 0),
        ({"absolute": 1}, 1),
        ({"absolute": "1"}, 1),
        ({"absolute": "2kB"}, 2000),
    ],
)
def test_a_memory_watermark_that_says_so_is_relative_or_absolute_whatever_its_size(mark, limit):
    config = load_config(overrides={"vm_memory_high_watermark": mark})
    assert config.alarms.memory_limit_bytes(1000) == limit


@pytest.mark.parametrize(
    ("limit", "limit_bytes"),
    [({"relative": 0.5}, 500), ({"relative": 2}, 2000), ({"absolute": 1}, 1), ({"absolute": "1kB"}, 1000)],
)
def test_a_disk_limit_may_be_a_multiple_of_the_memory(limit, limit_bytes):
    assert load_config(overrides={"disk_free_limit": limit}).alarms.disk_limit_bytes(1000) == limit_bytes


def test_marks_are_tables_in_the_file_and_variables_of_their_own_in_the_environment(tmp_path):
    file = tmp_path / "broker.toml"
    file.write_text("vm_memory_high_watermark.absolute = 1\ndisk_free_limit.relative = 2.0\n")
    alarms = load_config(file).alarms
    assert (alarms.memory_limit_bytes(1000), alarms.disk_limit_bytes(1000)) == (1, 2000)
    environ = {"RABBITPY_VM_MEMORY_HIGH_WATERMARK_RELATIVE": "1", "RABBITPY_DISK_FREE_LIMIT_ABSOLUTE": "1kB"}
    alarms = load_config(file, environ).alarms
    assert (alarms.memory_limit_bytes(5000), alarms.disk_limit_bytes(5000)) == (5000, 1000)
    alarms = load_config(file, {"RABBITPY_VM_MEMORY_HIGH_WATERMARK": "0.5"}).alarms
    assert (alarms.memory_limit_bytes(1000), alarms.disk_limit_bytes(1000)) == (500, 2000)


def test_a_mark_given_twice_in_one_source_is_an_error():
    for environ in (
        {"RABBITPY_VM_MEMORY_HIGH_WATERMARK_RELATIVE": "0.4", "RABBITPY_VM_MEMORY_HIGH_WATERMARK": "0.4"},
        {"RABBITPY_VM_MEMORY_HIGH_WATERMARK_RELATIVE": "0.4", "RABBITPY_VM_MEMORY_HIGH_WATERMARK_ABSOLUTE": "1"},
    ):
        with pytest.raises(ConfigError, match=r"^environment: vm_memory_high_watermark: "):
            load_config(environ=environ)

def test_sizes_of_the_store_have_the_same_units():
    store = StoreConfig(queue_index_embed_msgs_below="2kB", msg_store_file_size_limit="1 MiB")
    assert (store.embed_below_bytes(), store.file_size_limit_bytes()) == (2000, 2**20)
    assert StoreConfig(queue_index_embed_msgs_below=0).embed_below_bytes() == 0


@pytest.mark.parametrize("ratio", [0.01, 1, 1.5, 100, float("inf")])
def test_the_paging_ratio_may_be_above_one_to_switch_paging_off(ratio):
    config = load_config(overrides={"vm_memory_high_watermark_paging_ratio": ratio})
    assert config.alarms.vm_memory_high_watermark_paging_ratio == ratio


@pytest.mark.parametrize(
    ("address", "parts"), [("h:1", ("h", 1)), ("[::1]:0", ("::1", 0)), ("0.0.0.0:65535", ("0.0.0.0", 65535))]
)
def test_an_address_is_host_and_port(address, parts):
    assert split_address(address) == parts


@given(st.text())
def test_any_text_is_an_address_or_a_value_error(text):
    try:
        host, port = split_address(text)
    except ValueError:
        return
    assert host
    assert 0 <= port <= 65535
