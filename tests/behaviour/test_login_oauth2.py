"""Owners of tokens: which tokens count, what their scopes allow, and how a token is renewed or comes to its end."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import aio_pika
import jwt
import pika
import pika.exceptions
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from jwt.algorithms import RSAAlgorithm

from broker_process import BrokerProcess
from support import eventually, full_text

pytestmark = pytest.mark.own

Own = Callable[..., BrokerProcess]
Connect = Callable[..., pika.BlockingConnection]

ISSUER = "https://issuer.example"
LATER_S = 86_400  # than all tests: many tokens are made before the first of them runs
ALL = ["rabbitmq.configure:*/*", "rabbitmq.write:*/*", "rabbitmq.read:*/*"]
FAILED = "Authentication using an OAuth 2/JWT token failed: "
INVALID = "provided token is invalid: "

rsa_key = rsa.generate_private_key(65537, 2048)
other_key = rsa.generate_private_key(65537, 2048)
ec_key = ec.generate_private_key(ec.SECP256R1())


def pem(key: rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey) -> bytes:
    encoding, form = serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    return key.public_key().public_bytes(encoding, form)


def token(key: Any = rsa_key, algorithm: str = "RS256", kid: str | None = "rsa", **claims: object) -> str:
    """A token of anna that counts, but for what is given; None leaves a claim away."""
    good = {"iss": ISSUER, "aud": ["rabbitmq"], "sub": "anna", "exp": int(time.time()) + LATER_S, "scope": ALL}
    said = {name: value for name, value in {**good, **claims}.items() if value is not None}
    return jwt.encode(said, key, algorithm, headers={"kid": kid} if kid else {})


def signed_as_if_public_were_secret() -> str:
    """By hand: libraries refuse to."""

    def encoded(data: bytes) -> bytes:
        return base64.urlsafe_b64encode(data).rstrip(b"=")

    _, claims, _ = token().encode().split(b".")
    begin = encoded(b'{"alg":"HS256","kid":"rsa"}') + b"." + claims
    return (begin + b"." + encoded(hmac.digest(pem(rsa_key), begin, hashlib.sha256))).decode()


@pytest.fixture(scope="module")
def process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    folder = tmp_path_factory.mktemp("oauth2")
    files = {"rsa": folder / "rsa.pem", "ec": folder / "ec.pem"}
    files["rsa"].write_bytes(pem(rsa_key))
    files["ec"].write_bytes(pem(ec_key))
    oauth2 = {
        "resource_server_id": "rabbitmq",
        "preferred_username_claims": ["user_name"],
        "additional_scopes_key": "roles",
        "default_key": "rsa",
        "signing_keys": {name: str(file) for name, file in files.items()},
    }
    config = {"auth_backends": ["oauth2", "internal"], "auth_oauth2": oauth2}
    running = BrokerProcess(folder, config).start()
    running.ctl("add_vhost", "eu")
    yield running
    running.stop()


@pytest.fixture
def login(process: BrokerProcess, connect: Connect) -> Callable[..., pika.BlockingConnection]:
    def log_in(text: str, vhost: str = "/") -> pika.BlockingConnection:
        return connect(to=process, user="", password=text, vhost=vhost)

    return log_in


def refusal(act: Callable[[], object]) -> str:
    with pytest.raises(pika.exceptions.ChannelClosedByBroker) as caught:
        act()
    assert caught.value.reply_code == 403
    return str(caught.value.reply_text)


@pytest.mark.parametrize(
    "text",
    [
        token(),
        token(ec_key, "ES256", "ec"),
        token(algorithm="PS384"),
        token(kid=None),
        token(aud="rabbitmq"),
        token(exp=None),
        token(scope=" ".join(ALL)),
        token(scope=None, roles=ALL),
        token(scope=None, roles={"rabbitmq": ["read:*/*"], "other": ["nothing"]}),
    ],
    ids=["RSA", "EC", "PSS", "default key", "one audience", "for ever", "scopes in a text", "roles", "roles of the server"],
)
def test_a_good_token_logs_in(login: Callable[..., pika.BlockingConnection], process: BrokerProcess, text: str) -> None:
    before = len(process.events("auth.login"))
    assert login(text).is_open
    found = process.events("auth.login")[before]
    assert (found["user"], found["backend"]) == ("anna", "oauth2")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (token(aud=["other"]), INVALID + "Audience doesn't match"),
        (token(aud=None), INVALID + 'Token is missing the "aud" claim'),
        (token(other_key), INVALID + "Signature verification failed"),
        (token(kid="unknown"), "key_not_found"),
        (token(None, "none"), INVALID + "The specified alg value is not allowed"),
        (token(ec_key, "ES256", "rsa"), INVALID + "The specified alg value is not allowed"),
        (signed_as_if_public_were_secret(), INVALID + "The specified alg value is not allowed"),
        (token(nbf=int(time.time()) + LATER_S), INVALID + "The token is not yet valid (nbf)"),
        ("nonsense", INVALID + "Not enough segments"),
        ("", INVALID + "Not enough segments"),
    ],
    ids=["audience", "no audience", "key", "unknown key", "none", "other kind", "public as secret", "early", "text", "empty"],
)
def test_a_bad_token_is_refused_and_the_log_says_why(
    login: Callable[..., pika.BlockingConnection], process: BrokerProcess, text: str, reason: str
) -> None:
    before = len(process.events("auth.login_failed"))
    with pytest.raises(pika.exceptions.ProbableAuthenticationError, match="using authentication mechanism PLAIN"):
        login(text)
    (failed,) = process.events("auth.login_failed")[before:]
    assert failed["reason"] == f"oauth2: {FAILED}{reason}; internal: user '' - invalid credentials"


def test_an_expired_token_is_refused_in_rabbitmqs_words(
    login: Callable[..., pika.BlockingConnection], process: BrokerProcess
) -> None:
    with pytest.raises(pika.exceptions.ProbableAuthenticationError):
        login(token(exp=1000))
    reason = process.events("auth.login_failed")[-1]["reason"]
    assert f"{FAILED}Provided JWT token has expired at timestamp 1000 (validated at " in reason


def test_the_name_is_the_tokens_and_not_the_clients(connect: Connect, process: BrokerProcess) -> None:
    text = token(user_name="berta", scope=[*ALL, "rabbitmq.tag:monitoring"])
    connect(to=process, user="guest", password=text)
    assert process.ctl("-q", "--no-table-headers", "list_connections", "user").split().count("berta") == 1


def test_scopes_say_what_may_be_done(login: Callable[..., pika.BlockingConnection]) -> None:
    scopes = ["rabbitmq.configure:%2F/a*", "rabbitmq.write:*/*", "rabbitmq.read:*/amq.topic/a.*", "rabbitmq.read:*/b*"]
    connection = login(token(scope=[*scopes, "other.read:*/*", "rabbitmq.read:nonsense", "configure:*/*"]))
    channel = connection.channel()
    channel.queue_declare("abc", exclusive=True)
    channel.queue_bind("abc", "amq.topic", "a.b")
    channel.confirm_delivery()
    channel.basic_publish("amq.topic", "a.b", b"one")
    text = "access to queue 'bcd' in vhost '/' refused for user 'anna'"
    assert refusal(lambda: connection.channel().queue_declare("bcd")) == full_text(403, text)
    text = "access to topic 'b' in exchange 'amq.topic' in vhost '/' refused for user 'anna'"
    assert refusal(lambda: connection.channel().queue_bind("abc", "amq.topic", "b")) == full_text(403, text)
    text = "access to queue 'abc' in vhost '/' refused for user 'anna'"
    assert refusal(lambda: connection.channel().basic_get("abc")) == full_text(403, text)


def test_scopes_say_which_vhosts_may_be_entered(login: Callable[..., pika.BlockingConnection]) -> None:
    scopes = ["rabbitmq.read:eu/*"]
    assert login(token(scope=scopes), "eu").is_open
    with pytest.raises(pika.exceptions.ProbableAccessDeniedError, match="access to vhost '/' refused for user 'anna'"):
        login(token(scope=scopes))


def test_a_new_token_brings_new_rights(login: Callable[..., pika.BlockingConnection]) -> None:
    connection = login(token(scope=["rabbitmq.configure:*/*"]))
    channel = connection.channel()
    channel.queue_declare("renewed", exclusive=True)
    refusal(lambda: connection.channel().basic_get("renewed"))
    connection.update_secret(token(), "renewal")
    connection.channel().basic_get("renewed")
    connection.update_secret(token(scope=["rabbitmq.configure:*/*"]), "renewal")
    refusal(lambda: connection.channel().basic_get("renewed"))


def test_routes_that_were_found_with_the_old_token_are_forgotten(login: Callable[..., pika.BlockingConnection]) -> None:
    connection = login(token())
    channel = connection.channel()
    channel.confirm_delivery()
    channel.basic_publish("amq.fanout", "", b"")
    connection.update_secret(token(scope=["rabbitmq.read:*/*"]), "fewer rights")
    assert "access to exchange 'amq.fanout'" in refusal(lambda: channel.basic_publish("amq.fanout", "", b""))


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("nonsense", "provided token is invalid"),
        (token(sub="eve"), "the new token is for the user 'eve'"),
        (token(exp=1000), "Provided JWT token has expired"),
    ],
    ids=["nonsense", "of somebody else", "expired"],
)
def test_a_new_token_that_does_not_count_ends_the_connection(
    login: Callable[..., pika.BlockingConnection], process: BrokerProcess, text: str, reason: str
) -> None:
    connection = login(token())
    with pytest.raises(pika.exceptions.ConnectionClosedByBroker) as caught:
        connection.update_secret(text, "renewal")
    assert (caught.value.reply_code, caught.value.reply_text) == (
        530,
        full_text(530, "New secret was refused by one of the backends"),
    )
    assert reason in process.events("auth.secret_refused")[-1]["reason"]


def test_the_end_of_a_token_is_the_end_of_its_connection(
    login: Callable[..., pika.BlockingConnection], process: BrokerProcess
) -> None:
    renewed = login(token(exp=int(time.time()) + 2))
    connection = login(token(exp=int(time.time()) + 2))
    renewed.update_secret(token(), "in time")
    with pytest.raises(pika.exceptions.ConnectionClosedByBroker) as caught:
        connection.process_data_events(10)
    assert caught.value.reply_code == 320
    assert "Provided JWT token has expired at timestamp " in caught.value.reply_text
    assert process.events("auth.token_expired")[-1]["user"] == "anna"
    assert renewed.channel().is_open


def test_the_broker_own_users_are_asked_next(connect: Connect, process: BrokerProcess) -> None:
    connection = connect(to=process, user="guest")
    connection.update_secret("anything", "clients may")
    assert connection.channel().is_open


# -- the management API -----------------------------------------------------------------------------------------------


def whoami(process: BrokerProcess, authorization: str) -> tuple[int, Any]:
    request = urllib.request.Request(f"http://{process.management}/api/whoami", headers={"Authorization": authorization})
    try:
        with urllib.request.urlopen(request, timeout=10) as response:
            return response.status, json.load(response)
    except urllib.error.HTTPError as refused:
        return refused.code, json.load(refused)


def test_the_management_api_takes_tokens(process: BrokerProcess) -> None:
    good = token(scope=["rabbitmq.tag:administrator"])
    expected = (200, {"name": "anna", "tags": ["administrator"]})
    assert whoami(process, f"Bearer {good}") == expected
    assert whoami(process, "Basic " + base64.b64encode(f":{good}".encode()).decode()) == expected
    assert whoami(process, f"Bearer {token()}") == (401, {"error": "not_authorised", "reason": "Not management user"})
    for bad in ("nonsense", token(exp=1000)):
        assert whoami(process, f"Bearer {bad}") == (401, {"error": "not_authorized", "reason": "Login failed"})


def test_a_browser_keeps_its_session_until_the_token_expires(process: BrokerProcess) -> None:
    text = token(scope=["rabbitmq.tag:monitoring"], exp=int(time.time()) + 3)

    def ask(method: str, body: bytes | None = None, cookie: str = "") -> tuple[int, str]:
        url = f"http://{process.management}/api/session"
        try:
            request = urllib.request.Request(url, body, {"Cookie": cookie}, method=method)
            with urllib.request.urlopen(request, timeout=10) as response:
                return response.status, response.headers.get("Set-Cookie", "").partition(";")[0]
        except urllib.error.HTTPError as refused:
            return refused.code, ""

    status, cookie = ask("POST", json.dumps({"username": "", "password": text}).encode())
    assert (status, ask("GET", cookie=cookie)[0]) == (200, 200)
    assert eventually(lambda: ask("GET", cookie=cookie)[0] == 401)


def test_without_the_back_end_the_management_api_takes_no_tokens(own_broker: Own) -> None:
    assert whoami(own_broker(), f"Bearer {token()}")[0] == 401


async def test_aio_pika_logs_in(process: BrokerProcess) -> None:
    connection = await aio_pika.connect(f"amqp://:{token()}@{process.host}:{process.port}/")
    async with connection:
        channel = await connection.channel()
        queue = await channel.declare_queue(exclusive=True)
        await channel.default_exchange.publish(aio_pika.Message(b"one"), queue.name)
        assert (await queue.get(timeout=5)).body == b"one"
        await connection.update_secret(token())


# -- keys that the issuer shows ---------------------------------------------------------------------------------------


class Issuer(ThreadingHTTPServer):
    """Shows `keys`, by name, where OpenID Connect looks for them."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Keys)
        self.keys = {"first": rsa_key}
        self.asked: list[str] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class _Keys(BaseHTTPRequestHandler):
    server: Issuer

    def do_GET(self) -> None:
        self.server.asked.append(self.path)
        keys = [{**json.loads(RSAAlgorithm.to_jwk(key.public_key())), "kid": kid} for kid, key in self.server.keys.items()]
        about = {"issuer": self.server.url, "jwks_uri": f"{self.server.url}/keys"}
        body = json.dumps({"keys": keys} if self.path == "/keys" else about).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *arguments: object) -> None:
        """Nothing is printed."""


@pytest.fixture
def issuer() -> Iterator[Issuer]:
    with Issuer() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def test_keys_come_from_the_issuer_and_its_tokens_alone_count(own_broker: Own, connect: Connect, issuer: Issuer) -> None:
    process = own_broker(
        config={"auth_backends": ["oauth2"], "auth_oauth2": {"resource_server_id": "rabbitmq", "issuer": issuer.url}}
    )
    good = token(kid="first", iss=issuer.url)
    first, second = (connect(to=process, user="", password=good) for _ in range(2))
    assert (first.is_open, second.is_open) == (True, True)
    assert issuer.asked == ["/.well-known/openid-configuration", "/keys"]
    for bad in (token(kid="first"), token(kid="first", iss=None), token(other_key, kid="second", iss=issuer.url)):
        with pytest.raises(pika.exceptions.ProbableAuthenticationError):
            connect(to=process, user="", password=bad)
    reasons = [failed["reason"] for failed in process.events("auth.login_failed")]
    assert reasons == [
        f"oauth2: {FAILED}{INVALID}Invalid issuer",
        f'oauth2: {FAILED}{INVALID}Token is missing the "iss" claim',
        f"oauth2: {FAILED}key_not_found",
    ]


def test_an_issuer_that_does_not_answer_lets_nobody_in(own_broker: Own, connect: Connect) -> None:
    oauth2 = {"resource_server_id": "rabbitmq", "jwks_url": "http://127.0.0.1:1/keys"}
    process = own_broker(config={"auth_backends": ["oauth2", "internal"], "auth_oauth2": oauth2})
    with pytest.raises(pika.exceptions.ProbableAuthenticationError):
        connect(to=process, user="", password=token())
    assert process.events("auth.keys_not_fetched")
    assert connect(to=process).is_open


@pytest.mark.parametrize(
    ("oauth2", "complaint"),
    [
        ({}, "auth_oauth2.resource_server_id: needed by the back end oauth2"),
        ({"resource_server_id": "x"}, "auth_oauth2: needs signing_keys, jwks_url or issuer"),
        ({"resource_server_id": "x", "signing_keys": {"k": "/none"}}, "auth_oauth2.signing_keys.k: /none cannot be read"),
        ({"resource_server_id": "x", "issuer": "y", "algorithms": ["none"]}, "auth_oauth2.algorithms: none is not taken"),
    ],
)
def test_settings_that_cannot_work_end_the_start(tmp_path: Path, oauth2: dict[str, object], complaint: str) -> None:
    process = BrokerProcess(tmp_path, {"auth_backends": ["oauth2"], "auth_oauth2": oauth2})
    with pytest.raises(AssertionError, match="ended with 2"):
        process.start()
    assert f"rabbitpy-broker: {complaint}" in process.log_text()


def test_keys_may_be_a_jwks_file(tmp_path: Path, own_broker: Own, connect: Connect) -> None:
    secret = {"kty": "oct", "k": base64.urlsafe_b64encode(b"s" * 64).decode().rstrip("="), "alg": "HS256", "kid": "own"}
    file = tmp_path / "keys.json"
    file.write_text(json.dumps({"keys": [secret, {"kty": "strange"}]}))
    oauth2 = {"resource_server_id": "rabbitmq", "signing_keys": {"k": str(file)}}
    process = own_broker(config={"auth_backends": ["oauth2"], "auth_oauth2": oauth2})
    assert connect(to=process, user="", password=token(b"s" * 64, "HS256", "own")).is_open
    with pytest.raises(pika.exceptions.ProbableAuthenticationError):
        connect(to=process, user="", password=token(b"s" * 64, "HS512", "own"))
