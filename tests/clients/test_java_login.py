"""amqp-client, RabbitMQ's client for Java, that logs in by a certificate and by a token: java/Login.java."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import jwt
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import pkcs12
from cryptography.x509 import load_pem_x509_certificate
from java_client import java_command

from broker_process import BrokerProcess
from certificates import Authority

pytestmark = [pytest.mark.own, pytest.mark.timeout(700)]  # the first run fetches and compiles

Own = Callable[..., BrokerProcess]


def log_in(*arguments: str) -> None:
    done = subprocess.run([*java_command("Login"), *arguments], capture_output=True, text=True, timeout=60)
    assert done.stdout == "ok\n", done.stdout + done.stderr


def test_a_java_client_logs_in_by_its_certificate(own_broker: Own, tmp_path: Path) -> None:
    authority = Authority(tmp_path, "authority")
    certificate, key = authority.issue("server")
    tls = {"certfile": certificate, "keyfile": key, "cacertfile": str(authority.file), "verify": "verify_peer"}
    settings = {"listeners_ssl": ["127.0.0.1:0"], "auth_mechanisms": ["EXTERNAL", "PLAIN"], "ssl_cert_login_from": "common_name"}
    process = own_broker(config={**settings, "ssl_options": tls})
    process.ctl("add_user", "client", "secret")
    process.ctl("set_permissions", "client", ".*", ".*", ".*")
    shown, private = (Path(file).read_bytes() for file in authority.issue("client"))
    own_key = serialization.load_pem_private_key(private, None)
    assert isinstance(own_key, ec.EllipticCurvePrivateKey)
    protection = serialization.BestAvailableEncryption(b"secret")
    store = pkcs12.serialize_key_and_certificates(b"client", own_key, load_pem_x509_certificate(shown), None, protection)
    (tmp_path / "client.p12").write_bytes(store)
    url = f"amqps://{process.started['tls_listeners'][0]}/%2F"
    log_in("external", url, str(authority.file), str(tmp_path / "client.p12"))
    assert [(event["user"], event["mechanism"]) for event in process.events("auth.login")] == [("client", "EXTERNAL")]


def test_a_java_client_logs_in_by_a_token_and_hands_in_another(own_broker: Own, tmp_path: Path) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    form = serialization.PublicFormat.SubjectPublicKeyInfo
    (tmp_path / "key.pem").write_bytes(key.public_key().public_bytes(serialization.Encoding.PEM, form))
    oauth2 = {"resource_server_id": "rabbitmq", "signing_keys": {"key": str(tmp_path / "key.pem")}}
    process = own_broker(config={"auth_backends": ["oauth2"], "auth_oauth2": oauth2})
    claims = {"aud": "rabbitmq", "sub": "anna", "scope": "rabbitmq.configure:*/*"}
    first, second = (jwt.encode({**claims, "exp": int(time.time()) + n}, key, "ES256", {"kid": "key"}) for n in (300, 600))
    log_in("token", f"amqp://{process.host}:{process.port}/%2F", first, second)
    assert process.events("auth.secret_updated")[0]["user"] == "anna"
