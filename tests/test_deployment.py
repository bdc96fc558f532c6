"""How the broker is put on a server: what systemd is told, rotated logs, the commands that help, and what is deployed."""

from __future__ import annotations

import configparser
import os
import re
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from broker_process import BrokerProcess, broker_command, ctl_command
from rabbitpy_broker import doctor, systemd
from rabbitpy_broker.config import Config, load_config
from support import eventually

ROOT = Path(__file__).parent.parent
PACKAGING = ROOT / "packaging"
UNIT = PACKAGING / "systemd" / "rabbitpy-broker.service"
CLOSING = ["close_all_connections", "close_all_user_connections", "close_connection"]
DOCKERFILE = (ROOT / "Dockerfile").read_text(encoding="utf-8")


def run(*arguments: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    command = [*broker_command(), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, env={**os.environ, **(env or {})}, check=False)


# -- systemd ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def told(tmp_path: Path) -> Iterator[socket.socket]:
    """What systemd would be told."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.bind(str(tmp_path / "notify"))
        listening.settimeout(20)
        yield listening


@pytest.mark.own
def test_systemd_is_told_when_the_broker_is_ready_lives_and_stops(told: socket.socket, tmp_path: Path) -> None:
    env = {"NOTIFY_SOCKET": told.getsockname(), "WATCHDOG_USEC": "100000"}
    process = BrokerProcess(tmp_path, env=env).start()
    assert [told.recv(100) for _ in range(3)] == [b"READY=1", b"WATCHDOG=1", b"WATCHDOG=1"]
    process.stop()
    told.settimeout(1)
    messages = {b"WATCHDOG=1"}
    while b"STOPPING=1" not in messages:
        messages.add(told.recv(100))
    assert messages == {b"WATCHDOG=1", b"STOPPING=1"}


def test_nobody_is_told_where_nobody_listens(tmp_path: Path) -> None:
    systemd.notify(systemd.READY, {})
    systemd.notify(systemd.READY, {"NOTIFY_SOCKET": str(tmp_path / "none")})
    assert systemd.watchdog_s({}) == 0.0
    assert systemd.watchdog_s({"WATCHDOG_USEC": "30000000"}) == 15.0
    assert systemd.watchdog_s({"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": "1"}) == 0.0


def test_the_unit_leaves_the_broker_the_time_it_may_take_and_takes_its_rights_away() -> None:
    unit = configparser.ConfigParser(strict=False, interpolation=None, delimiters=("=",))
    unit.optionxform = str  # type: ignore[method-assign,assignment]
    unit.read(UNIT)
    service = unit["Service"]
    assert int(service["TimeoutStopSec"]) > Config().node.stop_grace / 1000 + 1
    assert (service["Type"], service["TimeoutStartSec"]) == ("notify", "infinity")
    assert service["StateDirectory"] in service["Environment"]
    for name in ("NoNewPrivileges", "PrivateTmp", "PrivateDevices", "ProtectHome", "MemoryDenyWriteExecute", "RestrictSUIDSGID"):
        assert service[name] == "yes"
    assert (service["ProtectSystem"], service["CapabilityBoundingSet"]) == ("strict", "")


# -- the log ----------------------------------------------------------------------------------------------------------


@pytest.mark.own
@pytest.mark.parametrize("number", [signal.SIGUSR1, signal.SIGHUP])
def test_a_log_file_that_was_moved_away_is_opened_again(tmp_path: Path, number: signal.Signals) -> None:
    process = BrokerProcess(tmp_path, {"log": {"file": str(tmp_path / "broker.log")}}).start()
    process.log_file.rename(tmp_path / "broker.log.1")
    process.signal(number)
    eventually(process.log_file.exists)
    process.ctl("add_user", "anna", "secret")
    assert process.events("auth.user_created")[0]["user"] == "anna"
    assert "broker started" in (tmp_path / "broker.log.1").read_text()
    process.stop()


@pytest.mark.own
def test_a_log_file_that_cannot_be_opened_again_is_written_on(tmp_path: Path) -> None:
    folder = tmp_path / "logs"
    folder.mkdir()
    process = BrokerProcess(tmp_path, {"log": {"file": str(folder / "broker.log")}})
    process.log_file = folder / "broker.log"
    process.start()
    moved = tmp_path / "moved"
    folder.rename(moved)
    process.log_file = moved / "broker.log"
    process.signal(signal.SIGUSR1)
    eventually(lambda: process.events("not reloaded"))
    process.stop()


def test_a_log_file_that_cannot_be_written_ends_the_start(tmp_path: Path) -> None:
    done = run("--data-dir", str(tmp_path), env={"RABBITPY_LOG_FILE": str(tmp_path / "none" / "x")})
    assert done.returncode == 2
    assert f"rabbitpy-broker: log.file: {tmp_path / 'none' / 'x'} cannot be written: No such file" in done.stderr


# -- users ------------------------------------------------------------------------------------------------------------


@pytest.mark.own
def test_a_changed_password_may_end_the_users_connections_and_the_log_has_every_change(tmp_path: Path) -> None:
    process = BrokerProcess(tmp_path).start()
    process.ctl("add_user", "anna", "secret")
    process.ctl("set_permissions", "anna", ".*", ".*", ".*")
    client = process.wire().open(user="anna", password="secret")
    process.ctl("change_password", "anna", "other")
    assert "anna" in process.ctl("list_connections", "user")
    process.ctl("change_password", "--close-connections", "anna", "third")
    eventually(lambda: "anna" not in process.ctl("list_connections", "user"))
    client.close()
    process.ctl("set_user_tags", "anna", "monitoring")
    process.ctl("clear_permissions", "anna")
    process.ctl("delete_user", "anna")
    told = [(event["event"], event.get("what")) for event in process.events() if event.get("user") == "anna"]
    assert [one for one in told if one[0].startswith("auth.")] == [
        ("auth.user_created", None),
        ("auth.permissions_changed", None),
        ("auth.login", None),
        ("auth.user_changed", "password"),
        ("auth.user_changed", "password"),
        ("auth.user_changed", "tags"),
        ("auth.permissions_cleared", None),
        ("auth.user_deleted", None),
    ]
    process.stop()


# -- commands that help -----------------------------------------------------------------------------------------------


def test_init_writes_a_configuration_that_says_nothing_yet(tmp_path: Path) -> None:
    file = tmp_path / "rabbitpy.toml"
    assert run("init", str(file)).returncode == 0
    assert load_config(file) == Config()
    text = file.read_text()
    assert "#heartbeat = 60\n" in text
    assert load_config_of(tmp_path, re.sub(r"^#(?=\w+(?:\.\w+)* = )", "", text, flags=re.MULTILINE)) == Config()
    assert run("init", "-").stdout == text
    refused = run("init", str(file))
    assert (refused.returncode, refused.stderr) == (
        2, f"rabbitpy-broker: {file} is there already: name another file, or --force\n"
    )  # fmt: skip
    assert run("init", "--force", str(file)).returncode == 0


def load_config_of(folder: Path, text: str) -> Config:
    (folder / "other.toml").write_text(text)
    return load_config(folder / "other.toml")


def test_shells_complete_every_command() -> None:
    script = run("completion", "bash").stdout
    assert subprocess.run(["bash", "-n"], input=script, text=True, check=False).returncode == 0
    assert re.findall(r"_(\w+)_COMPLETE=", script) == ["RABBITPY_BROKER", "RABBITPY_CTL", "RABBITPY_PIPELINE"]
    for shell in ("zsh", "fish"):
        assert "rabbitpy-ctl" in run("completion", shell).stdout
    for command, begun, found in ((ctl_command(), "close_", CLOSING), (broker_command(), "doc", ["doctor"])):
        variable = "_" + Path(command[-1]).name.upper().replace("-", "_") + "_COMPLETE"
        env = {**os.environ, variable: "bash_complete", "COMP_WORDS": f"x {begun}", "COMP_CWORD": "1"}
        said = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, check=False).stdout
        assert [line.partition(",")[2] for line in said.split()] == found


def test_the_doctor_says_what_to_change_and_that_the_broker_cannot_run(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        env = {"RABBITPY_LISTENERS": f"127.0.0.1:{port}", "RABBITPY_METRICS_LISTEN": "", "RABBITPY_MANAGEMENT_LISTEN": ""}
        done = run("doctor", "--data-dir", str(tmp_path / "data"), env=env)
    assert done.returncode == 1
    assert f"error: ports: 127.0.0.1:{port} is taken\n" in done.stdout
    assert re.search(r"\d+ findings: 1 errors, \d+ warnings", done.stdout)
    assert not (tmp_path / "data").exists()


@pytest.mark.own
def test_the_doctor_knows_a_broker_that_runs(tmp_path: Path) -> None:
    process = BrokerProcess(tmp_path).start()
    done = run("doctor", "--all", "--data-dir", str(process.data_dir))
    assert process.process is not None
    assert f"ok: ports: process {process.process.pid} runs on this data directory" in done.stdout
    assert f"ok: permissions: {process.data_dir} is for its owner only" in done.stdout
    process.stop()


def levels(findings: Iterator[doctor.Finding]) -> list[str]:
    return [finding.level for finding in findings]


def test_the_doctor_judges_limits_memory_and_clock() -> None:
    assert levels(doctor.check_files(0, 1_000_000)) == ["ok"]
    assert levels(doctor.check_files(0, 4_096)) == ["warning"]
    assert levels(doctor.check_files(10_000, 4_096)) == ["error"]
    assert levels(doctor.check_memory(Config(), 2**33)) == ["ok"]
    assert levels(doctor.check_memory(Config(), 2**26)) == ["warning"]
    assert levels(doctor.check_memory(load_config(overrides={"vm_memory_high_watermark": 0.95}), 2**33)) == ["warning"]
    assert levels(doctor.check_clock(0)) == ["ok"]
    assert levels(doctor.check_clock(5)) == ["warning"]
    assert levels(doctor.check_clock(-1)) == ["warning"]
    assert levels(doctor.check_clock(0, 0.0)) == ["error"]


def test_the_doctor_judges_disks_and_file_systems(tmp_path: Path) -> None:
    full = load_config(overrides={"disk_free_limit": "900TB"})
    assert "error" in levels(doctor.check_disk(full, tmp_path / "none" / "yet"))
    mounts = tmp_path / "mounts"
    mounts.write_text(f"disk / ext4 rw 0 0\nserver {tmp_path} nfs4 rw 0 0\nother {tmp_path}-not tmpfs rw 0 0\n")
    assert doctor.file_system(tmp_path / "x", mounts) == "nfs4"
    assert doctor.file_system(Path("/"), mounts) == "ext4"
    assert doctor.file_system(Path("/"), tmp_path / "none") == ""


def test_the_doctor_judges_permissions(tmp_path: Path) -> None:
    data, key, file = tmp_path / "data", tmp_path / "key", tmp_path / "rabbitpy.toml"
    data.mkdir(mode=0o755)
    key.write_text("")
    key.chmod(0o644)
    file.write_text("")
    file.chmod(0o644)
    config = load_config(overrides={"default_pass": "secret", "ssl_options.keyfile": str(key)})
    texts = [finding.text for finding in doctor.check_permissions(config, data, file) if finding.level == doctor.POOR]
    assert f"others may look into {data}: messages and password hashes" in texts
    assert f"everybody may read {file}, which has a password in it" in texts
    assert f"everybody may read the key {key}" in texts


def test_the_doctor_judges_kernel_settings(tmp_path: Path) -> None:
    values = {"net/core/somaxconn": 16, "vm/overcommit_memory": 2, "vm/swappiness": 90, "net/ipv4/tcp_keepalive_time": 7200}
    for name, value in values.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(f"{value}\n")
    huge = tmp_path / "huge"
    huge.write_text("[always] madvise never\n")
    found = list(doctor.check_kernel(load_config(overrides={"heartbeat": 0}), tmp_path, huge))
    assert levels(iter(found)) == ["warning"] * 5 + ["ok"]
    assert "sysctl -w net.core.somaxconn=128" in [finding.advice for finding in found]
    assert levels(doctor.check_kernel(Config(), tmp_path / "none", tmp_path / "none")) == ["ok"]


# -- containers -------------------------------------------------------------------------------------------------------


def manifests() -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((PACKAGING / "kubernetes" / "rabbitpy-broker.yaml").read_text(encoding="utf-8")))


@pytest.mark.parametrize("version", ["1.29", "1.33"])
def test_manifests_fit_the_schemas_of_kubernetes(version: str) -> None:
    for manifest in manifests():
        kubernetes_validate.validate(manifest, version, strict=True)


def test_a_manifest_with_a_typing_error_does_not_fit() -> None:
    wrong = {**manifests()[0], "automountServiceAccountTokens": False}
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(wrong, "1.33", strict=True)


def test_manifests_fit_the_image_and_each_other(tmp_path: Path) -> None:
    found = {(manifest["kind"], manifest["metadata"]["name"]): manifest for manifest in manifests()}
    kinds = {kind for kind, _ in found}
    assert kinds == {"ServiceAccount", "ConfigMap", "Service", "PodDisruptionBudget", "StatefulSet"}
    stateful = found["StatefulSet", "rabbitpy-broker"]["spec"]
    pod = stateful["template"]["spec"]
    (container,) = pod["containers"]
    assert str(pod["securityContext"]["runAsUser"]) == re.findall(r"--uid (\d+)", DOCKERFILE)[0]
    assert pod["terminationGracePeriodSeconds"] > Config().node.stop_grace / 1000 + 1
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert set(map(str, ports.values())) <= set(re.findall(r"^EXPOSE (.*)$", DOCKERFILE, re.MULTILINE)[0].split())
    for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
        assert container[probe]["httpGet"]["port"] in ports
    for name in ("rabbitpy-broker", "rabbitpy-broker-pods"):
        service = found["Service", name]["spec"]
        assert service["selector"].items() <= stateful["template"]["metadata"]["labels"].items()
        assert {port["targetPort"] for port in service["ports"]} <= set(ports)
    claims = {claim["metadata"]["name"] for claim in stateful["volumeClaimTemplates"]}
    volumes = claims | {volume["name"] for volume in pod["volumes"]}
    assert {mount["name"] for mount in container["volumeMounts"]} == volumes
    (settings,) = found["ConfigMap", "rabbitpy-broker"]["data"].values()
    assert load_config_of(tmp_path, settings).log.format == "json"


def test_the_compose_file_fits_the_image() -> None:
    broker = yaml.safe_load((PACKAGING / "compose.yaml").read_text(encoding="utf-8"))["services"]["broker"]
    (volume,) = broker["volumes"]
    assert volume.split(":")[1] == re.findall(r"^VOLUME (.*)$", DOCKERFILE, re.MULTILINE)[0]
    assert int(broker["stop_grace_period"].removesuffix("s")) > Config().node.stop_grace / 1000 + 1
    for port in broker["ports"]:
        assert port.split(":")[-1] in DOCKERFILE
    load_config(environ={name: "x" if "FORMAT" not in name else "json" for name in broker["environment"]})
